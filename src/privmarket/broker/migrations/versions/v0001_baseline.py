"""The first stored form: every table as `_schema` declares it."""

from alembic import op

from privmarket.broker._schema import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes all tables, but not the head of an empty log: see `_database.begin_log`."""
    metadata.create_all(op.get_bind())
