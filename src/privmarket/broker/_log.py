"""The log: everything that happened, in order, under a Merkle tree.

Each entry is hashed as a whole. The root over all entries, their number and the time form the *head*. For every
earlier head there is a proof that the log still contains it (`merkle.consistency_proof`), and for every entry a
proof that it is in the log (`merkle.inclusion_proof`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from privmarket.broker import _merkle as merkle, _sql as sql
from privmarket.broker._errors import NotFoundError
from privmarket.broker._signatures import Head, SigningKey, canonical, digest

__all__ = ["Entry", "Tree", "announced_key", "append", "canonical", "digest", "entries", "lock", "read_head"]

_COLUMNS = (
    "seq", "at_ms", "actor", "kind", "subject", "details", "key_hash", "request_hash", "answer", "hash",
)  # fmt: skip
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM log"
_INSERT = f"INSERT INTO log ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_HEAD = "SELECT log_id, size, root, at_ms, signature, frontier, signed_by FROM head"
_LOCKED_HEAD = _HEAD + " FOR UPDATE"  # SQLite's BEGIN IMMEDIATE locks already
_MOVE_HEAD = (
    "UPDATE head SET size = ?, root = ?, at_ms = ?, frontier = ?, signature = ?, signed_by = ?, clean = FALSE"
)
_CHUNK = 1000


class Entry(NamedTuple):
    """One thing that happened.

    Attributes:
        seq: its number, from 1.
        details: canonical JSON of everything that the projection needs.
        answer: canonical JSON of what the caller was told, where that does not follow from the entry.
    """

    seq: int
    at_ms: int
    actor: str
    kind: str
    subject: str
    details: str
    key_hash: str | None = None
    request_hash: str | None = None
    answer: str | None = None

    def leaf(self) -> bytes:
        """The hash of the whole entry."""
        return merkle.leaf_hash(canonical(list(self)).encode())

    def fields(self) -> dict[str, Any]:
        """`details` as a dictionary."""
        found: dict[str, Any] = json.loads(self.details)
        return found


class Tree(NamedTuple):
    """The head and the right edge of the tree, as locked by a write, and the key that signed the head."""

    head: Head
    frontier: merkle.Frontier
    signed_by: str


def lock(connection: Connection) -> Tree:
    """The head of the log; nobody else can write until this transaction ends."""
    ((*head, frontier, signed_by),) = sql.run(
        connection, _HEAD if connection.dialect.name == "sqlite" else _LOCKED_HEAD
    )
    return Tree(Head(*head), merkle.Frontier.load(head[1], frontier), signed_by)


def read_head(connection: Connection) -> Head:
    """The head as of this connection's snapshot."""
    ((*head, _, _),) = sql.run(connection, _HEAD)
    return Head(*head)


def announced_key(connection: Connection) -> str:
    """The public key that the log announced last; empty if it has announced none."""
    query = "SELECT details FROM log WHERE kind = 'log.key' ORDER BY seq DESC LIMIT 1"
    rows = sql.run(connection, query)
    return str(json.loads(rows[0][0])["public_key"]) if rows else ""


def append(connection: Connection, entries: Sequence[Entry], tree: Tree, key: SigningKey | None) -> Head:
    """Writes entries after the head and moves it."""
    insert(connection, entries, tree.frontier)
    grown = Head(tree.head.log_id, tree.frontier.size, tree.frontier.root().hex(), entries[-1].at_ms)
    head = grown.signed(key)
    signed_by = "" if key is None else key.public
    edge = tree.frontier.dump()
    sql.run(connection, _MOVE_HEAD, head.size, head.root, head.at_ms, edge, head.signature, signed_by)
    return head


def insert(connection: Connection, entries: Sequence[Entry], frontier: merkle.Frontier) -> None:
    """Writes entries and the tiles that they complete, and grows the frontier; the head is left to the caller."""
    rows, tiles = [], []
    for entry in entries:
        leaf = entry.leaf()
        rows.append((*entry, leaf.hex()))
        tiles += [(level, place, node.hex()) for level, place, node in frontier.append(leaf)]
    sql.run_many(connection, _INSERT, rows)
    sql.run_many(connection, "INSERT INTO tiles (level, place, hash) VALUES (?, ?, ?)", tiles)


def entries(connection: Connection, after: int = 0) -> Iterator[tuple[Entry, str]]:
    """All entries with their stored hashes, in order."""
    while True:
        rows = sql.run(connection, f"{_SELECT} WHERE seq > ? ORDER BY seq LIMIT {_CHUNK}", after)
        for row in rows:
            yield Entry(*row[:-1]), str(row[-1])
        if len(rows) < _CHUNK:
            return
        after = int(rows[-1][0])


def entry(connection: Connection, seq: int) -> Entry:
    """The entry with number `seq`; raises `NotFoundError` where there is none."""
    rows = sql.run(connection, f"{_SELECT} WHERE seq = ?", seq)
    if not rows:
        raise NotFoundError(f"no entry {seq} in the log", "GET /v1/log/head says how many there are")
    return Entry(*rows[0][:-1])


class Stored:
    """The tree's hashes as the database holds them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def leaves(self, start: int, end: int) -> list[bytes]:
        """Hashes of the leaves start ≤ i < end, counted from 0; entries are counted from 1."""
        query = "SELECT hash FROM log WHERE seq > ? AND seq <= ? ORDER BY seq"
        return [bytes.fromhex(one) for (one,) in sql.run(self._connection, query, start, end)]

    def tiles(self, level: int, start: int, end: int) -> list[bytes]:
        """Hashes of complete subtrees."""
        query = "SELECT hash FROM tiles WHERE level = ? AND place >= ? AND place < ? ORDER BY place"
        return [bytes.fromhex(one) for (one,) in sql.run(self._connection, query, level, start, end)]
