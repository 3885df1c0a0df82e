"""Cells about chance in training: what ships is learned again with another seed, then judged like the original."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from privmarket.market._attacks import combined
from privmarket.market._audit import gain_shares, judge
from privmarket.market._distributions import scenario
from privmarket.market._objectives import AggregateError, AggregationError
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from privmarket.mechanisms.learned._measure import value
from privmarket.mechanisms.learned._menu_training import DEFAULT_SEARCH, DesignPoint, learn_menus
from privmarket.mechanisms.learned._menunet import MfgMenuNet
from privmarket.mechanisms.learned._recipes import Recipe
from privmarket.mechanisms.learned._session import run_recipe
from privmarket.mechanisms.learned._trainer import mechanism_class
from privmarket.mechanisms.learned._weights import load, shipped
from privmarket_studies.reproduce.attack_strengths import STRENGTHS
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training

MENU_GOALS = {goal.name: goal for goal in (AggregationError, AggregateError)}
_MARKETS_SEED = 7  # the same markets judge every training


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: mechanism, scenario, clients, budget, markets, attack (the strongest level), steps (None: all).

    Seed 0 is the weights that ship; another seed trains their recipe, read from the weights' own file, anew. A
    training that was stopped goes on from its checkpoint.
    """
    name, distribution = config["mechanism"], scenario(config["scenario"])
    clients, budget = config["clients"], float(config["budget"])
    rule = mechanism_class(name)(weights=_weights(name, seed, config["steps"], scratch))
    rng = np.random.default_rng([_MARKETS_SEED, clients])
    types = distribution.sample(rng, clients, (config["markets"],))
    levels = list(STRENGTHS)
    attack = combined(*(STRENGTHS[level] for level in levels[: levels.index(config["attack"]) + 1]))
    with outside_training():
        paid = judge(types, rule.run(types, budget), budget).mean_payment
        gain = attack(rule, types, budget, rng).gain
        found = {
            "regret": float(gain_shares(gain, paid, budget).mean()),
            "fluid_ratio": value(rule, distribution, clients, budget, _MARKETS_SEED)["fluid_ratio"],
        }
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def run_menu(config: Config, seed: int, scratch: Path) -> Result:
    """The same for a curve of `mfg-menunet` that minimises an error; its shape is learned, misreports gain nothing.

    Config: mechanism, objective (a name of `MENU_GOALS`), heterogeneity, scenario, clients, budget, markets, steps
    (None: all).
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    goal = MENU_GOALS[config["objective"]](heterogeneity=config["heterogeneity"])
    weights = None
    if seed:
        search = DEFAULT_SEARCH if config["steps"] is None else replace(DEFAULT_SEARCH, steps=config["steps"])
        scratch.mkdir(parents=True, exist_ok=True)
        weights = scratch / "weights.safetensors"
        learn_menus([DesignPoint(distribution, clients, budget, goal)], weights, seed, search)
    types = distribution.sample(np.random.default_rng([_MARKETS_SEED, clients]), clients, (config["markets"],))
    menu = MfgMenuNet(goal, scenario=distribution.name, weights=weights)
    learned, posted = (goal.value(rule.run(types, budget), types).mean() for rule in (menu, MeanFieldMenu()))
    shutil.rmtree(scratch, ignore_errors=True)
    return {"error_ratio": float(learned / posted)}


def _weights(name: str, seed: int, steps: int | None, scratch: Path) -> Path:
    if seed == 0:
        return shipped(name)
    recipe = replace(Recipe.from_json(load(shipped(name), name).facts["recipe"]), seed=seed)
    scratch.mkdir(parents=True, exist_ok=True)
    out = scratch / "weights.safetensors"
    run_recipe(
        recipe if steps is None else replace(recipe, steps=steps), [scenario(s) for s in recipe.scenarios], out
    )
    return out
