"""JSAM: the noise-optimal allocation when every cost is known."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._ranking import Ranking, count_prefix, entry


class Jsam(Mechanism):
    """Minimises Σ W_i²/ε_i² for money B at known costs: ε_i = min(cap_i, c·W_i^{2/3} v_i^{−1/3}).

    Everybody is paid exactly its declared cost, so it needs full information: overstating v pays, and it claims
    no truthfulness. W is the data share. The level c spends the budget, or everybody sells its cap.

    Implements: the allocation ε ∝ p^{2/3} v^{−1/3} of [Ding2021], water-filled at the caps.
    """

    name: ClassVar[str] = "jsam"
    guarantees = (IndividuallyRational(), BudgetFeasible(), WithinOffer())

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Fills offers to the level that spends the budget and pays declared costs."""
        # v = 0 asks nothing: the floor makes its slope so steep that it sells its cap.
        slope = np.cbrt(bids.data_share**2 / np.maximum(bids.valuation, 1e-200))
        level = _water_level(bids.valuation, slope, bids.epsilon, budget)
        sold = np.minimum(bids.epsilon, level * slope)
        return Outcome(sold, bids.valuation * sold)


def _water_level(cost: Array, slope: Array, cap: Array, budget: Array) -> Array:
    """(..., 1) the c with Σ cost·min(cap, c·slope) = budget, exact; infinite if all caps are affordable.

    Client i fills up at c = cap_i/slope_i. Below its filling point it spends cost·slope per unit of c.
    """
    full = cap / slope
    ranking = Ranking.by(full)
    ranked = ranking.key
    fixed = np.cumsum(ranking.sort(cost * cap), axis=-1)
    # Suffix sums, not total minus prefix: a difference of nearly equal sums would lose the last clients.
    remaining = np.flip(np.cumsum(np.flip(ranking.sort(cost * slope), axis=-1), axis=-1), axis=-1)
    flowing = np.concatenate([remaining[..., 1:], np.zeros_like(remaining[..., :1])], axis=-1)
    k = count_prefix(fixed + ranked * flowing <= budget)
    spent = entry(fixed, k - 1, 0.0)
    still = np.where(k > 0, entry(flowing, k - 1, 0.0), remaining[..., :1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(k < cap.shape[-1], (budget - spent) / still, np.inf)
