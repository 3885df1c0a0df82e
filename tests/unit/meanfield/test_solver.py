"""The default problem: convergence, exploitability, uniqueness in practice, result codes, refusals."""

from __future__ import annotations

import time

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import SCENARIOS
from privmarket.market._menus import from_function
from privmarket.meanfield import (
    SCHEMES,
    BestResponse,
    DiscreteGame,
    Grid,
    MenuMarket,
    Problem,
    Result,
    exploitability,
    solve,
)


@pytest.fixture(scope="module")
def default():
    return solve(Problem.from_scenario())


def test_default_problem_converges_within_its_bars(default):
    assert default.result is Result.CONVERGED
    assert default.notes == ()
    assert -1e-9 <= default.relative_exploitability < 1e-3
    assert default.statistics.seconds < 20
    assert np.abs(default.flow.mass.sum(axis=(1, 2, 3)) - 1).max() < 1e-12
    assert default.flow.mass.min() >= 0
    np.testing.assert_allclose(default.flow.spend, default.problem.budget_per_client, rtol=1e-10)


def test_another_starting_flow_reaches_the_same_equilibrium(default):
    other = solve(Problem.from_scenario(), start="patient")
    assert other.result is Result.CONVERGED
    np.testing.assert_allclose(other.price, default.price, atol=3e-6)
    assert np.abs(other.flow.mass - default.flow.mass).max() < 1e-6


def test_budget_has_a_price_that_falls_towards_the_end(default):
    assert default.shadow_price.min() >= -1e-14
    mean = (default.flow.mass[:-1] * default.shadow_price).sum(axis=(1, 2, 3))
    assert mean[0] > 0.05
    assert np.all(np.diff(mean) < 1e-9)
    # The scarcer the budget, the dearer.
    assert np.all(np.diff(default.shadow_price[0, 0, :, 1:], axis=-1) < 1e-12)


def test_exploitability_sees_a_population_that_does_not_look_ahead(default):
    """A strategy that is wrong must not pass: truthful play is exploitable by several per cent."""
    naive = exploitability(np.zeros_like(default.shadow_price), default.game)
    assert naive > 0.01 * default.mean_payment
    assert exploitability(default.shadow_price, default.game) < 1e-6


def test_no_random_deviation_beats_the_equilibrium(default):
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.1, 0.5):
        wrong = default.shadow_price + scale * rng.normal(size=default.shadow_price.shape)
        assert default.game.flow(wrong, default.price).earned <= default.flow.earned + 1e-9


def test_exploitability_on_a_finer_mesh_stays_below_the_bar(default):
    """The solved bid function, interpolated, against the same prices on a mesh twice as fine."""
    fine = DiscreteGame(default.problem, default.scheme, Grid(128, 127, 100))
    mesh, strategy = fine.mesh, default.strategy()
    price = np.repeat(default.price, 2)
    v, r = mesh.valuation[:, None], mesh.budget - 0.5 * mesh.budget_width
    shadow = np.stack([strategy(v, r, t) - v for t in mesh.time[:-1]])[:, None]
    value, _ = fine.best_response(price)
    gain = fine.starting_value(value) - fine.flow(shadow, price).earned
    assert 0 <= gain < 1e-3 * default.mean_payment


def test_mean_bid_and_payment_come_from_the_flow(default):
    bid = default.mean_bid()
    valuation = np.array(default.summary()["mean_valuation"])
    assert np.all(bid[:-1] > valuation[:-1])
    assert bid[-1] == pytest.approx(valuation[-1])
    price = default.price[0]
    paid = default.payment([0.5 * price, price, 2 * price], 0.0)
    np.testing.assert_allclose(paid, [0.3 * price, 0.0, 0.0])


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kinds", [1, 3])
def test_every_scenario_is_solved(name, kinds):
    equilibrium = solve(Problem.from_scenario(name, kinds=kinds), grid=Grid(32, 20, 16), tolerance=1e-4)
    assert equilibrium.result is Result.CONVERGED
    assert equilibrium.relative_exploitability < 1e-3


def test_a_smooth_menu_is_solved_and_the_schemes_agree():
    curve = from_function(lambda s: np.clip(1 - s, 0, 1), 1.0, 8)
    problem = Problem.from_scenario(market=MenuMarket(curve, 0.3))
    prices = [solve(problem, s, grid=Grid(24, 24, 40), tolerance=1e-4).price for s in SCHEMES]
    np.testing.assert_allclose(*prices, rtol=0.03)


