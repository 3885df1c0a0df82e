"""Per-record gradients, mostly without forming them: each use of a parameter in a pass gives `RowGradients`.

`RowGradients` can do two things: give an upper bound on the squared norm of each record's gradient, and add up the
gradients over rows with weights. Clipping needs nothing else. A parameter that is used several times has several of
them, which are merged into one (`merged`) before a norm is computed.

| class | the gradient of a record | for |
|---|---|---|
| `Outer` | a·gᵀ of two vectors, never formed | linear maps of vectors |
| `TokenOuter` | Σₜ aₜ·gₜᵀ over tokens, never formed | large linear maps of a few tokens |
| `Direct` | the slope itself | the bias of a linear map of vectors |
| `Lookup` | a few lines of a table | embeddings |
| `Formed` | its entries | everything else |

Implements: ghost norms for linear layers, after [Goodfellow2015] and [LiEtAl2022].
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privmarket.training._arithmetic import Summation, add_product, row_energies, row_energy

# Bytes of one piece of work, so that it stays in the processor's second-level cache.
CACHE_BYTES = 1 << 19
# Bytes that the per-record gradients of one linear layer may take in one pass; if they need more, they are not
# formed.
_FORMED_BYTES = 1 << 26
# The arena keeps at most this many numbers from pass to pass: 128 MB.
_ARENA_FLOATS = 1 << 25
# Up to this many tokens, float64 sums of unformed gradients stay within their stated error.
_MOST_TOKENS = 8192
# The number of multiply-adds that take as long as writing one float and reading it twice.
_MEMORY_COST = 36


class Arena(threading.local):
    """Memory for the per-record gradients that a pass forms, kept from pass to pass, one piece per thread.

    The operating system hands out new memory of that size page by page, which takes a quarter of a pass. Gradients
    that were formed in a pass are overwritten by the next one.
    """

    def __init__(self) -> None:
        self.block = torch.empty(0)
        self.used = 0
        self.wanted = 0

    def begin(self) -> None:
        """Begins a new pass: frees everything, and holds as much memory as the last pass needed."""
        if self.block.numel() < self.wanted <= _ARENA_FLOATS:
            self.block = torch.empty(self.wanted)
        self.used = 0
        self.wanted = 0

    def take(self, *shape: int) -> Tensor:
        """An uninitialised float32 tensor of this shape."""
        size = math.prod(shape)
        space = -(-size // 16) * 16  # whole cache lines, so that every piece begins at one
        self.wanted += space
        if self.used + space > self.block.numel():
            return torch.empty(shape)
        piece = self.block[self.used : self.used + size].view(shape)
        self.used += space
        return piece


ARENA = Arena()


class RowGradients(ABC):
    """The per-record gradients of one use of a parameter, in float32."""

    @abstractmethod
    def squared_norms(self, memo: Memo) -> tuple[Tensor, Tensor | None]:
        """(rows,) float64 upper bounds on the squared norms, and A² if `clip_factors` needs one."""

    @abstractmethod
    def add_sum(
        self, target: Tensor, rows: slice, memo: Memo, how: Summation, bad: Tensor | None, fresh: bool
    ) -> None:
        """Adds Σ factor·gradient over some rows to the target, (size,); see `add_product`."""

    def add_sums(
        self,
        targets: Sequence[Tensor],
        counts: list[int],
        memo: Memo,
        how: Sequence[Summation],
        bad: Sequence[Tensor | None],
        fresh: Sequence[bool],
    ) -> None:
        """`add_sum` for clients whose rows, `counts` of each, follow one another."""
        start = 0
        for target, count, way, left_out, is_fresh in zip(targets, counts, how, bad, fresh, strict=True):
            self.add_sum(target, slice(start, start + count), memo, way, left_out, is_fresh)
            start += count

    def parts(self) -> tuple[Tensor, ...]:
        """The tensors, (rows, n) each, from whose energies the norms are computed."""
        return ()

    @abstractmethod
    def formed(self) -> Tensor:
        """(rows, size) each record's gradient as float32 numbers."""

    @abstractmethod
    def keep(self, take: Callable[[Tensor], Tensor]) -> RowGradients:
        """The same for the rows that `take` takes of each tensor."""


