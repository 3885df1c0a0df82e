"""One cell about wrong beliefs: a rule is told, or trained on, one distribution and meets clients of another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from privmarket.market._audit import gain_shares, judge
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import Distribution, EmpiricalDistribution, IndependentDistribution, scenario
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._recipes import recipe
from privmarket.mechanisms.learned._session import run_recipe
from privmarket.mechanisms.learned._trainer import mechanism_class
from privmarket_studies.reproduce.attack_strengths import TrainingAttack
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training

_PAST = 3  # the stream of random numbers that past bids are drawn from


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: mechanism, settings, believed (a distribution), past (how many bids of it are known, 0: the
    distribution itself), truth (a distribution), scale (true valuations are so many times the distribution's: a
    drift), clients, budget, markets.
    """
    believed: Distribution = scenario(config["believed"])
    if config["past"]:
        past = believed.sample(np.random.default_rng([seed, _PAST]), config["past"])
        believed = EmpiricalDistribution("past bids", past, believed.epsilon_max)
    rule = mechanism(config["mechanism"], market=MarketFacts.of(believed), **config["settings"])
    return _met(rule, config, seed)


def run_trained(config: Config, seed: int, scratch: Path) -> Result:
    """Config: believed (the distribution that a short training of MFG-RegretNet draws markets from), steps, truths,
    clients, budget, markets. One result per true distribution.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    clients, out = config["clients"], scratch / "weights.safetensors"
    # The budgets per client of Table II: one training must serve what each distribution is met with.
    chosen = recipe("mfg-regretnet", "quick", clients=(clients, clients), budget_per_client=(0.4, 1.2))
    short = {"steps": config["steps"], "rows": 800, "attack.rows": 400, "steering.first": 1.0, "steering.rate": 0.1}
    short |= {"alignment.anneal_steps": config["steps"] // 2, "seed": seed}
    run_recipe(
        replace(chosen, scenarios=(config["believed"],)).with_settings(short), [scenario(config["believed"])], out
    )
    rule = mechanism_class("mfg-regretnet")(weights=out)
    found = {
        truth: _met(rule, {**config, "truth": truth, "scale": 1.0, "budget": budget}, seed)
        for truth, budget in config["truths"].items()
    }
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _met(rule: Mechanism, config: Config, seed: int) -> Result:
    """What the rule does with clients of the true distribution, and what a quick attack gains."""
    distribution, clients, budget = scenario(config["truth"]), config["clients"], float(config["budget"])
    factor = config["scale"]
    if factor != 1.0:
        assert isinstance(distribution, IndependentDistribution)
        drawn = distribution.valuation
        distribution = replace(distribution, valuation=lambda u: factor * drawn(u))
    rng = np.random.default_rng([seed, clients])
    types = distribution.sample(rng, clients, (config["markets"],))
    with outside_training():
        merit = judge(types, rule.run(types, budget), budget)
        found = TrainingAttack()(rule, types[0], budget, rng)
    return {
        "fluid_ratio": merit.epsilon / fluid_bound(distribution, clients, budget),
        "spend_over_budget": merit.spend / budget,
        "over_budget": merit.over_budget,
        "underpaid": merit.underpaid,
        "regret": float(gain_shares(found.gain, merit.mean_payment, budget).mean()),
    }
