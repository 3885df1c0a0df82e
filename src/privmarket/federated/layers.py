"""Layers that know their per-example gradients: forward, backward, squared norms, clipped sums.

Many clients are handled at once. Their records are concatenated along the first axis ("rows"), and `sizes`
says how many rows each client has, so no batch is padded. Every client meets its own copy of the weights, or
all meet one copy while they still share the global model: then `sizes` for the forward pass is one number.

Implements: ghost norms for linear layers, after [Goodfellow2015] and [LiEtAl2022].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# One copy of a layer's weights: (matrix or kernel, bias), views of a flat vector; empty without parameters.
Part = tuple[Tensor, ...]


class Layer(ABC):
    """One step of a network. Layers without parameters only pass rows on.

    `parts` holds one copy of the weights per entry of `sizes`.
    """

    size: int = 0
    fan_in: int = 1

    def views(self, flat: Tensor) -> Part:
        """This layer's weights, shaped, as views of its slice (size,) of the flat vector."""
        return ()

    @abstractmethod
    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Any]:
        """(rows, ...) → (rows, ...) and what the backward pass needs."""

    @abstractmethod
    def backward(self, parts: Sequence[Part], kept: Any, slope: Tensor, sizes: list[int]) -> Tensor:
        """Derivative of the loss by the layer's input, from that by its output; both (rows, ...)."""

    def squared_norms(self, kept: Any, slope: Tensor) -> Tensor:
        """(rows,) ‖∂loss/∂weights‖² of each record."""
        raise NotImplementedError

    def add_sums(self, sums: Sequence[Part], kept: Any, slope: Tensor, factor: Tensor, sizes: list[int]) -> None:
        """Adds Σ factor·∂loss/∂weights over each client's rows to its entry of `sums`; factor is (rows,)."""
        raise NotImplementedError


class Linear(Layer):
    """Fully connected, with bias: (rows, inputs) → (rows, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs, self.fan_in = inputs, outputs, inputs
        self.size = (inputs + 1) * outputs

    def views(self, flat: Tensor) -> Part:
        """(matrix (inputs, outputs), bias (outputs,))."""
        cut = self.inputs * self.outputs
        return flat[:cut].view(self.inputs, self.outputs), flat[cut:]

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """(rows, inputs) → (rows, outputs)."""
        out = rows.new_empty(rows.shape[0], self.outputs)
        for (matrix, bias), mine, target in zip(parts, _cut(rows, sizes), _cut(out, sizes), strict=True):
            torch.addmm(bias, mine, matrix, out=target)
        return out, rows

    def backward(self, parts: Sequence[Part], kept: Tensor, slope: Tensor, sizes: list[int]) -> Tensor:
        """(rows, outputs) → (rows, inputs)."""
        out = slope.new_empty(slope.shape[0], self.inputs)
        for (matrix, _), mine, target in zip(parts, _cut(slope, sizes), _cut(out, sizes), strict=True):
            torch.mm(mine, matrix.t(), out=target)
        return out

    def squared_norms(self, kept: Tensor, slope: Tensor) -> Tensor:
        """‖a gᵀ‖² + ‖g‖² = (‖a‖² + 1)·‖g‖²: the gradient of a record is an outer product, never formed."""
        return (_row_energy(kept) + 1.0) * _row_energy(slope)

    def add_sums(self, sums: Sequence[Part], kept: Tensor, slope: Tensor, factor: Tensor, sizes: list[int]) -> None:
        """Σ factor·a gᵀ, one product of matrices per client."""
        scaled = slope * factor[:, None]
        for (matrix, bias), mine, steep in zip(sums, _cut(kept, sizes), _cut(scaled, sizes), strict=True):
            if mine.shape[0]:
                matrix.addmm_(mine.t(), steep)
                bias.add_(steep.sum(0))


def _cut(rows: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """One view per client."""
    views: tuple[Tensor, ...] = torch.split_with_sizes(rows, sizes)
    return views


def _row_energy(rows: Tensor) -> Tensor:
    """(rows, n) → (rows,) Σ squares."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square_()


