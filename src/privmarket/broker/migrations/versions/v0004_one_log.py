"""One log from which every table follows: old rows are imported into it as they stand.

The older log did not hold what the tables held (claims, receipts, deadlines, tokens, answers), so it cannot give
them back. It is kept as `old_log`; each row becomes an entry of the new log, whose first entry says so.

The hashing of entries is written out here: a step that was released never changes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

revision = "0004"
down_revision = "0003"
_OLD = ("parties", "tokens", "tasks", "rounds", "bids", "awards", "transfers", "postings", "idempotency", "audit")
_INDEXES = {
    "parties_by_age": "parties", "ix_tokens_party_id": "tokens", "ix_tasks_buyer_id": "tasks",
    "tasks_by_age": "tasks", "ix_rounds_state": "rounds", "bids_of_round": "bids", "awards_of_seller": "awards",
    "ix_postings_transfer_id": "postings", "postings_of_account": "postings", "audit_of_kind": "audit",
}  # fmt: skip
_NOTE = (
    "{rounds} rounds were imported from a database of an older version as they stood: its log did not record "
    "claims, receipts, deadlines, tokens and answers, so those cannot be derived, and their auctions are not "
    "replayed"
)
tables = MetaData()
_RowNumber = BigInteger().with_variant(Integer, "sqlite")


def _id() -> Column[str]:
    return Column("id", String(40), primary_key=True)


_log = Table(
    "log",
    tables,
    Column("seq", _RowNumber, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("details", Text, nullable=False),
    Column("key_hash", String(64)),
    Column("request_hash", String(64)),
    Column("answer", Text),
    Column("hash", String(64), nullable=False),
    Index("log_of_kind", "kind", "seq"),
    Index("log_of_key", "key_hash", "actor", unique=True),
)
_head = Table(
    "head",
    tables,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("log_id", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("root", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("frontier", Text, nullable=False),
    Column("signature", String(128), nullable=False),
    Column("clean", Boolean, nullable=False),
)

_tiles = Table(
    "tiles",
    tables,
    Column("level", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
    PrimaryKeyConstraint("level", "place"),
)
_names = Table(
    "names",
    tables,
    Column("party_id", String(40), primary_key=True),
    Column("name", String(80), nullable=False),
    Column("salt", String(32), nullable=False),
)

Table(
    "parties",
    tables,
    _id(),
    Column("role", String(10), nullable=False),
    Column("name_hash", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("cap_epsilon", Float),
    Column("delta", Float),
    Column("measure", String(40), nullable=False, default="open"),
    Column("public_key", String(64)),
    Column("suspended", Text),
    Column("erased_ms", BigInteger),
    Index("parties_by_age", "created_ms", "id"),
)

Table(
    "tokens",
    tables,
    _id(),
    Column("party_id", String(40), nullable=False, index=True),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("scope", String(10), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
)

Table(
    "tasks",
    tables,
    _id(),
    Column("buyer_id", String(40), nullable=False, index=True),
    Column("title", String(120), nullable=False),
    Column("mechanism", String(60), nullable=False),
    Column("settings", Text, nullable=False),
    Column("budget_micro", BigInteger, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("epsilon_max", Float, nullable=False),
    Column("sampling_rate", Float, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("delta", Float, nullable=False),
    Column("sealing", String(10), nullable=False),
    Column("buyer_may_close", Boolean, nullable=False),
    Column("bid_seconds", Integer, nullable=False),
    Column("reveal_seconds", Integer, nullable=False),
    Column("delivery_seconds", Integer, nullable=False),
    Column("review_seconds", Integer, nullable=False),
    Column("dispute_seconds", Integer, nullable=False),
    Column("ruling_seconds", Integer, nullable=False),
    Column("arbiter_id", String(40)),
    Column("created_ms", BigInteger, nullable=False),
    Index("tasks_by_age", "created_ms", "id"),
)

Table(
    "rounds",
    tables,
    _id(),
    Column("task_id", String(40), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(10), nullable=False, index=True),
    Column("budget_micro", BigInteger, nullable=False),
    Column("mechanism_version", String(80), nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("bid_deadline_ms", BigInteger, nullable=False),
    Column("closed_ms", BigInteger),
    Column("reveal_deadline_ms", BigInteger),
    Column("delivery_deadline_ms", BigInteger),
    Column("review_deadline_ms", BigInteger),
    Column("dispute_deadline_ms", BigInteger),
    Column("ruling_deadline_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("bids", Integer, nullable=False, default=0),
    Column("revealed", Integer, nullable=False, default=0),
    Column("sellers", Integer, nullable=False, default=0),
    Column("awarded_micro", BigInteger, nullable=False, default=0),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    Column("total_epsilon", Float, nullable=False, default=0.0),
    Column("top_price", Float),
    Column("seed", BigInteger),
    Column("fault", Text),
    UniqueConstraint("task_id", "number"),
)

Table(
    "bids",
    tables,
    Column("round_id", String(40), nullable=False),
    Column("seller_id", String(40), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("commitment", String(64), nullable=False),
    Column("signature", String(128)),
    Column("nonce", String(64)),
    Column("valuation", Float),
    Column("epsilon", Float),
    Column("data_size", Float),
    Column("accuracy", Float),
    Column("trimmed_epsilon", Float),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("round_id", "seller_id"),
    sqlite_with_rowid=False,  # the key is the row's place: one page to flush instead of two
)

Table(
    "awards",
    tables,
    Column("round_id", String(40), nullable=False),
    Column("seller_id", String(40), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("noise_multiplier", Float, nullable=False),
    Column("payment_micro", BigInteger, nullable=False),
    Column("claim_sha256", String(64)),
    Column("claimed_ms", BigInteger),
    Column("usable", Boolean),
    Column("fault", Text),
    Column("dispute", Text),
    Column("ruling", Boolean),
    Column("charge", String(10), nullable=False),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    PrimaryKeyConstraint("round_id", "seller_id"),
    Index("awards_of_seller", "seller_id", "seq"),
)
Table(
    "postings",
    tables,
    Column("seq", BigInteger, nullable=False),
    Column("account", String(60), nullable=False),
    Column("amount_micro", BigInteger, nullable=False),
    PrimaryKeyConstraint("seq", "account"),
    Index("postings_of_account", "account", "seq", "amount_micro"),
)
Table(
    "old_log",
    tables,
    Column("seq", _RowNumber, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("details", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)


def upgrade() -> None:
    """Makes the new tables and imports every row of the old ones."""
    bind = op.get_bind()
    for index, table in _INDEXES.items():
        op.drop_index(index, table)
    sqlite = bind.dialect.name == "sqlite"
    for name in _OLD:
        if not sqlite:  # names of primary keys and constraints are shared by all tables there
            for constraint in _constraints(name):
                op.execute(f'ALTER TABLE {name} RENAME CONSTRAINT "{constraint}" TO "before_{constraint}"')
        op.rename_table(name, f"before_{name}")
    tables.create_all(bind)
    _import(bind)
    for name in ("postings", "transfers", "awards", "bids", "rounds", "tasks", "tokens", "parties", "idempotency"):
        op.drop_table(f"before_{name}")
    op.drop_table("before_audit")
    op.drop_table("chain_head")


def downgrade() -> None:
    """There is no way back: the older form cannot hold what the log holds."""
    raise NotImplementedError("restore a backup of the older database instead")


def _constraints(table: str) -> list[str]:
    found = op.get_bind().execute(
        text(
            "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(:name) AND contype IN ('p', 'u') "
            "ORDER BY conname"
        ),
        {"name": table},
    )
    return [str(row[0]) for row in found]


def _rows(bind: Any, table: str, order: str) -> list[dict[str, Any]]:
    return [dict(row) for row in bind.execute(text(f"SELECT * FROM before_{table} ORDER BY {order}")).mappings()]


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """-0.0 has two spellings and one meaning."""
    return value + 0.0 if isinstance(value, float) else value


def _yes(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _import(bind: Any) -> None:
    old = _rows(bind, "audit", "seq")
    for row in old:
        bind.execute(tables.tables["old_log"].insert(), row)
    rounds = _rows(bind, "rounds", "opened_ms, id")
    at_ms = max([row["at_ms"] for row in old], default=0)
    note = _NOTE.format(rounds=len(rounds))
    about = {
        "entries": len(old),
        "head": old[-1]["hash"] if old else "0" * 64,
        "note": note,
    }
    entries: list[tuple[str, str, str, Any, str | None, str | None, str | None]] = []
    if any(_rows(bind, name, "1") for name in ("parties", "idempotency")) or old:
        entries.append(("system", "log.imported", "log", about, None, None, None))
    for actor, kind, subject, details, *answer in _entries(bind, rounds):
        kept = answer or (None, None, None)
        entries.append((actor, kind, subject, details, kept[0], kept[1], kept[2]))
    _write(bind, entries, at_ms)


def _entries(bind: Any, rounds: list[dict[str, Any]]) -> Iterator[Any]:
    """Every row in its new form; parents before those that need them."""
    for row in _rows(bind, "parties", "created_ms, id"):
        salt, name = secrets.token_hex(16), row.pop("name")
        bind.execute(_names.insert(), {"party_id": row["id"], "name": name, "salt": salt})
        hashed = hashlib.sha256(_canonical([row["id"], name, salt]).encode()).hexdigest()
        yield "system", "imported.row", "parties", {**row, "name_hash": hashed}
    for row in _rows(bind, "tokens", "created_ms, id"):
        yield "system", "imported.row", "tokens", row
    # The windows that older tasks did not have are empty: silence pays at the delivery deadline, as it did.
    windows = {"reveal_seconds": 0, "review_seconds": 0, "dispute_seconds": 0, "ruling_seconds": 0}
    for row in _rows(bind, "tasks", "created_ms, id"):
        terms = {"sealing": "broker", "buyer_may_close": True, "arbiter_id": None, **windows}
        yield "system", "imported.row", "tasks", {**row, **terms}
    for row in rounds:
        end = row["delivery_deadline_ms"]
        windows = {f"{name}_deadline_ms": end for name in ("review", "dispute", "ruling")}
        row["seed"] = None if row["state"] == "open" else row["seed"]
        yield "system", "imported.row", "rounds", {**row, **windows}
    for row in _rows(bind, "bids", "id"):
        seq, current = row.pop("id"), bool(row.pop("current"))
        row = {name: _plain(value) for name, value in row.items()}
        kind = "imported.row" if current else "imported.replaced-bid"
        yield "system", kind, "bids", {**row, "seq": seq}
    for row in _rows(bind, "awards", "id"):
        seq, usable, claim = row.pop("id"), _yes(row["usable"]), row["claim_sha256"]
        # A receipt used to be possible without a claim.
        claim = "unrecorded" if claim is None and usable is not None else claim
        yield "system", "imported.row", "awards", {**row, "seq": seq, "usable": usable, "claim_sha256": claim}
    lines: dict[int, dict[str, int]] = {}
    for row in _rows(bind, "postings", "id"):
        moved = lines.setdefault(row["transfer_id"], {})
        moved[row["account"]] = moved.get(row["account"], 0) + row["amount_micro"]
    for row in _rows(bind, "transfers", "id"):
        yield "system", "imported.postings", row["subject"], {**row, "postings": lines.get(row["id"], {})}
    for row in _rows(bind, "idempotency", "created_ms, key_hash, actor"):
        noted = (row["key_hash"], row["request_hash"], row["response"])
        yield row["actor"], "imported.answer", row["actor"], {"created_ms": row["created_ms"]}, *noted


def _write(bind: Any, entries: list[Any], at_ms: int) -> None:
    """Logs the entries, fills the tables with what they say, and stores the head of the tree."""
    stack: list[tuple[int, bytes]] = []  # (height, hash) of complete subtrees, largest first
    for seq, (actor, kind, subject, details, key_hash, request_hash, answer) in enumerate(entries, 1):
        entry = [seq, at_ms, actor, kind, subject, _canonical(details), key_hash, request_hash, answer]
        leaf = hashlib.sha256(b"\x00" + _canonical(entry).encode()).digest()
        names = [column.name for column in _log.c]
        bind.execute(_log.insert(), dict(zip(names, [*entry, leaf.hex()], strict=True)))
        if kind == "imported.row":
            table = tables.tables[subject]
            blank = {c.name: getattr(c.default, "arg", None) for c in table.c}
            bind.execute(table.insert(), {**blank, **details})
        elif kind == "imported.postings":
            for account, amount in details["postings"].items():
                row = {"seq": seq, "account": account, "amount_micro": amount}
                bind.execute(tables.tables["postings"].insert(), row)
        height, node = 0, leaf
        while stack and stack[-1][0] == height:
            node, height = hashlib.sha256(b"\x01" + stack.pop()[1] + node).digest(), height + 1
            if height % 8 == 0:
                place = (seq >> height) - 1
                bind.execute(_tiles.insert(), {"level": height // 8, "place": place, "hash": node.hex()})
        stack.append((height, node))
    root = stack[-1][1] if stack else hashlib.sha256(b"").digest()
    for _, left in reversed(stack[:-1]):
        root = hashlib.sha256(b"\x01" + left + root).digest()
    frontier = "".join(node.hex() for _, node in stack)
    row = {"id": 1, "log_id": secrets.token_hex(16), "size": len(entries), "root": root.hex(), "at_ms": at_ms}
    bind.execute(_head.insert(), {**row, "frontier": frontier, "signature": "", "clean": True})
