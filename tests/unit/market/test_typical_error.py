"""The typical error: by hand, against random assignments, its fluid optimum in closed form, and its menu."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import privmarket as pm
from privmarket.market._bids import Bids
from privmarket.market._bounds import (
    Types,
    _lowest,
    first_best_bound,
    fluid_bound,
    least_typical_error,
    virtual_types,
)
from privmarket.market._distributions import EmpiricalDistribution, IndependentDistribution, scenario
from privmarket.market._objectives import AggregateError, TypicalAggregateError, objective
from privmarket.market._outcome import Outcome
from privmarket.market._ration_design import _error, graded_curve

WIDE = IndependentDistribution("wide", lambda u: np.asarray(u), lambda u: np.full(np.shape(u), 1000.0))


def sold(epsilon) -> Outcome:
    amounts = np.asarray(epsilon, dtype=float)
    return Outcome(amounts, np.zeros_like(amounts))


def test_by_hand_with_linear_strength():
    # α = (1/4, 3/4, 0, 0), 4·Σ(α − 1/4)² = 4·(0 + 1/4 + 1/16 + 1/16) = 1.5.
    goal = TypicalAggregateError(kappa=2.0, heterogeneity=0.5, honest_share=0.5, delta=None)
    found = goal.value(sold([1, 3, 0, 0]), Bids([1, 1, 1, 1], [5, 5, 5, 5]))
    assert found == pytest.approx(2 / 0.5 / 4**2 + 0.25 * 1.5)
    assert objective("typical-aggregate-error:heterogeneity=0.5").heterogeneity == 0.5


def test_it_is_the_mean_squared_bias_of_random_assignments(rng):
    # Clients' gradients dealt at random to sellers of fixed strengths.
    clients, gradients = 12, rng.normal(size=(12, 5))
    epsilon = rng.uniform(0, 2, clients) * (rng.random(clients) < 0.7)
    weights = epsilon / epsilon.sum() - 1 / clients
    squared = [np.sum((weights @ gradients[rng.permutation(clients)]) ** 2) for _ in range(20_000)]
    variance = np.sum((gradients - gradients.mean(0)) ** 2) / (clients - 1)
    goal = TypicalAggregateError(heterogeneity=(variance / clients) ** 0.5, delta=None)
    _, bias = goal.terms(epsilon, Bids(np.ones(clients), np.full(clients, 5.0)))
    assert np.mean(squared) == pytest.approx(bias, rel=0.03)
    worst = AggregateError(heterogeneity=np.linalg.norm(gradients - gradients.mean(0), axis=1).max(), delta=None)
    assert max(squared) < worst.terms(epsilon, Bids(np.ones(clients), np.full(clients, 5.0)))[1]


def closed_form(budget: float, heterogeneity: float, cost: float) -> float:
    """Uniform valuations, μ = ε, nobody short of ε: the best straight line y = (1 − c/c*)⁺, c = cost·v."""
    v = (np.arange(2000) + 0.5) / 2000
    best = np.inf
    for cutoff in np.geomspace(0.02, 300, 500):
        line = np.maximum(1 - cost * v / cutoff, 0)
        if line.mean() > 0:
            y = line / line.mean()
            noise = 1.5 / 100**2 * (np.mean(cost * v * y) / (budget / 100)) ** 2
            best = min(best, noise + heterogeneity**2 * (np.mean(y**2) - 1))
    return best


@pytest.mark.parametrize(("budget", "heterogeneity"), [(0.2, 0.3), (2.0, 0.3), (2.0, 1.0), (20.0, 0.3)])
def test_closed_form_of_the_uniform_law(budget, heterogeneity):
    goal = TypicalAggregateError(heterogeneity=heterogeneity, delta=None)
    for bound, cost in ((fluid_bound, 2.0), (first_best_bound, 1.0)):
        found = bound(WIDE, 100, budget, goal)
        assert found == pytest.approx(closed_form(budget, heterogeneity, cost), rel=2e-3)


def solved_directly(types: Types, money: float, noise: float, squared: float) -> float:
    """The least error over one amount per type, μ = ε, by a general method that knows nothing of menus."""
    p, cost = types.probability, types.cost

    def value(m):
        return (noise + squared * float(p @ m**2)) / float(p @ m) ** 2

    def logarithm_and_slope(m):
        return np.log(value(m)), 2 * p * (squared * m / float(p @ m) ** 2 / value(m) - 1 / float(p @ m))

    best = np.inf
    for first in (np.full(cost.shape, 0.05), 0.2 * types.epsilon, np.where(cost < 0.3, types.epsilon, 1e-3)):
        found = minimize(
            logarithm_and_slope,
            first * min(1.0, money / float(p @ (cost * first))),
            jac=True,
            bounds=[(1e-12, most) for most in types.epsilon],
            constraints=[
                {"type": "ineq", "fun": lambda m: 1 - p @ (cost * m) / money, "jac": lambda m: -p * cost / money}
            ],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-12},
        )
        if p @ (cost * found.x) <= money * (1 + 1e-9):
            best = min(best, value(found.x) - squared)
    return best


@pytest.mark.parametrize("heterogeneity", [0.0, 0.03, 0.3, 3.0])
@pytest.mark.parametrize("money", [0.05, 0.5, 3.0])
def test_a_general_method_finds_the_same_optimum(money, heterogeneity):
    # Offers limit much here: with much money or much bias it is best to leave money over, without bias to buy all.
    cost, epsilon = (a.ravel() for a in np.meshgrid((np.arange(12) + 0.5) / 12, [0.3, 1.0, 4.5], indexing="ij"))
    types = Types(cost, epsilon, np.ones(cost.shape), np.full(cost.shape, 1 / cost.size))
    goal = TypicalAggregateError(heterogeneity=heterogeneity, delta=None)
    found = least_typical_error(types, 100, 100 * money, goal)
    assert found.error == pytest.approx(solved_directly(types, money, 1.5e-4, heterogeneity**2), rel=1e-3)


def population(cost: list[float], epsilon: float) -> Types:
    """Equally many clients of each cost."""
    same = np.ones(len(cost))
    return Types(np.array(cost), epsilon * same, same, same / len(cost))


@pytest.mark.parametrize("second", [1.1, 1.5, 1.9])
def test_without_bias_all_money_goes_to_the_cheapest_however_close_the_next_is(second):
    """Half of the clients sell 2·money at cost 1, so that X is what the money buys there: E = κ'/money²."""
    types = population([1.0, second], 1000.0)
    found = least_typical_error(types, 10, 10 * 0.3, TypicalAggregateError(heterogeneity=0.0, delta=None))
    assert found.error == pytest.approx(1.5 / 10**2 / 0.3**2, rel=1e-3)


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_a_change_of_currency_changes_no_error(unit):
    cost = [0.1, 0.4, 0.7, 1.0]
    goal = TypicalAggregateError(heterogeneity=1.0, delta=None)
    ours = least_typical_error(population(cost, 2.0), 50, 5.0, goal)
    theirs = least_typical_error(population([unit * c for c in cost], 2.0), 50, 5.0 * unit, goal)
    assert theirs.error == pytest.approx(ours.error, rel=1e-6)
    np.testing.assert_allclose(theirs.amount, ours.amount, rtol=1e-4)


