"""The assumptions behind Theorems 2 and 3 of the paper, looked at by code: what holds of a game or a rule.

A slope is measured at two steps, one a hundredth of the other. Of a Lipschitz function both stay below its
constant; at a jump the second is a hundred times the first. So a jump is shown, and its absence is not proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism
from privmarket.meanfield._problem import Problem

_STEP, _FINER = 1e-2, 1e-4
_POINTS = 41


@dataclass(frozen=True)
class Slope:
    """The largest |f(x + h) − f(x)| / h that was found, for a small and a hundred times smaller h."""

    coarse: float
    fine: float

    @property
    def jumps(self) -> bool:
        """Whether the slope grows as the step shrinks: f is not Lipschitz."""
        return self.fine > 10.0 * self.coarse

    @staticmethod
    def of(change: Callable[[float], float]) -> Slope:
        """From step ↦ the largest change of f over a step of this size."""
        return Slope(change(_STEP) / _STEP, change(_FINER) / _FINER)


@dataclass(frozen=True)
class Regularity:
    """What a game says to (R1)–(R4).

    Attributes:
        valuation_slope: (R1) of the drift of valuations in the state.
        sold_slope: (R1) of the drift of budgets, what a report sells, in the price level: how it depends on μ.
        largest_report: (R2) reports lie between 0 and this.
        largest_cost: (R3) of a round's sale.
        second_moment: (R4) of the starting law.
    """

    valuation_slope: float
    sold_slope: Slope
    largest_report: float
    largest_cost: float
    second_moment: float


def regularity(problem: Problem, cell: float = 1e-9) -> Regularity:
    """Looks at one game; `cell` is the width of valuations over which a sale is averaged, by default a point.

    Implements: Assumption 2, (R1)–(R4), of [Sun2026].
    """
    market, ceiling = problem.market, problem.price_ceiling
    report = np.linspace(0.0, ceiling, _POINTS)

    def change(step: float) -> float:
        # Levels next to every report: that is where a step menu jumps.
        return max(
            float(np.abs(_sold(problem, report, x + step, cell) - _sold(problem, report, x, cell)).max())
            for x in report[1:] - step / 2
        )

    bids = problem.law.sample(np.random.default_rng(0), 100_000)
    return Regularity(
        valuation_slope=problem.reversion,
        sold_slope=Slope.of(change),
        largest_report=ceiling,
        largest_cost=problem.valuation_limit * market.most_sold,
        second_moment=float((bids.valuation**2 + bids.epsilon**2).mean()),
    )


def _sold(problem: Problem, report: Array, level: float, cell: float) -> Array:
    return problem.market.sold(report, max(level, 1e-12), cell)


def payment_slope(rule: Mechanism, clients: int = 20, budget: float = 10.0, centre: float = 0.5) -> Slope:
    """How fast a client's pay can change with its opponents' law μ, over the distance W₁ between two laws.

    All opponents ask `centre`, or all ask a step more; the client's own report lies between. The laws are W₁ = one
    step apart, and the client is the dearest under one and the cheapest under the other.

    Implements: Assumption 3 of [Sun2026], which is said to hold for Algorithm 1 and does not.
    """

    def paid(own: float, others: float) -> float:
        valuation = np.full(clients, others)
        valuation[0] = own
        return float(rule.run(Bids(valuation, np.ones(clients)), budget).payment[0])

    return Slope.of(lambda step: abs(paid(centre + step / 2, centre) - paid(centre + step / 2, centre + step)))
