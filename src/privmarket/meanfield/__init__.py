"""The mean-field game of selling privacy budget over many rounds.

>>> from privmarket.meanfield import Problem, solve
>>> equilibrium = solve(Problem.from_scenario("uniform", budget_per_client=0.1))
>>> report = equilibrium.strategy()          # (valuation, remaining_budget, time) → report

Begin with `Problem`, which says who the clients are, how their valuations move and what a round's market is, then
`solve`, then `Equilibrium`, which has `to_frame` and `plot`. `nash_gap` says what the solution loses with N
clients.

- The game: `Problem`, `Population`; how valuations move: `MeanReverting`, `Diffusion`, or your own
  `ValuationProcess`; the market of a round: `MenuMarket`, or your own `RepresentativeMarket`.
- The solution: `solve`, with a `Method` (`BestResponse`, `FictitiousPlay`, `OnlineMirrorDescent`, or your own);
  `Equilibrium`, `BidFunction`, `load_bid_function`, `truthful`, `exploitability`.
- Finitely many clients: `nash_gap`, `FiniteGame`; the theorems' assumptions: `check_assumptions`, `payment_slope`.
- Underneath: `Grid` and `Mesh`, `BudgetScheme`, `DiscreteGame`, which holds both equations.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
