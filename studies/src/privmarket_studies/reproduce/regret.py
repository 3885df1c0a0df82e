"""One cell of RQ1: what misreports gain against a rule, client by client, under attacks of rising strength."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privmarket.market._attacks import Regret
from privmarket.market._audit import gain_shares, judge
from privmarket.market._bids import Bids
from privmarket.market._distributions import scenario
from privmarket.market._mechanism import Mechanism
from privmarket_studies.reproduce.attack_strengths import PARTS, STRENGTHS, Counted
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training, rule_for

# Markets that the mean payment is taken over: it is the denominator of everything, and auctions are cheap.
PAYMENT_MARKETS = 50
_QUANTILES = (1, 5, 25, 50, 75, 95, 99)


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: mechanism, scenario, clients, budget, attack (the strongest level), parts (of `PARTS`, or None).

    `markets`, 1 where it is not given, says in how many markets all clients are attacked. Gains are shares of the
    rule's own mean payment per client in this setting.
    """
    distribution, clients, budget = scenario(config["scenario"]), config["clients"], float(config["budget"])
    # Seeds draw the same markets for every rule.
    rng = np.random.default_rng([seed, clients])
    with outside_training() as said:
        rule = rule_for(config["mechanism"], distribution)
        types = distribution.sample(rng, clients, (PAYMENT_MARKETS,))
        merit = judge(types, rule.run(types, budget), budget)
        paid = merit.mean_payment
        attacked = types[0] if config.get("markets", 1) == 1 else types[: config["markets"]]
        found, levels = _climb(rule, attacked, budget, paid, config["attack"], rng)
        parts = {}
        if config["parts"] is not None:
            for name, attack in zip(("in_valuation", "in_epsilon"), PARTS[config["parts"]], strict=True):
                tried = attack(rule, attacked, budget, rng)
                found = found.worst_of(tried)
                parts[f"mean_{name}"] = float(gain_shares(tried.gain, paid, budget).mean())
    share = gain_shares(found.gain, paid, budget)
    return {
        "mean": float(share.mean()),
        **parts,
        "maximum": float(share.max()),
        "gainers": float((share > 0).mean()),
        "quantiles": {str(q): float(np.percentile(share, q)) for q in _QUANTILES},
        "gains": [float(f"{x:.4g}") for x in np.sort(share, axis=None)],
        "levels": levels,
        "mean_payment": paid,
        "underpaid": merit.underpaid,
        "outside_training": said,
    }


def _climb(
    rule: Mechanism, market: Bids, budget: float, paid: float, last: str, rng: np.random.Generator
) -> tuple[Regret, dict[str, dict[str, float]]]:
    """All levels up to `last`; per level the reports tried so far and the mean share found so far."""
    counted, levels = Counted(rule), {}
    found = Regret(np.zeros(market.shape), market.valuation, market.epsilon)
    for name, attack in STRENGTHS.items():
        found = found.worst_of(attack(counted, market, budget, rng))
        levels[name] = {"reports": counted.reports, "mean": float(gain_shares(found.gain, paid, budget).mean())}
        if name == last:
            break
    return found, levels
