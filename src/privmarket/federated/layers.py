"""Layers that know their per-example gradients: forward, backward, squared norms, clipped sums.

Many clients are handled at once. Their records are concatenated along the first axis ("rows"), and `sizes`
says how many rows each client has, so no batch is padded. Every client meets its own copy of the weights, or
all meet one copy while they still share the global model: then `sizes` for the forward pass is one number.

What a record contributes to a sum is defined by float32 numbers (see `Layer.gradient`), its norm is bounded from
above in float64, and sums of many records are taken in blocks with float64 totals. Why that is private in the
arithmetic that runs: docs/theory/finite-arithmetic.md.

Implements: ghost norms for linear layers, after [Goodfellow2015] and [LiEtAl2022].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum

import torch
from torch import Tensor
from torch.nn import functional as F

from privmarket.privacy.release import BLOCK_RECORDS, BLOCKS_IN_FLOAT32

# One copy of a layer's weights: views of a flat vector in the layer's shapes, then all of it; empty without
# parameters. `Model.parts` makes them.
Part = tuple[Tensor, ...]
# What a layer's forward pass keeps for its backward pass.
Kept = tuple[Tensor, ...]
# The float32 numbers, (rows, ...) each, that make up each record's ∂loss/∂weights; empty without parameters.
Factors = tuple[Tensor, ...]

# Sums of more squares than this are taken in float64; for fewer, float32's worst case is below 0.1 %.
_SQUARES_IN_FLOAT32 = 2**14
# A squared norm beyond this counts as not finite, so that no product of factors can lose its small bits.
_LARGEST_ENERGY = 2.0**126


class Summation(Enum):
    """How the contributions of one client's rows are added up."""

    PLAIN = "one float32 product, onto whatever is there; for training without privacy"
    FEW = "at most BLOCKS_IN_FLOAT32 products of at most BLOCK_RECORDS rows, in float32, over whatever is there"
    BLOCKS = "any number of such products, every few of them added to float64 totals"
    DOUBLE = "float64 products, added to float64 totals"


class Layer(ABC):
    """One step of a network. Layers without parameters only pass rows on.

    `parts` holds one copy of the weights per entry of `sizes`.

    Attributes:
        shapes: of the weights, in the order in which they lie in the flat vector.
        size: how many weights there are.
        fan_in: how many numbers each output is made of.
    """

    shapes: tuple[tuple[int, ...], ...] = ()
    size: int = 0
    fan_in: int = 1

    @abstractmethod
    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """(rows, ...) → (rows, ...) and what the backward pass needs."""

    @abstractmethod
    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """Derivative of the loss by the layer's input, from that by its output; both (rows, ...)."""

    def gradient(self, kept: Kept, slope: Tensor) -> Factors:
        """Each record's ∂loss/∂weights, or factors of it."""
        raise NotImplementedError

    def squared_norms(self, gradient: Factors) -> Tensor:
        """(rows,) float64, never below ‖∂loss/∂weights‖² of each record; not finite where that is not."""
        raise NotImplementedError

    def group_squared_norms(self, gradient: Factors, groups: Tensor) -> Tensor:
        """(groups,) float64 ‖Σ ∂loss/∂weights‖² over the records in each row of `groups`, (groups, members)."""
        raise NotImplementedError

    def add_sums(
        self,
        sums: Sequence[Part],
        gradient: Factors,
        factor: Tensor,
        sizes: list[int],
        how: Sequence[Summation],
        bad: Tensor | None = None,
    ) -> None:
        """Adds Σ factor·∂loss/∂weights over each client's rows to its entry of `sums`; factor is (rows,).

        `how` says for each client in which arithmetic.
        Rows where `bad`, (rows,) booleans, is true are left out; all other blocks are computed as without them.
        """
        raise NotImplementedError


