"""The stored form: the first migration is frozen, and an upgrade from it ends where a fresh database begins."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, inspect, text

from privmarket.broker import database as stored
from privmarket.broker.broker import Broker
from privmarket.broker.schema import metadata
from privmarket.broker.verify import verify
from tests.unit.broker.market import Market

FOLDER = Path(stored.__file__).parent / "migrations"


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


def test_an_upgrade_from_the_first_form_is_what_the_metadata_says(empty_database: str) -> None:
    engine = create_engine(empty_database)
    with engine.begin() as connection:
        upgrade(connection, "0001")
        row = "('buyer-x', 'k', 'r', '{}', 5)"
        connection.execute(text(f"INSERT INTO idempotency VALUES {row}"))
        for seq in (2, 1):
            entry = f"({seq}, 7, 'buyer-x', 'kind', 'subject', '{{}}', 'previous', 'hash {seq}')"
            connection.execute(text(f"INSERT INTO audit VALUES {entry}"))
    assert differences(engine)  # the check sees what an old database lacks
    Broker(empty_database).database.close()  # brings it up to date, as every start does
    assert differences(engine) == []
    with engine.connect() as connection:
        kept = connection.execute(text("SELECT actor, key_hash, response, created_ms FROM idempotency")).one()
        log = connection.execute(text("SELECT seq, at_ms, hash FROM audit ORDER BY seq")).all()
    assert tuple(kept) == ("buyer-x", "k", "{}", 5)
    assert [tuple(row) for row in log] == [(1, 7, "hash 1"), (2, 7, "hash 2")]
    engine.dispose()


def test_a_fresh_database_is_what_the_metadata_says(empty_database: str) -> None:
    broker = Broker(empty_database)
    assert differences(broker.database.engine) == []
    broker.database.close()


def test_the_newest_step_is_the_one_that_is_checked_at_start() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    assert ScriptDirectory.from_config(config).get_current_head() == stored.REVISION


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("v0001_first", "7ffa0794b7bc3614"),
        ("v0002_keys_first", "be11f1dd850675f4"),
        ("v0003_fewer_pages", "0e14b41b8e258f9f"),
    ],
)
def test_steps_that_were_released_never_change(name: str, begins: str) -> None:
    source = (FOLDER / "versions" / f"{name}.py").read_bytes()
    assert "privmarket" not in source.decode()  # nothing that lives on may leak into it
    assert hashlib.sha256(source).hexdigest().startswith(begins)


def test_bids_are_counted_where_an_older_broker_left_them_uncounted(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    engine = market.broker.database.engine
    with engine.execution_options(privmarket_write=True).begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
        connection.execute(text("UPDATE rounds SET bids = 0"))  # as it was while a round was open
        upgrade(connection, "head")
        assert connection.execute(text("SELECT bids FROM rounds")).scalar_one() == 3
    assert verify(market.broker).difference is None
