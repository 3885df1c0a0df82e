"""Rebuilds the tables from the log in a scratch database on disk, so that a check needs memory for one round only.

The scratch database is SQLite, whatever the broker uses, and has the same tables, filled by the same
`projection.changes`. It also keeps what a check needs to know of the past: balances, bids that were replaced, tiles
of the tree. An auditor may keep a copy of it as a checkpoint, from which a later check goes on (`_verify`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, event

from privmarket.broker import _projection as projection, _schema as schema, _sql as sql
from privmarket.broker._errors import BrokerError
from privmarket.broker._projection import KEYS, Change
from privmarket.broker._schema import PROJECTIONS, metadata, tiles
from privmarket.broker._shapes import AwardRow, BidRow, PartyRow, RoundRow, TaskRow

Row = TypeVar("Row")
_COMMIT_EVERY = 20_000  # changes; before a commit, SQLite keeps what it would need to undo them
_CACHE_KIB = 65_536
_OWN_TABLES = (
    "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount_micro INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS replaced (round_id TEXT, seller_id TEXT, commitment TEXT, "
    "PRIMARY KEY (round_id, seller_id, commitment)) WITHOUT ROWID",
    # Bookings that were undone, and proposals of bookings until they are answered.
    "CREATE TABLE IF NOT EXISTS undone (seq INTEGER PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS proposals (seq INTEGER PRIMARY KEY, actor TEXT, booking TEXT) WITHOUT ROWID",
    # Signatures that were used: each counts once, so that an old statement cannot be entered again.
    "CREATE TABLE IF NOT EXISTS signed (signature TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
_ADD_BALANCE = (
    "INSERT INTO balances (account, amount_micro) VALUES (?, ?) "
    "ON CONFLICT (account) DO UPDATE SET amount_micro = amount_micro + excluded.amount_micro"
)


class RebuiltMarket:
    """The state of the market that follows from the log entries applied so far."""

    def __init__(self, file: Path) -> None:
        """Opens the scratch database, which may hold the state of an earlier check."""
        self.file = file
        self._engine = create_engine(f"sqlite:///{file}")
        event.listen(self._engine, "connect", _set_up)
        self.connection: Connection = self._engine.connect()
        metadata.create_all(self.connection, tables=[*PROJECTIONS, tiles])
        for statement in _OWN_TABLES:
            self.run(statement)
        self._uncommitted = 0
        self._tasks: dict[str, TaskRow] = {}

    def run(self, statement: str, *parameters: object) -> list[Any]:
        """Runs an SQL statement on the scratch database and returns its rows."""
        return sql.run(self.connection, statement, *parameters)

    def one(self, statement: str, *parameters: object) -> Any:
        """Runs a statement and returns the first value of its first row; None if there is no row."""
        rows = self.run(statement, *parameters)
        return rows[0][0] if rows else None

    def apply(self, made: Iterable[Change]) -> None:
        """Applies changes to the tables.

        Raises:
            BrokerError: a row to insert exists already, or a row to change is missing.
        """
        driver: Any = self.connection.connection.dbapi_connection
        for verb, table, key, values in made:
            if verb == "add":
                column, amount = next(iter(values.items()))
                where = " AND ".join(f"{name} = ?" for name in KEYS[table])
                done = driver.execute(f"UPDATE {table} SET {column} = {column} + ? WHERE {where}", (amount, *key))
            else:
                text = projection.statement(verb, table, tuple(values))
                row = tuple(values.values())
                try:
                    done = driver.execute(text, row if verb in ("insert", "put") else (*row, *key))
                except sqlite3.IntegrityError as error:
                    raise BrokerError(f"{table} {_shown(key)}: {error}", "the entry is forged") from None
            if done.rowcount != 1:
                raise BrokerError(f"there is no row {_shown(key)} in {table}", "the entry is forged")
            if table == "postings":
                driver.execute(_ADD_BALANCE, (values["account"], values["amount_micro"]))
            self._uncommitted += 1
        if self._uncommitted >= _COMMIT_EVERY:
            self.commit()

    def add_tiles(self, made: Iterable[tuple[int, int, bytes]]) -> None:
        """Stores the nodes of the Merkle tree that an entry completed."""
        for level, place, node in made:
            self.run("INSERT INTO tiles (level, place, hash) VALUES (?, ?, ?)", level, place, node.hex())

    def commit(self) -> None:
        """Commits the changes made since the last commit."""
        self._uncommitted = 0
        self.run("COMMIT")
        self.run("BEGIN")

    def note(self, **facts: str) -> None:
        """Stores facts about the state under their names; a fact of the same name is replaced."""
        for name, value in facts.items():
            self.run("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", name, value)

    def facts(self) -> dict[str, str]:
        """All facts that `note` stored, by name."""
        return {str(name): str(value) for name, value in self.run("SELECT name, value FROM facts")}

    def close(self) -> None:
        """Ends the connection; the file stays."""
        self.run("COMMIT")
        self.connection.close()
        self._engine.dispose()

    # ---- rows -------------------------------------------------------------------------------------------

    def party(self, party_id: str) -> PartyRow:
        """The party of that id; raises `BrokerError` where there is none."""
        return _there(schema.find_party(self.connection, party_id), "party", party_id)

    def task(self, task_id: str) -> TaskRow:
        """The task of that id. A task never changes."""
        if task_id not in self._tasks:
            if len(self._tasks) > 1000:
                self._tasks.clear()
            self._tasks[task_id] = _there(schema.find_task(self.connection, task_id), "task", task_id)
        return self._tasks[task_id]

    def round_of(self, round_id: str) -> tuple[RoundRow, TaskRow]:
        """A round and its task."""
        found = _there(schema.find_round(self.connection, round_id), "round", round_id)
        return found, self.task(found.task_id)

    def find_bid(self, round_id: str, seller_id: str) -> BidRow | None:
        """A seller's bid in a round; None where there is none."""
        return schema.find_bid(self.connection, round_id, seller_id)

    def award(self, round_id: str, seller_id: str) -> AwardRow:
        """A seller's award in a round; raises `NotFoundError` where there is none."""
        return schema.award_of(self.connection, round_id, seller_id)

    def awards(self, round_id: str) -> list[AwardRow]:
        """All awards of a round, oldest first."""
        return schema.awards_of(self.connection, round_id)

    def balance(self, account: str) -> int:
        """The balance of an account in micro-units; 0 where nothing was posted."""
        return int(self.one("SELECT amount_micro FROM balances WHERE account = ?", account) or 0)

    def rows(self, table: str, columns: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        """All rows of a table in the order of its key."""
        order = ", ".join(KEYS.get(table, ("level", "place")))
        yield from sql.stream(self.connection, f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")


def _set_up(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode = MEMORY", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN")


def _shown(key: Iterable[object]) -> str:
    return " ".join(str(part) for part in key)


def _there(row: Row | None, kind: str, name: str) -> Row:
    if row is None:
        raise BrokerError(f"there is no {kind} {name}", "the entry is forged")
    return row
