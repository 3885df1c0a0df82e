"""What is traded and what is promised. NumPy and float64 only.

- `bids`, `bid_file`, `frames`: offers, offers from CSV files, and data frames.
- `outcome`, `mechanism`: what an auction decides, and the interface of every rule.
- `facts`, `scenarios`: what is publicly known about a market, and the laws that clients are drawn from.
- `guarantees`, `attacks`, `collusion`: promises of rules, and the search for misreports that break them.
- `objectives`, `bounds`, `aggregate_bound`, `typical_bound`: what the buyer wants, and the most that any rule could
  get of it.
- `evaluation`, `audit_report`: how outcomes are judged, and the report on one rule.
- `menu`, `ration_curve`, `ration_design`: curves of unit prices, and which of them suit a law.
"""
