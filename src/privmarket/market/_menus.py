"""Menu curves: which share of its ε a client sells at which relative valuation.

Notation: s = v/τ, a valuation relative to the price level τ. G(s) = share sold, non-increasing, zero beyond
s_max. A curve is kept as steps, G(s) = Σ_m w_m·1{s < s_m}: the mixture that posts the unit price s_m·τ for
the share w_m of everybody's ε. Every non-increasing curve is such a mixture, or a limit of them, and with
steps each integral below is a finite sum, so that nothing is approximated in the auction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array


@dataclass(frozen=True, eq=False)
class MenuCurve:
    """A non-increasing step curve G: [0, ∞) → [0, 1], right-continuous.

    Attributes:
        price: (steps,) the relative unit prices s_m > 0, strictly increasing.
        weight: (steps,) the share w_m > 0 of ε that is bought at each of them, Σ w_m ≤ 1.
        area: ∫₀^∞ G, the most that one unit of ε can earn at price level 1.
        share_from: (steps + 1,) entry m is the share sold by a client that sells the steps from m on.
        pay_from: (steps + 1,) what such a client earns per unit of offered ε at price level 1.

    Right-continuity matters: a client exactly at a price does not sell, so total pay is left-continuous in τ
    and "the largest τ within the budget" exists.
    """

    price: Array
    weight: Array
    area: float = field(repr=False)
    share_from: Array = field(repr=False)
    pay_from: Array = field(repr=False)

    def __init__(self, price: ArrayLike, weight: ArrayLike) -> None:
        prices = np.array(price, dtype=np.float64)
        weights = np.array(weight, dtype=np.float64)
        if prices.ndim != 1 or prices.shape != weights.shape or prices.size == 0:
            raise ConfigurationError(
                f"menu curve: price {prices.shape} and weight {weights.shape} must be two lists of one length",
                "give one weight per price",
            )
        if not (np.all(prices > 0) and np.all(np.isfinite(prices)) and np.all(np.diff(prices) > 0)):
            raise ConfigurationError(
                "menu curve: prices must be finite, above 0 and strictly increasing", "sort them and drop repeats"
            )
        if not (np.all(weights > 0) and weights.sum() <= 1 + 1e-12):
            raise ConfigurationError(
                f"menu curve: weights must be above 0 and sum to at most 1, got {weights.sum():g}",
                "drop steps of weight 0 and rescale",
            )
        share_from, pay_from = (np.append(np.cumsum(t[::-1])[::-1], 0.0) for t in (weights, weights * prices))
        arrays = {"price": prices, "weight": weights, "share_from": share_from, "pay_from": pay_from}
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "area", float(prices @ weights))

    def share(self, relative: ArrayLike) -> Array:
        """G(s): the share of its ε that a client at relative valuation s sells; same shape as `relative`."""
        return np.asarray(self.share_from[np.searchsorted(self.price, relative, side="right")])

    def unit_payment(self, relative: ArrayLike) -> Array:
        """s·G(s) + ∫_s^∞ G, Myerson's payment per unit of offered ε at price level 1."""
        return np.asarray(self.pay_from[np.searchsorted(self.price, relative, side="right")])

    def surplus(self, relative: ArrayLike) -> Array:
        """∫_s^∞ G, a truthful client's utility per unit of offered ε at price level 1; convex, decreasing."""
        s = np.asarray(relative, dtype=np.float64)
        return np.asarray(self.unit_payment(s) - s * self.share(s))


POSTED_PRICE = MenuCurve([1.0], [1.0])
"""All or nothing at one price: the optimum for total ε when the distribution of valuations is regular."""


def from_function(curve: Callable[[Array], Array], limit: float, steps: int = 256) -> MenuCurve:
    """Steps on a regular grid of [0, limit] under a non-increasing function with values in [0, 1].

    The result is a menu in its own right, so truthfulness, IR and budget are exact for any number of steps;
    only its distance from `curve` depends on `steps`.
    """
    edges = np.linspace(0.0, limit, steps + 1)
    height = np.asarray(curve(edges), dtype=np.float64)
    if np.any(np.diff(height) > 1e-12) or height.max() > 1 + 1e-12 or height.min() < -1e-12:
        raise ConfigurationError(
            "menu curve: the function must fall from at most 1 to at least 0", "give a function that never rises"
        )
    # On [edge_m, edge_{m+1}) the step has the function's value at its right end: never above the function.
    drop = np.append(-np.diff(height[1:]), height[-1])
    keep = drop > 1e-15
    return MenuCurve(edges[1:][keep], drop[keep])


