"""Rations: known answers, levels against a search that knows no breakpoints, the uniform rule, floors, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import BidError, ConfigurationError
from privmarket.market._distributions import EmpiricalDistribution, IndependentDistribution, scenario
from privmarket.market._menus import RationCurve
from privmarket.market._objectives import AggregateError, TypicalAggregateError
from privmarket.market._ration_design import bias_to_noise, flat_price, two_step_curve
from privmarket.mechanisms._ration_menu import RationMenu, face, face_all
from tests.conftest import awkward_budgets, awkward_markets

CURVES = {
    "one step": RationCurve([0.7], [1.0]),
    "two steps": RationCurve([0.2, 0.8], [6.0, 1.0]),
    "floor": RationCurve([0.2, 0.8], [6.0, 1.0], floor=0.3),
    "ceiling": RationCurve([0.2, 0.8], [6.0, 1.0], ceiling=0.4),
    "four steps": RationCurve([0.1, 0.3, 0.5, 0.9], [40.0, 7.0, 2.0, 1.0], floor=0.05),
}


class Fixed(RationMenu):
    """Any curve, given."""

    name = "fixed ration menu"

    def __init__(self, curve: RationCurve) -> None:
        super().__init__()
        self.curve = curve

    def ration_curve(self, clients: int, budget: float) -> RationCurve:
        return self.curve


def test_a_flat_ration_by_hand():
    bids = pm.Bids([0.5, 0.1, 0.9, 0.3], [2.0, 0.25, 1.0, 2.5])
    outcome = pm.mechanism("ration", unit_price=0.8).run(bids, 1.6)  # e = 1.6/(4·0.8) = 0.5
    np.testing.assert_allclose(outcome.epsilon, [0.5, 0.25, 0.0, 0.5])
    np.testing.assert_allclose(outcome.payment, [0.4, 0.2, 0.0, 0.4])


def test_one_step_is_the_uniform_rule_and_spends_all():
    # Sellers at 0.8: offers 2, 0.25, 2.5 share 1.6/0.8 = 2 units: 0.25 in full, the rest 0.875 each.
    bids = pm.Bids([0.5, 0.1, 0.9, 0.3], [2.0, 0.25, 1.0, 2.5])
    outcome = pm.mechanism("two-step", unit_price=0.8).run(bids, 1.6)
    np.testing.assert_allclose(outcome.epsilon, [0.875, 0.25, 0.0, 0.875])
    assert outcome.spend == pytest.approx(1.6)


def test_two_steps_by_hand():
    # Client 1 asks 0.1: up to four rations, those beyond the first at 0.2. Levels: client 0 faces
    # 0.8·ℓ + 0.2·3ℓ (client 1) + 0.8·ℓ (client 2) + 0.8·ℓ + 0.2·3ℓ (reserve) = 3.6·ℓ ≤ 1.8.
    bids = pm.Bids([0.5, 0.1, 0.3], [5.0, 5.0, 5.0])
    rule = pm.mechanism("two-step", unit_price=0.8, bulk_price=0.2, bulk_multiple=4.0)
    outcome = rule.run(bids, 1.8)
    # Client 1 faces 0.8·ℓ·2 + 1.4·ℓ = 3·ℓ ≤ 1.8.
    np.testing.assert_allclose(outcome.epsilon, [0.5, 2.4, 0.5])
    np.testing.assert_allclose(outcome.payment, [0.4, 0.8 * 0.6 + 0.2 * 1.8, 0.4])


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_levels_match_a_search_that_knows_no_breakpoints(curve, rng):
    for n in (1, 2, 7, 40, 400):
        bids, budget = awkward_markets(rng, 1, n)[0], float(awkward_budgets(rng, 1)[0])
        facing = face(curve, bids, budget, 5.0)
        for client in rng.choice(n, min(n, 5), replace=False):
            v, e = np.delete(bids.valuation, client), np.delete(bids.epsilon, client)

            def cost(level, v=v, e=e):
                others = curve.trade(v, e, np.full(v.shape, level))[1].sum()
                return float(others + curve.most_pay(5.0, level))

            low, high = 0.0, min(5.0, curve.ceiling)
            if cost(high) <= budget:
                low = high
            for _ in range(200):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if cost(middle) <= budget else (low, middle)
            assert facing.ration[client] == pytest.approx(low, rel=1e-9, abs=1e-12)
            assert (facing.unit_price[client] > 0) == (low >= 5.0)


@pytest.mark.parametrize("clients", [1, 2, 7, 40])
def test_many_markets_of_unequal_curves_are_each_as_if_alone(clients, rng):
    """To the last bit, with curves of one to four steps, floors and ceilings side by side."""
    curves = [*CURVES.values()] * 8
    bids, budgets = awkward_markets(rng, len(curves), clients), awkward_budgets(rng, len(curves))
    together = face_all(curves, bids, budgets[:, None], 5.0)
    for market, curve in enumerate(curves):
        alone = face(curve, bids[market], float(budgets[market]), 5.0)
        np.testing.assert_array_equal(together.ration[market], alone.ration)
        np.testing.assert_array_equal(together.unit_price[market], alone.unit_price)
        assert alone.ration.max() <= min(5.0, curve.ceiling)


def test_plentiful_money_raises_the_price_like_the_mean_field_menu(rng):
    bids = scenario("uniform").sample(rng, 50)
    menu = pm.mechanism("mean-field-menu").run(bids, 110.0)
    rations = pm.mechanism("two-step", unit_price=0.3).run(bids, 110.0)
    np.testing.assert_allclose(rations.payment, menu.payment)


def test_a_service_floor_is_served_before_any_bulk(rng):
    bids = scenario("uniform").sample(rng, 60, (20,))
    settings = {"unit_price": 0.9, "bulk_price": 0.5, "bulk_multiple": 50.0}
    budget = 60 * 0.9 * 0.2
    without = pm.mechanism("two-step", **settings).run(bids, budget)
    floor = pm.mechanism("two-step", service_amount=0.2, **settings).run(bids, budget)
    below = bids.valuation < 0.9
    served = floor.epsilon >= np.minimum(bids.epsilon, 0.2) - 1e-12
    assert served[below].all()
    assert not (without.epsilon >= np.minimum(bids.epsilon, 0.2) - 1e-12)[below].all()


def test_a_ceiling_leaves_money_over(rng):
    bids = scenario("uniform").sample(rng, 30)
    outcome = Fixed(CURVES["ceiling"]).run(bids, 1e4)
    assert outcome.epsilon[bids.valuation >= 0.2].max() == pytest.approx(0.4)
    assert outcome.spend < 100


def test_the_two_step_design_finds_the_three_values_of_the_closed_form():
    """Uniform law, one cap, μ = ε: the best design leaves out D/2 of the clients, by the bound's closed form."""
    law = IndependentDistribution("one cap", lambda u: np.asarray(u), lambda u: np.full(np.shape(u), 2.0))
    goal = AggregateError(heterogeneity=0.02, delta=None)
    curve = two_step_curve(law, 100, 10.0, goal)
    # min over D of κ'·(2·E[v·y]/b)² + H²·D², with ȳ from the ration that D gives.
    bias = np.linspace(0, 1.99, 2000)
    strength = np.full(bias.shape, 0.2)
    for _ in range(200):
        top = np.maximum(2.0 / strength, 1.01)
        strength = 0.5 * strength + 0.5 * 0.1 / (2 * ((1 - bias / 2) ** 2 / 2 + bias**2 / (8 * (top - 1))))
    best = bias[int(np.argmin(1.5e-4 / strength**2 + 0.02**2 * bias**2))]
    assert curve.price[-1] == pytest.approx(1 - best / 2, abs=0.05)


