"""The market that one client meets in a finite game: what each of its possible reports would bring, step by step.

Two forms. A rule whose price level a client cannot move is a menu at that level, in closed form. Any other rule
is tabulated: a list of reports, and what each would sell and be paid given the others' bids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privmarket.market._bids import Array
from privmarket.market._menus import MenuCurve
from privmarket.meanfield._representative import MenuMarket


@dataclass(frozen=True, eq=False)
class TabulatedMarket:
    """A market given by a table per time step; the `level` of a step is its index.

    By the taxation principle the best report at dynamic cost c earns max_k paid_k − c·sold_k, an upper envelope
    of lines: a menu again, whichever rule made the table.

    Attributes:
        reports: (reports,) ascending.
        sold_table: (steps, reports) ε sold per round.
        paid_table: (steps, reports) money per round.
    """

    reports: Array
    sold_table: Array
    paid_table: Array

    @property
    def most_sold(self) -> float:
        """The most ε that a client can sell in a round."""
        return float(self.sold_table.max())

    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """max_k paid_k − c·sold_k, averaged over the cell: every client of the cell picks its own best report."""
        least_sold, least_paid, menu = self._envelopes[int(level)]
        extra = 0.0 if menu is None else menu.surplus(cost, 1.0, width)
        return np.asarray(least_paid - cost * least_sold + extra)

    def sold(self, report: Array, level: float, width: float) -> Array:
        """ε per round at this report, between the table's rows by randomising between them."""
        return self._mean(self.sold_table[int(level)], report, width)

    def spend(self, report: Array, level: float, width: float) -> Array:
        """The money paid per round at each report."""
        return self._mean(self.paid_table[int(level)], report, width)

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """payment − valuation × sold, where the cell's clients shade alike: their valuation is report − shade."""
        asked = self._mean(self.sold_table[int(level)], report, width, moment=1)
        shade = report - valuation
        return self.spend(report, level, width) - asked + shade * self.sold(report, level, width)

    def _mean(self, table: Array, report: Array, width: float, moment: int = 0) -> Array:
        """Average of b^moment × the table's linear interpolant at b over [report − width/2, report + width/2]."""
        start, gaps = self.reports[:-1], np.diff(self.reports)
        height, slope = table[:-1], np.diff(table) / gaps
        # On a piece, (start + u)^moment·(height + slope·u) = Σ_d coefficient_d·u^d.
        coefficients = [height, slope]
        if moment == 1:
            coefficients = [start * height, start * slope + height, slope]
        whole = sum(c * gaps ** (d + 1) / (d + 1) for d, c in enumerate(coefficients))
        total = np.concatenate([[0.0], np.cumsum(whole)])

        def integral(x: Array) -> Array:
            low, high = self.reports[0], self.reports[-1]
            inside = np.clip(x, low, high)
            k = np.clip(np.searchsorted(self.reports, inside, side="right") - 1, 0, gaps.size - 1)
            u = inside - start[k]
            piece = sum(c[k] * u ** (d + 1) / (d + 1) for d, c in enumerate(coefficients))
            power = moment + 1  # beyond the table its last row holds
            below = table[0] * (np.minimum(x, low) ** power - low**power) / power
            above = table[-1] * (np.maximum(x, high) ** power - high**power) / power
            return np.asarray(total[k] + piece + below + above)

        return np.asarray((integral(report + 0.5 * width) - integral(report - 0.5 * width)) / width)

    @cached_property
    def _envelopes(self) -> list[tuple[float, float, MenuMarket | None]]:
        return [_envelope(x, p) for x, p in zip(self.sold_table, self.paid_table, strict=True)]


