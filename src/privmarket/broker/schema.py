"""What is stored, one table per thing. Money is integer micro-units, time is milliseconds since 1970 (UTC)."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()
# SQLite numbers rows only in a column of type INTEGER.
_RowNumber = BigInteger().with_variant(Integer, "sqlite")


def _id() -> Column[str]:
    return Column("id", String(40), primary_key=True)


parties = Table(
    "parties",
    metadata,
    _id(),
    Column("role", String(10), nullable=False),
    Column("name", String(80), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # Sellers only: the lifetime cap, its δ, and the measure that the wallet watches since its first sale.
    Column("cap_epsilon", Float),
    Column("delta", Float),
    Column("measure", String(40), nullable=False, default="open"),
    Index("parties_by_age", "created_ms", "id"),
)

tokens = Table(
    "tokens",
    metadata,
    _id(),
    Column("party_id", ForeignKey("parties.id"), nullable=False, index=True),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("scope", String(10), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
)

tasks = Table(
    "tasks",
    metadata,
    _id(),
    Column("buyer_id", ForeignKey("parties.id"), nullable=False, index=True),
    Column("title", String(120), nullable=False),
    Column("mechanism", String(60), nullable=False),
    Column("settings", Text, nullable=False),
    Column("budget_micro", BigInteger, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("epsilon_max", Float, nullable=False),
    Column("sampling_rate", Float, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("delta", Float, nullable=False),
    Column("bid_seconds", Integer, nullable=False),
    Column("delivery_seconds", Integer, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index("tasks_by_age", "created_ms", "id"),
)

rounds = Table(
    "rounds",
    metadata,
    _id(),
    Column("task_id", ForeignKey("tasks.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(10), nullable=False, index=True),
    # Decides the order in which the mechanism sees the bids, so that ties favour nobody for long.
    Column("seed", BigInteger, nullable=False),
    Column("budget_micro", BigInteger, nullable=False),
    Column("mechanism_version", String(40), nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("bid_deadline_ms", BigInteger, nullable=False),
    Column("delivery_deadline_ms", BigInteger),
    Column("ended_ms", BigInteger),
    # Bids that count, also while they come in: a page that counted them anew would take longer with each.
    Column("bids", Integer, nullable=False, default=0),
    Column("sellers", Integer, nullable=False, default=0),
    Column("awarded_micro", BigInteger, nullable=False, default=0),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    Column("total_epsilon", Float, nullable=False, default=0.0),
    Column("fault", Text),
    UniqueConstraint("task_id", "number"),
)

bids = Table(
    "bids",
    metadata,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("seller_id", ForeignKey("parties.id"), nullable=False),
    Column("valuation", Float, nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("data_size", Float, nullable=False),
    Column("accuracy", Float),
    Column("nonce", String(32), nullable=False),
    Column("commitment", String(64), nullable=False),
    Column("current", Boolean, nullable=False),
    # The offer after the wallet had its say at clearing; NULL where it left the offer alone.
    Column("trimmed_epsilon", Float),
    Column("created_ms", BigInteger, nullable=False),
    # One index for a round's bids and a seller's in it: each further one is a page more to flush with every bid.
    Index("bids_of_round", "round_id", "seller_id", "current"),
)

awards = Table(
    "awards",
    metadata,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("seller_id", ForeignKey("parties.id"), nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("noise_multiplier", Float, nullable=False),
    Column("payment_micro", BigInteger, nullable=False),
    Column("claim_sha256", String(64)),
    Column("usable", Boolean),
    Column("fault", Text),
    # What the wallet holds: reserved at clearing, then charged (something was released) or void.
    Column("charge", String(10), nullable=False),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    UniqueConstraint("round_id", "seller_id"),
    Index("awards_of_seller", "seller_id"),
)

transfers = Table(
    "transfers",
    metadata,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("kind", String(20), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

postings = Table(
    "postings",
    metadata,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("transfer_id", ForeignKey("transfers.id"), nullable=False, index=True),
    Column("account", String(60), nullable=False),
    Column("amount_micro", BigInteger, nullable=False),
    Index("postings_of_account", "account", "amount_micro"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", _RowNumber, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("details", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Index("audit_of_kind", "kind", "seq"),
)

# One row. Every write locks it first: writes are serial, so the chain has no forks and checks see the truth.
chain_head = Table(
    "chain_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    # The key first: answers are looked up by it for many callers at once.
    Column("key_hash", String(64), primary_key=True),
    Column("actor", String(40), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("response", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,  # the key is the row's place: one page to flush instead of two
)
