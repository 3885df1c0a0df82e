"""Valuations against closed forms: the heat equation, Ornstein–Uhlenbeck densities, the stationary law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import gamma, truncnorm

from privmarket.errors import ConfigurationError
from privmarket.meanfield import SCHEMES, Diffusion, Grid, MeanReverting, Mesh, Problem, solve
from privmarket.meanfield._valuations import NeighbourTransition, transition_of

ORDER = SCHEMES["explicit"].order


def mesh_of(cells: int, width: float, step: float) -> Mesh:
    return Mesh(Grid(cells, 4, 1), valuation_limit=cells * width, budget_limit=1.0, horizon=step)


def reverting(
    cells: int, width: float, mean: float, reversion: float, volatility: float, step: float
) -> NeighbourTransition:
    return MeanReverting(reversion, volatility).transition(mesh_of(cells, width, step), mean)


def heat_error(cells: int, steps: int) -> float:
    """Largest error for cos(πv) under dv = σ dW between reflecting walls at 0 and 1, at t = 1."""
    volatility = 0.4
    process = reverting(cells, 1 / cells, 0.5, 0.0, volatility, 1 / steps)
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
    process = reverting(cells, width, mean, reversion, volatility, 1 / steps)
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
    process = reverting(200, 0.01, 1.0, 1.0, 0.2, 10.0)
    mass = np.full(200, 1 / 200)
    for _ in range(60):
        mass = process.move(mass)
    centre = (np.arange(200) + 0.5) * 0.01
    np.testing.assert_allclose(mass / 0.01, gaussian(centre, 1.0, 0.2 / np.sqrt(2)), atol=2e-3)


def test_moves_are_the_exact_transpose_of_expectations():
    process = reverting(12, 0.1, 0.4, 0.8, 0.3, 0.7)
    forward = np.stack([process.move(row) for row in np.eye(12)])
    backward = process.expect(np.eye(12))
    np.testing.assert_allclose(forward, backward, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(backward.sum(axis=1), 1.0, atol=1e-14)
    assert forward.min() >= 0


@pytest.mark.parametrize("volatility", [0.0, 1e-6, 1e-3, 1.0])
def test_mass_stays_and_stays_positive_at_any_peclet_number(volatility):
    process = reverting(64, 0.02, 0.3, 5.0, volatility, 0.5)
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
    process = reverting(cells, width, 0.0, 1.0, volatility, step)
    at = 50
    start = np.zeros(cells)
    start[at] = 1.0
    centre = (np.arange(cells) + 0.5) * width
    mass = process.move(start)
    second_moment = mass @ (centre - centre[at]) ** 2 / step
    added = second_moment / volatility**2 - 1
    declared = MeanReverting(1.0, volatility).added_diffusion(mesh_of(cells, width, step), 0.0)
    assert added == pytest.approx(declared[at], rel=0.02)


def test_a_square_root_process_ends_in_its_gamma_distribution():
    """dv = κ(m − v)dt + σ√v dW: the volatility depends on v, and the stationary distribution is a Gamma."""
    kappa, mean, sigma = 0.8, 0.6, 0.35
    process = Diffusion(lambda v, m: kappa * (m - v), lambda v: sigma * np.sqrt(v))
    transition = process.transition(mesh_of(400, 0.01, 20.0), mean)
    mass = np.full(400, 1 / 400)
    for _ in range(20):
        mass = transition.move(mass)
    exact = np.diff(gamma.cdf(np.arange(401) * 0.01, 2 * kappa * mean / sigma**2, scale=sigma**2 / (2 * kappa)))
    assert np.abs(mass - exact).sum() < 1e-3
    forgot = Diffusion(process.drift, lambda v: np.full_like(v, sigma * np.sqrt(mean))).transition(
        mesh_of(400, 0.01, 20.0), mean
    )
    for _ in range(20):
        mass = forgot.move(mass)
    assert np.abs(mass - exact).sum() > 0.05  # a constant volatility of the same size is told apart


def test_mean_reversion_as_a_general_diffusion_is_the_same():
    mesh = mesh_of(40, 0.05, 0.3)
    own = Diffusion(lambda v, m: 0.7 * (m - v), lambda v: 0.2)
    mass = np.linspace(0, 1, 40)
    expected = MeanReverting(0.7, 0.2).transition(mesh, 0.9).move(mass)
    np.testing.assert_array_equal(own.transition(mesh, 0.9).move(mass), expected)
    np.testing.assert_array_equal(
        own.added_diffusion(mesh, 0.9), MeanReverting(0.7, 0.2).added_diffusion(mesh, 0.9)
    )


class AsMatrix:
    """A process of someone's own: mean reversion written out as a matrix."""

    def __init__(self, process):
        self.process = process

    def transition(self, mesh, mean):
        return self.process.transition(mesh, mean).expect(np.eye(mesh.grid.valuation_cells))


def test_a_process_given_by_its_matrix_gives_the_same_equilibrium():
    process = MeanReverting(0.3, 0.1)
    settings = {"valuation_limit": 1.4}
    built_in = solve(Problem.from_scenario(process=process, **settings), grid="24x16x16", tolerance=1e-4)
    own = solve(Problem.from_scenario(process=AsMatrix(process), **settings), grid="24x16x16", tolerance=1e-4)
    np.testing.assert_allclose(own.price, built_in.price, rtol=1e-12)


def test_matrices_that_are_no_probabilities_are_refused():
    class Own:
        def __init__(self, matrix):
            self.matrix = matrix

        def transition(self, mesh, mean):
            return self.matrix

    mesh = mesh_of(5, 0.2, 1.0)
    with pytest.raises(ConfigurationError, match="shape"):
        transition_of(Own(np.eye(4)), mesh, 0.5)
    with pytest.raises(ConfigurationError, match=r"sum to 1\.1"):
        transition_of(Own(1.1 * np.eye(5)), mesh, 0.5)
    negative = np.eye(5) + np.diag([0.1] * 4, 1) - np.diag([0.1] * 4 + [0.0])
    negative[0] = [1.2, -0.2, 0, 0, 0]
    with pytest.raises(ConfigurationError, match=r"smallest entry is -0\.2"):
        transition_of(Own(negative), mesh, 0.5)
    with pytest.raises(ConfigurationError, match="reversion is -1"):
        MeanReverting(-1.0, 0.1)
