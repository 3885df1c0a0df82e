"""PAC: all winners sell the same ε, at a price set by the first client that does not win.

Notation: n = clients that take part, k = winners, 1/(n − k) = ε that each winner sells.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._ranking import Mask, count_prefix, entry


class Pac(Mechanism):
    """The k lowest valuations sell ε = 1/(n − k) each and are paid min(B/k, v_{k+1}/(n − k)).

    Clients whose cap lies below `offer_limit` stand aside before the auction, by a rule that does not look at
    valuations; k is kept so small that 1/(n − k) never exceeds the limit. The limit is part of the market's
    configuration. With 1.0 (the most that the rule can ask for) k goes up to n − 1.

    Exactly truthful in ε downwards: offering less never pays. Offering more can: a client whose cap lies below the
    limit may claim the limit, and is often asked for no more than it has.

    Implements: Algorithm 1 of [Sun2026], FairQuery of [GhoshRoth2011].
    Deviation: k ≤ n − 1, the paper divides by zero at k = n; the paper lets ε exceed a client's cap.
    """

    name: ClassVar[str] = "pac"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )

    def __init__(self, offer_limit: float = 1.0) -> None:
        if not 0 < offer_limit <= 1:
            raise ConfigurationError(
                f"pac: offer_limit is {offer_limit}: must lie in (0, 1]",
                "give the largest ε that the rule may ask for, 1 at most",
            )
        self.offer_limit = offer_limit

    def why_nothing_sold(self, bids: Bids, budget: float) -> str:
        """Too few clients offer enough ε to take part."""
        able = int((bids.epsilon >= self.offer_limit).sum())
        losers = math.ceil(1.0 / self.offer_limit - 1e-9)
        if able > losers:
            return ""
        return (
            f"only clients that offer at least offer_limit = {self.offer_limit:g} take part, {able} of "
            f"{bids.clients} here, and {losers} of them must be left out to set the price; a lower offer_limit "
            "lets more take part"
        )

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Algorithm 1 among the clients whose offer reaches the limit."""
        takes_part = bids.epsilon >= self.offer_limit
        # ceil with slack: 1/0.1 must give 10 losers, not 11.
        losers = math.ceil(1.0 / self.offer_limit - 1e-9)
        return fair_query(bids.valuation, takes_part, losers, budget, cap_at_share=True)


class PacLiteral(Mechanism):
    """PAC as printed: declared ε is ignored, so a winner may have to sell more than it offered.

    Implements: Algorithm 1 of [Sun2026].
    Deviation: k ≤ n − 1, without which Algorithm 1 divides by zero.
    """

    name: ClassVar[str] = "pac:literal"
    guarantees = (IndividuallyRational(), BudgetFeasible(), Truthful(in_="valuation"))
    sells_beyond_offers: ClassVar[bool] = True

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Algorithm 1 among all clients, whatever they offered."""
        everyone = np.ones(bids.shape, dtype=np.bool_)
        return fair_query(bids.valuation, everyone, 1, budget, cap_at_share=True)


def fair_query(valuation: Array, takes_part: Mask, losers: int, budget: Array, *, cap_at_share: bool) -> Outcome:
    """Algorithm 1 among the clients that take part, with at least `losers` of them left out.

    Args:
        valuation: (..., clients).
        takes_part: (..., clients).
        losers: n − k is at least this, so ε is at most 1/losers.
        budget: (..., 1).
        cap_at_share: whether a payment is capped at B/k, as in Algorithm 1.
    """
    n = np.count_nonzero(takes_part, axis=-1, keepdims=True)
    asked = np.where(takes_part, valuation, np.inf)
    ranked = np.sort(asked, axis=-1)
    place = np.arange(1, valuation.shape[-1] + 1)
    # v_k/(n − k) ≤ B/k, multiplied out; true for k ≤ n − losers only.
    affordable = (place <= n - losers) & (ranked * place <= budget * (n - place))
    k = count_prefix(affordable)
    winners = _cheapest(asked, ranked, k)
    share = 1.0 / np.maximum(n - k, 1)
    payment = entry(ranked, k, 0.0) * share
    if cap_at_share:
        payment = np.minimum(budget / np.maximum(k, 1), payment)
    return Outcome(np.where(winners, share, 0.0), np.where(winners, payment, 0.0))


def _cheapest(values: Array, ranked: Array, k: np.ndarray) -> Mask:
    """(..., clients) the k lowest values, ties by position. Sorting values alone is faster than an argsort."""
    last = entry(ranked, k - 1, -np.inf)
    below = values < last
    level = values == last
    room = k - np.count_nonzero(below, axis=-1, keepdims=True)
    tied = np.count_nonzero(level, axis=-1, keepdims=True)
    if np.all((tied == room) | (k == 0)):
        return np.asarray((below | level) & (k > 0))
    return np.asarray((below | (level & (np.cumsum(level, axis=-1) <= room))) & (k > 0))
