"""The precision menu against closed forms, linear programmes and searches that know no grid."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._bounds import Types, fluid_bound, least_local_error, one_price_bound, selling_prices
from privmarket.market._certificate import certified_regret
from privmarket.market._distributions import EmpiricalDistribution, scenario
from privmarket.market._objectives import LocalError
from privmarket.market._precision import Worth
from privmarket.privacy._gaussian import mu_of

DELTA = 1e-5


def test_without_bias_each_client_is_posted_a_price_for_all_it_offers(rng):
    """Uniform valuations: λ·μ²/(2ε) a unit, at most 1, with one λ for clients that sell alike."""
    bids = scenario("uniform").sample(rng, 200)
    rule = pm.mechanism("precision-menu")
    outcome = rule.run(bids, 60.0)
    level = rule.facing(bids, np.array([60.0])).level[0]
    price = np.minimum(level * mu_of(bids.epsilon, DELTA) ** 2 / (2 * bids.epsilon), 1.0)
    clear = np.abs(price - bids.valuation) > 1e-3
    sells = bids.valuation < price
    np.testing.assert_array_equal(outcome.epsilon[clear], np.where(sells, bids.epsilon, 0.0)[clear])
    np.testing.assert_allclose(outcome.payment[clear], np.where(sells, price * bids.epsilon, 0.0)[clear], rtol=2e-3)
    assert 0.9 * 60.0 < outcome.spend <= 60.0


@pytest.mark.parametrize("heterogeneity", [0.0, 1.0])
@pytest.mark.parametrize("clients", [1, 2, 7, 40, 100])
def test_a_client_faces_the_largest_level_that_leaves_a_reserve(heterogeneity, clients, rng):
    """By plain bisection over all levels, with what the others are paid added up client by client."""
    rule = pm.mechanism("precision-menu", heterogeneity=heterogeneity)
    bids, budget = scenario("uniform").sample(rng, clients), 0.4 * clients
    levels = rule.facing(bids, np.array([budget])).level[0]
    posting = rule.posting(clients, budget)

    def pay(valuation, epsilon, level):
        prices = posting.prices_at(np.array([epsilon]), np.array([level]))[0]
        edges = np.minimum(np.append(0.0, posting.edges), epsilon)
        return sum(p * length for p, length in zip(prices, np.diff(edges), strict=True) if valuation < p)

    for client in range(min(clients, 4)):
        others = [(v, e) for i, (v, e) in enumerate(zip(bids.valuation, bids.epsilon, strict=True)) if i != client]
        low, high = 0.0, 1e9
        for _ in range(100):
            middle = 0.5 * (low + high)
            fits = sum(pay(v, e, middle) for v, e in others) + pay(0.0, 5.0, middle) <= budget
            low, high = (middle, high) if fits else (low, middle)
        assert low / 1.001 <= levels[client] <= low * (1 + 1e-9)


def test_one_client_and_equal_clients():
    rule = pm.mechanism("precision-menu")
    alone = rule.run(pm.Bids([0.2], [5.0]), 2.0)
    assert alone.epsilon[0] == 5.0
    assert alone.payment[0] == pytest.approx(2.0, rel=1e-3)
    assert rule.run(pm.Bids([0.2], [5.0]), 0.9).epsilon[0] == 0.0
    equal = rule.run(pm.Bids(np.full(10, 0.5), np.full(10, 2.0)), 12.0)
    assert np.unique(equal.epsilon).size == np.unique(equal.payment).size == 1
    assert equal.spend <= 12.0


def test_who_offers_more_is_paid_more_per_unit():
    """All ask the same, and the money reaches only for the large offers."""
    bids = pm.Bids(np.full(40, 0.3), np.tile([0.5, 1.0, 2.0, 4.0], 10))
    outcome = pm.mechanism("precision-menu").run(bids, 20.0)
    assert outcome.epsilon[3::4].min() == 4.0
    assert outcome.epsilon[0::4].max() == 0.0


def test_with_bias_clients_sell_parts_and_more_of_them_sell(rng):
    bids = scenario("uniform").sample(rng, 300)
    few, many = (pm.mechanism("precision-menu", heterogeneity=h).run(bids, 90.0) for h in (0.0, 1.0))
    assert set(np.unique(few.epsilon / bids.epsilon)) == {0.0, 1.0}
    assert np.any((many.epsilon > 0) & (many.epsilon < bids.epsilon))
    assert (many.epsilon > 0).sum() > 1.5 * (few.epsilon > 0).sum()
    cheaper = np.argsort(bids.valuation[bids.epsilon > 3])
    sold = many.epsilon[bids.epsilon > 3][cheaper]
    assert np.all(np.diff(sold) <= 1e-9)  # among offers that are no limit, who asks less sells more


def test_what_is_worth_most_per_unit_is_sold_as_a_whole():
    """x₀ and the prices beyond it, against maxima on a grid of their own."""
    curvature = 8.0
    worth = Worth.of(curvature, 5.0, DELTA)
    x = np.linspace(1e-3, 5.0, 400_000)
    y = mu_of(x[::40], DELTA) ** 2
    w = y - 0.5 * curvature * y**2
    assert worth.turn == pytest.approx(x[::40][np.argmax(w / x[::40])], rel=5e-3)
    assert worth.most == pytest.approx(x[::40][np.argmax(w)], rel=5e-3)
    assert np.all(np.diff(worth.rate) >= 0)
    edges, slopes = worth.parts()
    assert np.all(np.diff(slopes) <= 0)
    gained = np.interp(edges, x[::40], w)
    np.testing.assert_allclose(np.diff(gained) / np.diff(edges), slopes, rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(worth.rate_of(np.array([1.0])) * 1.0, np.interp(1.0, x[::40], w), rtol=1e-3)


def small_population(rng):
    """Six kinds of clients, and amounts that they may sell."""
    cost, offer = rng.uniform(0.1, 2.0, 6), rng.uniform(0.3, 5.0, 6)
    return Types(cost, offer, np.ones(6), np.full(6, 1 / 6))


@pytest.mark.parametrize("money", [0.05, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.5, 2.0])
def test_the_bound_is_the_optimum_of_a_linear_programme(money, heterogeneity, rng):
    """For each mean precision X the least E[y²] is a linear programme over who sells how much; X is searched."""
    types = small_population(rng)
    clients, goal = 50, LocalError(heterogeneity=heterogeneity)
    rows = []
    for kind in range(6):
        rows += [(kind, x) for x in np.append(0.0, np.geomspace(0.02, 1.0, 60) * types.epsilon[kind])]
    kind, amount = (np.array(column) for column in zip(*rows, strict=True))
    kind = kind.astype(int)
    y = np.where(amount > 0, mu_of(np.maximum(amount, 1e-9), DELTA) ** 2, 0.0)
    groups = (kind == np.arange(6)[:, None]).astype(float)
    probability = np.full(6, 1 / 6)
    paid = types.cost[kind] * amount

    def solve(objective, mean=None):
        equal, right = (
            (groups, probability) if mean is None else (np.vstack([groups, y]), np.append(probability, mean))
        )
        return linprog(objective, A_ub=paid[None], b_ub=[money * clients / clients], A_eq=equal, b_eq=right)

    most = -solve(-y).fun
    noise, squared = 1.0 / clients, heterogeneity**2
    if heterogeneity == 0:
        best = noise / most
    else:
        best = np.inf
        for mean in most * np.geomspace(0.02, 0.9999, 160):
            found = solve(y**2, mean)
            if found.status == 0:
                best = min(best, (noise * mean + squared * found.fun) / mean**2 - squared)
    ours = least_local_error(types, clients, money * clients, goal).error
    assert ours + squared == pytest.approx(best + squared, rel=0.01)


@pytest.mark.parametrize("heterogeneity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("law", ["uniform", "bimodal", "lognormal"])
def test_no_exact_rule_beats_the_bound_and_the_precision_menu_comes_close(law, heterogeneity):
    goal, of_law, clients = LocalError(heterogeneity=heterogeneity), scenario(law), 2000
    types = of_law.sample(np.random.default_rng(4), clients, (4,))
    bound = fluid_bound(of_law, clients, 0.3 * clients, goal)
    values = {}
    for name in ("ration", "two-step", "mean-field-menu", "precision-menu"):
        settings = {} if name == "mean-field-menu" else {"distribution": of_law, "heterogeneity": heterogeneity}
        rule = pm.mechanism(name, **settings)
        values[name] = float(goal.value(rule.run(types, 0.3 * clients), types).mean())
    assert 0.97 * bound < values["precision-menu"] < 1.1 * bound
    assert min(values, key=values.get) == "precision-menu"


def test_more_money_never_makes_the_bound_larger():
    goal = LocalError(heterogeneity=1.0)
    bounds = [one_price_bound(scenario("uniform"), 100, money, goal) for money in (1.0, 10.0, 50.0, 100.0, 1000.0)]
    assert np.all(np.diff(bounds) <= 1e-9)


def test_prices_are_ironed():
    """Half of the clients ask 0.1, some 0.9 and the rest 1: nobody is offered a price that suits nobody."""
    asked = np.repeat([0.1, 0.9, 1.0], [50, 5, 45])
    past = EmpiricalDistribution("past", pm.Bids(asked, np.full(100, 2.0)))
    cost, price = selling_prices(past)
    # To raise the price from 0.1 to 1 costs (1 − 0.5·0.1)/(1 − 0.5) a unit more; 0.9 is worse for the fifty-five.
    jump = (1.0 - 0.05) / 0.5
    assert np.interp(0.5 * jump, cost, price) == pytest.approx(0.1)
    assert np.interp(1.2 * jump, cost, price) == pytest.approx(1.0)
    assert 0.1 < np.interp(jump, cost, price) < 1.0


def test_past_bids_serve_as_a_belief_and_wrong_ones_cost_no_promise(rng):
    types = scenario("uniform").sample(rng, 20, (30,))
    past = EmpiricalDistribution("past", scenario("uniform").sample(rng, 300))
    goal = LocalError()
    right = goal.value(pm.mechanism("precision-menu").run(types, 7.0), types).mean()
    learned = goal.value(pm.mechanism("precision-menu", distribution=past).run(types, 7.0), types).mean()
    assert learned == pytest.approx(right, rel=0.1)
    wrong = pm.mechanism("precision-menu", distribution="lognormal", heterogeneity=0.5)
    found = certified_regret(wrong, types[0], 7.0)
    assert found.upper.max() <= 1e-6


def test_free_clients_are_bought():
    nobody_asks = EmpiricalDistribution("free", pm.Bids(np.zeros(5), np.full(5, 1.0)))
    outcome = pm.mechanism("precision-menu", distribution=nobody_asks).run(pm.Bids([0.0, 0.5], [1.0, 1.0]), 1.0)
    assert outcome.epsilon.tolist() == [1.0, 0.0]


def test_the_error_of_a_small_market_by_hand():
    """Strengths 1, 2 and 0 (δ = None), records 1, 1, 1: weights 1/5, 4/5 and 0."""
    bids = pm.Bids([1, 1, 1], [3.0, 3.0, 3.0])
    goal = LocalError(kappa=10.0, heterogeneity=2.0, delta=None)
    outcome = pm.Outcome([1.0, 2.0, 0.0], [1.0, 1.0, 0.0])
    bias = (1 / 5 - 1 / 3) ** 2 + (4 / 5 - 1 / 3) ** 2 + (1 / 3) ** 2
    assert goal.value(outcome, bids) == pytest.approx(10 / 5 + 4 * 3 * bias)
    assert goal.value(pm.Outcome(np.zeros(3), np.zeros(3)), bids) == np.inf
    sized = pm.Bids([1, 1], [3.0, 3.0], data_size=[1.0, 3.0])  # relative sizes 1/2 and 3/2
    found = goal.terms(np.array([1.0, 1.0]), sized)
    assert found[0] == pytest.approx(10 * 2 / 4)
    assert found[1] == pytest.approx(0.0)


@pytest.mark.parametrize("settings", [{"heterogeneity": -1.0}, {"kappa": 0.0}, {"delta": 0.7}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ConfigurationError, match="local error"):
        pm.mechanism("precision-menu", **settings)
