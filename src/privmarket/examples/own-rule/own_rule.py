"""Two auction rules of our own: a function for one market, and a class for batches of markets."""

from __future__ import annotations

import numpy as np

import privmarket as pm
from privmarket.market import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer


def cheapest_first(bids, budget):
    """Buys from the cheapest client on, pays each what it asks, and stops when the money is spent.

    bids: `bids.valuation` and `bids.epsilon` have shape (clients,); budget is a number.
    Returns ε sold and money paid, (clients,) each.
    """
    order = np.argsort(bids.valuation, kind="stable")
    cost = (bids.valuation * bids.epsilon)[order]
    left = budget - (np.cumsum(cost) - cost)
    share = np.clip(left / np.maximum(cost, 1e-12), 0.0, 1.0)
    sold = np.empty(bids.clients)
    sold[order] = share * bids.epsilon[order]
    return sold, sold * bids.valuation


class SplitMarket(pm.Mechanism):
    """Two half markets, each with half the budget, each paying the price that the other half's bids give.

    No report moves the price that its own client faces, so neither a false valuation nor a withheld ε pays.
    Clients of a half are served in the order of their positions until its money is spent.
    """

    name = "split-market"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )

    def clear(self, bids, budget):
        """bids: every field (..., clients); budget: (..., 1). Leading indices are independent markets."""
        epsilon, payment = np.zeros(bids.shape), np.zeros(bids.shape)
        if bids.clients > 1:
            halves = np.arange(0, bids.clients, 2), np.arange(1, bids.clients, 2)
            for mine, other in (halves, halves[::-1]):
                price = self.unit_price(bids[..., other], budget / 2)
                wanted = np.where(bids.valuation[..., mine] <= price, bids.epsilon[..., mine], 0.0)
                before = price * (np.cumsum(wanted, axis=-1) - wanted)
                with np.errstate(divide="ignore", invalid="ignore"):
                    affordable = np.where(price > 0, (budget / 2 - before) / price, 0.0)
                sold = np.clip(affordable, 0.0, wanted)
                epsilon[..., mine], payment[..., mine] = sold, price * sold
        return pm.Outcome(epsilon, payment)

    def unit_price(self, bids, budget):
        """(..., 1) what proportional share pays per unit of ε in this half; 0 where it buys nothing."""
        outcome = pm.mechanism("proportional-share").clear(bids, budget)
        sold = outcome.epsilon > 0
        price = np.divide(outcome.payment, outcome.epsilon, out=np.zeros(bids.shape), where=sold)
        return price.max(axis=-1, keepdims=True)
