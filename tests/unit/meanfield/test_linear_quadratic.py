"""The coupled solver against a linear-quadratic mean-field game with a Riccati solution.

dv = κ(m − v)dt + σdW, dr = −x dt, reward (τ − v)x − x²/2 − φr²/2, at the end q·r − A·r²/2; τ_t such that the
mean of x is d. With Φ quadratic, x = τ − v − ∂_rΦ is linear and its coefficients solve Riccati equations.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import ndtri

from privmarket.market._distributions import IndependentDistribution
from privmarket.meanfield import SCHEMES, Grid, MeanReverting, Population, Problem, QuadraticMarket, Result, solve

KAPPA, SIGMA, MEAN = 0.5, 0.08, 0.5
PHI, A, Q, DEMAND, HORIZON, START = 0.1, 0.2, 2.0, 0.25, 4.0, 3.0

CLIENTS = IndependentDistribution(
    "lq", lambda u: MEAN + 0.06 * ndtri(u), lambda u: START + 0.15 * ndtri(u), epsilon_max=4.0
)
PROBLEM = Problem(
    (Population(CLIENTS, MeanReverting(KAPPA, SIGMA)),),
    QuadraticMarket(rate_cap=2.0),
    budget_per_client=DEMAND,
    horizon=HORIZON,
    valuation_limit=1.2,
    price_ceiling=5.0,
    holding_reward=lambda r: -0.5 * PHI * r**2,
    final_value=lambda r: Q * r - 0.5 * A * r**2,
)


def riccati(time: np.ndarray) -> tuple[np.ndarray, ...]:
    """P_vr, P_rr, q_r of ∂_rΦ = P_vr·v + P_rr·r + q_r, and the price, by an independent ODE solver."""

    def intercept(t, p_vr, p_rr):
        return DEMAND + (1 + p_vr) * MEAN + p_rr * (START - DEMAND * t)

    def backwards(s, y):
        p_vr, p_rr, _ = y
        a, c = -(1 + p_vr), -p_rr
        k = intercept(HORIZON - s, p_vr, p_rr)
        return [a * c - KAPPA * p_vr, p_rr**2 - PHI, k * c + KAPPA * MEAN * p_vr]

    solution = solve_ivp(backwards, (0, HORIZON), [0, -A, Q], rtol=1e-11, atol=1e-12, dense_output=True)
    p_vr, p_rr, q_r = solution.sol(HORIZON - time)
    return p_vr, p_rr, q_r, intercept(time, p_vr, p_rr) + q_r


def errors(scheme: str, refinement: int) -> tuple[float, float]:
    """Largest error of the price path, and of the shadow price on average over the population."""
    grid = Grid(12 * refinement, 16 * refinement + 1, 40 * refinement)
    equilibrium = solve(PROBLEM, scheme, grid=grid, tolerance=1e-6)
    assert equilibrium.result is Result.CONVERGED
    mesh = equilibrium.game.mesh
    p_vr, p_rr, q_r, price = (x[:, None, None] for x in riccati(mesh.time[:-1]))
    exact = p_vr * mesh.valuation[:, None] + p_rr * mesh.budget + q_r
    mass = equilibrium.flow.mass[:-1, 0]
    shadow = (mass * np.abs(equilibrium.shadow_price[:, 0] - exact)).sum(axis=(1, 2)).max()
    return float(np.abs(equilibrium.price - price[:, 0, 0]).max()), float(shadow)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_prices_and_shadow_prices_converge_at_the_declared_order(scheme):
    coarse, fine = errors(scheme, 1), errors(scheme, 2)
    assert max(fine) < 0.03  # of prices between 1.35 and 2.34
    for before, after in zip(coarse, fine, strict=True):
        assert np.log2(before / after) == pytest.approx(SCHEMES[scheme].order.budget, abs=0.1)
