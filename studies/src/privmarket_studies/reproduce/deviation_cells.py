"""Cells about leaving the truth: what the paper's ascent, a coalition or a client of the mean-field game gains."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from privmarket._settings import TOLERANCE
from privmarket.market._attacks import LEVELS, CoalitionAttack
from privmarket.market._audit import gain_shares, judge
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import scenario
from privmarket.meanfield import Equilibrium, nash_gap
from privmarket_studies.nash_gap_study import MEASURES, POPULATIONS, RULES, SALE_CAP, StudySetting, solved_game
from privmarket_studies.reproduce.attack_strengths import OVER_OFFERS, PaperAscent
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training, rule_for
from privmarket_studies.reproduce.regret import PAYMENT_MARKETS


def run_ascent(config: Config, seed: int, scratch: Path) -> Result:
    """One cell about the paper's own attack: what its ascent finds from a start that is drawn evenly.

    Config: mechanism, scenario, clients, budget, start (`truth` or `uniform`). The markets are those of RQ1.
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rng = np.random.default_rng([seed, clients])
    with outside_training():
        rule = rule_for(config["mechanism"], distribution)
        types = distribution.sample(rng, clients, (PAYMENT_MARKETS,))
        paid = judge(types, rule.run(types, budget), budget).mean_payment
        found = PaperAscent(start=config["start"])(rule, types[0], budget, rng)
    share = gain_shares(found.gain, paid, budget)
    return {"mean": float(share.mean()), "gainers": float((share > 0).mean())}


def run_over_offer(config: Config, seed: int, scratch: Path) -> Result:
    """One cell about the other direction in ε: offers of more ε than a client has that it can still deliver.

    Config: mechanism, scenario, clients, budget, attack (of `OVER_OFFERS`). The markets are those of RQ1. `alone`
    means that v stays truthful.
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rng = np.random.default_rng([seed, clients])
    with outside_training():
        rule = rule_for(config["mechanism"], distribution)
        types = distribution.sample(rng, clients, (PAYMENT_MARKETS,))
        paid = judge(types, rule.run(types, budget), budget).mean_payment
        only_epsilon, joint = OVER_OFFERS[config["attack"]]
        alone = only_epsilon(rule, types[0], budget, rng)
        both = joint(rule, types[0], budget, rng).worst_of(alone)
    found: Result = {"mean_payment": paid}
    for name, regret in (("alone", alone), ("with_valuation", both)):
        share = gain_shares(regret.gain, paid, budget)
        found[f"mean_{name}"] = float(share.mean())
        found[f"maximum_{name}"] = float(share.max())
        found[f"gainers_{name}"] = float((share > 0).mean())
    return found


def run_market_regret(config: Config, seed: int, scratch: Path) -> Result:
    """One cell about one market: what its clients gain, and how much of its budget is spent.

    Config: mechanism, scenario, clients, budget, attack (of `LEVELS`). A seed is a market. Gains of all clients are
    over the mean payment in this market.
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rng = np.random.default_rng([seed, clients])
    with outside_training() as said:
        rule = rule_for(config["mechanism"], distribution)
        types = distribution.sample(rng, clients)
        merit = judge(types, rule.run(types, budget), budget)
        found = LEVELS[config["attack"]].joint(rule, types, budget, rng)
    share = gain_shares(found.gain, merit.mean_payment, budget)
    return {
        "mean": float(share.mean()),
        "maximum": float(share.max()),
        "gainers": float((share > 0).mean()),
        "mean_payment": merit.mean_payment,
        "spend_over_budget": merit.spend / budget,
        "fluid_ratio": merit.epsilon / fluid_bound(distribution, clients, budget),
        "outside_training": said,
    }


def run_coalition(config: Config, seed: int, scratch: Path) -> Result:
    """One cell about collusion: what coalitions of some size gain against a rule by joint misreports.

    Config: mechanism, scenario, clients, budget, size, markets. Gains over the coalitions' truthful pay.
    """
    distribution, clients = scenario(config["scenario"]), config["clients"]
    rng = np.random.default_rng([seed, clients])
    types = distribution.sample(rng, clients, (config["markets"],))
    with outside_training():
        rule = rule_for(config["mechanism"], distribution)
        found = CoalitionAttack(config["size"])(rule, types, float(config["budget"]), rng)
    paid = max(float(found.truthful_pay.mean()), 1e-12)
    return {
        "share": float(found.gain.mean()) / paid,
        "largest": float(found.gain.max()) / paid,
        # Over what the members are paid, as the other figures here, and not over the budget as in `gain_shares`:
        # the published cells were counted so.
        "gaining": float((found.gain > TOLERANCE * paid).mean()),
    }


def run_nash(config: Config, seed: int, scratch: Path) -> Result:
    """One cell of RQ4 (c) and (d): the Nash gap of the solved mean-field game with finitely many clients.

    Config: population, rule, clients, grid, runs. Shares of the mean payment, averaged over the runs.
    """
    curve, build = RULES[config["rule"]]
    solved = _solved(config["grid"], config["population"], config["rule"])
    rule = build(curve(), SALE_CAP * solved.game.mesh.step)
    runs = range(seed * config["runs"], (seed + 1) * config["runs"])
    gap = nash_gap(solved, config["clients"], rule, seeds=runs)
    return {name: float((getattr(gap, name) / gap.mean_payment).mean()) for name in MEASURES}


@lru_cache(maxsize=2)
def _solved(grid: str, population: str, rule: str) -> Equilibrium:
    return solved_game(StudySetting(grid=grid), POPULATIONS[population], RULES[rule][0]())
