"""When budgets do not bind, truth is optimal and the price path has a closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from privmarket.market._distributions import IndependentDistribution
from privmarket.market._menus import POSTED_PRICE, MenuCurve
from privmarket.meanfield import SCHEMES, Grid, MeanReverting, MenuMarket, Population, Problem, solve

CAP, SPREAD, KAPPA, SIGMA, BUDGET = 0.05, 0.15, 0.4, 0.1, 0.012


def problem(curve: MenuCurve = POSTED_PRICE) -> Problem:
    """Everyone starts with far more budget than the horizon can sell; valuations start Gaussian."""
    rich = IndependentDistribution(
        "rich", lambda u: 1.0 + SPREAD * ndtri(u), lambda u: np.full_like(u, 5.0), epsilon_max=5.0
    )
    clients = Population(rich, MeanReverting(KAPPA, SIGMA))
    return Problem((clients,), MenuMarket(curve, CAP), BUDGET, 4.0, valuation_limit=2.0, price_ceiling=2.0)


def exact_price(time: float) -> float:
    """τ with cap·τ·P(v < τ) = budget, v Gaussian at every time."""
    decay = np.exp(-2 * KAPPA * time)
    sd = np.sqrt(SPREAD**2 * decay + SIGMA**2 / (2 * KAPPA) * (1 - decay))
    return float(brentq(lambda tau: CAP * tau * ndtr((tau - 1.0) / sd) - BUDGET, 0.1, 2.0))


def price_error(scheme: str, cells: int, steps: int) -> float:
    equilibrium = solve(problem(), scheme, grid=Grid(cells, 110, steps))
    exact = [exact_price(t) for t in equilibrium.game.mesh.time[:-1]]
    return float(np.abs(equilibrium.price - exact).max())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_truth_is_optimal(scheme):
    equilibrium = solve(problem(), scheme, grid=Grid(32, 110, 20))
    mass = equilibrium.flow.mass[:-1]
    assert (mass * equilibrium.shadow_price).sum(axis=(1, 2, 3)).max() < 1e-9
    report = equilibrium.strategy()(0.7, 5.0, 1.0)
    assert report == pytest.approx(0.7, abs=1e-9)
    np.testing.assert_allclose(equilibrium.mean_bid(), 1.0, atol=2e-3)


def test_prices_have_the_declared_order_in_valuation_and_time():
    order = SCHEMES["explicit"].order
    by_cells = price_error("explicit", 32, 200), price_error("explicit", 64, 200)
    assert np.log2(by_cells[0] / by_cells[1]) == pytest.approx(order.valuation, abs=0.4)
    by_steps = price_error("explicit", 160, 10), price_error("explicit", 160, 20)
    assert np.log2(by_steps[0] / by_steps[1]) == pytest.approx(order.time, abs=0.2)
    assert by_steps[1] < 2e-3


def test_with_one_round_left_nobody_shades():
    """At the last step the future is worth nothing: the report is the valuation."""
    equilibrium = solve(Problem.from_scenario(), grid=Grid(24, 24, 30))
    assert np.abs(equilibrium.shadow_price[-1]).max() == 0.0
