"""Thousands of small markets, a fine grid of lies: the exact rules show no gain at all.

This search is written apart from market.attacks: plain loops over candidate reports, one auction per lie.
"""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._menus import POSTED_PRICE, MenuCurve, from_function
from tests.conftest import awkward_budgets, awkward_markets
from tests.laws.broken import FirstPrice, OffByOneThreshold, RationFromAllBids

SMOOTH = from_function(lambda s: np.clip(1.2 - s, 0, 1) ** 0.7, limit=1.2, steps=40)
TWO_STEPS = MenuCurve([0.6, 1.7], [0.35, 0.65])


def best_gain(rule, bids, budgets, rng, *, over_epsilon):
    """The largest gain of any client in any of the markets (markets, clients), over a grid and random lies."""
    markets, n = bids.shape
    truth = rule.run(bids, budgets).utility(bids)
    worst = 0.0
    top = np.maximum(bids.valuation.max(axis=-1, keepdims=True), 1e-3)
    for client in range(n):
        others = np.delete(bids.valuation, client, axis=-1)
        candidates = np.concatenate(
            [
                top * np.linspace(0, 1.6, 9),
                others,
                others * (1 - 1e-9),
                top * 50,
                rng.random((markets, 3)) * top,
            ],
            axis=-1,
        )
        for share in (1.0, 0.97, 0.5, 0.1) if over_epsilon else (1.0,):
            v = np.repeat(bids.valuation[:, None], candidates.shape[-1], axis=1)
            e = np.repeat(bids.epsilon[:, None], candidates.shape[-1], axis=1)
            v[..., client] = candidates
            e[..., client] *= share
            outcome = rule.run(pm.Bids(v, e), np.repeat(budgets[:, None], candidates.shape[-1], axis=1))
            gain = outcome.payment[..., client] - bids.valuation[:, None, client] * outcome.epsilon[..., client]
            gain = gain - truth[:, None, client]
            worst = max(worst, float((gain / np.maximum(1.0, budgets[:, None])).max()))
    return worst


EXACT = [
    ("pac", pm.mechanism("pac"), True),
    ("pac, low limit", pm.mechanism("pac", offer_limit=0.3), True),
    ("pac:literal", pm.mechanism("pac:literal"), False),
    ("k-plus-one-price", pm.mechanism("k-plus-one-price"), False),
    ("csra", pm.mechanism("csra"), False),
    ("proportional-share", pm.mechanism("proportional-share"), False),
    ("mean-field-menu", pm.mechanism("mean-field-menu"), True),
    ("menu, two steps", pm.mechanism("mean-field-menu", curve=TWO_STEPS), True),
    ("menu, smooth", pm.mechanism("mean-field-menu", curve=SMOOTH), True),
    ("ration", pm.mechanism("ration"), True),
    ("two-step", pm.mechanism("two-step"), True),
    ("graded-ration", pm.mechanism("graded-ration"), True),
    ("precision-menu", pm.mechanism("precision-menu"), True),
    ("precision-menu, parts", pm.mechanism("precision-menu", heterogeneity=1.0), True),
    ("two-step, ration only", pm.mechanism("two-step", unit_price=0.7), True),
    ("two-step, given", pm.mechanism("two-step", unit_price=0.7, bulk_price=0.4, bulk_multiple=3.0), True),
    (
        "two-step, floor",
        pm.mechanism("two-step", unit_price=0.7, bulk_price=0.4, bulk_multiple=30.0, service_amount=0.2),
        True,
    ),
]


@pytest.mark.parametrize(("rule", "over_epsilon"), [row[1:] for row in EXACT], ids=[row[0] for row in EXACT])
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 8])
def test_no_lie_gains(rule, over_epsilon, clients, rng):
    # Breakpoints of menus take longer than a ranking, so they get fewer markets.
    few = {"mean-field-menu": 100, "two-step": 30, "graded-ration": 30, "precision-menu": 30}
    markets = few.get(rule.name, 600 * (clients + 2)) // (clients + 2)
    bids, budgets = awkward_markets(rng, markets, clients), awkward_budgets(rng, markets)
    assert best_gain(rule, bids, budgets, rng, over_epsilon=over_epsilon) <= 1e-9