@pytest.mark.parametrize("lowest", np.linspace(-2.99, 6.99, 13))
def test_a_minimum_is_found_to_a_four_thousandth_of_the_search(lowest):
    """Three grids of 21 points, each between the neighbours of the last one's best: half a step of the last."""
    assert abs(_lowest(lambda x: abs(x - lowest), -3.0, 7.0) - lowest) <= 10 / 4000 * (1 + 1e-9)


@pytest.mark.parametrize("distribution", ["uniform", "bimodal"])
def test_more_money_never_makes_the_error_larger(distribution):
    goal = TypicalAggregateError(heterogeneity=1.0)
    bounds = [fluid_bound(scenario(distribution), 100, money, goal) for money in (1.0, 10.0, 50.0, 100.0, 1000.0)]
    assert np.all(np.diff(bounds) <= 1e-9)
    assert first_best_bound(scenario(distribution), 100, 50.0, goal) <= bounds[2]
    types = scenario(distribution).sample(np.random.default_rng(3), 100, (20,))
    rule = pm.mechanism("graded-ration", distribution=distribution)
    rich, richer = (rule.run(types, money) for money in (100.0, 1000.0))
    assert goal.value(richer, types).mean() <= goal.value(rich, types).mean() * 1.001
    assert richer.spend.max() < 100.0  # the rest of the money would buy bias