@dataclass(eq=False)
class Memo:
    """What the gradients of one pass share: energies, and slopes scaled by the records' clip factors.

    Attributes:
        factor: (rows,) set once all norms are known.
        bad: (rows,) which records contribute nothing, whatever their values; None if there are none.
    """

    factor: Tensor | None = None
    bad: Tensor | None = None
    _energies: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _scaled: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def measure(self, gradients: Iterable[RowGradients]) -> None:
        """Computes the energies of all tensors of these gradients together."""
        needed = {id(part): part for gradient in gradients for part in gradient.parts()}
        if needed:
            for part, energy in zip(needed.values(), row_energies(list(needed.values())), strict=True):
                self._energies[id(part)] = part, energy  # the tensor is kept, so that its id stays its own

    def energy(self, rows: Tensor) -> Tensor:
        """(rows,) `row_energy` of a tensor."""
        return self._energies[id(rows)][1]

    def scaled(self, slope: Tensor) -> Tensor:
        """The slope times each record's factor, zeros for bad records; computed once per tensor."""
        found = self._scaled.get(id(slope))
        if found is None:
            assert self.factor is not None
            shape = (-1, *[1] * (slope.ndim - 1))
            scaled = slope * self.factor.view(shape)
            if self.bad is not None:
                scaled.masked_fill_(self.bad.view(shape), 0.0)
            found = slope, scaled
            self._scaled[id(slope)] = found
        return found[1]


@dataclass(frozen=True, eq=False)
class Outer(RowGradients):
    """The gradient is the outer product of two vectors, left·rightᵀ, which is never formed: linear maps of vectors.

    Attributes:
        left, right: (rows, a) and (rows, b); the gradient lies as (a, b).
        slope_left: the left one is the slope, so that it is scaled.
    """

    left: Tensor
    right: Tensor
    slope_left: bool = False

    def parts(self) -> tuple[Tensor, ...]:
        """Both vectors."""
        return self.left, self.right

    def squared_norms(self, memo: Memo) -> tuple[Tensor, Tensor | None]:
        """‖a gᵀ‖² = ‖a‖²·‖g‖²."""
        return memo.energy(self.left) * memo.energy(self.right), None

    def add_sum(
        self, target: Tensor, rows: slice, memo: Memo, how: Summation, bad: Tensor | None, fresh: bool
    ) -> None:
        """By one product of matrices for each block."""
        matrix = target.view(self.left.shape[1], self.right.shape[1])
        if self.slope_left:
            # The other factor must be on the left, where bad rows are set to zero.
            add_product(matrix.t(), self.right[rows], memo.scaled(self.left)[rows], how, bad, fresh=fresh)
        else:
            add_product(matrix, self.left[rows], memo.scaled(self.right)[rows], how, bad, fresh=fresh)

    def add_sums(
        self,
        targets: Sequence[Tensor],
        counts: list[int],
        memo: Memo,
        how: Sequence[Summation],
        bad: Sequence[Tensor | None],
        fresh: Sequence[bool],
    ) -> None:
        """The same for many clients, whose rows are cut once."""
        if self.slope_left:
            super().add_sums(targets, counts, memo, how, bad, fresh)
            return
        shape = self.left.shape[1], self.right.shape[1]
        lefts = self.left.split_with_sizes(counts)
        rights = memo.scaled(self.right).split_with_sizes(counts)
        for target, left, right, way, left_out, is_fresh in zip(
            targets, lefts, rights, how, bad, fresh, strict=True
        ):
            add_product(target.view(shape), left, right, way, left_out, fresh=is_fresh)

    def formed(self) -> Tensor:
        """(rows, a·b)."""
        return torch.einsum("ra,rb->rab", self.left, self.right).flatten(1)

    def keep(self, take: Callable[[Tensor], Tensor]) -> RowGradients:
        """The same for the rows that `take` takes of each tensor."""
        return Outer(take(self.left), take(self.right), self.slope_left)


