"""Distributions of clients: named, empirical, SciPy's, and own objects."""

import numpy as np
import pytest
from scipy import stats

import privmarket as pm
from privmarket.errors import BidError, ConfigurationError, UnknownNameError
from privmarket.market._distributions import (
    SCENARIOS,
    EmpiricalDistribution,
    ValuationFunction,
    independence_test,
    scenario,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_offers_stay_within_the_public_limit_and_come_close_to_it(name, rng):
    bids = scenario(name).sample(rng, 500, (3,))
    assert bids.shape == (3, 500)
    assert 0.98 * scenario(name).epsilon_max < bids.epsilon.max() <= scenario(name).epsilon_max


def test_table_one(rng):
    uniform, bimodal, lognormal = (scenario(n).sample(rng, 40_000) for n in ("uniform", "bimodal", "lognormal"))
    assert uniform.valuation.mean() == pytest.approx(0.5, abs=0.01)
    assert uniform.epsilon.mean() == pytest.approx(2.55, abs=0.03)
    relaxed = bimodal.epsilon >= 2
    assert relaxed.mean() == pytest.approx(0.5, abs=0.01)
    assert bimodal.epsilon[~relaxed].max() <= 0.5
    assert np.log(lognormal.valuation).mean() == pytest.approx(0.0, abs=0.01)
    assert np.log(lognormal.valuation).std() == pytest.approx(0.5, abs=0.01)


def test_the_same_seed_draws_the_same_market():
    a, b = (scenario("uniform").sample(np.random.default_rng(3), 5) for _ in range(2))
    np.testing.assert_array_equal(a.valuation, b.valuation)


def test_valuation_function_is_the_weighted_sum():
    value = ValuationFunction(2.0, 0.1, 3.0)(np.array([0.8]), np.array([0.5]), np.array([40.0]), np.array([0.2]))
    assert value[0] == pytest.approx(2 * 0.8 / 0.5 + 0.1 * 40 + 3 * 0.2)


def test_past_bids_are_drawn_whole(rng):
    past = pm.Bids([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], data_size=[10, 20, 30])
    drawn = EmpiricalDistribution("past", past).sample(rng, 50)
    np.testing.assert_allclose(drawn.epsilon, drawn.valuation * 10)
    np.testing.assert_allclose(drawn.data_size, drawn.valuation * 100)


def test_unknown_and_too_small_ones_are_refused():
    with pytest.raises(UnknownNameError, match="unknown scenario 'unifrom'"):
        scenario("unifrom")
    with pytest.raises(ConfigurationError, match="at least 2"):
        EmpiricalDistribution("past", pm.Bids([0.1], [1.0]))


class Rising:
    """Clients that offer more ask more for a unit."""

    epsilon_max = 4.0

    def sample(self, rng, clients):
        epsilon = rng.uniform(0.5, 4.0, clients)
        return pm.Bids(epsilon * rng.random(clients), epsilon)


def test_frozen_distributions_of_scipy_are_drawn_as_they_are(rng):
    found = pm.market.distribution((stats.gamma(2.0, scale=0.2), stats.uniform(0.1, 4.9)))
    assert (found.name, found.epsilon_max, found.independent) == ("gamma × uniform", 5.0, True)
    bids = found.sample(rng, 2_000, (3,))
    assert bids.shape == (3, 2_000)
    # Two Kolmogorov–Smirnov tests at a fixed seed; each would fail once in 10,000 seeds.
    assert stats.kstest(bids.valuation.ravel(), stats.gamma(2.0, scale=0.2).cdf).pvalue > 1e-4
    assert stats.kstest(bids.epsilon.ravel(), stats.uniform(0.1, 4.9).cdf).pvalue > 1e-4


def test_the_uniform_scenario_and_scipys_have_the_same_bounds():
    ours = pm.scenario("uniform")
    theirs = pm.market.distribution((stats.uniform(0, 1), stats.uniform(0.1, 4.9)))
    for bound in (pm.market.fluid_bound, pm.market.one_price_bound, pm.market.first_best_bound):
        assert bound(theirs, 50, 20.0) == pytest.approx(bound(ours, 50, 20.0), rel=1e-9)


def test_discrete_distributions_of_scipy_reach_down_to_where_they_say(rng):
    found = pm.market.distribution((stats.poisson(3.0), stats.randint(1, 6)))
    bids = found.sample(rng, 2_000)
    assert (bids.valuation.min(), bids.epsilon.min(), found.epsilon_max) == (0.0, 1.0, 5.0)
    with pytest.raises(ConfigurationError, match="down to -2"):
        pm.market.distribution((stats.randint(-2, 6), stats.randint(1, 6)))


@pytest.mark.parametrize("cheap", [0.00098, 0.01, 0.3])
def test_the_bound_knows_where_equal_valuations_end(cheap):
    """A posted price a little above 1 buys from all that ask 1 and keeps the budget: no bound is below that."""
    kinds = stats.rv_discrete(values=([1, 10_000], [cheap, 1 - cheap]))
    found = pm.market.distribution((kinds, stats.uniform(1.0, 1e-9)))
    dear = 0.1 * cheap / 10_000  # what is left of the money buys these at most
    bound = pm.market.fluid_bound(found, 1_000, 1_100 * cheap)
    assert 1_000 * cheap <= bound <= 1_001 * (cheap + dear)
    assert pm.market.first_best_bound(found, 1_000, 500 * cheap) == pytest.approx(500 * cheap, rel=1e-6)


def test_the_order_of_a_file_says_nothing_about_dependence(rng):
    offers = np.sort(rng.uniform(0.1, 5.0, 200))
    assert independence_test(pm.Bids(np.full(200, 0.5), offers)) == 1.0
    assert independence_test(pm.Bids(np.sort(rng.random(200)), np.ones(200))) == 1.0
    two = rng.permutation(np.repeat([0.2, 0.5], 100))
    shuffled = rng.permutation(200)
    here, there = (independence_test(pm.Bids(two[order], offers[order])) for order in (np.arange(200), shuffled))
    assert here > 0.05
    assert there == pytest.approx(here, abs=0.1)


def test_an_unbounded_epsilon_is_cut_at_the_limit(rng):
    with pytest.raises(ConfigurationError, match="no upper end"):
        pm.market.distribution((stats.uniform(0, 1), stats.expon()))
    found = pm.market.distribution((stats.uniform(0, 1), stats.expon()), epsilon_max=2.0)
    epsilon = found.sample(rng, 3_000).epsilon
    assert epsilon.max() <= 2.0
    assert stats.kstest(epsilon, stats.truncexpon(2.0).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ((stats.norm(0, 1), stats.uniform(0.1, 1)), "down to -inf"),
        ((stats.uniform(0, 1), stats.norm(1, 1)), "down to -inf"),
        ((stats.uniform(0, 1),), "two frozen"),
        ((stats.uniform(0, 1), 3.0), "two frozen"),
        (3.0, r"sample\(rng, clients\)"),
        (Rising, r"sample\(rng, clients\)"),
    ],
)
def test_what_is_no_distribution_is_refused_with_a_hint(source, what):
    with pytest.raises(ConfigurationError, match=what):
        pm.market.distribution(source)


