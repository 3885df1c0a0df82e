"""Three ways to the same equilibrium, each against its textbook form on a small game, and a method of one's own."""

from __future__ import annotations

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.meanfield import (
    METHODS,
    SCHEMES,
    BestResponse,
    DiscreteGame,
    FictitiousPlay,
    Grid,
    Method,
    OnlineMirrorDescent,
    Problem,
    Result,
    solve,
)
from privmarket.meanfield._methods import _MixedPlay

GRID = Grid(16, 12, 12)


@pytest.fixture(scope="module")
def reference():
    return solve(Problem.from_scenario(), grid=GRID)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["fictitious-play", "online-mirror-descent"])
def test_every_method_finds_the_equilibrium_of_best_response(method, scheme):
    expected = solve(Problem.from_scenario(), scheme, grid=GRID, tolerance=1e-5)
    found = solve(
        Problem.from_scenario(), scheme, grid=GRID, method=method, max_iterations=25, track_exploitability=True
    )
    assert found.statistics.method == method
    np.testing.assert_allclose(found.price, expected.price, rtol=5e-3)
    assert found.statistics.exploitability[-1] < 1e-2 * found.statistics.exploitability[0]


def test_a_loose_tolerance_is_reached_by_all():
    for method in METHODS:
        found = solve(Problem.from_scenario(), grid=GRID, method=method, tolerance=2e-2)
        assert found.result is Result.CONVERGED, method


def test_mixed_play_of_one_addition_is_pure_play(reference):
    """Everyone adds the same number with certainty: prices and mass are those of `DiscreteGame.flow`."""
    for scheme in SCHEMES.values():
        game = DiscreteGame(reference.problem, scheme, GRID)
        play = _MixedPlay(game, reference.price, 9)
        policy = np.zeros(play.shape)
        policy[..., 4] = 1.0
        price, mass = play.flow(policy)
        pure = game.flow(np.full(play.shape[:-1], play.additions[4]))
        np.testing.assert_allclose(price, pure.price, rtol=1e-10)
        np.testing.assert_allclose(mass, pure.mass, atol=1e-12)


def test_the_advantage_prefers_what_the_equilibrium_plays(reference):
    """At equilibrium prices and play, no addition does better than the ones next to the shadow price."""
    game = reference.game
    play = _MixedPlay(game, reference.price, 129)
    below, weight = play.split(reference.shadow_price)
    policy = np.zeros(play.shape)
    np.put_along_axis(policy, below[..., None], 1.0 - weight[..., None], axis=-1)
    np.put_along_axis(policy, below[..., None] + 1, weight[..., None], axis=-1)
    advantage = play.advantage(policy, reference.price)
    here = (reference.flow.mass[:-1] * (game.mesh.budget > 0))[..., None]
    best = advantage.max(axis=-1, keepdims=True)
    lost = game.mesh.step * (here * (best - advantage) * policy).sum()
    assert 0 <= lost < 1e-4 * reference.mean_payment
    truthful = game.mesh.step * (here * (best - advantage[..., :1])).sum()
    assert truthful > 0.01 * reference.mean_payment  # another addition is seen to do worse


def test_fictitious_play_answers_the_average_of_the_responses(reference):
    game = reference.game
    method = FictitiousPlay(additions=257)
    truthful = game.flow(np.zeros_like(reference.shadow_price)).price
    method.begin(game, truthful)
    _, shadow = game.best_response(truthful)
    # After one response the average population is that response: its prices are those that come out of it.
    first = method.next_price(truthful, shadow, game.flow(shadow))
    np.testing.assert_allclose(first, game.flow(shadow).price, rtol=2e-3)
    # After two, half of the clients play each.
    _, second_shadow = game.best_response(first)
    second = method.next_price(first, second_shadow, game.flow(second_shadow))
    alone = game.flow(second_shadow).price
    assert np.all(second > np.minimum(first, alone) - 5e-3)
    assert np.all(second < np.maximum(first, alone) + 5e-3)
    assert np.abs(second - alone).max() > 0.01


def test_a_method_of_ones_own():
    class Averaged(Method):
        """Undamped at first, then half steps."""

        name = "averaged"

        def begin(self, game, price):
            self.count = 0

        def next_price(self, price, shadow, flow):
            self.count += 1
            return flow.price if self.count == 1 else 0.5 * (price + flow.price)

    found = solve(Problem.from_scenario(), grid=GRID, method=Averaged(), tolerance=1e-4)
    assert found.result is Result.CONVERGED
    assert found.summary()["method"] == "averaged"


def test_a_method_that_gives_up_is_reported_as_stalled():
    class Tired(BestResponse):
        name = "tired"

        def next_price(self, price, shadow, flow):
            return None

    assert solve(Problem.from_scenario(), grid=GRID, method=Tired()).result is Result.STALLED


def test_bad_settings_are_refused():
    with pytest.raises(ConfigurationError, match="at least 2"):
        FictitiousPlay(additions=1)
    with pytest.raises(ConfigurationError, match="rate is 0"):
        OnlineMirrorDescent(rate=0.0)
    with pytest.raises(ConfigurationError, match="share 2"):
        BestResponse(share=2.0)


def test_a_method_forgets_the_solve_before(reference):
    method = BestResponse()
    for _ in range(2):
        again = solve(Problem.from_scenario(), grid=GRID, method=method)
        np.testing.assert_array_equal(again.price, reference.price)