class Linear(Layer):
    """Fully connected, with bias: (rows, inputs) → (rows, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs, self.fan_in = inputs, outputs, inputs
        self.shapes = (inputs, outputs), (outputs,)
        self.size = (inputs + 1) * outputs

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """Multiplies by the matrix and adds the bias: (rows, inputs) → (rows, outputs)."""
        out = rows.new_empty(rows.shape[0], self.outputs)
        for (matrix, bias, _), mine, target in zip(
            parts, rows.split_with_sizes(sizes), out.split_with_sizes(sizes), strict=True
        ):
            torch.addmm(bias, mine, matrix, out=target)
        return out, (rows,)

    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """Turns the slope by the outputs into that by the inputs: (rows, outputs) → (rows, inputs)."""
        out = slope.new_empty(slope.shape[0], self.inputs)
        for (matrix, *_), mine, target in zip(
            parts, slope.split_with_sizes(sizes), out.split_with_sizes(sizes), strict=True
        ):
            torch.mm(mine, matrix.t(), out=target)
        return out

    def gradient(self, kept: Kept, slope: Tensor) -> Factors:
        """Activation a and slope g: the gradient by the matrix is a gᵀ, never formed, that by the bias is g."""
        return *kept, slope

    def squared_norms(self, gradient: Factors) -> Tensor:
        """The squared norm of each record's gradient, (rows,): ‖a gᵀ‖² + ‖g‖² = (‖a‖² + 1)·‖g‖²."""
        activation, slope = gradient
        return (row_energy(activation) + 1.0) * row_energy(slope)

    def group_squared_norms(self, gradient: Factors, groups: Tensor) -> Tensor:
        """‖Σ aᵢ gᵢᵀ‖² + ‖Σ gᵢ‖² = Σᵢⱼ (aᵢ·aⱼ + 1)·(gᵢ·gⱼ), or by the sum itself where groups are large."""
        # Padded with zeros, so that every group begins at a multiple of 64 bytes and is computed alike.
        a, g = (F.pad(factor[groups].double(), (0, -factor.shape[1] % 8)) for factor in gradient)
        if groups.shape[1] ** 2 <= self.inputs * self.outputs:
            return ((a @ a.mT + 1.0) * (g @ g.mT)).sum((1, 2))
        return (a.mT @ g).square().sum((1, 2)) + g.sum(1).square().sum(1)

    def add_sums(
        self,
        sums: Sequence[Part],
        gradient: Factors,
        factor: Tensor,
        sizes: list[int],
        how: Sequence[Summation],
        bad: Tensor | None = None,
    ) -> None:
        """Adds Σ a (factor·g)ᵀ over each client's rows to `sums`, by products of matrices."""
        activation, slope = gradient
        scaled = slope * factor[:, None]
        if bad is not None:
            scaled.masked_fill_(bad[:, None], 0.0)
        out: Sequence[Tensor | None] = [None] * len(sizes) if bad is None else bad.split_with_sizes(sizes)
        for (matrix, bias, _), mine, steep, left_out, way in zip(
            sums, activation.split_with_sizes(sizes), scaled.split_with_sizes(sizes), out, how, strict=True
        ):
            _add_product(matrix, mine, steep, way, left_out)
            if way is Summation.FEW:
                bias.copy_(steep.sum(0, dtype=torch.float64).float())
            else:
                bias.add_(steep.sum(0, dtype=bias.dtype))


def _add_product(target: Tensor, left: Tensor, right: Tensor, how: Summation, bad: Tensor | None = None) -> None:
    """target ← target + leftᵀ·right, (rows, m) and (rows, n) or (rows,); FEW overwrites the target.

    Rows of `left` where `bad` is true are taken as zeros, in their own block only: a copy of the others might lie
    otherwise in memory, and a library may then add in another order.
    """
    multiply = torch.mm if right.ndim == 2 else torch.mv
    rows = left.shape[0]
    if how is Summation.DOUBLE:
        whole = left.double()
        if bad is not None:
            whole.masked_fill_(bad[:, None], 0.0)
        target.add_(multiply(whole.t(), right.double()))
    elif how is Summation.PLAIN:
        if rows:
            target.addmm_(left.t(), right) if right.ndim == 2 else target.addmv_(left.t(), right)
    elif how is Summation.FEW and target.dtype != torch.float32:
        few = torch.empty(target.shape, dtype=torch.float32)
        _add_product(few, left, right, how, bad)
        target.copy_(few)
    elif how is Summation.FEW:
        for k, block in enumerate(even_blocks(rows)):
            mine = left[block]
            if bad is not None and bool(bad[block].any()):
                mine = mine.masked_fill(bad[block][:, None], 0.0)
            if k:
                target.add_(multiply(mine.t(), right[block]))
            else:
                multiply(mine.t(), right[block], out=target)
        if not rows:
            target.zero_()
    else:
        few = torch.empty(target.shape, dtype=torch.float32)
        for piece in even_blocks(rows, BLOCK_RECORDS * BLOCKS_IN_FLOAT32):
            _add_product(few, left[piece], right[piece], Summation.FEW, None if bad is None else bad[piece])
            target.add_(few)


