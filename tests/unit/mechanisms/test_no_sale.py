"""A market that sells nothing says why and what would sell; the remedies are checked by following them."""

from __future__ import annotations

import re

import pytest

import privmarket as pm
from privmarket.mechanisms import _no_sale as no_sale, why_nothing_sold

THREE = pm.Bids([0.2, 0.9, 0.4], [1.0, 2.0, 0.5])


def test_the_reserve_of_the_menu_is_named_and_the_remedies_work():
    rule = pm.mechanism("mean-field-menu")
    assert rule.run(THREE, 1.0).spend == 0
    text = why_nothing_sold(rule, THREE, 1.0)
    assert "epsilon_max = 5" in text
    assert "the cheapest client asks 0.2" in text
    budget = float(re.search(r"from a budget of about ([\d.]+)", text).group(1))
    assert rule.run(THREE, 1.02 * budget).spend > 0
    assert rule.run(THREE, 0.95 * budget).spend == 0
    assert "proportional-share would sell 1.5 ε here" in text
    assert pm.mechanism("mean-field-menu", epsilon_max=2.0).run(THREE, 1.0).spend > 0  # what the text advises


def test_conditions_of_pac():
    few = pm.Bids([0.1, 0.2, 0.3], [0.4, 0.4, 0.4])
    text = why_nothing_sold(pm.mechanism("pac"), few, 1.0)
    assert "0 of 3 here" in text
    assert "offer_limit = 1" in text
    many = pm.Bids([0.1] * 5, [0.4] * 5)
    assert pm.mechanism("pac", offer_limit=0.4).run(many, 1.0).spend > 0


def test_too_little_money_for_anybody():
    dear = pm.Bids([10.0, 20.0], [0.4, 2.0])
    text = why_nothing_sold(pm.mechanism("csra"), dear, 1.0)
    assert "the cheapest whole offer costs 4," in text
    assert "would sell" not in text


class SellsNothing(pm.Mechanism):
    name = "sells nothing"

    def clear(self, bids, budget):
        return pm.Outcome(0 * bids.epsilon, 0 * bids.epsilon)


@pytest.mark.parametrize(("budget", "named"), [(3.99, True), (4.0, False), (4.01, False)])
def test_money_is_the_reason_only_where_it_is_less_than_the_cheapest_offer(budget, named):
    text = why_nothing_sold(SellsNothing(), pm.Bids([10.0, 20.0], [0.4, 2.0]), budget)
    assert text.startswith("sells nothing sold nothing")
    assert ("more than the budget" in text) == named


def test_a_market_that_sells_needs_no_explanation():
    assert why_nothing_sold(pm.mechanism("proportional-share"), THREE, 1.0) == ""


@pytest.mark.parametrize("name", [n for n in pm.mechanism_names() if n not in pm.mechanisms.learned_names()])
def test_every_rule_can_be_asked(name):
    rule = pm.mechanism(name)
    for budget in (1e-6, 0.5, 50.0):
        text = why_nothing_sold(rule, THREE, budget)
        assert (text == "") == (rule.run(THREE, budget).total_epsilon > 0)


def test_a_rules_own_reason_comes_before_the_price_of_the_cheapest_offer():
    said = why_nothing_sold(pm.mechanism("mean-field-menu"), pm.Bids([5.0, 6.0], [5.0, 5.0]), 1.0)
    assert "epsilon_max" in said
    assert "cheapest whole offer" not in said


def test_the_budget_that_it_names_sells_and_is_not_the_one_that_did_not():
    rule = pm.mechanism("mean-field-menu")
    named = float(re.search(r"from a budget of about ([\d.e+-]+)", why_nothing_sold(rule, THREE, 1.0))[1])
    assert named == 1.01
    assert rule.run(THREE, named).total_epsilon > 0


def test_figures_are_rounded_up_to_three_digits_where_they_can_be():
    assert [no_sale._rounded_up(value) for value in (1234.5, 0.01231, 2.0)] == [1240.0, 0.0124, 2.0]
    assert [no_sale._rounded_up(value) for value in (0.0, float("inf"), -1.0)] == [0.0, float("inf"), -1.0]
