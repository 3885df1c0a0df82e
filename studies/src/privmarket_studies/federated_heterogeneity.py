"""How different clients' gradients are, beside the noise that they sell: κ and H of P2, from public records alone.

The validation records belong to no client. Their mean clipped gradient per class, mixed as a Dirichlet split mixes
classes, stands for the clients' gradients; the noise of an update follows from the public training plan. The former
change while a model trains, so they are measured along a training on the validation records themselves:

    python -m privmarket_studies.federated_heterogeneity docs/results/federated/selection/heterogeneity.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privmarket._files import write_atomically
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.simulation._config import Training, recommended_training
from privmarket.tasks import load_dataset, with_features
from privmarket.training import PrivateModel, build_model, gradient_sums

_CLIENTS, _ALPHA, _TYPICAL_EPSILON, _DELTA = 100, 0.1, 2.5, 1e-5
_MEASURED_AFTER = (0, 5, 20, 50, 100)


def measure(dataset: str = "mnist") -> list[dict[str, float]]:
    """One row per moment: rounds done, accuracy, H in units in which κ = 1, and r = H²·N/κ."""
    training = recommended_training(dataset)
    data = with_features(load_dataset(dataset, measured_on="validation"), training.features)
    images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    model = build_model(training.model, data.image_shape, data.classes)
    weights = model.initial_weights(np.random.default_rng(0))
    noise = _noise_variance(model, training, data.train_labels.size / _CLIENTS)
    direction = torch.zeros_like(weights)
    rows = []
    for step in range(max(_MEASURED_AFTER) + 1):
        if step in _MEASURED_AFTER:
            spread = _spread(model, weights, images, labels, training.clip_norm)
            row = {
                "rounds": step,
                "accuracy": model.accuracy(weights, images, labels),
                "heterogeneity": float(np.sqrt(spread / noise)),
                "bias_to_noise": _CLIENTS * spread / noise,
            }
            rows.append(row)
        sums = gradient_sums(model, weights[None], images, labels, [labels.shape[0]], training.clip_norm)[0]
        direction = training.momentum * direction + sums / (labels.shape[0] * training.clip_norm)
        weights = weights - training.server_rate * direction
    return rows


def _noise_variance(model: PrivateModel, training: Training, records: float) -> float:
    """κ in gradient units: squared norm of one client's noise, times ε², at a typical ε."""
    family = ReleaseFamily.of(training, _DELTA)
    sigma = float(family.noise_multiplier(np.array([_TYPICAL_EPSILON]))[0])
    return model.parameters * (training.clip_norm * sigma * _TYPICAL_EPSILON / records) ** 2


def _spread(model: PrivateModel, weights: Tensor, images: Tensor, labels: Tensor, clip_norm: float) -> float:
    """H² in gradient units: mean squared distance of the clients' mean gradients from their mean."""
    order = torch.argsort(labels, stable=True)
    sizes = torch.bincount(labels).tolist()
    sums = gradient_sums(model, weights[None], images[order], labels[order], sizes, clip_norm)
    by_class = sums / torch.tensor(sizes)[:, None]
    mixtures = np.random.default_rng(1).dirichlet([_ALPHA] * len(sizes), size=_CLIENTS)
    clients = torch.from_numpy(mixtures).float() @ by_class
    return float(((clients - clients.mean(0)) ** 2).sum(1).mean())


def render_heterogeneity(path: Path) -> str:
    """The kept measurements as a Markdown table."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    lines = ["| rounds | accuracy on the same records | H where κ = 1 | r = H²N/κ |", "|---|---|---|---|"]
    lines += [
        f"| {row['rounds']} | {row['accuracy']:.1%} | {row['heterogeneity']:.3f} | {row['bias_to_noise']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_atomically(Path(sys.argv[1]), json.dumps(measure(), indent=1) + "\n")
