"""One cell of RQ3: what a rule buys and pays in many markets drawn from one law."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.market.bounds import fluid_bound
from privmarket.market.evaluation import judge
from privmarket.market.scenarios import scenario
from privmarket_studies.reproduce.markets import outside_training, rule_for


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, scenario, clients, budget, markets (the paper's rounds)."""
    law, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rule = rule_for(config["mechanism"], law)
    types = law.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
    with outside_training() as said:
        outcome = rule.run(types, budget)
    merit = judge(types, outcome, budget)
    figures = {
        "spend": merit.spend,
        "spend_over_budget": merit.spend / budget,
        "over_budget": merit.over_budget,
        "welfare": merit.welfare,
        "welfare_over_budget": merit.welfare / budget,
        "epsilon": merit.epsilon,
        "epsilon_per_money": merit.epsilon_per_money,
        "fluid_ratio": merit.epsilon / fluid_bound(law, clients, budget),
        "underpaid": merit.underpaid,
        "over_offer": merit.over_offer,
        "sellers": merit.participation,
        "spend_std_over_markets": float(outcome.spend.std()),
    }
    return {name: _six_digits(value) for name, value in figures.items()} | {"outside_training": said}


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
