"""Sums of clipped per-record gradients, for many clients in one pass.

Implements: per-example clipping of [Abadi2016], by ghost norms where a layer is linear.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from privmarket.federated.layers import Part
from privmarket.federated.models import Model

# Memory of one pass is bounded by the rows in it, not by the number of clients or the size of a batch.
BLOCK_ROWS = 4096


def loss_slope(logits: Tensor, labels: Tensor) -> Tensor:
    """(rows, classes) derivative of each record's cross-entropy by its logits: softmax − one-hot."""
    slope = torch.softmax(logits, dim=1)
    slope[torch.arange(labels.shape[0]), labels] -= 1.0
    return slope


def gradient_sums(
    model: Model, weights: Tensor, images: Tensor, labels: Tensor, sizes: list[int], clip_norm: float | None
) -> Tensor:
    """Each client's Σ over its rows of the records' gradients, each clipped to norm ≤ `clip_norm`.

    Args:
        weights: (1, parameters) shared by all clients, or (clients, parameters).
        images: (rows, channels, h, w), the clients' batches one after the other.
        labels: (rows,).
        sizes: rows per client; may hold zeros.
        clip_norm: C; None leaves gradients as they are (no privacy).

    Returns:
        (clients, parameters).
    """
    sums = torch.zeros(len(sizes), model.parameters)
    add_gradient_sums(model, model.parts(weights), images, labels, sizes, clip_norm, model.parts(sums))
    return sums


def add_gradient_sums(
    model: Model,
    weights: list[list[Part]],
    images: Tensor,
    labels: Tensor,
    sizes: list[int],
    clip_norm: float | None,
    sums: list[list[Part]],
    scale: Tensor | None = None,
) -> None:
    """Adds `gradient_sums` to what `sums` holds, such as noise; weights and sums are given as `model.parts`.

    `scale`, (clients,), multiplies each client's sum.
    """
    shared = len(weights[0]) == 1
    rows_scale = None if scale is None else scale.repeat_interleave(torch.tensor(sizes))
    for first, last, clients, counts in _blocks(sizes):
        mine = weights if shared else [copies[clients] for copies in weights]
        targets = [copies[clients] for copies in sums]
        block = slice(first, last)
        _add_block(
            *(model, mine, images[block], labels[block], counts, clip_norm, targets),
            None if rows_scale is None else rows_scale[block],
        )


def _blocks(sizes: list[int]) -> Iterator[tuple[int, int, slice, list[int]]]:
    """(first row, last row, clients touched, their rows in the block) for blocks of bounded size."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    total = ends[-1] if ends else 0
    for first in range(0, total, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, total)
        touched = [i for i, n in enumerate(sizes) if ends[i] > first and ends[i] - n < last]
        clients = slice(touched[0], touched[-1] + 1)
        counts = [max(0, min(ends[i], last) - max(ends[i] - sizes[i], first)) for i in range(len(sizes))]
        yield first, last, clients, counts[clients]


def _add_block(
    model: Model,
    weights: list[list[Part]],
    images: Tensor,
    labels: Tensor,
    sizes: list[int],
    clip_norm: float | None,
    sums: list[list[Part]],
    scale: Tensor | None,
) -> None:
    """Adds one block of rows to `sums`."""
    copies = [labels.shape[0]] if len(weights[0]) == 1 else sizes
    logits, kept = model.forward(weights, images, copies)
    slopes: list[Tensor | None] = [None] * len(model.layers)
    slope = loss_slope(logits, labels)
    squared_norms = torch.zeros(labels.shape[0])
    first = next(i for i, layer in enumerate(model.layers) if layer.size)
    for i in range(len(model.layers) - 1, first - 1, -1):
        layer = model.layers[i]
        if layer.size:
            slopes[i] = slope
            if clip_norm is not None:
                squared_norms += layer.squared_norms(kept[i], slope)
        if i > first:  # nobody needs the derivative by the pixels
            slope = layer.backward(weights[i], kept[i], slope, copies)
    factor = torch.ones(labels.shape[0]) if clip_norm is None else clip_factors(squared_norms, clip_norm)
    if scale is not None:
        factor *= scale
    for layer, target, memory, steep in zip(model.layers, sums, kept, slopes, strict=True):
        if steep is not None:
            layer.add_sums(target, memory, steep, factor, sizes)


def clip_factors(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """(rows,) min(1, C/‖g‖)."""
    # A whisker below C, so that float32 rounding of the norm cannot let a record count for more than C.
    limit = clip_norm * (1.0 - 1e-6)
    return (limit * torch.rsqrt(squared_norms.clamp_min(1e-30))).clamp_max_(1.0)
