"""One cell about the paper's own attack: what its ascent finds from a start that is drawn evenly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.market.evaluation import gain_shares, judge
from privmarket.market.scenarios import scenario
from privmarket_studies.reproduce.attack_strengths import PaperAscent
from privmarket_studies.reproduce.markets import outside_training, rule_for
from privmarket_studies.reproduce.regret import PAYMENT_MARKETS


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, scenario, clients, budget, start (`truth` or `uniform`). The markets are those of RQ1."""
    law, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rng = np.random.default_rng([seed, clients])
    with outside_training():
        rule = rule_for(config["mechanism"], law)
        types = law.sample(rng, clients, (PAYMENT_MARKETS,))
        paid = judge(types, rule.run(types, budget), budget).mean_payment
        found = PaperAscent(start=config["start"])(rule, types[0], budget, rng)
    share = gain_shares(found.gain, paid, budget)
    return {"mean": float(share.mean()), "gainers": float((share > 0).mean())}
