"""Answers are found by their key alone, people and tasks by age without sorting them all."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, String, Text

revision = "0002"
down_revision = "0001"
_COLUMNS = "actor, key_hash, request_hash, response, created_ms"


def upgrade() -> None:
    """The key comes first in the primary key of the answers; their rows stay."""
    _rebuild("key_hash", "actor")
    op.create_index("parties_by_age", "parties", ["created_ms", "id"])
    op.create_index("tasks_by_age", "tasks", ["created_ms", "id"])


def downgrade() -> None:
    """Back to the first form."""
    op.drop_index("tasks_by_age", "tasks")
    op.drop_index("parties_by_age", "parties")
    _rebuild("actor", "key_hash")


def _rebuild(*primary: str) -> None:
    """SQLite cannot change a primary key in place, so the rows go out and in again, on PostgreSQL too."""
    op.execute("CREATE TABLE idempotency_kept AS SELECT * FROM idempotency")
    op.drop_table("idempotency")
    lengths = {"actor": 40, "key_hash": 64}
    op.create_table(
        "idempotency",
        *(Column(name, String(lengths[name]), primary_key=True) for name in primary),
        Column("request_hash", String(64), nullable=False),
        Column("response", Text, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
    )
    op.execute(f"INSERT INTO idempotency ({_COLUMNS}) SELECT {_COLUMNS} FROM idempotency_kept")
    op.drop_table("idempotency_kept")
