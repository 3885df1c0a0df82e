"""From the log to the tables: `changes(entry)` is the only function that says what an entry changes.

It depends on the entry alone, so the same function fills the tables in a write's transaction and rebuilds them from
the log in a check. A table that differs from what its log gives was changed by somebody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table

from privmarket.broker import _sql as sql
from privmarket.broker._errors import BrokerError
from privmarket.broker._log import Entry
from privmarket.broker._schema import PROJECTIONS

Row = dict[str, Any]
Fields = Mapping[str, Any]  # of an entry
Key = tuple[Any, ...]  # of a row; also its values in the order of a statement
WORLD = "world"
TABLES: dict[str, Table] = {table.name: table for table in PROJECTIONS}
COLUMNS: dict[str, tuple[str, ...]] = {name: tuple(c.name for c in table.c) for name, table in TABLES.items()}
KEYS: dict[str, tuple[str, ...]] = {
    name: tuple(c.name for c in table.primary_key) for name, table in TABLES.items()
}
_DEFAULTS: dict[str, Row] = {
    name: {c.name: getattr(c.default, "arg", None) for c in table.c} for name, table in TABLES.items()
}


class Change(NamedTuple):
    """One row of one table: "insert" a whole row, "put" one where its key held another, "set" or "add" values."""

    verb: str
    table: str
    key: Key
    values: Row


def party(party_id: str) -> str:
    """The account of a buyer or seller."""
    return f"party:{party_id}"


def escrow(round_id: str) -> str:
    """The account that holds a round's budget while it runs."""
    return f"escrow:{round_id}"


def changes(entry: Entry, fields: Fields | None = None) -> list[Change]:
    """What an entry does to the tables; a kind that is not known here is an error.

    `fields`: the entry's details where the caller has them at hand; else they are read from the entry.
    """
    step = _STEPS.get(entry.kind)
    if step is None:
        raise BrokerError(
            f"log entry {entry.seq}: unknown kind {entry.kind!r}",
            "open the database with the version of privmarket that wrote it, or a newer one",
        )
    return step(entry, entry.fields() if fields is None else fields)


def _insert(table: str, **row: Any) -> Change:
    whole = {**_DEFAULTS[table], **row}
    return Change("insert", table, tuple(whole[name] for name in KEYS[table]), whole)


def _transfer(entry: Entry, source: str, target: str, amount_micro: int) -> list[Change]:
    if amount_micro == 0:
        return []
    return [
        _insert("postings", seq=entry.seq, account=source, amount_micro=-amount_micro),
        _insert("postings", seq=entry.seq, account=target, amount_micro=amount_micro),
    ]


def _nothing(entry: Entry, fields: Fields) -> list[Change]:
    return []


def _registered(entry: Entry, fields: Fields) -> list[Change]:
    return [_insert("parties", id=entry.subject, created_ms=entry.at_ms, **fields)]


def _party(*columns: str) -> Callable[[Entry, Fields], list[Change]]:
    return lambda entry, fields: [Change("set", "parties", (entry.subject,), {c: fields[c] for c in columns})]


def _minted(entry: Entry, fields: Fields) -> list[Change]:
    return [_insert("tokens", party_id=entry.subject, created_ms=entry.at_ms, **fields)]


def _revoked(entry: Entry, fields: Fields) -> list[Change]:
    return [Change("set", "tokens", (fields["id"],), {"revoked_ms": entry.at_ms})]


def _erased(entry: Entry, fields: Fields) -> list[Change]:
    return [Change("set", "parties", (entry.subject,), {"erased_ms": entry.at_ms})]


def _deposited(entry: Entry, fields: Fields) -> list[Change]:
    return _transfer(entry, WORLD, party(entry.subject), fields["amount_micro"])


def _requested(entry: Entry, fields: Fields) -> list[Change]:
    row = {"amount_micro": fields["amount_micro"], "nonce": fields.get("nonce")}
    return [_insert("payouts", seq=entry.seq, party_id=entry.subject, **row)]


