"""Ways of reporting: a run asks for them by name, learners learn what pays, and a resumed run learns the same."""

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.rounds import MICRO, RoundRecord
from privmarket.simulation._bidding import FACTORS, Learning
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients, run

CONFIG = FederationConfig(clients=20, rounds=4, budget=4.0, wallet=3.0, training=Training(model="logistic"), seed=1)


def names(clients):
    return [str(i) for i in range(clients)]


def settled(number, sold, paid):
    micro = {client: int(money * MICRO) for client, money in paid.items()}
    return RoundRecord(number, 2, 2, sum(sold.values()), 0, 0, sold, micro, {}, None)


def play(learners, price_of, rounds=120, valuation=0.4):
    """Rounds in which each client sells one unit of ε at a price that depends on its report."""
    values, past = np.full(learners.clients, valuation), []
    for number in range(rounds):
        asked = learners.reports(values, np.full(learners.clients, np.inf), number, past)
        paid = {str(i): price_of(ask) for i, ask in enumerate(asked)}
        past.append(settled(number, dict.fromkeys(paid, 1.0), paid))
    return learners.choices(rounds)


def test_learners_find_that_a_first_price_rule_pays_for_asking_more():
    last = play(Learning(names(30), seed=0), price_of=lambda ask: ask)
    assert np.mean(np.array(FACTORS)[last] == max(FACTORS)) > 0.8


def test_learners_stay_with_the_truth_where_the_report_does_not_matter():
    last = play(Learning(names(30), seed=0), price_of=lambda ask: 0.5)
    assert np.mean(np.array(FACTORS)[last] == 1.0) > 0.8


def test_a_learner_that_starts_again_from_the_records_asks_the_same():
    values, left, past = np.full(5, 0.3), np.full(5, np.inf), []
    first = Learning(names(5), seed=3)
    for number in range(6):
        asked = first.reports(values, left, number, past)
        past.append(settled(number, {"0": 1.0}, {"0": float(asked[0])}))
    again = Learning(names(5), seed=3).reports(values, left, 6, past)
    np.testing.assert_array_equal(again, first.reports(values, left, 6, past))


def asks(**changes):
    with Federation(CONFIG.replace(**changes)) as federation:
        state = federation.start()
        offers = SimulatedClients(federation, state).offers(federation.pacing.terms(state.records))
        return {c: o.valuation for c, o in offers.items()}, federation.types(0).valuation


def test_clients_who_look_ahead_ask_more_than_their_valuation():
    asked, true = asks(strategy="equilibrium")
    above = np.array([asked[c] - true[int(c)] for c in asked])
    assert above.min() >= -1e-12
    assert above.max() > 0.01


def test_truthful_is_the_default():
    asked, true = asks()
    assert all(asked[c] == true[int(c)] for c in asked)


def test_looking_ahead_needs_something_to_save():
    with pytest.raises(ConfigurationError, match="--wallet"):
        Federation(CONFIG.replace(strategy="equilibrium", wallet=None))


def test_learning_clients_report_by_factors_and_keep_the_budget():
    result = run(CONFIG.replace(strategy="learning", mechanism="jsam"))
    assert all(record.spent_micro <= 4 * MICRO for record in result.records)
    asked, true = asks(strategy="learning")
    assert all(asked[c] == true[int(c)] for c in asked), "the first round is truthful"
    assert len(set(Learning(names(20), seed=1).choices(5))) > 1, "later ones try other factors"