def _envelope(sold: Array, paid: Array) -> tuple[float, float, MenuMarket | None]:
    """The upper envelope of c ↦ paid − c·sold over c ≥ 0: its last line, and a menu for what comes before it."""
    order = np.lexsort((paid, sold))
    hull: list[tuple[float, float]] = []
    for x, p in zip(sold[order], paid[order], strict=True):
        if hull and x - hull[-1][0] <= 1e-12:
            if p <= hull[-1][1]:
                continue
            hull.pop()
        # A line is never best if the next one overtakes the one before it at a higher cost.
        while len(hull) > 1 and (p - hull[-1][1]) * (hull[-1][0] - hull[-2][0]) >= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-1][0]
        ):
            hull.pop()
        hull.append((float(x), float(p)))
    x, p = np.array(hull).T
    weight, price = np.diff(x), np.diff(p) / np.maximum(np.diff(x), 1e-300)
    keep = price > 1e-12  # lines that are best only at negative costs
    if not keep.any():
        return float(x[0]), float(p[0]), None
    weight, price = weight[keep][::-1], price[keep][::-1]
    cap = float(weight.sum())
    return float(x[0]), float(p[0]), MenuMarket(MenuCurve(price, weight / cap), cap)


@dataclass(frozen=True, eq=False)
class MenuPath:
    """A menu at a given price level per time step; the `level` of a step is its index.

    Attributes:
        menu: the menu at price level 1.
        levels: (steps,) the price levels.
    """

    menu: MenuMarket
    levels: Array

    @property
    def most_sold(self) -> float:
        """The most ε that a client can sell in a round."""
        return self.menu.most_sold

    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """The surplus per round at each cost, at the price level of this step."""
        return self.menu.surplus(cost, float(self.levels[int(level)]), width)

    def sold(self, report: Array, level: float, width: float) -> Array:
        """The ε sold per round at each report, at the price level of this step."""
        return self.menu.sold(report, float(self.levels[int(level)]), width)

    def spend(self, report: Array, level: float, width: float) -> Array:
        """The money paid per round at each report, at the price level of this step."""
        return self.menu.spend(report, float(self.levels[int(level)]), width)

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """payment − valuation × sold at the step's price level."""
        return self.menu.reward(valuation, report, float(self.levels[int(level)]), width)


def average(markets: Sequence[MenuPath | TabulatedMarket]) -> MenuPath | TabulatedMarket:
    """The market in which a report meets one of `markets` by chance, unknown when it reports."""
    first = markets[0]
    if isinstance(first, TabulatedMarket):
        sold = np.mean([m.sold_table for m in markets if isinstance(m, TabulatedMarket)], axis=0)
        paid = np.mean([m.paid_table for m in markets if isinstance(m, TabulatedMarket)], axis=0)
        return TabulatedMarket(first.reports, sold, paid)
    return _MixedMenu(first.menu, np.stack([m.levels for m in markets if isinstance(m, MenuPath)]))


@dataclass(frozen=True, eq=False)
class _MixedMenu(MenuPath):
    """Price levels (draws, steps), each as likely. A mixture of menus is a menu, of all their steps."""

    @cached_property
    def _curves(self) -> list[MenuMarket]:
        return [_merge(self.menu, column) for column in self.levels.T]

    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """The surplus per round at this cost, averaged over the draws."""
        return self._curves[int(level)].surplus(cost, 1.0, width)

    def sold(self, report: Array, level: float, width: float) -> Array:
        """The ε sold per round at this report, averaged over the draws."""
        return self._curves[int(level)].sold(report, 1.0, width)

    def spend(self, report: Array, level: float, width: float) -> Array:
        """The money paid per round at this report, averaged over the draws."""
        return self._curves[int(level)].spend(report, 1.0, width)

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """Payment less cost per round at this report, averaged over the draws."""
        return self._curves[int(level)].reward(valuation, report, 1.0, width)


def _merge(menu: MenuMarket, levels: Array) -> MenuMarket:
    price = np.outer(levels, menu.curve.price).ravel()
    weight = np.tile(menu.curve.weight / levels.size, levels.size)
    steps, place = np.unique(price, return_inverse=True)
    return MenuMarket(MenuCurve(steps, np.bincount(place, weights=weight)), menu.sale_cap)
