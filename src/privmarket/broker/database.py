"""One database, SQLite or PostgreSQL: serial durable writes, readers that never wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError, TimeoutError

from privmarket.broker import chain, sql
from privmarket.broker.errors import DatabaseError, UnavailableError
from privmarket.errors import PrivmarketError

PATIENCE_SECONDS = 30.0  # how long a write waits for a broker in another process before it answers "busy"
_POLL_SECONDS = 0.005
REVISION = "0003"  # the newest file below migrations/versions
Clock = Callable[[], int]
# Result codes of SQLite that say nothing about the statement: busy, locked, I/O, full, cannot open, protocol.
_SQLITE_BUSY = 5
_SQLITE_PASSES = (_SQLITE_BUSY, 6, 10, 13, 14, 15)
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
            with self._failures_named():
                migrate(self.engine)
        except (ArgumentError, SQLAlchemyError, ImportError, UnavailableError) as error:
            shown = url.split("@")[-1]  # a password never reaches a message
            raise DatabaseError(
                f"cannot open database {shown}: {type(error).__name__}",
                "give sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME of a running server",
            ) from error
        self._clock = clock
        self._writer = threading.Lock()  # queues threads here rather than in SQLite's polling busy handler
        # Kept between writes: taking one from the pool each time costs as much as half the statements of a bid.
        self._writing: Connection | None = None

    @contextmanager
    def write(self, actor: str, *, patient: bool = True) -> Iterator[Transaction]:
        """One serial, durable transaction; everything or nothing. The impatient do not wait for other writers."""
        if not self._writer.acquire(blocking=patient):
            raise UnavailableError("somebody else is writing", "send the same again")
        try:
            with self._failures_named():
                begun, head = self._begin(patient)
                try:
                    with begun:
                        transaction = Transaction(begun.connection, max(self._clock(), head[2]), actor)
                        yield transaction
                        if transaction.entries:
                            chain.append(begun.connection, transaction.entries, head)
                except PrivmarketError:  # refused and rolled back; the connection is as good as before
                    raise
                except BaseException:
                    self._let_go()
                    raise
        finally:
            self._writer.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of one moment."""
        with self._failures_named(), self.engine.connect() as connection:
            if connection.dialect.name != "sqlite":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def _begin(self, patient: bool) -> tuple[RootTransaction, chain.Head]:
        """A transaction that holds the write lock, on the kept connection or a fresh one."""
        if self._writing is not None:
            try:
                return self._lock(self._writing, patient)
            except Exception:
                # A server that was restarted since the last write closed this connection: nothing is lost yet.
                lost = getattr(self._writing.connection.dbapi_connection, "closed", False)
                self._let_go()
                if not lost:
                    raise
        try:
            self._writing = self.engine.connect().execution_options(privmarket_write=True)
            if self.is_embedded:
                sql.run(self._writing, "PRAGMA busy_timeout = 0")  # who waits, and how long, is decided in `_lock`
            return self._lock(self._writing, patient)
        except BaseException:
            self._let_go()
            raise

    def _lock(self, connection: Connection, patient: bool) -> tuple[RootTransaction, chain.Head]:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return connection.begin(), chain.lock_head(connection)
            except Exception as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY
                if not (busy and patient) or time.monotonic() > give_up:
                    raise
            time.sleep(_POLL_SECONDS)  # a broker in another process is writing to the same file

    def _let_go(self) -> None:
        """Ends the kept connection; the next write opens another."""
        if self._writing is not None:
            connection, self._writing = self._writing, None
            connection.invalidate()
            connection.close()

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        """A database that is busy, full or away becomes one error that says so, from whichever layer it comes."""
        driver = self.engine.dialect.loaded_dbapi
        try:
            yield
        except (OperationalError, TimeoutError, driver.OperationalError) as error:
            origin = getattr(error, "orig", None) or error
            if getattr(origin, "sqlite_errorcode", _SQLITE_BUSY) & 0xFF not in _SQLITE_PASSES:
                raise  # a statement that SQLite does not understand is no weather
            raise UnavailableError(
                f"the database did not take this: {type(origin).__name__}",
                "it is busy, full or away; send the same again, under the same key",
            ) from error

    @property
    def is_embedded(self) -> bool:
        """Whether the database lives in this process: nothing to wait for but the disk and other writers."""
        return self.engine.dialect.name == "sqlite"

    def now_ms(self) -> int:
        """The machine's clock."""
        return self._clock()

    def close(self) -> None:
        """Lets go of all connections."""
        with self._writer:
            self._let_go()
        self.engine.dispose()


def _engine(url: str) -> Engine:
    if not make_url(url).drivername.startswith("sqlite"):
        patience = f"-c lock_timeout={round(1000 * PATIENCE_SECONDS)}"
        return create_engine(
            url, pool_size=10, max_overflow=30, pool_pre_ping=True, connect_args={"options": patience}
        )
    settings = {"check_same_thread": False, "timeout": PATIENCE_SECONDS}
    engine = create_engine(url, pool_size=10, max_overflow=60, connect_args=settings)
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
    sql.run(connection, "BEGIN IMMEDIATE" if writing else "BEGIN")


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