def test_flat_price_falls_short_of_everybody_only_where_noise_counts():
    law = scenario("uniform")
    assert flat_price(law, 100, 50.0, AggregateError(heterogeneity=1.0)) > 0.95
    rich = flat_price(law, 100, 400.0, AggregateError(heterogeneity=1e-4))
    assert rich > 0.5


@pytest.mark.parametrize("ratio", [10.0, 100.0])
def test_the_flat_price_of_a_skewed_law_has_a_closed_form(ratio):
    """p(u) = u², μ = ε, b = 0.1: X = u·b/p = b/u, D = 2(1 − u): E = u²/b² + r·D² is least at 4rb²/(1 + 4rb²)."""
    law = IndependentDistribution("square", lambda u: np.asarray(u) ** 2, lambda u: np.full(np.shape(u), 1e6))
    goal = AggregateError(kappa=1e4 / ratio, heterogeneity=1.0, honest_share=1.0, delta=None)
    share = 4 * ratio * 0.01 / (1 + 4 * ratio * 0.01)
    assert flat_price(law, 100, 10.0, goal) == pytest.approx(share**2, rel=0.01)


def test_designs_from_past_bids(rng):
    law = EmpiricalDistribution("past", scenario("lognormal").sample(rng, 3000))
    for heterogeneity in (0.05, 0.3):
        goal = AggregateError(heterogeneity=heterogeneity)
        known, learned = (two_step_curve(x, 100, 50.0, goal) for x in (scenario("lognormal"), law))
        assert learned.price[-1] == pytest.approx(known.price[-1], rel=0.15)


