"""The stored form: one baseline migration, which makes what a fresh database has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, inspect

from privmarket.broker import _database as database
from privmarket.broker._broker import Broker
from privmarket.broker._schema import metadata
from privmarket.broker._shapes import AwardRow, BidRow, PartyRow, PayoutRow, RoundRow, TaskRow, TokenRow

FOLDER = Path(database.__file__).parent / "migrations"


def upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def differences(engine: Engine) -> list[Any]:
    """Everything in which the database is not what the metadata says, primary keys and their order included."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        found: list[Any] = compare_metadata(context, metadata)
        for table in metadata.sorted_tables:
            kept = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
            wanted = [column.name for column in table.primary_key]
            if kept != wanted:
                found.append((table.name, kept, wanted))
    return found


def test_the_baseline_makes_what_a_fresh_start_makes(empty_database: str) -> None:
    engine = create_engine(empty_database)
    with engine.begin() as connection:
        upgrade(connection, "head")
    assert differences(engine) == []
    engine.dispose()


def test_a_fresh_database_is_what_the_metadata_says(empty_database: str) -> None:
    broker = Broker(empty_database)
    assert differences(broker.database.engine) == []
    broker.database.close()


def test_the_newest_step_is_the_one_that_is_checked_at_start() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    assert ScriptDirectory.from_config(config).get_current_head() == database.REVISION


def test_typed_rows_have_the_columns_of_their_tables() -> None:
    typed = {"parties": PartyRow, "tasks": TaskRow, "rounds": RoundRow, "bids": BidRow, "awards": AwardRow}
    typed |= {"payouts": PayoutRow, "tokens": TokenRow}
    for name, row in typed.items():
        assert row.columns() == tuple(column.name for column in metadata.tables[name].c), name
