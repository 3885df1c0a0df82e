"""Rebuilds everything from the log and reports every difference.

Four things are checked: the log against its signed Merkle tree (and against heads that somebody noted earlier, with
the times when they were seen); every entry against the market's rules at the time; the tables against the log,
column by column, in both directions; and the schema against that of this version. There are two outcomes: no
difference, or differences.

The state of a clean check can be kept as a checkpoint, from which the next one goes on: FILE holds the tables
as the log gave them, FILE.note the head of the log at that point and the digest of FILE, signed with the
auditor's own key. The broker has no access to it, so an operator cannot change it.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, String, Table, Text
from sqlalchemy.exc import SQLAlchemyError

from privmarket._files import OWNER_ONLY, file_beside, write_atomically
from privmarket.broker import (
    _ledger as ledger,
    _log as log,
    _merkle as merkle,
    _parties as parties,
    _sealed as sealed,
    _sql as sql,
)
from privmarket.broker._broker import Broker
from privmarket.broker._entry_rules import EntryRules
from privmarket.broker._errors import BrokerError
from privmarket.broker._log import Entry
from privmarket.broker._rebuilt import RebuiltMarket
from privmarket.broker._schema import PROJECTIONS, tiles
from privmarket.broker._schema_check import schema_differences
from privmarket.broker._sealed import Vault
from privmarket.broker._signatures import Head, SigningKey, is_signed

CLOCK_SKEW_MS = 60_000  # by how much the clocks of a broker, a witness and an auditor may differ
_EARLIEST_MS = 1_577_836_800_000  # 2020: no log is older


@dataclass(frozen=True)
class Verdict:
    """What was found. Everything agrees where `differences` is empty.

    Attributes:
        accepted: findings that occurred and that the auditor had accepted by name.
        unused: names that the auditor accepted and that did not occur.
        entries: how many the log has; `since` of them were checked before, up to the checkpoint.
    """

    differences: tuple[str, ...]
    accepted: tuple[str, ...]
    unused: tuple[str, ...]
    entries: int
    since: int
    auctions: int
    postings: int
    head: str

    @property
    def difference(self) -> str | None:
        """The first difference; None if there is none."""
        return self.differences[0] if self.differences else None


class SeenHead(NamedTuple):
    """A head that somebody noted: when it was first and last seen, by their clock."""

    head: Head
    first_ms: int
    last_ms: int


def verify(
    broker: Broker,
    expected_head: str | None = None,
    *,
    public_key: str | None = None,
    accept: Collection[str] = (),
    witnessed: Sequence[SeenHead] = (),
    checkpoint: Path | None = None,
    auditor: SigningKey | None = None,
) -> Verdict:
    """Checks log, tables and schema, in memory that does not grow with the log.

    Args:
        expected_head: a head noted earlier, as SIZE:ROOT; the log must still contain it.
        public_key: the broker's key, learnt elsewhere; the log must announce it.
        accept: findings that the auditor has looked into, by the names that differences give.
        witnessed: what a witness saw, and when: entries must not be dated before they could have been made.
        checkpoint: where the state of a clean check is kept; the next one reads only what came after it. Tables and
            schema are compared in full each time. Needs `auditor`, the key that signs for it.
    """
    wanted = _wanted(expected_head)
    with tempfile.TemporaryDirectory(prefix="privmarket-verify-") as folder:
        scratch = Path(folder) / "rebuilt.db"
        begin = None
        if checkpoint is not None:
            if auditor is None:
                raise BrokerError("a checkpoint is signed", "give the auditor's key")
            if checkpoint.exists():
                begin = load_checkpoint(checkpoint, auditor)
                shutil.copyfile(checkpoint, scratch)
        market = RebuiltMarket(scratch)
        check = _Check(broker, EntryRules(broker.make_mechanism, market, accept), market)
        faults = (SQLAlchemyError, BrokerError, broker.database.engine.dialect.loaded_dbapi.Error, ValueError)
        try:
            with broker.database.read() as connection:
                check.run(connection, begin, wanted, public_key, witnessed)
        except faults as error:
            check.say(f"database: it cannot be read: {error}")
        verdict = check.verdict()
        check.remember()
        market.close()
        if checkpoint is not None and auditor is not None and check.head is not None and not verdict.differences:
            save_checkpoint(checkpoint, scratch, check.head, auditor)
        return verdict


def _wanted(expected: str | None) -> tuple[int, str] | None:
    if expected is None:
        return None
    size, _, root = expected.partition(":")
    if not size.isdigit() or len(root) != 64:
        raise BrokerError(f"{expected} is not a head", "give SIZE:ROOT, as `broker verify` and witnesses show it")
    if int(size) == 0:
        raise BrokerError(f"{expected} proves nothing", "every log begins with 0 entries: give a head of 1 or more")
    return int(size), root


class _Check:
    """One verification: compares the market that follows from the log with what is stored."""

    def __init__(self, broker: Broker, rules: EntryRules, market: RebuiltMarket) -> None:
        self.broker = broker
        self.rules = rules
        self.market = market
        self.say = rules.say
        self.frontier = merkle.Frontier()
        self.at_ms = 0
        self.since = 0
        self.head: Head | None = None  # as stored

    def run(
        self,
        connection: Connection,
        begin: Head | None,
        expected: tuple[int, str] | None,
        public_key: str | None,
        witnessed: Sequence[SeenHead],
    ) -> None:
        """Runs all checks on one snapshot of the database."""
        for extension, text in schema_differences(connection):
            if extension:
                self.rules.finding("extension", extension, text)
            else:
                self.say(text)
        if begin is not None:
            self._resume(begin)
        seen = _by_size(witnessed)
        for one in witnessed:
            other = seen[one.head.size].head
            if other.root != one.head.root:
                self.say(f"log: witnesses saw two logs of {other.size} entries: {one.head.root} and {other.root}")
        if expected is not None:
            self._contains(connection, expected)
        for one in seen.values():
            if one.head.size <= self.since:
                self._contains(connection, (one.head.size, one.head.root))
        self._log(connection, seen)
        self._stored_head(connection)
        self._keys(public_key)
        if expected is not None and expected[0] > self.frontier.size:
            self.say(f"log: the head {expected[0]}:{expected[1]} noted earlier is gone: the log was cut")
        for one in seen.values():
            if one.head.size > self.frontier.size:
                self.say(f"log: a witness saw {one.head.size} entries, and there are {self.frontier.size}")
        for table in PROJECTIONS:
            self._compare(connection, table)
        self._compare(connection, tiles)
        self._names(connection)
        self._sealed_keys(connection)
        self._ends()

    def verdict(self) -> Verdict:
        """What was found so far."""
        found = self.rules
        postings = self.market.one("SELECT COUNT(*) FROM postings")
        return Verdict(
            tuple(found.differences),
            tuple(found.accepted),
            tuple(sorted(set(found.accept) - found.used)),
            self.frontier.size,
            self.since,
            found.auctions,
            int(postings),
            f"{self.frontier.size}:{self.frontier.root().hex()}",
        )

    # ---- a checkpoint -----------------------------------------------------------------------------------

    def remember(self) -> None:
        """Stores in the scratch database what the next check needs, besides the tables, to go on from here."""
        self.market.note(
            frontier=self.frontier.dump(),
            at_ms=str(self.at_ms),
            auctions=str(self.rules.auctions),
            log_id=self.rules.log_id,
            keys=" ".join(self.rules.keys),
        )

    def _resume(self, begin: Head) -> None:
        facts = self.market.facts()
        self.frontier = merkle.Frontier.load(begin.size, facts["frontier"])
        if self.frontier.root().hex() != begin.root:
            raise BrokerError("the checkpoint does not fit its own head", "delete it, and check everything")
        self.since = begin.size
        self.at_ms = int(facts["at_ms"])
        self.rules.auctions = int(facts["auctions"])
        self.rules.log_id = facts["log_id"]
        self.rules.keys = facts["keys"].split()
        self.rules.public_key = self.rules.keys[-1]

    # ---- the log ----------------------------------------------------------------------------------------

    def _contains(self, connection: Connection, wanted: tuple[int, str]) -> None:
        """Checks, by the stored hashes, that the log still begins with a head that was noted earlier."""
        size, root = wanted
        head = log.read_head(connection)
        if size == 0:
            self.say(f"log: the head 0:{root} noted earlier proves nothing: every log begins with 0 entries")
            return
        if size > head.size:
            return  # `run` reports it at the end
        try:
            path = merkle.consistency_proof(log.Stored(connection), size, head.size)
            holds = merkle.extends(size, bytes.fromhex(root), head.size, bytes.fromhex(head.root), path)
        except (IndexError, ValueError):
            holds = False
        if not holds:
            self.say(f"log: the head {size}:{root} noted earlier is gone: the log was rewritten or cut")

    def _log(self, connection: Connection, seen: dict[int, SeenHead]) -> None:
        """Reads the log once: checks hashes, times and rules, and rebuilds the tables that follow from it."""
        latest = self.broker.database.now_ms() + CLOCK_SKEW_MS
        for entry, stored in log.entries(connection, self.since):
            where = f"log entry {entry.seq} ({entry.kind} of {entry.subject})"
            if entry.seq != self.frontier.size + 1:
                self.say(f"log: entries {self.frontier.size + 1} to {entry.seq - 1} are missing")
                return  # whatever follows has another place than it says
            leaf = entry.leaf()
            if leaf.hex() != stored:
                self.say(f"{where} does not match its hash")
            self._time(entry, where, latest, seen)
            self.market.add_tiles(self.frontier.append(leaf))
            self.at_ms = entry.at_ms
            known = seen.get(entry.seq)
            if known is not None and self.frontier.root().hex() != known.head.root:
                self.say(f"log: the head of {entry.seq} entries is not the one that a witness saw")
            self.rules.follow(entry, where)

    def _time(self, entry: Entry, where: str, latest_ms: int, seen: dict[int, SeenHead]) -> None:
        if type(entry.at_ms) is not int or not entry.at_ms >= _EARLIEST_MS:
            self.say(f"{where}: it is dated {entry.at_ms}, before there were brokers")
        elif entry.at_ms < self.at_ms:
            self.say(f"{where}: time runs backwards")
        elif entry.at_ms > latest_ms:
            self.say(f"{where}: it is dated {(entry.at_ms - latest_ms) / 1000:.0f} s ahead of this machine's clock")
        known = seen.get(entry.seq)
        if known is not None and entry.at_ms > known.first_ms + CLOCK_SKEW_MS:
            self.say(f"{where}: a witness saw it {(entry.at_ms - known.first_ms) / 1000:.0f} s before it was made")
        before = seen.get(entry.seq - 1)
        if before is not None and entry.at_ms < before.last_ms - CLOCK_SKEW_MS:
            late = (before.last_ms - entry.at_ms) / 1000
            self.say(f"{where}: it is dated back: a witness saw the log without it {late:.0f} s after that time")

    def _stored_head(self, connection: Connection) -> None:
        rows = sql.run(connection, "SELECT log_id, size, root, at_ms, signature, frontier, signed_by, id FROM head")
        if len(rows) != 1 or rows[0][7] != 1:
            self.say(f"head: {len(rows)} rows instead of one")
            return
        head, edge, signed_by = Head(*rows[0][:5]), rows[0][5], rows[0][6]
        self.head = head
        given = (self.frontier.size, self.frontier.root().hex(), self.frontier.dump())
        if (head.size, head.root, edge) != given:
            self.say(f"head: it stands at entry {head.size}, the log gives {self.frontier.size} and another root")
        if head.at_ms != self.at_ms:
            self.say(f"head: it is of {head.at_ms}, the last entry of {self.at_ms}")
        if not self.rules.public_key:
            self.say("log: it announces no key, so nobody signed for it")
        elif not head.is_signed_by(self.rules.public_key):
            self.say("head: it is not signed by the key that the log announces")
        elif signed_by != self.rules.public_key:
            self.say("head: it names another key than the one that signed it")
        if head.log_id != self.rules.log_id:
            self.say("head: it is that of another log")

    def _keys(self, public_key: str | None) -> None:
        """Checks this process's key against the log's newest, and the auditor's against all that it announced."""
        own = self.broker.database.key
        if own is not None and own.public != self.rules.public_key:
            self.say(f"log: it announces the key {self.rules.public_key[:16]}…, yours is {own.public[:16]}…")
        if public_key is not None and public_key not in self.rules.keys:
            self.say(f"log: it never announced the key {public_key[:16]}…")

    # ---- the tables -------------------------------------------------------------------------------------

    def _compare(self, connection: Connection, table: Table) -> None:
        """Compares stored rows with the log, column by column, and reports rows that only one of the two has."""
        columns = [column.name for column in table.c]
        places = [columns.index(column.name) for column in table.primary_key]
        is_sqlite = connection.dialect.name == "sqlite"
        # SQLite has no booleans: there the numbers themselves are compared, so that a 2 does not pass for true.
        as_boolean = [not is_sqlite and isinstance(column.type, Boolean) for column in table.c]
        given_rows = (
            tuple(bool(v) if b and v is not None else v for v, b in zip(row, as_boolean, strict=True))
            for row in self.market.rows(table.name, columns)
        )
        order = ", ".join(_order(column.name, column.type, is_sqlite) for column in table.primary_key)
        query = f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY {order}"
        for key, stored, given in _merged(sql.stream(connection, query), given_rows, places):
            shown = f"{table.name} {' '.join(map(str, key))}"
            if given is None:
                self.say(f"{shown}: stored, but not in the log")
            elif stored is None:
                self.say(f"{shown}: in the log, but not stored")
            elif stored != given or list(map(type, stored)) != list(map(type, given)):
                for name, one, other in zip(columns, stored, given, strict=True):
                    if one != other or type(one) is not type(other):
                        self.say(f"{shown}: {name} is {one!r}, the log says {other!r}")

    def _names(self, connection: Connection) -> None:
        """Checks the names, which are not in the log: each must be as registered, or gone if it was erased."""
        is_sqlite = connection.dialect.name == "sqlite"
        order = _order("party_id", String(40), is_sqlite)
        stored_rows = sql.stream(connection, f"SELECT party_id, name, salt FROM names ORDER BY {order}")
        registered = self.market.rows("parties", ("id", "name_hash", "erased_ms"))
        for (party_id,), stored, party in _merged(stored_rows, registered, [0]):
            if party is None:
                self.say(f"names {party_id}: nobody of that id has registered")
            elif stored is None:
                if party[2] is None:
                    self.say(f"names {party_id}: the name is gone, and nobody erased it")
            elif party[2] is not None:
                self.say(f"names {party_id}: it was erased, and is there again")
            elif parties.name_hash(party_id, stored[1], stored[2]) != party[1]:
                self.say(f"names {party_id}: not the name that was registered")

    def _sealed_keys(self, connection: Connection) -> None:
        """Checks that a key is stored for every sealed update that is not settled, and for no other.

        Where this process has the broker's signing key, each must also be the key that was claimed.
        """
        query = "SELECT round_id, seller_id FROM sealed_keys"
        stored = {(str(one), str(two)) for one, two in sql.run(connection, query)}
        waiting = (
            "SELECT round_id, seller_id, key_sha256 FROM awards "
            "WHERE key_sha256 IS NOT NULL AND settled_seq IS NULL"
        )
        due = {(str(one), str(two)): digest for one, two, digest in self.market.run(waiting)}
        for place in sorted(stored ^ set(due)):
            fault = "stored, but not of an update that waits" if place in stored else "missing"
            self.say(f"sealed keys {' '.join(place)}: {fault}")
        if self.broker.database.key is not None:
            vault = Vault(connection, self.broker.database.key)
            for round_id in sorted({one for one, _ in stored}):
                opened = vault.of_round(round_id)
                for seller in (two for one, two in stored if one == round_id):
                    if seller not in opened or sealed.key_digest(opened[seller]) != due.get((round_id, seller)):
                        self.say(f"sealed keys {round_id} {seller}: not the key that was claimed")

    def _ends(self) -> None:
        """Checks that every award fits the state of its round, and that no account of the market is below zero."""
        half = (
            "SELECT a.round_id, a.seller_id, a.charge, r.state "
            "FROM awards a JOIN rounds r ON r.id = a.round_id WHERE "
            "(a.charge <> 'reserved' AND r.state NOT IN ('settled', 'aborted')) "
            "OR r.state NOT IN ('cleared', 'delivered', 'settled')"
        )
        for round_id, seller, charge, state in self.market.run(half):
            self.say(f"awards {round_id} {seller}: {charge}, and its round is {state}")
        negative = "SELECT account, amount_micro FROM balances WHERE amount_micro < 0 AND account <> ?"
        for account, amount in self.market.run(negative, ledger.WORLD):
            self.say(f"ledger: account {account} stands at {amount} µ")


