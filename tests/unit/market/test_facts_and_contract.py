"""How a rule is told about its market, and what `run` refuses from a rule."""

from __future__ import annotations

import importlib
from inspect import signature

import numpy as np
import pytest

import privmarket as pm
from privmarket._settings import EPSILON_MAX
from privmarket.errors import BidError, ConfigurationError, OutcomeError
from privmarket.market._distributions import EmpiricalDistribution, scenario
from privmarket.market._facts import MarketFacts

BIDS = pm.Bids([0.2, 0.9, 0.4], [1.0, 2.0, 0.5])
LIMIT_OF_RULES = {"mean-field-menu", "mfg-menunet", "mfg-regretnet", "regretnet", "dm-regretnet"}


def test_mechanisms_is_a_package_and_its_names_are_listed():
    assert importlib.import_module("privmarket.mechanisms._pac").Pac.name == "pac"
    assert pm.mechanisms.__name__ == "privmarket.mechanisms"
    assert "pac" in pm.mechanism_names()


@pytest.mark.parametrize("name", pm.mechanism_names())
def test_every_rule_takes_the_facts_that_it_asks_for(name):
    rule = type(pm.mechanism(name))
    assert set(rule.market_facts) <= set(signature(rule).parameters)
    assert set(rule.market_facts) <= {"distribution", "scenario", "epsilon_max", "past_bids"}


@pytest.mark.parametrize("name", sorted(LIMIT_OF_RULES))
def test_a_rule_is_told_the_limit_and_settings_win(name):
    assert pm.mechanism(name, market=MarketFacts(epsilon_max=7.0)).epsilon_max == 7.0
    assert pm.mechanism(name, market=MarketFacts(epsilon_max=7.0), epsilon_max=3.0).epsilon_max == 3.0
    assert pm.mechanism(name, market=MarketFacts()).epsilon_max == 5.0


@pytest.mark.parametrize("name", pm.mechanism_names())
def test_rules_that_have_a_limit_start_with_the_products(name):
    assert getattr(pm.mechanism(name), "epsilon_max", EPSILON_MAX) == EPSILON_MAX


def test_a_rule_is_told_the_law_and_the_scenario():
    facts = MarketFacts.of(scenario("bimodal"))
    assert pm.mechanism("mfg-pricing", market=facts).distribution is scenario("bimodal")
    assert pm.mechanism("mfg-menunet", market=facts).scenario == "bimodal"
    assert pm.mechanism("pac", market=facts).offer_limit == 1.0  # wants no facts, gets none


def test_facts_of_past_bids():
    facts = MarketFacts.of(EmpiricalDistribution("past", BIDS))
    assert (facts.epsilon_max, facts.past_bids) == (2.0, BIDS)
    with pytest.raises(ConfigurationError, match="epsilon_max is -1"):
        MarketFacts(epsilon_max=-1.0)


class Returns(pm.Mechanism):
    name = "returns"

    def __init__(self, answer):
        self.answer = answer

    def clear(self, bids, budget):
        return self.answer


GOOD = ([1.0, 0.0, 0.5], [0.2, 0.0, 0.2])
BAD = {
    "wrong type": (GOOD, "tuple, not an Outcome"),
    "other shape": (pm.Outcome([1.0], [0.2]), r"shape \(1,\) where the bids have \(3,\)"),
    "nan pay": (pm.Outcome(GOOD[0], [0.2, np.nan, 0.2]), "payment of client 1 is nan"),
    "infinite pay": (pm.Outcome(GOOD[0], [0.2, 0.0, np.inf]), "payment of client 2 is inf"),
    "negative pay": (pm.Outcome(GOOD[0], [-0.2, 0.0, 0.2]), "payment of client 0 is -0.2"),
    "nan epsilon": (pm.Outcome([np.nan, 0.0, 0.5], GOOD[1]), "epsilon of client 0 is nan"),
    "negative epsilon": (pm.Outcome([1.0, -1.0, 0.5], GOOD[1]), "epsilon of client 1 is -1"),
    "more than offered": (pm.Outcome([1.0, 0.0, 0.6], GOOD[1]), "epsilon of client 2 is 0.6.*offered ε 0.5"),
}


