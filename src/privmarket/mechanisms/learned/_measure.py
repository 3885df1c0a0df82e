"""What trained weights are worth: ε bought over the fluid bound, and what attacks gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from privmarket.market._attacks import STRONG, Attack
from privmarket.market._audit import judge
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import Distribution
from privmarket.market._mechanism import Mechanism


class FluidRatio(TypedDict):
    """ε bought over the fluid bound, a mean over markets, and its standard error."""

    fluid_ratio: float
    fluid_ratio_error: float


class CaseRow(FluidRatio):
    """What an attack found in markets of one kind."""

    scenario: str
    clients: int
    budget: float
    profiles: int
    regret_share: float
    spend_over_budget: float
    underpaid: float
    over_budget: float


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


def measure(
    rule: Mechanism,
    cases: Sequence[tuple[Distribution, int, float, int]],
    attack: Attack = STRONG,
    seed: int = 12_345,
    progress: Callable[[CaseRow], object] | None = None,
) -> MeasuredWeights:
    """Attacks a rule in markets (distribution, clients, budget, profiles).

    Returns:
        `cases`, one row each, and `max_regret`: the largest mean regret as a share of the mean payment, with a
        quarter on top, because other samples differ.
    """
    rows = []
    for distribution, clients, budget, profiles in cases:
        rng = np.random.default_rng(seed)
        types = distribution.sample(rng, clients, (profiles,))
        merit = judge(types, rule.run(types, budget), budget)
        regret = attack(rule, types, budget, rng)
        row: CaseRow = {
            "scenario": distribution.name,
            "clients": clients,
            "budget": budget,
            "profiles": profiles,
            "regret_share": float(regret.gain.mean() / merit.mean_payment),
            **value(rule, distribution, clients, budget, seed),
            "spend_over_budget": merit.spend / budget,
            "underpaid": merit.underpaid,
            "over_budget": merit.over_budget,
        }
        rows.append(row)
        if progress is not None:
            progress(row)
    return summary(rows)


def summary(rows: list[CaseRow]) -> MeasuredWeights:
    """What `measure` returns, from its rows."""
    return {"cases": rows, "max_regret": round(1.25 * max(row["regret_share"] for row in rows), 5)}
