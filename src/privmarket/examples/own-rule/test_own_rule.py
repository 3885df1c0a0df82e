"""What a rule promises is attacked, and its answers in a small market are known by hand."""

import numpy as np
import pytest
from own_rule import SplitMarket, cheapest_first

import privmarket as pm

MARKET = {"scenario": "uniform", "clients": 12, "budget": 6.0, "profiles": 1}


def test_a_market_by_hand():
    bids = pm.Bids(valuation=[0.1, 0.2, 0.9, 0.3], epsilon=[1.0, 1.0, 1.0, 1.0])
    # Odd positions (0.2, 0.3) share half of 2: both sell at min(1/2, no loser) = 0.5, so even positions face 0.5.
    # Even positions (0.1, 0.9): one sells, at min(1/1, 0.9) = 0.9, so odd positions face 0.9 and get 1/0.9 ε.
    outcome = SplitMarket().run(bids, budget=2.0)
    assert outcome.epsilon == pytest.approx([1.0, 1.0, 0.0, 1 / 0.9 - 1])
    assert outcome.payment == pytest.approx([0.5, 0.9, 0.0, 0.1])


def test_no_promise_of_the_split_market_breaks():
    report = pm.audit(SplitMarket, **MARKET)
    assert report.broken == ()
    assert report.regret.maximum < 1e-9
    assert report.epsilon_bought > 0


def test_paying_what_is_asked_invites_to_ask_more():
    report = pm.audit(cheapest_first, attack="quick", **MARKET)
    assert report.regret_in_valuation.maximum_share > 0.1
    assert report.rationality_violations == report.budget_violations == 0


def test_a_batch_is_as_good_as_one_market_at_a_time():
    types = pm.scenario("bimodal").sample(np.random.default_rng(0), clients=9, markets=(4,))
    together = SplitMarket().run(types, 3.0)
    for index, market in enumerate(types):
        assert together.payment[index] == pytest.approx(SplitMarket().run(market, 3.0).payment)
