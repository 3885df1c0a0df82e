"""The graded ration: everybody below a price sells, and who asks less sells more, in several steps."""

from __future__ import annotations

from typing import ClassVar

from privmarket._settings import DELTA, EPSILON_MAX, HONEST_SHARE, KAPPA
from privmarket.market._distributions import Distribution, scenario
from privmarket.market._menus import RationCurve
from privmarket.market._objectives import TypicalAggregateError
from privmarket.market._ration_design import graded_curve
from privmarket.mechanisms._ration_menu import RationMenu


class GradedRation(RationMenu):
    """The ration menu that gives the least typical error for a distribution, a budget and a measured H.

    Prices and the ratios of the amounts are fixed before the bids; the ration that a client faces is what the
    *others'* bids leave money for. Exactly truthful in v and ε, individually rational and within budget: see
    `RationMenu`. How many clients it buys from is its own choice: few where noise counts, all where bias does; and
    it leaves money over where more ε from those who offer more would make the sum less accurate.

    Args:
        distribution: public belief about clients, a distribution or its name.
        epsilon_max: public limit on offers.
        kappa, heterogeneity, honest_share, delta: of `TypicalAggregateError`. Only H²/κ matters;
            `simulation.plan` measures it on public records.

    Implements: the graded optimum of docs/theory/aggregate-trust.md.
    """

    name: ClassVar[str] = "graded-ration"
    version = "1.1.0"
    market_facts: ClassVar[tuple[str, ...]] = ("distribution", "epsilon_max")

    def __init__(
        self,
        distribution: Distribution | str = "uniform",
        epsilon_max: float = EPSILON_MAX,
        kappa: float = KAPPA,
        # Not the H of P2: the typical error has another one, which `client_spread` measures; 1 is of its order.
        heterogeneity: float = 1.0,
        honest_share: float = HONEST_SHARE,
        delta: float = DELTA,
    ) -> None:
        super().__init__(epsilon_max)
        self.distribution = scenario(distribution) if isinstance(distribution, str) else distribution
        self.objective = TypicalAggregateError(kappa, heterogeneity, honest_share, delta)

    def ration_curve(self, clients: int, budget: float) -> RationCurve:
        """The best graded menu for this market's public description."""
        return graded_curve(self.distribution, clients, budget, self.objective)
