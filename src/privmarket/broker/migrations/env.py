"""Runs migrations on the connection that `_database.migrate` hands over."""

from alembic import context

from privmarket.broker._schema import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=False
)
context.run_migrations()
