"""Valuations against closed forms: the heat equation, Ornstein–Uhlenbeck densities, the stationary law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import truncnorm

from privmarket.meanfield import SCHEMES
from privmarket.meanfield._valuation_process import ValuationProcess

ORDER = SCHEMES["explicit"].order


def heat_error(cells: int, steps: int) -> float:
    """Largest error for cos(πv) under dv = σ dW between reflecting walls at 0 and 1, at t = 1."""
    volatility = 0.4
    process = ValuationProcess(cells, 1 / cells, 0.5, 0.0, volatility, 1 / steps)
    centre = (np.arange(cells) + 0.5) / cells
    mass = (1 + np.cos(np.pi * centre)) / cells
    for _ in range(steps):
        mass = process.move(mass)
    exact = 1 + np.exp(-0.5 * volatility**2 * np.pi**2) * np.cos(np.pi * centre)
    return float(np.abs(mass * cells - exact).max())


def gaussian(x: np.ndarray, mean: float, sd: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))


def ou_error(cells: int, steps: int) -> float:
    """L1 error of the density of an Ornstein–Uhlenbeck process at t = 1 that starts Gaussian."""
    reversion, volatility, mean, start, sd = 1.0, 0.15, 1.0, 0.6, 0.08
    width = 2.0 / cells
    process = ValuationProcess(cells, width, mean, reversion, volatility, 1 / steps)
    centre = (np.arange(cells) + 0.5) * width
    mass = gaussian(centre, start, sd) * width
    for _ in range(steps):
        mass = process.move(mass)
    decay = np.exp(-reversion)
    spread = np.sqrt(sd**2 * decay**2 + volatility**2 / (2 * reversion) * (1 - decay**2))
    exact = gaussian(centre, mean + (start - mean) * decay, spread)
    return float(np.abs(mass - exact * width).sum())


def slope(coarse: float, fine: float) -> float:
    return float(np.log2(coarse / fine))


def test_heat_equation_in_valuation_has_the_declared_order():
    assert slope(heat_error(16, 20_000), heat_error(32, 20_000)) == pytest.approx(ORDER.valuation, abs=0.15)


@pytest.mark.parametrize("error", [heat_error, ou_error])
def test_time_has_the_declared_order(error):
    assert slope(error(400, 20), error(400, 40)) == pytest.approx(ORDER.time, abs=0.15)


def test_ornstein_uhlenbeck_in_valuation_has_the_declared_order():
    assert slope(ou_error(40, 4000), ou_error(80, 4000)) == pytest.approx(ORDER.valuation, abs=0.25)


def test_stationary_law_is_gaussian():
    process = ValuationProcess(200, 0.01, 1.0, 1.0, 0.2, 10.0)
    mass = np.full(200, 1 / 200)
    for _ in range(60):
        mass = process.move(mass)
    centre = (np.arange(200) + 0.5) * 0.01
    np.testing.assert_allclose(mass / 0.01, gaussian(centre, 1.0, 0.2 / np.sqrt(2)), atol=2e-3)


def test_moves_are_the_exact_transpose_of_expectations():
    process = ValuationProcess(12, 0.1, 0.4, 0.8, 0.3, 0.7)
    forward = np.stack([process.move(row) for row in np.eye(12)])
    backward = process.expect(np.eye(12))
    np.testing.assert_allclose(forward, backward, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(backward.sum(axis=1), 1.0, atol=1e-14)
    assert forward.min() >= 0


@pytest.mark.parametrize("volatility", [0.0, 1e-6, 1e-3, 1.0])
def test_mass_stays_and_stays_positive_at_any_peclet_number(volatility):
    process = ValuationProcess(64, 0.02, 0.3, 5.0, volatility, 0.5)
    mass = np.zeros(64)
    mass[60] = 1.0
    for _ in range(100):
        mass = process.move(mass)
        assert mass.min() >= 0
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    # Stationary by now: a Gaussian around 0.3 with variance σ²/(2κ), cut at the walls; to half a cell.
    spread = max(volatility, 1e-9) / np.sqrt(2 * 5.0)
    walls = (np.array([0.0, 64 * 0.02]) - 0.3) / spread
    expected = truncnorm.mean(*walls, loc=0.3, scale=spread)
    assert mass @ (np.arange(64) + 0.5) * 0.02 == pytest.approx(expected, abs=0.0101)


def test_added_diffusion_matches_what_the_scheme_adds():
    """The variance that one small step adds, over σ²dt, at a cell with a large Péclet number."""
    cells, width, volatility, step = 101, 0.02, 0.05, 1e-7
    process = ValuationProcess(cells, width, 0.0, 1.0, volatility, step)
    at = 50
    start = np.zeros(cells)
    start[at] = 1.0
    centre = (np.arange(cells) + 0.5) * width
    mass = process.move(start)
    second_moment = mass @ (centre - centre[at]) ** 2 / step
    added = second_moment / volatility**2 - 1
    assert added == pytest.approx(process.added_diffusion()[at], rel=0.02)
