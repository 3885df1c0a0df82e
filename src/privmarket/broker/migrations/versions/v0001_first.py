"""The first form of all tables, written out: it must never change, whatever the schema becomes."""

from __future__ import annotations

from alembic import op
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

revision = "0001"
down_revision = None

tables = MetaData()
_RowNumber = BigInteger().with_variant(Integer, "sqlite")


Table(
    "parties",
    tables,
    Column("id", String(40), primary_key=True),
    Column("role", String(10), nullable=False),
    Column("name", String(80), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("cap_epsilon", Float),
    Column("delta", Float),
    Column("measure", String(40), nullable=False, default="open"),
)

Table(
    "tokens",
    tables,
    Column("id", String(40), primary_key=True),
    Column("party_id", ForeignKey("parties.id"), nullable=False, index=True),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("scope", String(10), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
)

Table(
    "tasks",
    tables,
    Column("id", String(40), primary_key=True),
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
)

Table(
    "rounds",
    tables,
    Column("id", String(40), primary_key=True),
    Column("task_id", ForeignKey("tasks.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(10), nullable=False, index=True),
    Column("seed", BigInteger, nullable=False),
    Column("budget_micro", BigInteger, nullable=False),
    Column("mechanism_version", String(40), nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("bid_deadline_ms", BigInteger, nullable=False),
    Column("delivery_deadline_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("bids", Integer, nullable=False, default=0),
    Column("sellers", Integer, nullable=False, default=0),
    Column("awarded_micro", BigInteger, nullable=False, default=0),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    Column("total_epsilon", Float, nullable=False, default=0.0),
    Column("fault", Text),
    UniqueConstraint("task_id", "number"),
)

Table(
    "bids",
    tables,
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
    Column("trimmed_epsilon", Float),
    Column("created_ms", BigInteger, nullable=False),
    Index("bids_of_round", "round_id", "current", "seller_id"),
    Index("bids_of_seller", "seller_id", "round_id"),
)

Table(
    "awards",
    tables,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("seller_id", ForeignKey("parties.id"), nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("noise_multiplier", Float, nullable=False),
    Column("payment_micro", BigInteger, nullable=False),
    Column("claim_sha256", String(64)),
    Column("usable", Boolean),
    Column("fault", Text),
    Column("charge", String(10), nullable=False),
    Column("paid_micro", BigInteger, nullable=False, default=0),
    UniqueConstraint("round_id", "seller_id"),
    Index("awards_of_seller", "seller_id"),
)

Table(
    "transfers",
    tables,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("kind", String(20), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

Table(
    "postings",
    tables,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("transfer_id", ForeignKey("transfers.id"), nullable=False, index=True),
    Column("account", String(60), nullable=False),
    Column("amount_micro", BigInteger, nullable=False),
    Index("postings_of_account", "account", "amount_micro"),
)

Table(
    "audit",
    tables,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("subject", String(40), nullable=False),
    Column("details", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Index("audit_of_kind", "kind", "seq"),
)

chain_head = Table(
    "chain_head",
    tables,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

Table(
    "idempotency",
    tables,
    Column("actor", String(40), primary_key=True),
    Column("key_hash", String(64), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("response", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)


def upgrade() -> None:
    """Makes every table and the head of the empty chain."""
    tables.create_all(op.get_bind())
    op.bulk_insert(chain_head, [{"id": 1, "seq": 0, "hash": "0" * 64, "at_ms": 0}])


def downgrade() -> None:
    """Drops everything."""
    tables.drop_all(op.get_bind())
