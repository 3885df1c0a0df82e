import numpy as np
import pytest
from scipy.special import ndtri

import privmarket as pm
from privmarket.market._audit import audit
from privmarket.market._bounds import (
    SupplyCurve,
    Types,
    _dual,
    first_best_bound,
    fluid_bound,
    one_price_bound,
    prior_free_reference,
    supply_curve,
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
from privmarket.market._objectives import AggregationError

UNIFORM = scenario("uniform")


def test_uniform_bounds_have_closed_forms():
    # Posted price π: 100·2.55·π·π = 50; first best: 100·2.55·π²/2 = 50.
    price = np.sqrt(50 / 255)
    assert fluid_bound(UNIFORM, 100, 50) == pytest.approx(255 * price, rel=1e-4)
    assert first_best_bound(UNIFORM, 100, 50) == pytest.approx(255 * np.sqrt(2) * price, rel=1e-4)
    assert supply_curve(UNIFORM).price_that_spends(0.5) == pytest.approx(price, rel=1e-4)


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
    for objective in (None, AggregationError(1.0, 0.1)):
        extra = () if objective is None else (objective,)
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
