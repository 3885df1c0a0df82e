"""Attacks of rising strength: they find what is there, and rules without a lie stay at zero."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._distributions import scenario
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket_studies.reproduce import regret
from privmarket_studies.reproduce.attack_strengths import STRENGTHS, OverOfferAttack, PaperAscent, TrainingAttack
from privmarket_studies.reproduce.deviation_cells import run_market_regret, run_over_offer
from privmarket_studies.reproduce.markets import UNTRAINED, rule_for
from privmarket_studies.reproduce.rq1 import binds
from tests.laws.broken import FirstPrice


@pytest.fixture
def market(rng):
    return scenario("uniform").sample(rng, 12)


@pytest.mark.parametrize("attack", [PaperAscent(), TrainingAttack()])
def test_a_first_price_rule_is_caught_and_an_exact_one_is_not(attack, market, rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attack(FirstPrice(), market, 6.0, rng).gain.max() > 1e-3
        assert attack(pm.mechanism("mean-field-menu"), market, 6.0, rng).gain.max() <= 1e-9


def test_the_papers_attack_moves_as_far_as_its_steps_allow(market, rng):
    found = PaperAscent(steps=3, step_size=0.01)(FirstPrice(), market, 6.0, rng)
    # A winner's slope is its sold ε, at most 5.
    assert np.abs(found.valuation - market.valuation).max() <= 3 * 0.01 * 5 + 1e-12


def test_a_stronger_level_never_finds_less():
    config = {
        "mechanism": "csra",
        "scenario": "uniform",
        "clients": 8,
        "budget": 4,
        "attack": "quick",
        "parts": "quick",
    }
    result = regret.run(config, 0, Path())
    means = [level["mean"] for level in result["levels"].values()]
    tried = [level["reports"] for level in result["levels"].values()]
    assert list(result["levels"]) == list(STRENGTHS)[:3]
    assert means == sorted(means)
    assert tried == sorted(tried)
    assert len(result["gains"]) == 8
    assert result["mean"] >= means[-1]


class SellsHalf(Mechanism):
    """Buys half of every offer at a unit price of 1: withholding never pays, offering twice as much does."""

    name = "sells-half"

    def clear(self, bids, budget):
        sold = np.where(bids.valuation <= 1.0, 0.5 * bids.epsilon, 0.0)
        return Outcome(sold, sold)


class SellsAll(Mechanism):
    """Buys every offer whole at a unit price of 1: who offers more than it has cannot deliver."""

    name = "sells-all"

    def clear(self, bids, budget):
        sold = np.where(bids.valuation <= 1.0, bids.epsilon, 0.0)
        return Outcome(sold, sold)


@pytest.mark.parametrize("valuations", [0, 5])
def test_offers_of_more_than_one_has_gain_what_they_can_and_no_more(valuations, market, rng):
    """Twice the offer doubles the utility ε(1 − v)/2, as far as the limit of 5 allows."""
    attack = OverOfferAttack(valuations=valuations, refinements=100)
    found = attack(SellsHalf(), market, 1e6, rng)
    most = np.minimum(2.0, 5.0 / market.epsilon)
    known = 0.5 * market.epsilon * (most - 1.0) * (1.0 - market.valuation)
    assert (found.gain <= known + 1e-12).all()
    np.testing.assert_allclose(found.gain, known, rtol=0.02)
    assert (found.epsilon <= 5.0).all()
    assert attack(SellsAll(), market, 1e6, rng).gain.max() == 0.0


def test_pac_is_truthful_in_one_direction_only():
    where = {"mechanism": "pac", "scenario": "uniform", "clients": 30, "budget": 15}
    more = run_over_offer({**where, "attack": "quick"}, 0, Path())
    less = regret.run({**where, "attack": "training", "parts": "quick"}, 0, Path())
    assert less["mean"] == 0.0
    assert more["mean_alone"] > 0.001
    assert more["mean_with_valuation"] >= more["mean_alone"]


def test_several_markets_are_attacked_at_once():
    config = {
        "mechanism": "csra",
        "scenario": "uniform",
        "clients": 6,
        "budget": 3,
        "attack": "paper",
        "parts": None,
    }
    result = regret.run({**config, "markets": 4}, 0, Path())
    assert len(result["gains"]) == 24
    assert result["mean"] == pytest.approx(np.mean(result["gains"]), rel=1e-3)


def test_a_market_is_said_to_bind_where_its_budget_is_spent():
    where = {"scenario": "uniform", "clients": 10, "attack": "quick"}
    tight = run_market_regret({**where, "mechanism": "mfg-regretnet", "budget": 1}, 1, Path())
    loose = run_market_regret({**where, "mechanism": "pac", "budget": 5}, 1, Path())
    assert binds(tight["spend_over_budget"])
    assert not binds(loose["spend_over_budget"])
    assert tight["mean"] >= 0.0


def test_the_untrained_network_is_a_mechanism_of_its_own(market):
    distribution = scenario("uniform")
    before = rule_for(UNTRAINED, distribution).run(market, 6.0)
    after = rule_for("mfg-regretnet", distribution).run(market, 6.0)
    assert before.spend <= 6.0 * (1 + 1e-9)
    assert np.abs(before.epsilon - after.epsilon).max() > 1e-3
    np.testing.assert_array_equal(before.epsilon, rule_for(UNTRAINED, distribution).run(market, 6.0).epsilon)