def test_an_own_object_is_sampled_market_by_market(rng):
    found = pm.market.distribution(Rising())
    assert (found.name, found.epsilon_max, found.independent) == ("Rising", 4.0, False)
    bids = found.sample(rng, 7, (2, 3))
    assert bids.shape == (2, 3, 7)
    assert found.sample(rng, 7).shape == (7,)
    np.testing.assert_array_equal(
        found.sample(np.random.default_rng(5), 4).valuation, Rising().sample(np.random.default_rng(5), 4).valuation
    )
    # Given ε, v is uniform from 0 on: the best price is the same for all, and the sampled bound errs upwards.
    one_price = pm.market.one_price_bound(found, 100, 50.0)
    assert one_price <= pm.market.fluid_bound(found, 100, 50.0) <= 1.02 * one_price
    report = pm.audit("mean-field-menu", scenario=Rising(), clients=6, budget=3.0, profiles=1, attack="quick")
    assert report.scenario == "Rising"
    assert report.fluid_ratio < 1


def test_where_the_offer_tells_the_cost_the_bound_is_the_first_best():
    """Half offer 1 and ask 0.1, half offer 2 and ask 0.5: 0.3 each buys all of the first, half of the others."""

    class TwoKinds:
        def sample(self, rng, clients):
            dear = rng.random(clients) < 0.5
            return pm.Bids(np.where(dear, 0.5, 0.1), np.where(dear, 2.0, 1.0))

    found = pm.market.distribution(TwoKinds(), epsilon_max=2.0)
    known = 100 * (0.5 * 1.0 + (0.3 - 0.05) / 0.5)
    assert pm.market.fluid_bound(found, 100, 30.0) == pytest.approx(known, rel=0.01)
    assert pm.market.first_best_bound(found, 100, 30.0) == pytest.approx(known, rel=0.01)
    assert pm.market.one_price_bound(found, 100, 30.0) < 0.9 * known


def test_what_an_own_object_returns_is_checked(rng):
    class Short(Rising):
        def sample(self, rng, clients):
            return super().sample(rng, clients - 1)

    class Greedy(Rising):
        epsilon_max = 1.0

    class Plain(Rising):
        def sample(self, rng, clients):
            return [0.1] * clients

    for broken, what in (
        (Short, "returned bids of shape"),
        (Greedy, "above the market's limit"),
        (Plain, "a? ?list"),
    ):
        with pytest.raises(BidError, match=what):
            pm.market.distribution(broken())


def test_clients_that_depend_on_each_other_are_refused():
    """The bounds hold for independent clients: here a rule could read every client's price off the others'."""

    class CommonShock(Rising):
        def sample(self, rng, clients):
            return pm.Bids(rng.random() * rng.uniform(0.9, 1.1, clients), rng.uniform(0.5, 4.0, clients))

    with pytest.raises(ConfigurationError, match="valuations of one market are not drawn independently"):
        pm.market.distribution(CommonShock())


