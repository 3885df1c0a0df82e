"""Rebuilds everything from the log and reports every difference.

Three questions are checked: is the log what its Merkle tree says (and does it contain a head that somebody noted
earlier), did every entry follow the market's rules when it was made, and are the tables what the log gives, column
by column, both ways. Rounds whose rule has changed since are named and taken as recorded.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy import Connection, Inspector, Table, UniqueConstraint, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from privmarket.broker import ledger, log, merkle, parties, sealed, sql
from privmarket.broker.broker import Broker
from privmarket.broker.entry_rules import EntryRules
from privmarket.broker.http_errors import BrokerError
from privmarket.broker.key_vault import Vault
from privmarket.broker.schema import PROJECTIONS, metadata, names, old_log, tiles
from privmarket.broker.signatures import Head


@dataclass(frozen=True)
class Verdict:
    """What was found. Everything agrees where `differences` is empty; `notes` say what could not be looked at."""

    differences: tuple[str, ...]
    notes: tuple[str, ...]
    entries: int
    auctions: int
    postings: int
    head: str

    @property
    def difference(self) -> str | None:
        """The first difference."""
        return self.differences[0] if self.differences else None


def verify(broker: Broker, expected_head: str | None = None) -> Verdict:
    """The whole check. `expected_head` is one noted earlier, SIZE:ROOT: the log must still contain it."""
    check = _Check(broker, EntryRules(broker.make_mechanism))
    try:
        with broker.database.read() as connection:
            return check.run(connection, expected_head)
    except (SQLAlchemyError, BrokerError, broker.database.engine.dialect.loaded_dbapi.Error, ValueError) as error:
        check.market.differences.append(f"database: it cannot be read: {error}")
        return check.verdict("")


@dataclass
class _Check:
    """One verification: the market as the log gives it, beside what is stored."""

    broker: Broker
    market: EntryRules
    entries: int = 0

    # ---- the log ----------------------------------------------------------------------------------------

    def run(self, connection: Connection, expected: str | None) -> Verdict:
        """Everything, in one snapshot."""
        self._schema(connection)
        head, frontier = self._log(connection, expected)
        self._head(connection, head, frontier)
        for table in PROJECTIONS:
            self._compare(connection, table)
        self._names(connection)
        self._sealed_keys(connection)
        self._old_log(connection)
        for row in self.market.tables.tables["awards"].values():
            round_ = self.market.tables.tables["rounds"].get((row["round_id"],), {})
            if row["charge"] != "reserved" and round_.get("state") not in ("settled", "aborted"):
                self._say(f"awards {row['round_id']} {row['seller_id']}: settled, but its round is not")
        for account, amount in self.market.balances.items():
            if amount < 0 and account != ledger.WORLD:
                self._say(f"ledger: account {account} stands at {amount} µ")
        return self.verdict(f"{frontier.size}:{frontier.root().hex()}")

    def verdict(self, head: str) -> Verdict:
        """What was found so far."""
        count = len(self.market.tables.tables["postings"])
        found = self.market
        return Verdict(tuple(found.differences), tuple(found.notes), self.entries, found.auctions, count, head)

    def _say(self, difference: str) -> None:
        self.market.differences.append(difference)

    def _schema(self, connection: Connection) -> None:
        stored = inspect(connection)
        triggers = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
        strange = set(stored.get_view_names())
        wanted = {table.name: _due_form(table) for table in metadata.sorted_tables}
        found = set(stored.get_table_names())
        for name in sorted((wanted.keys() | {"alembic_version"}) ^ found):
            self._say(f"database: table {name} {'does not belong here' if name in found else 'is missing'}")
        if connection.dialect.name == "sqlite":
            for (text,) in sql.run(connection, "PRAGMA integrity_check"):
                if text != "ok":
                    self._say(f"database file: {text}")
            triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        forms = _forms_in_sqlite(connection) if connection.dialect.name == "sqlite" else _forms(stored)
        for name, due in wanted.items():
            if name in found and forms[name] != due:
                self._say(f"database: table {name} has other columns or indexes than it was made with")
        for name in sorted(strange | {name for (name,) in sql.run(connection, triggers)}):
            self._say(f"database: {name} does not belong here")

    def _log(
        self, connection: Connection, expected: str | None
    ) -> tuple[list[tuple[int, int, str]], merkle.Frontier]:
        """Walks the log once: hashes, rules, and the tables that it gives."""
        frontier, made, at_ms = merkle.Frontier(), [], 0
        size, _, root = (expected or "").rpartition(":")
        found = expected is None
        for entry, stored in log.entries(connection):
            where = f"log entry {entry.seq} ({entry.kind} of {entry.subject})"
            if entry.seq != self.entries + 1:
                self._say(f"log: entries {self.entries + 1} to {entry.seq - 1} are missing")
            leaf = entry.leaf()
            if leaf.hex() != stored:
                self._say(f"{where} does not match its hash")
            if entry.at_ms < at_ms:
                self._say(f"{where}: time runs backwards")
            self.entries, at_ms = entry.seq, entry.at_ms
            made += [(level, place, node.hex()) for level, place, node in frontier.append(leaf)]
            if not found and (size == "" or frontier.size == int(size)):
                found = frontier.root().hex() == root
            self.market.follow(entry, where)
        if not found:
            self._say(f"log: the head {expected} noted earlier is gone: the log was rewritten or cut")
        return made, frontier

    def _head(self, connection: Connection, made: list[tuple[int, int, str]], frontier: merkle.Frontier) -> None:
        rows = sql.run(connection, "SELECT log_id, size, root, at_ms, signature, frontier FROM head")
        if len(rows) != 1:
            self._say(f"head: {len(rows)} rows instead of one")
            return
        head, stored = Head(*rows[0][:5]), rows[0][5]
        if (head.size, head.root, stored) != (frontier.size, frontier.root().hex(), frontier.dump()):
            self._say(f"head: it stands at entry {head.size}, the log gives {frontier.size} and another root")
        if self.market.public_key and head.size and not head.is_signed_by(self.market.public_key):
            self._say("head: it is not signed by the key that the log announces")
        kept = {tuple(row) for row in connection.execute(select(tiles.c.level, tiles.c.place, tiles.c.hash))}
        for level, place, _ in sorted(kept ^ set(made)):
            self._say(f"tiles: node {place} of level {level} is not the log's")

    # ---- the tables -------------------------------------------------------------------------------------

    def _compare(self, connection: Connection, table: Table) -> None:
        """Every column of every stored row against what the log gives, and what the log gives and nobody stored."""
        expected = self.market.tables.tables[table.name]
        names = [column.name for column in table.c]
        keys = [names.index(column.name) for column in table.primary_key]
        as_number = connection.dialect.name == "sqlite"  # it has no booleans, and would store 2 for one
        seen = set()
        for row in sql.stream(connection, f"SELECT {', '.join(names)} FROM {table.name}"):
            key = tuple(row[at] for at in keys)
            seen.add(key)
            given = expected.get(key)
            shown = f"{table.name} {' '.join(map(str, key))}"
            if given is None:
                self._say(f"{shown}: stored, but not in the log")
                continue
            for name, stored in zip(names, row, strict=True):
                wanted = given.get(name)
                if as_number and isinstance(wanted, bool):
                    wanted = int(wanted)
                if stored != wanted or type(stored) is not type(wanted):
                    self._say(f"{shown}: {name} is {stored!r}, the log says {wanted!r}")
        for key in expected:
            if key not in seen:
                self._say(f"{table.name} {' '.join(map(str, key))}: in the log, but not stored")

    def _names(self, connection: Connection) -> None:
        known = {row.party_id: row for row in connection.execute(select(names))}
        for key, row in self.market.tables.tables["parties"].items():
            stored = known.pop(key[0], None)
            if stored is None:
                if row["erased_ms"] is None:
                    self._say(f"names {key[0]}: the name is gone, and nobody erased it")
            elif row["erased_ms"] is not None:
                self._say(f"names {key[0]}: it was erased, and is there again")
            elif parties.name_hash(key[0], stored.name, stored.salt) != row["name_hash"]:
                self._say(f"names {key[0]}: not the name that was registered")
        for party_id in known:
            self._say(f"names {party_id}: nobody of that id has registered")

    def _sealed_keys(self, connection: Connection) -> None:
        """The broker keeps the key of every sealed update that is not settled, and no other; the right one, too,
        where this process has the broker's key to look."""
        query = "SELECT round_id, seller_id FROM sealed_keys"
        stored = {(str(one), str(two)) for one, two in sql.run(connection, query)}
        due = {
            key: row["key_sha256"]
            for key, row in self.market.tables.tables["awards"].items()
            if row["key_sha256"] is not None and row["settled_seq"] is None
        }
        for place in sorted(stored ^ set(due)):
            fault = "stored, but not of an update that waits" if place in stored else "missing"
            self._say(f"sealed keys {' '.join(place)}: {fault}")
        if self.broker.database.key is not None:
            vault = Vault(connection, self.broker.database.key)
            for round_id in sorted({one for one, _ in stored}):
                opened = vault.of_round(round_id)
                for seller in (two for one, two in stored if one == round_id):
                    if seller not in opened or sealed.key_digest(opened[seller]) != due.get((round_id, seller)):
                        self._say(f"sealed keys {round_id} {seller}: not the key that was claimed")

    def _old_log(self, connection: Connection) -> None:
        """The chain of an older broker's log, up to the head that was noted when it was imported."""
        previous, count = "0" * 64, 0
        for row in connection.execute(select(old_log).order_by(old_log.c.seq)):
            count += 1
            whole = [row.seq, row.at_ms, row.actor, row.kind, row.subject, row.details, previous]
            own = hashlib.sha256(log.canonical(whole).encode()).hexdigest()
            if (row.seq, row.previous, row.hash) != (count, previous, own):
                self._say(f"old log: entry {row.seq} does not match its hash")
            previous = own
        noted = (self.market.imported.get("entries", 0), self.market.imported.get("head", "0" * 64))
        if (count, previous) != noted:
            self._say(f"old log: it has {count} entries, {noted[0]} were imported, or their head differs")


