"""Every scheme that is registered: exact transpose, mass, positivity, monotonicity. And a broken one."""

from __future__ import annotations

import numpy as np
import pytest

from privmarket.meanfield import SCHEMES, DiscreteGame, ExplicitUpwind, Grid, Mesh, Problem

MESH = Mesh(Grid(5, 7, 10), valuation_limit=1.0, budget_limit=3.0, horizon=2.0)
SHAPE = (2, 5, 7)


class LeakyUpwind(ExplicitUpwind):
    """Broken on purpose: a thousandth of what falls is lost, and prices are not upwind."""

    name = "leaky"

    def move(self, mass, rate, mesh):
        moved = super().move(mass, rate, mesh)
        return moved - 1e-3 * mass * rate * mesh.step


def random_case(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    rate = rng.uniform(0.0, MESH.budget_width / MESH.step, SHAPE)
    rate[..., 0] = 0.0
    return rng.random(SHAPE), rng.normal(size=SHAPE), rng.normal(size=SHAPE), rate


def transpose_error(scheme, seed: int) -> float:
    mass, value, reward, rate = random_case(seed)
    left = np.vdot(mass, scheme.advance(value, rate, reward, MESH))
    right = np.vdot(scheme.move(mass, rate, MESH), value)
    right += MESH.step * np.vdot(scheme.exposure(mass, rate, MESH), reward)
    return float(abs(left - right))


def matrix_error(scheme) -> float:
    """Largest difference between the Fokker–Planck matrix and the transposed HJB matrix, entry by entry."""
    *_, rate = random_case(0)
    units = np.eye(int(np.prod(SHAPE))).reshape(-1, *SHAPE)
    zero = np.zeros(SHAPE)
    forward = np.stack([scheme.move(u, rate, MESH).ravel() for u in units])
    backward = np.stack([scheme.advance(u, rate, zero, MESH).ravel() for u in units], axis=1)
    return float(np.abs(forward - backward).max())


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
class TestScheme:
    def test_fokker_planck_is_the_transpose_of_hjb(self, scheme):
        assert max(transpose_error(scheme, seed) for seed in range(20)) < 1e-13
        assert matrix_error(scheme) < 1e-15

    def test_mass_is_conserved_and_never_negative(self, scheme):
        for seed in range(20):
            mass, _, _, rate = random_case(seed)
            moved = scheme.move(mass, rate, MESH)
            assert moved.sum() == pytest.approx(mass.sum(), abs=1e-12)
            assert moved.min() >= 0

    def test_a_higher_continuation_value_never_lowers_the_value(self, scheme):
        rng = np.random.default_rng(1)
        surplus = lambda d: 0.5 * np.maximum(1 - d, 0) ** 2 * (MESH.budget > 0)  # noqa: E731
        rate = lambda d: np.maximum(1 - d, 0) * (MESH.budget > 0)  # noqa: E731
        for _ in range(20):
            low = np.cumsum(rng.random(SHAPE), axis=-1)
            high = low + rng.random(SHAPE)
            before = [scheme.optimise(v, MESH, surplus, rate)[0] for v in (low, high)]
            assert np.all(before[1] >= before[0] - 1e-12)

    def test_optimal_step_is_the_policy_step_of_its_own_shadow_price(self, scheme):
        game = DiscreteGame(Problem.from_scenario(), scheme, Grid(16, 16, 20))
        price = np.full(20, 0.6)
        value, shadow = game.best_response(price)
        assert game.starting_value(value) == pytest.approx(game.flow(shadow, price).earned, abs=1e-12)

    def test_flow_keeps_mass_and_sign(self, scheme):
        game = DiscreteGame(Problem.from_scenario(kinds=2), scheme, Grid(16, 16, 20))
        flow = game.flow(np.zeros((20, *game.initial_mass.shape)))
        np.testing.assert_allclose(flow.mass.sum(axis=(1, 2, 3)), 1.0, atol=1e-12)
        assert flow.mass.min() >= 0


def test_the_checks_catch_a_leaky_scheme():
    assert transpose_error(LeakyUpwind(), 0) > 1e-6
    assert matrix_error(LeakyUpwind()) > 1e-6
    mass, _, _, rate = random_case(0)
    assert abs(LeakyUpwind().move(mass, rate, MESH).sum() - mass.sum()) > 1e-6
