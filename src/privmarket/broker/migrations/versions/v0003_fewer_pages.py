"""Bids touch fewer pages and are counted as they come.

One index over bids instead of two, and on SQLite no second tree for the log and the answers.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Index, Integer, String, Text

revision = "0003"
down_revision = "0002"
_LOG = "seq, at_ms, actor, kind, subject, details, previous, hash"
_ANSWERS = "key_hash, actor, request_hash, response, created_ms"


def upgrade() -> None:
    """Rows stay as they are."""
    op.drop_index("bids_of_seller", "bids")
    op.drop_index("bids_of_round", "bids")
    op.create_index("bids_of_round", "bids", ["round_id", "seller_id", "current"])
    count = "SELECT count(*) FROM bids WHERE bids.round_id = rounds.id AND bids.current = TRUE"
    op.execute(f"UPDATE rounds SET bids = ({count})")
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_log(Integer())
        _rebuild_answers(with_rowid=False)


def downgrade() -> None:
    """Back to two indexes."""
    op.drop_index("bids_of_round", "bids")
    op.create_index("bids_of_round", "bids", ["round_id", "current", "seller_id"])
    op.create_index("bids_of_seller", "bids", ["seller_id", "round_id"])
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_log(BigInteger())
        _rebuild_answers(with_rowid=True)


def _rebuild_log(number: Integer | BigInteger) -> None:
    """SQLite cannot change a column's type in place; an INTEGER key is the row's own number there."""
    op.drop_index("audit_of_kind", "audit")
    op.rename_table("audit", "audit_kept")
    op.create_table(
        "audit",
        Column("seq", number, primary_key=True, autoincrement=False),
        Column("at_ms", BigInteger, nullable=False),
        Column("actor", String(40), nullable=False),
        Column("kind", String(40), nullable=False),
        Column("subject", String(40), nullable=False),
        Column("details", Text, nullable=False),
        Column("previous", String(64), nullable=False),
        Column("hash", String(64), nullable=False),
        Index("audit_of_kind", "kind", "seq"),
    )
    op.execute(f"INSERT INTO audit ({_LOG}) SELECT {_LOG} FROM audit_kept ORDER BY seq")
    op.drop_table("audit_kept")


def _rebuild_answers(*, with_rowid: bool) -> None:
    op.rename_table("idempotency", "idempotency_kept")
    op.create_table(
        "idempotency",
        Column("key_hash", String(64), primary_key=True),
        Column("actor", String(40), primary_key=True),
        Column("request_hash", String(64), nullable=False),
        Column("response", Text, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        sqlite_with_rowid=with_rowid,
    )
    op.execute(f"INSERT INTO idempotency ({_ANSWERS}) SELECT {_ANSWERS} FROM idempotency_kept")
    op.drop_table("idempotency_kept")
