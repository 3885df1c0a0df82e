"""The market one client sees: closed forms against quadrature, and the inner maximum against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from privmarket.errors import ConfigurationError
from privmarket.market._menus import POSTED_PRICE, MenuCurve, from_function
from privmarket.meanfield import MenuMarket

LINEAR = from_function(lambda s: np.clip(1 - s, 0, 1), 1.0, 40)
CURVES = {"posted": POSTED_PRICE, "two steps": MenuCurve([0.5, 1.2], [0.3, 0.6]), "linear": LINEAR}


def curves() -> st.SearchStrategy[MenuCurve]:
    """Step curves with 1 to 20 steps, so that both ways of summing are met."""
    step = st.tuples(st.floats(0.05, 3.0), st.floats(0.05, 1.0))
    unique = st.lists(step, min_size=1, max_size=20, unique_by=lambda s: round(s[0], 3))

    def build(steps):
        price, weight = np.array(sorted(steps)).T
        return MenuCurve(price, weight / max(1.0, weight.sum()))

    return unique.map(build)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_cell_means_are_integrals_of_the_menu(curve):
    market, level, width = MenuMarket(curve, 0.7), 0.8, 0.06
    for cost in (0.1, 0.42, 0.79, 0.81, 1.3):
        ends = (cost - width / 2, cost + width / 2)
        breaks = [p for p in level * curve.price if ends[0] < p < ends[1]]
        for ours, theirs in (
            (market.sold, lambda c: 0.7 * curve.share(c / level)),
            (market.spend, lambda c: 0.7 * level * curve.unit_payment(c / level)),
            (market.surplus, lambda c: 0.7 * level * curve.surplus(c / level)),
        ):
            exact = quad(theirs, *ends, points=breaks or None, limit=200)[0] / width
            assert ours(np.array(cost), level, width) == pytest.approx(exact, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(curves(), st.floats(0.1, 2.0), st.floats(0.01, 2.0), st.floats(0.01, 2.0), st.floats(0.01, 0.2))
def test_reporting_the_dynamic_cost_is_best(curve, level, cost, report, width):
    """payment − c·sold at any report is at most the surplus at c: no numerical arg max is needed."""
    market = MenuMarket(curve, 1.0)
    c, b = np.array(cost), np.array(report)
    # A shade of report − cost for the whole cell, from a client whose valuation is its cost.
    assert market.reward(c, b, level, width) <= market.surplus(c, level, width) + 1e-12
    assert market.reward(c, c, level, width) == pytest.approx(float(market.surplus(c, level, width)), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(curves(), st.floats(0.1, 2.0), st.floats(0.01, 0.2))
def test_surplus_is_convex_and_its_slope_is_what_is_sold(curve, level, width):
    market = MenuMarket(curve, 0.5)
    cost = np.linspace(0.0, 4.0, 2001)
    surplus, sold = market.surplus(cost, level, width), market.sold(cost, level, width)
    assert np.diff(surplus, 2).min() > -1e-12
    rise = -np.diff(surplus) / np.diff(cost)
    assert np.all(rise <= sold[:-1] + 1e-9)
    assert np.all(rise >= sold[1:] - 1e-9)


@settings(max_examples=100, deadline=None)
@given(curves(), st.floats(0.02, 2.0), st.floats(0.01, 0.2))
def test_spend_rises_with_the_price_level(curve, cost, width):
    market = MenuMarket(curve, 1.0)
    spend = [float(market.spend(np.array(cost), level, width)) for level in np.linspace(0.05, 3.0, 40)]
    assert np.diff(spend).min() >= -1e-12


def test_few_and_many_steps_are_summed_alike():
    few = MenuCurve(np.linspace(0.2, 1.0, 8), np.full(8, 0.1))
    many = MenuCurve([*np.linspace(0.2, 1.0, 8), 50.0], np.append(np.full(8, 0.1), 1e-300))
    cost = np.linspace(0, 1.5, 301)
    for name in ("surplus", "sold", "spend"):
        a, b = (getattr(MenuMarket(c, 1.0), name)(cost, 0.9, 0.05) for c in (few, many))
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_market_that_sells_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="sale cap"):
        MenuMarket(POSTED_PRICE, 0.0)
