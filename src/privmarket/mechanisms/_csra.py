"""CSRA: a reverse auction that ranks clients by quality per unit of money asked."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._ranking import Mask, Ranking, count_prefix, entry


class Csra(Mechanism):
    """Ranked by quality over cost; winners sell all they offer and are paid at the first loser's rate.

    Notation: q_i = reputation·ε_i·d_i (the sums Σε and Σd in the original only rescale every q alike and
    cancel in rank and pay), b_i = v_i·ε_i, rate r_i = b_i/q_i. k is the largest with r_{k+1}·Σ_{i≤k} q_i ≤ B;
    winner i is paid r_{k+1}·q_i. A client's public accuracy serves as its reputation.

    Implements: the selection and payment rule of [Yang2024].
    """

    name: ClassVar[str] = "csra"
    guarantees = (IndividuallyRational(), BudgetFeasible(), WithinOffer(), Truthful(in_="valuation"))

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Winners sell all they offer, paid at the first loser's rate."""
        winners, payment, _ = _winners_and_pay(bids, budget)
        return Outcome(np.where(winners, bids.epsilon, 0.0), payment)


class CsraLiteral(Mechanism):
    """The variant behind the paper's CSRA row: the same winners and pay, but each winner sells ε = 1/(n − k).

    That amount is PAC's and has nothing to do with what a client offered or is paid for. With data sizes drawn from
    10 … 500 it gives the printed row at N = 10, B = 50.

    Implements: the CSRA row of [Sun2026] as the authors' public code computes it.
    """

    name: ClassVar[str] = "csra:literal"
    guarantees = (BudgetFeasible(),)
    sells_beyond_offers = True

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Winners sell 1/(n − k) each, paid at the first loser's rate for what they offered."""
        winners, payment, k = _winners_and_pay(bids, budget)
        return Outcome(np.where(winners, 1.0 / (bids.clients - k), 0.0), payment)


def _winners_and_pay(bids: Bids, budget: Array) -> tuple[Mask, Array, NDArray[np.intp]]:
    """(..., clients) who wins and for how much, and (..., 1) how many win: k ≤ clients − 1."""
    merit = _merit(bids)
    quality = merit * bids.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        # v/merit = b/q without the rounding of multiplying and dividing by ε; without merit: never bought.
        rate = np.where(merit > 0, bids.valuation / merit, np.inf)
    ranking = Ranking.by(rate)
    ranked = ranking.key
    bought = np.cumsum(ranking.sort(quality), axis=-1)
    k = count_prefix(ranked[..., 1:] * bought[..., :-1] <= budget)
    winners = ranking.first(k)
    price = np.where(k > 0, entry(ranked, k, 0.0), 0.0)
    return winners, np.where(winners, price * quality, 0.0), k


def _merit(bids: Bids) -> Array:
    """(..., clients) quality per unit of ε: reputation times data size, each 1 where not given."""
    merit = np.ones(bids.shape)
    if bids.data_size is not None:
        merit = merit * bids.data_size
    if bids.accuracy is not None:
        merit = merit * bids.accuracy
    return merit
