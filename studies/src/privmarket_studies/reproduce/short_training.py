"""One cell of the ablations: a short training of MFG-RegretNet with one thing changed, then attacked."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from privmarket.market._attacks import combined
from privmarket.market._distributions import scenario
from privmarket.mechanisms.learned._measure import value
from privmarket.mechanisms.learned._recipes import recipe
from privmarket.mechanisms.learned._session import run_recipe
from privmarket.mechanisms.learned._trainer import mechanism_class
from privmarket_studies.reproduce.attack_strengths import STRENGTHS
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training

MARKET = {"scenarios": ("uniform",), "clients": (100, 100), "budget_per_client": (0.5, 0.5)}


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: changes (dotted settings of the recipe), steps, rows, attack, and for other networks than
    MFG-RegretNet network_of and clients. Uniform, N = 100 unless said otherwise, B = N/2.

    The trained rule is attacked in markets that training never saw.
    """
    # Concatenated networks are trained for smaller markets: each deviation costs them a whole auction.
    name, clients = config.get("network_of", "mfg-regretnet"), config.get("clients", 100)
    market = {**MARKET, "clients": (clients, clients)}
    base = recipe(name, "quick", **market, **({"network": {"seats": clients}} if name == "regretnet" else {}))
    # A short training needs a multiplier that moves quickly and an alignment that is annealed within it.
    short = {
        "steps": config["steps"],
        "rows": config["rows"],
        "attack.rows": config["rows"] // 2,
        "steering.first": 1.0,
        "steering.rate": 0.1,
        "alignment.anneal_steps": config["steps"] // 2,
        "seed": seed,
    }
    distribution, out = scenario("uniform"), scratch / "weights.safetensors"
    scratch.mkdir(parents=True, exist_ok=True)
    run_recipe(base.with_settings({**short, **config["changes"]}), [distribution], out)
    rule = mechanism_class(name)(weights=out)
    rng = np.random.default_rng([seed, 1])
    types, budget = distribution.sample(rng, clients), clients / 2
    levels = list(STRENGTHS)
    attack = combined(*(STRENGTHS[name] for name in levels[: levels.index(config["attack"]) + 1]))
    # A rule trained for exactly one budget warns about any other, also about the same one over other valuations.
    with outside_training():
        gain = attack(rule, types, budget, rng).gain
        found = {
            "regret": float(gain.mean() / rule.run(types, budget).payment.mean()),
            "fluid_ratio": value(rule, distribution, clients, budget, seed)["fluid_ratio"],
        }
    shutil.rmtree(scratch, ignore_errors=True)
    return found
