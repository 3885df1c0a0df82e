"""MFG-Pricing: one unit price computed from the population's distribution, no auction."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.market._bids import Array, Bids
from privmarket.market._bounds import supply_curve
from privmarket.market._distributions import Distribution, scenario
from privmarket.market._guarantees import (
    BudgetFeasible,
    CollusionProof,
    IndividuallyRational,
    Truthful,
    WithinOffer,
)
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome


class MfgPricing(Mechanism):
    """Posts the unit price π at which the population would spend the budget; a client joins iff v_i ≤ π.

    π solves π·E[ε·1{v ≤ π}] = B/N on `distribution`, so no bid and no coalition can move it: truth is dominant in
    v and in ε. The budget is met in expectation only, and not even so where the distribution is wrong: there is no
    budget guarantee.

    Implements: the mean-field price of [Hu2025].
    """

    name: ClassVar[str] = "mfg-pricing"
    guarantees = (
        IndividuallyRational(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
        CollusionProof(),
    )
    market_facts: ClassVar[tuple[str, ...]] = ("distribution",)

    def __init__(self, distribution: Distribution | str = "uniform") -> None:
        self.distribution = scenario(distribution) if isinstance(distribution, str) else distribution
        self._supply = supply_curve(self.distribution)

    def unit_price(self, budget_per_client: Array) -> Array:
        """π at a per-capita budget, same shape."""
        return self._supply.price_that_spends(budget_per_client)

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Clients at or below the posted price sell all they offer."""
        price = self.unit_price(budget / bids.clients)
        sold = np.where(bids.valuation <= price, bids.epsilon, 0.0)
        return Outcome(sold, sold * price)


class MfgPricingLiteral(Mechanism):
    """Everybody sells everything and the budget is split in proportion to ε: p_i = B·ε_i/Σε.

    Implements: the reading of [Sun2026]'s MFG-Pricing row in which R = B always. Not individually rational.
    """

    name: ClassVar[str] = "mfg-pricing:literal"
    guarantees = (BudgetFeasible(), WithinOffer())

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Everybody sells; pay is the budget in proportion to ε."""
        share = bids.epsilon / bids.epsilon.sum(axis=-1, keepdims=True)
        return Outcome(bids.epsilon.copy(), budget * share)
