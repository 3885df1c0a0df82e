"""VCG for a fixed number of sellers, and the (k+1)-price rule with a budget, which is often called VCG as well.

Notation: b_i = v_i·ε_i, the total that client i asks for its whole offer.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._pac import fair_query
from privmarket.mechanisms._ranking import Ranking, count_prefix, entry


class Vcg(Mechanism):
    """The k lowest total costs sell all they offer; each is paid the cost of the first one left out.

    k is fixed before the auction (default: half of the clients). It minimises cost for that k and is truthful
    in valuations, but knows no budget, and a client can sell less ε for the same pay: it is not truthful in ε.

    Implements: the VCG row of Sec. VIII of [Sun2026], after [Vickrey1961], [Clarke1971], [Groves1973].
    """

    name: ClassVar[str] = "vcg"
    guarantees = (IndividuallyRational(), WithinOffer(), Truthful(in_="valuation"))

    def __init__(self, winners: int | None = None) -> None:
        if winners is not None and winners < 1:
            raise ConfigurationError(
                f"vcg: winners is {winners}: must be at least 1",
                "give a whole number, or leave it out for half of the clients",
            )
        self.winners = winners

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The fixed number of lowest total costs wins and is paid the next one."""
        k = bids.clients // 2 if self.winners is None else self.winners
        if k >= bids.clients and self.winners is not None:
            raise ConfigurationError(
                f"vcg: {k} winners out of {bids.clients} clients",
                f"give at most {bids.clients - 1}: somebody must be left out to set the price",
            )
        return _pay_first_loser(bids, np.full((*bids.shape[:-1], 1), k))


class KPlusOnePrice(Mechanism):
    """The largest k for which k times the (k+1)-th lowest total cost fits the budget; that cost is the pay.

    The others' costs alone fix k and the price that a winner gets, so it is truthful in valuations. It is not
    VCG, which has no budget, and it is not truthful in ε for the same reason as VCG.
    """

    name: ClassVar[str] = "k-plus-one-price"
    guarantees = (IndividuallyRational(), BudgetFeasible(), WithinOffer(), Truthful(in_="valuation"))

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """As many of the lowest total costs as the budget can pay at the next one."""
        ranked = np.sort(bids.valuation * bids.epsilon, axis=-1)
        place = np.arange(1, bids.clients)
        return _pay_first_loser(bids, count_prefix(ranked[..., 1:] * place <= budget))


class VcgLiteral(Mechanism):
    """Table IV's VCG row: PAC's winners and ε, each paid what the next client would have cost.

    Implements: the reading under which Table IV's VCG row of [Sun2026] equals its PAC row.
    """

    name: ClassVar[str] = "vcg:literal"
    guarantees = (IndividuallyRational(),)
    sells_beyond_offers: ClassVar[bool] = True

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """PAC's winners, each paid what the next client would have cost."""
        everyone = np.ones(bids.shape, dtype=np.bool_)
        return fair_query(bids.valuation, everyone, 1, budget, cap_at_share=False)


def _pay_first_loser(bids: Bids, k: np.ndarray) -> Outcome:
    """The k lowest total costs sell their offers and are paid the (k+1)-th. k: (..., 1), k < clients."""
    cost = bids.valuation * bids.epsilon
    ranking = Ranking.by(cost)
    winners = ranking.first(k)
    price = entry(ranking.key, k, 0.0)
    return Outcome(np.where(winners, bids.epsilon, 0.0), np.where(winners, price, 0.0))
