"""One cell of RQ3: what a rule buys and pays in many markets drawn from one law."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.experiments.reproduce.markets import outside_training, rule_for
from privmarket.market.bids import Array
from privmarket.market.bounds import fluid_bound
from privmarket.market.guarantees import TOLERANCE, BudgetFeasible, IndividuallyRational, WithinOffer
from privmarket.market.scenarios import scenario


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, scenario, clients, budget, markets (the paper's rounds)."""
    law, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rule = rule_for(config["mechanism"], law)
    types = law.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
    with outside_training() as said:
        outcome = rule.run(types, budget)
    spend, welfare, bought = outcome.spend, outcome.welfare(types), outcome.total_epsilon
    paid = float(spend.mean())
    column = np.full((*types.shape[:-1], 1), budget)
    figures = {
        "spend": paid,
        "spend_over_budget": paid / budget,
        "over_budget": _share(BudgetFeasible().excess(types, outcome, column)),
        "welfare": float(welfare.mean()),
        "welfare_over_budget": float(welfare.mean()) / budget,
        "epsilon": float(bought.mean()),
        "epsilon_per_money": float(bought.mean()) / paid if paid > 0 else 0.0,
        "fluid_ratio": float(bought.mean()) / fluid_bound(law, clients, budget),
        "underpaid": _share(IndividuallyRational().excess(types, outcome, column)),
        "over_offer": _share(WithinOffer().excess(types, outcome, column)),
        "sellers": float((outcome.epsilon > 0).mean()),
        "spend_std_over_markets": float(spend.std()),
    }
    return {name: _six_digits(value) for name, value in figures.items()} | {"outside_training": said}


def _share(excess: Array) -> float:
    return float((excess > TOLERANCE).mean())


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
