"""The finite game and its Nash gap: it vanishes where it must, and shows where a strategy is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.market._menus import from_function
from privmarket.meanfield import (
    FiniteGame,
    Grid,
    MenuMarket,
    Problem,
    QuadraticMarket,
    RepresentativeMarket,
    nash_gap,
    solve,
)
from privmarket.mechanisms import ProportionalShare, mechanism
from privmarket_fixtures.plug_in_menu import PlugInMenu

GRID = Grid(24, 24, 30)
CURVE = from_function(lambda s: np.clip(1 - s, 0, 1), 1.0, 6)


@pytest.fixture(scope="module")
def solved():
    return solve(Problem.from_scenario(), grid=GRID)


@pytest.fixture(scope="module")
def rule(solved):
    return mechanism("mean-field-menu", epsilon_max=solved.problem.market.sale_cap * solved.game.mesh.step)


def test_with_many_clients_the_finite_game_is_the_mean_field_game(solved, rule):
    run = FiniteGame(solved, rule).run(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(run.facing.levels, solved.price, rtol=0.03)
    np.testing.assert_allclose(run.spend, solved.problem.budget_per_client, rtol=1e-3)


def test_both_bounds_are_bracketed_and_fall(solved, rule):
    few, many = (nash_gap(solved, n, rule, seeds=12) for n in (10, 400))
    for gap in (few, many):
        assert gap.hindsight.min() >= -1e-12
        assert np.all(gap.own_state <= gap.hindsight + 1e-12)
        assert 0 <= gap.own_state_limit < 0.5 * gap.hindsight.mean()
    assert many.hindsight.mean() < 0.2 * few.hindsight.mean()
    assert many.price_error.mean() < 0.6 * few.price_error.mean()


def test_a_rule_is_given_in_any_form(solved, rule):
    """A name, a class, a function or an object; a name is told the limit on offers of the rounds."""
    by_name, by_object = (nash_gap(solved, 10, given, seeds=2) for given in ("mean-field-menu", rule))
    np.testing.assert_array_equal(by_name.hindsight, by_object.hindsight)

    def shared(bids, budget):
        outcome = mechanism("proportional-share").run(bids, budget)
        return outcome.epsilon, outcome.payment

    forms = ("proportional-share", ProportionalShare, shared)
    gaps = [nash_gap(solved, 5, given, seeds=2).mean_payment.tolist() for given in forms]
    assert gaps[0] == gaps[1] == gaps[2]

    def coins(bids, budget, rng):
        return shared(bids, budget)

    with pytest.raises(ConfigurationError, match="coins throws coins"):
        nash_gap(solved, 10, coins)


def test_a_strategy_that_does_not_look_ahead_has_a_gap_that_stays(solved, rule):
    """Broken on purpose: truthful play called an equilibrium. Both measures must keep showing it."""
    flow = solved.game.flow(np.zeros_like(solved.shadow_price))
    wrong = replace(solved, shadow_price=np.zeros_like(solved.shadow_price), flow=flow)
    gap = nash_gap(wrong, 400, rule, seeds=6)
    assert gap.hindsight.mean() > 0.01 * gap.mean_payment.mean()
    assert gap.own_state.mean() > 0.01 * gap.mean_payment.mean()


def test_any_mechanism_can_stand_in_and_a_first_price_rule_is_caught(solved):
    from privmarket.market._mechanism import Mechanism
    from privmarket.market._outcome import Outcome

    class PayWhatIsAsked(Mechanism):
        """Buys at the asked price from all who ask less than 0.6: shading pays."""

        name = "pay-what-is-asked"

        def clear(self, bids, budget):
            sells = bids.valuation < 0.6
            return Outcome(bids.epsilon * sells, bids.epsilon * bids.valuation * sells)

    gap = nash_gap(solved, 30, PayWhatIsAsked(), seeds=2)
    assert gap.hindsight.mean() > 0.1 * gap.mean_payment.mean()


def test_closed_form_and_table_agree(solved, rule):
    """The same exact menu, once by its price level and once as a table of reports."""

    class Opaque(type(rule)):
        price_levels = None

        def run(self, bids, budget):
            return rule.run(bids, budget)

    by_level = nash_gap(solved, 12, rule, seeds=range(3))
    game = FiniteGame(solved, Opaque(epsilon_max=rule.epsilon_max))
    assert by_level.hindsight.mean() > 0
    run = game.run(12, np.random.default_rng([0, 12]))
    value, _ = solved.game.best_response(range(30), run.facing)
    played = solved.game.flow(solved.shadow_price, range(30), run.facing).earned
    assert solved.game.starting_value(value) - played == pytest.approx(by_level.hindsight[0], abs=2e-3)


def test_a_rule_that_clients_can_move_is_measured(solved):
    equilibrium = solve(Problem.from_scenario(market=MenuMarket(CURVE, 0.3)), grid=GRID, tolerance=1e-5)
    few, many = (nash_gap(equilibrium, n, PlugInMenu(CURVE), seeds=4) for n in (6, 150))
    assert many.hindsight.mean() < 0.3 * few.hindsight.mean()


def test_bad_input_is_refused(solved, rule):
    with pytest.raises(ConfigurationError, match="about 20 for a slope"):
        nash_gap(solved, 10, rule, seeds=[1])
    with pytest.raises(ConfigurationError, match="at least 2"):
        FiniteGame(solved, rule).run(1, np.random.default_rng(0))
    implicit = solve(Problem.from_scenario(), "implicit", grid=GRID, max_iterations=1)
    with pytest.raises(ConfigurationError, match="explicit scheme"):
        FiniteGame(implicit, rule)
    quadratic = solve(
        Problem.from_scenario(market=QuadraticMarket(0.3), price_ceiling=3.0), grid="16x8x12", max_iterations=1
    )
    with pytest.raises(ConfigurationError, match="QuadraticMarket"):
        nash_gap(quadratic, 10)


def test_a_market_in_which_selling_costs_more_has_no_finite_game(rule):
    """The stranger's: x² on top of the valuation; a posted price gave a number all the same."""

    class Tiring(RepresentativeMarket):
        most_sold = 0.3
        extra = 0.5

        def sold(self, report, level, width):
            return np.clip(level - report, 0.0, self.most_sold)

        def surplus(self, cost, level, width):
            x = self.sold(cost, level, width)
            return (level - cost) * x - self.extra * x**2

        def spend(self, report, level, width):
            return level * self.sold(report, level, width)

    class Rising(Tiring):
        """The same sales and gains, where the buyer pays the menu of rising prices and nothing is left over."""

        def spend(self, report, level, width):
            return RepresentativeMarket.spend(self, report, level, width)

    def ends(market):
        return solve(Problem.from_scenario(market=market), grid="16x8x12", max_iterations=1)

    with pytest.raises(ConfigurationError, match="Tiring has no finite game"):
        nash_gap(ends(Tiring()), 10, rule, seeds=2)
    FiniteGame(ends(Rising()), rule)


def test_without_a_mechanism_the_exact_menu_clears(solved, rule):
    by_default, named = nash_gap(solved, 12, seeds=2), nash_gap(solved, 12, rule, seeds=range(2))
    np.testing.assert_array_equal(by_default.hindsight, named.hindsight)
    assert repr(by_default).startswith("NashGap(12 clients, 2 runs;")
    frame = by_default.to_frame()
    assert list(frame.index.names) == ["clients", "run"]
    np.testing.assert_array_equal(frame["hindsight"], named.hindsight)
    mean, error = by_default.relative()["hindsight"]
    shares = named.hindsight / named.mean_payment
    assert mean == pytest.approx(shares.mean())
    assert error == pytest.approx(abs(shares[0] - shares[1]) / 2)
