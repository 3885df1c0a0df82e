"""Answers from closed forms, hand calculation and the measurements that the design started from."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import BidError, ConfigurationError
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import IndependentDistribution, scenario

UNIFORM = scenario("uniform")


@pytest.mark.parametrize("name", ["pac", "pac:literal"])
def test_pac_gives_the_papers_table_three_at_ten_clients(name, rng):
    """R = 90/11 and SW = 45/11: the row that the paper prints for N = 100 is N = 10."""
    valuation = UNIFORM.sample(rng, 10, (20_000,)).valuation
    bids = pm.Bids(valuation, np.full_like(valuation, 5.0))
    outcome = pm.mechanism(name).run(bids, 50.0)
    assert outcome.spend.mean() == pytest.approx(90 / 11, abs=5 * outcome.spend.std() / 20_000**0.5)
    welfare = outcome.welfare(bids)
    assert welfare.mean() == pytest.approx(45 / 11, abs=5 * welfare.std() / 20_000**0.5)
    if name == "pac:literal":
        literal = pm.mechanism("vcg:literal").run(bids, 50.0)
        np.testing.assert_allclose(literal.payment, outcome.payment)


def test_pac_at_a_hundred_clients(rng):
    bids = UNIFORM.sample(rng, 100, (4_000,))
    outcome = pm.mechanism("pac:literal").run(bids, 50.0)
    assert np.all((outcome.epsilon > 0).sum(axis=-1) == 98)
    assert outcome.spend.mean() == pytest.approx(48.0, abs=0.1)
    assert outcome.welfare(bids).mean() == pytest.approx(24.0, abs=0.2)


def test_pac_by_hand():
    """PAC is FairQuery of [GhoshRoth2011]: equal ε for the cheapest, paid by the first who is left out."""
    # n = 4, B = 1. k = 2: 0.2/2 ≤ 1/2; k = 3: 0.9/1 > 1/3. ε = 1/2, pay min(1/2, 0.9/2).
    outcome = pm.mechanism("pac").run(pm.Bids([0.9, 0.1, 0.2, 1.0], [1, 1, 1, 1]), 1.0)
    np.testing.assert_allclose(outcome.epsilon, [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(outcome.payment, [0, 0.45, 0.45, 0])


def test_pac_never_sells_more_than_a_cap(rng):
    bids = scenario("bimodal").sample(rng, 40, (50,))
    for limit in (1.0, 0.5, 0.1):
        outcome = pm.mechanism("pac", offer_limit=limit).run(bids, 20.0)
        assert np.all(outcome.epsilon <= bids.epsilon)
    assert np.any(pm.mechanism("pac:literal").run(bids, 20.0).epsilon > bids.epsilon)


@pytest.mark.parametrize("name", ["pac", "vcg", "k-plus-one-price", "csra"])
def test_one_client_has_no_competitor_and_sells_nothing(name):
    outcome = pm.mechanism(name).run(pm.Bids([0.1], [1.0]), 10.0)
    assert outcome.epsilon.tolist() == [0.0]
    assert outcome.payment.tolist() == [0.0]


@pytest.mark.parametrize("name", ["proportional-share", "mean-field-menu", "jsam", "mfg-pricing"])
def test_one_client_can_sell_where_the_price_does_not_need_another(name):
    assert pm.mechanism(name).run(pm.Bids([0.1], [1.0]), 10.0).epsilon[0] == 1.0


@pytest.mark.parametrize("name", ["pac", "k-plus-one-price", "csra", "proportional-share", "mean-field-menu"])
def test_a_budget_that_buys_nobody_pays_nobody(name):
    outcome = pm.mechanism(name).run(pm.Bids([5.0, 6.0, 7.0], [1.0, 1.0, 1.0]), 1e-3)
    assert outcome.spend == 0
    assert outcome.total_epsilon == 0


def test_proportional_share_spends_the_last_cent():
    """v_2·(ε_1 + ε_2) is the budget exactly: the second client still sells; a hair less money, and it does not."""
    bids = pm.Bids([0.25, 0.5, 2.0], [1.0, 3.0, 1.0])
    assert pm.mechanism("proportional-share").run(bids, 2.0).epsilon.tolist() == [1.0, 3.0, 0.0]
    assert pm.mechanism("proportional-share").run(bids, 2.0).payment.tolist() == [0.5, 1.5, 0.0]
    assert pm.mechanism("proportional-share").run(bids, np.nextafter(2.0, 0)).epsilon.tolist() == [1.0, 0.0, 0.0]


def test_proportional_share_almost_reaches_the_fluid_bound(rng):
    bids = UNIFORM.sample(rng, 100, (4_000,))
    bought = pm.mechanism("proportional-share").run(bids, 50.0).total_epsilon
    assert fluid_bound(UNIFORM, 100, 50) == pytest.approx(112.9, abs=0.05)
    assert bought.mean() == pytest.approx(112.3, abs=5 * bought.std() / 4_000**0.5)


@pytest.mark.parametrize(
    ("clients", "markets", "least"), [(100, 1_000, 0.95), (1_000, 200, 0.995), (10_000, 60, 0.995)]
)
def test_the_menu_reaches_the_fluid_bound(clients, markets, least, rng):
    """Against a paired control: the drawn markets' own supply varies by more than the menu loses."""
    bids = UNIFORM.sample(rng, clients, (markets,))
    outcome = pm.mechanism("mean-field-menu").run(bids, clients / 2)
    ratio = outcome.total_epsilon / fluid_bound(UNIFORM, clients, clients / 2)
    # What a posted price at the fluid optimum would buy in the same markets has mean exactly 1.
    price = np.sqrt(0.5 / 2.55)
    control = (bids.epsilon * (bids.valuation <= price)).sum(axis=-1) / fluid_bound(UNIFORM, clients, clients / 2)
    slope = np.cov(ratio, control)[0, 1] / control.var()
    adjusted = ratio - slope * (control - 1.0)
    assert adjusted.mean() >= least
    assert np.all(outcome.spend <= clients / 2)


