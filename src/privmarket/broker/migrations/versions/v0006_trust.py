"""Whom sales protect against: every update on its own, or only the sum of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds columns; all tasks so far were under local trust."""
    op.add_column("tasks", sa.Column("trust", sa.String(10)))
    op.add_column("tasks", sa.Column("honest_share", sa.Float()))
    op.execute("UPDATE tasks SET trust = 'local'")
    op.execute(sa.text("UPDATE tasks SET honest_share = :share").bindparams(share=2 / 3))