@dataclass(frozen=True, eq=False)
class TokenOuter(RowGradients):
    """A sum over tokens of outer products, never formed: large linear maps of a few tokens.

    As for a person with several records, norms are computed from products of tokens in float64, and sums in
    float64.

    Attributes:
        left, right: (rows, tokens, a) and (rows, tokens, b); the gradient lies as (a, b).
        slope_left: the left one is the slope, so that it is scaled.
    """

    left: Tensor
    right: Tensor
    slope_left: bool = False

    def squared_norms(self, memo: Memo) -> tuple[Tensor, Tensor | None]:
        """‖Σ aₜ gₜᵀ‖² = Σₛₜ (aₛ·aₜ)(gₛ·gₜ), and tokens·Σ‖aₜ‖²‖gₜ‖²."""
        shape = self.left.shape[:2]
        energies = [row_energy(part.flatten(0, 1)).view(shape) for part in (self.left, self.right)]
        spread = shape[1] * (energies[0] * energies[1]).sum(1)
        left = self.left.double()
        right = self.right.double()
        squared = ((left @ left.mT) * (right @ right.mT)).sum((1, 2)).clamp_min(0.0)
        return torch.where(torch.isfinite(spread), squared, torch.inf), spread

    def add_sum(
        self, target: Tensor, rows: slice, memo: Memo, how: Summation, bad: Tensor | None, fresh: bool
    ) -> None:
        """By one float64 product over all tokens."""
        other = (self.right if self.slope_left else self.left)[rows].double()
        if bad is not None:
            other.masked_fill_(bad[:, None, None], 0.0)
        slope = memo.scaled(self.left if self.slope_left else self.right)[rows].double()
        left = slope if self.slope_left else other
        right = other if self.slope_left else slope
        product = (left.flatten(0, 1).t() @ right.flatten(0, 1)).view(-1)
        if how is Summation.FEW and fresh:
            target.copy_(product)
        else:
            target.add_(product)

    def formed(self) -> Tensor:
        """(rows, a·b)."""
        return torch.bmm(self.left.mT, self.right).flatten(1)

    def keep(self, take: Callable[[Tensor], Tensor]) -> RowGradients:
        """The same for the rows that `take` takes of each tensor."""
        return TokenOuter(take(self.left), take(self.right), self.slope_left)


@dataclass(frozen=True, eq=False)
class Direct(RowGradients):
    """The slope is the gradient, as for the bias of a linear map of vectors: (rows, size)."""

    slope: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        """The slope."""
        return (self.slope,)

    def squared_norms(self, memo: Memo) -> tuple[Tensor, Tensor | None]:
        """‖g‖²."""
        return memo.energy(self.slope), None

    def add_sum(
        self, target: Tensor, rows: slice, memo: Memo, how: Summation, bad: Tensor | None, fresh: bool
    ) -> None:
        """In float64, which costs nothing for a bias."""
        _add_rows(target, memo.scaled(self.slope)[rows], how, fresh)

    def add_sums(
        self,
        targets: Sequence[Tensor],
        counts: list[int],
        memo: Memo,
        how: Sequence[Summation],
        bad: Sequence[Tensor | None],
        fresh: Sequence[bool],
    ) -> None:
        """The same for many clients, whose rows are cut once."""
        pieces = memo.scaled(self.slope).split_with_sizes(counts)
        for target, piece, way, is_fresh in zip(targets, pieces, how, fresh, strict=True):
            _add_rows(target, piece, way, is_fresh)

    def formed(self) -> Tensor:
        """(rows, size)."""
        return self.slope

    def keep(self, take: Callable[[Tensor], Tensor]) -> RowGradients:
        """The same for the rows that `take` takes of each tensor."""
        return Direct(take(self.slope))


