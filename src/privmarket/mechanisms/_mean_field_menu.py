"""The mean-field menu: a curve of unit prices, scaled for each client by what the *others* cost.

Notation: G = menu curve, s = v/τ, τ = price level, Ḡ = ∫G, T(τ) = Σ_j what client j is paid at level τ,
τ_{−i} = the largest τ with T_{−i}(τ) + ε_max·τ·Ḡ ≤ B, the level that client i faces.

τ_{−i} does not depend on client i's report, so truth is dominant in v (Myerson) and in ε (utility is the
offered ε times a non-negative number). The reserve ε_max·τ·Ḡ covers whatever i itself may be paid, so every
τ_{−i} is at most the level at which all together cost B: the budget holds. See docs/theory/mean-field-menu.md.
"""

from __future__ import annotations

import weakref
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from privmarket._settings import EPSILON_MAX
from privmarket.market._bids import Array, Bids
from privmarket.market._facts import offer_limit
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism, budget_column
from privmarket.market._menus import POSTED_PRICE, MenuCurve
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._levels import LIST_ALL, price_levels, price_levels_of_many, steps_unsold
from privmarket.mechanisms._ranking import Ranking


class MeanFieldMenu(Mechanism):
    """Exactly truthful in v and ε, individually rational and within budget, for any menu curve.

    Args:
        curve: which share of its ε a client sells at which relative valuation.
        epsilon_max: public limit on offers, a constant of the market; an offer above it is refused.

    Implements: the per-client price level of the mean-field menu; payments after [Myerson1981].
    Assumes: a client cannot offer more ε than it has (its wallet refuses); it may offer less.
    """

    name: ClassVar[str] = "mean-field-menu"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )
    market_facts: ClassVar[tuple[str, ...]] = ("epsilon_max",)

    def __init__(self, curve: MenuCurve = POSTED_PRICE, epsilon_max: float = EPSILON_MAX) -> None:
        self.curve = curve
        self.epsilon_max = offer_limit(epsilon_max)
        self._last: tuple[weakref.ref[Bids], Array, Array] | None = None

    def price_levels(self, bids: Bids, budget: ArrayLike) -> Array:
        """(..., clients) τ_{−i}, the price level that each client faces whatever it reports."""
        column = budget_column(budget, bids.shape)
        # Bids never change, and an attack asks thousands of times about the same market: keep the last answer.
        if self._last is not None and self._last[0]() is bids and np.array_equal(self._last[1], column):
            return self._last[2]
        bids.refuse_above(self.epsilon_max)
        levels = self._levels(bids, column)
        levels.setflags(write=False)
        self._last = (weakref.ref(bids), column, levels)
        return levels

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Each client meets the price level that the others' bids allow."""
        bids.refuse_above(self.epsilon_max)
        if len(bids.shape) > 1 and self._lists_all(bids):
            return Outcome(*self._at(bids.valuation, bids.epsilon, self._levels(bids, budget)))
        epsilon = np.zeros(bids.shape)
        payment = np.zeros(bids.shape)
        for market in np.ndindex(bids.shape[:-1]):
            # In rank order, those who can sell at all come first: the others are never touched.
            ranking = Ranking.by(bids.valuation[market])
            offered = bids.epsilon[market][ranking.order]
            money = float(budget[market][0])
            facing, _ = price_levels(ranking.key, offered, money, self.curve, self.epsilon_max)
            can_sell = ranking.order[: facing.size]
            sold, paid = self._at(ranking.key[: facing.size], offered[: facing.size], facing)
            epsilon[market][can_sell] = sold
            payment[market][can_sell] = paid
        return Outcome(epsilon, payment)

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """All N deviations at once in O(N): no report moves the level that its own client faces."""
        reports.refuse_above(self.epsilon_max)
        return Outcome(*self._at(reports.valuation, reports.epsilon, self.price_levels(bids, budget)))

    def own_pieces(self, bids: Bids, budget: float) -> tuple[Array, Array]:
        """What a client faces in one market: (clients, steps) posted prices, and no kinks in its offer."""
        level = self.price_levels(bids, budget)
        return level[:, None] * self.curve.price, np.empty((bids.clients, 0))

    def why_nothing_sold(self, bids: Bids, budget: float) -> str:
        """The reserve for one more offer of epsilon_max leaves a price level that nobody sells at."""
        level = float(self.price_levels(bids, budget).max())
        return (
            f"the budget must also cover one more offer at the limit (epsilon_max = {self.epsilon_max:g}), so the "
            f"price per unit of ε stays at {level * self.curve.price.max():.4g} or below, and the cheapest client "
            f"asks {float(bids.valuation.min()):.4g}; a lower epsilon_max leaves more for the price"
        )

    def _lists_all(self, bids: Bids) -> bool:
        """Whether a market has so few breakpoints that all are listed; then many are cleared together."""
        return bids.clients * self.curve.price.size <= LIST_ALL

    def _levels(self, bids: Bids, budget: Array) -> Array:
        """(..., clients) τ_{−i}. budget: (..., 1)."""
        if len(bids.shape) > 1 and self._lists_all(bids):
            return price_levels_of_many(bids.valuation, bids.epsilon, budget, self.curve, self.epsilon_max)
        levels = np.empty(bids.shape)
        for market in np.ndindex(bids.shape[:-1]):
            ranking = Ranking.by(bids.valuation[market])
            offered = bids.epsilon[market][ranking.order]
            money = float(budget[market][0])
            facing, rest = price_levels(ranking.key, offered, money, self.curve, self.epsilon_max)
            levels[market][ranking.order[: facing.size]] = facing
            levels[market][ranking.order[facing.size :]] = rest
        return levels

    def _at(self, valuation: Array, epsilon: Array, level: Array) -> tuple[Array, Array]:
        """ε sold and pay at given price levels; all of one shape."""
        unsold = steps_unsold(valuation, level, self.curve)
        return epsilon * self.curve.share_from[unsold], epsilon * level * self.curve.pay_from[unsold]