@dataclass(frozen=True, eq=False)
class RationCurve:
    """Prices and multiples of a ration.

    Attributes:
        price: (steps,) unit prices, above 0, strictly increasing.
        multiple: (steps,) amounts over the ration, strictly decreasing, the last one 1.
        floor: ε up to which the ration of everybody below the last price comes before any larger amount.
        ceiling: the largest ration; money that it leaves over is not spent. Where many clients offer little, a
            larger ration for the others makes a sum less accurate.
    """

    price: Array
    multiple: Array
    floor: float = 0.0
    ceiling: float = np.inf

    def __init__(self, price: ArrayLike, multiple: ArrayLike, floor: float = 0.0, ceiling: float = np.inf) -> None:
        prices = np.array(price, dtype=np.float64)
        multiples = np.array(multiple, dtype=np.float64)
        if prices.ndim != 1 or prices.shape != multiples.shape or prices.size == 0:
            raise ConfigurationError(
                f"ration menu: price {prices.shape} and multiple {multiples.shape} must be two lists of one length",
                "give one multiple per price",
            )
        if not (np.all(prices > 0) and np.all(np.isfinite(prices)) and np.all(np.diff(prices) > 0)):
            raise ConfigurationError(
                f"ration menu: prices {prices.tolist()}", "give finite prices above 0 in strictly rising order"
            )
        if not (multiples[-1] == 1 and np.all(np.diff(multiples) < 0) and np.all(np.isfinite(multiples))):
            raise ConfigurationError(
                f"ration menu: multiples {multiples.tolist()}",
                "give finite multiples in strictly falling order that end with 1, the ration",
            )
        if not 0 <= floor < np.inf:
            raise ConfigurationError(f"ration menu: floor is {floor}", "give an amount of ε, at least 0")
        if not ceiling > 0:
            raise ConfigurationError(f"ration menu: ceiling is {ceiling}", "give an amount of ε above 0")
        for name, array in (("price", prices), ("multiple", multiples)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "floor", float(floor))
        object.__setattr__(self, "ceiling", float(ceiling))

    @property
    def steps(self) -> int:
        """M, the number of steps of the curve."""
        return int(self.price.size)

    def amount(self, step: int, level: ArrayLike) -> Array:
        """a_m(ℓ): the amount of ε on offer at step m for each level ℓ; same shape as `level`."""
        return _amount(self.multiple[step], self.floor, np.asarray(level, dtype=np.float64))

    def level_of(self, step: int, amount: ArrayLike) -> Array:
        """The level ℓ at which a_m(ℓ) reaches `amount`, same shape."""
        return _level_of(self.multiple[step], self.floor, np.asarray(amount, dtype=np.float64))

    def first_step(self, valuation: ArrayLike) -> NDArray[np.intp]:
        """j, the number of steps whose price does not exceed v; M for clients that sell nothing."""
        return np.searchsorted(self.price, np.asarray(valuation, dtype=np.float64), side="right")

    def trade(self, valuation: Array, epsilon: Array, level: Array) -> tuple[Array, Array]:
        """ε sold and pay of clients that face `level`; all of one shape."""
        return _trade(self.price, self.multiple, self.floor, valuation, epsilon, level)

    def most_pay(self, epsilon_max: float, level: ArrayLike) -> Array:
        """The most that one client can be paid at `level`: who asks nothing and offers ε_max."""
        shape = np.shape(level)
        return self.trade(np.zeros(shape), np.full(shape, epsilon_max), np.asarray(level, dtype=np.float64))[1]


@dataclass(frozen=True, eq=False)
class StackedCurves:
    """The curves of many markets, so that one pass over the steps trades in all of them.

    Attributes:
        price, multiple: (steps, markets, 1); a market with fewer steps has steps in front at which nobody sells.
        floor: (markets, 1).
    """

    price: Array
    multiple: Array
    floor: Array

    @staticmethod
    def of(curves: Sequence[RationCurve]) -> StackedCurves:
        """Stacks one curve per market."""
        steps = max(curve.steps for curve in curves)
        price = np.zeros((steps, len(curves), 1))
        multiple = np.ones((steps, len(curves), 1))
        for market, curve in enumerate(curves):
            price[steps - curve.steps :, market, 0] = curve.price
            multiple[steps - curve.steps :, market, 0] = curve.multiple
        return StackedCurves(price, multiple, np.array([[curve.floor] for curve in curves]))

    def amount(self, step: int, level: Array) -> Array:
        """(markets, levels) a_m(ℓ): the amount on offer at step m in each market."""
        return _amount(self.multiple[step], self.floor, level)

    def level_of(self, step: int, amount: Array) -> Array:
        """The levels at which a_m(ℓ) reaches the amounts, (markets, amounts)."""
        return _level_of(self.multiple[step], self.floor, amount)

    def trade(self, valuation: Array, epsilon: Array, level: Array) -> tuple[Array, Array]:
        """ε sold and pay of clients that face `level`; all (markets, clients). Bit for bit `RationCurve.trade`."""
        return _trade(self.price, self.multiple, self.floor, valuation, epsilon, level)


def _amount(multiple: Array | np.float64, floor: Array | float, level: Array) -> Array:
    return level + (multiple - 1.0) * np.maximum(level - floor, 0.0)


def _level_of(multiple: Array | np.float64, floor: Array | float, amount: Array) -> Array:
    return np.asarray(np.where(amount <= floor, amount, (amount + (multiple - 1.0) * floor) / multiple))


def _trade(
    price: Array, multiple: Array, floor: Array | float, valuation: Array, epsilon: Array, level: Array
) -> tuple[Array, Array]:
    sold = np.zeros(np.shape(valuation))
    paid = np.zeros(np.shape(valuation))
    for step in reversed(range(len(price))):
        sells = valuation < price[step]
        amount = np.where(sells, np.minimum(epsilon, _amount(multiple[step], floor, level)), sold)
        paid = paid + price[step] * (amount - sold)
        sold = amount
    return sold, paid
