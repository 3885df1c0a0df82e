"""The audit log: each entry holds the hash of the one before, so that an edit anywhere shows from there on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from privmarket.broker.schema import audit, chain_head

GENESIS = "0" * 64


def canonical(data: Any) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(data: Any) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def entry_hash(seq: int, at_ms: int, actor: str, kind: str, subject: str, details: str, previous: str) -> str:
    """What entry `seq` must carry."""
    return digest([seq, at_ms, actor, kind, subject, details, previous])


def lock_head(connection: Connection) -> tuple[int, str, int]:
    """(seq, hash, at_ms) of the last entry; nobody else can write until this transaction ends."""
    head = select(chain_head.c.seq, chain_head.c.hash, chain_head.c.at_ms).with_for_update()
    row = connection.execute(head).one()
    return int(row.seq), str(row.hash), int(row.at_ms)


def append(connection: Connection, entries: list[dict[str, Any]], head: tuple[int, str, int]) -> None:
    """Writes entries after `head` and moves it. Each entry has at_ms, actor, kind, subject, details."""
    seq, previous, at_ms = head
    rows = []
    for entry in entries:
        seq, at_ms = seq + 1, entry["at_ms"]
        own = entry_hash(seq, at_ms, entry["actor"], entry["kind"], entry["subject"], entry["details"], previous)
        rows.append({**entry, "seq": seq, "previous": previous, "hash": own})
        previous = own
    connection.execute(insert(audit), rows)
    connection.execute(update(chain_head).values(seq=seq, hash=previous, at_ms=at_ms))


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