@dataclass
class _Form:
    """Names of a table's columns, its indexes (name, whether unique), and the columns that must be unique."""

    columns: set[str] = field(default_factory=set)
    indexes: set[tuple[str | None, bool]] = field(default_factory=set)
    unique: set[tuple[str, ...]] = field(default_factory=set)


def _due_form(table: Table) -> _Form:
    """A table as it should be."""
    return _Form(
        {column.name for column in table.c},
        {(index.name, bool(index.unique)) for index in table.indexes},
        {tuple(one.columns.keys()) for one in table.constraints if isinstance(one, UniqueConstraint)},
    )


def _forms(stored: Inspector) -> dict[str, _Form]:
    """All tables as they are stored, in three queries."""
    found: dict[str, _Form] = defaultdict(_Form)
    for (_, name), columns in stored.get_multi_columns().items():
        found[name].columns.update(column["name"] for column in columns)
    for (_, name), indexes in stored.get_multi_indexes().items():
        own = (index for index in indexes if "duplicates_constraint" not in index)
        found[name].indexes.update((index["name"], bool(index["unique"])) for index in own)
    for (_, name), constraints in stored.get_multi_unique_constraints().items():
        found[name].unique.update(tuple(one["column_names"]) for one in constraints)
    return found


def _forms_in_sqlite(connection: Connection) -> dict[str, _Form]:
    """The same of a SQLite file, where SQLAlchemy would ask, and read the text of, one table after the other."""
    found: dict[str, _Form] = defaultdict(_Form)
    of_tables = "FROM sqlite_master t, pragma_{}(t.name) p{} WHERE t.type = 'table'"
    for table, column in sql.run(connection, f"SELECT t.name, p.name {of_tables.format('table_xinfo', '')}"):
        found[table].columns.add(column)
    columns: dict[tuple[str, str], list[str]] = defaultdict(list)
    listed = of_tables.format("index_list", ", pragma_index_info(p.name) c")
    rows = sql.run(connection, f'SELECT t.name, p.name, p."unique", p.origin, c.name {listed} ORDER BY c.seqno')
    for table, index, unique, origin, column in rows:
        if origin == "c":  # by CREATE INDEX, not for a primary key or a constraint
            found[table].indexes.add((index, bool(unique)))
        elif origin == "u":
            columns[table, index].append(column)
    for (table, _), together in columns.items():
        found[table].unique.add(tuple(together))
    return found
