"""The tables, and the few lookups that every step of a round begins with.

Money is in integer micro-units, time in milliseconds since 1970 (UTC). The `log` has everything that happened, in
order. `PROJECTIONS` are tables that `_projection` derives from it and that can be rebuilt; their columns are the
fields of the rows in `_shapes`. Three tables do not follow from the log: `names`, so that a name can be erased;
`sealed_keys`, so that keys of unpaid updates can be destroyed; and `cosignatures` of witnesses. `head` and `tiles`
are the Merkle tree over the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, Protocol, get_args, get_type_hints

from pydantic_core import PydanticUndefined
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from privmarket.broker import _sql as sql
from privmarket.broker._errors import ConflictError, NotFoundError
from privmarket.broker._shapes import (
    AwardRow,
    BidRow,
    PartyRow,
    PayoutRow,
    RoundRow,
    Row,
    Small,
    TaskRow,
    TokenRow,
    Width,
)

metadata = MetaData()
# SQLite numbers rows only in a column of type INTEGER.
_RowNumber = BigInteger().with_variant(Integer, "sqlite")


def _columns(row: type[Row], key: str = "", **options: dict[str, bool]) -> Iterable[Column[Any]]:
    """A column for each field of a row, with the field's type and default; optional fields may be null.

    Args:
        key: the column that is the primary key, if a single column is.
        options: column → further arguments for SQLAlchemy, such as an index.
    """
    hints = get_type_hints(row, include_extras=True)
    for name, info in row.model_fields.items():
        hint = hints[name]
        parts = [one for one in get_args(hint) if one is not NoneType]
        may_be_empty = len(parts) != len(get_args(hint))
        kind, marks = _bare(parts[0] if may_be_empty else hint)
        more: dict[str, Any] = dict(options.get(name, {}))
        # Only defaults that the row declares itself: fields of a form were filled in when the form was read.
        if name in row.__annotations__ and info.default not in (PydanticUndefined, None):
            more["default"] = info.default
        if name == key:
            is_number = issubclass(kind, int)
            more |= {"primary_key": True, "autoincrement": False} if is_number else {"primary_key": True}
            yield Column(name, _RowNumber if is_number else _column_type(kind, marks), **more)
        else:
            yield Column(name, _column_type(kind, marks), nullable=may_be_empty, **more)


def _bare(hint: Any) -> tuple[type, tuple[object, ...]]:
    """A field's plain type, and the annotations beside it, such as `Width`."""
    marks: tuple[object, ...] = ()
    while hasattr(hint, "__metadata__"):
        marks += hint.__metadata__
        hint = hint.__origin__
    if not isinstance(hint, type):  # a Literal: its values have one type
        hint = type(get_args(hint)[0])
    return hint, marks


def _column_type(kind: type, marks: Iterable[object]) -> Any:
    if kind is bool:
        return Boolean
    if kind is float:
        return Float
    if kind is int:
        return Integer if any(isinstance(one, Small) for one in marks) else BigInteger
    assert kind is str, kind
    widths = [one.characters for one in marks if isinstance(one, Width)]
    return String(widths[0]) if widths else Text


