"""One database, SQLite or PostgreSQL: serial durable writes, readers that never wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from privmarket.broker import chain
from privmarket.broker.errors import DatabaseError

REVISION = "0002"  # the newest file below migrations/versions
Clock = Callable[[], int]
_MIGRATIONS = Path(__file__).parent / "migrations"


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass
class Transaction:
    """A write under way. `now_ms` never runs backwards, whatever the machine's clock does."""

    connection: Connection
    now_ms: int
    actor: str
    entries: list[dict[str, Any]] = field(default_factory=list)

    def log(self, kind: str, subject: str, **details: Any) -> None:
        """Adds an entry to the audit log, in this same transaction."""
        self.log_as(self.actor, kind, subject, **details)

    def log_as(self, actor: str, kind: str, subject: str, **details: Any) -> None:
        """The same for somebody else than who began the transaction: bids of many share one."""
        self.entries.append(
            {
                "at_ms": self.now_ms,
                "actor": actor,
                "kind": kind,
                "subject": subject,
                "details": chain.canonical(details),
            }
        )


class Database:
    """An engine set up so that what was acknowledged survives a power cut."""

    def __init__(self, url: str, clock: Clock = wall_clock_ms) -> None:
        """`url`: sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME. Tables are made or brought up to date."""
        try:
            self.engine = _engine(url)
            migrate(self.engine)
        except (ArgumentError, SQLAlchemyError, ImportError) as error:
            shown = url.split("@")[-1]  # a password never reaches a message
            raise DatabaseError(
                f"cannot open database {shown}: {type(error).__name__}",
                "give sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME of a running server",
            ) from error
        self._clock = clock
        self._writer = threading.Lock()  # queues threads here rather than in SQLite's polling busy handler

    @contextmanager
    def write(self, actor: str) -> Iterator[Transaction]:
        """One serial, durable transaction; everything or nothing."""
        with (
            self._writer,
            self.engine.connect().execution_options(privmarket_write=True) as connection,
            connection.begin(),
        ):
            head = chain.lock_head(connection)
            transaction = Transaction(connection, max(self._clock(), head[2]), actor)
            yield transaction
            if transaction.entries:
                chain.append(connection, transaction.entries, head)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of one moment."""
        with self.engine.connect() as connection:
            if connection.dialect.name != "sqlite":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def now_ms(self) -> int:
        """The machine's clock."""
        return self._clock()

    def close(self) -> None:
        """Lets go of all connections."""
        self.engine.dispose()


def _engine(url: str) -> Engine:
    if not make_url(url).drivername.startswith("sqlite"):
        return create_engine(url, pool_size=10, max_overflow=30, pool_pre_ping=True)
    engine = create_engine(
        url, pool_size=10, max_overflow=60, connect_args={"check_same_thread": False, "timeout": 30}
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("privmarket_write", False)
    # IMMEDIATE takes the write lock now: a read that turns into a write later could be refused halfway.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def migrate(engine: Engine) -> None:
    """Brings the tables to this version's form, in one transaction; nothing to do where they are in it."""
    with engine.connect() as connection:
        known = inspect(connection).has_table("alembic_version")
        if known and connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == REVISION:
            return
    from alembic import command
    from alembic.config import Config

    with engine.connect().execution_options(privmarket_write=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # Two brokers that start together must not both make the tables.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7215)")
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        if not inspect(connection).has_table("chain_head"):
            raise DatabaseError("migration left no tables", "the installation is damaged; install again")
