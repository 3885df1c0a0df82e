"""Gradient inversion, the paper's motive for noise: reading a record out of the update that it made.

A fully connected layer's gradient by its matrix is (its input) × (slope of each unit), by its bias the slopes
alone. Where one record made the update, the first is a multiple of the second in every pixel, and the multiple is
the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.federated.layers import Linear
from privmarket.federated.models import Model


def inverted(model: Model, update: Tensor) -> Tensor:
    """(parameters,) → (inputs,): the image that fits best if a single record made the update.

    Least squares over the units of the first layer: Σ slope × matrix row / Σ slope². Exact without noise, whatever
    the clipping; with several records it gives their mean, weighted by their slopes.

    Raises:
        ConfigurationError: the model does not begin with a fully connected layer.
    """
    parts = zip(model.layers, model.parts(update.double()[None]), strict=True)
    layer, (weights,) = next((layer, part) for layer, part in parts if layer.size)
    if not isinstance(layer, Linear):
        raise ConfigurationError(
            f"model {model.name!r} begins with a {type(layer).__name__}", "use mlp or logistic"
        )
    matrix, slope, _ = weights
    return matrix @ slope / (slope @ slope).clamp_min(1e-30)


def likeness(found: Tensor, image: Tensor) -> float:
    """Correlation of two images over their pixels: 1 is the same picture, 0 nothing in common."""
    pair = torch.stack([found.flatten().double(), image.flatten().double()])
    return float(torch.corrcoef(pair).nan_to_num()[0, 1])