def test_without_bias_no_exact_rule_beats_the_bound():
    goal = TypicalAggregateError(heterogeneity=0.0)
    types = scenario("uniform").sample(np.random.default_rng(4), 500, (10,))
    bound = fluid_bound(scenario("uniform"), 500, 250.0, goal)
    assert bound == pytest.approx(
        fluid_bound(scenario("uniform"), 500, 250.0, AggregateError(heterogeneity=0.0)), rel=0.01
    )
    for name in ("mean-field-menu", "proportional-share"):
        assert goal.value(pm.mechanism(name).run(types, 250.0), types).mean() > 0.99 * bound


@pytest.mark.parametrize("distribution", ["uniform", "bimodal", "lognormal"])
def test_no_exact_rule_beats_the_bound_and_the_graded_ration_comes_close(distribution):
    goal = TypicalAggregateError(heterogeneity=0.05)
    types = scenario(distribution).sample(np.random.default_rng(4), 2000, (4,))
    bound = fluid_bound(scenario(distribution), 2000, 20.0, goal)
    values = {}
    for name in ("ration", "two-step", "mean-field-menu", "pac"):
        values[name] = float(goal.value(pm.mechanism(name).run(types, 20.0), types).mean())
    graded = pm.mechanism("graded-ration", distribution=scenario(distribution), heterogeneity=0.05)
    best = float(goal.value(graded.run(types, 20.0), types).mean())
    assert 0.97 * bound < best < 1.1 * bound
    assert min(values.values()) > best


def test_the_menu_is_between_a_few_sellers_and_everybody():
    distribution = scenario("uniform")
    little, middle, much = (
        graded_curve(distribution, 100, 1.0, TypicalAggregateError(heterogeneity=h)) for h in (0.03, 1.0, 30.0)
    )
    assert little.price[-1] < middle.price[-1] <= much.price[-1]
    assert much.price[-1] > 0.98
    assert much.multiple[0] < 1.2  # nearly one ration for all
    amounts = least_typical_error(
        virtual_types(distribution), 100, 1.0, TypicalAggregateError(heterogeneity=1.0)
    ).amount
    assert np.all(np.diff(amounts) <= 1e-12)


def test_past_bids_serve_as_a_law(rng):
    past = EmpiricalDistribution("past", scenario("uniform").sample(rng, 300))
    curve = graded_curve(past, 100, 1.0, TypicalAggregateError(heterogeneity=1.0))
    known = graded_curve(scenario("uniform"), 100, 1.0, TypicalAggregateError(heterogeneity=1.0))
    assert curve.price[-1] == pytest.approx(known.price[-1], rel=0.15)


def test_a_design_that_buys_nothing_is_worse_than_any_that_buys():
    """Not a number would be taken for the least of all."""
    bought = np.array([0.0, 1e-6, 1.0])[:, None, None]
    np.testing.assert_array_equal(np.argsort(_error(bought, np.full((3, 1, 1), 0.5), 1.0)), [2, 1, 0])
    assert _error(bought, np.full((3, 1, 1), 0.5), 1.0)[0] == np.inf
