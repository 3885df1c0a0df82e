"""A fresh market per test, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from privmarket_fixtures.market import Market, make_market
from tests.broker_target import target  # noqa: F401
from tests.postgres import _shared_database, database, empty_database, postgres_server  # noqa: F401


@pytest.fixture
def market(database: str) -> Iterator[Market]:  # noqa: F811
    made = make_market(database)
    yield made
    made.broker.database.close()
