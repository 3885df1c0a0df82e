"""Cells about leaving the truth: what the paper's ascent, a coalition or a client of the mean-field game gains."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from privmarket.market.collusion import CoalitionAttack
from privmarket.market.evaluation import gain_shares, judge
from privmarket.market.scenarios import scenario
from privmarket.meanfield import Equilibrium
from privmarket.meanfield.deviation_gain import measure
from privmarket.plans import TOLERANCE
from privmarket_studies.nash_gap_study import MEASURES, POPULATIONS, RULES, SALE_CAP, StudySetting, solved_game
from privmarket_studies.reproduce.attack_strengths import PaperAscent
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training, rule_for
from privmarket_studies.reproduce.regret import PAYMENT_MARKETS


def run_ascent(config: Config, seed: int, scratch: Path) -> Result:
    """One cell about the paper's own attack: what its ascent finds from a start that is drawn evenly.

    Config: mechanism, scenario, clients, budget, start (`truth` or `uniform`). The markets are those of RQ1.
    """
    law, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rng = np.random.default_rng([seed, clients])
    with outside_training():
        rule = rule_for(config["mechanism"], law)
        types = law.sample(rng, clients, (PAYMENT_MARKETS,))
        paid = judge(types, rule.run(types, budget), budget).mean_payment
        found = PaperAscent(start=config["start"])(rule, types[0], budget, rng)
    share = gain_shares(found.gain, paid, budget)
    return {"mean": float(share.mean()), "gainers": float((share > 0).mean())}


def run_coalition(config: Config, seed: int, scratch: Path) -> Result:
    """One cell about collusion: what coalitions of some size gain against a rule by joint misreports.

    Config: mechanism, scenario, clients, budget, size, markets. Gains over the coalitions' truthful pay.
    """
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


def run_nash(config: Config, seed: int, scratch: Path) -> Result:
    """One cell of RQ4 (c) and (d): the Nash gap of the solved mean-field game with finitely many clients.

    Config: population, rule, clients, grid, runs. Shares of the mean payment, averaged over the runs.
    """
    curve, build = RULES[config["rule"]]
    solved = _solved(config["grid"], config["population"], config["rule"])
    rule = build(curve(), SALE_CAP * solved.game.mesh.step)
    runs = range(seed * config["runs"], (seed + 1) * config["runs"])
    gap = measure(solved, rule, config["clients"], seeds=runs)
    return {name: float((getattr(gap, name) / gap.mean_payment).mean()) for name in MEASURES}


@lru_cache(maxsize=2)
def _solved(grid: str, population: str, rule: str) -> Equilibrium:
    return solved_game(StudySetting(grid=grid), POPULATIONS[population], RULES[rule][0]())
