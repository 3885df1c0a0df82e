"""Layers that know their per-example gradients: forward, backward, squared norms, clipped sums.

Many clients are handled at once. Their records are concatenated along the first axis ("rows") and `offsets`
says where each client's rows begin, so no batch is padded. Weights are flat, (copies, parameters): one copy
if all clients still share the global model, one copy per client once they differ.

Implements: ghost norms for linear layers, after [Goodfellow2015] and [Li2022ghost].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Offsets = list[int]


def segments(copies: int, offsets: Offsets) -> Iterator[tuple[int, slice]]:
    """Which rows meet which copy of the weights: (copy, rows)."""
    if copies == 1:
        yield 0, slice(0, offsets[-1])
    else:
        yield from client_rows(offsets)


def client_rows(offsets: Offsets) -> Iterator[tuple[int, slice]]:
    """(client, its rows) for every client that has any."""
    for client in range(len(offsets) - 1):
        if offsets[client] < offsets[client + 1]:
            yield client, slice(offsets[client], offsets[client + 1])


class Layer(ABC):
    """One step of a network. Layers without parameters only pass rows on.

    `weights` is this layer's slice of the flat weights, (copies, size).
    """

    size: int = 0
    fan_in: int = 1

    @abstractmethod
    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, Any]:
        """(rows, ...) → (rows, ...) and what the backward pass needs."""

    @abstractmethod
    def backward(self, weights: Tensor, kept: Any, slope: Tensor, offsets: Offsets) -> Tensor:
        """Derivative of the loss by the layer's input, from that by its output; both (rows, ...)."""

    def squared_norms(self, kept: Any, slope: Tensor) -> Tensor:
        """(rows,) ‖∂loss/∂weights‖² of each record."""
        raise NotImplementedError

    def add_sums(self, sums: Tensor, kept: Any, slope: Tensor, factor: Tensor, offsets: Offsets) -> None:
        """Adds Σ factor·∂loss/∂weights over each client's rows to `sums`, (clients, size); factor is (rows,)."""
        raise NotImplementedError


