"""Cells about truthful markets: what a rule buys, whom it pays, and what the paper's own table counts of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privmarket.market._audit import judge
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import scenario
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training, rule_for

FIFTHS = 5
_SIZES = (10, 500)  # records per client in the authors' code
_SIZES_STREAM = 1


def run_efficiency(config: Config, seed: int, scratch: Path) -> Result:
    """One cell of RQ3: what a rule buys and pays in many markets drawn from one distribution.

    Config: mechanism, scenario, clients, budget, markets (the paper's rounds).
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rule = rule_for(config["mechanism"], distribution)
    types = distribution.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
    with outside_training() as said:
        outcome = rule.run(types, budget)
    merit = judge(types, outcome, budget)
    figures = {
        "spend": merit.spend,
        "spend_over_budget": merit.spend / budget,
        "over_budget": merit.over_budget,
        "welfare": merit.welfare,
        "welfare_over_budget": merit.welfare / budget,
        "epsilon": merit.epsilon,
        "epsilon_per_money": merit.epsilon_per_money,
        "fluid_ratio": merit.epsilon / fluid_bound(distribution, clients, budget),
        "underpaid": merit.underpaid,
        "over_offer": merit.over_offer,
        "sellers": merit.participation,
        "spend_std_over_markets": float(outcome.spend.std()),
    }
    return {name: _six_digits(value) for name, value in figures.items()} | {"outside_training": said}


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def run_printed_row(config: Config, seed: int, scratch: Path) -> Result:
    """One cell of the paper's efficiency table: R, W′ and BF of a row, as the authors' code counts them.

    Config: mechanism, clients, budget, markets, sizes (whether clients have data sizes from 10 to 500).
    """
    distribution, clients, budget = scenario("uniform"), config["clients"], float(config["budget"])
    types = distribution.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
    if config["sizes"]:
        draws = np.random.default_rng([seed, clients, _SIZES_STREAM])
        types = types.replace(data_size=draws.integers(_SIZES[0], _SIZES[1] + 1, types.shape).astype(np.float64))
    with outside_training():
        outcome = rule_for(config["mechanism"], distribution).run(types, budget)
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


def run_fairness(config: Config, seed: int, scratch: Path) -> Result:
    """One cell of the fairness page: who sells and who is paid, a fifth of the clients by valuation at a time.

    Config: mechanism, settings, scenario, clients, budget, markets. Fifths of all clients, cheapest first.
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    rule = rule_for(config["mechanism"], distribution, **config["settings"])
    types = distribution.sample(np.random.default_rng([seed, clients]), clients, (config["markets"],))
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
        "fluid_ratio": float(outcome.total_epsilon.mean()) / fluid_bound(distribution, clients, budget),
        "sell": float((sold > 0).mean()),
        "least_unit_price": float((paid[sold > 0] / sold[sold > 0]).min()) if (sold > 0).any() else None,
        "outside_training": said,
    }
