"""Levels of the ration menu in many small markets at once.

Notation: see `ration_menu`. Every step below is the one that `ration_menu` takes for a single market, on arrays
with one row per market and in the same order of additions, so the levels are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privmarket.market._bids import Array
from privmarket.market._menus import RationCurve, StackedCurves

# The levels in question are bracketed by cutting an interval into so many parts, so many times.
PARTS = 64
CUTS = 4
# How many comparisons of an offer with an amount are made at once.
_CHUNK_CELLS = 2_000_000


def levels_of_small_markets(
    curves: Sequence[RationCurve], valuation: Array, epsilon: Array, budget: Array, epsilon_max: float
) -> tuple[Array, NDArray[np.bool_]]:
    """(markets, clients) ℓ_{−i}, and whether it is ε_max.

    Args:
        curves: one per market.
        valuation, epsilon: (markets, clients).
        budget: (markets, 1).
    """
    size = max(1, _CHUNK_CELLS // (PARTS * valuation.shape[-1]))
    parts = [slice(start, start + size) for start in range(0, len(curves), size)]
    found = [_levels(curves[part], valuation[part], epsilon[part], budget[part], epsilon_max) for part in parts]
    return np.concatenate([level for level, _ in found]), np.concatenate([full for _, full in found])


def _levels(
    curves: Sequence[RationCurve], valuation: Array, epsilon: Array, budget: Array, epsilon_max: float
) -> tuple[Array, NDArray[np.bool_]]:
    stacked = StackedCurves.of(curves)
    total = _TotalPay.of(stacked, valuation, epsilon)

    def with_reserve(level: Array) -> Array:
        reserve = stacked.trade(np.zeros(level.shape), np.full(level.shape, epsilon_max), level)[1]
        return total(level) + reserve

    top = np.array([[min(epsilon_max, curve.ceiling)] for curve in curves])
    low, _ = _bracket(lambda x: with_reserve(x) <= budget, np.zeros(top.shape), top)
    _, high = _bracket(lambda x: total(x) <= budget, low, top)
    points, count = total.breakpoints(low, high, epsilon_max)
    cost = with_reserve(points)

    def at(index: NDArray[np.intp]) -> tuple[Array, Array]:
        """The level of a breakpoint, and what all others and the reserve cost there."""
        level = np.take_along_axis(points, index, axis=-1)
        return level, np.take_along_axis(cost, index, axis=-1) - stacked.trade(valuation, epsilon, level)[1]

    start = np.zeros(valuation.shape, dtype=np.intp)
    stop = np.broadcast_to(count, valuation.shape)
    while np.any(stop - start > 1):
        middle = (start + stop) // 2
        fits = at(middle)[1] <= budget
        start, stop = np.where(fits, middle, start), np.where(fits, stop, middle)
    last = start == count - 1
    (below, here), (above, there) = at(start), at(np.where(last, start, start + 1))
    rise = np.where(there > here, there - here, 1.0)
    part = np.clip((budget - here) / rise, 0.0, 1.0)
    level = below + np.where(last, 0.0, part * (above - below))
    return level, last & (np.take_along_axis(points, count - 1, axis=-1) >= epsilon_max)


@dataclass(frozen=True, eq=False)
class _TotalPay:
    """T(ℓ) of every market, from prefix sums of offers.

    Attributes:
        offered: (markets, clients) ascending in each market.
        sells: (steps, markets, clients) whether the client of that offer asks less than the step's price.
        number, prefix: (steps, markets, clients + 1) how many of the first so many offers sell, and their sum.
    """

    curves: StackedCurves
    offered: Array
    sells: NDArray[np.bool_]
    number: NDArray[np.intp]
    prefix: Array

    @staticmethod
    def of(curves: StackedCurves, valuation: Array, epsilon: Array) -> _TotalPay:
        order = np.argsort(epsilon, axis=-1, kind="stable")
        asked, offered = (np.take_along_axis(a, order, axis=-1) for a in (valuation, epsilon))
        sells = asked < curves.price
        none = np.zeros((*sells.shape[:-1], 1))
        number = np.concatenate([none.astype(np.intp), np.cumsum(sells, axis=-1)], axis=-1)
        prefix = np.concatenate([none, np.cumsum(np.where(sells, offered, 0.0), axis=-1)], axis=-1)
        return _TotalPay(curves, offered, sells, number, prefix)

    def __call__(self, level: Array) -> Array:
        """(markets, points) from levels of that shape."""
        steps = len(self.curves.price)
        amounts = [self.curves.amount(step, level) for step in range(steps)]
        below = [np.count_nonzero(self.offered[:, None] < amount[..., None], axis=-1) for amount in amounts]
        pay = np.zeros(level.shape)
        for step in range(steps):
            slices = self._bought(step, amounts[step], below[step])
            if step + 1 < steps:
                slices = slices - self._bought(step, amounts[step + 1], below[step + 1])
            pay = pay + self.curves.price[step] * slices
        return pay

    def _bought(self, step: int, amount: Array, below: NDArray[np.intp]) -> Array:
        """Σ min(ε, amount) over the clients with v < p_m; `below` counts the offers below the amount."""
        whole = np.take_along_axis(self.number[step], below, axis=-1)
        beyond = self.number[step][:, -1:] - whole
        return np.asarray(np.take_along_axis(self.prefix[step], below, axis=-1) + amount * beyond)

    def breakpoints(self, low: Array, high: Array, epsilon_max: float) -> tuple[Array, NDArray[np.intp]]:
        """(markets, points) ascending levels from `low` to `high` with all kinks between; (markets, 1) how many.

        Rows with fewer end in repeats of `high`.
        """
        found = [low, high, self.curves.floor]
        for step in range(len(self.curves.price)):
            enough = self.offered >= self.curves.amount(step, low)
            inside = self.sells[step] & enough & (self.offered < self.curves.amount(step, high))
            found.append(np.where(inside, self.curves.level_of(step, self.offered), np.inf))
            found.append(self.curves.level_of(step, np.full(low.shape, epsilon_max)))
        points = np.concatenate(found, axis=-1)
        points = np.sort(np.where((points >= low) & (points <= high), points, np.inf), axis=-1)
        repeated = np.concatenate([np.zeros(low.shape, dtype=np.bool_), points[:, 1:] == points[:, :-1]], axis=-1)
        points = np.sort(np.where(repeated, np.inf, points), axis=-1)
        count = np.count_nonzero(points < np.inf, axis=-1)[:, None]
        return np.where(points < np.inf, points, high), count


def _bracket(fits: Callable[[Array], NDArray[np.bool_]], low: Array, top: Array) -> tuple[Array, Array]:
    """(markets, 1) two close levels in [low, top] between which the largest one that fits lies; `low` itself fits.

    Both are `top` where that fits too.
    """
    high = top
    for _ in range(CUTS):
        points = np.arange(PARTS + 1) * ((high - low) / PARTS) + low
        points[:, -1:] = high
        fitting = np.count_nonzero(np.logical_and.accumulate(fits(points[:, 1:]), axis=-1), axis=-1)[:, None]
        low, high = (np.take_along_axis(points, np.minimum(fitting + i, PARTS), axis=-1) for i in (0, 1))
    return low, high