class Linear(Layer):
    """Fully connected, with bias: (rows, inputs) → (rows, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs, self.fan_in = inputs, outputs, inputs
        self.size = (inputs + 1) * outputs

    def _split(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """(matrix (inputs, outputs), bias (outputs,)) as views of one flat copy."""
        cut = self.inputs * self.outputs
        return flat[:cut].view(self.inputs, self.outputs), flat[cut:]

    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, Tensor]:
        """(rows, inputs) → (rows, outputs)."""
        out = rows.new_empty(rows.shape[0], self.outputs)
        for copy, part in segments(weights.shape[0], offsets):
            matrix, bias = self._split(weights[copy])
            torch.addmm(bias, rows[part], matrix, out=out[part])
        return out, rows

    def backward(self, weights: Tensor, kept: Tensor, slope: Tensor, offsets: Offsets) -> Tensor:
        """(rows, outputs) → (rows, inputs)."""
        out = slope.new_empty(slope.shape[0], self.inputs)
        for copy, part in segments(weights.shape[0], offsets):
            torch.mm(slope[part], self._split(weights[copy])[0].t(), out=out[part])
        return out

    def squared_norms(self, kept: Tensor, slope: Tensor) -> Tensor:
        """‖a gᵀ‖² + ‖g‖² = (‖a‖² + 1)·‖g‖²: the gradient of a record is an outer product, never formed."""
        return (_row_energy(kept) + 1.0) * _row_energy(slope)

    def add_sums(self, sums: Tensor, kept: Tensor, slope: Tensor, factor: Tensor, offsets: Offsets) -> None:
        """Σ factor·a gᵀ, one product of matrices per client."""
        scaled = slope * factor[:, None]
        for client, part in client_rows(offsets):
            matrix, bias = self._split(sums[client])
            matrix.addmm_(kept[part].t(), scaled[part])
            bias.add_(scaled[part].sum(0))


def _row_energy(rows: Tensor) -> Tensor:
    """(rows, n) → (rows,) Σ squares."""
    energy: Tensor = torch.linalg.vecdot(rows, rows)
    return energy


class Convolution(Layer):
    """Square kernel, stride 1, same size: (rows, inputs, h, w) → (rows, outputs, h, w).

    The gradient of one record by the kernel is small (outputs × inputs × kernel²), so it is formed.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.fan_in = inputs * kernel * kernel
        self.size = outputs * (self.fan_in + 1)

    def _split(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        cut = self.outputs * self.fan_in
        return flat[:cut].view(self.outputs, self.inputs, self.kernel, self.kernel), flat[cut:]

    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, Tensor]:
        """(rows, inputs, h, w) → (rows, outputs, h, w)."""
        out = rows.new_empty(rows.shape[0], self.outputs, *rows.shape[2:])
        for copy, part in segments(weights.shape[0], offsets):
            kernel, bias = self._split(weights[copy])
            out[part] = F.conv2d(rows[part], kernel, bias, padding=self.kernel // 2)
        return out, rows

    def backward(self, weights: Tensor, kept: Tensor, slope: Tensor, offsets: Offsets) -> Tensor:
        """(rows, outputs, h, w) → (rows, inputs, h, w)."""
        out = torch.empty_like(kept)
        for copy, part in segments(weights.shape[0], offsets):
            # The adjoint of a same-size convolution is the convolution with the kernel turned round.
            kernel = self._split(weights[copy])[0].flip(2, 3).transpose(0, 1)
            out[part] = F.conv2d(slope[part], kernel, padding=self.kernel // 2)
        return out

    def per_record(self, kept: Tensor, slope: Tensor) -> Tensor:
        """(rows, size) gradient of each record by kernel and bias."""
        patches = F.unfold(kept, self.kernel, padding=self.kernel // 2)  # (rows, fan_in, h·w)
        flat = slope.flatten(2)  # (rows, outputs, h·w)
        kernel = torch.bmm(flat, patches.transpose(1, 2)).flatten(1)
        return torch.cat([kernel, flat.sum(2)], dim=1)

    def squared_norms(self, kept: Tensor, slope: Tensor) -> Tensor:
        """(rows,) of `per_record`."""
        return _row_energy(self.per_record(kept, slope))

    def add_sums(self, sums: Tensor, kept: Tensor, slope: Tensor, factor: Tensor, offsets: Offsets) -> None:
        """Σ factor·per_record over each client's rows."""
        gradients = self.per_record(kept, slope)
        for client, part in client_rows(offsets):
            sums[client].addmv_(gradients[part].t(), factor[part])


class Relu(Layer):
    """max(0, x), any shape."""

    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, Tensor]:
        """In place: the input is not needed again."""
        rows.relu_()
        return rows, rows

    def backward(self, weights: Tensor, kept: Tensor, slope: Tensor, offsets: Offsets) -> Tensor:
        """Zero where the output was zero."""
        return slope.mul_(kept > 0)


class Tanh(Layer):
    """tanh x, any shape; bounded activations suffer less from clipping [Papernot2021]."""

    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, Tensor]:
        """In place: the input is not needed again."""
        rows.tanh_()
        return rows, rows

    def backward(self, weights: Tensor, kept: Tensor, slope: Tensor, offsets: Offsets) -> Tensor:
        """Slope · (1 − y²)."""
        return slope.mul_(1.0 - kept * kept)


class MaxPool(Layer):
    """Largest of each 2 × 2 square: (rows, c, h, w) → (rows, c, h/2, w/2)."""

    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, Any]:
        """Keeps where each maximum stood."""
        out, where = F.max_pool2d(rows, 2, return_indices=True)
        return out, (where, rows.shape)

    def backward(self, weights: Tensor, kept: Any, slope: Tensor, offsets: Offsets) -> Tensor:
        """Back to where the maximum stood."""
        where, shape = kept
        out = slope.new_zeros(shape)
        out.flatten(2).scatter_(2, where.flatten(2), slope.flatten(2))
        return out


class Flatten(Layer):
    """(rows, ...) → (rows, n)."""

    def forward(self, weights: Tensor, rows: Tensor, offsets: Offsets) -> tuple[Tensor, torch.Size]:
        """Keeps the shape."""
        return rows.flatten(1), rows.shape

    def backward(self, weights: Tensor, kept: torch.Size, slope: Tensor, offsets: Offsets) -> Tensor:
        """Back to the shape."""
        return slope.reshape(kept)
