"""Splits of records: disjoint, equal, as skewed as α says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privmarket.errors import ConfigurationError, DataError
from privmarket.rounds import RoundRecord
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._result import RunResult
from privmarket.tasks import Task, dirichlet_partition, iid_partition


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
