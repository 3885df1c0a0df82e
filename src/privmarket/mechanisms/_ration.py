"""A ration at a posted price: everybody below the price sells the same small amount of ε.

Notation: p = unit price, e = B/(N·p) = the ration.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from privmarket._settings import DELTA, HETEROGENEITY, HONEST_SHARE, KAPPA
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._distributions import Distribution, scenario
from privmarket.market._guarantees import (
    BudgetFeasible,
    CollusionProof,
    IndividuallyRational,
    Truthful,
    WithinOffer,
)
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import AggregateError
from privmarket.market._outcome import Outcome
from privmarket.market._ration_design import flat_price


class Ration(Mechanism):
    """Whoever asks less than p sells min(ε, B/(N·p)) at the unit price p.

    Price and ration are fixed before the bids, so truth is dominant in v (a client sells iff p covers its cost)
    and in ε (utility (p − v)·min(ε, e) does not fall with ε). N sales of e at p cost B, so the budget holds
    whoever sells; what clients above the price would have been paid is not spent. O(N).

    Args:
        unit_price: p in money per unit of ε; by default the price that gives the least aggregate error for
            `distribution`.
        distribution: public belief about clients, or its name; used only where `unit_price` is not given.
        kappa, heterogeneity, honest_share, delta: of `AggregateError`, for that choice.

    Implements: the flat price with a ration in docs/theory/aggregate-trust.md.
    Assumes: a client cannot offer more ε than it has (its wallet refuses); it may offer less.
    """

    name: ClassVar[str] = "ration"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
        CollusionProof(),
    )
    market_facts: ClassVar[tuple[str, ...]] = ("distribution",)

    def __init__(
        self,
        unit_price: float | None = None,
        distribution: Distribution | str = "uniform",
        kappa: float = KAPPA,
        heterogeneity: float = HETEROGENEITY,
        honest_share: float = HONEST_SHARE,
        delta: float = DELTA,
    ) -> None:
        self.unit_price = checked_price("ration", "unit_price", unit_price)
        self.distribution = scenario(distribution) if isinstance(distribution, str) else distribution
        self.objective = AggregateError(kappa, heterogeneity, honest_share, delta)

    def price_for(self, clients: int, budget: float) -> float:
        """p for so many clients and so much money."""
        return self.unit_price or flat_price(self.distribution, clients, budget, self.objective)

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Clients below the price sell a ration, or all they offer where that is less."""
        amounts, place = np.unique(budget, return_inverse=True)
        prices = np.array([self.price_for(bids.clients, float(amount)) for amount in amounts])
        price = prices[place].reshape(budget.shape)
        ration = budget / (bids.clients * price)
        sold = np.where(bids.valuation < price, np.minimum(bids.epsilon, ration), 0.0)
        return Outcome(sold, sold * price)

    def own_pieces(self, bids: Bids, budget: float) -> tuple[Array, Array]:
        """What a client faces: (clients, 1) the price, and (clients, 1) the ration."""
        price = self.price_for(bids.clients, budget)
        return np.full((bids.clients, 1), price), np.full((bids.clients, 1), budget / (bids.clients * price))

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """All N deviations at once in O(N): no report changes what another client gets."""
        return self.run(reports, budget)


def checked_price(rule: str, name: str, price: float | None) -> float | None:
    """`price` itself; refused unless it is None or finite and above 0."""
    if price is not None and not 0 < price < np.inf:
        raise ConfigurationError(f"{rule}: {name} is {price}", "give money per unit of ε, above 0")
    return None if price is None else float(price)
