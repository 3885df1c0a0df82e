"""The one definition of underpaid, over budget and gains beyond rounding."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket._settings import TOLERANCE
from privmarket.market._audit import beyond_rounding, gain_shares, judge, underpaid_share
from privmarket.market._outcome import is_beyond

TYPES = pm.Bids([[0.5, 1.0], [0.5, 1.0]], [[2.0, 1.0], [2.0, 1.0]])


def test_figures_by_hand():
    outcome = pm.Outcome([[2.0, 0.0], [2.0, 1.5]], [[1.5, 0.0], [0.9, 2.5]])
    merit = judge(TYPES, outcome, budget=3.0)
    assert merit.underpaid == 1 / 4  # 0.9 for a cost of 1
    assert merit.over_budget == 1 / 2
    assert merit.worst_overspend == pytest.approx(0.4 / 3.0)
    assert merit.over_offer == 1 / 4
    assert merit.epsilon == pytest.approx(2.75)
    assert merit.spend == pytest.approx(2.45)
    assert merit.welfare == pytest.approx((0.5 + (-0.1 + 1.0)) / 2)
    assert merit.participation == 3 / 4
    assert merit.mean_payment == pytest.approx(4.9 / 4)
    assert merit.epsilon_per_money == pytest.approx(2.75 / 2.45)


def test_rounding_is_no_violation_and_more_is():
    for off, counted in ((1e-12, 0.0), (1e-7, 1.0)):
        outcome = pm.Outcome(np.array([[2.0, 0.0]]), np.array([[1.0 - off, 0.0]]))
        assert judge(TYPES[:1], outcome, 5.0).underpaid == counted / 2
        outcome = pm.Outcome(np.array([[2.0, 0.0]]), np.array([[5.0 * (1 + off), 0.0]]))
        assert judge(TYPES[:1], outcome, 5.0).over_budget == counted


def test_a_figure_is_beyond_its_limit_by_more_than_rounding():
    for scale in (1e-6, 1.0, 1e9):
        assert not is_beyond(scale * (1 + TOLERANCE / 2), scale)
        assert is_beyond(scale * (1 + 2 * TOLERANCE), scale)
    sold, offered = np.array([1.0, 1.0 + 1e-12, 1.1]), np.ones(3)
    assert is_beyond(sold, offered).tolist() == [False, False, True]


def test_sales_paid_in_coins_count_as_underpaid_as_other_sales_do():
    cost = np.array([1.0, 1.0, 1.0, 0.0])
    assert underpaid_share(cost, np.array([1.0, 1.0 - 1e-12, 1.0 - 1e-7, 0.0])) == 1 / 4
    # Rounded down to cents: up to two are not the rule's.
    paid = np.array([0.995, 0.981, 0.979, 0.0])
    assert underpaid_share(cost, paid, coin=0.01) == 1 / 4
    assert underpaid_share(cost, paid) == 3 / 4
    assert underpaid_share(np.zeros(0), np.zeros(0)) == 0.0


def test_nothing_sold():
    merit = judge(TYPES, pm.Outcome(np.zeros((2, 2)), np.zeros((2, 2))), 1.0)
    assert (merit.epsilon_per_money, merit.participation, merit.worst_overspend) == (0.0, 0.0, 0.0)


def test_gains():
    assert not beyond_rounding(1e-9, 1.0)
    assert not beyond_rounding(9e-8, 100.0)
    assert beyond_rounding(2e-9, 1.0)
    assert gain_shares(np.array([1e-12, 0.5]), 2.0, 1.0).tolist() == [0.0, 0.25]
    assert gain_shares(np.array([0.5]), 0.0, 1.0).tolist() == [0.5]


@pytest.mark.parametrize("markets", [(), (4,), (2, 2)])
def test_any_number_of_markets_is_judged_alike(markets):
    """Three clients, one of which sells less than a unit; money is compared market by market."""
    types = pm.Bids(np.full((*markets, 3), 0.5), np.full((*markets, 3), 1.0))
    sold, paid = np.broadcast_to([0.5, 1.0, 0.0], types.shape), np.broadcast_to([0.25, 1.0, 0.0], types.shape)
    merit = judge(types, pm.Outcome(sold, paid), budget=1.0)
    assert merit.participation == pytest.approx(2 / 3)
    assert (merit.over_budget, merit.worst_overspend) == (1.0, pytest.approx(0.25))
    assert judge(types, pm.Outcome(sold, paid), budget=1.25).over_budget == 0.0


def test_gains_are_shares_of_small_payments_too():
    assert gain_shares(np.array([0.25]), 0.5, 1.0).tolist() == [0.5]
