"""The assumptions behind Theorems 2 and 3 of [Sun2026], checked numerically for a game or a rule.

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
from privmarket.meanfield._valuations import Diffusion, MeanReverting

_STEP = 1e-2
_FINER = 1e-4
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
class Assumptions:
    """How far a game, and a rule where one is given, meet the assumptions of [Sun2026].

    Attributes:
        valuation_slope: (R1) of the drift of valuations in the valuation; None for a process given by its matrix,
            whose drift is not known.
        sold_slope: (R1) of the drift of budgets, what a report sells, in the price level: how it depends on μ.
        largest_report: (R2) reports lie between 0 and this.
        largest_cost: (R3) of a round's sale.
        second_moment: (R4) of the starting distribution.
        payment_slope: Assumption 3, of a client's pay in the others' distribution; None where no rule was given.
    """

    valuation_slope: Slope | None
    sold_slope: Slope
    largest_report: float
    largest_cost: float
    second_moment: float
    payment_slope: Slope | None = None

    @property
    def holds(self) -> dict[str, bool]:
        """Each assumption that could be looked at, and whether nothing was found against it."""
        drift_jumps = self.valuation_slope is not None and self.valuation_slope.jumps
        found = {
            "R1": not (self.sold_slope.jumps or drift_jumps),
            "R2": bool(np.isfinite(self.largest_report)),
            "R3": bool(np.isfinite(self.largest_cost)),
            "R4": bool(np.isfinite(self.second_moment)),
        }
        if self.payment_slope is not None:
            found["Assumption 3"] = not self.payment_slope.jumps
        return found


def check_assumptions(problem: Problem, mechanism: Mechanism | None = None, *, cell: float = 1e-9) -> Assumptions:
    """Looks at the assumptions under which existence and the rate in N are proved.

    Args:
        problem: the game.
        mechanism: a rule to look at Assumption 3 with, in a market of 20 clients; see `payment_slope`.
        cell: the width of valuations over which a sale is averaged, by default a point. The solver averages over a
            cell of its grid.

    Implements: Assumption 2, (R1)–(R4), and Assumption 3 of [Sun2026].
    """
    market = problem.market
    ceiling = problem.price_ceiling
    report = np.linspace(0.0, ceiling, _POINTS)

    def change(step: float) -> float:
        # Levels next to every report: that is where a step menu jumps.
        return max(
            float(np.abs(_sold(problem, report, x + step, cell) - _sold(problem, report, x, cell)).max())
            for x in report[1:] - step / 2
        )

    second_moment = 0.0
    for population in problem.populations:
        bids = population.distribution.sample(np.random.default_rng(0), 100_000)
        second_moment += population.share * float((bids.valuation**2 + bids.epsilon**2).mean())
    return Assumptions(
        valuation_slope=_drift_slope(problem),
        sold_slope=Slope.of(change),
        largest_report=ceiling,
        largest_cost=problem.valuation_limit * market.most_sold,
        second_moment=second_moment,
        payment_slope=None if mechanism is None else payment_slope(mechanism),
    )


def _drift_slope(problem: Problem) -> Slope | None:
    """The steepest drift of valuations among the populations."""
    processes = [population.process for population in problem.populations]
    known = [process for process in processes if isinstance(process, Diffusion | MeanReverting)]
    if len(known) < len(processes):
        return None
    mean = 0.5 * problem.valuation_limit

    def change(step: float) -> float:
        valuation = np.arange(0.0, problem.valuation_limit, step)  # without gaps, so that no jump is missed
        return max(float(np.abs(np.diff(process.drift_at(valuation, mean))).max()) for process in known)

    return Slope.of(change)


def _sold(problem: Problem, report: Array, level: float, cell: float) -> Array:
    return problem.market.sold(report, max(level, 1e-12), cell)


def payment_slope(rule: Mechanism, clients: int = 20, budget: float = 10.0, centre: float = 0.5) -> Slope:
    """How fast a client's pay can change with the distribution μ of its opponents, over the distance W₁.

    All opponents ask `centre`, or all ask a step more; the client's own report lies between. The two distributions
    are W₁ = one step apart, and the client is the dearest under one and the cheapest under the other.

    Implements: Assumption 3 of [Sun2026], which is said to hold for Algorithm 1 and does not.
    """

    def paid(own: float, others: float) -> float:
        valuation = np.full(clients, others)
        valuation[0] = own
        return float(rule.run(Bids(valuation, np.ones(clients)), budget).payment[0])

    return Slope.of(lambda step: abs(paid(centre + step / 2, centre) - paid(centre + step / 2, centre + step)))
