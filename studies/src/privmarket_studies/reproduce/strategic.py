"""One cell of the ablations: a market of several rounds with lifetime budgets, clients strategic or truthful."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from privmarket.market._bids import Bids
from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield import Equilibrium, Grid, MeanReverting, MenuMarket, Problem, solve, truthful
from privmarket.mechanisms import mechanism
from privmarket_studies.reproduce.cells import Config, Result

_SALE_CAP = 0.3
_ROUNDS = 12
_BUDGET_PER_CLIENT = 0.1


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: strategy (equilibrium or truthful), clients, games, grid.

    Clients hold what ε they may sell in their life, drawn from Uniform, and sell at most 0.3 of it a round to the
    exact mean-field menu; valuations move as in the game that was solved.
    """
    solved = _solved(config["grid"])
    (population,) = solved.problem.populations
    process = population.process
    assert isinstance(process, MeanReverting)
    report = solved.strategy() if config["strategy"] == "equilibrium" else truthful
    rng = np.random.default_rng([seed, config["clients"]])
    games, clients = config["games"], config["clients"]
    start = population.distribution.sample(rng, clients, (games,))
    mean = float(start.valuation.mean())
    rule = mechanism("mean-field-menu", epsilon_max=_SALE_CAP)
    gains, sold, paid = (np.zeros((games, clients)) for _ in range(3))
    valuation, left = start.valuation.copy(), start.epsilon.copy()
    for number in range(_ROUNDS):
        for game in range(games):
            has = np.flatnonzero(left[game] > 1e-9)
            asked = np.maximum(report(valuation[game, has], left[game, has], float(number)), 0.0)
            bids = Bids(asked, np.minimum(left[game, has], _SALE_CAP))
            outcome = rule.run(bids, _BUDGET_PER_CLIENT * clients)
            sold[game, has] += outcome.epsilon
            paid[game, has] += outcome.payment
            gains[game, has] += outcome.payment - valuation[game, has] * outcome.epsilon
            left[game, has] -= outcome.epsilon
        # The next valuation: back towards the mean, with noise, never below 0.
        noise = process.volatility * rng.standard_normal(valuation.shape)
        valuation = np.maximum(valuation + process.reversion * (mean - valuation) + noise, 0.0)
    return {
        "utility": float(gains.mean()),
        "epsilon": float(sold.mean()),
        "pay": float(paid.mean()),
        "unit_price": float(paid.sum() / sold.sum()),
    }


@lru_cache(maxsize=2)
def _solved(grid: str) -> Equilibrium:
    problem = Problem.from_scenario(
        "uniform",
        budget_per_client=_BUDGET_PER_CLIENT,
        horizon=_ROUNDS,
        market=MenuMarket(POSTED_PRICE, sale_cap=_SALE_CAP),
    )
    solved = solve(problem, grid=Grid.parse(grid))
    if solved.result.value != "converged":
        raise RuntimeError(f"the mean-field game did not converge: {solved.result.value}")
    return solved
