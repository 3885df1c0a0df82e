"""The mean-field menu with a service floor and a compensation floor, still exact.

Notation: level u ≥ 0 of a market. For u ≤ 1 only the service floor is bought, for the fraction u of it; beyond
1 it is bought whole and the curve G is scaled by the price level τ = (u − 1)·τ₀. w_f, p_f = share and price of
the service floor; c = least money per unit of ε.

At each level a client faces a mixture of posted prices: the floor at p_f, and step m at max(τ s_m, c) for the
share w_m·min(1, τ s_m/c). So it sells less when the budget is short, but never for less than c per unit. What
a client is paid is non-decreasing in u, and is at most ε_max·(w_f p_f·min(u, 1) + (1 − w_f)·τ·∫G). These are the
two facts that the proof of the mean-field menu uses; u_{−i} takes the place of τ_{−i}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._menus import MenuCurve

_BISECTIONS = 64


@dataclass(frozen=True)
class Floors:
    """What every client is promised. The zeros promise nothing.

    Attributes:
        service_share: everyone with v ≤ `service_valuation` sells at least this share of its ε, whenever the
            budget can pay for that together with one client's reserve.
        service_valuation: in money per unit of ε.
        unit_compensation: every unit of ε sold is paid at least this.
    """

    service_share: float = 0.0
    service_valuation: float = 0.0
    unit_compensation: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.service_share < 1 and 0 <= self.service_valuation < np.inf):
            raise ConfigurationError(
                f"service floor: share {self.service_share} up to valuation {self.service_valuation}",
                "give a share in [0, 1) and a finite valuation",
            )
        if not 0 <= self.unit_compensation < np.inf:
            raise ConfigurationError(
                f"compensation floor is {self.unit_compensation}", "give money per unit of ε, at least 0"
            )

    def __bool__(self) -> bool:
        return self.service_share > 0 or self.unit_compensation > 0

    @property
    def service_price(self) -> float:
        """p_f: just above the stated valuation, because a client at a price does not sell."""
        return max(float(np.nextafter(self.service_valuation, np.inf)), self.unit_compensation)


@dataclass(frozen=True)
class Ladder:
    """The menus that a curve and its floors give, one for every level u of spending."""

    curve: MenuCurve
    floors: Floors

    @property
    def rest(self) -> float:
        """The share of ε that the service floor leaves to the curve."""
        return 1.0 - self.floors.service_share

    def trade(self, valuation: Array, epsilon: Array, fraction: Array, level: Array) -> tuple[Array, Array]:
        """ε sold and pay of clients that face `fraction` of the floor and price level τ; one shape."""
        takes_floor = valuation < self.floors.service_price
        share = np.where(takes_floor, self.floors.service_share * fraction, 0.0)
        unit_pay = share * self.floors.service_price
        least = self.floors.unit_compensation
        for price, weight in zip(self.curve.price, self.curve.weight, strict=True):
            scaled = level * price
            posted = np.maximum(scaled, least)
            sells = valuation < posted
            ration = np.minimum(1.0, scaled / least) if least > 0 else 1.0
            bought = np.where(sells, self.rest * weight * ration, 0.0)
            share = share + bought
            unit_pay = unit_pay + bought * posted
        return epsilon * share, epsilon * unit_pay

    def most(self, epsilon_max: float, fraction: Array, level: Array) -> Array:
        """The most that one client can be paid at this fraction of the floor and this price level."""
        floor = self.floors.service_share * self.floors.service_price * fraction
        return epsilon_max * (floor + self.rest * level * self.curve.area)


@dataclass(frozen=True)
class _Supply:
    """Total pay of a market at any level, from prefix sums over sorted valuations."""

    ladder: Ladder
    ranked: Array
    prefix: Array

    @staticmethod
    def of(ladder: Ladder, valuation: Array, epsilon: Array) -> _Supply:
        order = np.argsort(valuation, kind="stable")
        return _Supply(ladder, valuation[order], np.append(0.0, np.cumsum(epsilon[order])))

    def below(self, price: Array) -> Array:
        """Σ ε of the clients whose valuation is below each price, same shape as `price`."""
        return self.prefix[np.searchsorted(self.ranked, price, side="left")]

    def pay(self, fraction: Array, level: Array) -> Array:
        """What all clients together are paid at each (fraction, level)."""
        ladder, floors = self.ladder, self.ladder.floors
        price = np.asarray(floors.service_price)
        total = floors.service_share * floors.service_price * fraction * self.below(price)
        for step, weight in zip(ladder.curve.price, ladder.curve.weight, strict=True):
            scaled = level * step
            # share·price = w·min(1, x/c)·max(x, c) = w·x, whatever c is.
            total = total + ladder.rest * weight * scaled * self.below(np.maximum(scaled, floors.unit_compensation))
        return np.asarray(total)


def levels(
    ladder: Ladder, valuation: Array, epsilon: Array, budget: float, epsilon_max: float
) -> tuple[Array, Array]:
    """(clients,) the fraction of the floor and the price level that each client faces, whatever it reports.

    For each client the largest feasible level, by bisection from the feasible side: what is returned is
    within the budget to the last digit of the comparison.
    """
    supply = _Supply.of(ladder, valuation, epsilon)

    def within(fraction: Array, level: Array) -> NDArray[np.bool_]:
        own = ladder.trade(valuation, epsilon, fraction, level)[1]
        cost = supply.pay(fraction, level) - own + ladder.most(epsilon_max, fraction, level)
        return np.asarray(cost <= budget)

    zeros, ones = np.zeros(valuation.shape), np.ones(valuation.shape)
    whole = within(ones, zeros)
    fraction = np.where(whole, 1.0, _bisect(lambda u: within(u, zeros), zeros, ones))
    # Nobody can be paid more than the whole budget, so no level beyond this is feasible.
    top = np.full(valuation.shape, 2.0 * budget / (epsilon_max * ladder.rest * ladder.curve.area))
    level = np.where(whole, _bisect(lambda u: within(ones, u), zeros, top), 0.0)
    return fraction, level


def _bisect(feasible: Callable[[Array], NDArray[np.bool_]], low: Array, high: Array) -> Array:
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        ok = feasible(middle)
        low, high = np.where(ok, middle, low), np.where(ok, high, middle)
    return low
