"""What one client meets in a finite game: tables, envelopes, mixtures, and two rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privmarket.market._bids import Bids
from privmarket.market._menus import POSTED_PRICE, MenuCurve
from privmarket.meanfield import MenuMarket
from privmarket.meanfield._offered import MenuPath, TabulatedMarket, average
from privmarket_studies.plug_in_menu import PlugInMenu

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