def test_non_convergence_is_a_code_with_the_history():
    equilibrium = solve(Problem.from_scenario(), grid=Grid(16, 16, 20), max_iterations=3)
    assert equilibrium.result is Result.ITERATION_LIMIT
    assert len(equilibrium.statistics.price_change) == 3
    assert equilibrium.exploitability > 0


@pytest.mark.parametrize(
    ("changes", "grid", "message", "remedy"),
    [
        ({"budget_per_client": 0.45}, Grid(), "buys everything", "use a budget below"),
        ({"budget_per_client": 1e-4}, Grid(), "buys nothing", "raise the budget"),
        ({"relative_volatility": 0.05}, Grid(), "too coarse for the drift", "valuation cells"),
        ({"relative_volatility": 0.0}, Grid(), "too coarse for the drift", "more volatility"),
        ({}, Grid(64, 128, 50), "beyond its stability limit", "at least 92 time steps"),
        ({"horizon": 1.0}, Grid(), "too coarse for what is sold", "at least 68 budget nodes"),
        ({"kinds": 0}, Grid(), "kinds is 0", "raise kinds"),
        ({"budget_per_client": -1.0}, Grid(), "budget_per_client is -1", "raise"),
        ({"reversion": -1.0}, Grid(), "reversion is -1", "use 0 or more"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(changes, grid, message, remedy):
    with pytest.raises(ConfigurationError, match=message) as refused:
        solve(Problem.from_scenario(**changes), grid=grid)
    assert remedy in refused.value.hint


def test_remedies_work():
    solve(Problem.from_scenario(), grid=Grid(64, 128, 92), max_iterations=1)
    solve(Problem.from_scenario(horizon=1.0), grid=Grid(64, 68, 50), max_iterations=1)


def test_grid_and_names_are_refused():
    with pytest.raises(ConfigurationError, match="not of the form"):
        Grid.parse("64x64")
    with pytest.raises(ConfigurationError, match="at least 4"):
        Grid(2, 64, 50)
    with pytest.raises(ConfigurationError, match="unknown scheme"):
        solve(Problem.from_scenario(), "crank-nicolson")
    with pytest.raises(ConfigurationError, match="unknown method"):
        solve(Problem.from_scenario(), method="newton")
    with pytest.raises(ConfigurationError, match="start"):
        solve(Problem.from_scenario(), start=np.zeros(3))
    with pytest.raises(ConfigurationError, match="tolerance"):
        solve(Problem.from_scenario(), tolerance=0.0)


def test_mass_at_the_wall_and_a_price_at_its_ceiling_are_reported():
    narrow = Problem.from_scenario().replace(valuation_limit=1.0, price_ceiling=0.63)
    notes = {n.code: n.remedy for n in solve(narrow, grid=Grid(32, 32, 30), max_iterations=5).notes}
    assert "raise valuation_limit" in notes["mass-at-boundary"]
    assert "lower the budget" in notes["price-at-ceiling"]


def test_cost_grows_no_faster_than_cells_times_steps():
    """Eight times the work may take at most sixteen times as long: the rest is for a busy machine."""

    def seconds(grid):
        game = DiscreteGame(Problem.from_scenario(), SCHEMES["explicit"], grid)
        price, took = np.full(grid.time_steps, 0.6), []
        for _ in range(3):
            began = time.process_time()
            _, shadow = game.best_response(price)
            game.flow(shadow, price)
            took.append(time.process_time() - began)
        return min(took)

    assert any(seconds(Grid(128, 128, 100)) <= 16 * seconds(Grid(64, 64, 50)) for _ in range(3))


def test_damping_gives_up_where_smaller_steps_do_not_help():
    damping = BestResponse()
    assert all(damping._heed(0.5**k) for k in range(40))
    assert damping.share == 0.5
    assert not all(damping._heed(1.0) for _ in range(400))


def test_a_map_that_never_settles_is_reported_as_stalled(monkeypatch):
    """Prices that come out at random: no step size helps, and the solver must say so."""
    rng = np.random.default_rng(0)
    clear = DiscreteGame.clear
    noisy = lambda self, *a: (clear(self, *a)[0] * rng.uniform(0.5, 1.0), False)  # noqa: E731
    monkeypatch.setattr(DiscreteGame, "clear", noisy)
    equilibrium = solve(Problem.from_scenario(), grid=Grid(16, 8, 8), max_iterations=500)
    assert equilibrium.result is Result.STALLED