def _add_rows(target: Tensor, rows: Tensor, how: Summation, fresh: bool) -> None:
    """target ← target + Σ rows, added up in float64; FEW overwrites a `fresh` target."""
    if how is Summation.PLAIN:
        target.add_(rows.sum(0))
    elif how is Summation.FEW:
        total = rows.sum(0, dtype=torch.float64).float()
        target.copy_(total) if fresh else target.add_(total)
    else:
        target.add_(rows.sum(0, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class Formed(RowGradients):
    """Each record's gradient itself, (rows, size) float32."""

    rows: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        """The gradients."""
        return (self.rows,)

    def squared_norms(self, memo: Memo) -> tuple[Tensor, Tensor | None]:
        """‖g‖²."""
        return memo.energy(self.rows), None

    def add_sum(
        self, target: Tensor, rows: slice, memo: Memo, how: Summation, bad: Tensor | None, fresh: bool
    ) -> None:
        """Adds Σ factor·g."""
        assert memo.factor is not None
        add_product(target, self.rows[rows], memo.factor[rows], how, bad, fresh=fresh)

    def formed(self) -> Tensor:
        """(rows, size)."""
        return self.rows

    def keep(self, take: Callable[[Tensor], Tensor]) -> RowGradients:
        """The same for the rows that `take` takes of each tensor."""
        return Formed(take(self.rows))


@dataclass(frozen=True, eq=False)
class Lookup(RowGradients):
    """An embedding's gradient: few lines of a table, each named once by a record.

    Attributes:
        lines: (rows, tokens) the numbers of the lines.
        slopes: (rows, tokens, width) their gradients, tokens of the same line added up in the first of them,
            zeros in
            the others: the contribution is defined by these numbers.
        shape: of the table.
    """

    lines: Tensor
    slopes: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, lines: Tensor, slopes: Tensor, shape: tuple[int, ...], padding: int | None) -> Lookup:
        """Adds up the slopes of equal tokens of each record."""
        count = lines.shape[1]
        gathered = torch.empty_like(slopes)
        step = max(1, CACHE_BYTES // max(1, 4 * count * count))
        for start in range(0, lines.shape[0], step):
            mine = lines[start : start + step]
            same = mine[:, :, None] == mine[:, None, :]
            # Only the first token of a line keeps the sum.
            first = ~torch.tril(same, -1).any(2)
            if padding is not None:
                first &= mine != padding
            same &= first[:, :, None]
            piece = slopes[start : start + step]
            # If no token occurs twice this is the slope itself, to the last bit: 1·g plus zeros.
            torch.bmm(
                same.float(),
                torch.nan_to_num(piece, nan=0.0, posinf=0.0, neginf=0.0),
                out=gathered[start : start + step],
            )
            odd = ~torch.isfinite(piece).flatten(1).all(1)
            if bool(odd.any()):
                gathered[start : start + step][odd] = torch.nan
        return cls(lines, gathered, shape)

    def squared_norms(self, memo: Memo) -> tuple[Tensor, Tensor | None]:
        """The lines are distinct, so their squared norms add up."""
        return row_energy(self.slopes.flatten(1)), None

    def add_sum(
        self, target: Tensor, rows: slice, memo: Memo, how: Summation, bad: Tensor | None, fresh: bool
    ) -> None:
        """Adds each record's lines to the table; a record of a block adds to each coordinate at most once."""
        table = target.view(self.shape)
        if fresh and how is Summation.FEW:
            table.zero_()
        lines = self.lines[rows].flatten()
        slopes = memo.scaled(self.slopes)[rows].flatten(0, 1)
        if how is Summation.PLAIN or how is Summation.DOUBLE:
            table.index_add_(0, lines, slopes.to(table.dtype))
            return
        block = torch.zeros(self.shape, dtype=torch.float32)
        table.add_(block.index_add_(0, lines, slopes))

    def formed(self) -> Tensor:
        """(rows, lines·width)."""
        count = self.lines.shape[0]
        table = torch.zeros(count, *self.shape)
        at = torch.arange(count)[:, None].expand_as(self.lines)
        return table.index_put_((at, self.lines), self.slopes, accumulate=True).flatten(1)

    def keep(self, take: Callable[[Tensor], Tensor]) -> RowGradients:
        """The same for the rows that `take` takes of each tensor."""
        return Lookup(take(self.lines), take(self.slopes), self.shape)


def token_gradients(left: Tensor, right: Tensor, slope_left: bool) -> RowGradients:
    """Gradients of a linear map of (rows, tokens, a) and (rows, tokens, b): formed, or not, by what is cheaper."""
    rows, tokens, a = left.shape
    b = right.shape[2]
    if tokens == 1:
        return Outer(left[:, 0], right[:, 0], slope_left)
    unformed = tokens * a * b + 4 * tokens * tokens * (a + b) < _MEMORY_COST * a * b
    if tokens <= _MOST_TOKENS and (unformed or 4 * rows * a * b > _FORMED_BYTES):
        return TokenOuter(left, right, slope_left)
    formed = ARENA.take(rows, a, b)
    torch.bmm(left.mT, right, out=formed)
    return Formed(formed.view(rows, a * b))


def merged(gradients: Sequence[RowGradients]) -> RowGradients:
    """Several uses of one parameter as one: their gradients are added up before a norm is computed."""
    if len(gradients) == 1:
        return gradients[0]
    outer = [gradient for gradient in gradients if isinstance(gradient, Outer | TokenOuter)]
    if len(outer) == len(gradients) and len({gradient.slope_left for gradient in outer}) == 1:
        lefts = [gradient.left if gradient.left.ndim == 3 else gradient.left[:, None] for gradient in outer]
        rights = [gradient.right if gradient.right.ndim == 3 else gradient.right[:, None] for gradient in outer]
        return token_gradients(torch.cat(lefts, 1), torch.cat(rights, 1), outer[0].slope_left)
    total = gradients[0].formed()
    for gradient in gradients[1:]:
        total = total + gradient.formed()
    return Formed(total)