class Couples(pm.market.Distribution):
    """Every second client asks what the one before leaves of 1."""

    name = "couples"
    epsilon_max = 1.0

    def sample(self, rng, clients, markets=()):
        v = rng.random((*markets, clients))
        v[..., 1::2] = 1 - v[..., : clients // 2 * 2 : 2]
        return pm.Bids(v, np.ones(v.shape))


class CommonScale(Couples):
    def sample(self, rng, clients, markets=()):
        scale = np.where(rng.random((*markets, 1)) < 0.5, 0.1, 1.0)
        return pm.Bids(scale * rng.uniform(0.9, 1.0, (*markets, clients)), np.ones((*markets, clients)))


class CommonSpread(Couples):
    """All near the middle, or all at the ends: the mean rank of a market says nothing."""

    def sample(self, rng, clients, markets=()):
        away = np.where(rng.random((*markets, 1)) < 0.5, 0.1, 1.0) * rng.uniform(-0.5, 0.5, (*markets, clients))
        return pm.Bids(0.5 + away, np.ones(away.shape))


class Independent(Couples):
    def sample(self, rng, clients, markets=()):
        return pm.Bids(rng.random((*markets, clients)), rng.choice([0.5, 1.0], (*markets, clients)))


@pytest.mark.parametrize("kind", [Couples, CommonScale, CommonSpread])
def test_distributions_of_ones_own_are_checked_too(kind):
    with pytest.raises(ConfigurationError, match="valuations of one market are not drawn independently"):
        pm.market.distribution(kind())
    with pytest.raises(ConfigurationError, match="not drawn independently"):
        pm.audit("ration", scenario=kind(), clients=4, budget=1.0, profiles=1, attack="quick")


class SharedRecords:
    """A thousand records are split over the clients: fewer clients hold more, and ask more."""

    def sample(self, rng, clients):
        records = 1_000 / clients * rng.uniform(0.5, 1.5, clients)
        return pm.Bids(0.01 * records, np.ones(clients), data_size=records)


class OtherAtTwelve:
    def sample(self, rng, clients):
        return pm.Bids(rng.random(clients) * (0.2 if clients == 12 else 1.0), np.ones(clients))


@pytest.mark.parametrize(("kind", "clients"), [(SharedRecords, 6), (SharedRecords, 60), (OtherAtTwelve, 12)])
def test_clients_that_depend_on_their_number_are_refused_where_a_bound_is_computed(kind, clients):
    """The bounds come from one large market, which says nothing about such small ones."""
    drawn = pm.market.distribution(kind())
    with pytest.raises(ConfigurationError, match=f"in a market of {clients} are distributed unlike"):
        pm.market.fluid_bound(drawn, clients, 1.0)
    with pytest.raises(ConfigurationError, match="one distribution, whatever their number"):
        pm.audit("ration", scenario=kind(), clients=clients, budget=1.0, profiles=1, attack="quick")


def test_clients_that_do_not_depend_on_their_number_pass():
    for clients in (1, 4, 12, 300):
        assert pm.market.fluid_bound(pm.market.distribution(OtherAtTwelve()), 11, 1.0) > 0
        assert pm.market.fluid_bound(pm.market.distribution(Rising()), clients, 1.0) > 0


def test_dependence_on_records_is_seen_in_past_bids():
    rng = np.random.default_rng(0)
    records = rng.uniform(10, 100, 200)
    past = pm.Bids(0.01 * records, np.ones(200), data_size=records)
    assert independence_test(past) == 1.0
    assert independence_test(past, "data_size") < 0.01


def test_independent_clients_pass_the_check():
    found = Independent()
    assert pm.market.distribution(found) is found


@pytest.mark.parametrize(
    "records", [None, lambda rng, n: rng.uniform(100, 1000, n), lambda rng, n: rng.integers(1, 4, n)]
)
def test_records_that_tell_nothing_do_not_loosen_the_bound(records):
    """Cells of few rows would: the best prices for three rows are nearly their costs."""

    class Own:
        def sample(self, rng, clients):
            sizes = None if records is None else records(rng, clients)
            return pm.Bids(rng.random(clients), rng.uniform(0.1, 5, clients), data_size=sizes)

    known = pm.market.fluid_bound(pm.scenario("uniform"), 100, 50.0)
    assert pm.market.fluid_bound(pm.market.distribution(Own()), 100, 50.0) == pytest.approx(known, rel=0.015)


def test_levels_of_offers_and_records_see_costs_that_fall_with_offers():
    """`valuation-function` as an object of one's own, records and all."""

    class Own:
        def sample(self, rng, clients):
            return pm.scenario("valuation-function").sample(rng, clients)

    known = pm.market.fluid_bound(pm.scenario("valuation-function"), 100, 50.0)
    assert pm.market.fluid_bound(pm.market.distribution(Own()), 100, 50.0) == pytest.approx(known, rel=0.015)
