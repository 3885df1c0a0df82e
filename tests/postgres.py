"""The same test on both databases; PostgreSQL where Debian's package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine

from privmarket.broker._broker import Broker
from privmarket.broker._database import begin_log
from privmarket.broker._schema import metadata
from privmarket_fixtures.postgres import PostgresMissingError, new_database, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One server for the whole session, started by the first test that asks for it."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(postgres(durable=False))
        except PostgresMissingError as error:
            pytest.skip(str(error))
        yield url


@pytest.fixture(scope="session")
def _shared_database(postgres_server: str) -> str:
    url = new_database(postgres_server)
    Broker(url).database.close()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without a single row, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/market.db"
    url: str = request.getfixturevalue("_shared_database")
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    # Making a database costs ten times what emptying one does.
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '20s'")
        connection.execute(f"TRUNCATE {tables}")
    engine = create_engine(url)
    with engine.begin() as connection:
        begin_log(connection)
    engine.dispose()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/market.db"
    return new_database(request.getfixturevalue("postgres_server"))
