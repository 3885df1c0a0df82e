"""A market as one client of a large population sees it: a price level, and what each report gets at it.

Notation: c = v + ∂_rΦ, the dynamic cost of a unit of ε: its valuation plus the shadow price of budget.
S(c; τ) = max over reports b of payment(b) − c·sold(b), the Hamiltonian's menu part, convex and falling in c,
with −S' = what is sold.

Everything is averaged over a cell of costs [c − h/2, c + h/2]: clients of one cell hold valuations spread
evenly over it. That is what a finite-volume cell means, it keeps S convex (so the inner maximum stays exact),
and it makes what a posted price sells a continuous function of the price, so that prices that clear exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._menus import MenuCurve

TailSum = Callable[[Array, Array, Array], Array]
"""(price, weight, y) ↦ a sum over the prices above y, same shape as y."""


class RepresentativeMarket(ABC):
    """One round's market against a population that fixes its price `level`; subclass it for a market of your own.

    A subclass states three things: the most that can be sold, the surplus S, and what is sold. They belong
    together: S is what the best choice earns at cost c, so it is convex and falls with c, and sold = −∂S/∂c.
    `solve` checks this and refuses a market in which another report than the cost itself would earn more.

    Costs, reports and results are arrays of one shape. Money and ε are per round. `level` lies between 0 and the
    price ceiling. `width` is the width of the cell of costs that results are averaged over; a market whose `sold`
    is continuous in the cost may ignore it.
    """

    @property
    @abstractmethod
    def most_sold(self) -> float:
        """The most ε that a client can sell in a round."""

    @abstractmethod
    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """S: what a client with this dynamic cost earns above it, per round, when it reports the cost."""

    @abstractmethod
    def sold(self, report: Array, level: float, width: float) -> Array:
        """ε sold per round at this report."""

    def spend(self, report: Array, level: float, width: float) -> Array:
        """What this report takes from the buyer's budget per round; must not fall when the level rises.

        Unless overridden, the payment that leaves the surplus: S(b) + b × sold(b).
        """
        return self.surplus(report, level, width) + report * self.sold(report, level, width)

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """What a client gains per round: S(b) + (b − v) × sold(b), which is payment − v × sold."""
        shade = report - valuation
        return self.surplus(report, level, width) + shade * self.sold(report, level, width)


def check_market(market: RepresentativeMarket, ceiling: float, width: float) -> None:
    """Refuses a market whose parts do not fit each other, judged at a grid of costs, reports and levels.

    Checked: sales lie between 0 and `most_sold`; reporting the cost earns the surplus and no other report earns
    more; the reward falls by `sold` per unit of valuation; the spend does not fall when the level rises.
    """
    costs = np.linspace(0.0, 1.2 * ceiling, 25)
    spend_before = None
    name = type(market).__name__
    for level in np.linspace(0.0, ceiling, 9):
        sold = market.sold(costs, level, width)
        surplus = market.surplus(costs, level, width)
        spend = market.spend(costs, level, width)
        small = 1e-9 * max(1.0, float(np.abs(surplus).max()))
        fault = None
        if sold.min() < -small or sold.max() > market.most_sold * (1 + 1e-9):
            most = market.most_sold
            fault = f"sells {sold.min():.4g} … {sold.max():.4g} per round, outside 0 … most_sold = {most:.4g}"
        elif spend_before is not None and (spend < spend_before - small).any():
            fault = f"spends less at the level {level:.4g} than at a lower one"
        valuation, report = np.broadcast_arrays(costs[:, None], costs)
        reward = market.reward(valuation, report, level, width)
        own = np.diagonal(reward)
        best = reward.argmax(axis=1)
        gain = reward.max(axis=1) - surplus
        slope = np.diff(reward, axis=0) + np.diff(costs)[:, None] * sold
        if fault is None and gain.max() > small:
            k = int(gain.argmax())
            fault = (
                f"at the level {level:.4g} a client with cost {costs[k]:.4g} earns {gain[k]:.3g} more than the "
                f"surplus by reporting {costs[best[k]]:.4g}: surplus and sold do not belong together"
            )
        elif fault is None and np.abs(own - surplus).max() > small:
            k = int(np.abs(own - surplus).argmax())
            fault = (
                f"at the level {level:.4g} the reward of reporting the cost {costs[k]:.4g} is {own[k]:.4g}, "
                f"not the surplus {surplus[k]:.4g}"
            )
        elif fault is None and np.abs(slope).max() > small:
            fault = f"at the level {level:.4g} the reward does not fall by `sold` per unit of valuation"
        if fault is not None:
            raise ConfigurationError(
                f"{name}: {fault}", "see RepresentativeMarket: S is convex in the cost and sold = −∂S/∂c"
            )
        spend_before = spend


@dataclass(frozen=True)
class MenuMarket(RepresentativeMarket):
    """The mean-field menu: report b at price level τ sells cap·G(b/τ) and is paid Myerson's amount.

    Implements: the representative-agent form p̃(b; μ) of Eq. (mf-utility) of [Sun2026] for a menu, with
    Myerson payments [Myerson1981], in closed form for step curves.

    Attributes:
        curve: the menu curve G.
        sale_cap: the most ε that a client may sell per round.
    """

    curve: MenuCurve
    sale_cap: float

    def __post_init__(self) -> None:
        if not 0 < self.sale_cap < np.inf:
            raise ConfigurationError(f"sale cap is {self.sale_cap}: must be above 0", "give the most ε of a round")

    @property
    def most_sold(self) -> float:
        """The most ε that a client can sell in a round."""
        return self.sale_cap * float(self.curve.weight.sum())

    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """S, the surplus per round at each cost, averaged over the cell."""
        price = self.curve.price * level
        if price.size <= _FEW_STEPS:
            terms = [w * _mean_excess(p - cost, width) for p, w in zip(price, self.curve.weight, strict=True)]
            return np.asarray(self.sale_cap * sum(terms))
        return self.sale_cap * self._cell_mean(_second_tail, self.curve.weight, cost, level, width)

    def sold(self, report: Array, level: float, width: float) -> Array:
        """The ε sold per round at each report, averaged over the cell."""
        return self.sale_cap * self._count(self.curve.weight, report, level, width)

    def spend(self, report: Array, level: float, width: float) -> Array:
        """The payment per round at each report, averaged over the cell."""
        return self.sale_cap * self._count(self.curve.weight * self.curve.price * level, report, level, width)

    def payment(self, report: Array, level: float) -> Array:
        """p̃(b; τ) per round of one client, not averaged."""
        return self.sale_cap * level * self.curve.unit_payment(np.asarray(report) / level)

    def _count(self, weight: Array, report: Array, level: float, width: float) -> Array:
        """Σ_m weight_m × share of the cell that asks less than price m."""
        price = self.curve.price * level
        if price.size <= _FEW_STEPS:
            share = (np.clip((p - report) / width + 0.5, 0.0, 1.0) for p in price)
            return np.asarray(sum(w * s for w, s in zip(weight, share, strict=True)))
        return self._cell_mean(_first_tail, weight, report, level, width)

    def _cell_mean(self, tail: TailSum, weight: Array, cost: Array, level: float, width: float) -> Array:
        """Average over a cell of a function whose integral from y to ∞ is `tail`."""
        price = self.curve.price * level
        low = cost - 0.5 * width
        high = cost + 0.5 * width
        return np.asarray((tail(price, weight, low) - tail(price, weight, high)) / width)


_FEW_STEPS = 8  # up to here adding step by step beats the binary search of the tail sums


def _mean_excess(distance: Array, width: float) -> Array:
    """Average of max(distance + u, 0) over u ∈ [−width/2, width/2]."""
    share = np.clip(distance / width + 0.5, 0.0, 1.0)
    return 0.5 * width * share * share + np.maximum(distance - 0.5 * width, 0.0)


def _tail_sums(price: Array, terms: Array, y: Array) -> Array:
    tail = np.append(np.cumsum(terms[::-1])[::-1], 0.0)
    return np.asarray(tail[np.searchsorted(price, y, side="right")])


def _first_tail(price: Array, weight: Array, y: Array) -> Array:
    """Σ w_m·max(P_m − y, 0)."""
    return _tail_sums(price, weight * price, y) - y * _tail_sums(price, weight, y)


def _second_tail(price: Array, weight: Array, y: Array) -> Array:
    """½·Σ w_m·max(P_m − y, 0)²."""
    zeroth = _tail_sums(price, weight, y)
    first = _tail_sums(price, weight * price, y)
    return 0.5 * (_tail_sums(price, weight * price**2, y) - 2.0 * y * first + y * y * zeroth)


@dataclass(frozen=True)
class QuadraticMarket(RepresentativeMarket):
    """Selling x costs x²/2 on top of the valuation, at unit price τ: S(c; τ) = max(τ − c, 0)²/2.

    The buyer fixes the *quantity* bought per client, so the game is linear-quadratic and has a Riccati
    solution: the reference that the coupled solver is measured against. A client gains (τ − v)x − x²/2 per round.

    Implements: the linear-quadratic game of trade crowding, in the spirit of [CardaliaguetLehalle2018].

    Attributes:
        rate_cap: the most that can be sold per round; large enough not to bind where the population is.
    """

    rate_cap: float

    @property
    def most_sold(self) -> float:
        """The most ε that a client can sell in a round."""
        return self.rate_cap

    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """S per round; not averaged, the reference is a point value."""
        x = self.sold(cost, level, width)
        return (level - cost) * x - 0.5 * x * x

    def sold(self, report: Array, level: float, width: float) -> Array:
        """The quantity x = τ − c sold per round, between 0 and the cap."""
        return np.clip(level - report, 0.0, self.rate_cap)

    def spend(self, report: Array, level: float, width: float) -> Array:
        """The quantity sold: here the buyer's constraint is on that, not on money."""
        return self.sold(report, level, width)


@dataclass(frozen=True, eq=False)
class TabulatedMarket(RepresentativeMarket):
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
        start = self.reports[:-1]
        gaps = np.diff(self.reports)
        height = table[:-1]
        slope = np.diff(table) / gaps
        # On a piece, (start + u)^moment·(height + slope·u) = Σ_d coefficient_d·u^d.
        coefficients = [height, slope]
        if moment == 1:
            coefficients = [start * height, start * slope + height, slope]
        whole = sum(c * gaps ** (d + 1) / (d + 1) for d, c in enumerate(coefficients))
        total = np.concatenate([[0.0], np.cumsum(whole)])

        def integral(x: Array) -> Array:
            low = self.reports[0]
            high = self.reports[-1]
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
    weight = np.diff(x)
    price = np.diff(p) / np.maximum(np.diff(x), 1e-300)
    keep = price > 1e-12  # lines that are best only at negative costs
    if not keep.any():
        return float(x[0]), float(p[0]), None
    weight = weight[keep][::-1]
    price = price[keep][::-1]
    cap = float(weight.sum())
    return float(x[0]), float(p[0]), MenuMarket(MenuCurve(price, weight / cap), cap)


@dataclass(frozen=True, eq=False)
class MenuPath(RepresentativeMarket):
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
