"""The market one client sees: closed forms against quadrature, and the inner maximum against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Bids
from privmarket.market._menus import POSTED_PRICE, MenuCurve, from_function
from privmarket.meanfield import MenuMarket, Problem, QuadraticMarket, RepresentativeMarket, solve
from privmarket.meanfield._markets import MenuPath, TabulatedMarket, average, check_market
from privmarket_fixtures.plug_in_menu import PlugInMenu

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


class OwnQuadratic(RepresentativeMarket):
    """A market of someone's own, by its three parts: selling x costs a·x²/2 on top, paid at the price level."""

    def __init__(self, cost=1.0, cap=0.4):
        self.cost, self.cap = cost, cap

    most_sold = property(lambda self: self.cap)

    def sold(self, report, level, width):
        return np.clip((level - report) / self.cost, 0.0, self.cap)

    def surplus(self, cost, level, width):
        x = self.sold(cost, level, width)
        return (level - cost) * x - 0.5 * self.cost * x * x

    def spend(self, report, level, width):
        return level * self.sold(report, level, width)


class Wrong(OwnQuadratic):
    """Broken on purpose: the surplus forgets the cost of selling much."""

    def surplus(self, cost, level, width):
        return (level - cost) * self.sold(cost, level, width)


class Overselling(OwnQuadratic):
    """Broken on purpose: sells more than it declares."""

    most_sold = property(lambda self: 0.5 * self.cap)


class Falling(OwnQuadratic):
    """Broken on purpose: spends less at a higher price."""

    def spend(self, report, level, width):
        return -level * self.sold(report, level, width)


class Generous(OwnQuadratic):
    """Broken on purpose: reporting the cost earns less than the surplus says."""

    def reward(self, valuation, report, level, width):
        return super().reward(valuation, report, level, width) - 0.01


def test_markets_that_fit_pass_and_broken_ones_are_named():
    for market in (*(MenuMarket(curve, 0.3) for curve in CURVES.values()), QuadraticMarket(2.0), OwnQuadratic()):
        check_market(market, 1.5, 0.03)
    broken = {
        Wrong: "do not belong together",
        Overselling: "outside 0",
        Falling: "spends less",
        Generous: "not the",
    }
    for market, words in broken.items():
        with pytest.raises(ConfigurationError, match=words):
            check_market(market(), 1.5, 0.03)
    with pytest.raises(ConfigurationError, match="do not belong together"):
        solve(Problem.from_scenario(market=Wrong()), grid="16x12x12")


def test_the_built_in_quadratic_market_is_the_one_written_by_its_parts():
    cost, report = np.linspace(0.0, 2.0, 41)[:, None], np.linspace(0.0, 2.0, 31)
    ours, own = QuadraticMarket(0.4), OwnQuadratic()
    for name in ("surplus", "sold"):
        np.testing.assert_allclose(getattr(ours, name)(cost, 0.8, 0.1), getattr(own, name)(cost, 0.8, 0.1))
    np.testing.assert_allclose(ours.reward(cost, report, 0.8, 0.1), own.reward(cost, report, 0.8, 0.1))
    x = ours.sold(report, 0.8, 0.1)
    np.testing.assert_allclose(ours.reward(cost, report, 0.8, 0.1), (0.8 - cost) * x - 0.5 * x * x, atol=1e-15)


def test_the_payment_that_leaves_the_surplus():
    """Without averaging, the default `spend` of a menu is its payment."""
    menu, report = MenuMarket(CURVES["two steps"], 0.5), np.array([0.1, 0.45, 0.7, 1.4])
    paid = RepresentativeMarket.spend(menu, report, 1.0, 1e-9)
    np.testing.assert_allclose(paid, menu.payment(report, 1.0), atol=1e-8)


CURVE = MenuCurve([0.4, 0.8, 1.0], [0.3, 0.3, 0.4])


