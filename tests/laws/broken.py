"""Rules that are wrong on purpose: each kind of check must catch its own."""

from __future__ import annotations

import numpy as np

from privmarket.market._guarantees import (
    BudgetFeasible,
    CollusionProof,
    IndividuallyRational,
    Truthful,
    WithinOffer,
)
from privmarket.market._mechanism import Mechanism
from privmarket.market._menus import RationCurve
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._pac import Pac
from privmarket.mechanisms._proportional_share import ProportionalShare
from privmarket.mechanisms._ranking import Ranking, count_prefix, entry


class FirstPrice(Mechanism):
    """Pays each winner what it asked, and claims that nobody would ask for more."""

    name = "broken:first-price"
    guarantees = (Truthful(in_="valuation"),)

    def clear(self, bids, budget):
        outcome = ProportionalShare().clear(bids, budget)
        return Outcome(outcome.epsilon.copy(), outcome.epsilon * bids.valuation)


class OffByOneThreshold(Mechanism):
    """Proportional share, but the price looks at the last winner instead of the first loser."""

    name = "broken:off-by-one"
    guarantees = (Truthful(in_="valuation"),)

    def clear(self, bids, budget):
        ranking = Ranking.by(bids.valuation)
        bought = np.cumsum(ranking.sort(bids.epsilon), axis=-1)
        k = count_prefix(ranking.key * bought <= budget)
        price = np.minimum(budget / entry(bought, k - 1, 1.0), entry(ranking.key, k - 1, np.inf))
        sold = np.where(ranking.first(k), bids.epsilon, 0.0)
        return Outcome(sold, sold * price)


class RoundsUp(Mechanism):
    """Proportional share with payments rounded up to cents: overspends by rounding."""

    name = "broken:rounds-up"
    guarantees = (BudgetFeasible(),)

    def clear(self, bids, budget):
        outcome = ProportionalShare().clear(bids, budget)
        return Outcome(outcome.epsilon.copy(), np.ceil(outcome.payment * 100) / 100)


class RoundsDownTooMuch(Mechanism):
    """Payments rounded down to whole units: somebody gets less than its cost."""

    name = "broken:underpays"
    guarantees = (IndividuallyRational(),)

    def clear(self, bids, budget):
        outcome = ProportionalShare().clear(bids, budget)
        return Outcome(outcome.epsilon.copy(), np.floor(outcome.payment))


class PaysHalfTheCost(ProportionalShare):
    """Pays half of what each winner asked."""

    name = "broken:half"
    guarantees = (IndividuallyRational(),)

    def clear(self, bids, budget):
        outcome = super().clear(bids, budget)
        return Outcome(outcome.epsilon.copy(), 0.5 * bids.valuation * outcome.epsilon)


class ClaimsEpsilonTruth(ProportionalShare):
    """Proportional share, claiming what it is not: truthful in ε."""

    name = "broken:epsilon"
    guarantees = (Truthful(in_="epsilon"),)


class TakesMoreThanOffered(ProportionalShare):
    """Buys a little more ε than was offered."""

    name = "broken:takes-more"
    guarantees = (WithinOffer(),)
    sells_beyond_offers = True  # so that `run` leaves it to the promise's own check

    def clear(self, bids, budget):
        outcome = super().clear(bids, budget)
        return Outcome(outcome.epsilon * 1.001, outcome.payment.copy())


class LooksAtOwnReport(Mechanism):
    """Posts half of the highest report as the price: the highest bidder moves it."""

    name = "broken:own-report"
    guarantees = (Truthful(in_="valuation"),)

    def clear(self, bids, budget):
        price = bids.valuation.max(axis=-1, keepdims=True) * 1.5
        sold = np.where(bids.valuation <= price, bids.epsilon, 0.0)
        return Outcome(sold, sold * price)


class ClaimsCollusionProof(Pac):
    """PAC, claiming what it is not: the price is the first loser's, whom the winners can pay to ask for more."""

    name = "broken:collusion"
    guarantees = (CollusionProof(),)


class OwnRation(Mechanism):
    """A posted price with a ration that grows with the client's own report."""

    name = "broken:own-ration"
    guarantees = (Truthful(in_="valuation"), Truthful(in_="epsilon"))
    breaks = ("truthful in v",)

    def clear(self, bids, budget):
        ration = budget / bids.clients * (0.1 + bids.valuation)
        sold = np.where(bids.valuation < 0.9, np.minimum(bids.epsilon, ration), 0.0)
        return Outcome(sold, sold * 0.9)


class RationFromAllBids(Mechanism):
    """A two-step menu whose ration is the largest at which all together fit, the client itself included."""

    name = "broken:ration-from-all"
    curve = RationCurve([0.4, 0.7], [30.0, 1.0])

    def clear(self, bids, budget):
        low, high = np.zeros((*bids.shape[:-1], 1)), np.full((*bids.shape[:-1], 1), 5.0)
        for _ in range(30):
            middle = 0.5 * (low + high)
            paid = self.curve.trade(bids.valuation, bids.epsilon, np.broadcast_to(middle, bids.shape))[1]
            fits = paid.sum(axis=-1, keepdims=True) <= budget
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return Outcome(*self.curve.trade(bids.valuation, bids.epsilon, np.broadcast_to(low, bids.shape)))


BROKEN = (
    FirstPrice,
    OffByOneThreshold,
    RoundsUp,
    RoundsDownTooMuch,
    PaysHalfTheCost,
    ClaimsEpsilonTruth,
    TakesMoreThanOffered,
    LooksAtOwnReport,
    ClaimsCollusionProof,
    OwnRation,
)
