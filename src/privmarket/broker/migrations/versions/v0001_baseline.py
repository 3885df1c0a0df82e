"""The first stored form: every table as `schema` declares it."""

from alembic import op

from privmarket.broker._schema import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes all tables; `storage` adds the head of an empty log."""
    metadata.create_all(op.get_bind())