@pytest.mark.parametrize("kind", BAD)
def test_run_refuses_what_is_no_outcome_and_names_the_client(kind):
    answer, message = BAD[kind]
    with pytest.raises(OutcomeError, match=message):
        Returns(answer).run(BIDS, 1.0)


def test_run_passes_what_is_an_outcome():
    answer = pm.Outcome(*GOOD)
    assert Returns(answer).run(BIDS, 1.0) is answer
    rounding = pm.Outcome([1.0 + 1e-12, 0.0, 0.5], GOOD[1])
    assert Returns(rounding).run(BIDS, 1.0) is rounding


def test_a_bad_client_of_a_batch_is_named_with_its_market():
    bids = pm.Bids(np.full((2, 3), 0.5), np.ones((2, 3)))
    epsilon = np.zeros((2, 3))
    epsilon[1, 2] = 2.0
    with pytest.raises(OutcomeError, match="client 2 of market 1"):
        Returns(pm.Outcome(epsilon, np.zeros((2, 3)))).run(bids, 1.0)


def test_an_outcome_is_made_of_numbers_of_one_shape():
    with pytest.raises(OutcomeError, match="payment: shape"):
        pm.Outcome([1.0, 2.0], [1.0])
    with pytest.raises(OutcomeError, match="epsilon: not an array of numbers"):
        pm.Outcome(["much"], [1.0])


def test_an_outcome_cannot_be_changed():
    outcome = pm.Outcome([1.0, 2.0], [0.5, 0.5])
    for column in (outcome.epsilon, outcome.payment):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 9.0


@pytest.mark.parametrize("name", ["pac:literal", "vcg:literal"])
def test_rules_printed_without_caps_may_sell_more_than_offered(name):
    outcome = pm.mechanism(name).run(pm.Bids([0.1, 0.5], [0.2, 0.2]), 5.0)
    assert outcome.epsilon.max() > 0.2


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_what_cannot_limit_offers_is_refused(limit):
    with pytest.raises(ConfigurationError, match="must be finite and above 0"):
        MarketFacts(epsilon_max=limit)
    assert MarketFacts(epsilon_max=0.5).epsilon_max == 0.5


@pytest.mark.parametrize("budget", [[1.0, 0.0], [1.0, -2.0], [np.inf, 1.0]])
def test_one_bad_budget_among_good_ones_is_refused(budget):
    bids = pm.Bids(np.full((2, 3), 0.5), np.ones((2, 3)))
    with pytest.raises(ConfigurationError, match="must be finite and above 0"):
        pm.mechanism("proportional-share").run(bids, budget)


def test_what_is_no_bids_is_refused_with_what_to_give():
    with pytest.raises(BidError, match=r"pac: the bids are a list, not Bids \(give privmarket.Bids\(valuation"):
        pm.mechanism("pac").run([[0.1, 1]], 1.0)


def test_what_rounding_leaves_below_zero_is_zero():
    outcome = Returns(pm.Outcome([0.0, -3e-16, 0.1], [-1e-13, 0.0, 0.2])).run(BIDS, 1.0)
    assert outcome == pm.Outcome([0.0, 0.0, 0.1], [0.0, 0.0, 0.2])
    with pytest.raises(OutcomeError, match="epsilon of client 1 is -1e-06"):
        Returns(pm.Outcome([0.0, -1e-6, 0.1], [0.0, 0.0, 0.2])).run(BIDS, 1.0)
    with pytest.raises(OutcomeError, match="payment of client 0 is -1e-06"):
        Returns(pm.Outcome([0.0, 0.0, 0.1], [-1e-6, 0.0, 0.2])).run(BIDS, 1.0)
