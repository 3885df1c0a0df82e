"""Rules that throw coins: fixed coins, the mean over coins, and a rule that hides its chance."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError, OutcomeError
from privmarket.market._attacks import GridAttack, Level, Regret
from privmarket.market._audit import _summary, audit
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful
from privmarket.market._randomised import FixedCoins, RandomisedMechanism, gain_in_expectation, gains_by_throw
from privmarket.mechanisms import resolve

LAW = scenario("uniform")
TYPES = pm.Bids([0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 1.0])
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


def test_a_clear_with_coins_is_refused_where_it_is_written():
    with pytest.raises(
        ConfigurationError, match=r"Coins\.clear\(self, bids, budget, rng\).*argument: 'rng'"
    ) as told:

        class Coins(pm.Mechanism):
            def clear(self, bids, budget, rng):
                return None

    assert "clear_with(self, bids, budget, rng)" in told.value.hint
    with pytest.raises(ConfigurationError, match=r"clear_with\(self, bids, budget\)"):

        class NoCoins(RandomisedMechanism):
            def clear_with(self, bids, budget):
                return None

    class MoreThanNeeded(pm.Mechanism):
        def clear(self, bids, budget, price=0.5, *more, **others):
            return None


def test_an_answer_that_is_no_outcome_is_refused():
    class Pair(RandomisedMechanism):
        name = "pair"

        def clear_with(self, bids, budget, rng):
            return bids.epsilon, bids.epsilon

    with pytest.raises(OutcomeError, match="clear_with returned tuple"):
        Pair().run(pm.Bids([0.1], [1.0]), 1.0, np.random.default_rng(0))


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


class CheatsUnderOneThrow(RandomPrice):
    """Posts a price, but under the throw of this seed pays what was asked for."""

    name = "cheats under one throw"

    def __init__(self, seed: int) -> None:
        self.cheating = np.random.default_rng(seed).random()

    def clear_with(self, bids, budget, rng):
        sold = np.where(bids.valuation <= 0.5, np.minimum(bids.epsilon, budget / bids.clients / 0.5), 0.0)
        return pm.Outcome(sold, sold * (bids.valuation if rng.random() == self.cheating else 0.5))


NOTHING = Regret(np.zeros(4), np.ones(4), np.ones(4))


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_every_throw_is_attacked_however_few_markets_there_are(seed, monkeypatch):
    monkeypatch.setattr("privmarket.market._audit.gains_by_throw", lambda *given: (None, NOTHING))
    done = []
    report = audit(CheatsUnderOneThrow(seed), LAW, 4, 2.0, profiles=1, attack=QUICK, coins=8, progress=done.append)
    assert done == [*range(1, 9)]
    assert report.profiles == 1
    assert "truthful in v" in report.broken
    assert report.witnesses["truthful in v"].types.coins == seed


def test_a_lie_that_pays_under_a_fresh_throw_convicts():
    """Throw 11 is none of the 8 that are attacked, only one of those that the mean gain is measured on."""
    rule = CheatsUnderOneThrow(11)
    found = gains_by_throw(rule, TYPES, 2.0, Regret(np.zeros(4), np.full(4, 0.5), TYPES.epsilon), range(8, 16))
    assert found[0].seed == 11
    assert found[1].gain.max() > 0.1


def test_a_gain_in_expectation_beyond_its_error_breaks_the_promise():
    class Cheats(RandomPrice):
        def clear_with(self, bids, budget, rng):
            sold = np.where(bids.valuation <= 0.5, np.minimum(bids.epsilon, budget / bids.clients / 0.5), 0.0)
            return pm.Outcome(sold, sold * (0.5 if rng.random() < 0.5 else bids.valuation))

    report = audit(Cheats(), LAW, 4, 2.0, profiles=1, attack=QUICK, coins=20)
    expected = report.regret_in_expectation
    assert expected.gain > 3 * expected.standard_error
    assert "truthful in v" in report.broken
    again = audit(Cheats(), LAW, 4, 2.0, profiles=1, attack=QUICK, coins=20)
    assert again.witnesses == report.witnesses


def test_the_interval_over_markets_does_not_count_throws_as_markets():
    gain = np.array([[1.0], [3.0], [1.0], [3.0], [1.0], [3.0]])  # six throws in turn on two markets
    once = _summary(gain[:2], 1.0, 2)
    assert _summary(gain, 1.0, 2).mean_share_high == pytest.approx(once.mean_share_high)
