"""What clients want for their privacy, and what they report."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from privmarket.errors import ConfigurationError, DataError
from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield import Grid, MenuMarket, Problem, solve, truthful
from privmarket.rounds import MICRO, RoundRecord
from privmarket.simulation._bidding import FACTORS, Learning
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients, run
from privmarket.simulation._result import RunResult
from privmarket.tasks import Task, dirichlet_partition, dirichlet_sizes_partition, iid_partition, label_distance


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 40),
    st.floats(0.01, 100.0),
    st.integers(0, 2**32),
    st.integers(40, 300),
    st.integers(1, 10),
)
def test_disjoint_and_equal(clients, alpha, seed, records, classes):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, records)
    parts = dirichlet_partition(labels, clients, alpha, rng)
    assert len(parts) == clients
    assert {part.size for part in parts} == {records // clients}
    together = np.concatenate(parts)
    assert np.unique(together).size == together.size
    assert together.min() >= 0
    assert together.max() < records


def test_alpha_sets_the_skew():
    """Mean share of a client's commonest label: E[max of Dir(α)] over 10 labels, 0.72 at 0.1, 0.17 at 50."""
    labels = np.repeat(np.arange(10), 6000)

    def skew(alpha):
        parts = dirichlet_partition(labels, 100, alpha, np.random.default_rng(0))
        return np.mean([np.bincount(labels[p], minlength=10).max() / p.size for p in parts])

    rng = np.random.default_rng(1)
    for alpha in (0.1, 0.5, 50.0):
        expected = rng.dirichlet(np.full(10, alpha), 20_000).max(axis=1).mean()
        assert skew(alpha) == pytest.approx(expected, rel=0.12)


def test_iid_uses_every_record():
    parts = iid_partition(np.zeros(103, dtype=np.int64), 10, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert {p.size for p in parts} == {10, 11}


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_alpha(alpha):
    with pytest.raises(ConfigurationError, match="alpha"):
        dirichlet_partition(np.zeros(10, dtype=np.int64), 2, alpha, np.random.default_rng(0))


def test_more_clients_than_records():
    with pytest.raises(DataError, match="3 records cannot be shared by 4 clients"):
        iid_partition(np.zeros(3, dtype=np.int64), 4, np.random.default_rng(0))


def test_names_at_the_edge_are_places_inside():
    rng = np.random.default_rng(0)
    named = [name for name in ("Ulm", "Bonn", "Kiel") for _ in range(4)]
    task = Task.from_arrays(rng.normal(size=(12, 2)), np.arange(12) % 2, clients=named, classes=2)
    records = (
        RoundRecord(0, sold_epsilon={"Kiel": 0.5, "Ulm": 1.5}, paid_micro={"Kiel": 7}),
        RoundRecord(1),
        RoundRecord(2, sold_epsilon={"Bonn": 2.5}, paid_micro={"Bonn": 11}),
    )
    run = RunResult(FederationConfig(clients=3), records, None, None, None, 0.0, task)
    assert [run.place[name] for name in task.clients] == [0, 1, 2]
    order = [task.clients.index(name) for name in ("Ulm", "Bonn", "Kiel")]
    assert run.sold_epsilon[:, order].tolist() == [[1.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 2.5, 0.0]]
    assert run.paid_micro[:, order].tolist() == [[0, 0, 7], [0, 0, 0], [0, 11, 0]]


LABELS = np.repeat(np.arange(10), 100)
SKEWED = FederationConfig(clients=20, rounds=2, budget=4.0, alpha=0.1, training=Training(model="logistic"))


def test_every_record_is_held_once_and_sizes_vary():
    parts = dirichlet_sizes_partition(LABELS, 20, 0.3, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(LABELS.size))
    sizes = np.array([part.size for part in parts])
    assert sizes.max() > 5 * sizes.min()


def test_the_distance_of_labels_is_total_variation():
    one_label, all_labels = np.arange(100), np.arange(0, 1000, 10)
    found = label_distance(LABELS, [one_label, all_labels, np.array([], dtype=np.int64)])
    np.testing.assert_allclose(found, [0.9, 0.0, 0.0])


def test_valuations_follow_from_the_records():
    with Federation(SKEWED.replace(valuations="measured", valuation_weights="0,0,1")) as federation:
        labels = federation.pool.labels.numpy()
        parts = [np.arange(rows.start, rows.stop) for rows in federation.pool.parts]
        np.testing.assert_allclose(federation.types(0).valuation, label_distance(labels, parts))
    varied = SKEWED.replace(valuations="measured", valuation_weights="0,2,0", sizes="dirichlet")
    with Federation(varied) as federation:
        np.testing.assert_allclose(federation.types(0).valuation, 2 * federation.sizes / federation.sizes.mean())


@pytest.mark.parametrize("weights", ["1,2", "a,b,c", "-1,0,0"])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ConfigurationError, match="valuation_weights"):
        Federation(SKEWED.replace(valuations="measured", valuation_weights=weights))


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


@pytest.fixture(scope="module")
def bid():
    problem = Problem.from_scenario(
        horizon=4.0, market=MenuMarket(POSTED_PRICE, sale_cap=2.0), budget_per_client=0.2
    )
    return solve(problem, grid=Grid(24, 24, 40), tolerance=1e-4).strategy()


def test_truth_as_a_strategy_changes_nothing():
    one, other = run(CONFIG), run(CONFIG, strategy=truthful)
    assert one.records == other.records
    assert np.array_equal(one.weights, other.weights)


def test_clients_who_look_ahead_are_paid_more_per_unit_at_first(bid):
    naive, strategic = run(CONFIG), run(CONFIG, strategy=bid)
    asked = bid(np.array([0.3]), np.array([3.0]), 0.0)
    assert asked > 0.31
    price = [r.records[0].spent_micro / r.records[0].total_epsilon for r in (naive, strategic)]
    assert price[1] > 1.05 * price[0]
    assert strategic.records[0].spent_micro <= 4_000_000


def test_the_strategy_sees_what_the_wallets_have_left():
    seen = []

    def spy(valuation, remaining, time):
        seen.append((remaining.copy(), time))
        return valuation

    run(CONFIG, strategy=spy)
    assert [time for _, time in seen] == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_allclose(seen[0][0], 3.0)
    assert seen[-1][0].min() < 3.0
    assert np.all(seen[-1][0] <= seen[0][0])


def test_without_a_wallet_there_is_nothing_to_save(bid):
    with Federation(CONFIG.replace(wallet=None), strategy=bid) as federation:
        offers = SimulatedClients(federation, federation.start()).offers(federation.pacing.terms(()))
        types = federation.types(0)
    for client, offer in offers.items():
        assert offer.valuation == pytest.approx(types.valuation[int(client)], abs=1e-12)