def _withdrawn(entry: Entry, fields: Fields) -> list[Change]:
    moved = _transfer(entry, party(entry.subject), WORLD, fields["amount_micro"])
    if fields.get("request") is None:
        return moved
    return [Change("set", "payouts", (fields["request"],), {"paid_seq": entry.seq}), *moved]


def _published(entry: Entry, fields: Fields) -> list[Change]:
    row = {name: value for name, value in fields.items() if name not in ("said", "signature")}
    nonce = (fields.get("said") or {}).get("nonce")
    return [_insert("tasks", id=entry.subject, created_ms=entry.at_ms, nonce=nonce, **row)]


def _opened(entry: Entry, fields: Fields) -> list[Change]:
    row = {name: value for name, value in fields.items() if name not in ("buyer_id", "signature")}
    return [
        _insert("rounds", id=entry.subject, state="open", opened_ms=entry.at_ms, **row),
        *_transfer(entry, party(fields["buyer_id"]), escrow(entry.subject), fields["budget_micro"]),
    ]


_OFFER = ("nonce", "valuation", "epsilon", "data_size", "accuracy")


def _bid(entry: Entry, fields: Fields) -> list[Change]:
    row = {name: fields.get(name) for name in ("commitment", "signature", *_OFFER)}
    place = {"round_id": entry.subject, "seller_id": entry.actor, "trimmed_epsilon": None}
    put = Change(
        "put", "bids", (entry.subject, entry.actor), {**place, "seq": entry.seq, **row, "created_ms": entry.at_ms}
    )
    return [put] if fields["replaces"] else [put, Change("add", "rounds", (entry.subject,), {"bids": 1})]


def _revealed(entry: Entry, fields: Fields) -> list[Change]:
    return [
        Change("set", "bids", (entry.subject, entry.actor), {name: fields[name] for name in _OFFER}),
        Change("add", "rounds", (entry.subject,), {"revealed": 1}),
    ]


def _closed(entry: Entry, fields: Fields) -> list[Change]:
    row = {name: fields[name] for name in ("state", "reveal_deadline_ms")}
    return [Change("set", "rounds", (entry.subject,), {"closed_ms": entry.at_ms, **row})]


def _awarded(entry: Entry, fields: Fields) -> list[Change]:
    row = {name: fields[name] for name in ("seller_id", "epsilon", "noise_multiplier", "payment_micro")}
    return [_insert("awards", round_id=entry.subject, seq=entry.seq, charge="reserved", **row)]


def _cleared(entry: Entry, fields: Fields) -> list[Change]:
    row = {name: value for name, value in fields.items() if name != "trimmed"}
    cut = [
        Change("set", "bids", (entry.subject, seller), {"trimmed_epsilon": kept})
        for seller, kept in fields["trimmed"].items()
    ]
    return [Change("set", "rounds", (entry.subject,), {"state": "cleared", **row}), *cut]


def _claimed(entry: Entry, fields: Fields) -> list[Change]:
    claim = {"claim_sha256": fields["update_sha256"], "claimed_ms": entry.at_ms}
    claim["key_sha256"] = fields.get("key_sha256")
    return [Change("set", "awards", (entry.subject, entry.actor), claim)]


def _award(*columns: str) -> Callable[[Entry, Fields], list[Change]]:
    return lambda entry, fields: [
        Change("set", "awards", (entry.subject, fields["seller_id"]), {name: fields[name] for name in columns})
    ]


def _round(state: str) -> Callable[[Entry, Fields], list[Change]]:
    return lambda entry, fields: [Change("set", "rounds", (entry.subject,), {"state": state})]


def _progress(entry: Entry, fields: Fields) -> list[Change]:
    return [Change("set", "rounds", (entry.subject,), {"model_accuracy": fields["model_accuracy"]})]


def _award_settled(entry: Entry, fields: Fields) -> list[Change]:
    paid = fields["paid_micro"]
    row = {"charge": fields["charge"], "paid_micro": paid, "key": fields.get("key"), "settled_seq": entry.seq}
    return [
        Change("set", "awards", (entry.subject, fields["seller_id"]), row),
        *_transfer(entry, escrow(entry.subject), party(fields["seller_id"]), paid),
    ]


