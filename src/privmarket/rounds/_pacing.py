"""The terms of each round of a run: how its money is divided among rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from privmarket._settings import MarketPlan, Trust
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds._awards import RoundRecord
from privmarket.rounds._terms import Terms, micro_units


@dataclass(frozen=True)
class Pacing:
    """The escrow and the terms of every round of a run.

    Attributes:
        plan: holds the number of rounds, and the budget per round or the total of the run.
        family: what sellers release, up to its noise.
        epsilon_max: the public limit on offers.
        run: names the run.
    """

    plan: MarketPlan
    family: ReleaseFamily
    epsilon_max: float
    run: str = ""

    @cached_property
    def total_micro(self) -> int:
        """The most that the whole run may spend, micro-units."""
        plan = self.plan
        if plan.total_budget is None:
            return plan.rounds * micro_units(plan.budget)
        return micro_units(plan.total_budget)

    def terms(self, past: Sequence[RoundRecord]) -> Terms:
        """What is published before the round that follows `past`, the records of all rounds so far.

        The escrow is the budget per round, or an even share of what is left of a total. Money that earlier rounds
        did not pay is shared by the later ones, so no share is below the first.

        Raises:
            RoundError: the money is less than one micro-unit per round.
        """
        plan = self.plan
        number = len(past)
        budget_micro = self.total_micro // plan.rounds
        if plan.total_budget is not None:
            left = self.total_micro - sum(record.spent_micro for record in past)
            budget_micro = left // (plan.rounds - number)
        return Terms(
            number,
            budget_micro,
            self.family,
            self.epsilon_max,
            plan.rounds,
            self.run,
            trust=cast("Trust", plan.trust),
            honest_share=plan.honest_share,
        )


def offered_micro(plan: MarketPlan, records: Iterable[RoundRecord]) -> int:
    """Money that these rounds offered, in micro-units; refunds of a total, which are offered again, count once."""
    offered = sum(record.spent_micro + record.refunded_micro for record in records)
    return offered if plan.total_budget is None else min(offered, micro_units(plan.total_budget))
