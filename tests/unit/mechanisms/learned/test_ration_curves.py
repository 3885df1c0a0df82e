"""Ration curves learned for aggregate trust: exact like any menu, and better than the fixed rules."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import AscentAttack, GridAttack, combined
from privmarket.market._distributions import scenario
from privmarket.market._menus import RationCurve
from privmarket.market._objectives import AggregateError, TypicalAggregateError
from privmarket.market._ration_design import graded_curve
from privmarket.mechanisms.learned._menu_training import (
    RationSearch,
    _SmoothCurve,
    curve_value,
    fluid_design,
    learn_curve,
)
from privmarket.mechanisms.learned._menunet import AGGREGATE_WEIGHTS, curve_arrays, read_curves
from privmarket.mechanisms.learned._weights import Weights, load, shipped
from tests.conftest import awkward_budgets, awkward_markets

LAWS = ("uniform", "bimodal", "lognormal")


def rule(heterogeneity: float = 0.1, **settings) -> pm.Mechanism:
    return pm.mechanism("mfg-menunet", objective="aggregate-error", heterogeneity=heterogeneity, **settings)


@pytest.mark.parametrize("law", LAWS)
def test_the_shipped_curves_keep_every_promise(law, rng):
    attack = combined(GridAttack(valuations=21, shares=8, neighbours=6), AscentAttack(starts=4))
    types = scenario(law).sample(rng, 30, (2,))
    learned = rule(scenario=law)
    assert isinstance(learned.curve_for(30, 0.5), RationCurve)
    assert attack(learned, types, 15.0, rng).gain.max() <= 1e-9 * 15
    for promise in learned.guarantees:
        if hasattr(promise, "holds"):
            assert promise.holds(types, learned.run(types, 15.0), 15.0).held


def test_and_on_awkward_markets(rng):
    types, budgets = awkward_markets(rng, 20, 5), awkward_budgets(rng, 20)
    learned = rule(0.3)
    assert np.all(learned.run(types, budgets).spend <= budgets * (1 + 1e-9))
    attack = GridAttack(valuations=11, shares=4, neighbours=4)
    assert (attack(learned, types, budgets, rng).gain / np.maximum(1, budgets[:, None])).max() <= 1e-9


@pytest.mark.parametrize("law", LAWS)
def test_learning_beats_the_best_fixed_rule_on_fresh_markets(law):
    """Over the shipped budgets and ratios, paired on the same markets, against the better of all fixed rules."""
    gains = []
    types = scenario(law).sample(np.random.default_rng(77), 100, (40,))
    for heterogeneity in (0.1, 0.3):
        goal = AggregateError(heterogeneity=heterogeneity)
        settings = {"distribution": law, "heterogeneity": heterogeneity}
        fixed = [pm.mechanism("two-step", **settings), pm.mechanism("ration", **settings)]
        fixed += [pm.mechanism("mean-field-menu"), pm.mechanism("pac")]
        for budget in (10.0, 50.0):
            values = [float(goal.value(r.run(types, budget), types).mean()) for r in fixed]
            learned = float(goal.value(rule(heterogeneity, scenario=law).run(types, budget), types).mean())
            gains.append(1 - learned / min(values))
    assert np.mean(gains) > 0.015
    assert min(gains) > -0.01


def test_learning_improves_on_its_start(rng):
    goal, law = AggregateError(heterogeneity=0.4), scenario("lognormal")
    search = RationSearch(steps=40, markets=8, validation=30)
    steps = []
    found = learn_curve(law, 40, 4.0, goal, rng, search, lambda step, _: steps.append(step))
    assert steps == list(range(1, 41))
    assert found.value < 0.97 * found.start_value
    fresh = law.sample(np.random.default_rng(5), 40, (60,))
    assert curve_value(found.curve, fresh, 4.0, goal, 5.0) < 1.2 * found.value


def test_for_the_typical_error_learning_starts_from_the_graded_design_and_loses_nothing(rng):
    goal, law = TypicalAggregateError(heterogeneity=1.0), scenario("uniform")
    search = RationSearch(steps=30, markets=8, validation=30)
    found = learn_curve(law, 50, 1.0, goal, rng, search)
    fresh = law.sample(np.random.default_rng(5), 50, (40,))
    graded = curve_value(graded_curve(law, 50, 1.0, goal), fresh, 1.0, goal, law.epsilon_max)
    assert found.value <= found.start_value
    assert curve_value(found.curve, fresh, 1.0, goal, law.epsilon_max) < 1.02 * graded


def test_the_smooth_error_is_the_exact_one_for_narrow_steps():
    """Both objectives, one market: the smoothed error at the level that spends the budget, but for one reserve."""
    law, bids = scenario("uniform"), scenario("uniform").sample(np.random.default_rng(2), 400, (1,))
    for goal in (AggregateError(heterogeneity=0.3), TypicalAggregateError(heterogeneity=0.3)):
        start = fluid_design(law, 400, 40.0, goal)
        curve = _SmoothCurve(start, law.epsilon_max, goal)
        smooth = float(curve.errors(bids, 40.0, 1e-4)[0].detach())
        assert smooth == pytest.approx(curve_value(curve.exact(), bids, 40.0, goal, law.epsilon_max), rel=0.05)


def test_curves_survive_their_file():
    for curve in (RationCurve([0.1, 0.5], [7.0, 1.0], ceiling=0.3), RationCurve([0.5], [1.0])):
        arrays, kind = curve_arrays(curve, 0)
        fact = {"objective": "o", "scenario": "s", "budget_per_client": 1.0, "bias_to_noise": 1.0, **kind}
        [read] = read_curves(Weights("mfg-menunet", arrays, {"curves": [fact]}))
        np.testing.assert_array_equal(read.curve.price, curve.price)
        np.testing.assert_array_equal(read.curve.multiple, curve.multiple)
        assert read.curve.ceiling == curve.ceiling


def test_an_unknown_law_gets_the_menu_that_finds_its_own_price():
    assert not isinstance(rule(scenario="somewhere else").curve_for(100, 0.5), RationCurve)


def test_floors_in_their_own_units(rng):
    types = scenario("uniform").sample(rng, 60)
    price = rule(0.3).curve_for(60, 0.5).price[-1]
    budget = 60 * price * 0.3
    served = rule(0.3, service_amount=0.25).run(types, budget).epsilon
    below = types.valuation < rule(0.3).curve_for(60, budget / 60).price[-1]
    assert np.all(served[below] >= np.minimum(types.epsilon, 0.25)[below] - 1e-12)
    with pytest.raises(ConfigurationError, match="service_amount"):
        rule(service_share=0.1)
    with pytest.raises(ConfigurationError, match="service_amount"):
        pm.mechanism("mfg-menunet", service_amount=0.1)


def test_the_file_is_small_and_says_what_it_achieved():
    path = shipped(AGGREGATE_WEIGHTS)
    assert path.stat().st_size < 100_000
    for fact in load(path, "mfg-menunet").facts["curves"]:
        assert fact["value"] <= min(fact["two_step_value"], fact["posted_price_value"])


def test_using_a_curve_needs_no_torch():
    code = (
        "import sys, privmarket as pm; rule = pm.mechanism('mfg-menunet', objective='aggregate-error');"
        "rule.run(pm.Bids([.1, .2], [1., 1.]), 1.0); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
