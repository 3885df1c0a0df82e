"""Servers that are killed with `kill -9` under load, a few times, on SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from privmarket_studies.torture import broker_kill


def test_kill_minus_nine(tmp_path: Path, database: str) -> None:
    figures = broker_kill.run(database, tmp_path, kills=2, seed=1)
    assert figures["acknowledged bids"] > 20
