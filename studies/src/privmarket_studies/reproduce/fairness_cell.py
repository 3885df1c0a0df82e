"""One cell of the fairness page: who sells and who is paid, a fifth of the clients by valuation at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.market.bounds import fluid_bound
from privmarket.market.scenarios import scenario
from privmarket_studies.reproduce.markets import outside_training, rule_for

FIFTHS = 5


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, settings, scenario, clients, budget, markets. Fifths of all clients, cheapest first."""
    law, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rule = rule_for(config["mechanism"], law, **config["settings"])
    types = law.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
    with outside_training() as said:
        outcome = rule.run(types, budget)
    order = np.argsort(types.valuation, axis=None, kind="stable")
    sold, paid = outcome.epsilon.ravel(), outcome.payment.ravel()
    surplus = outcome.utility(types).ravel()
    fifths = [
        {
            "valuation_up_to": float(types.valuation.ravel()[part].max()),
            "sell": float((sold[part] > 0).mean()),
            "epsilon": float(sold[part].mean()),
            "pay": float(paid[part].mean()),
            "surplus": float(surplus[part].mean()),
            "unit_price": float(paid[part].sum() / sold[part].sum()) if sold[part].sum() > 0 else None,
        }
        for part in np.array_split(order, FIFTHS)
    ]
    return {
        "fifths": fifths,
        "epsilon": float(outcome.total_epsilon.mean()),
        "fluid_ratio": float(outcome.total_epsilon.mean()) / fluid_bound(law, clients, budget),
        "sell": float((sold > 0).mean()),
        "least_unit_price": float((paid[sold > 0] / sold[sold > 0]).min()) if (sold > 0).any() else None,
        "outside_training": said,
    }
