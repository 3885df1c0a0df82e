import numpy as np
import pytest

import privmarket as pm
from privmarket.market import attacks
from privmarket.market.scenarios import scenario
from tests.laws.broken import FirstPrice


@pytest.mark.parametrize(
    "attack", [attacks.GridAttack(shares=1), attacks.AscentAttack(over_epsilon=False)], ids=["grid", "ascent"]
)
def test_each_attack_finds_most_of_a_first_price_gain(attack, rng):
    """With one client the best lie is known: ask for the whole budget."""
    types = pm.Bids([0.3], [2.0])
    found = attack(FirstPrice(), types, 1.0, rng)
    # Asking v = B/ε = 0.5 sells for 1.0 instead of 0.6.
    assert found.gain[0] == pytest.approx(0.4, abs=0.06)
    assert found.gain[0] <= 0.4 + 1e-9


def test_undeliverable_epsilon_is_no_gain(rng):
    """PAC as printed sells 1/(n − k) whatever was offered: a client that cannot deliver gains nothing."""
    types = pm.Bids([0.1, 0.2, 0.3], [0.05, 5.0, 5.0])
    utility = attacks.utility_of(pm.mechanism("pac:literal"), types, types, 100.0)
    assert utility[0] == -np.inf


def test_withheld_epsilon_is_found_under_vcg(rng):
    types = scenario("uniform").sample(rng, 10)
    rule = pm.mechanism("vcg")
    assert attacks.EPSILON_ONLY(rule, types, 5.0, rng).gain.max() > 0.1
    assert attacks.VALUATION_ONLY(rule, types, 5.0, rng).gain.max() <= 1e-9


def test_worst_of_keeps_the_better_lie_of_each_client():
    a = attacks.Regret(np.array([0.1, 0.5]), np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    b = attacks.Regret(np.array([0.2, 0.1]), np.array([3.0, 4.0]), np.array([2.0, 2.0]))
    both = a.worst_of(b)
    assert both.gain.tolist() == [0.2, 0.5]
    assert both.valuation.tolist() == [3.0, 2.0]
    assert both.epsilon.tolist() == [2.0, 1.0]


def test_an_attack_on_valuations_leaves_epsilon_alone(rng):
    """Under proportional share withholding ε pays and lies about v do not: the levels keep the two apart."""
    types = scenario("uniform").sample(rng, 6, (4,))
    rule, level = pm.mechanism("proportional-share"), attacks.LEVELS["quick"]
    assert level.valuation(rule, types, 2.0, rng).gain.max() <= 1e-9
    assert level.epsilon(rule, types, 2.0, rng).gain.max() > 1e-3
    # Who is paid its cost gains nothing by withholding, and a lot by asking for more.
    assert level.epsilon(FirstPrice(), types, 2.0, rng).gain.max() <= 1e-9
    assert level.valuation(FirstPrice(), types, 2.0, rng).gain.max() > 1e-3
