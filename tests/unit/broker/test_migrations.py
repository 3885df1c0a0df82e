"""The stored form: the first migration is frozen, and an upgrade from it ends where a fresh database begins."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, text

from privmarket.broker import storage
from privmarket.broker.broker import Broker
from privmarket.broker.parties import Actor
from privmarket.broker.schema import metadata
from privmarket.broker.stored_rows import AwardRow, BidRow, PartyRow, RoundRow, TaskRow
from privmarket.broker.verify import verify
from privmarket.rounds import Offer
from privmarket_studies.torture.market import Clock, key

FOLDER = Path(storage.__file__).parent / "migrations"


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


def old_market(url: str) -> None:
    """A database as the broker of version 3 left it: rounds settled, cleared, open and aborted."""
    engine = create_engine(url)
    with engine.begin() as connection:
        upgrade(connection, "0003")
    rows = json.loads((Path(__file__).parent / "old_market.json").read_text())
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        connection.execute(tables.tables["chain_head"].delete())
        for table in tables.sorted_tables:
            if rows.get(table.name):
                connection.execute(table.insert(), rows[table.name])
    engine.dispose()


def test_an_old_database_is_imported_whole(empty_database: str) -> None:
    old_market(empty_database)
    rows = json.loads((Path(__file__).parent / "old_market.json").read_text())
    clock = Clock(max(row["at_ms"] for row in rows["audit"]))
    broker = Broker(empty_database, clock=clock)  # brings it up to date, as every start does
    engine = broker.database.engine
    assert differences(engine) == []
    verdict = verify(broker)
    assert verdict.differences == ()
    assert "4 rounds were imported" in verdict.notes[0]
    with engine.connect() as connection:
        held = connection.execute(text("SELECT account, SUM(amount_micro) FROM postings GROUP BY account")).all()
        stored = dict(connection.execute(text("SELECT state, id FROM rounds")).all())
    before: dict[str, int] = {}
    for row in rows["postings"]:
        before[row["account"]] = before.get(row["account"], 0) + row["amount_micro"]
    assert {row[0]: int(row[1]) for row in held} == before
    # What was answered before is answered again, and life goes on: a bid, an auction, a settlement.
    bid = next(row for row in rows["bids"] if row["round_id"] == stored["open"] and row["epsilon"] == 0.5)
    seller = Actor(bid["seller_id"], "seller")
    buyer = Actor(rows["tasks"][0]["buyer_id"], "buyer")
    assert broker.bid(seller, stored["open"], Offer(0.3, 0.5), key())["replaced"]
    broker.close_round(buyer, stored["open"], key())
    clock.now_ms += 60_000
    assert {done["state"] for done in broker.tick()} == {"settled"}
    assert verify(broker).differences == ()
    with engine.begin() as connection:
        connection.execute(text("UPDATE old_log SET details = '{}' WHERE seq = 4"))
    assert "old log: entry 4" in (verify(broker).difference or "")
    broker.database.close()


def test_a_round_that_was_imported_cannot_be_edited_unseen(empty_database: str) -> None:
    old_market(empty_database)
    broker = Broker(empty_database)
    with broker.database.engine.begin() as connection:
        connection.execute(text("UPDATE awards SET paid_micro = paid_micro + 1"))
    assert len(verify(broker).differences) == 4
    broker.database.close()


def test_a_fresh_database_is_what_the_metadata_says(empty_database: str) -> None:
    broker = Broker(empty_database)
    assert differences(broker.database.engine) == []
    broker.database.close()


def test_the_newest_step_is_the_one_that_is_checked_at_start() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    assert ScriptDirectory.from_config(config).get_current_head() == storage.REVISION


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("v0001_first", "7ffa0794b7bc3614"),
        ("v0002_keys_first", "be11f1dd850675f4"),
        ("v0003_fewer_pages", "0e14b41b8e258f9f"),
        ("v0004_one_log", "3452a8d387594a4d"),
        ("v0005_sealed_deliveries", "2955ec4fdcf63ce8"),
        ("v0006_trust", "7016bea20f96191e"),
    ],
)
def test_steps_that_were_released_never_change(name: str, begins: str) -> None:
    source = (FOLDER / "versions" / f"{name}.py").read_bytes()
    assert "privmarket" not in source.decode()  # nothing that lives on may leak into it
    assert hashlib.sha256(source).hexdigest().startswith(begins)


def test_typed_rows_have_the_columns_of_their_tables() -> None:
    typed = {"parties": PartyRow, "tasks": TaskRow, "rounds": RoundRow, "bids": BidRow, "awards": AwardRow}
    for name, row in typed.items():
        assert row._fields == tuple(column.name for column in metadata.tables[name].c), name
