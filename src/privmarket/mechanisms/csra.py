"""CSRA: a reverse auction that ranks clients by quality per unit of money asked."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.market.bids import Array, Bids
from privmarket.market.guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market.mechanism import Mechanism
from privmarket.market.outcome import Outcome
from privmarket.mechanisms.ranking import Ranking, count_prefix, entry


class Csra(Mechanism):
    """Ranked by quality over cost; winners sell all they offer and are paid at the first loser's rate.

    Notation: q_i = reputation·ε_i·d_i (the sums Σε and Σd in the original only rescale every q alike and
    cancel in rank and pay), b_i = v_i·ε_i, rate r_i = b_i/q_i. k is the largest with r_{k+1}·Σ_{i≤k} q_i ≤ B;
    winner i is paid r_{k+1}·q_i. A client's public accuracy serves as its reputation.

    Implements: the selection and payment rule of [Yang2024].
    """

    name: ClassVar[str] = "csra"
    guarantees = (IndividuallyRational(), BudgetFeasible(), WithinOffer(), Truthful(in_="valuation"))

    def _clear(self, bids: Bids, budget: Array) -> Outcome:
        merit = _merit(bids)
        quality = merit * bids.epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            # v/merit = b/q without the rounding of multiplying and dividing by ε; without merit: never bought.
            rate = np.where(merit > 0, bids.valuation / merit, np.inf)
        ranking = Ranking.by(rate)
        ranked, bought = ranking.key, np.cumsum(ranking.sort(quality), axis=-1)
        k = count_prefix(ranked[..., 1:] * bought[..., :-1] <= budget)
        winners = ranking.first(k)
        price = np.where(k > 0, entry(ranked, k, 0.0), 0.0)
        return Outcome(np.where(winners, bids.epsilon, 0.0), np.where(winners, price * quality, 0.0))


def _merit(bids: Bids) -> Array:
    """(..., clients) quality per unit of ε: reputation times data size, each 1 where not given."""
    merit = np.ones(bids.shape)
    if bids.data_size is not None:
        merit = merit * bids.data_size
    if bids.accuracy is not None:
        merit = merit * bids.accuracy
    return merit
