"""Rules that throw coins: fixed coins, the mean over coins, and a rule that hides its chance."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError, OutcomeError
from privmarket.market._attacks import GridAttack, Level
from privmarket.market._audit import audit
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful
from privmarket.market._randomised import FixedCoins, RandomisedMechanism, gain_in_expectation
from privmarket.mechanisms import resolve

LAW = scenario("uniform")
FEW = GridAttack(valuations=5, shares=3, neighbours=2)
QUICK = Level(FEW, GridAttack(valuations=5, shares=1, neighbours=2), GridAttack(shares=3, over_valuation=False))


class RandomPrice(RandomisedMechanism):
    """Draws a price that has nothing to do with the bids and posts it, with the money split evenly."""

    name = "random price"
    guarantees = (IndividuallyRational(), BudgetFeasible(), Truthful("valuation"), Truthful("epsilon"))

    def clear_with(self, bids, budget, rng):
        price = rng.uniform(0.1, 1.0)
        sold = np.where(bids.valuation <= price, np.minimum(bids.epsilon, budget / bids.clients / price), 0.0)
        return pm.Outcome(sold, sold * price)


class TruthfulOnAverage(RandomisedMechanism):
    """Heads: everybody is paid a bonus of its report; tails: it is fined by it. On average that is nothing."""

    name = "truthful on average"
    guarantees = (Truthful("valuation"),)

    def clear_with(self, bids, budget, rng):
        sold = np.minimum(bids.epsilon, 0.05)
        bonus = 0.5 * sold * np.clip(bids.valuation, 0.0, 2.0) * (1 if rng.random() < 0.5 else -1)
        return pm.Outcome(sold, 2.0 * sold + bonus)


def coin_flip(bids, budget, rng):
    price = 0.3 if rng.random() < 0.5 else 0.6
    sold = np.where(bids.valuation <= price, np.minimum(bids.epsilon, budget / bids.clients / price), 0.0)
    return sold, sold * price


def test_the_same_coins_give_the_same_outcome_and_others_another():
    bids = LAW.sample(np.random.default_rng(0), 20)
    rule = RandomPrice()
    first = rule.run(bids, 10.0, np.random.default_rng(1))
    assert first == rule.run(bids, 10.0, np.random.default_rng(1))
    assert first != rule.run(bids, 10.0, np.random.default_rng(2))
    with pytest.raises(ConfigurationError, match="default_rng"):
        rule.run(bids, 10.0)


def test_fixed_coins_are_the_same_in_every_market_of_a_batch():
    bids = LAW.sample(np.random.default_rng(0), 5)
    twice = pm.Bids(np.stack([bids.valuation] * 3), np.stack([bids.epsilon] * 3))
    outcome = FixedCoins(RandomPrice(), 7).run(twice, 3.0)
    assert (outcome.payment == outcome.payment[0]).all()


def test_a_universally_truthful_rule_passes_the_audit():
    report = audit(RandomPrice(), LAW, 6, 3.0, profiles=3, attack=QUICK)
    assert report.broken == ()
    assert report.coins == 20
    assert report.regret.maximum <= 1e-9
    assert abs(report.regret_in_expectation.gain) <= 1e-9


def test_a_rule_that_is_truthful_only_on_average_is_told_from_one_that_always_is():
    report = audit(TruthfulOnAverage(), LAW, 3, 10.0, profiles=4, attack=QUICK, coins=40)
    assert report.broken == ("truthful in v",)  # under heads it pays to exaggerate
    expected = report.regret_in_expectation
    assert expected.gain <= 4 * expected.standard_error  # but not over fresh coins
    assert expected.standard_error > 0


def test_a_lie_that_pays_on_average_is_measured_on_fresh_coins():
    class Biased(TruthfulOnAverage):
        name = "biased"

        def clear_with(self, bids, budget, rng):
            sold = np.minimum(bids.epsilon, 0.05)
            bonus = 0.5 * sold * np.clip(bids.valuation, 0.0, 2.0) * (3 if rng.random() < 0.5 else -1)
            return pm.Outcome(sold, 2.0 * sold + bonus)

    types = LAW.sample(np.random.default_rng(0), 3)
    found = gain_in_expectation(Biased(), types, 10.0, QUICK.joint, coins=100)
    assert found.gain > 3 * found.standard_error > 0


def test_a_function_with_an_argument_rng_throws_coins():
    rule = resolve(coin_flip)
    assert isinstance(rule, RandomisedMechanism)
    report = pm.audit(coin_flip, clients=5, budget=2.0, profiles=2, attack=QUICK)
    assert report.mechanism == "coin_flip"
    assert report.regret.maximum <= 1e-9


def test_a_rule_that_hides_its_chance_is_named():
    hidden = np.random.default_rng(3)

    def secret(bids, budget):
        return coin_flip(bids, budget * hidden.random(), hidden)

    with pytest.raises(OutcomeError, match="secret gave two outcomes for the same bids"):
        pm.audit(secret, clients=5, budget=2.0, profiles=1, attack="quick")