@pytest.mark.parametrize("rule", [FirstPrice(), OffByOneThreshold()], ids=lambda rule: rule.name)
def test_the_search_finds_what_is_there(rule, rng):
    bids = awkward_markets(rng, 200, 5)
    assert best_gain(rule, bids, awkward_budgets(rng, 200), rng, over_epsilon=False) > 1e-3


def test_a_two_step_ration_from_all_bids_is_caught(rng):
    bids = awkward_markets(rng, 60, 5)
    assert best_gain(RationFromAllBids(), bids, awkward_budgets(rng, 60), rng, over_epsilon=True) > 1e-3


def test_withholding_epsilon_pays_under_proportional_share(rng):
    bids = awkward_markets(rng, 400, 5)
    rule = pm.mechanism("proportional-share")
    assert best_gain(rule, bids, awkward_budgets(rng, 400), rng, over_epsilon=True) > 1e-3


@pytest.mark.parametrize("curve", [TWO_STEPS, SMOOTH], ids=["two steps", "smooth"])
def test_menu_levels_match_a_search_that_knows_no_breakpoints(curve, rng):
    """τ_{−i} is the largest level at which the others' pay plus the reserve fits: checked by plain bisection."""
    rule = pm.mechanism("mean-field-menu", curve=curve)
    for n in (1, 2, 7, 40, 400, 400, 400, 3000, 3000):
        bids = awkward_markets(rng, 1, n)[0]
        budget = float(awkward_budgets(rng, 1)[0])
        levels = rule.price_levels(bids, budget)
        for client in rng.choice(n, min(n, 5), replace=False):
            v, e = np.delete(bids.valuation, client), np.delete(bids.epsilon, client)

            def cost(level, v=v, e=e):
                return float((e * level * curve.unit_payment(v / level)).sum() + 5.0 * level * curve.area)

            low, high = 0.0, 1e9
            for _ in range(200):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if cost(middle) <= budget else (low, middle)
            assert levels[client] == pytest.approx(low, rel=1e-9)


@pytest.mark.parametrize("curve", [POSTED_PRICE, TWO_STEPS, SMOOTH], ids=["posted price", "two steps", "smooth"])
def test_the_menu_in_two_thousand_markets(curve, rng):
    """One random client per market, lies drawn where rules break: at and beside other bids, and anywhere."""
    rule = pm.mechanism("mean-field-menu", curve=curve)
    worst, overspent, underpaid = 0.0, 0.0, 0.0
    for n in range(1, 9):
        bids, budgets = awkward_markets(rng, 250, n), awkward_budgets(rng, 250)
        outcome, everyone = rule.run(bids, budgets), np.arange(250)
        utility = outcome.utility(bids)
        overspent = max(overspent, float((outcome.spend / budgets).max()) - 1)
        underpaid = max(underpaid, -float(utility.min()))
        client, other = rng.integers(n, size=(2, 250))
        beside = bids.valuation[everyone, other]
        for lie in (beside, beside * (1 - 1e-12), rng.random(250) * 2, np.zeros(250)):
            v, e = bids.valuation.copy(), bids.epsilon.copy()
            v[everyone, client] = lie
            e[everyone, client] *= rng.choice([1.0, 1.0, 0.9, 0.3], 250)
            told = rule.run(pm.Bids(v, e), budgets)
            cost = bids.valuation[everyone, client] * told.epsilon[everyone, client]
            gain = told.payment[everyone, client] - cost - utility[everyone, client]
            worst = max(worst, float((gain / np.maximum(1.0, budgets)).max()))
    assert worst <= 1e-9
    assert overspent <= 1e-9
    assert underpaid <= 1e-9
