"""The first form of all tables.

Made from `schema.metadata` as it stands; the second step must freeze this one by writing its tables out.
"""

from alembic import op

from privmarket.broker.chain import GENESIS
from privmarket.broker.schema import chain_head, metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes every table and the head of the empty chain."""
    metadata.create_all(op.get_bind())
    op.bulk_insert(chain_head, [{"id": 1, "seq": 0, "hash": GENESIS, "at_ms": 0}])


def downgrade() -> None:
    """Drops everything."""
    metadata.drop_all(op.get_bind())
