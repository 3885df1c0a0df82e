"""Hypothesis looks for markets in which a promise that needs no attack is broken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

import privmarket as pm
from privmarket.market._guarantees import OutcomeGuarantee
from privmarket.market._menus import RationCurve
from privmarket.mechanisms._ration_menu import face

CLASSICAL = [name for name in pm.mechanism_names() if name not in pm.mechanisms.learned_names()]
values = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1e6, allow_subnormal=False))
offers = st.one_of(st.sampled_from([0.1, 1.0, 5.0]), st.floats(1e-3, 5.0))


@st.composite
def markets(draw):
    n = draw(st.integers(1, 9))
    v = draw(st.lists(values, min_size=n, max_size=n))
    e = draw(st.lists(offers, min_size=n, max_size=n))
    return pm.Bids(v, e), draw(st.floats(1e-6, 1e6))


# Most rules in one test: to invent a market takes longer than to clear it by all. Two design a menu each time.
DESIGNED = ["two-step", "graded-ration"]


def groups(names):
    return [[name for name in names if name not in DESIGNED], *([name] for name in DESIGNED)]


@pytest.mark.parametrize("names", groups(CLASSICAL), ids=["most", *DESIGNED])
@settings(max_examples=100, deadline=None)
@given(market=markets())
def test_promises_read_off_outcomes(names, market):
    bids, budget = market
    for name in names:
        rule = pm.mechanism(name)
        outcome = rule.run(bids, budget)
        assert np.all(np.isfinite(outcome.payment)), name
        assert np.all(outcome.epsilon >= 0), name
        for promise in rule.guarantees:
            if isinstance(promise, OutcomeGuarantee):
                assert promise.holds(bids, outcome, budget).held, f"{name}: {promise.label}"


@settings(max_examples=150, deadline=None)
@given(market=markets(), factor=st.floats(1.0, 10.0))
def test_more_money_never_lowers_a_menu_level(market, factor):
    bids, budget = market
    rule = pm.mechanism("mean-field-menu")
    assert np.all(rule.price_levels(bids, budget * factor) >= rule.price_levels(bids, budget) * (1 - 1e-9))


@settings(max_examples=150, deadline=None)
@given(market=markets(), factor=st.floats(1.0, 10.0), floor=st.sampled_from([0.0, 0.3]))
def test_more_money_never_lowers_a_ration(market, factor, floor):
    bids, budget = market
    curve = RationCurve([0.3, 0.8], [7.0, 1.0], floor)
    poor, rich = (face(curve, bids, money, 5.0) for money in (budget, budget * factor))
    assert np.all(rich.ration >= poor.ration * (1 - 1e-9))
    assert np.all(rich.unit_price >= poor.unit_price * (1 - 1e-9))


MONOTONE = ["proportional-share", "k-plus-one-price", "csra", "mean-field-menu", "pac"]
MONOTONE += ["ration", "two-step", "graded-ration", "precision-menu"]


def require_monotone(rule, market, client, cut):
    """Who asks less sells no less."""
    bids, budget = market
    client %= bids.clients
    lower = bids.valuation.copy()
    lower[client] *= cut
    before, after = rule.run(bids, budget), rule.run(bids.replace(valuation=lower), budget)
    if rule.name == "pac":
        # PAC's ε depends on how many win, so only winning is monotone.
        assert (after.epsilon[client] > 0) >= (before.epsilon[client] > 0), rule.name
    else:
        assert after.epsilon[client] >= before.epsilon[client] * (1 - 1e-9), rule.name


@pytest.mark.parametrize("names", groups(MONOTONE), ids=["most", *DESIGNED])
@settings(max_examples=100, deadline=None)
@given(market=markets(), client=st.integers(0, 8), cut=st.floats(0.0, 1.0))
def test_asking_less_never_sells_less(names, market, client, cut):
    for name in names:
        require_monotone(pm.mechanism(name), market, client, cut)


class BuysTheDear(pm.Mechanism):
    """The broken subject: who asks less than half of the mean sells nothing."""

    name = "buys the dear"

    def clear(self, bids, budget):
        dear = bids.valuation >= 0.5 * bids.valuation.mean(axis=-1, keepdims=True)
        return pm.Outcome(np.where(dear, bids.epsilon, 0.0), np.zeros(bids.shape))


def test_a_rule_that_sells_less_for_less_is_found():
    look = given(market=markets(), client=st.integers(0, 8), cut=st.floats(0.0, 1.0))(
        lambda market, client, cut: require_monotone(BuysTheDear(), market, client, cut)
    )
    with pytest.raises(AssertionError, match="buys the dear"):
        settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate])(look)()