def _by_size(witnessed: Iterable[SeenHead]) -> dict[int, SeenHead]:
    """Size of the log → its head, with the first and the last time that any witness saw it."""
    found: dict[int, SeenHead] = {}
    for one in witnessed:
        known = found.get(one.head.size, one)
        first, last = min(known.first_ms, one.first_ms), max(known.last_ms, one.last_ms)
        found[one.head.size] = SeenHead(one.head, first, last)
    return found


def _order(name: str, kind: object, is_sqlite: bool) -> str:
    """The ORDER BY term of a key column: text is sorted by its bytes, as both databases and Python can."""
    return name if is_sqlite or not isinstance(kind, String | Text) else f'{name} COLLATE "C"'


def _rank(value: object) -> tuple[int, Any]:
    """A sort key that puts values of different types in SQLite's order: null, numbers, text."""
    if value is None:
        return 0, 0
    return (1, value) if isinstance(value, int | float) else (2, str(value))


_Row = tuple[Any, ...]


def _merged(
    stored: Iterator[_Row], given: Iterator[_Row], places: Sequence[int]
) -> Iterator[tuple[_Row, _Row | None, _Row | None]]:
    """Merges the rows of two tables in the order of their keys: (key, stored, given).

    `stored` or `given` is None where that table has no row of the key.
    """
    one, other = next(stored, None), next(given, None)
    while one is not None or other is not None:
        left = None if one is None else tuple(one[at] for at in places)
        right = None if other is None else tuple(other[at] for at in places)
        if right is None or (left is not None and [*map(_rank, left)] < [*map(_rank, right)]):
            assert left is not None
            yield left, one, None
            one = next(stored, None)
        elif left is None or left != right:
            yield right, None, other
            other = next(given, None)
        else:
            yield left, one, other
            one, other = next(stored, None), next(given, None)


