"""The mean-field game of selling privacy budget over many rounds.

>>> from privmarket.meanfield import Problem, solve
>>> equilibrium = solve(Problem.from_scenario("uniform", budget_per_client=0.1))
>>> report = equilibrium.strategy()          # (valuation, remaining_budget, time) → report

- `problem`, `representative`, `valuation_process`: the game, the market as one client sees it, moving valuations.
- `grid`, `schemes`, `game`, `solver`, `bid_function`: the discrete game, its solution, also as a function.
- `finite_game`, `offered`, `deviation_gain`, `assumptions`: how far the solution holds for finitely many clients.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.meanfield import (
        assumptions,
        bid_function,
        deviation_gain,
        finite_game,
        game,
        grid,
        offered,
        problem,
        representative,
        schemes,
        solver,
        valuation_process,
    )
    from privmarket.meanfield.bid_function import BidFunction, Surface, load_bid_function, truthful
    from privmarket.meanfield.game import DiscreteGame, Flow
    from privmarket.meanfield.grid import Grid, Mesh
    from privmarket.meanfield.problem import Problem
    from privmarket.meanfield.representative import MenuMarket, QuadraticMarket, RepresentativeMarket
    from privmarket.meanfield.schemes import SCHEMES, BudgetScheme, ExplicitUpwind, ImplicitUpwind
    from privmarket.meanfield.solver import Equilibrium, Note, Result, Statistics, exploitability, solve

__all__ = [
    "SCHEMES",
    "BidFunction",
    "BudgetScheme",
    "DiscreteGame",
    "Equilibrium",
    "ExplicitUpwind",
    "Flow",
    "Grid",
    "ImplicitUpwind",
    "MenuMarket",
    "Mesh",
    "Note",
    "Problem",
    "QuadraticMarket",
    "RepresentativeMarket",
    "Result",
    "Statistics",
    "Surface",
    "assumptions",
    "bid_function",
    "deviation_gain",
    "exploitability",
    "finite_game",
    "game",
    "grid",
    "load_bid_function",
    "offered",
    "problem",
    "representative",
    "schemes",
    "solve",
    "solver",
    "truthful",
    "valuation_process",
]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "BidFunction": "privmarket.meanfield.bid_function",
    "BudgetScheme": "privmarket.meanfield.schemes",
    "DiscreteGame": "privmarket.meanfield.game",
    "Equilibrium": "privmarket.meanfield.solver",
    "ExplicitUpwind": "privmarket.meanfield.schemes",
    "Flow": "privmarket.meanfield.game",
    "Grid": "privmarket.meanfield.grid",
    "ImplicitUpwind": "privmarket.meanfield.schemes",
    "MenuMarket": "privmarket.meanfield.representative",
    "Mesh": "privmarket.meanfield.grid",
    "Note": "privmarket.meanfield.solver",
    "Problem": "privmarket.meanfield.problem",
    "QuadraticMarket": "privmarket.meanfield.representative",
    "RepresentativeMarket": "privmarket.meanfield.representative",
    "Result": "privmarket.meanfield.solver",
    "SCHEMES": "privmarket.meanfield.schemes",
    "Statistics": "privmarket.meanfield.solver",
    "Surface": "privmarket.meanfield.bid_function",
    "exploitability": "privmarket.meanfield.solver",
    "load_bid_function": "privmarket.meanfield.bid_function",
    "solve": "privmarket.meanfield.solver",
    "truthful": "privmarket.meanfield.bid_function",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
