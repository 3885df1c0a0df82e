"""Gradient inversion by optimisation, the paper's motive for noise, against what clients really release.

    python -m privmarket_studies.gradient_inversion attack CACHE     # resumable
    python -m privmarket_studies.gradient_inversion collect CACHE    # writes docs/results/literal/inversion.json
    python -m privmarket_studies.literal_page                         # puts it on the page

The attacker is the server under local trust. It knows the global weights, the clip norm, how many records the
client holds and their labels, and has public records of the same kind. It looks for pictures whose clipped
gradients add up to a vector in the direction of the release:

    minimise over x   1 − cos(Σ_r clip(∇ℓ(x_r, y_r)), release) + weight · total variation(x)

by Adam on the signs of the slopes, starting from the mean of public pictures with a little noise, within the range
that pixels have. The weight is chosen for each model and ε, by trial on releases that the attacker makes of public
pictures. This is the attack of [Geiping2020] on one release of `training.private_updates`, noise and clipping
included.

Where the first layer is fully connected and one record made the release, no search is needed: `read_off` takes the
picture from the ratio of the first layer's gradients.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, linear_sum_assignment
from scipy.special import log_ndtr
from torch import Tensor, nn
from torch.nn import functional

from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError
from privmarket.privacy import NoiseSource
from privmarket.tasks import load_dataset
from privmarket.training import ClientRecords, LocalPlan, PrivateModel, build_model, private_updates

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "literal"
DELTA = 1e-5
EPSILONS = (1.0, 10.0, 1e3, 1e5, None)
"""What is sold; None leaves the noise out."""
VARIATIONS = (1e-2, 1e-1)
_TRIAL_RELEASES = 2
_TRIAL_STEPS = 100
_PUBLIC_PICTURES = 2000


@dataclass(frozen=True)
class Search:
    """How the attacker looks for pictures.

    Attributes:
        steps: of Adam.
        rate: first step size, in units of the pixels' standard deviation; a tenth after 3/8, 5/8 and 7/8 of the
        steps.
        variation: weight of the mean total variation.
    """

    steps: int = 400
    rate: float = 0.1
    variation: float = 1e-2


@dataclass(frozen=True)
class Setting:
    """One kind of client that is attacked: its model, its pictures, and how many of them made a release."""

    dataset: str
    model: str
    batch: int
    releases: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.dataset}-{self.model}-batch-{self.batch}"


SETTINGS = (
    Setting("cifar10", "cnn", 1, 8),
    Setting("cifar10", "cnn", 4, 2),
    Setting("mnist", "mlp", 1, 8),
    Setting("mnist", "mlp", 4, 2),
)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier of an (ε, δ)-DP Gaussian mechanism, also for ε at which nobody would sell.

    Solves Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) = δ for μ = 1/σ, in logarithms. `pm.privacy.noise_multiplier` gives the
    same up to ε of some dozens and refuses to go lower.

    Implements: Theorem 8 of [BalleWang2018].
    """

    def excess(mu: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        return first + float(np.log(-np.expm1(min(second - first, -1e-15)))) - float(np.log(delta))

    upper = float(np.sqrt(2 * epsilon)) + 10.0
    return 1.0 / float(brentq(excess, 1e-3 * min(1.0, epsilon), upper, xtol=1e-12))


def record_gradients(module: nn.Sequential, inputs: Tensor, labels: Tensor) -> Tensor:
    """(records, parameters) gradient of each record's cross-entropy, in the module's order, differentiable by the
    inputs.

    Linear layers and convolutions only: a record's gradient is the product of a layer's inputs and the slopes of
    its outputs, with a convolution's inputs cut into patches.
    """
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    rows = inputs
    for layer in module:
        out = layer(rows)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            seen.append((layer, rows, out))
        rows = out
    loss = functional.cross_entropy(rows, labels, reduction="sum")
    slopes = torch.autograd.grad(loss, [out for _, _, out in seen], create_graph=True)
    parts: list[Tensor] = []
    for (layer, before, _), slope in zip(seen, slopes, strict=True):
        if isinstance(layer, nn.Conv2d):
            patches = functional.unfold(before, layer.kernel_size, padding=layer.padding)  # type: ignore[arg-type]
            slope = slope.flatten(2)
            parts += [(slope @ patches.transpose(1, 2)).flatten(1), slope.sum(2)]
        else:
            parts += [(slope[:, :, None] * before[:, None, :]).flatten(1), slope]
    return torch.cat(parts, dim=1)


def clipped_sums(gradients: Tensor, clip_norm: float, batch: int) -> Tensor:
    """(releases · batch, parameters) → (releases, parameters): each row clipped, then added up by release."""
    norms = gradients.norm(dim=1, keepdim=True)
    clipped = gradients * (clip_norm / norms.clamp_min(clip_norm))
    sums: Tensor = clipped.view(-1, batch, gradients.shape[1]).sum(1)
    return sums


def variation(pictures: Tensor) -> Tensor:
    """(pictures,) mean absolute difference of neighbouring pixels."""
    across = (pictures[..., 1:] - pictures[..., :-1]).abs().flatten(1).mean(1)
    down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().flatten(1).mean(1)
    return across + down


def reconstructed(
    module: nn.Sequential,
    releases: Tensor,
    labels: Tensor,
    guess: Tensor,
    limits: tuple[Tensor, Tensor],
    clip_norm: float,
    search: Search,
    seed: int,
) -> Tensor:
    """(releases, batch, planes, height, width): the pictures that the attacker believes in.

    Args:
        releases: (releases, parameters) in the module's order.
        labels: (releases, batch), known to the attacker.
        guess: (planes, height, width) the mean of public pictures.
        limits: (planes, 1, 1) smallest and largest value of a pixel.
    """
    batch = labels.shape[1]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((labels.numel(), *guess.shape), generator=generator)
    x = (guess + 0.1 * noise).clamp(*limits).requires_grad_()
    target = functional.normalize(releases, dim=1)
    optimiser = torch.optim.Adam([x], lr=search.rate)
    milestones = [round(search.steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    for _ in range(search.steps):
        sums = clipped_sums(record_gradients(module, x, labels.flatten()), clip_norm, batch)
        alike = (functional.normalize(sums, dim=1) * target).sum(1)
        loss = (1.0 - alike).sum() + search.variation * variation(x).sum()
        (slope,) = torch.autograd.grad(loss, x)
        x.grad = slope.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.copy_(x.clamp(*limits))
    return x.detach().view(*labels.shape, *guess.shape)


def read_off(model: PrivateModel, update: Tensor) -> Tensor:
    """(parameters,) → (inputs,): the picture that fits best if a single record made the update.

    A fully connected layer's gradient by its matrix is (its input) × (slope of each unit), by its bias the slopes
    alone, so that the picture is Σ slope × matrix row / Σ slope² over the units of the first layer. Exact without
    noise, whatever the clipping; with several records it gives their mean, weighted by their slopes.

    Raises:
        ConfigurationError: the model does not begin with a fully connected layer.
    """
    parts = list(model.named(update.double()).values())
    if parts[0].ndim != 2 or len(parts) < 2:
        raise ConfigurationError(
            f"model {model.name!r} begins with weights of shape {tuple(parts[0].shape)}", "use mlp or logistic"
        )
    matrix = parts[0]  # (units, inputs)
    slope = parts[1]
    return slope @ matrix / (slope @ slope).clamp_min(1e-30)


def likeness(found: Tensor, picture: Tensor) -> float:
    """Correlation of two pictures over their pixels: 1 is the same picture, 0 nothing in common."""
    pair = torch.stack([found.flatten().double(), picture.flatten().double()])
    return float(torch.corrcoef(pair).nan_to_num()[0, 1])


def matched(found: Tensor, truth: Tensor) -> tuple[list[float], list[float]]:
    """(batch,) root mean squared error and likeness of each true picture and the found one that it is matched with.

    A sum of gradients says nothing about the order of records, so found and true pictures are matched such that the
    summed squared errors are least.
    """
    a, b = truth.flatten(1).double(), found.flatten(1).double()
    squares = (a[:, None] - b[None]).square().mean(2).numpy()
    rows, columns = linear_sum_assignment(squares)
    error = np.sqrt(squares[rows, columns]).tolist()
    return error, [likeness(found[column], truth[row]) for row, column in zip(rows, columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Case:
    """A setting with its pictures and its model.

    Attributes:
        pictures: (releases, batch, planes, height, width), scaled as clients train on them.
        labels: (releases, batch), all different within a release where that is possible.
        guess: the mean of public pictures.
        limits: of a pixel; spread: (planes, 1, 1) what a pixel's unit is in the range from 0 to 1.
    """

    setting: Setting
    model: PrivateModel
    weights: Tensor
    pictures: Tensor
    labels: Tensor
    guess: Tensor
    limits: tuple[Tensor, Tensor]
    spread: Tensor

    @classmethod
    def of(cls, setting: Setting, seed: int = 0, *, public_pictures: bool = False) -> Case:
        """Pictures of the clients, or public ones for trials, in releases whose records have different labels."""
        data = load_dataset(setting.dataset)
        kept_back = load_dataset(setting.dataset, measured_on="validation")
        public = torch.from_numpy(kept_back.test_images)
        images, all_labels = data.train_images, data.train_labels
        if public_pictures:
            images, all_labels = kept_back.test_images[_PUBLIC_PICTURES:], kept_back.test_labels[_PUBLIC_PICTURES:]
        model = build_model(setting.model, data.image_shape, data.classes)
        weights = model.initial_weights(np.random.default_rng([seed, 1]))
        model.load(weights)
        rng = np.random.default_rng([seed, 2])
        chosen = []
        for _ in range(setting.releases):
            kinds = rng.permutation(data.classes)[: setting.batch]
            chosen.append([int(rng.choice(np.flatnonzero(all_labels == kind))) for kind in kinds])
        rows = np.array(chosen)
        # Black and white are extreme values of some public picture.
        planes = public.transpose(0, 1).flatten(1)
        limits = (planes.amin(1)[:, None, None], planes.amax(1)[:, None, None])
        return cls(
            setting,
            model,
            weights,
            torch.from_numpy(images[rows]),
            torch.from_numpy(all_labels[rows]),
            public[:_PUBLIC_PICTURES].mean(0),
            limits,
            1.0 / (limits[1] - limits[0]),
        )

    @staticmethod
    def noise_multiplier(epsilon: float | None) -> float:
        """σ over the clip norm of a release of this ε; 0 without noise."""
        return 0.0 if epsilon is None else gaussian_noise(epsilon, DELTA)

    def released(self, epsilon: float | None, *, noise_share: float = 1.0, seed: int = 0) -> Tensor:
        """(releases, parameters) in the module's order: what the clients sell at this ε, or without noise.

        Args:
            noise_share: 1 adds the noise that this ε needs, less is a client that does not keep its promise.
        """
        sigma = noise_share * self.noise_multiplier(epsilon)
        batch = self.setting.batch
        updates = []
        for number, (pictures, labels) in enumerate(zip(self.pictures, self.labels, strict=True)):
            source = NoiseSource.from_seed(seed, "inversion", number, repr(epsilon))
            records = ClientRecords(pictures, labels, [batch])
            plan = LocalPlan(clip_norm=1.0)
            (update,) = private_updates(self.model, self.weights, records, plan, [sigma], [source])
            updates.append(torch.cat([part.flatten() for part in self.model.named(update).values()]))
        return torch.stack(updates)

    def attacked(self, epsilon: float | None, search: Search, *, noise_share: float = 1.0) -> Tensor:
        """What the attacker makes of the releases at this ε."""
        module = self.model.module
        assert isinstance(module, nn.Sequential)
        releases = self.released(epsilon, noise_share=noise_share)
        return reconstructed(module, releases, self.labels, self.guess, self.limits, 1.0, search, seed=3)

    def judged(self, found: Tensor) -> dict[str, list[float]]:
        """Per picture: its error in units of the range of a pixel, and its likeness; found pictures are matched."""
        error: list[float] = []
        alike: list[float] = []
        for mine, truth in zip(found * self.spread, self.pictures * self.spread, strict=True):
            of_errors, of_likeness = matched(mine, truth)
            error += of_errors
            alike += of_likeness
        return {"error": error, "likeness": alike}

    def blind(self) -> dict[str, list[float]]:
        """The same for an attacker that looks at no release and says the mean of public pictures."""
        return self.judged(self.guess.expand_as(self.pictures))


def chosen_search(setting: Setting, epsilon: float | None) -> Search:
    """The search that does best on releases of single public pictures at this ε."""
    trial = Case.of(replace(setting, batch=1, releases=_TRIAL_RELEASES), seed=1, public_pictures=True)

    def error(weight: float) -> float:
        found = trial.attacked(epsilon, Search(steps=_TRIAL_STEPS, variation=weight))
        return float(np.mean(trial.judged(found)["error"]))

    return Search(variation=min(VARIATIONS, key=error))


def attack(cache: Path, settings: Sequence[Setting] = SETTINGS) -> None:
    """Attacks settings at every ε that the cache does not hold yet, from no noise to much."""
    torch.set_num_threads(1)
    cache.mkdir(parents=True, exist_ok=True)
    for setting in settings:
        case = Case.of(setting)
        for epsilon in reversed(EPSILONS):
            kept = _kept(cache, setting, epsilon)
            if kept.exists():
                continue
            started = time.process_time()
            search = chosen_search(setting, epsilon)
            found = case.attacked(epsilon, search)
            facts: dict[str, Any] = {
                "search": asdict(search),
                "noise_multiplier": case.noise_multiplier(epsilon),
                **case.judged(found),
                "processor_seconds": round(time.process_time() - started, 1),
            }
            beside = kept.with_suffix(".new.npz")
            np.savez(beside, found=found.numpy().astype(np.float16), facts=json.dumps(facts))
            beside.replace(kept)
            print(kept.stem, f"{np.mean(facts['error']):.4f}", flush=True)


def _label(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def _kept(cache: Path, setting: Setting, epsilon: float | None) -> Path:
    return cache / f"{setting.name}-{_label(epsilon)}.npz"


def collect(cache: Path, folder: Path = FOLDER) -> None:
    """Writes what was found about every setting that was attacked at every ε."""
    everything: dict[str, Any] = {}
    for setting in SETTINGS:
        if not all(_kept(cache, setting, epsilon).exists() for epsilon in EPSILONS):
            continue
        case = Case.of(setting)
        by_epsilon: dict[str, Any] = {}
        for epsilon in reversed(EPSILONS):
            with np.load(_kept(cache, setting, epsilon)) as stored:
                by_epsilon[_label(epsilon)] = json.loads(str(stored["facts"]))
        everything[setting.name] = {
            "setting": asdict(setting),
            "parameters": case.model.parameters,
            "blind": case.blind(),
            "epsilon": by_epsilon,
        }
        _draw_pictures(case, cache, folder / f"inversion-{setting.name}.png")
    write_atomically(folder / "inversion.json", json.dumps(_rounded(everything)) + "\n")


def _rounded(found: Any) -> Any:
    """Four digits of every figure: the file is kept."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    return float(f"{found:.4g}") if isinstance(found, float) else found


def _draw_pictures(case: Case, cache: Path, path: Path, releases: int = 4) -> None:
    """A row per picture: the truth, then what was found without noise and at each ε from the largest down."""
    from PIL import Image

    shown = [case.pictures[:releases, 0]]
    for epsilon in reversed(EPSILONS):
        with np.load(_kept(cache, case.setting, epsilon)) as stored:
            found = torch.from_numpy(stored["found"].astype(np.float32))[:releases]
        # The found picture that is nearest to the one shown.
        distance = (found - case.pictures[:releases, :1]).square().flatten(2).sum(2)
        shown.append(found[torch.arange(len(found)), distance.argmin(1)])
    grid = (torch.stack(shown, dim=1) - case.limits[0]) * case.spread  # (releases, columns, planes, height, width)
    padded = functional.pad(grid.clamp(0, 1), (2, 2, 2, 2), value=1.0)
    whole = padded.permute(0, 3, 1, 4, 2).reshape(padded.shape[0] * padded.shape[3], -1, padded.shape[2])
    pixels = (255 * whole.expand(-1, -1, 3)).to(torch.uint8).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST).save(path, optimize=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m privmarket_studies.gradient_inversion")
    parser.add_argument("command", choices=("attack", "collect"))
    parser.add_argument("cache", type=Path)
    parser.add_argument("names", nargs="*", help="settings to attack; without names all")
    given = parser.parse_args(arguments)
    if given.command == "attack":
        attack(given.cache, [one for one in SETTINGS if not given.names or one.name in given.names])
    else:
        collect(given.cache)


if __name__ == "__main__":
    main()
