"""The solution: its bid function (exact on linear surfaces, plain, quick), table, figure and repr."""

from __future__ import annotations

import time

import numpy as np
import pytest

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.meanfield import BidFunction, Grid, Mesh, Problem, Surface, solve, truthful

MESH = Mesh(Grid(20, 11, 8), valuation_limit=1.0, budget_limit=5.0, horizon=4.0)


def linear_surface() -> Surface:
    v, r, t = MESH.valuation[:, None], MESH.budget, MESH.time[:-1, None, None]
    return Surface(MESH, 1.0 + 2.0 * v - 0.3 * r + 0.5 * t)


def test_interpolation_is_exact_on_linear_surfaces():
    rng = np.random.default_rng(0)
    v, r, t = rng.uniform(0.03, 0.97, 500), rng.uniform(0, 5, 500), rng.uniform(0, 3.4, 500)
    exact = 1.0 + 2.0 * v - 0.3 * r + 0.5 * t
    np.testing.assert_allclose(linear_surface()(v, r, t), exact, atol=1e-12)
    at_once = linear_surface()(v, r, 2.2)
    np.testing.assert_allclose(at_once, exact - 0.5 * t + 1.1, atol=1e-12)
    np.testing.assert_allclose(linear_surface()(v, r, np.full(500, 2.2)), at_once, atol=1e-12)


def test_points_beyond_the_mesh_take_its_edge():
    surface = linear_surface()
    assert surface(9.0, 99.0, 99.0) == pytest.approx(1.0 + 2.0 * 0.975 - 1.5 + 0.5 * 3.5)
    assert surface(-1.0, -1.0, -1.0) == pytest.approx(1.0 + 2.0 * 0.025)


def test_a_budget_without_limit_is_offered_truthfully():
    report = BidFunction(linear_surface())(np.array([0.2, 0.2]), np.array([np.inf, 5.0]), 0.0)
    assert report[0] == 0.2
    assert report[1] != 0.2


def test_arguments_broadcast():
    report = BidFunction(linear_surface())(np.linspace(0, 1, 4)[:, None], np.linspace(0, 5, 3), 0.0)
    assert report.shape == (4, 3)
    assert truthful(np.linspace(0, 1, 4)[:, None], np.zeros(3), 0.0).shape == (4, 3)


def test_strategy_gives_the_solved_reports_at_the_middle_of_cells():
    equilibrium = solve(Problem.from_scenario(kinds=2), grid=Grid(24, 24, 30), tolerance=1e-4)
    mesh = equilibrium.game.mesh
    middle = mesh.budget[1:] - 0.5 * mesh.budget_width
    for kind in (0, 1):
        report = equilibrium.strategy(kind)(mesh.valuation[:, None], middle, mesh.time[3])
        expected = mesh.valuation[:, None] + equilibrium.shadow_price[3, kind, :, 1:]
        np.testing.assert_allclose(report, expected, atol=1e-12)
        value = equilibrium.value_function(kind)(mesh.valuation[:, None], mesh.budget, mesh.time[3])
        np.testing.assert_allclose(value, equilibrium.value[3, kind], atol=1e-12)


def plain_bilinear(table: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The reference: textbook bilinear interpolation in NumPy, x and y in units of cells."""
    i = np.clip(np.floor(x).astype(np.intp), 0, table.shape[0] - 2)
    j = np.clip(np.floor(y).astype(np.intp), 0, table.shape[1] - 2)
    a, b = x - i, y - j
    lower = table[i, j] * (1 - a) * (1 - b) + table[i + 1, j] * a * (1 - b)
    return lower + table[i, j + 1] * (1 - a) * b + table[i + 1, j + 1] * a * b


def test_a_million_reports_cost_at_most_five_bilinear_interpolations():
    rng = np.random.default_rng(0)
    v, r, table = rng.random(1_000_000), 5 * rng.random(1_000_000), rng.random((64, 64))
    mesh = Mesh(Grid(64, 64, 50), 1.0, 5.0, 12.0)
    strategy = BidFunction(Surface(mesh, rng.random((50, 64, 64)), budget_offset=-0.5))

    def best(call) -> float:
        took = []
        for _ in range(3):
            start = time.process_time()
            call()
            took.append(time.process_time() - start)
        return min(took)

    def is_quick() -> bool:
        return best(lambda: strategy(v, r, 3.3)) <= 5 * best(lambda: plain_bilinear(table, 63 * v, 63 / 5 * r))

    assert any(is_quick() for _ in range(3))  # again where others had the processor's cache


@pytest.fixture(scope="module")
def solved():
    return solve(Problem.from_scenario(kinds=2), grid="16x12x12", tolerance=1e-4, track_exploitability=True)


def test_the_table_has_a_row_per_step(solved):
    frame = solved.to_frame()
    assert frame.index.name == "round"
    np.testing.assert_array_equal(frame.index, solved.game.mesh.time[:-1])
    np.testing.assert_array_equal(frame["price"], solved.price)
    np.testing.assert_allclose(frame["spend"], solved.problem.budget_per_client)
    assert frame["share_with_budget_left"].is_monotonic_decreasing


def test_the_figure_labels_its_axes_and_says_when_it_is_no_solution(solved, tmp_path):
    drawn = solved.plot(tmp_path / "figures" / "game.png", kind=1)
    assert (tmp_path / "figures" / "game.png").stat().st_size > 10_000
    prices, shading, budgets, history = drawn.axes[:4]
    assert all(axis.get_xlabel() and axis.get_title() for axis in (prices, shading, budgets, history))
    assert "uniform, kind 1" in shading.get_title()
    assert len(history.get_legend().get_texts()) == 2
    np.testing.assert_array_equal(prices.lines[0].get_ydata(), solved.price)
    unsolved = solve(Problem.from_scenario(), grid="16x12x12", max_iterations=1)
    assert "NOT a solution" in unsolved.plot().axes[3].get_title()


def test_kinds_of_clients_have_names_and_panels(solved):
    titles = [axis.get_title() for axis in solved.plot().axes]
    assert [sum(f"uniform, kind {kind}" in title for title in titles) for kind in (0, 1)] == [1, 1]
    alone = [axis.get_title() for axis in solved.plot(kind="uniform, kind 1").axes]
    assert not any("kind 0" in title for title in alone)
    point = (0.3, 1.0, 2.0)
    assert solved.strategy("uniform, kind 1")(*point) == solved.strategy(1)(*point) != solved.strategy(0)(*point)
    assert solved.value_function("uniform, kind 1")(*point) == solved.value_function(1)(*point)
    with pytest.raises(UnknownNameError, match="unknown kind of clients 'clinics'"):
        solved.plot(kind="clinics")
    with pytest.raises(ConfigurationError, match="kind 2 of 2"):
        solved.strategy(2)


def test_reprs_are_short(solved):
    assert repr(solved).startswith("Equilibrium('uniform', converged after ")
    assert repr(solved.problem).startswith("Problem('uniform', 12 rounds, 0.1 per client and round, MenuMarket, 2")
    assert len(repr(solved)) < 200


def test_the_history_of_the_exploitability_ends_at_the_solutions_own(solved):
    statistics = solved.statistics
    assert len(statistics.exploitability) == len(statistics.elapsed) == statistics.iterations
    assert statistics.exploitability[-1] == pytest.approx(solved.relative_exploitability, abs=1e-12)
    assert statistics.exploitability[0] > 1e-3
    assert list(statistics.elapsed) == sorted(statistics.elapsed)
