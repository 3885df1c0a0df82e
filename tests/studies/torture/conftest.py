"""Both databases for tests that drive a real broker."""

from tests.broker_target import target  # noqa: F401
from tests.postgres import _shared_database, database, empty_database, postgres_server  # noqa: F401
