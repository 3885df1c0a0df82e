"""The mean-field game of selling privacy budget over many rounds.

>>> from privmarket.meanfield import Problem, solve
>>> equilibrium = solve(Problem.from_scenario("uniform", budget_per_client=0.1))
>>> report = equilibrium.strategy()          # (valuation, remaining_budget, time) → report
"""

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
    "exploitability",
    "load_bid_function",
    "solve",
    "truthful",
]
