"""The two-step menu: a small ration for all below a high price, much more for the cheapest few."""

from __future__ import annotations

from typing import ClassVar

from privmarket._settings import DELTA, EPSILON_MAX, HETEROGENEITY, HONEST_SHARE, KAPPA
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution, scenario
from privmarket.market._menus import RationCurve
from privmarket.market._objectives import AggregateError
from privmarket.market._ration_design import two_step_curve
from privmarket.mechanisms._ration import checked_price
from privmarket.mechanisms._ration_menu import RationMenu


class TwoStep(RationMenu):
    """A ration at `unit_price`, and up to `bulk_multiple` rations for clients that ask less than `bulk_price`.

    Prices are fixed before the bids; the ration that a client faces is what the *others'* bids leave money for,
    so the money of clients above the price is spent on the others. Exactly truthful in v and ε, individually
    rational and within budget: see `RationMenu`.

    Args:
        unit_price: what each unit of the ration earns. By default prices and multiple are those that give the
            least aggregate error for `distribution`.
        bulk_price: what each unit beyond the ration earns, below `unit_price`; None or 0 buys no more than
            rations where `unit_price` is given.
        bulk_multiple: how many rations a client below `bulk_price` can sell.
        service_amount: ε that everybody below `unit_price` can sell before anybody sells more than a ration,
            whenever the budget covers N times that amount at `unit_price`.
        distribution: public belief about clients, or its name; used only where `unit_price` is not given.
        epsilon_max: public limit on offers.
        kappa, heterogeneity, honest_share, delta: of `AggregateError`, for that choice.

    Implements: the two-step optimum of docs/theory/aggregate-trust.md.
    """

    name: ClassVar[str] = "two-step"
    market_facts: ClassVar[tuple[str, ...]] = ("distribution", "epsilon_max")

    def __init__(
        self,
        unit_price: float | None = None,
        bulk_price: float | None = None,
        bulk_multiple: float = 1024.0,
        service_amount: float = 0.0,
        distribution: Distribution | str = "uniform",
        epsilon_max: float = EPSILON_MAX,
        kappa: float = KAPPA,
        heterogeneity: float = HETEROGENEITY,
        honest_share: float = HONEST_SHARE,
        delta: float = DELTA,
    ) -> None:
        super().__init__(epsilon_max)
        self.unit_price = checked_price(self.name, "unit_price", unit_price)
        self.bulk_price = checked_price(self.name, "bulk_price", bulk_price or None)
        if self.bulk_price is not None and (self.unit_price is None or self.bulk_price >= self.unit_price):
            raise ConfigurationError(
                f"two-step: bulk_price {bulk_price} with unit_price {unit_price}",
                "give both, the price of the bulk below that of the ration",
            )
        self.bulk_multiple = float(bulk_multiple)
        self.service_amount = float(service_amount)
        self.distribution = scenario(distribution) if isinstance(distribution, str) else distribution
        self.objective = AggregateError(kappa, heterogeneity, honest_share, delta)
        if self.unit_price is not None:
            self.ration_curve(1, 1.0)  # refuses a wrong multiple or floor at once

    def ration_curve(self, clients: int, budget: float) -> RationCurve:
        """The prices that were given, or the best two steps for this market's public description."""
        if self.unit_price is None:
            best = two_step_curve(self.distribution, clients, budget, self.objective)
            return RationCurve(
                best.price, best.multiple, self.service_amount, max(best.ceiling, self.service_amount)
            )
        if self.bulk_price is None:
            return RationCurve([self.unit_price], [1.0], self.service_amount)
        prices = [self.bulk_price, self.unit_price]
        multiples = [self.bulk_multiple, 1.0]
        return RationCurve(prices, multiples, self.service_amount)