def test_market_facts_reach_the_rules():
    facts = pm.MarketFacts.of(scenario("lognormal"))
    assert pm.mechanism("two-step", market=facts).distribution.name == "lognormal"
    assert pm.mechanism("ration", market=facts).distribution.name == "lognormal"


def test_unless_told_rules_aim_at_the_objectives_own_settings():
    assert pm.mechanism("ration").objective == pm.mechanism("two-step").objective == AggregateError()
    assert pm.mechanism("graded-ration").objective == TypicalAggregateError(heterogeneity=1.0)
    told = pm.mechanism("ration", kappa=2.0, heterogeneity=0.3, honest_share=0.5, delta=1e-6)
    assert told.objective == AggregateError(2.0, 0.3, 0.5, 1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"unit_price": 0.0},
        {"unit_price": -1.0},
        {"unit_price": float("inf")},
        {"bulk_price": 0.2},
        {"unit_price": 0.2, "bulk_price": 0.3},
        {"unit_price": 0.5, "bulk_price": 0.3, "bulk_multiple": 1.0},
        {"unit_price": 0.5, "service_amount": -1.0},
        {"epsilon_max": 0.0},
        {"honest_share": 2.0},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ConfigurationError):
        pm.mechanism("two-step", **settings)


def test_a_price_without_end_and_a_bulk_that_costs_no_less_are_refused_by_name():
    with pytest.raises(ConfigurationError, match="ration: unit_price is inf"):
        pm.mechanism("ration", unit_price=float("inf"))
    with pytest.raises(ConfigurationError, match=r"bulk_price 0\.3 with unit_price 0\.3"):
        pm.mechanism("two-step", unit_price=0.3, bulk_price=0.3)


@pytest.mark.parametrize(
    ("price", "multiple"),
    [([], []), ([1.0], [2.0]), ([2.0, 1.0], [2.0, 1.0]), ([1.0, 2.0], [1.0, 1.0]), ([0.0], [1.0]), ([1.0], [2, 1])],
)
def test_wrong_curves_are_refused(price, multiple):
    with pytest.raises(ConfigurationError, match="ration menu"):
        RationCurve(price, multiple)
    with pytest.raises(ConfigurationError, match="ceiling"):
        RationCurve([1.0], [1.0], ceiling=0.0)


def test_offers_above_the_limit_are_refused():
    with pytest.raises(BidError, match="epsilon_max"):
        pm.mechanism("two-step").run(pm.Bids([0.1, 0.2], [1.0, 6.0]), 1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"price": [0.0, 1.0], "multiple": [2.0, 1.0]}, "prices"),
        ({"price": [0.5, np.inf], "multiple": [2.0, 1.0]}, "prices"),
        ({"floor": -0.1}, "floor"),
        ({"floor": np.inf}, "floor"),
        ({"ceiling": 0.0}, "ceiling"),
    ],
)
def test_curves_that_no_market_can_offer_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        RationCurve(**{"price": [0.5], "multiple": [1.0], **settings})


@pytest.mark.parametrize("budget", [5.0, 40.0])
def test_the_flat_price_is_the_best_of_all_flat_prices(budget):
    """Found again by trying every price on a grid of clients, with money/price as the ration."""
    law, clients, objective = scenario("uniform"), 20, AggregateError()
    valuation, offers = (
        law.valuation((np.arange(400) + 0.5) / 400)[:, None],
        law.epsilon((np.arange(50) + 0.5) / 50),
    )

    def error(price):
        strength = (valuation < price) * objective.mu(np.minimum(offers, budget / clients / price))
        mean = strength.mean()
        return 1 / mean**2 + bias_to_noise(objective, clients) * np.abs(strength / mean - 1).mean() ** 2

    found = flat_price(law, clients, budget, objective)
    assert error(found) <= 1.02 * min(error(price) for price in np.linspace(0.05, 1.5, 60))


@pytest.mark.parametrize("budget", [1e-300, 1e-30, 1e-8])
def test_next_to_no_money_is_no_error(budget):
    bids = pm.Bids([0.4] * 4, [1.0, 2.0, 3.0, 4.0])
    outcome = pm.mechanism("graded-ration").run(bids, budget)
    assert outcome.spend <= budget * (1 + 1e-12)
    assert (outcome.utility(bids) >= 0.0).all()
