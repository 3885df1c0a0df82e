"""What is traded and what is promised. NumPy and SciPy, float64.

- `bids`, `bid_file`, `frames`: offers, offers from CSV files, and data frames.
- `outcome`, `mechanism`: what an auction decides, and the interface of every rule.
- `facts`, `scenarios`: what is publicly known about a market, and the laws that clients are drawn from.
- `guarantees`, `attacks`, `collusion`: promises of rules, and the search for misreports that break them.
- `objectives`, `bounds`, `aggregate_bound`, `typical_bound`: what the buyer wants, and points of
  reference for how much of it a budget buys.
- `exact_optimum`, `certificate`: the best truthful rule of a small market, and upper bounds on regret.
- `randomised`: rules that throw coins.
- `evaluation`, `audit_report`: how outcomes are judged, and the report on one rule.
- `menu`, `ration_curve`, `ration_design`: curves of unit prices, and which of them suit a law.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.market import (
        aggregate_bound,
        attacks,
        audit_report,
        bid_file,
        bids,
        bounds,
        certificate,
        collusion,
        evaluation,
        exact_optimum,
        facts,
        frames,
        guarantees,
        mechanism,
        menu,
        objectives,
        outcome,
        randomised,
        ration_curve,
        ration_design,
        scenarios,
        typical_bound,
    )
    from privmarket.market.attacks import AscentAttack, GridAttack, Regret
    from privmarket.market.audit_report import AuditReport
    from privmarket.market.bid_file import read_bids
    from privmarket.market.bids import Bids
    from privmarket.market.bounds import first_best_bound, fluid_bound, one_price_bound, prior_free_reference
    from privmarket.market.collusion import CoalitionAttack
    from privmarket.market.evaluation import judge
    from privmarket.market.exact_optimum import TypeGrid
    from privmarket.market.facts import MarketFacts
    from privmarket.market.mechanism import Mechanism, Witness
    from privmarket.market.outcome import Outcome
    from privmarket.market.randomised import RandomisedMechanism
    from privmarket.market.scenarios import Law, scenario

__all__ = [
    "AscentAttack",
    "AuditReport",
    "Bids",
    "CoalitionAttack",
    "GridAttack",
    "Law",
    "MarketFacts",
    "Mechanism",
    "Outcome",
    "RandomisedMechanism",
    "Regret",
    "TypeGrid",
    "Witness",
    "aggregate_bound",
    "attacks",
    "audit_report",
    "bid_file",
    "bids",
    "bounds",
    "certificate",
    "collusion",
    "evaluation",
    "exact_optimum",
    "facts",
    "first_best_bound",
    "fluid_bound",
    "frames",
    "guarantees",
    "judge",
    "mechanism",
    "menu",
    "objectives",
    "one_price_bound",
    "outcome",
    "prior_free_reference",
    "randomised",
    "ration_curve",
    "ration_design",
    "read_bids",
    "scenario",
    "scenarios",
    "typical_bound",
]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "AscentAttack": "privmarket.market.attacks",
    "AuditReport": "privmarket.market.audit_report",
    "Bids": "privmarket.market.bids",
    "CoalitionAttack": "privmarket.market.collusion",
    "GridAttack": "privmarket.market.attacks",
    "Law": "privmarket.market.scenarios",
    "MarketFacts": "privmarket.market.facts",
    "Mechanism": "privmarket.market.mechanism",
    "Outcome": "privmarket.market.outcome",
    "RandomisedMechanism": "privmarket.market.randomised",
    "Regret": "privmarket.market.attacks",
    "TypeGrid": "privmarket.market.exact_optimum",
    "Witness": "privmarket.market.mechanism",
    "first_best_bound": "privmarket.market.bounds",
    "fluid_bound": "privmarket.market.bounds",
    "judge": "privmarket.market.evaluation",
    "one_price_bound": "privmarket.market.bounds",
    "prior_free_reference": "privmarket.market.bounds",
    "read_bids": "privmarket.market.bid_file",
    "scenario": "privmarket.market.scenarios",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
