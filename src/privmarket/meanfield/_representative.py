"""A market as one client of a large population sees it: a price level, and what each report gets at it.

Notation: c = v + ∂_rΦ, the dynamic cost of a unit of ε: its valuation plus the shadow price of budget.
S(c; τ) = max over reports b of payment(b) − c·sold(b), the Hamiltonian's menu part, convex and falling in c,
with −S' = what is sold.

Everything is averaged over a cell of costs [c − h/2, c + h/2]: clients of one cell hold valuations spread
evenly over it. That is what a finite-volume cell means, it keeps S convex (so the inner maximum stays exact),
and it makes what a posted price sells a continuous function of the price, so that prices that clear exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._menus import MenuCurve

TailSum = Callable[[Array, Array, Array], Array]
"""(price, weight, y) ↦ a sum over the prices above y, same shape as y."""


class RepresentativeMarket(Protocol):
    """One round's market against a population that fixes its price `level`.

    Costs, reports and results share one shape; `width` is the cell of costs that is averaged over.
    `level` is the price level, or for a market with a table per time step the number of the step.
    """

    @property
    def most_sold(self) -> float:
        """The most ε that a client can sell in a round."""

    def surplus(self, cost: Array, level: float, width: float) -> Array:
        """S: what a client with this dynamic cost earns above it, per round, when it reports the cost."""

    def sold(self, report: Array, level: float, width: float) -> Array:
        """ε sold per round at this report."""

    def spend(self, report: Array, level: float, width: float) -> Array:
        """What this report takes from the buyer's budget per round."""

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """payment − valuation × sold per round."""


@dataclass(frozen=True)
class MenuMarket:
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

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """payment − valuation × sold = the surplus at the report + (report − valuation) × sold."""
        shade = report - valuation
        return self.surplus(report, level, width) + shade * self.sold(report, level, width)

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
        low, high = cost - 0.5 * width, cost + 0.5 * width
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
    zeroth, first = _tail_sums(price, weight, y), _tail_sums(price, weight * price, y)
    return 0.5 * (_tail_sums(price, weight * price**2, y) - 2.0 * y * first + y * y * zeroth)


@dataclass(frozen=True)
class QuadraticMarket:
    """Selling x costs x²/2 on top of the valuation, at unit price τ: S(c; τ) = max(τ − c, 0)²/2.

    The buyer fixes the *quantity* bought per client, so the game is linear-quadratic and has a Riccati
    solution: the reference that the coupled solver is measured against.

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

    def reward(self, valuation: Array, report: Array, level: float, width: float) -> Array:
        """The reward per round, (τ − v)·x − x²/2."""
        x = self.sold(report, level, width)
        return (level - valuation) * x - 0.5 * x * x