# ---- checkpoints of an auditor --------------------------------------------------------------------------------


_TITLE = "privmarket audit v1"


def _note_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.note")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def save_checkpoint(file: Path, state: Path, head: Head, key: SigningKey) -> None:
    """Copies the state of a check to `file`, and writes the signed note beside it."""
    text = f"{_TITLE}\n{_digest(state)}\n{head.header()}\n"
    with file_beside(file, mode=OWNER_ONLY) as unfinished:
        shutil.copyfile(state, unfinished)
    write_atomically(_note_file(file), f"{text}{key.sign(text.encode())}\n", mode=OWNER_ONLY)


def load_checkpoint(file: Path, key: SigningKey) -> Head:
    """The head of the log up to which a checkpoint was checked.

    Raises:
        BrokerError: the state is not the one that this key signed for.
    """
    note = _note_file(file)
    if not note.is_file():
        raise BrokerError(f"there is no {note}", "delete the checkpoint: the next check then begins anew")
    text, _, signature = note.read_text().rstrip("\n").rpartition("\n")
    signed = is_signed(key.public, f"{text}\n".encode(), signature)
    lines = text.split("\n")
    if not signed or len(lines) != 3 or lines[0] != _TITLE or lines[1] != _digest(file):
        raise BrokerError(
            f"{file} is not the checkpoint that this key signed",
            "give the auditor's own key, or delete the checkpoint and check everything",
        )
    return Head.parse(lines[2])
