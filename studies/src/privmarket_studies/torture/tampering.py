"""Tools to tamper with a broker's SQLite file: edits, a rewritten log, entries signed with the key."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sqlalchemy import create_engine, event
from sqlalchemy.exc import IntegrityError

from privmarket.broker import _log as log, _projection as projection, _sql as sql
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._log import Entry
from privmarket.broker._merkle import Frontier
from privmarket.broker._schema import PROJECTIONS
from privmarket.broker._signatures import Head, SigningKey, canonical
from privmarket.broker._verify import SeenHead, Verdict, verify
from privmarket.errors import PrivmarketError

Change = Callable[[list[Entry]], list[Entry]]
_COLUMNS = "seq, at_ms, actor, kind, subject, details, key_hash, request_hash, answer"


def entries_of(file: Path) -> list[Entry]:
    """The log of a file."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return [Entry(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM log ORDER BY seq")]


def head_of(file: Path) -> Head:
    """The stored head of a file."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return Head(*connection.execute("SELECT log_id, size, root, at_ms, signature FROM head").fetchone())


def edited(file: Path, to: Path, *statements: str) -> int:
    """A copy in which somebody ran statements; how many rows they changed."""
    shutil.copy(file, to)
    with contextlib.closing(sqlite3.connect(to)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA writable_schema = ON")
        changed = 0
        for statement in statements:
            changed += max(connection.executescript(statement).rowcount, 0) if ";" in statement else 0
            changed += max(connection.execute(statement).rowcount, 0) if ";" not in statement else 0
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return changed


def rewritten(file: Path, to: Path, change: Change, names: Mapping[str, tuple[str, str]] | None = None) -> None:
    """A copy whose log was rewritten by somebody who knows how hashes, tree and tables are made, but has no key.

    Args:
        names: party → name and salt, to stand beside the log for parties that are invented.
    """
    shutil.copy(file, to)
    entries = [one._replace(seq=number) for number, one in enumerate(change(entries_of(file)), 1)]
    engine = create_engine(f"sqlite:///{to}")
    event.listen(engine, "connect", _by_hand)
    with engine.connect() as connection:
        frontier = Frontier()
        for table in ("log", "tiles", *(table.name for table in PROJECTIONS)):
            sql.run(connection, f"DELETE FROM {table}")
        log.insert(connection, entries, frontier)
        for entry in entries:
            # What cannot be applied stays as it is, as it would at a broker that was made to skip it.
            with contextlib.suppress(
                IntegrityError, sqlite3.Error, PrivmarketError, KeyError, TypeError, ValueError
            ):
                projection.store(connection, projection.changes(entry))
        for party, (name, salt) in (names or {}).items():
            sql.run(connection, "INSERT INTO names (party_id, name, salt) VALUES (?, ?, ?)", party, name, salt)
        update = "UPDATE head SET size = ?, root = ?, frontier = ?, at_ms = ?"
        last_ms = entries[-1].at_ms if entries else 0
        sql.run(connection, update, frontier.size, frontier.root().hex(), frontier.dump(), last_ms)
        sql.run(connection, "COMMIT")
    engine.dispose()


def _by_hand(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")


def resigned(file: Path, key: SigningKey) -> None:
    """Signs the head of a copy again."""
    signature = head_of(file).signed(key).signature
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("UPDATE head SET signature = ?, signed_by = ?", (signature, key.public))
        connection.commit()


def appended(*made: Entry) -> Change:
    """Adds entries at the end."""
    return lambda entries: [*entries, *made]


def entry(at_ms: int, actor: str, kind: str, subject: str, details: Mapping[str, object]) -> Entry:
    """An entry as a forger writes it; its number follows from its place."""
    return Entry(0, at_ms, actor, kind, subject, canonical(details))


def checked(
    file: Path,
    head: str | None = None,
    *,
    now_ms: int | None = None,
    witnessed: Sequence[SeenHead] = (),
    public_key: str | None = None,
    accept: Sequence[str] = (),
    key: SigningKey | None = None,
) -> Verdict:
    """What `broker verify` says of a file; `now_ms` sets the auditor's clock, `key` is the broker's, if at hand."""
    clock = None if now_ms is None else lambda: now_ms
    database = Database(f"sqlite:///{file}", clock, read_only=True, key=key)
    try:
        return verify(Broker(database), head, public_key=public_key, witnessed=witnessed, accept=accept)
    finally:
        database.close()