log = Table(
    "log",
    metadata,
    Column("seq", _RowNumber, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("details", Text, nullable=False),
    # The first entry of a command carries the caller's key and what it asked for, and the answer where that does
    # not follow from the entry: a repeat under the same key gets the first answer.
    Column("key_hash", String(64)),
    Column("request_hash", String(64)),
    Column("answer", Text),
    Column("hash", String(64), nullable=False),
    Index("log_of_kind", "kind", "seq"),
    # With these, the entries of one party or one round are found without reading the whole log.
    Index("log_of_actor", "actor", "seq"),
    Index("log_of_subject", "subject", "seq"),
    Index("log_of_key", "key_hash", "actor", unique=True),
)

# One row. Every write locks it first: writes are serial, so the log has no forks and checks see the newest state.
head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("log_id", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("root", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("frontier", Text, nullable=False),
    Column("signature", String(128), nullable=False),
    # The public key that signs; a broker with another key refuses to write.
    Column("signed_by", String(64), nullable=False),
    # Whether the last broker shut down cleanly. If not, a copy of the SQLite file also needs its write-ahead log.
    Column("clean", Boolean, nullable=False),
)

tiles = Table(
    "tiles",
    metadata,
    Column("level", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
    PrimaryKeyConstraint("level", "place"),
)

# Not in the log, so that a name can be erased on request. The log holds a salted hash of each name.
names = Table(
    "names",
    metadata,
    Column("party_id", String(40), primary_key=True),
    Column("name", String(80), nullable=False),
    Column("salt", String(32), nullable=False),
)

parties = Table(
    "parties",
    metadata,
    *_columns(PartyRow, "id"),
    Index("parties_by_age", "created_ms", "id"),
    Index("parties_by_dataset", "dataset_sha256", unique=True),
)

tokens = Table(
    "tokens",
    metadata,
    *_columns(TokenRow, "id", party_id={"index": True}, token_hash={"unique": True}),
)

tasks = Table(
    "tasks",
    metadata,
    *_columns(TaskRow, "id", buyer_id={"index": True}),
    Index("tasks_by_age", "created_ms", "id"),
    Index("tasks_by_nonce", "buyer_id", "nonce", unique=True),
)

rounds = Table(
    "rounds",
    metadata,
    *_columns(RoundRow, "id", state={"index": True}),
    UniqueConstraint("task_id", "number"),
)

bids = Table(
    "bids",
    metadata,
    *_columns(BidRow),
    PrimaryKeyConstraint("round_id", "seller_id"),
    sqlite_with_rowid=False,  # rows are stored under their key: a write changes one page instead of two
)

awards = Table(
    "awards",
    metadata,
    *_columns(AwardRow),
    PrimaryKeyConstraint("round_id", "seller_id"),
    Index("awards_of_seller", "seller_id", "seq"),
)

# What parties asked to be paid out, and the entry that paid it.
payouts = Table(
    "payouts",
    metadata,
    *_columns(PayoutRow, "seq"),
    Index("payouts_of_party", "party_id", "seq"),
    Index("payouts_by_nonce", "party_id", "nonce", unique=True),
)

# Double entry: the postings of one log entry sum to zero.
postings = Table(
    "postings",
    metadata,
    Column("seq", BigInteger, nullable=False),
    Column("account", String(60), nullable=False),
    Column("amount_micro", BigInteger, nullable=False),
    PrimaryKeyConstraint("seq", "account"),
    Index("postings_of_account", "account", "seq", "amount_micro"),
)

# Not in the log: keys of sealed updates until their round is settled, encrypted with a secret of the broker.
sealed_keys = Table(
    "sealed_keys",
    metadata,
    Column("round_id", String(40), nullable=False),
    Column("seller_id", String(40), nullable=False),
    Column("wrapped", String(200), nullable=False),
    PrimaryKeyConstraint("round_id", "seller_id"),
)

# Not in the log: witnesses' signatures over its heads. No step of the market depends on them.
cosignatures = Table(
    "cosignatures",
    metadata,
    Column("witness", String(80), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("root", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("public_key", String(64), nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("signature", String(128), nullable=False),
    PrimaryKeyConstraint("witness", "size"),
)

PROJECTIONS = (parties, tokens, tasks, rounds, bids, awards, postings, payouts)


# ---- lookups --------------------------------------------------------------------------------------------------

_PARTY = f"SELECT {', '.join(PartyRow.columns())} FROM parties WHERE id = ?"
_BID = f"SELECT {', '.join(BidRow.columns())} FROM bids WHERE round_id = ? AND seller_id = ?"
_PAYOUT = f"SELECT {', '.join(PayoutRow.columns())} FROM payouts WHERE seq = ?"
_TASK = f"SELECT {', '.join(TaskRow.columns())} FROM tasks WHERE id = ?"
_ROUND = f"SELECT {', '.join(RoundRow.columns())} FROM rounds WHERE id = ?"
_AWARDS = f"SELECT {', '.join(AwardRow.columns())} FROM awards WHERE round_id = ?"


def find_party(connection: Connection, party_id: str) -> PartyRow | None:
    """The party of that id; None where there is none."""
    rows = sql.run(connection, _PARTY, party_id)
    return PartyRow.of(rows[0]) if rows else None


def find_bid(connection: Connection, round_id: str, seller_id: str) -> BidRow | None:
    """A seller's bid in a round; None where there is none."""
    rows = sql.run(connection, _BID, round_id, seller_id)
    return BidRow.of(rows[0]) if rows else None


def find_payout(connection: Connection, seq: int) -> PayoutRow | None:
    """The request for a payout in log entry `seq`; None where there is none."""
    rows = sql.run(connection, _PAYOUT, seq)
    return PayoutRow.of(rows[0]) if rows else None


def find_task(connection: Connection, task_id: str) -> TaskRow | None:
    """The task of that id; None where there is none."""
    rows = sql.run(connection, _TASK, task_id)
    return TaskRow.of(rows[0]) if rows else None


def find_round(connection: Connection, round_id: str) -> RoundRow | None:
    """The round of that id; None where there is none."""
    rows = sql.run(connection, _ROUND, round_id)
    return RoundRow.of(rows[0]) if rows else None


def round_and_task(connection: Connection, round_id: str) -> tuple[RoundRow, TaskRow]:
    """A round and its task; raises `NotFoundError` where there is no such round."""
    found = find_round(connection, round_id)
    task = None if found is None else find_task(connection, found.task_id)
    if found is None or task is None:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists what is offered")
    return found, task


def awards_of(connection: Connection, round_id: str) -> list[AwardRow]:
    """All awards of a round, oldest first."""
    return [AwardRow.of(row) for row in sql.run(connection, f"{_AWARDS} ORDER BY seq", round_id)]


def award_of(connection: Connection, round_id: str, seller_id: str) -> AwardRow:
    """A seller's award in a round; raises `NotFoundError` where there is none."""
    rows = sql.run(connection, f"{_AWARDS} AND seller_id = ?", round_id, seller_id)
    if not rows:
        raise no_award(round_id, seller_id)
    return AwardRow.of(rows[0])


def no_award(round_id: str, seller_id: str) -> NotFoundError:
    """The error for a seller that sold nothing in a round."""
    return NotFoundError(f"{seller_id} sold nothing in round {round_id}", "only sellers with an award deliver")


class InState(Protocol):
    """Anything that has the id and the state of a round, such as a `RoundRow`."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def state(self) -> str:
        """Its state."""


def require_state(round_: InState, *states: str) -> None:
    """Raises `ConflictError` unless the round is in one of the states."""
    if round_.state not in states:
        raise ConflictError(f"round {round_.id} is {round_.state}", f"it must be {' or '.join(states)} for that")