def even_blocks(rows: int, most: int = BLOCK_RECORDS) -> Iterator[slice]:
    """Cuts rows into as few blocks of at most `most` as there can be, of nearly equal size."""
    count = -(-rows // most)
    for k in range(count):
        yield slice(k * rows // count, (k + 1) * rows // count)


def row_energy(rows: Tensor) -> Tensor:
    """(rows, n) float32 → (rows,) float64, never below Σ squares; infinite beyond 2^126 and for what is no number.

    A float32 sum of n squares, in any order, loses at most a share γ = (n + 4)u/(1 − (n + 4)u), u = 2^−24, and
    n·2^−125 by underflow [Higham2002]; both are given back.
    """
    n = rows.shape[1]
    if n > _SQUARES_IN_FLOAT32:
        energy: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
        loss = 2.0**-20
    else:
        energy = torch.linalg.vector_norm(rows, dim=1).double().square_()
        unit = (n + 4) * 2.0**-24
        loss = unit / (1.0 - unit)
    energy = energy * (1.0 / (1.0 - loss)) + n * 2.0**-125
    return torch.where(energy <= _LARGEST_ENERGY, energy, torch.inf)


class Convolution(Layer):
    """Square kernel, stride 1, same size: (rows, inputs, h, w) → (rows, outputs, h, w).

    The gradient of one record by the kernel is small (outputs × inputs × kernel²), so it is formed.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.fan_in = inputs * kernel * kernel
        self.shapes = (outputs, inputs, kernel, kernel), (outputs,)
        self.size = outputs * (self.fan_in + 1)

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """(rows, inputs, h, w) → (rows, outputs, h, w)."""
        done = [
            F.conv2d(mine, kernel, bias, padding=self.kernel // 2)
            for (kernel, bias, _), mine in zip(parts, rows.split_with_sizes(sizes), strict=True)
        ]
        return torch.cat(done) if len(done) > 1 else done[0], (rows,)

    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """(rows, outputs, h, w) → (rows, inputs, h, w)."""
        # The adjoint of a same-size convolution is the convolution with the kernel turned round.
        done = [
            F.conv2d(mine, kernel.flip(2, 3).transpose(0, 1), padding=self.kernel // 2)
            for (kernel, *_), mine in zip(parts, slope.split_with_sizes(sizes), strict=True)
        ]
        return torch.cat(done) if len(done) > 1 else done[0]

    def gradient(self, kept: Kept, slope: Tensor) -> Factors:
        """(rows, size) the gradient of each record by kernel and bias."""
        (images,) = kept
        patches = F.unfold(images, self.kernel, padding=self.kernel // 2)  # (rows, fan_in, h·w)
        flat = slope.flatten(2)  # (rows, outputs, h·w)
        kernel = torch.bmm(flat, patches.transpose(1, 2)).flatten(1)
        return (torch.cat([kernel, flat.sum(2)], dim=1),)

    def squared_norms(self, gradient: Factors) -> Tensor:
        """The squared norm of each record's gradient, (rows,)."""
        (rows,) = gradient
        return row_energy(rows)

    def group_squared_norms(self, gradient: Factors, groups: Tensor) -> Tensor:
        """The squared norm of the sum of the gradients in each group of rows, (groups,)."""
        (rows,) = gradient
        return rows[groups].sum(1, dtype=torch.float64).square().sum(1)

    def add_sums(
        self,
        sums: Sequence[Part],
        gradient: Factors,
        factor: Tensor,
        sizes: list[int],
        how: Sequence[Summation],
        bad: Tensor | None = None,
    ) -> None:
        """Adds Σ factor·gradient over each client's rows to `sums`."""
        (rows,) = gradient
        if bad is not None:
            rows.masked_fill_(bad[:, None], 0.0)  # made by `gradient`, used for nothing else
        for (*_, flat), mine, share, way in zip(
            sums, rows.split_with_sizes(sizes), factor.split_with_sizes(sizes), how, strict=True
        ):
            _add_product(flat, mine, share, way)


class Relu(Layer):
    """The rectifier max(0, x), for rows of any shape."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """Applies max(0, x) in place, since the input is not needed again."""
        rows.relu_()
        return rows, (rows,)

    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """The slope where the output was above zero, and zero elsewhere."""
        (out,) = kept
        return slope.mul_(out > 0)


class Tanh(Layer):
    """tanh x, any shape; bounded activations suffer less from clipping [Papernot2021]."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """Applies tanh in place, since the input is not needed again."""
        rows.tanh_()
        return rows, (rows,)

    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """The slope times tanh's derivative, 1 − y² for the output y."""
        (out,) = kept
        return slope.mul_(1.0 - out * out)


class MaxPool(Layer):
    """Largest of each 2 × 2 square: (rows, c, h, w) → (rows, c, h/2, w/2)."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """Takes the maximum of each window and keeps where it stood."""
        out, where = F.max_pool2d(rows, 2, return_indices=True)
        return out, (where, rows)

    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """Puts each slope where the maximum of its window stood; zero elsewhere."""
        where, rows = kept
        out = slope.new_zeros(rows.shape)
        out.flatten(2).scatter_(2, where.flatten(2), slope.flatten(2))
        return out


class Flatten(Layer):
    """Turns the axes of each record into one: (rows, ...) → (rows, n)."""

    def forward(self, parts: Sequence[Part], rows: Tensor, sizes: list[int]) -> tuple[Tensor, Kept]:
        """Views the rows as (rows, n); keeps the old rows for their shape."""
        return rows.flatten(1), (rows,)

    def backward(self, parts: Sequence[Part], kept: Kept, slope: Tensor, sizes: list[int]) -> Tensor:
        """Gives the slopes the shape that the rows had before."""
        return slope.reshape(kept[0].shape)
