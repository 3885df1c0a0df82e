"""What trained weights are worth: ε bought over the fluid bound, and what attacks gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from privmarket.market._attacks import STRONG, Attack
from privmarket.market._audit import judge
from privmarket.market._bids import Array, Bids
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import Distribution
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned._learned_mechanism import NetworkMechanism


class FluidRatio(TypedDict):
    """ε bought over the fluid bound, a mean over markets, and its standard error."""

    fluid_ratio: float
    fluid_ratio_error: float


class CaseRow(FluidRatio):
    """What an attack found in markets of one kind.

    `attacked` says how many clients of each market were attacked, where it was not all of them.
    """

    scenario: str
    clients: int
    budget: float
    profiles: int
    regret_share: float
    spend_over_budget: float
    underpaid: float
    over_budget: float
    attacked: NotRequired[int]


class MeasuredWeights(TypedDict):
    """What is measured on weights, case by case; `max_regret` is what they promise."""

    cases: list[CaseRow]
    max_regret: float


def value(rule: Mechanism, distribution: Distribution, clients: int, budget: float, seed: int) -> FluidRatio:
    """ε bought over the fluid bound with its standard error: more markets than can be attacked."""
    markets = max(20, 30_000 // clients)
    types = distribution.sample(np.random.default_rng([seed, 1]), clients, (markets,))
    ratio = rule.run(types, budget).total_epsilon / fluid_bound(distribution, clients, budget)
    return {"fluid_ratio": float(ratio.mean()), "fluid_ratio_error": float(ratio.std() / markets**0.5)}


class FirstClients(Mechanism):
    """A network rule in which only the first clients of a market misreport; the others stay truthful.

    Clients are drawn independently, so the first ones are a sample of all. A deviation from a network without a
    mean field is a whole auction, and N of them take long.
    """

    name: ClassVar[str] = "first clients"
    exact_in_batches: ClassVar[bool] = False

    def __init__(self, rule: NetworkMechanism, first: int) -> None:
        self.rule = rule
        self.first = first

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The rule itself."""
        return self.rule.clear(bids, budget)

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """What the first clients get for their reports, and the others for the truth."""
        some = self.rule.unilateral_of(self.first, bids, reports, budget)
        truth = self.rule.run(bids, budget)
        epsilon = truth.epsilon.copy()
        payment = truth.payment.copy()
        epsilon[..., : self.first] = some.epsilon
        payment[..., : self.first] = some.payment
        return Outcome(epsilon, payment)


def measure(
    rule: Mechanism,
    cases: Sequence[tuple[Distribution, int, float, int]],
    attack: Attack = STRONG,
    seed: int = 12_345,
    progress: Callable[[CaseRow], object] | None = None,
    attacked: int | None = None,
) -> MeasuredWeights:
    """Attacks a rule in markets (distribution, clients, budget, profiles).

    Args:
        attacked: attack only so many clients of each market, of a network rule; all by default.

    Returns:
        `cases`, one row each, and `max_regret`: the largest mean regret as a share of the mean payment, with a
        quarter on top, because other samples differ.
    """
    rows = []
    for distribution, clients, budget, profiles in cases:
        rng = np.random.default_rng(seed)
        types = distribution.sample(rng, clients, (profiles,))
        merit = judge(types, rule.run(types, budget), budget)
        first = clients if attacked is None else min(attacked, clients)
        if first == clients:
            gain = attack(rule, types, budget, rng).gain
        else:
            assert isinstance(rule, NetworkMechanism)
            gain = attack(FirstClients(rule, first), types, budget, rng).gain[..., :first]
        bought = value(rule, distribution, clients, budget, seed)
        row: CaseRow = {
            "scenario": distribution.name,
            "clients": clients,
            "budget": budget,
            "profiles": profiles,
            "regret_share": float(gain.mean() / merit.mean_payment),
            "fluid_ratio": bought["fluid_ratio"],
            "fluid_ratio_error": bought["fluid_ratio_error"],
            "spend_over_budget": merit.spend / budget,
            "underpaid": merit.underpaid,
            "over_budget": merit.over_budget,
        }
        if first < clients:
            row["attacked"] = first
        rows.append(row)
        if progress is not None:
            progress(row)
    return summary(rows)


def summary(rows: list[CaseRow]) -> MeasuredWeights:
    """What `measure` returns, from its rows."""
    return {"cases": rows, "max_regret": round(1.25 * max(row["regret_share"] for row in rows), 5)}
