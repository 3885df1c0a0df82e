"""What is traded and what is promised. NumPy and float64 only.

- `bids`, `bid_file`: offers, and offers from CSV files.
- `outcome`, `mechanism`: what an auction decides, and the interface of every rule.
- `facts`: what is publicly known about a market before anyone bids.
- `scenarios`: the laws that clients are drawn from.
- `guarantees`, `attacks`: promises of rules, and the search for misreports that break them.
- `objectives`, `bounds`: what the buyer wants, and the most that any rule could get of it.
- `evaluation`, `audit`: how outcomes are judged, and the report on one rule.
- `menu`: curves of unit prices.
"""
