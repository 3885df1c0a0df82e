"""The audit log: each entry holds the hash of the one before, so that an edit anywhere shows from there on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row

from privmarket.broker import sql

GENESIS = "0" * 64
Head = tuple[int, str, int]  # seq, hash and at_ms of the last entry
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(data: Any) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return _ENCODER.encode(data)


def digest(data: Any) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def entry_hash(seq: int, at_ms: int, actor: str, kind: str, subject: str, details: str, previous: str) -> str:
    """What entry `seq` must carry."""
    return digest([seq, at_ms, actor, kind, subject, details, previous])


_ENTRY = ("seq", "at_ms", "actor", "kind", "subject", "details", "previous", "hash")
_INSERT = f"INSERT INTO audit ({', '.join(_ENTRY)}) VALUES ({', '.join('?' * len(_ENTRY))})"


def lock_head(connection: Connection) -> Head:
    """The last entry; nobody else can write until this transaction ends."""
    lock = "" if connection.dialect.name == "sqlite" else " FOR UPDATE"  # SQLite's BEGIN IMMEDIATE locks already
    ((seq, own, at_ms),) = sql.run(connection, f"SELECT seq, hash, at_ms FROM chain_head{lock}")
    return int(seq), str(own), int(at_ms)


def append(connection: Connection, entries: list[dict[str, Any]], head: Head) -> None:
    """Writes entries after `head` and moves it. Each entry has at_ms, actor, kind, subject, details."""
    seq, previous, at_ms = head
    rows = []
    for entry in entries:
        seq, at_ms = seq + 1, entry["at_ms"]
        own = entry_hash(seq, at_ms, entry["actor"], entry["kind"], entry["subject"], entry["details"], previous)
        row = {**entry, "seq": seq, "previous": previous, "hash": own}
        rows.append(tuple(row[name] for name in _ENTRY))
        previous = own
    sql.run_many(connection, _INSERT, rows)
    sql.run(connection, "UPDATE chain_head SET seq = ?, hash = ?, at_ms = ?", seq, previous, at_ms)


def first_break(entries: Iterable[Row[Any]]) -> str | None:
    """Walks entries in order; says where the chain first breaks, None where it holds."""
    previous, expected, at_ms = GENESIS, 1, 0
    for row in entries:
        if row.seq != expected:
            return f"audit log: entry {expected} is missing"
        own = entry_hash(row.seq, row.at_ms, row.actor, row.kind, row.subject, row.details, previous)
        if row.previous != previous or row.hash != own:
            return f"audit log: entry {row.seq} ({row.kind} of {row.subject}) does not match its hash"
        if row.at_ms < at_ms:
            return f"audit log: time runs backwards at entry {row.seq}"
        previous, expected, at_ms = row.hash, expected + 1, row.at_ms
    return None
