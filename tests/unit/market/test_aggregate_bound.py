"""The fluid bound under aggregate trust: a closed form, a linear programme, and rules that cannot beat it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog, minimize_scalar

from privmarket.market._bounds import (
    Types,
    _Slices,
    first_best_bound,
    fluid_bound,
    least_aggregate_error,
    true_types,
    virtual_types,
)
from privmarket.market._distributions import IndependentDistribution, scenario
from privmarket.market._objectives import AggregateError
from privmarket.mechanisms import mechanism

CAP = 2.0
ONE_CAP = IndependentDistribution("one cap", lambda u: np.asarray(u), lambda u: np.full(np.shape(u), CAP))


def closed_form(clients: int, budget: float, goal: AggregateError, cost_over_valuation: float) -> float:
    """min over D of κ'/X² + H²D² with X = b/E[c·y], E[v·y] = (1 − D/2)²/2 + D²/(8(ȳ − 1)), ȳ = cap/X.

    Uniform valuations, one cap for all, μ = ε. The equation for X is a fixed point, found by bisection.
    """
    noise, money = goal.kappa / goal.honest_share / clients**2, budget / clients

    def strength(d: float) -> float:
        def cost(x: float) -> float:
            top = CAP / x
            extra = d**2 / (8 * (top - 1)) if d > 0 else 0.0
            # The cheapest that sell all must lie below those that sell nothing.
            if d > 0 and d / 2 / (top - 1) > 1 - d / 2:
                return np.inf
            return cost_over_valuation * x * ((1 - d / 2) ** 2 / 2 + extra)

        low, high = 0.0, CAP * (1 - 1e-12)
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if cost(middle) <= money else (low, middle)
        return low

    def error(d: float) -> float:
        return noise / strength(d) ** 2 + goal.heterogeneity**2 * d**2

    grid = np.linspace(0, 1.999, 100)
    best = grid[int(np.argmin([error(d) for d in grid]))]
    near = (max(best - 0.03, 0), min(best + 0.03, 1.9999))
    return min(error(best), float(minimize_scalar(error, bounds=near, method="bounded").fun))


@pytest.mark.parametrize("heterogeneity", [0.0, 0.003, 0.01, 0.05])
@pytest.mark.parametrize(("clients", "budget"), [(100, 5.0), (100, 50.0), (1000, 50.0)])
def test_closed_form_of_the_uniform_law(clients, budget, heterogeneity):
    goal = AggregateError(heterogeneity=heterogeneity, delta=None)
    for bound, factor in ((fluid_bound, 2.0), (first_best_bound, 1.0)):
        found = bound(ONE_CAP, clients, budget, goal)
        assert found == pytest.approx(closed_form(clients, budget, goal, factor), rel=2e-3)


def least_bias_by_programme(types: Types, goal: AggregateError, strength: float, money: float) -> float:
    """Minimise E[r|y − 1|] subject to E[r y] = 1 and E[c ε(X y)] ≤ b, ε(·) as 60 tangents.

    Variables: y, |y − 1| and ε of each type.
    """
    n = types.cost.size
    p, r = types.probability, types.records
    nodes = np.geomspace(1e-4, types.epsilon.max(), 60)
    mu = goal.mu(nodes)
    step = 1e-5
    slope = 2 * step * nodes / (goal.mu(nodes * (1 + step)) - goal.mu(nodes * (1 - step)))
    zero = np.zeros((n, n))
    rows, limits = [], []
    for m, e, s in zip(mu, nodes, slope, strict=True):  # ε ≥ e + s·(X·y − μ)
        rows.append(np.hstack([np.eye(n) * s * strength, zero, -np.eye(n)]))
        limits.append(np.full(n, s * m - e))
    for sign in (1.0, -1.0):
        rows.append(np.hstack([sign * np.eye(n), -np.eye(n), zero]))
        limits.append(np.full(n, sign))
    rows.append(np.concatenate([np.zeros(2 * n), p * types.cost])[None])
    limits.append(np.array([money]))
    solved = linprog(
        np.concatenate([np.zeros(n), p * r, np.zeros(n)]),
        A_ub=np.vstack(rows),
        b_ub=np.concatenate(limits),
        A_eq=np.concatenate([p * r, np.zeros(2 * n)])[None],
        b_eq=[1.0],
        bounds=[*((0.0, m / strength) for m in goal.mu(types.epsilon)), *[(0.0, None)] * n, *[(0.0, None)] * n],
    )
    return float(solved.fun) if solved.success else 2.0


@pytest.mark.parametrize("distribution", ["uniform", "lognormal", "bimodal"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_greedy_slices_solve_the_linear_programme(distribution, share, rng):
    full = virtual_types(scenario(distribution))
    pick = rng.choice(full.cost.size, 60, replace=False)
    records = rng.uniform(0.3, 3, 60)
    types = Types(full.cost[pick], full.epsilon[pick], records / records.mean(), np.full(60, 1 / 60))
    goal = AggregateError()
    slices = _Slices.of(types, goal)
    money = 0.3
    strength = share * slices.most_strength(money)
    found = slices.least_bias(strength, money)
    assert found == pytest.approx(least_bias_by_programme(types, goal, strength, money), abs=0.01)


def test_the_least_bias_where_only_a_few_can_sell():
    """One in a thousand is cheap and offers much: it sells alone, D = (1 − q) + q·(1/q − 1) = 2·(1 − q)."""
    share = 0.001
    types = Types(
        cost=np.array([1e-6, 1e6]),
        epsilon=np.array([1 / share + 1.5, 1.5]),
        records=np.ones(2),
        probability=np.array([share, 1 - share]),
    )
    slices = _Slices.of(types, AggregateError(delta=None))
    assert slices.least_bias(1.0, 0.01) == pytest.approx(2 * (1 - share), rel=1e-6)
    assert slices.least_bias(1.0, 1e-12) == 2.0, "the money does not buy that strength"
    assert slices.least_bias(100.0, 1e12) == 2.0, "nobody has that much to sell"


def test_costs_known_is_never_worse_than_truthful_buying():
    for distribution in ("uniform", "lognormal", "bimodal", "valuation-function"):
        goal = AggregateError()
        assert first_best_bound(scenario(distribution), 100, 40.0, goal) < fluid_bound(
            scenario(distribution), 100, 40.0, goal
        )


def test_more_money_never_hurts_and_is_worthless_at_last():
    goal = AggregateError(heterogeneity=0.2)
    bounds = [fluid_bound(scenario("uniform"), 100, b, goal) for b in np.geomspace(0.5, 5000, 13)]
    assert np.all(np.diff(bounds) <= 1e-5 * np.array(bounds[:-1]))  # the search is that fine
    assert bounds[-1] == pytest.approx(bounds[-2])


def test_nothing_can_be_bought_where_nothing_is_for_sale_at_that_money():
    types = true_types(scenario("uniform"))
    assert least_aggregate_error(types, 100, 1e-100, AggregateError()).error > 1e100


@pytest.mark.parametrize("distribution", ["uniform", "lognormal", "bimodal"])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.03, 0.2])
def test_no_exact_rule_beats_the_fluid_bound(distribution, heterogeneity, rng):
    """At 500 clients the sample's own luck is a per cent or two; a bound that is 5 % off would be seen."""
    goal = AggregateError(heterogeneity=heterogeneity)
    bids = scenario(distribution).sample(rng, 500, (40,))
    bound = fluid_bound(scenario(distribution), 500, 100.0, goal)
    settings = {"distribution": distribution, "heterogeneity": heterogeneity}
    rules = [mechanism("mean-field-menu"), mechanism("pac"), mechanism("ration", **settings)]
    rules.append(mechanism("two-step", **settings))
    values = [float(goal.value(rule.run(bids, 100.0), bids).mean()) for rule in rules]
    assert min(values) >= bound * 0.98
    assert min(values) <= bound * 1.25
