"""Proportional share: everybody below one unit price sells all; the budget fixes the price."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._ranking import Ranking, count_prefix, entry


class ProportionalShare(Mechanism):
    """The largest k with v_k ≤ B/Σ_{i≤k} ε_i; winners sell all they offer at min(B/Σ_{i≤k} ε_i, v_{k+1}).

    That unit price is each winner's own critical valuation, so truth is dominant in v. It is not in ε: a
    client that offers less lowers Σε and can raise the unit price.

    Implements: the proportional share rule of [Singer2010], with sizes as in [ChenGravinLu2011].
    """

    name: ClassVar[str] = "proportional-share"
    guarantees = (IndividuallyRational(), BudgetFeasible(), WithinOffer(), Truthful(in_="valuation"))

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The cheapest clients sell all they offer at one unit price."""
        ranking = Ranking.by(bids.valuation)
        ranked = ranking.key
        bought = np.cumsum(ranking.sort(bids.epsilon), axis=-1)
        k = count_prefix(ranked * bought <= budget)
        winners = ranking.first(k)
        price = np.minimum(budget / entry(bought, k - 1, 1.0), entry(ranked, k, np.inf))
        sold = np.where(winners, bids.epsilon, 0.0)
        return Outcome(sold, sold * price)
