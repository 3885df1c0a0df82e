"""A rule whose sold ε is scaled so that every round sells the same mean ε: matched runs that are really matched."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome

_BISECTIONS = 80


class MatchedEpsilon(Mechanism):
    """Another rule's sellers and payments, with everyone's ε times one factor, at most what was offered.

    Args:
        rule: who sells and is paid what.
        mean_epsilon: Σ sold ε over all bidders, divided by their number; met in every market.

    Implements: the "matched-ε̄" block of RQ4 of [Sun2026].
    Deviation: the factor is found for every round; the paper's text says matched and raw values coincide.
    """

    name: ClassVar[str] = "matched"

    def __init__(self, rule: Mechanism, mean_epsilon: float) -> None:
        self.rule, self.mean_epsilon = rule, mean_epsilon

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The other rule's sellers and payments, ε scaled to the wanted mean."""
        outcome = self.rule.clear(bids, budget)
        wanted = self.mean_epsilon * bids.clients
        most = np.where(outcome.epsilon > 0, bids.epsilon, 0.0).sum(axis=-1)
        if np.any(most < wanted):
            raise ConfigurationError(
                f"{self.rule.name}: its sellers offer {float(most.min()):.4g} ε, {wanted:.4g} are to be sold",
                "match at a smaller mean ε",
            )
        return Outcome(_scaled(outcome.epsilon, bids.epsilon, wanted), outcome.payment.copy())


def _scaled(sold: Array, offered: Array, wanted: float) -> Array:
    """(..., clients) min(c·sold, offered) with the c that makes them sum to `wanted`."""
    ratio = np.divide(offered, sold, out=np.zeros(sold.shape), where=sold > 0)
    low, high = np.zeros((*sold.shape[:-1], 1)), ratio.max(axis=-1, keepdims=True)
    for _ in range(_BISECTIONS):
        c = 0.5 * (low + high)
        enough = np.minimum(c * sold, offered).sum(axis=-1, keepdims=True) >= wanted
        low, high = np.where(enough, low, c), np.where(enough, c, high)
    return np.asarray(np.minimum(high * sold, offered))
