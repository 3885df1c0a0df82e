"""The naive finite form of the mean-field market: one price level for all, at which the bids cost the budget.

With infinitely many clients nobody moves the level and truth is best. With finitely many a client's own report
moves it, so the rule is truthful only in the limit: the subject on which a Nash gap must show.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._menus import MenuCurve
from privmarket.market._outcome import Outcome

_BISECTIONS = 60


class PlugInMenu(Mechanism):
    """Everybody faces τ* = the largest level with Σ payments ≤ B.

    Deviation: not truthful for finitely many clients; it declares no truthfulness.
    """

    name: ClassVar[str] = "plug-in-menu"
    guarantees = (IndividuallyRational(), BudgetFeasible(), WithinOffer())

    def __init__(self, curve: MenuCurve) -> None:
        self.curve = curve

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Everybody meets the one level at which these bids cost the budget."""
        level = self.level(bids, budget)
        relative = bids.valuation / level
        return Outcome(
            bids.epsilon * self.curve.share(relative),
            bids.epsilon * level * self.curve.unit_payment(relative),
        )

    def level(self, bids: Bids, budget: Array) -> Array:
        """(..., 1) τ*, from the levels at which a client starts to sell a step."""
        point, rate = self._breakpoints(bids)
        cost_beyond = point * np.cumsum(rate, axis=-1)
        reached = np.sum(cost_beyond < budget, axis=-1, keepdims=True)  # T(τ) rises, so these come first
        rates = np.cumsum(rate, axis=-1)
        beyond = np.concatenate([point, np.full((*point.shape[:-1], 1), np.inf)], axis=-1)
        at_rate = np.take_along_axis(rates, np.maximum(reached - 1, 0), axis=-1)
        level = np.minimum(budget / at_rate, np.take_along_axis(beyond, reached, axis=-1))
        return np.where(reached > 0, level, point[..., :1])

    def offers(self, others: Bids, epsilon: float, budget: float, reports: Array) -> tuple[Array, Array]:
        """What one more client with this ε would sell and be paid, for each of its possible reports.

        Args:
            others: the other bids, (clients,).
            reports: (reports,) the valuations that the client may report.
        """
        point, rate = self._breakpoints(others)
        total = np.concatenate([[0.0], np.cumsum(rate)])
        low, high = np.zeros(reports.size), np.full(reports.size, budget / (epsilon * self.curve.area) + 1.0)
        high = np.maximum(high, 1.01 * reports.max() / self.curve.price[0])

        def cost(level: Array) -> Array:
            theirs = level * total[np.searchsorted(point, level, side="left")]
            return np.asarray(theirs + epsilon * level * self.curve.unit_payment(reports / level))

        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            within = cost(middle) <= budget
            low, high = np.where(within, middle, low), np.where(within, high, middle)
        relative = reports / np.maximum(low, 1e-300)
        return epsilon * self.curve.share(relative), epsilon * low * self.curve.unit_payment(relative)

    def _breakpoints(self, bids: Bids) -> tuple[Array, Array]:
        """(..., clients·steps) levels at which somebody sells one more step, ascending, and pay per τ it adds."""
        shape = (*bids.shape[:-1], -1)
        point = (bids.valuation[..., None] / self.curve.price).reshape(shape)
        rate = (bids.epsilon[..., None] * (self.curve.weight * self.curve.price)).reshape(shape)
        order = np.argsort(point, axis=-1, kind="stable")
        return np.take_along_axis(point, order, axis=-1), np.take_along_axis(rate, order, axis=-1)
