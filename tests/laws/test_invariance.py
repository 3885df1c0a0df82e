"""Order of clients, batching and the unit of money must not matter."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import OutcomeGuarantee
from privmarket.market._menus import MenuCurve, from_function
from tests.conftest import awkward_budgets, awkward_markets

CLASSICAL = [name for name in pm.mechanism_names() if name not in pm.mechanisms.learned_names()]
# A price computed from a distribution in money units cannot know that the unit changed.
SCALE_FREE = [
    name
    for name in CLASSICAL
    if name not in ("mfg-pricing", "ration", "two-step", "graded-ration", "precision-menu")
]


@pytest.mark.parametrize("name", CLASSICAL)
def test_permuting_clients_permutes_the_outcome(name, rng):
    bids = scenario("uniform").sample(rng, 30)
    order = rng.permutation(30)
    rule = pm.mechanism(name)
    straight, permuted = rule.run(bids, 10.0), rule.run(bids[order], 10.0)
    np.testing.assert_allclose(permuted.epsilon, straight.epsilon[order], atol=1e-12)
    np.testing.assert_allclose(permuted.payment, straight.payment[order], atol=1e-12)


@pytest.mark.parametrize("name", SCALE_FREE)
def test_changing_the_currency_changes_only_payments(name, rng):
    bids = scenario("lognormal").sample(rng, 25, (4,))
    rule = pm.mechanism(name)
    here, there = rule.run(bids, 9.0), rule.run(bids.replace(valuation=bids.valuation * 128.0), 9.0 * 128.0)
    np.testing.assert_allclose(there.epsilon, here.epsilon, rtol=1e-12)
    np.testing.assert_allclose(there.payment, here.payment * 128.0, rtol=1e-12)


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("clients", [1, 2, 5, 9])
def test_a_batch_is_its_markets_one_by_one(name, clients, rng):
    bids, budgets = awkward_markets(rng, 24, clients), awkward_budgets(rng, 24)
    rule = pm.mechanism(name)
    together = rule.run(bids[:, :].replace(), budgets)
    cube = pm.Bids(bids.valuation.reshape(4, 6, clients), bids.epsilon.reshape(4, 6, clients))
    stacked = rule.run(cube, budgets.reshape(4, 6))
    for market in range(24):
        alone = rule.run(bids[market], budgets[market])
        np.testing.assert_array_equal(together.epsilon[market], alone.epsilon)
        np.testing.assert_array_equal(together.payment[market], alone.payment)
        np.testing.assert_array_equal(stacked.payment[market // 6, market % 6], alone.payment)


SMOOTH = from_function(lambda s: np.clip(1.2 - s, 0, 1) ** 0.7, limit=1.2, steps=40)
CURVES = {
    "menu, two steps": pm.mechanism("mean-field-menu", curve=MenuCurve([0.6, 1.7], [0.35, 0.65])),
    "menu, smooth": pm.mechanism("mean-field-menu", curve=SMOOTH),
    "ration, given": pm.mechanism("two-step", unit_price=0.7, bulk_price=0.4, bulk_multiple=3.0),
    "ration, floor": pm.mechanism(
        "two-step", unit_price=0.7, bulk_price=0.4, bulk_multiple=30.0, service_amount=0.2
    ),
}


@pytest.mark.parametrize("rule", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("clients", [1, 3, 20, 70])
def test_menus_of_many_steps_clear_a_batch_as_each_market_alone(rule, clients, rng):
    """Many small markets are cleared together by code of their own; large ones one by one."""
    bids, budgets = awkward_markets(rng, 20, clients), awkward_budgets(rng, 20)
    bids = bids.replace(valuation=bids.valuation * 10.0 ** rng.integers(-8, 7, (20, 1)))
    together = rule.run(bids, budgets)
    for market in range(20):
        alone = rule.run(bids[market], budgets[market])
        np.testing.assert_array_equal(together.epsilon[market], alone.epsilon)
        np.testing.assert_array_equal(together.payment[market], alone.payment)


@pytest.mark.parametrize("name", CLASSICAL)
def test_outcomes_are_finite_and_not_negative(name, rng):
    bids = awkward_markets(rng, 200, 6)
    outcome = pm.mechanism(name).run(bids, awkward_budgets(rng, 200))
    for array in (outcome.epsilon, outcome.payment):
        assert np.all(np.isfinite(array))
        assert np.all(array >= 0)
    assert np.all(outcome.payment[outcome.epsilon == 0] == 0)


@pytest.mark.parametrize("name", CLASSICAL)
def test_a_million_identical_bids_are_an_ordinary_market(name):
    bids = pm.Bids(np.full(1_000_000, 0.5), np.full(1_000_000, 1.0))
    rule = pm.mechanism(name)
    outcome = rule.run(bids, 250_000.0)
    assert np.isfinite(outcome.spend)
    for promise in rule.guarantees:
        if isinstance(promise, OutcomeGuarantee):
            assert promise.holds(bids, outcome, 250_000.0).held, promise.label
