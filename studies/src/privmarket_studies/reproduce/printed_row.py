"""One cell of the paper's efficiency table: R, W′ and BF of a row, as the authors' code counts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.market.evaluation import judge
from privmarket.market.scenarios import scenario
from privmarket_studies.reproduce.markets import outside_training, rule_for

_SIZES = (10, 500)  # records per client in the authors' code
_SIZES_STREAM = 1


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, clients, budget, markets, sizes (whether clients have data sizes from 10 to 500)."""
    law, clients, budget = scenario("uniform"), config["clients"], float(config["budget"])
    types = law.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
    if config["sizes"]:
        draws = np.random.default_rng([seed, clients, _SIZES_STREAM])
        types = types.replace(data_size=draws.integers(_SIZES[0], _SIZES[1] + 1, types.shape).astype(np.float64))
    with outside_training():
        outcome = rule_for(config["mechanism"], law).run(types, budget)
    merit = judge(types, outcome, budget)
    # Single precision adds payments that use up the budget to a little more than it in some rounds.
    added = outcome.payment.astype(np.float32).sum(axis=-1, dtype=np.float32)
    return {
        "spend": merit.spend,
        "welfare": merit.welfare,
        "underpaid": merit.underpaid,
        "over_budget": merit.over_budget,
        "within_budget_float32": float((added <= np.float32(budget)).mean()),
    }
