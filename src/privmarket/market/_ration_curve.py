"""Ration menus: which *amount* of ε a client sells at which unit price, the same amounts for everybody.

Notation: steps m = 1 … M with unit prices p_1 < … < p_M and multiples k_1 > … > k_M = 1. ℓ = level, the ration in
ε, at most the ceiling; f = service floor. The amount on offer at step m is a_m(ℓ) = ℓ + (k_m − 1)·max(ℓ − f, 0).

A client with valuation v and offer ε sells min(ε, a_j), j the first step with v < p_j, and is paid p_m per unit
for the slice between a_{m+1} and a_m, for every m ≥ j (a_{M+1} = 0). So the first ℓ units earn the highest price,
and only clients that ask less sell the slices beyond. A mean-field menu sells *shares* of each offer instead, so
that who offers more also counts for more in the aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array


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
        prices, multiples = np.array(price, dtype=np.float64), np.array(multiple, dtype=np.float64)
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
        price, multiple = np.zeros((steps, len(curves), 1)), np.ones((steps, len(curves), 1))
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
    sold, paid = np.zeros(np.shape(valuation)), np.zeros(np.shape(valuation))
    for step in reversed(range(len(price))):
        sells = valuation < price[step]
        amount = np.where(sells, np.minimum(epsilon, _amount(multiple[step], floor, level)), sold)
        paid = paid + price[step] * (amount - sold)
        sold = amount
    return sold, paid
