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

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
