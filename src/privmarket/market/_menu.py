"""Menu curves: which share of its ε a client sells at which relative valuation.

Notation: s = v/τ, a valuation relative to the price level τ. G(s) = share sold, non-increasing, zero beyond
s_max. A curve is kept as steps, G(s) = Σ_m w_m·1{s < s_m}: the mixture that posts the unit price s_m·τ for
the share w_m of everybody's ε. Every non-increasing curve is such a mixture, or a limit of them, and with
steps each integral below is a finite sum, so that nothing is approximated in the auction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

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
        prices, weights = np.array(price, dtype=np.float64), np.array(weight, dtype=np.float64)
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
"""All or nothing at one price: the optimum for total ε when the law of valuations is regular."""


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