def table_of(curve: MenuCurve, level: float, reports: np.ndarray) -> TabulatedMarket:
    sold, paid = curve.share(reports / level), level * curve.unit_payment(reports / level)
    return TabulatedMarket(reports, sold[None], paid[None])


def test_a_tabulated_menu_is_that_menu():
    reports, cost, width = np.linspace(0, 2, 4001), np.linspace(0.05, 1.5, 200), 0.05
    table, menu = table_of(CURVE, 0.9, reports), MenuMarket(CURVE, 1.0)
    np.testing.assert_allclose(table.surplus(cost, 0, width), menu.surplus(cost, 0.9, width), atol=1e-12)
    np.testing.assert_allclose(table.sold(cost, 0, width), menu.sold(cost, 0.9, width), atol=0.01)
    reward = table.reward(cost - 0.1, cost, 0, width)
    np.testing.assert_allclose(reward, menu.reward(cost - 0.1, cost, 0.9, width), atol=1e-3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12), st.floats(0.05, 3.0))
def test_the_envelope_is_the_best_report(rows, cost):
    sold, paid = np.array(rows).T
    table = TabulatedMarket(np.linspace(0, 1, sold.size), sold[None], paid[None])
    best = (paid - cost * sold).max()
    assert table.surplus(np.array(cost), 0, 1e-7) == pytest.approx(best, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12),
    st.floats(0.1, 1.5),
    st.floats(0.0, 1.5),
)
def test_no_report_earns_more_than_the_envelope(rows, cost, report):
    """For any table, truthful or not: playing along never beats the best response."""
    sold, paid = np.array(rows).T
    table = TabulatedMarket(np.linspace(0, 1, sold.size), sold[None], paid[None])
    c, b = np.array(cost), np.array(report)
    assert table.reward(c, b, 0, 0.05) <= table.surplus(c, 0, 0.05) + 1e-12


def test_an_average_of_menus_pays_the_average():
    menu, cost, width = MenuMarket(CURVE, 0.5), np.linspace(0.1, 1.2, 50), 0.03
    levels = np.array([[0.7, 0.5], [0.9, 0.6], [0.7, 1.1]])
    mixed = average([MenuPath(menu, row) for row in levels])
    for step in (0, 1):
        for name in ("surplus", "sold", "spend"):
            expected = np.mean([getattr(menu, name)(cost, level, width) for level in levels[:, step]], axis=0)
            np.testing.assert_allclose(getattr(mixed, name)(cost, step, width), expected, atol=1e-12)


class TestPlugInMenu:
    def test_the_level_is_the_largest_within_the_budget(self):
        rng = np.random.default_rng(0)
        for curve in (POSTED_PRICE, CURVE):
            bids = Bids(rng.random((50, 20)), rng.uniform(0.1, 1.0, (50, 20)))
            rule = PlugInMenu(curve)
            assert np.all(rule.run(bids, 2.0).spend <= 2.0 + 1e-12)
            level = rule.level(bids, np.full((50, 1), 2.0))
            higher = bids.valuation / (level * (1 + 1e-9))
            cost = (bids.epsilon * level * curve.unit_payment(higher)).sum(axis=-1)
            assert np.all(cost >= 2.0 * (1 - 1e-6))

    def test_offers_are_what_running_the_rule_gives(self):
        rng = np.random.default_rng(1)
        others = Bids(rng.random(15), np.full(15, 0.4))
        reports = np.linspace(0.01, 1.4, 60)
        sold, paid = PlugInMenu(CURVE).offers(others, 0.4, 1.5, reports)
        rows = np.concatenate([reports[:, None], np.broadcast_to(others.valuation, (60, 15))], axis=1)
        outcome = PlugInMenu(CURVE).run(Bids(rows, np.full(rows.shape, 0.4)), 1.5)
        np.testing.assert_allclose(sold, outcome.epsilon[:, 0], atol=1e-9)
        np.testing.assert_allclose(paid, outcome.payment[:, 0], atol=1e-9)
