"""The arithmetic of clipped sums: norms rounded up, clip factors rounded down, sums added in blocks.

The contribution of a record to a sum is defined by float32 numbers. Its norm is bounded from above in float64, its
clip factor is rounded down, and contributions are added in blocks whose error `privacy._release.sum_inflation`
bounds. docs/theory/finite-arithmetic.md proves that this is private in floating-point arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privmarket.privacy._release import BLOCK_RECORDS, BLOCKS_IN_FLOAT32, CANCELLATION

# Number of rows of each product over a Poisson sample. With it, every tile begins at a multiple of 64 bytes.
TILE_ROWS = 16

# Sums of more squares than this are computed in float64. For fewer, float32 is off by less than 0.1 % in the worst
# case.
_SQUARES_IN_FLOAT32 = 2**14
# A larger squared norm counts as not finite, so that no product of factors underflows.
_LARGEST_ENERGY = 2.0**126
# Clipping stays below C by these shares. They cover the rounding of factors and norms, and for persons and tokens,
# where several parts add up to one contribution, also the error of float64 sums.
_RECORD_MARGIN = 2.0**-20
_PERSON_MARGIN = 2.0**-19
_TOKEN_MARGIN = 2.0**-18
_ZERO = torch.zeros(())
# Added to the squared norm, as a share of A², for cancellation inside one contribution, see `group_factors`.
_CANCELLATION_SLACK = 2.0**-26


class Summation(Enum):
    """How the contributions of one client's rows are added up."""

    PLAIN = "one float32 product, onto whatever is there; for training without privacy"
    FEW = "at most BLOCKS_IN_FLOAT32 products of at most BLOCK_RECORDS rows, in float32"
    BLOCKS = "any number of such products, every few of them added to float64 totals"
    DOUBLE = "float64 products, added to float64 totals"


def row_energy(rows: Tensor) -> Tensor:
    """(rows, n) float32 → (rows,) float64, never below Σ squares; infinite beyond 2^126 and for NaN.

    A float32 sum of n squares, in any order, loses at most a share γ = (n + 4)u/(1 − (n + 4)u), u = 2^−24, and
    n·2^−125 by underflow [Higham2002]; both are added to it.
    """
    return row_energies([rows])[0]


def row_energies(tensors: Sequence[Tensor]) -> Tensor:
    """(tensors, rows) `row_energy` of several tensors with as many rows."""
    norms: list[Tensor] = []
    for rows in tensors:
        if rows.shape[1] > _SQUARES_IN_FLOAT32:
            norms.append(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64))
        else:
            norms.append(torch.linalg.vector_norm(rows, dim=1).double())
    shares, floors = _given_back(tuple([rows.shape[1] for rows in tensors]))
    energy = torch.stack(norms).square_().mul_(shares).add_(floors)
    # NaN is not below the limit either.
    return energy.masked_fill_(~(energy <= _LARGEST_ENERGY), torch.inf)


