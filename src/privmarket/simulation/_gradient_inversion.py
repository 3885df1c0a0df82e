"""Gradient inversion, the paper's motive for noise: reading a record out of the update that it made.

A fully connected layer's gradient by its matrix is (its input) × (slope of each unit), by its bias the slopes
alone. Where one record made the update, the first is a multiple of the second in every pixel, and the multiple is
the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.training import PrivateModel


def inverted(model: PrivateModel, update: Tensor) -> Tensor:
    """(parameters,) → (inputs,): the image that fits best if a single record made the update.

    Least squares over the units of the first layer: Σ slope × matrix row / Σ slope². Exact without noise, whatever
    the clipping; with several records it gives their mean, weighted by their slopes.

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


def likeness(found: Tensor, image: Tensor) -> float:
    """Correlation of two images over their pixels: 1 is the same picture, 0 nothing in common."""
    pair = torch.stack([found.flatten().double(), image.flatten().double()])
    return float(torch.corrcoef(pair).nan_to_num()[0, 1])
