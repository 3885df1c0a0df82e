"""Sealed deliveries, attested data sets, the buyer's reports on its model."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Adds columns; what the log holds already fills them."""
    op.add_column("parties", sa.Column("dataset_sha256", sa.String(64)))
    op.create_index("parties_by_dataset", "parties", ["dataset_sha256"], unique=True)
    op.add_column("tasks", sa.Column("delivery", sa.String(10)))
    op.add_column("tasks", sa.Column("attested", sa.Boolean()))
    op.execute("UPDATE tasks SET delivery = 'open', attested = FALSE")
    op.add_column("rounds", sa.Column("model_accuracy", sa.Float()))
    op.add_column("awards", sa.Column("key_sha256", sa.String(64)))
    op.add_column("awards", sa.Column("key", sa.String(64)))
    op.add_column("awards", sa.Column("settled_seq", sa.BigInteger()))
    op.create_table(
        "sealed_keys",
        sa.Column("round_id", sa.String(40), nullable=False),
        sa.Column("seller_id", sa.String(40), nullable=False),
        sa.Column("wrapped", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("round_id", "seller_id"),
    )
    connection = op.get_bind()
    settled = connection.execute(sa.text("SELECT seq, subject, details FROM log WHERE kind = 'award.settled'"))
    places = [
        {"seq": seq, "round": subject, "seller": json.loads(details)["seller_id"]}
        for seq, subject, details in settled.all()
    ]
    change = sa.text("UPDATE awards SET settled_seq = :seq WHERE round_id = :round AND seller_id = :seller")
    if places:
        connection.execute(change, places)
