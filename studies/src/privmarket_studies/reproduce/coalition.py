"""One cell about collusion: what coalitions of some size gain against a rule by joint misreports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.market.collusion import CoalitionAttack
from privmarket.market.scenarios import scenario
from privmarket.plans import TOLERANCE
from privmarket_studies.reproduce.markets import outside_training, rule_for


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, scenario, clients, budget, size, markets. Gains over the coalitions' truthful pay."""
    law, clients = scenario(config["scenario"]), config["clients"]
    rng = np.random.default_rng([seed, clients])
    types = law.sample(rng, clients, (config["markets"],))
    with outside_training():
        rule = rule_for(config["mechanism"], law)
        found = CoalitionAttack(config["size"])(rule, types, float(config["budget"]), rng)
    paid = max(float(found.truthful_pay.mean()), 1e-12)
    return {
        "share": float(found.gain.mean()) / paid,
        "largest": float(found.gain.max()) / paid,
        # Over what the members are paid, as the other figures here, and not over the budget as in `gain_shares`:
        # the published cells were counted so.
        "gaining": float((found.gain > TOLERANCE * paid).mean()),
    }
