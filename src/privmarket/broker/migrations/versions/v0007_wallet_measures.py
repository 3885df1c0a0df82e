"""What a wallet watches follows from its cap and δ; no sale fixes it."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Drops the column."""
    op.drop_column("parties", "measure")
