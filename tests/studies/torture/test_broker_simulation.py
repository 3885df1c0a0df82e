"""The seeded simulation in its short form, and three brokers that it must catch."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from privmarket.broker import (
    _database as database,
    _idempotency as idempotency,
    _projection as projection,
    _sql as sql,
)
from privmarket.broker._database import Transaction
from privmarket_studies.torture.broker_simulation import Crash, InvariantError, Simulation


@pytest.mark.parametrize("seed", [0, 1])
def test_invariants_hold(tmp_path: Path, seed: int) -> None:
    Simulation(tmp_path / "m.db", seed).run(15)


def test_a_seed_replays_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "secrets", SimpleNamespace(token_hex=lambda size: "ab" * size))  # a log's name
    heads = []
    for name in ("a", "b"):
        simulation = Simulation(tmp_path / f"{name}.db", 7)
        for _ in range(60):
            simulation.step()
        with simulation.broker.database.read() as connection:
            heads.append(connection.exec_driver_sql("SELECT size, root FROM head").one())
    assert heads[0] == heads[1]
    assert heads[0][0] > 20


def test_it_catches_a_ledger_that_loses_a_micro_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = projection.store

    def leaky(connection, made):
        honest(connection, made)
        if any(change.table == "postings" for change in made):
            last = "SELECT max(seq) FROM postings"
            sql.run(connection, f"UPDATE postings SET amount_micro = amount_micro - 1 WHERE seq = ({last})")

    monkeypatch.setattr(projection, "store", leaky)
    with pytest.raises(InvariantError, match="ledger"):
        Simulation(tmp_path / "m.db", 0).run(15)


def test_it_catches_a_broker_that_forgets_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "find", lambda *_: {})
    monkeypatch.setattr(Transaction, "answer", lambda *_: None)
    with pytest.raises(InvariantError):
        Simulation(tmp_path / "m.db", 0).run(15)


def test_it_catches_refunds_outside_the_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = projection.store

    def hasty(connection, made):
        honest(connection, made)
        if any(change.table == "postings" for change in made):  # money is committed before the log is
            sql.run(connection, "COMMIT")
            sql.run(connection, "BEGIN IMMEDIATE")
            raise Crash

    simulation = Simulation(tmp_path / "m.db", 0)
    monkeypatch.setattr(projection, "store", hasty)
    with pytest.raises((InvariantError, sqlite3.IntegrityError)):
        simulation.run(15)