def test_vcg_pays_the_externality(rng):
    """Each payment equals the others' cost without the client minus their cost with it, by re-optimising."""
    bids = pm.Bids(rng.random(8), rng.uniform(0.5, 2, 8))
    cost = bids.valuation * bids.epsilon
    outcome = pm.mechanism("vcg", winners=3).run(bids, 1.0)
    for client in np.flatnonzero(outcome.epsilon):
        without = np.sort(np.delete(cost, client))[:3].sum()
        with_it = np.sort(cost)[:3].sum() - cost[client]
        assert outcome.payment[client] == pytest.approx(without - with_it)


def test_vcg_needs_a_loser():
    with pytest.raises(ConfigurationError, match="3 winners out of 3"):
        pm.mechanism("vcg", winners=3).run(pm.Bids([1, 2, 3], [1, 1, 1]), 1.0)


def test_csra_by_hand():
    # Rates v/d: 0.1, 0.2, 0.4, 1. k = 2: 0.4·(1·1 + 1·2) = 1.2 ≤ 2; k = 3: 1·(1 + 2 + 1) > 2.
    bids = pm.Bids([0.1, 0.4, 0.4, 1.0], [1, 1, 1, 1], data_size=[1, 2, 1, 1])
    outcome = pm.mechanism("csra").run(bids, 2.0)
    np.testing.assert_allclose(outcome.epsilon, [1, 1, 0, 0])
    np.testing.assert_allclose(outcome.payment, [0.4, 0.8, 0, 0])


def test_csra_literal_gives_the_papers_row(rng):
    """Table IV of [Sun2026]: R = 31.82, W' = 29.52, at N = 10 although the paper says 100."""
    types = UNIFORM.sample(rng, 10, (20_000,))
    bids = types.replace(data_size=rng.integers(10, 501, types.shape).astype(float))
    outcome = pm.mechanism("csra:literal").run(bids, 50.0)
    assert outcome.spend.mean() == pytest.approx(31.82, rel=0.02)
    assert outcome.welfare(bids).mean() == pytest.approx(29.52, rel=0.02)


def test_mfg_pricing_posts_the_fixed_point(rng):
    rule = pm.mechanism("mfg-pricing", distribution="uniform")
    price = np.sqrt(0.5 / 2.55)
    assert rule.unit_price(np.array(0.5)) == pytest.approx(price, rel=1e-4)
    bids = UNIFORM.sample(rng, 1000)
    outcome = rule.run(bids, 500.0)
    np.testing.assert_array_equal(outcome.epsilon > 0, bids.valuation <= rule.unit_price(np.array(0.5)))
    # More money than everybody needs: still all of it is spent, in expectation.
    assert rule.unit_price(np.array(5.1)) == pytest.approx(2.0, rel=1e-4)


