"""The mean-field game of selling privacy budget over many rounds.

>>> from privmarket.meanfield import Problem, solve
>>> equilibrium = solve(Problem.from_scenario("uniform", budget_per_client=0.1))
>>> report = equilibrium.strategy()          # (valuation, remaining_budget, time) → report

- `problem`, `representative`, `valuation_process`: the game, the market as one client sees it, moving valuations.
- `grid`, `schemes`, `game`, `solver`, `bid_function`: the discrete game, its solution, also as a function.
- `finite_game`, `offered`, `deviation_gain`, `assumptions`: how far the solution holds for finitely many clients.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
