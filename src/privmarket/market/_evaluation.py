"""How outcomes are judged, in one place: who is underpaid, what is over budget, which gains are more than rounding.

Audits, training, the reproduction of the paper and the figures that ship with weights all count by these
definitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privmarket._plans import TOLERANCE
from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, WithinOffer, shortfall
from privmarket.market._outcome import Outcome


@dataclass(frozen=True)
class Merit:
    """What a rule did on a batch of markets. Sums are means per market.

    Attributes:
        underpaid: share of (client, market) pairs paid less than their cost v·ε.
        over_budget: share of markets that spend more than the budget.
        worst_overspend: the largest spend above the budget, as a share of the budget; 0 where none is.
        over_offer: share of (client, market) pairs that sell more ε than they offered.
        epsilon: ε bought.
        spend: money spent.
        welfare: the clients' surplus Σ (p − v·ε).
        participation: share of (client, market) pairs that sell something.
        mean_payment: money per client, over all clients.
    """

    underpaid: float
    over_budget: float
    worst_overspend: float
    over_offer: float
    epsilon: float
    spend: float
    welfare: float
    participation: float
    mean_payment: float

    @property
    def epsilon_per_money(self) -> float:
        """ε bought per unit of money spent, 0 where nothing was spent."""
        return self.epsilon / self.spend if self.spend > 0 else 0.0


def judge(types: Bids, outcome: Outcome, budget: float) -> Merit:
    """The figures of an outcome at the clients' true types, both (..., clients)."""
    column = np.full((*types.shape[:-1], 1), budget)
    overspend = BudgetFeasible().excess(types, outcome, column)
    return Merit(
        underpaid=_share(IndividuallyRational().excess(types, outcome, column)),
        over_budget=_share(overspend),
        worst_overspend=float(max(overspend.max(), 0.0)),
        over_offer=_share(WithinOffer().excess(types, outcome, column)),
        epsilon=float(outcome.total_epsilon.mean()),
        spend=float(outcome.spend.mean()),
        welfare=float(outcome.welfare(types).mean()),
        participation=float((outcome.epsilon > 0).mean()),
        mean_payment=float(outcome.payment.mean()),
    )


def _share(excess: Array) -> float:
    return float((excess > TOLERANCE).mean())


def underpaid_share(cost: Array, payment: Array, coin: float = 0.0) -> float:
    """Share of sales paid less than their cost; 0 where nothing was sold.

    Args:
        coin: the unit that payments were rounded down to, which takes almost one from each; two are allowed.
    """
    return _share(shortfall(cost, payment + 2 * coin)) if cost.size else 0.0


def beyond_rounding(gain: float, budget: float) -> bool:
    """Whether a gain in a market of this budget is more than rounding can make."""
    return gain > TOLERANCE * budget


def gain_shares(gain: Array, mean_payment: float, budget: float) -> Array:
    """Gains over the mean payment, same shape; what rounding alone makes counts as 0.

    Where nobody was paid, the gains themselves.
    """
    real = np.where(gain > TOLERANCE * budget, gain, 0.0)
    return real / mean_payment if mean_payment > 0 else real
