"""Sums of clipped per-record gradients, for many clients in one pass.

Implements: per-example clipping of [Abadi2016], by ghost norms where a layer is linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privmarket.federated.layers import Offsets
from privmarket.federated.models import Model

# Memory of one pass is bounded by the rows in it, not by the number of clients or the size of a batch.
_BLOCK_ROWS = 4096


def loss_slope(logits: Tensor, labels: Tensor) -> Tensor:
    """(rows, classes) derivative of each record's cross-entropy by its logits: softmax − one-hot."""
    slope = torch.softmax(logits, dim=1)
    slope[torch.arange(labels.shape[0]), labels] -= 1.0
    return slope


def gradient_sums(
    model: Model,
    weights: Tensor,
    images: Tensor,
    labels: Tensor,
    offsets: Offsets,
    clip_norm: float | None,
    out: Tensor | None = None,
) -> Tensor:
    """Each client's Σ over its rows of the records' gradients, each clipped to norm ≤ `clip_norm`.

    Args:
        weights: (1, parameters) shared by all clients, or (clients, parameters).
        images: (rows, channels, h, w), the clients' batches one after the other.
        labels: (rows,).
        offsets: clients + 1 ascending row numbers; client i owns rows offsets[i]..offsets[i+1].
        clip_norm: C; None leaves gradients as they are (no privacy).
        out: (clients, parameters) to add the sums to, such as noise; zeros unless given.

    Returns:
        (clients, parameters).
    """
    sums = torch.zeros(len(offsets) - 1, model.parameters) if out is None else out
    for first in range(0, offsets[-1], _BLOCK_ROWS):
        last = min(first + _BLOCK_ROWS, offsets[-1])
        clients = [i for i in range(len(offsets) - 1) if offsets[i] < last and offsets[i + 1] > first]
        own = slice(clients[0], clients[-1] + 1)
        local = [min(max(offsets[i], first), last) - first for i in range(own.start, own.stop + 1)]
        mine = weights if weights.shape[0] == 1 else weights[own]
        _add_block(model, mine, images[first:last], labels[first:last], local, clip_norm, sums[own])
    return sums


def _add_block(
    model: Model,
    weights: Tensor,
    images: Tensor,
    labels: Tensor,
    offsets: Offsets,
    clip_norm: float | None,
    sums: Tensor,
) -> None:
    """Adds one block of rows to `sums`, (clients in the block, parameters)."""
    logits, kept = model.forward(weights, images, offsets)
    slopes: list[Tensor | None] = [None] * len(model.layers)
    slope = loss_slope(logits, labels)
    squared_norms = torch.zeros(labels.shape[0])
    first = next(i for i, layer in enumerate(model.layers) if layer.size)
    parts = model.split(weights)
    for i in range(len(model.layers) - 1, first - 1, -1):
        layer = model.layers[i]
        if layer.size:
            slopes[i] = slope
            if clip_norm is not None:
                squared_norms += layer.squared_norms(kept[i], slope)
        if i > first:  # nobody needs the derivative by the pixels
            slope = layer.backward(parts[i], kept[i], slope, offsets)
    factor = torch.ones(labels.shape[0]) if clip_norm is None else clip_factors(squared_norms, clip_norm)
    for layer, part, memory, steep in zip(model.layers, model.split(sums), kept, slopes, strict=True):
        if steep is not None:
            layer.add_sums(part, memory, steep, factor, offsets)


def clip_factors(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """(rows,) min(1, C/‖g‖)."""
    # A whisker below C, so that float32 rounding of the norm cannot let a record count for more than C.
    limit = clip_norm * (1.0 - 1e-6)
    return (limit * torch.rsqrt(squared_norms.clamp_min(1e-30))).clamp_max_(1.0)