@lru_cache(maxsize=256)
def _given_back(widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(widths, 1) float64 each: the factor and the summand that make a sum of so many squares an upper bound."""
    shares: list[float] = []
    for n in widths:
        unit = (n + 4) * 2.0**-24
        loss = 2.0**-20 if n > _SQUARES_IN_FLOAT32 else unit / (1.0 - unit)
        shares.append(1.0 / (1.0 - loss))
    floors = [n * 2.0**-125 for n in widths]
    return torch.tensor(shares, dtype=torch.float64)[:, None], torch.tensor(floors, dtype=torch.float64)[:, None]


def clip_factors(squared_norms: Tensor, clip_norm: float, spread: Tensor | None = None) -> Tensor:
    """(rows,) float32, at most min(1, C/‖g‖) for float64 bounds ‖g‖² from above; 0 where they are not finite.

    Args:
        squared_norms: (rows,) bounds of ‖g‖².
        spread: (rows,) A² ≥ (Σ‖parts‖)² of those layers whose gradient is a sum of parts that are scaled one by one
            (a linear layer on several tokens, if that sum is not formed). 2^−26·A² is added to the squared norm,
            and f·A is at most 64·C, as for persons (`group_factors`).
    """
    squared = squared_norms.double()
    limit = clip_norm * (1.0 - _RECORD_MARGIN)
    if spread is None:
        factor = (limit * squared.clamp_min(1e-300).rsqrt()).clamp_max(1.0)
    else:
        limit = clip_norm * (1.0 - _TOKEN_MARGIN)
        squared = squared + _CANCELLATION_SLACK * spread
        most = CANCELLATION * limit * spread.clamp_min(1e-300).rsqrt()
        factor = torch.minimum(limit * squared.clamp_min(1e-300).rsqrt(), most).clamp_max(1.0)
    return rounded_down(torch.where(torch.isfinite(squared), factor, 0.0))


def group_factors(squared_norms: Tensor, energy: Tensor, members: Tensor | int, clip_norm: float) -> Tensor:
    """(groups,) float64, at most min(1, C/‖Σ g‖) of each group of records that are clipped together.

    Let A² = members·Σ‖g‖² ≥ (Σ‖g‖)². 2^−26·A² is added to the squared norm of the sum, because of records that
    cancel each other nothing is left but rounding errors. 64·members·C/A is a second limit, so that the norms of
    all contributions add up to at most 64·members·C.

    Args:
        squared_norms: (groups,) ‖Σ g‖² as computed in float64.
        energy: (groups,) Σ‖g‖² over the group's records.
        members: how many records each group has.
    """
    spread = members * energy
    bound = (squared_norms + _CANCELLATION_SLACK * spread).clamp_min(1e-300)
    limit = clip_norm * (1.0 - _PERSON_MARGIN)
    most = CANCELLATION * members * limit * spread.clamp_min(1e-300).rsqrt()
    return torch.minimum(limit * bound.rsqrt(), most).clamp_max(1.0)


def rounded_down(factor: Tensor) -> Tensor:
    """Rounds float64 to float32 without ever rounding up, same shape."""
    near = factor.float()
    return torch.where(near.double() > factor, torch.nextafter(near, _ZERO), near)


def even_blocks(rows: int, most: int = BLOCK_RECORDS) -> Iterator[slice]:
    """Cuts rows into the fewest blocks of at most `most` rows, of nearly equal size."""
    count = -(-rows // most)
    for k in range(count):
        yield slice(k * rows // count, (k + 1) * rows // count)


def add_product(
    target: Tensor, left: Tensor, right: Tensor, how: Summation, bad: Tensor | None = None, *, fresh: bool = True
) -> None:
    """target ← target + leftᵀ·right, (rows, m) and (rows, n) or (rows,); FEW overwrites a `fresh` target.

    Rows of `left` where `bad` is true count as zeros. Only their own block is copied for that: a copy may be
    aligned differently in memory, and a library may then add in another order.
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
        few = torch.zeros(target.shape, dtype=torch.float32) if fresh else target.float()
        add_product(few, left, right, how, bad, fresh=fresh)
        target.copy_(few)
    elif how is Summation.FEW and fresh and 0 < rows <= BLOCK_RECORDS and bad is None:
        multiply(left.t(), right, out=target)
    elif how is Summation.FEW:
        for k, block in enumerate(even_blocks(rows)):
            mine = left[block]
            if bad is not None and bool(bad[block].any()):
                mine = mine.masked_fill(bad[block][:, None], 0.0)
            if k or not fresh:
                target.add_(multiply(mine.t(), right[block]))
            else:
                multiply(mine.t(), right[block], out=target)
        if not rows and fresh:
            target.zero_()
    else:
        few = torch.empty(target.shape, dtype=torch.float32)
        for piece in even_blocks(rows, BLOCK_RECORDS * BLOCKS_IN_FLOAT32):
            add_product(few, left[piece], right[piece], Summation.FEW, None if bad is None else bad[piece])
            target.add_(few)


def tiled(drawn: NDArray[np.int64], tile: int = TILE_ROWS) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lays a Poisson sample out in tiles of equal size: record r is row r mod `tile` of one of them.

    How a library computes a row may depend on the number of rows and on the row's place: it adds in another order
    if a row does not begin at a multiple of 16 bytes. So every product is over one tile, and a record's place in it
    does not depend on which other records were drawn.

    Args:
        drawn: (drawn,) numbers of records, ascending.

    Returns:
        (rows,) the record in each row, 0 in unused rows; (drawn,) the row of each drawn record.
    """
    slots = drawn % tile
    order = np.argsort(slots, kind="stable")
    counts = np.bincount(slots, minlength=tile)
    nth = np.empty(drawn.size, dtype=np.int64)
    nth[order] = np.arange(drawn.size) - np.repeat(np.cumsum(counts) - counts, counts)
    places = nth * tile + slots
    rows = np.zeros(int(counts.max()) * tile, dtype=np.int64)
    rows[places] = drawn
    return rows, places


@contextmanager
def conventional_products() -> Iterator[None]:
    """A context in which float32 products use float32, whatever the caller allowed (bfloat16, TF32, autocast)."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch computes in one thread.

    More threads than free cores make training many times slower, and the order in which a product is added up may
    depend on their number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
