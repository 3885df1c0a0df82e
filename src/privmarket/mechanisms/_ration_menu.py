"""The ration menu: fixed prices, and a ration of ε that depends on what the *others* cost.

Notation: see `market._menus`. T(ℓ) = what all clients are paid at level ℓ, R(ℓ) = the most that one client
can be paid. Client i faces ℓ_{−i} = the largest ℓ with T_{−i}(ℓ) + R(ℓ) ≤ B, up to ε_max and the curve's ceiling.

ℓ_{−i} does not depend on client i's report, so truth is dominant in v and in ε; and ℓ_{−i} is at most the level
at which all together cost B, so the budget holds. A client whose ℓ_{−i} is ε_max could sell everything and money
is still left: it faces the price level of the mean-field menu instead, which is at least p_M then. Proofs:
docs/theory/aggregate-trust.md.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privmarket._settings import EPSILON_MAX
from privmarket.market._bids import Array, Bids
from privmarket.market._facts import offer_limit
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism, budget_column
from privmarket.market._menus import RationCurve, StackedCurves
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._levels import ration_levels, ration_levels_of_many
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu

# Up to so many clients, many markets are cleared together; above, sorting each of them alone is faster.
_SMALL_MARKET = 64


class RationMenu(Mechanism):
    """Exactly truthful in v and ε, individually rational and within budget, for any ration curve.

    Subclasses say which curve a market of a public description gets.

    Args:
        epsilon_max: public limit on offers, a constant of the market; an offer above it is refused.

    Assumes: a client cannot offer more ε than it has (its wallet refuses); it may offer less.
    """

    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )

    def __init__(self, epsilon_max: float = EPSILON_MAX) -> None:
        self.epsilon_max = offer_limit(epsilon_max)
        self._last: tuple[weakref.ref[Bids], Array, Facing] | None = None

    @abstractmethod
    def ration_curve(self, clients: int, budget: float) -> RationCurve:
        """The curve for so many clients and so much money. It must not depend on their bids."""

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Each client meets the ration that the others' bids leave money for."""
        return Outcome(*self.facing(bids, budget).trade(bids.valuation, bids.epsilon))

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """All N deviations at once in O(N): no report moves what its own client faces."""
        reports.refuse_above(self.epsilon_max)
        column = budget_column(budget, bids.shape)
        # An attack asks thousands of times about the same bids, which cannot change.
        if self._last is None or self._last[0]() is not bids or not np.array_equal(self._last[1], column):
            self._last = weakref.ref(bids), column, self.facing(bids, column)
        return Outcome(*self._last[2].trade(reports.valuation, reports.epsilon))

    def own_pieces(self, bids: Bids, budget: float) -> tuple[Array, Array]:
        """What a client faces in one market: (clients, prices), and (clients, kinks) amounts on offer to it."""
        return face(self.ration_curve(bids.clients, budget), bids, budget, self.epsilon_max).pieces()

    def facing(self, bids: Bids, budget: Array) -> Facing:
        """What the clients of each market face, whatever they report themselves. budget: (..., 1)."""
        bids.refuse_above(self.epsilon_max)
        money = budget.reshape(-1, 1)
        curves = [self.ration_curve(bids.clients, float(amount)) for amount in money[:, 0]]
        if len(bids.shape) == 1:
            return face(curves[0], bids, float(money[0, 0]), self.epsilon_max)
        return face_all(curves, bids, money, self.epsilon_max)


@dataclass(frozen=True, eq=False)
class Facing:
    """What clients face, whatever they report, in one market or in many.

    Attributes:
        curve: the menu, or the menus of all markets.
        ration: (..., clients) ℓ_{−i}.
        unit_price: (..., clients) what a unit of ε earns where ℓ_{−i} is ε_max, so that all can be sold; 0
            elsewhere.
    """

    curve: RationCurve | StackedCurves
    ration: Array
    unit_price: Array

    def pieces(self) -> tuple[Array, Array]:
        """In one market: (clients, prices) that a client faces, and (clients, kinks) amounts on offer to it."""
        curve = self.curve
        assert isinstance(curve, RationCurve)
        prices = np.broadcast_to(curve.price, (self.ration.size, curve.steps))
        amounts = [curve.amount(step, self.ration) for step in range(curve.steps)]
        return np.append(prices, self.unit_price[:, None], axis=1), np.stack(amounts, axis=1)

    def trade(self, valuation: Array, epsilon: Array) -> tuple[Array, Array]:
        """(..., clients) ε sold and pay of these reports."""
        flat = (-1, valuation.shape[-1]) if isinstance(self.curve, StackedCurves) else valuation.shape
        found = self.curve.trade(valuation.reshape(flat), epsilon.reshape(flat), self.ration.reshape(flat))
        sold, paid = (array.reshape(valuation.shape) for array in found)
        everything = self.unit_price > 0
        sells = valuation < self.unit_price
        return (
            np.where(everything, np.where(sells, epsilon, 0.0), sold),
            np.where(everything, np.where(sells, epsilon * self.unit_price, 0.0), paid),
        )


def face(curve: RationCurve, bids: Bids, budget: float, epsilon_max: float) -> Facing:
    """What each client of one market, (clients,), faces."""
    ration, saturated = ration_levels(curve, bids.valuation, bids.epsilon, budget, epsilon_max)
    unit_price = np.zeros(bids.shape)
    if saturated.any():
        levels = MeanFieldMenu(epsilon_max=epsilon_max).price_levels(bids, budget)
        # Equal to p_M or above in exact arithmetic.
        unit_price = np.where(saturated, np.maximum(levels, curve.price[-1]), 0.0)
    return Facing(curve, ration, unit_price)


def face_all(curves: list[RationCurve], bids: Bids, budget: Array, epsilon_max: float) -> Facing:
    """What each client of many markets, (..., clients), faces. budget: (markets, 1)."""
    stacked = StackedCurves.of(curves)
    if bids.clients > _SMALL_MARKET:
        flat = (bids[market] for market in np.ndindex(bids.shape[:-1]))
        found = [face(*row, epsilon_max) for row in zip(curves, flat, budget[:, 0].tolist(), strict=True)]
        ration, unit_price = (
            np.reshape([getattr(menu, name) for menu in found], bids.shape) for name in ("ration", "unit_price")
        )
        return Facing(stacked, ration, unit_price)
    rows = Bids(bids.valuation.reshape(-1, bids.clients), bids.epsilon.reshape(-1, bids.clients))
    ration, saturated = ration_levels_of_many(curves, rows.valuation, rows.epsilon, budget, epsilon_max)
    levels = MeanFieldMenu(epsilon_max=epsilon_max).price_levels(rows, budget[:, 0])
    unit_price = np.where(saturated, np.maximum(levels, stacked.price[-1]), 0.0)
    return Facing(stacked, ration.reshape(bids.shape), unit_price.reshape(bids.shape))
