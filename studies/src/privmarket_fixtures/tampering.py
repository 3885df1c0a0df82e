"""A market to tamper with, and tools: edits of its SQLite file, a rewritten log, entries signed with the key."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, event
from sqlalchemy.exc import IntegrityError

from privmarket.broker import _log as log, _projection as projection, _sql as sql
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._log import Entry
from privmarket.broker._merkle import Frontier
from privmarket.broker._schema import PROJECTIONS
from privmarket.broker._signatures import Head, SigningKey, canonical, statement_message
from privmarket.broker._verify import SeenHead, Verdict, verify
from privmarket.errors import PrivmarketError
from privmarket_fixtures.eventful import eventful_market

Change = Callable[[list[Entry]], list[Entry]]
_COLUMNS = "seq, at_ms, actor, kind, subject, details, key_hash, request_hash, answer"

SIGNING = SigningKey.from_seed(b"\x08" * 32)
STRANGER = SigningKey.from_seed(b"\x55" * 32)


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


@dataclass
class Target:
    """The market that is tampered with: a closed file, what a witness saw of it, who and what there is in it."""

    file: Path
    now_ms: int
    seen: SeenHead
    keys: dict[str, SigningKey]
    buyer: str
    sellers: list[str]
    operator: str
    arbiter: str
    rounds: dict[str, str]  # open, cleared (sealed bids), waiting (a dispute), sealed, settled, aborted
    tasks: dict[str, str]
    log_id: str

    def entries(self, kind: str) -> list[Entry]:
        """All entries of a kind."""
        return [one for one in entries_of(self.file) if one.kind == kind]

    def sign(self, who: str, kind: str, about: str, **said: object) -> str:
        """A party's own signature: only its holder can make it, in an honest market."""
        return self.keys[who].sign(statement_message(kind, who, about, said))


def make_target(folder: Path) -> Target:
    """The market, closed; its witness looked last five minutes after its last entry."""
    file = folder / "market.db"
    market = eventful_market(f"sqlite:///{file}", SIGNING, everybody=True)
    arbiter = next(one for one in market.keys if one.startswith("arbiter"))
    market.broker.database.close()
    head = head_of(file)
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute(
            "SELECT r.state, r.id, r.task_id, t.delivery, t.sealing FROM rounds r JOIN tasks t ON t.id = r.task_id "
            "ORDER BY r.opened_ms"
        ).fetchall()
    rounds: dict[str, str] = {}
    tasks: dict[str, str] = {}
    for state, round_id, task_id, delivery, sealing in rows:
        name = state
        if state == "cleared":
            name = "sealed" if delivery == "sealed" else "cleared" if sealing == "bidder" else "waiting"
        rounds[name] = round_id
        tasks[name] = task_id
    seen = SeenHead(head, head.at_ms, head.at_ms + 300_000)
    sellers = [seller.party_id for seller in market.sellers]
    return Target(
        file,
        head.at_ms + 600_000,
        seen,
        dict(market.keys),
        market.buyer.party_id,
        sellers,
        market.operator.party_id,
        arbiter,
        rounds,
        tasks,
        head.log_id,
    )