def _ended(state: str) -> Callable[[Entry, Fields], list[Change]]:
    def step(entry: Entry, fields: Fields) -> list[Change]:
        row = {
            "state": state,
            "paid_micro": fields["paid_micro"],
            "fault": fields["fault"],
            "ended_ms": entry.at_ms,
        }
        back = _transfer(entry, escrow(entry.subject), party(fields["buyer_id"]), fields["refunded_micro"])
        return [Change("set", "rounds", (entry.subject,), row), *back]

    return step


_STEPS: dict[str, Callable[[Entry, Fields], list[Change]]] = {
    "log.key": _nothing,
    "alert": _nothing,
    "party.registered": _registered,
    "party.key": _party("public_key", "signs"),
    "party.dataset": _party("dataset_sha256"),
    "party.suspended": _party("suspended"),
    "party.restored": _party("suspended"),
    "party.erased": _erased,
    "token.minted": _minted,
    "token.revoked": _revoked,
    "money.deposit": _deposited,
    "money.requested": _requested,
    "money.withdraw": _withdrawn,
    "money.proposed": _nothing,
    "money.declined": _nothing,
    "session.ended": _nothing,
    "webhook.set": _nothing,
    "task.published": _published,
    "round.opened": _opened,
    "bid.placed": _bid,
    "bid.revealed": _revealed,
    "round.closed": _closed,
    "award.made": _awarded,
    "round.cleared": _cleared,
    "delivery.claimed": _claimed,
    "delivery.shown": _nothing,
    "delivery.judged": _award("usable", "fault"),
    "dispute.opened": _award("dispute"),
    "dispute.ruled": _award("ruling"),
    "round.delivered": _round("delivered"),
    "award.settled": _award_settled,
    "round.progress": _progress,
    "round.settled": _ended("settled"),
    "round.aborted": _ended("aborted"),
}
KINDS = tuple(_STEPS)


# ---- into a database ------------------------------------------------------------------------------------------


def store(connection: Connection, made: Sequence[Change]) -> None:
    """Writes changes, in their order within each table.

    Adjacent changes of one form share a statement, and what is added to the same value is summed first.
    """
    added: Counter[tuple[str, Key, str]] = Counter()
    forms: dict[str, list[tuple[str, list[Key]]]] = {}  # table → (statement, rows), one after the other
    for change in made:
        if change.verb == "add":
            for column, amount in change.values.items():
                added[change.table, change.key, column] += amount
            continue
        text = statement(change.verb, change.table, tuple(change.values))
        of_table = forms.setdefault(change.table, [])
        if not of_table or of_table[-1][0] != text:
            of_table.append((text, []))
        values = tuple(change.values.values())
        of_table[-1][1].append(values if change.verb in ("insert", "put") else (*values, *change.key))
    for text, rows in chain.from_iterable(forms.values()):
        sql.run_many(connection, text, rows)
    for (table, key, column), amount in added.items():
        where = " AND ".join(f"{name} = ?" for name in KEYS[table])
        sql.run(connection, f"UPDATE {table} SET {column} = {column} + ? WHERE {where}", amount, *key)


@lru_cache(maxsize=256)
def statement(verb: str, table: str, columns: tuple[str, ...]) -> str:
    """The SQL of one form of change; names come from the schema, never from a caller."""
    unknown = set(columns) - set(COLUMNS[table])
    if unknown:
        raise BrokerError(
            f"{table} has no column {min(unknown)!r}",
            "run `privmarket broker verify`, and restore a backup if it reports this entry",
        )
    if verb == "set":
        where = " AND ".join(f"{name} = ?" for name in KEYS[table])
        return f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in columns)} WHERE {where}"
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    if verb == "insert":
        return insert
    rest = [name for name in columns if name not in KEYS[table]]
    moved = ", ".join(f"{name} = excluded.{name}" for name in rest)
    return f"{insert} ON CONFLICT ({', '.join(KEYS[table])}) DO UPDATE SET {moved}"