def test_mfg_pricing_overspends_half_of_the_time(rng):
    bids = UNIFORM.sample(rng, 100, (500,))
    over = (pm.mechanism("mfg-pricing", distribution="uniform").run(bids, 50.0).spend > 50).mean()
    assert 0.4 < over < 0.55


def test_mfg_pricing_literal_underpays(rng):
    bids = UNIFORM.sample(rng, 100)
    outcome = pm.mechanism("mfg-pricing:literal").run(bids, 50.0)
    assert outcome.spend == pytest.approx(50.0)
    assert (outcome.utility(bids) < 0).mean() > 0.7


def test_jsam_minimises_its_objective(rng):
    """No exchange of money between two clients that have room lowers Σ W²/ε²."""
    bids = pm.Bids(rng.uniform(0.1, 1, 6), rng.uniform(0.5, 3, 6), data_size=rng.uniform(50, 500, 6))
    outcome = pm.mechanism("jsam").run(bids, 1.5)
    assert outcome.spend == pytest.approx(1.5)
    # Gain of the objective per unit of money is equal inside, and not lower at a cap.
    marginal = bids.data_share**2 / outcome.epsilon**3 / bids.valuation
    inside = outcome.epsilon < bids.epsilon * (1 - 1e-9)
    assert inside.sum() >= 2
    np.testing.assert_allclose(marginal[inside], marginal[inside][0], rtol=1e-9)
    assert np.all(marginal[~inside] >= marginal[inside][0] * (1 - 1e-9))


def test_jsam_buys_all_caps_when_it_can():
    bids = pm.Bids([0.5, 0.0], [1.0, 2.0])
    outcome = pm.mechanism("jsam").run(bids, 10.0)
    np.testing.assert_allclose(outcome.epsilon, [1.0, 2.0])
    np.testing.assert_allclose(outcome.payment, [0.5, 0.0])


def test_an_offer_above_the_limit_is_refused():
    with pytest.raises(BidError, match=r"client 1 offers ε = 6: above the market's limit epsilon_max = 5"):
        pm.mechanism("mean-field-menu").run(pm.Bids([0.1, 0.2], [1.0, 6.0]), 1.0)
    outcome = pm.mechanism("mean-field-menu", epsilon_max=6).run(pm.Bids([0.1, 0.2], [1.0, 6.0]), 10.0)
    assert outcome.total_epsilon == 7.0


def test_the_menus_levels_do_not_move_with_the_own_report(rng):
    law = IndependentDistribution("heavy", lambda u: (1 - u) ** -0.8, lambda u: 0.1 + 4.9 * u)
    bids = law.sample(rng, 300)
    rule = pm.mechanism("mean-field-menu")
    before = rule.price_levels(bids, 90.0)
    for client in (0, 100, 299):
        lie = bids.valuation.copy()
        lie[client] = 17.0 * rng.random()
        after = rule.price_levels(bids.replace(valuation=lie), 90.0)
        assert after[client] == pytest.approx(before[client], rel=1e-12)


def test_csra_weighs_offers_by_data_and_accuracy():
    # Rates v/(d·u) are 2, 1 and 1.25. B = 2: one winner (1.25·1 ≤ 2, 2·1.8 > 2), paid 1.25 for a quality of 1.
    bids = pm.Bids([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], accuracy=[0.5, 1.0, 0.8])
    outcome = pm.mechanism("csra").run(bids, 2.0)
    np.testing.assert_allclose(outcome.epsilon, [0, 1, 0])
    np.testing.assert_allclose(outcome.payment, [0, 1.25, 0])
    # With data sizes 4, 1, 1 the first has rate 1/2: it wins, paid at the second's rate 1 for a quality of 2.
    outcome = pm.mechanism("csra").run(bids.replace(data_size=[4.0, 1.0, 1.0]), 2.0)
    np.testing.assert_allclose(outcome.epsilon, [1, 0, 0])
    np.testing.assert_allclose(outcome.payment, [2.0, 0, 0])
