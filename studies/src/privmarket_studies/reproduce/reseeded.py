"""One cell about chance in training: a shipped network's recipe run again with another seed, then attacked."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.market.attacks import combined
from privmarket.market.evaluation import gain_shares, judge
from privmarket.market.scenarios import scenario
from privmarket.mechanisms.learned.recipes import Recipe
from privmarket.mechanisms.learned.session import train, value
from privmarket.mechanisms.learned.trained_weights import mechanism_class
from privmarket.mechanisms.learned.weights import load, shipped
from privmarket_studies.reproduce.attack_strengths import STRENGTHS
from privmarket_studies.reproduce.markets import outside_training

_MARKETS_SEED = 7  # the same markets judge every training


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: mechanism, scenario, clients, budget, markets, attack (the strongest level), steps (None: all).

    Seed 0 is the weights that ship; another seed trains their recipe, read from the weights' own file, anew. A
    training that was stopped goes on from its checkpoint.
    """
    name, law = config["mechanism"], scenario(config["scenario"])
    clients, budget = config["clients"], float(config["budget"])
    rule = mechanism_class(name)(weights=_weights(name, seed, config["steps"], scratch))
    rng = np.random.default_rng([_MARKETS_SEED, clients])
    types = law.sample(rng, clients, (config["markets"],))
    levels = list(STRENGTHS)
    attack = combined(*(STRENGTHS[level] for level in levels[: levels.index(config["attack"]) + 1]))
    with outside_training():
        paid = judge(types, rule.run(types, budget), budget).mean_payment
        gain = attack(rule, types, budget, rng).gain
        found = {
            "regret": float(gain_shares(gain, paid, budget).mean()),
            "fluid_ratio": value(rule, law, clients, budget, _MARKETS_SEED)["fluid_ratio"],
        }
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _weights(name: str, seed: int, steps: int | None, scratch: Path) -> Path:
    if seed == 0:
        return shipped(name)
    recipe = replace(Recipe.from_json(load(shipped(name), name).facts["recipe"]), seed=seed)
    scratch.mkdir(parents=True, exist_ok=True)
    out = scratch / "weights.safetensors"
    train(recipe if steps is None else replace(recipe, steps=steps), [scenario(s) for s in recipe.scenarios], out)
    return out
