"""Rebuilds everything from the log and reports every difference.

Three questions, each asked of everything: is the log what its Merkle tree says (and does it contain a head that
somebody noted earlier), did every entry follow the market's rules when it was made, and are the tables what the log
gives, column by column, both ways. Rounds whose rule has changed since are named and taken as recorded.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from privmarket.broker import (
    bidding,
    deliveries,
    ledger,
    lifecycle,
    log,
    merkle,
    parties,
    rules,
    sealed,
    signatures,
    sql,
    wallets,
)
from privmarket.broker.broker import Broker
from privmarket.broker.database import ARRIVAL_LIMIT_MS
from privmarket.broker.deliveries import Deadlines, Standing
from privmarket.broker.http_errors import BrokerError
from privmarket.broker.key_vault import Vault
from privmarket.broker.lifecycle import StandingBids
from privmarket.broker.log import Entry
from privmarket.broker.projection import Change, Rebuilt, changes
from privmarket.broker.schema import PROJECTIONS, metadata, names, old_log, tiles
from privmarket.broker.signatures import Head
from privmarket.errors import PrivmarketError
from privmarket.privacy.events import PrivacyEvent, release
from privmarket.rounds import Offer

Row = dict[str, Any]
_OFFER = ("valuation", "epsilon", "data_size", "accuracy")
_REASONS = (PrivmarketError, KeyError, TypeError, ValueError, AttributeError)


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
    check = _Check(broker)
    try:
        with broker.database.read() as connection:
            return check.run(connection, expected_head)
    except (SQLAlchemyError, BrokerError, broker.database.engine.dialect.loaded_dbapi.Error, ValueError) as error:
        check.differences.append(f"database: it cannot be read: {error}")
        return check.verdict("")


def _arrived(entry: Entry, fields: Row) -> int:
    """When a word came: as its entry says, which may be a little before it was written."""
    arrived = int(fields.get("arrived_ms", entry.at_ms))
    if not entry.at_ms - ARRIVAL_LIMIT_MS <= arrived <= entry.at_ms:
        raise BrokerError(f"said to have arrived at {arrived}", "the entry is dated back")
    return arrived


@dataclass
class _Check:
    """The market as the log tells it, and what is wrong with it."""

    broker: Broker
    tables: Rebuilt = field(default_factory=Rebuilt)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    balances: Counter[str] = field(default_factory=Counter)
    sold: dict[str, dict[str, PrivacyEvent]] = field(default_factory=lambda: defaultdict(dict))
    measures: dict[str, str] = field(default_factory=dict)
    # table → round → its sellers, in their order
    in_round: dict[str, dict[str, dict[str, None]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    rounds_of: Counter[str] = field(default_factory=Counter)
    datasets: set[str] = field(default_factory=set)
    public_key: str = ""
    imported: Row = field(default_factory=dict)
    entries: int = 0
    auctions: int = 0

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
        for row in self.tables.tables["awards"].values():
            round_ = self.tables.tables["rounds"].get((row["round_id"],), {})
            if row["charge"] != "reserved" and round_.get("state") not in ("settled", "aborted"):
                self._say(f"awards {row['round_id']} {row['seller_id']}: settled, but its round is not")
        for account, amount in self.balances.items():
            if amount < 0 and account != ledger.WORLD:
                self._say(f"ledger: account {account} stands at {amount} µ")
        return self.verdict(f"{frontier.size}:{frontier.root().hex()}")

    def verdict(self, head: str) -> Verdict:
        """What was found so far."""
        count = len(self.tables.tables["postings"])
        return Verdict(tuple(self.differences), tuple(self.notes), self.entries, self.auctions, count, head)

    def _say(self, difference: str) -> None:
        self.differences.append(difference)

    def _schema(self, connection: Connection) -> None:
        wanted = {table.name for table in metadata.sorted_tables} | {"alembic_version"}
        found = set(inspect(connection).get_table_names())
        for name in sorted(wanted ^ found):
            self._say(f"database: table {name} {'is missing' if name in wanted else 'does not belong here'}")
        if connection.dialect.name == "sqlite":
            for (text,) in sql.run(connection, "PRAGMA integrity_check"):
                if text != "ok":
                    self._say(f"database file: {text}")
            for (name,) in sql.run(connection, "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"):
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
            self._follow(entry, where)
        if not found:
            self._say(f"log: the head {expected} noted earlier is gone: the log was rewritten or cut")
        return made, frontier

    def _follow(self, entry: Entry, where: str) -> None:
        """Checks one entry against the market so far, then lets it change the tables."""
        try:
            fields = entry.fields()
            rule = getattr(self, "_" + entry.kind.replace(".", "_").replace("-", "_"), None)
            if rule is not None:
                for problem in rule(entry, fields) or ():
                    self._say(f"{where}: {problem}")
        except _REASONS as error:
            self._say(f"{where} cannot be checked: {type(error).__name__}: {error}")
        try:
            made = changes(entry)
            self.tables.apply(made)
            self._index(made)
        except _REASONS as error:
            self._say(f"{where} cannot be applied: {type(error).__name__}: {error}")

    def _index(self, made: list[Change]) -> None:
        for verb, table, key, values in made:
            if table == "postings":
                self.balances[values["account"]] += values["amount_micro"]
            elif table in ("bids", "awards") and verb in ("insert", "put"):
                self.in_round[table][key[0]][key[1]] = None
            elif table == "rounds" and verb == "insert":
                self.rounds_of[values["task_id"]] += 1

    def _head(self, connection: Connection, made: list[tuple[int, int, str]], frontier: merkle.Frontier) -> None:
        rows = sql.run(connection, "SELECT log_id, size, root, at_ms, signature, frontier FROM head")
        if len(rows) != 1:
            self._say(f"head: {len(rows)} rows instead of one")
            return
        head, stored = Head(*rows[0][:5]), rows[0][5]
        if (head.size, head.root, stored) != (frontier.size, frontier.root().hex(), frontier.dump()):
            self._say(f"head: it stands at entry {head.size}, the log gives {frontier.size} and another root")
        if self.public_key and head.size and not head.is_signed_by(self.public_key):
            self._say("head: it is not signed by the key that the log announces")
        kept = {tuple(row) for row in connection.execute(select(tiles.c.level, tiles.c.place, tiles.c.hash))}
        for level, place, _ in sorted(kept ^ set(made)):
            self._say(f"tiles: node {place} of level {level} is not the log's")

    # ---- the tables -------------------------------------------------------------------------------------

    def _compare(self, connection: Connection, table: Any) -> None:
        """Every column of every stored row against what the log gives, and what the log gives and nobody stored."""
        expected = self.tables.tables[table.name]
        keys = [column.name for column in table.primary_key]
        seen = set()
        for row in connection.execute(select(table)).mappings():
            key = tuple(row[name] for name in keys)
            seen.add(key)
            given = expected.get(key)
            shown = f"{table.name} {' '.join(map(str, key))}"
            if given is None:
                self._say(f"{shown}: stored, but not in the log")
                continue
            for column in table.c:
                stored, wanted = row[column.name], given.get(column.name)
                if stored != wanted or type(stored) is not type(wanted):
                    self._say(f"{shown}: {column.name} is {stored!r}, the log says {wanted!r}")
        for key in expected:
            if key not in seen:
                self._say(f"{table.name} {' '.join(map(str, key))}: in the log, but not stored")

    def _names(self, connection: Connection) -> None:
        known = {row.party_id: row for row in connection.execute(select(names))}
        for key, row in self.tables.tables["parties"].items():
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
            for key, row in self.tables.tables["awards"].items()
            if row["key_sha256"] is not None and row["settled_seq"] is None
        }
        for place in sorted(stored ^ set(due)):
            self._say(f"sealed keys {' '.join(place)}: {'kept for nothing' if place in stored else 'missing'}")
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
        noted = (self.imported.get("entries", 0), self.imported.get("head", "0" * 64))
        if (count, previous) != noted:
            self._say(f"old log: it has {count} entries, {noted[0]} were imported, or their head differs")

    # ---- the rules, one method per kind of entry --------------------------------------------------------

    def _row(self, table: str, *key: str) -> SimpleNamespace:
        row = self.tables.tables[table].get(key)
        if row is None:
            raise BrokerError(f"no such row in {table}: {' '.join(key)}", "the entry is forged")
        return SimpleNamespace(**row)

    def _is_operator(self, actor: str) -> bool:
        return actor == "system" or self._row("parties", actor).role == "operator"

    def _round(self, entry: Entry) -> tuple[SimpleNamespace, SimpleNamespace]:
        round_ = self._row("rounds", entry.subject)
        return round_, self._row("tasks", round_.task_id)

    def _log_key(self, entry: Entry, fields: Row) -> None:
        self.public_key = fields["public_key"]

    def _log_imported(self, entry: Entry, fields: Row) -> None:
        self.imported = fields
        self.notes.append(fields["note"])

    def _imported_row(self, entry: Entry, fields: Row) -> None:
        if entry.subject == "awards" and fields["charge"] != "void":
            task = self._row("tasks", self._row("rounds", fields["round_id"]).task_id)
            event = release(fields["noise_multiplier"], task.sampling_rate, task.steps)
            self.sold[fields["seller_id"]][fields["round_id"]] = event
        if entry.subject == "parties":
            self.measures[fields["id"]] = fields["measure"]

    def _party_registered(self, entry: Entry, fields: Row) -> Iterator[str]:
        if fields["role"] not in parties.ROLES:
            yield f"unknown role {fields['role']}"
        if fields["role"] in ("operator", "arbiter") and not self._is_operator(entry.actor):
            yield f"an {fields['role']} was made by {entry.actor}"

    def _token_minted(self, entry: Entry, fields: Row) -> Iterator[str]:
        role = self._row("parties", entry.subject).role
        known = entry.actor == entry.subject or (entry.actor == "anonymous" and role in ("buyer", "seller"))
        if not known and not self._is_operator(entry.actor):
            yield f"a token of {entry.subject} was made by {entry.actor}"

    def _party_dataset(self, entry: Entry, fields: Row) -> Iterator[str]:
        seller, digest = self._row("parties", entry.subject), fields["dataset_sha256"]
        message = signatures.dataset_message(entry.subject, digest)
        if entry.actor != entry.subject or not signatures.is_signed(
            seller.public_key or "", message, fields["signature"]
        ):
            yield "the attestation is not signed by the seller's key"
        if seller.dataset_sha256 is not None or digest in self.datasets:
            yield "one account per data set, and one data set per account"
        self.datasets.add(digest)

    def _operators_only(self, entry: Entry, fields: Row) -> Iterator[str]:
        if not self._is_operator(entry.actor):
            yield f"{entry.actor} is not an operator"

    _party_suspended = _party_restored = _party_erased = _operators_only

    def _money_deposit(self, entry: Entry, fields: Row) -> Iterator[str]:
        self._row("parties", entry.subject)
        yield from self._operators_only(entry, fields)
        if fields["amount_micro"] <= 0:
            yield "not an amount"

    def _money_withdraw(self, entry: Entry, fields: Row) -> Iterator[str]:
        yield from self._money_deposit(entry, fields)
        yield from self._holds(ledger.party(entry.subject), fields["amount_micro"])

    def _holds(self, account: str, amount_micro: int) -> Iterator[str]:
        if self.balances[account] < amount_micro:
            yield f"{account} holds {self.balances[account]} µ, not {amount_micro} µ"

    def _task_published(self, entry: Entry, fields: Row) -> Iterator[str]:
        if entry.actor != fields["buyer_id"] or self._row("parties", entry.actor).role != "buyer":
            yield f"published by {entry.actor} for {fields['buyer_id']}"

    def _round_opened(self, entry: Entry, fields: Row) -> Iterator[str]:
        task = self._row("tasks", fields["task_id"])
        if not entry.actor == fields["buyer_id"] == task.buyer_id:
            yield f"opened by {entry.actor}, whose task it is not"
        if fields["number"] != self.rounds_of[fields["task_id"]] or fields["number"] >= task.rounds:
            yield f"number {fields['number']} is out of turn"
        due = (task.budget_micro, entry.at_ms + 1000 * task.bid_seconds)
        if (fields["budget_micro"], fields["bid_deadline_ms"]) != due:
            yield "budget or deadline are not those of the task"
        yield from self._holds(ledger.party(task.buyer_id), fields["budget_micro"])

    def _bid_placed(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        seller = self._row("parties", entry.actor)
        arrived = _arrived(entry, fields)
        if seller.role != "seller" or seller.suspended is not None:
            yield f"{entry.actor} may not bid"
        if round_.state != "open" or not arrived < round_.bid_deadline_ms:
            yield "the round took no bids then"
        if fields["replaces"] != ((entry.subject, entry.actor) in self.tables.tables["bids"]):
            yield "whether it replaces a bid is not what the log says"
        if (task.sealing == "bidder") == ("valuation" in fields):
            yield f"the task's bids are sealed by the {task.sealing}"
        if task.trust == "aggregate" and seller.public_key is None:
            yield "a seller without a registered key bids for a secure sum"
        if task.attested and seller.dataset_sha256 is None:
            yield f"{entry.actor} attests no data set"
        if "valuation" in fields:
            yield from self._offer(entry, fields, fields["commitment"], round_, task)
        if seller.public_key is not None:
            message = signatures.bid_message(entry.subject, entry.actor, fields["commitment"])
            if not signatures.is_signed(seller.public_key, message, fields.get("signature") or ""):
                yield "it is not signed by the seller's key"
        elif task.sealing == "bidder":
            yield "it is not signed"

    def _offer(self, entry: Entry, fields: Row, committed: str, round_: Any, task: Any) -> Iterator[str]:
        numbers = {name: fields[name] for name in _OFFER}
        if signatures.commitment(entry.subject, entry.actor, numbers, fields["nonce"]) != committed:
            yield "the bid is not the one that was committed to"
        terms = lifecycle.terms_of(task, round_.number, round_.budget_micro)
        bidding.check_offer(Offer(**numbers), entry.actor, terms)

    def _bid_revealed(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        bid = self._row("bids", entry.subject, entry.actor)
        late = _arrived(entry, fields) >= (round_.reveal_deadline_ms or 0)
        if round_.state != "revealing" or late or bid.valuation is not None:
            yield "nothing could be revealed then"
        yield from self._offer(entry, fields, bid.commitment, round_, task)

    def _round_closed(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        early = entry.at_ms < round_.bid_deadline_ms
        if round_.state != "open" or (early and not (task.buyer_may_close and entry.actor == task.buyer_id)):
            yield f"bidding was closed by {entry.actor} before its deadline"
        waits = task.sealing == "bidder" and round_.bids > 0
        until = entry.at_ms + 1000 * task.reveal_seconds if waits else None
        if fields != {"state": "revealing" if waits else "closed", "reveal_deadline_ms": until}:
            yield "the time to reveal is not that of the task"

    def _award_made(self, entry: Entry, fields: Row) -> Iterator[str]:
        if self._round(entry)[0].state not in ("closed", "revealing"):
            yield "no auction was due"

    def _replayed(self, round_: Any, task: Any, version: str) -> lifecycle.Auction:
        """The auction again, with wallets as they stood and the rule in the version that was recorded."""
        sellers = self.in_round["bids"][round_.id]
        rows = sorted((self._row("bids", round_.id, seller) for seller in sellers), key=lambda row: row.seq)
        bids = StandingBids.of(
            tuple(getattr(row, name) for name in StandingBids.COLUMNS) for row in rows if row.valuation is not None
        )
        records = wallets.Known({seller: self._record(seller) for seller in bids.sellers})
        make = rules.as_recorded(self.broker.make_mechanism, task.mechanism, version)
        terms = lifecycle.terms_of(task, round_.number, round_.budget_micro)
        return lifecycle.auction(round_.id, terms, bids, records, lifecycle.mechanism_of(task, make))

    def _record(self, seller: str) -> wallets.WalletRecord:
        row = self._row("parties", seller)
        events = tuple(self.sold[seller].values())
        return wallets.WalletRecord(row.cap_epsilon, row.delta, self.measures.get(seller, "open"), events)

    def _round_cleared(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        if not lifecycle.may_clear(round_, entry.at_ms):
            yield "no auction was due"
        made = [self._row("awards", entry.subject, seller) for seller in self.in_round["awards"][entry.subject]]
        if {name: fields[name] for name in Deadlines.after(0, task).columns()} != Deadlines.after(
            entry.at_ms, task
        ).columns():
            yield "its deadlines are not those of the task"
        yield from self._same_auction(entry, fields, round_, task, made)
        family = lifecycle.terms_of(task, round_.number, round_.budget_micro).family
        for award in made:
            event = release(award.noise_multiplier, family.sampling_rate, family.steps)
            self.sold[award.seller_id][entry.subject] = event
            self.measures[award.seller_id] = self._row("parties", award.seller_id).measure

    def _same_auction(self, entry: Entry, fields: Row, round_: Any, task: Any, made: list[Any]) -> Iterator[str]:
        stored = {a.seller_id: (a.epsilon, a.noise_multiplier, a.payment_micro) for a in made}
        recorded = {name: fields[name] for name in ("trimmed", "sellers", "awarded_micro", "total_epsilon", "seed")}
        try:
            found = self._replayed(round_, task, fields["mechanism_version"])
        except _REASONS as error:
            self._cannot_replay(round_, f"{task.mechanism} fails here: {error}")
            return
        again = {name: (a.epsilon, a.noise_multiplier, a.payment_micro) for name, a in found.awards.items()}
        summary = {"trimmed": dict(found.trimmed), **found.summary()}
        if stored == again and all(summary[name] == value for name, value in recorded.items()):
            self.auctions += 1
        elif found.version != fields["mechanism_version"]:
            self._cannot_replay(round_, f"it was cleared by {fields['mechanism_version']}, this is {found.version}")
        else:
            yield "the auction gives another result than recorded"

    def _cannot_replay(self, round_: Any, reason: str) -> None:
        self.notes.append(f"round {round_.id} is taken as recorded: {reason}")

    def _round_aborted(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        if round_.state == "open":
            if entry.actor != task.buyer_id and not self._is_operator(entry.actor):
                yield f"aborted by {entry.actor}, whose round it is not"
        elif lifecycle.may_clear(round_, entry.at_ms):
            try:
                found = self._replayed(round_, task, round_.mechanism_version)
            except _REASONS:
                pass  # it fails here too: that is why it was aborted
            else:
                if found.version == round_.mechanism_version:
                    yield "aborted for a fault that the rule does not have"
                else:
                    self._cannot_replay(round_, f"aborted by {round_.mechanism_version}, this is {found.version}")
        else:
            yield f"aborted while it was {round_.state}"
        yield from self._ends(entry, fields, round_, task, 0)

    def _ends(self, entry: Entry, fields: Row, round_: Any, task: Any, paid_micro: int) -> Iterator[str]:
        due = (task.buyer_id, paid_micro, round_.budget_micro - paid_micro)
        if (fields["buyer_id"], fields["paid_micro"], fields["refunded_micro"]) != due:
            yield f"paid {fields['paid_micro']} µ, refunded {fields['refunded_micro']} µ; owed: {due[1]}, {due[2]}"

    def _delivery_claimed(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        award = self._row("awards", entry.subject, entry.actor)
        if (task.delivery == "sealed") != ("key_sha256" in fields):
            yield f"updates of this task travel {task.delivery}"
        if (
            round_.state != "cleared"
            or _arrived(entry, fields) >= round_.delivery_deadline_ms
            or award.claim_sha256 is not None
        ):
            yield "nothing could be claimed then"

    def _delivery_judged(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        award = self._row("awards", entry.subject, fields["seller_id"])
        if entry.actor != task.buyer_id:
            yield f"judged by {entry.actor}, who is not the buyer"
        if (
            round_.state != "cleared"
            or _arrived(entry, fields) >= round_.review_deadline_ms
            or award.claim_sha256 is None
            or award.usable is not None
            or fields["usable"] == (fields["fault"] is not None)
        ):
            yield "the buyer had no word then"

    def _dispute_opened(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, _ = self._round(entry)
        award = self._row("awards", entry.subject, fields["seller_id"])
        late = _arrived(entry, fields) >= round_.dispute_deadline_ms
        if entry.actor != fields["seller_id"] or late or award.usable is not False or award.dispute is not None:
            yield "nothing could be disputed then"

    def _dispute_ruled(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        award = self._row("awards", entry.subject, fields["seller_id"])
        lifecycle.may_rule(entry.actor, "operator" if self._is_operator(entry.actor) else "", task)
        late = _arrived(entry, fields) >= round_.ruling_deadline_ms
        if award.dispute is None or award.ruling is not None or late:
            yield "there was nothing to rule on then"

    def _delivery_shown(self, entry: Entry, fields: Row) -> Iterator[str]:
        _, task = self._round(entry)
        award = self._row("awards", entry.subject, fields["seller_id"])
        lifecycle.may_rule(entry.actor, "operator" if self._is_operator(entry.actor) else "", task)
        if award.dispute is None or award.ruling is not None or award.key_sha256 is None:
            yield "there was no key to show then"

    def _round_progress(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        if entry.actor != task.buyer_id or round_.state not in ("cleared", "delivered", "settled"):
            yield "the buyer had nothing to report then"

    def _round_delivered(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, _ = self._round(entry)
        if round_.state != "cleared" or any(self._waits(round_, row, entry.at_ms) for row in self._awards(round_)):
            yield "somebody could still speak"

    def _awards(self, round_: Any) -> list[Any]:
        return [self._row("awards", round_.id, seller) for seller in self.in_round["awards"][round_.id]]

    def _waits(self, round_: Any, award: Any, at_ms: int) -> bool:
        return deliveries.standing(award, Deadlines.of(round_), at_ms) is Standing.WAITING

    def _award_settled(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, _ = self._round(entry)
        award = self._row("awards", entry.subject, fields["seller_id"])
        if round_.state not in ("cleared", "delivered") or award.charge != "reserved":
            yield "it was not to be settled then"
        if award.key_sha256 is not None and fields["paid_micro"] and fields.get("key") is None:
            self.notes.append(f"round {entry.subject}: the key of the update of {fields['seller_id']} is lost")
        if fields.get("key") is not None:
            matches = sealed.key_digest(fields["key"]) == award.key_sha256
            if not matches or not fields["paid_micro"]:
                yield "the key is not the one that was claimed, or of an update that was not paid"
        if fields["charge"] == "void":
            self.sold[fields["seller_id"]].pop(entry.subject, None)

    def _round_settled(self, entry: Entry, fields: Row) -> Iterator[str]:
        round_, task = self._round(entry)
        rows, until = self._awards(round_), Deadlines.of(round_)
        if round_.state not in ("cleared", "delivered") or any(
            self._waits(round_, row, entry.at_ms) for row in rows
        ):
            yield "it was settled while somebody could still speak"
        terms = lifecycle.terms_of(task, round_.number, round_.budget_micro)
        owed = deliveries.settlement(terms, rows, until, entry.at_ms)
        for row in rows:
            charge = "charged" if row.seller_id in owed.sold else "void"
            due = owed.paid_micro.get(row.seller_id, 0)
            if (row.charge, row.paid_micro) != (charge, due):
                yield f"{row.seller_id} is {row.charge} and paid {row.paid_micro} µ; owed: {charge}, {due} µ"
        yield from self._ends(entry, fields, round_, task, owed.spent_micro)
