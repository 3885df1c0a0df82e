"""What a wallet watches: a few measures of cost, fixed in advance, and how much of each its cap allows.

A measure is a column of a cost (see `accountant`): μ² of Gaussian differential privacy, or the Rényi divergence at
one order. Each has a share of δ. A *watch* says for many clients which measures each of their wallets watches, and
up to which limit: the most of that measure that still is (cap, share·δ)-DP.

A new wallet watches `SHARES`: μ², which is exact for full batches, and two Rényi orders for sampled releases. The
orders follow from cap and δ alone: for many small releases the divergence at α grows like α, so the order at which
(limit / α) is largest sells most of them; sales that are large beside the cap need a lower one.
`privmarket bench wallet` measures what the split costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import PrivacyError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._accountant import COLUMNS, GAUSSIAN, release_costs
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._gaussian import Array
from privmarket.privacy._renyi import ORDERS, conversion_cost

# Of δ for μ²; and for each Rényi order, with how far α − 1 lies below that of many small releases.
GAUSSIAN_SHARE = 0.775
_RENYI_SHARES = (0.215, 0.01)
_RENYI_FACTORS = (0.95, 0.65)
SHARES = (GAUSSIAN_SHARE, *_RENYI_SHARES)

# Up to so many caps, what each allows is remembered.
_FEW = 32

Measure = tuple[str, float]
"""A measure's name, `gaussian` or `renyi` and the order, and its share of δ."""


@dataclass(frozen=True, eq=False)
class Watch:
    """What the wallets of many clients watch.

    Attributes:
        columns: (clients, measures) which columns of a cost each watches.
        shares: (measures,) of δ; their sum is at most 1.
        limits: (clients, measures) how much of each may be spent in all; where it is not above 0, that measure
            never holds.
    """

    columns: NDArray[np.intp]
    shares: tuple[float, ...]
    limits: Array

    @classmethod
    def standard(cls, caps: Array, delta: float) -> Watch:
        """The measures that every new wallet watches."""
        distinct, where = np.unique(caps, return_inverse=True)
        if distinct.size <= _FEW:  # the same few wallets are looked at again and again
            rows = [_standard_row(cap, delta) for cap in distinct.tolist()]
            columns, limits = (np.concatenate(part) for part in zip(*rows, strict=True))
        else:
            columns, limits = _standard_rows(distinct, delta)
        return cls(columns[where], SHARES, limits[where])

    @classmethod
    def single(cls, caps: Array, delta: float, cost: Array) -> Watch:
        """One measure with all of δ: the one that admits most copies of a release that costs `cost`, (columns,)."""
        all_limits = np.stack([_limits(caps, delta, np.full(caps.size, column)) for column in range(COLUMNS)], 1)
        with np.errstate(invalid="ignore"):
            copies = np.where(np.isfinite(all_limits), np.maximum(all_limits, 0.0) / cost, 0.0)
        best = np.argmax(copies, axis=1)[:, None]
        return cls(best, (1.0,), np.take_along_axis(all_limits, best, axis=1))

    @classmethod
    def named(cls, caps: Array, delta: float, measures: Sequence[Sequence[Measure]]) -> Watch:
        """The measures that a store kept, one list for each client, as `names` gave them.

        Raises:
            PrivacyError: a measure is not known, or the shares of δ are more than all of it.
        """
        hint = "restore the file from a copy"
        try:
            shares = tuple(float(share) for _, share in measures[0])
            same = all(tuple(float(share) for _, share in one) == shares for one in measures)
            columns = np.array([[COLUMN_OF[name] for name, _ in one] for one in measures], dtype=np.intp)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise PrivacyError(f"stored wallets watch {list(measures)[:1]}", hint) from error
        if not shares or len(measures) != caps.size or not same or min(shares) <= 0 or sum(shares) > 1 + 1e-12:
            raise PrivacyError(f"stored wallets watch measures with shares {shares} of δ", hint)
        limits = [_limits(caps, delta * share, columns[:, at]) for at, share in enumerate(shares)]
        return cls(columns, shares, np.stack(limits, axis=1))

    def names(self) -> list[list[Measure]]:
        """The measures of each client, by name, with their shares of δ."""
        return [
            [(measure_name(int(column)), share) for column, share in zip(row, self.shares, strict=True)]
            for row in self.columns
        ]


def _limits(caps: Array, delta: float, columns: NDArray[np.intp]) -> Array:
    """(clients,) how much of each client's column converts to its cap at δ; infinite without a cap."""
    found = np.full(caps.size, np.inf)
    finite = np.isfinite(caps)
    renyi = finite & (columns != GAUSSIAN)
    found[renyi] = caps[renyi] - conversion_cost(ORDERS[columns[renyi]], delta)
    normal = finite & (columns == GAUSSIAN)
    if normal.any():
        found[normal] = gaussian.mu_of(caps[normal], delta) ** 2
    return found


@lru_cache(maxsize=4096)
def _standard_row(cap_epsilon: float, delta: float) -> tuple[NDArray[np.intp], Array]:
    return _standard_rows(np.array([cap_epsilon]), delta)


def _standard_rows(caps: Array, delta: float) -> tuple[NDArray[np.intp], Array]:
    """(caps, measures) columns and limits; each row is the same whichever others are asked for with it."""
    columns = [np.full(caps.size, GAUSSIAN, dtype=np.intp)]
    limits = [_limits(caps, delta * GAUSSIAN_SHARE, columns[0])]
    for share, factor in zip(_RENYI_SHARES, _RENYI_FACTORS, strict=True):
        cost = conversion_cost(ORDERS, delta * share)
        room = np.where(np.isfinite(caps), caps, 1.0)[:, None] - cost
        linear = ORDERS[np.argmax(room / ORDERS, axis=1)]
        wanted = 1.0 + factor * (linear - 1.0)
        column = np.argmin(np.abs(ORDERS - wanted[:, None]), axis=1)
        columns.append(column)
        limits.append(_limits(caps, delta * share, column))
    return np.stack(columns, axis=1), np.stack(limits, axis=1)


def first_that_fits(cost: Array, room: Array, columns: NDArray[np.intp]) -> NDArray[np.intp]:
    """(clients,) where along a menu, (points, columns), costs first fall within the room of some measure.

    Args:
        room: (clients, measures) what is left.
        columns: (clients, measures) of which column.
    """
    first = np.full(room.shape[0], cost.shape[0])
    for column in np.unique(columns):
        # Costs fall along the menu, so the first that fits is found by bisection.
        here = columns == column
        fits = np.searchsorted(-cost[:, column], -np.where(here, room, -np.inf).max(axis=1), side="left")
        first = np.minimum(first, fits)
    return np.asarray(first, dtype=np.intp)


@lru_cache(maxsize=64)
def menu_with_costs(family: ReleaseFamily) -> tuple[Array, Array]:
    """(points,) ε on offer, falling, and (points, columns) what each costs."""
    noise, epsilon = family.menu()
    return epsilon, release_costs([family.release(float(s)) for s in noise])


def measure_name(column: int) -> str:
    """What a wallet that watches this column says: `gaussian`, or `renyi` and the order."""
    return "gaussian" if column == GAUSSIAN else f"renyi {ORDERS[column]:g}"


COLUMN_OF = {measure_name(column): column for column in range(COLUMNS)}