class Convolution(Layer):
    """Square kernel, stride 1, same size: (rows, inputs, h, w) → (rows, outputs, h, w).

    The gradient of one record by the kernel is small (outputs × inputs × kernel²), so it is formed.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.fan_in = inputs * kernel * kernel
        self.size = outputs * (self.fan_in + 1)

    def views(self, flat: Tensor) -> Part:
        """(kernel (outputs, inputs, k, k), bias (outputs,), both of them flat)."""
        cut = self.outputs * self.fan_in
        return flat[:cut].view(self.outputs, self.inputs, self.kernel, self.kernel), flat[cut:], flat

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """(rows, inputs, h, w) → (rows, outputs, h, w)."""
        done = [
            F.conv2d(mine, kernel, bias, padding=self.kernel // 2)
            for (kernel, bias, _), mine in zip(parts, _cut(rows, sizes), strict=True)
        ]
        return torch.cat(done) if len(done) > 1 else done[0], rows

    def backward(self, parts: Sequence[Part], kept: Tensor, slope: Tensor, sizes: list[int]) -> Tensor:
        """(rows, outputs, h, w) → (rows, inputs, h, w)."""
        # The adjoint of a same-size convolution is the convolution with the kernel turned round.
        done = [
            F.conv2d(mine, kernel.flip(2, 3).transpose(0, 1), padding=self.kernel // 2)
            for (kernel, *_), mine in zip(parts, _cut(slope, sizes), strict=True)
        ]
        return torch.cat(done) if len(done) > 1 else done[0]

    def per_record(self, kept: Tensor, slope: Tensor) -> Tensor:
        """(rows, size) gradient of each record by kernel and bias."""
        patches = F.unfold(kept, self.kernel, padding=self.kernel // 2)  # (rows, fan_in, h·w)
        flat = slope.flatten(2)  # (rows, outputs, h·w)
        kernel = torch.bmm(flat, patches.transpose(1, 2)).flatten(1)
        return torch.cat([kernel, flat.sum(2)], dim=1)

    def squared_norms(self, kept: Tensor, slope: Tensor) -> Tensor:
        """(rows,) of `per_record`."""
        return _row_energy(self.per_record(kept, slope))

    def add_sums(self, sums: Sequence[Part], kept: Tensor, slope: Tensor, factor: Tensor, sizes: list[int]) -> None:
        """Σ factor·per_record over each client's rows."""
        gradients = self.per_record(kept, slope)
        for (*_, flat), mine, share in zip(sums, _cut(gradients, sizes), _cut(factor, sizes), strict=True):
            flat.addmv_(mine.t(), share)


class Relu(Layer):
    """max(0, x), any shape."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """In place: the input is not needed again."""
        rows.relu_()
        return rows, rows

    def backward(self, parts: Sequence[Part], kept: Tensor, slope: Tensor, sizes: list[int]) -> Tensor:
        """Zero where the output was zero."""
        return slope.mul_(kept > 0)


class Tanh(Layer):
    """tanh x, any shape; bounded activations suffer less from clipping [Papernot2021]."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """In place: the input is not needed again."""
        rows.tanh_()
        return rows, rows

    def backward(self, parts: Sequence[Part], kept: Tensor, slope: Tensor, sizes: list[int]) -> Tensor:
        """Slope · (1 − y²)."""
        return slope.mul_(1.0 - kept * kept)


class MaxPool(Layer):
    """Largest of each 2 × 2 square: (rows, c, h, w) → (rows, c, h/2, w/2)."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Any]:
        """Keeps where each maximum stood."""
        out, where = F.max_pool2d(rows, 2, return_indices=True)
        return out, (where, rows.shape)

    def backward(self, parts: Sequence[Part], kept: Any, slope: Tensor, sizes: list[int]) -> Tensor:
        """Back to where the maximum stood."""
        where, shape = kept
        out = slope.new_zeros(shape)
        out.flatten(2).scatter_(2, where.flatten(2), slope.flatten(2))
        return out


class Flatten(Layer):
    """(rows, ...) → (rows, n)."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, torch.Size]:
        """Keeps the shape."""
        return rows.flatten(1), rows.shape

    def backward(self, parts: Sequence[Part], kept: torch.Size, slope: Tensor, sizes: list[int]) -> Tensor:
        """Back to the shape."""
        return slope.reshape(kept)
