"""Bounds against closed forms, brute force and each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog, minimize, minimize_scalar
from scipy.special import ndtri
from scipy.stats import uniform

import privmarket as pm
from privmarket.market._audit import audit
from privmarket.market._bids import Bids
from privmarket.market._bounds import (
    SupplyCurve,
    Types,
    _dual,
    _lowest,
    _Slices,
    first_best_bound,
    fluid_bound,
    least_aggregate_error,
    least_typical_error,
    one_price_bound,
    prior_free_reference,
    supply_curve,
    true_types,
    virtual_types,
)
from privmarket.market._distributions import (
    SCENARIOS,
    Distribution,
    EmpiricalDistribution,
    IndependentDistribution,
    independence_test,
    scenario,
)
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._menus import from_function
from privmarket.market._objectives import AggregateError, AggregationError, TypicalAggregateError, objective
from privmarket.market._outcome import Outcome
from privmarket.market._ration_design import _error, graded_curve
from privmarket.mechanisms import mechanism

UNIFORM = scenario("uniform")


def test_uniform_bounds_have_closed_forms():
    # Posted price π: 100·2.55·π·π = 50; first best: 100·2.55·π²/2 = 50.
    price = np.sqrt(50 / 255)
    assert fluid_bound(UNIFORM, 100, 50) == pytest.approx(255 * price, rel=1e-4)
    assert first_best_bound(UNIFORM, 100, 50) == pytest.approx(255 * np.sqrt(2) * price, rel=1e-4)
    assert supply_curve(UNIFORM).price_that_spends(0.5) == pytest.approx(price, rel=1e-4)


@pytest.mark.parametrize("name", ["aggregation-error", "typical-aggregate-error", "aggregate-error", "local-error"])
@pytest.mark.parametrize("unit", [1e-15, 1e-10, 1e9])
def test_the_unit_of_money_changes_no_bound_of_an_error(name, unit):
    def found(money):
        return scenario((uniform(0, money), uniform(0.1, 4.9)))

    aim = objective(name)
    assert fluid_bound(found(unit), 100, 50 * unit, aim) == pytest.approx(
        fluid_bound(found(1.0), 100, 50.0, aim), rel=1e-6
    )


def test_a_budget_that_buys_everything_buys_everything():
    assert fluid_bound(UNIFORM, 100, 1e6) == pytest.approx(255.0, rel=1e-6)
    assert first_best_bound(UNIFORM, 100, 1e6) == pytest.approx(255.0, rel=1e-6)


def test_ironing_two_point_masses():
    """Half the clients cost 0.2, half cost 1; ε = 1. Between serving the cheap and serving all, mix the prices."""
    distribution = IndependentDistribution(
        "two", lambda u: np.where(np.asarray(u) <= 0.5, 0.2, 1.0), lambda u: np.ones_like(u)
    )
    for budget, bought in [(0.05, 0.25), (0.1, 0.5), (0.55, 0.75), (1.0, 1.0)]:
        assert fluid_bound(distribution, 1, budget) == pytest.approx(bought, rel=1e-3)


def test_a_large_sample_gives_the_bound_of_its_law(rng):
    sample = UNIFORM.sample(rng, 200_000)
    for aim in (None, AggregationError(1.0, 0.1)):
        extra = () if aim is None else (aim,)
        declared = IndependentDistribution.of_columns("past", sample)
        assert fluid_bound(declared, 100, 50, *extra) == pytest.approx(
            fluid_bound(UNIFORM, 100, 50, *extra), rel=0.02
        )
        distribution = EmpiricalDistribution("past", sample)
        assert first_best_bound(distribution, 100, 50, *extra) == pytest.approx(
            first_best_bound(UNIFORM, 100, 50, *extra), rel=0.02
        )


@pytest.mark.parametrize("name", ["uniform", "bimodal", "lognormal"])
def test_no_menu_beats_the_fluid_bound_in_large_markets(name, rng):
    distribution = SCENARIOS[name]
    n, budget = 4000, 2000.0
    bids = distribution.sample(rng, n)
    goals = [AggregationError(1.0, 0.0), AggregationError(1.0, 0.1), AggregationError(50.0, 0.1)]
    most, least = (
        fluid_bound(distribution, n, budget),
        [fluid_bound(distribution, n, budget, goal) for goal in goals],
    )
    for curve in (None, from_function(lambda s: np.clip(1 - s, 0, 1), 1.0, 64)):
        settings = {} if curve is None else {"curve": curve}
        outcome = pm.mechanism("mean-field-menu", **settings).run(bids, budget)
        assert outcome.total_epsilon <= most * 1.05
        for goal, bound in zip(goals, least, strict=True):
            assert goal.value(outcome, bids) >= bound * 0.93


def test_the_p2_bound_is_tight_where_the_optimum_is_known():
    """Equal costs and caps, a budget that buys every cap: α = 1/N and E = κ/(N·ε²), with no bias."""
    distribution = IndependentDistribution("flat", lambda u: np.full_like(u, 0.5), lambda u: np.full_like(u, 2.0))
    goal = AggregationError(kappa=3.0, heterogeneity=0.4)
    assert fluid_bound(distribution, 50, 50.0, goal) == pytest.approx(3.0 / (50 * 4.0), rel=1e-3)
    # Half of that money, and bias forbidden: ε = 1 from everybody, four times the variance.
    strict = AggregationError(kappa=3.0, heterogeneity=40.0)
    assert first_best_bound(distribution, 50, 25.0, strict) == pytest.approx(3.0 / 50, rel=1e-2)
    # With bias at a price, leaving a few out and buying more from the rest is better: p of them gives
    # 0.06·(1 − p) + H²·(2p)², so the bound must lie at or below its minimum.
    p = np.linspace(0, 1, 1001)
    assert first_best_bound(distribution, 50, 25.0, goal) <= (0.06 * (1 - p) + 0.16 * 4 * p**2).min()


def test_the_p2_bound_knows_that_clients_hold_different_numbers_of_records():
    # Half hold 1, half 3: r = 1/2 or 3/2. Without bias the best weights are α ∝ (r ε)², so E = κ/(N·E[r²]·ε²).
    two = IndependentDistribution(
        "two sizes", lambda u: u, lambda u: 0 * u + 2.0, 5.0, lambda u: np.where(u < 0.5, 1.0, 3.0)
    )
    for bound in (fluid_bound, first_best_bound):
        found = bound(two, 400, 1e9, AggregationError(kappa=3.0, heterogeneity=0.0))
        assert found == pytest.approx(3.0 / (400 * 1.25 * 2.0**2), rel=1e-3)


def _many_sizes(u):
    return np.exp(0.7 * ndtri(u))


UNEQUAL = IndependentDistribution("unequal", lambda u: u, lambda u: 0.1 + 4.9 * u, 5.0, _many_sizes)


# In the valuation function v falls with ε; the fluid bound knows that.
@pytest.mark.parametrize(
    ("distribution", "bound_of"), [(UNEQUAL, fluid_bound), (SCENARIOS["valuation-function"], fluid_bound)]
)
def test_rules_that_look_at_records_do_not_beat_the_p2_bound(distribution, bound_of):
    types = distribution.sample(np.random.default_rng(1), 400, (20,))
    goal = AggregationError(heterogeneity=0.0)
    bound = bound_of(distribution, 400, 200.0, goal)
    for rule in ("csra", "mean-field-menu", "proportional-share"):
        assert goal.value(pm.mechanism(rule).run(types, 200.0), types).mean() > bound


def test_bounds_improve_with_money_and_first_best_is_best():
    goal = AggregationError(1.0, 0.1)
    fluid = [fluid_bound(UNIFORM, 100, budget, goal) for budget in (10, 30, 100)]
    assert fluid[0] > fluid[1] > fluid[2]
    assert first_best_bound(UNIFORM, 100, 30, goal) < fluid[1]


def test_the_price_that_spends_a_budget_by_hand():
    """Spend 0.2, 1 and 4 at prices 0.2, 0.5 and 1; between them as far as the quantity of the lower price goes."""
    curve = SupplyCurve(np.array([0.2, 0.5, 1.0]), np.array([1.0, 2.0, 4.0]), np.array([0.2, 0.7, 2.7]))
    np.testing.assert_allclose(curve.spend, [0.2, 1.0, 4.0])
    budgets = [0.1, 0.2, 0.3, 0.5, 0.9, 1.0, 1.5, 3.0, 4.0, 10.0]
    prices = [0.2, 0.2, 0.3, 0.5, 0.5, 0.5, 0.75, 1.0, 1.0, 2.5]
    np.testing.assert_allclose(curve.price_that_spends(budgets), prices)


def least_by_search(cost, epsilon, lam, mu, nu, noise):
    """min over a ≥ 0, 0 ≤ g ≤ 1 of noise·(a/(ε·g))² + ν·|a − 1| − μ·(a − 1) + λ·cost·ε·g, and the best a."""
    a, g = np.linspace(0, 7, 1401)[:, None], np.geomspace(1e-3, 1, 300)
    value = noise * (a / (epsilon * g)) ** 2 + nu * np.abs(a - 1) - mu * (a - 1) + lam * cost * epsilon * g
    value[0] = nu + mu  # a = 0 needs no sale
    at = np.unravel_index(np.argmin(value), value.shape)
    return value[at], float(a[at[0], 0])


def test_the_dual_is_the_least_of_every_type(rng):
    """Each kind of minimum comes up: nothing, a part of the offer, a = 1, and either side of the kink."""
    noise, bias, budget = 0.35, 0.5, 0.3
    seen = set()
    for _ in range(40):
        cost, epsilon = rng.uniform(0.05, 1, 1), rng.uniform(0.3, 1.5, 1)
        lam, mu, nu = 10.0 ** rng.uniform(-2, 0.3, 3) * [1.0, 1.0, 0.3]
        found, gradient = _dual(Types(cost, epsilon, np.ones(1), np.ones(1)), [lam, mu, nu], noise, bias, budget)
        least, a = least_by_search(cost[0], epsilon[0], lam, mu, nu, noise)
        expected = least - lam * budget - nu**2 / (4 * bias)
        assert found == pytest.approx(expected, abs=2e-3)
        assert found <= expected + 1e-12, "above the least: no valid bound"
        assert gradient[1] == pytest.approx(1 - a, abs=0.01)
        seen.add("0" if a == 0 else "1" if abs(a - 1) < 1e-3 else "below" if a < 1 else "above")
    assert seen == {"0", "1", "below", "above"}


class _TwoKinds(Distribution):
    """ε = 1 and v in [0, 0.5], or ε = 4 and v in [0.5, 1]: who offers more asks more."""

    name = "two-kinds"
    epsilon_max = 4.0

    def sample(self, rng, clients, markets=()):
        large = rng.random((*markets, clients)) < 0.5
        valuation = 0.5 * rng.random(large.shape) + 0.5 * large
        return pm.Bids(valuation, np.where(large, 4.0, 1.0))


class _PriceByOffer(pm.Mechanism):
    """Posts one unit price for offers of 4 and one for smaller ones; serves the list until the money ends."""

    name = "price-by-offer"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )

    def __init__(self, small: float, large: float) -> None:
        self.small = small
        self.large = large

    def clear(self, bids, budget):
        price = np.where(bids.epsilon >= 4.0, self.large, self.small)
        wanted = np.where(bids.valuation <= price, price * bids.epsilon, 0.0)
        spent_before = np.cumsum(wanted, axis=-1) - wanted
        paid = np.clip(budget - spent_before, 0.0, wanted)
        return pm.Outcome(paid / price, paid)


def test_prices_by_offer_pass_the_bound_of_one_price_and_not_the_fluid_bound():
    """2,000 markets: standard error 0.0007."""
    distribution = _TwoKinds()
    rule = _PriceByOffer(small=0.5, large=0.75)
    report = audit(rule, distribution, 40, 40.0, profiles=2)
    assert report.broken == ()
    assert report.regret.maximum <= 1e-9
    types = distribution.sample(np.random.default_rng(0), 400, (2_000,))
    outcome = rule.run(types, 400.0)
    assert outcome.spend.max() <= 400.0 * (1 + 1e-12)
    assert outcome.total_epsilon.mean() / one_price_bound(distribution, 400, 400.0) == pytest.approx(
        1.055, abs=0.005
    )
    assert (
        outcome.total_epsilon.mean()
        < fluid_bound(distribution, 400, 400.0)
        < first_best_bound(distribution, 400, 400.0)
    )


def test_the_bound_where_v_depends_on_the_offer_has_a_closed_form():
    """Virtual costs 2v and 2v − 1/2: for one unit of money a client, all small and half of the large sell."""
    assert fluid_bound(_TwoKinds(), 400, 400.0) == pytest.approx(600.0, rel=2e-3)


def test_the_bound_of_the_valuation_function_by_numerical_integration():
    """v = a/ε with a uniform on [0.5, 1]: a client of offer ε sells while 2a − 0.5 ≤ c·ε."""
    epsilon = 0.1 + 4.9 * (np.arange(20_000) + 0.5) / 20_000

    def spend_and_buy(c):
        reached = np.clip((c * epsilon + 0.5) / 2, 0.5, 1.0)
        share = (reached - 0.5) / 0.5
        return (share * reached).mean(), (share * epsilon).mean()

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spend_and_buy(middle)[0] < 0.5 else (low, middle)
    assert fluid_bound(SCENARIOS["valuation-function"], 100, 50.0) == pytest.approx(
        100 * spend_and_buy(low)[1], rel=2e-3
    )


def test_a_file_in_which_every_offer_differs_is_bounded_by_the_first_best(rng):
    past = EmpiricalDistribution("past", UNIFORM.sample(rng, 500))
    assert fluid_bound(past, 100, 50.0) == pytest.approx(first_best_bound(past, 100, 50.0), rel=1e-3)
    declared = scenario(past, independent=True)
    assert declared.independent
    assert fluid_bound(declared, 100, 50.0) == one_price_bound(declared, 100, 50.0)
    assert fluid_bound(declared, 100, 50.0) < 0.8 * first_best_bound(declared, 100, 50.0)


def test_columns_that_are_declared_independent_are_drawn_apart(rng):
    v = rng.random(2_000)
    past = EmpiricalDistribution("past", pm.Bids(v, 1 + v))
    together = past.sample(rng, 5_000)
    apart = scenario(past, independent=True).sample(rng, 5_000)
    assert np.corrcoef(together.valuation, together.epsilon)[0, 1] > 0.999
    assert abs(np.corrcoef(apart.valuation, apart.epsilon)[0, 1]) < 0.1
    assert set(apart.epsilon) <= set(1 + v)


def test_dependence_of_past_bids_is_detected():
    rng = np.random.default_rng(5)
    v = rng.random(300)
    assert independence_test(pm.Bids(v, 1 + rng.random(300))) > 0.05
    assert independence_test(pm.Bids(v, 1 + rng.random(300) + 0.5 * v)) < 0.01
    assert independence_test(pm.Bids(v, 1 + np.abs(v - 0.5) + 0.2 * rng.random(300))) < 0.01  # a valley


def test_the_prior_free_reference_is_a_share_of_the_first_best():
    assert prior_free_reference(UNIFORM, 100, 50.0) == pytest.approx(
        0.6321 * first_best_bound(UNIFORM, 100, 50.0), rel=1e-4
    )


def test_the_same_prices_for_everybody_stay_below_the_bound_of_one_price():
    distribution = _TwoKinds()
    types = distribution.sample(np.random.default_rng(0), 400, (2_000,))
    most = one_price_bound(distribution, 400, 400.0)
    for price in (0.5, 0.6, 0.7, 0.75, 0.9):
        assert _PriceByOffer(small=price, large=price).run(types, 400.0).total_epsilon.mean() < most


def test_a_price_that_falls_with_the_offer_is_caught_by_the_audit():
    """Prices by offer are truthful in ε only if they rise with it: with the prices swapped, clients hide ε."""
    report = audit(_PriceByOffer(small=0.75, large=0.5), _TwoKinds(), 40, 40.0, profiles=1)
    assert "truthful in ε" in " ".join(report.broken)


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


def closed_form_of_typical_error(budget: float, heterogeneity: float, cost: float) -> float:
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
def test_closed_form_of_the_uniform_law_of_typical_error(budget, heterogeneity):
    goal = TypicalAggregateError(heterogeneity=heterogeneity, delta=None)
    for bound, cost in ((fluid_bound, 2.0), (first_best_bound, 1.0)):
        found = bound(WIDE, 100, budget, goal)
        assert found == pytest.approx(closed_form_of_typical_error(budget, heterogeneity, cost), rel=2e-3)


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


def best_mixture(groups, money: float) -> float:
    """By linear programming: the most ε per client from mixtures of posted prices, one mixture for each group.

    groups: (share of clients, valuations, ε per client) of each; one group is one list of prices for all.
    """
    bought, spent, member = [], [], []
    for number, (share, valuation, epsilon) in enumerate(groups):
        for price in np.unique(valuation):
            bought.append(share * epsilon * np.mean(valuation <= price))
            spent.append(price * bought[-1])
            member.append(number)
    one_each = [[float(place == number) for place in member] for number in range(len(groups))]
    found = linprog(-np.array(bought), A_ub=[spent, *one_each], b_ub=[money, *np.ones(len(groups))])
    return -float(found.fun)


def test_the_bounds_of_files_are_those_of_a_linear_programme_with_and_without_free_clients():
    rng = np.random.default_rng(1)
    free = 0
    for _ in range(60):
        clients = int(rng.integers(2, 40))
        v = np.round(rng.gamma(1, 1, clients), int(rng.integers(0, 3)))
        epsilon = rng.choice([0.5, 1, 2, 4], clients)
        free += int((v == 0).any())
        past = pm.Bids(v, epsilon)
        money = float(rng.uniform(0.01, 1.5) * np.mean(v * epsilon) + 1e-6)
        declared = scenario(past, independent=True)
        one_price = best_mixture([(1.0, v, epsilon.mean())], money)
        assert fluid_bound(declared, 100, 100 * money) / 100 == pytest.approx(one_price, rel=1e-9)
        by_offer = [(np.mean(epsilon == e), v[epsilon == e], e) for e in np.unique(epsilon)]
        together = EmpiricalDistribution("past", past)
        assert fluid_bound(together, 100, 100 * money) / 100 == pytest.approx(
            best_mixture(by_offer, money), rel=1e-9
        )
    assert free > 10


FREE_OR_ONE = EmpiricalDistribution("free or one", pm.Bids([0.0] * 5 + [1.0] * 5, np.ones(10)))


@pytest.mark.parametrize("bound", [fluid_bound, one_price_bound])
def test_free_clients_are_had_for_nothing(bound):
    """Half ask nothing, half ask 1; the second half costs 2 a unit, for it pays the first, too: 0.025 of it."""
    sold = 0.5 + 0.05 / 2
    assert bound(FREE_OR_ONE, 100, 5.0) == pytest.approx(100 * sold)
    for name, least in (
        ("typical-aggregate-error", 1.5 / 100**2 / sold**2),
        ("aggregate-error", 1.5 / 100**2 / sold**2),
        ("local-error", 1 / 100 / sold),
        ("aggregation-error", 1 / 100 / sold),
    ):
        settings = {"kappa": 1.0, "heterogeneity": 0.0}
        if name != "aggregation-error":
            settings["delta"] = None
        if name.endswith("aggregate-error"):
            settings |= {"kappa": 1.5, "honest_share": 1.0}
        goal = type(objective(name))(**settings)
        assert bound(FREE_OR_ONE, 100, 5.0, goal) == pytest.approx(least, rel=5e-3), name


def test_free_clients_in_a_group_or_everywhere_crash_nothing():
    cheap = EmpiricalDistribution("cheap", pm.Bids([0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0]))
    assert fluid_bound(cheap, 10, 5.0) == pytest.approx(10.0)
    free = EmpiricalDistribution("free", pm.Bids(np.zeros(4), np.ones(4)))
    assert fluid_bound(free, 10, 5.0) == pytest.approx(10.0)
    bought = pm.mechanism("precision-menu", distribution=free, heterogeneity=1.0).run(free.past, 1.0)
    assert bought.total_epsilon == pytest.approx(4.0)


@pytest.mark.parametrize(("budget", "heterogeneity"), [(5.0, 0.0), (5.0, 1.0), (50.0, 0.05)])
@pytest.mark.parametrize("valuation", [[0] * 5 + [1] * 5, [0, 0, 0, 0, 0.3, 0.5, 0.7, 1, 1, 2]])
def test_a_graded_ration_designed_from_few_different_asks_is_near_the_bound(valuation, budget, heterogeneity):
    past = EmpiricalDistribution("past", pm.Bids(valuation, np.ones(10)))
    types = past.sample(np.random.default_rng(1), 100, (100,))
    goal = TypicalAggregateError(heterogeneity=heterogeneity)
    rule = pm.mechanism("graded-ration", distribution=past, heterogeneity=heterogeneity)
    error = float(goal.value(rule.run(types, budget), types).mean())
    assert error <= 1.3 * fluid_bound(past, 100, budget, goal)


def test_rare_cheap_clients_of_a_file_count():
    """One in 3,000 asks 0.001 and all money is meant for it."""
    v = np.ones(3_000)
    v[0] = 0.001
    declared = scenario(pm.Bids(v, np.ones(3_000)), independent=True)
    assert fluid_bound(declared, 1_000, 1_000 * 0.001 / 3_000) == pytest.approx(1_000 / 3_000)
