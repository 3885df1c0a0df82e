"""One database, SQLite or PostgreSQL: writes are durable and one at a time, and readers never wait for them.

The first part opens databases: it sets up connections for durable writes and creates or migrates tables. Then come
`Database` and the `Transaction` in which every command runs, and last the file of the key that signs the log.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError, TimeoutError

from privmarket._counted import counted
from privmarket._files import check_writable
from privmarket._lazy import late
from privmarket.broker import _log as log, _projection as projection, _sql as sql
from privmarket.broker._errors import BrokerError, DatabaseError, UnavailableError
from privmarket.broker._log import Entry, canonical
from privmarket.broker._merkle import EMPTY_ROOT
from privmarket.broker._schema import metadata
from privmarket.broker._sealed import Vault
from privmarket.broker._signatures import Head, SigningKey
from privmarket.errors import PrivmarketError

if TYPE_CHECKING:
    from alembic import command as alembic_command, config as alembic_config
else:
    # Only a database of an older version needs them.
    alembic_command = late("alembic.command")
    alembic_config = late("alembic.config")


REVISION = "0001"  # the newest file below migrations/versions
# The size of SQLite's WAL at which it is moved into the file; pages that many writes change are then moved once.
_CHECKPOINT_PAGES = 8000
_MIGRATIONS = Path(__file__).parent / "migrations"


def open_engine(url: str, read_only: bool, patience_seconds: float, idle_seconds: float) -> Engine:
    """An engine over a database.

    Args:
        patience_seconds: how long a statement waits for another broker's lock.
        idle_seconds: after how long PostgreSQL ends a transaction that does nothing.
    """
    address = make_url(url)
    if address.drivername.startswith("sqlite"):
        return _open_sqlite(url, read_only, patience_seconds)
    # These override the settings of the role or database. With another search_path, tables of the same name in
    # another schema could be used; without synchronous_commit, a crash would lose acknowledged writes.
    options = "-c search_path=public,pg_temp -c synchronous_commit=on"
    options += f" -c lock_timeout={round(1000 * patience_seconds)}"
    if read_only:
        options += " -c default_transaction_read_only=on"
    else:
        options += f" -c idle_in_transaction_session_timeout={round(1000 * idle_seconds)}"
    return create_engine(url, pool_size=10, max_overflow=30, pool_pre_ping=True, connect_args={"options": options})


def _open_sqlite(url: str, read_only: bool, patience_seconds: float) -> Engine:
    stated = make_url(url).database
    file = Path(stated or "")
    if read_only:
        if not file.is_file() or file.stat().st_size == 0:
            raise DatabaseError(f"no database at {file}", "give the file of an existing broker")
        # A file without a WAL is not in use, so SQLite need not create one to read it.
        mode = "mode=ro" if Path(f"{file}-wal").exists() else "mode=ro&immutable=1"
        url = f"sqlite:///file:{file}?{mode}&uri=true"
    elif stated not in (None, "", ":memory:"):
        _keep_private(file)
    settings = {"check_same_thread": False, "timeout": patience_seconds}
    engine = create_engine(url, pool_size=10, max_overflow=60, connect_args=settings)
    event.listen(engine, "connect", _set_up_reader if read_only else _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def checkpoint(engine: Engine) -> None:
    """Moves SQLite's WAL into the file, as far as nobody reads an older state."""
    raw = engine.raw_connection()
    try:
        raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except engine.dialect.loaded_dbapi.Error:
        pass  # somebody reads an older state; SQLite does it later
    finally:
        raw.close()


def _keep_private(file: Path) -> None:
    """Creates the file if needed, readable by its owner only, since it contains bids of open rounds."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except OSError:
        return  # SQLite says why when it opens the file


def _set_up_reader(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"wal_autocheckpoint={_CHECKPOINT_PAGES}"):
        connection.execute(f"PRAGMA {pragma}")


def require_current(engine: Engine, url: str) -> None:
    """Refuses a database for reading unless its tables exist in this version's form and the file is complete."""
    shown = url.split("@")[-1]
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            raise DatabaseError(f"{shown} is empty", "give the database of an existing broker")
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        if found != REVISION:
            raise DatabaseError(
                f"{shown} is in form {found}, this version reads {REVISION}",
                "start the broker once, on a copy if you like: it brings the tables up to date",
            )
        if engine.dialect.name == "sqlite":
            clean = connection.exec_driver_sql("SELECT clean FROM head").scalar()
            file = url.removeprefix("sqlite:///")
            if not clean and not Path(f"{file}-wal").exists():
                raise DatabaseError(
                    f"{shown} was in use when it was copied, and its WAL is missing",
                    f"copy {file}-wal along, or make copies with privmarket broker backup",
                )


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("privmarket_write", False)
    # IMMEDIATE takes the write lock now: a read that turns into a write later could be refused halfway.
    sql.run(connection, "BEGIN IMMEDIATE" if writing else "BEGIN")


def migrate(engine: Engine) -> None:
    """Migrates the tables to this version's form, in one transaction, if they have another."""
    with engine.connect() as connection:
        known = inspect(connection).has_table("alembic_version")
        if known and connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == REVISION:
            return
    with engine.connect().execution_options(privmarket_write=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # Two brokers that start together must not both make the tables.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7215)")
        if not inspect(connection).get_table_names():
            _create(connection)
            return
        config = alembic_config.Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        alembic_command.upgrade(config, "head")
        if not inspect(connection).has_table("head"):
            raise DatabaseError("migration left no tables", "the installation is damaged; install again")


def _create(connection: Connection) -> None:
    """Creates every table, and the head of an empty log."""
    metadata.create_all(connection)
    begin_log(connection)
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    sql.run(connection, "INSERT INTO alembic_version (version_num) VALUES (?)", REVISION)


def begin_log(connection: Connection) -> None:
    """Stores the head of an empty log with a new random id."""
    sql.run(
        connection,
        "INSERT INTO head (id, log_id, size, root, at_ms, frontier, signature, signed_by, clean) "
        "VALUES (1, ?, 0, ?, 0, '', '', '', TRUE)",
        secrets.token_hex(16),
        EMPTY_ROOT.hex(),
    )


# ---- transactions ---------------------------------------------------------------------------------------------


PATIENCE_SECONDS = 30.0  # how long a write waits for a broker in another process before it answers "busy"
# PostgreSQL ends a transaction that does nothing for this long: a broker that was paused while it held the lock
# would otherwise stop all others.
IDLE_SECONDS = 10.0
# A request counts from its arrival, but at most this long before its entry was written: it is not late because
# others were written first, and it cannot be dated back by more.
ARRIVAL_LIMIT_MS = 60_000
CLOCK_JUMP_MS = 60_000  # how far the wall clock may step away from the steady one before writes are refused
_POLL_SECONDS = 0.005
Clock = Callable[[], int]
# Result codes of SQLite that say nothing about the statement: busy, locked, I/O, full, cannot open, protocol.
_SQLITE_BUSY = 5
_SQLITE_PASSES = (_SQLITE_BUSY, 6, 10, 13, 14, 15)


class WallClock:
    """Milliseconds since 1970; raises `UnavailableError` while the machine's clock has jumped.

    If the clock jumped ahead for a moment, all deadlines would pass, and the log's time cannot go back. So the wall
    clock is compared with the monotonic one. After a real correction of the clock, the broker must be restarted.
    """

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def __call__(self) -> int:
        """The time now."""
        now = time.time_ns() // 1_000_000
        away = now - time.monotonic_ns() // 1_000_000 - self._offset_ms
        if abs(away) > CLOCK_JUMP_MS:
            raise UnavailableError(
                f"this machine's clock jumped by {away / 1000:.0f} s",
                "the operator must look at it; send again later",
            )
        self._offset_ms += round(away * 0.01)  # follows slow corrections
        return now


@dataclass
class Transaction:
    """A write under way. `now_ms` never runs backwards, whatever the machine's clock does."""

    connection: Connection
    now_ms: int
    actor: str
    size: int  # entries in the log before this write
    arrived_ms: int  # when the request came, before it waited for other writes
    over_ms: int  # deadlines before this are over for everybody: `now_ms` minus the grace for requests that wait
    key: SigningKey | None  # of the broker
    entries: list[Entry] = field(default_factory=list)
    _unwritten: list[projection.Change] = field(default_factory=list)  # rows that follow from entries so far

    @property
    def vault(self) -> Vault:
        """The keys of sealed updates."""
        return Vault(self.connection, self.key)

    def log(self, kind: str, subject: str, **details: object) -> int:
        """Adds an entry to the log and returns its number. The tables follow at `flush`."""
        return self.log_as(self.actor, kind, subject, details)

    def log_as(
        self, actor: str, kind: str, subject: str, details: Mapping[str, object], key: tuple[str, str] | None = None
    ) -> int:
        """The same in the name of another actor: bids of many sellers share a transaction."""
        seq = self.size + len(self.entries) + 1
        key_hash, request_hash = key or (None, None)
        entry = Entry(seq, self.now_ms, actor, kind, subject, canonical(details), key_hash, request_hash)
        self.entries.append(entry)
        self._unwritten += projection.changes(entry, details)
        return seq

    def in_time(self, deadline_ms: int) -> dict[str, int] | None:
        """None if the request came after the deadline; else the fields about its arrival that its entry needs."""
        if self.arrived_ms >= deadline_ms:
            return None
        return {} if self.now_ms < deadline_ms else {"arrived_ms": self.arrived_ms}

    def answer(self, first: int, key_hash: str, request_hash: str, answer: str) -> None:
        """Stores with entry number `first` of this transaction (from 0) the answer to its caller."""
        self.entries[first] = self.entries[first]._replace(
            key_hash=key_hash, request_hash=request_hash, answer=answer
        )

    def flush(self) -> None:
        """Brings the tables up to the entries so far; call it before reading what they changed."""
        unwritten, self._unwritten = self._unwritten, []
        projection.store(self.connection, unwritten)


class Database:
    """An engine with durable commits: acknowledged writes survive a power cut."""

    def __init__(
        self, url: str, clock: Clock | None = None, *, key: SigningKey | None = None, read_only: bool = False
    ) -> None:
        """Opens a database and makes its tables or brings them up to date.

        Args:
            url: sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.
            key: signs the log's heads.
            read_only: changes nothing, and refuses a database that is missing, empty, of another version, or a copy
                of a SQLite file whose WAL was left behind.
        """
        try:
            self.engine = open_engine(url, read_only, PATIENCE_SECONDS, IDLE_SECONDS)
            driver = self.engine.dialect.loaded_dbapi
            self._failures: tuple[type[Exception], ...] = (OperationalError, TimeoutError, driver.OperationalError)
            if self.engine.dialect.name == "postgresql":  # raised after `IDLE_SECONDS`
                self._failures += (driver.errors.IdleInTransactionSessionTimeout,)
            # Whether the database runs in this process, where it waits for nothing but the disk and other writers.
            self.is_embedded = self.engine.dialect.name == "sqlite"
            if read_only:
                require_current(self.engine, url)
            else:
                migrate(self.engine)
                self._mark_open()
        except (ArgumentError, SQLAlchemyError, ImportError, sqlite3.OperationalError) as error:
            shown = url.split("@")[-1]  # a password never reaches a message
            raise DatabaseError(
                f"cannot open database {shown}: {type(error).__name__}",
                "give sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME of a running server",
            ) from error
        self._clock = clock or WallClock()
        self.key, self.read_only = key, read_only
        self.grace_ms = 0
        self.head: Head | None = None  # the newest that this process wrote or read
        self._writer = threading.Lock()  # threads queue here instead of in SQLite's polling busy handler
        # Kept between writes: taking one from the pool each time takes as long as half the statements of a bid.
        self._writing: Connection | None = None

    @contextmanager
    def write(self, actor: str, *, patient: bool = True) -> Iterator[Transaction]:
        """One durable transaction, stored whole or not at all, and no other write at the same time.

        Waits for other writers if `patient`; else raises `UnavailableError` while there is one.
        """
        arrived, seen = self._clock(), self.head
        if not self._writer.acquire(blocking=patient):
            raise UnavailableError("somebody else is writing", "send the same again")
        try:
            connection, tree = self._begin(patient)
            head = None
            try:
                if tree.signed_by and (self.key is None or self.key.public != tree.signed_by):
                    raise DatabaseError(
                        f"this log is signed with the key {tree.signed_by[:16]}…", "give that key: --key FILE"
                    )
                now = max(arrived, self._clock(), tree.head.at_ms)
                # If the clock was set back, deadlines do not come back: the log's own time counts from then on.
                arrived = max(arrived, (seen or tree.head).at_ms, now - ARRIVAL_LIMIT_MS)
                over = now - self.grace_ms
                transaction = Transaction(connection, now, actor, tree.head.size, arrived, over, self.key)
                yield transaction
                if transaction.entries:
                    transaction.flush()
                    head = log.append(connection, transaction.entries, tree, self.key)
                connection.connection.commit()
            except PrivmarketError:  # refused; the connection can be used again
                connection.connection.rollback()
                raise
            except BaseException:
                self._let_go()
                raise
            self.head = head or self.head or tree.head
        except self._failures as error:
            self._name(error)
            raise
        finally:
            self._writer.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of one moment."""
        try:
            with self.engine.connect() as connection:
                if not self.is_embedded:
                    connection = connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    yield connection
        except self._failures as error:
            self._name(error)
            raise

    def _begin(self, patient: bool) -> tuple[Connection, log.Tree]:
        """A transaction that holds the write lock, on the connection of the last write or a fresh one."""
        if self._writing is not None:
            try:
                return self._writing, self._lock(self._writing, patient)
            except Exception:
                # A server that was restarted since the last write closed this connection: nothing is lost yet.
                lost = getattr(self._writing.connection.dbapi_connection, "closed", False)
                self._let_go()
                if not lost:
                    raise
            except BaseException:  # interrupted while it held the write lock
                self._let_go()
                raise
        try:
            self._writing = self.engine.connect()
            if self.is_embedded:
                sql.run(self._writing, "PRAGMA busy_timeout = 0")  # who waits, and how long, is decided in `_lock`
            return self._writing, self._lock(self._writing, patient)
        except BaseException:
            self._let_go()
            raise

    def _lock(self, connection: Connection, patient: bool) -> log.Tree:
        """Begins a transaction that holds the write lock, without SQLAlchemy, which is slower."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if self.is_embedded:
                    sql.run(connection, "BEGIN IMMEDIATE")  # the others begin with their first statement
                return log.lock(connection)
            except Exception as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY
                if not (busy and patient) or time.monotonic() > give_up:
                    raise
            time.sleep(_POLL_SECONDS)  # a broker in another process is writing to the same file

    def _let_go(self) -> None:
        """Closes the connection that writes share; the next write opens another."""
        if self._writing is not None:
            connection, self._writing = self._writing, None
            connection.invalidate()
            connection.close()

    def _name(self, error: Exception) -> None:
        """Raises `UnavailableError` for an error of any layer that means a busy, full or unreachable database."""
        origin = getattr(error, "orig", None) or error
        # Any other code of SQLite, such as that of a wrong statement, is a bug in privmarket.
        if getattr(origin, "sqlite_errorcode", _SQLITE_BUSY) & 0xFF in _SQLITE_PASSES:
            raise UnavailableError(
                f"the database did not take this: {type(origin).__name__}",
                "it is busy, full or away; send the same again, under the same key",
            ) from error

    def now_ms(self) -> int:
        """The time now, in milliseconds."""
        return self._clock()

    def newest_head(self) -> Head:
        """The head of the log as this process last saw it; read from the database the first time."""
        if self.head is None:
            with self.read() as connection:
                self.head = log.read_head(connection)
        return self.head

    def close(self) -> None:
        """Ends all connections. A SQLite file is left whole: without a WAL beside it, and marked so."""
        with self._writer:
            if self.is_embedded and not self.read_only:
                try:
                    writing = self.engine.connect().execution_options(privmarket_write=True)
                    with writing as connection, connection.begin():
                        sql.run(connection, "UPDATE head SET clean = TRUE")
                except (SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error):
                    pass  # another process is writing: it will close the file itself
                self._let_go()
                checkpoint(self.engine)
            self._let_go()
        self.engine.dispose()

    def _mark_open(self) -> None:
        """Notes in the SQLite file itself, not only in its WAL, that it is in use."""
        if not self.is_embedded:
            return
        with self.engine.connect().execution_options(privmarket_write=True) as connection, connection.begin():
            ((clean,),) = sql.run(connection, "SELECT clean FROM head")
            if clean:
                sql.run(connection, "UPDATE head SET clean = FALSE")
        if clean:
            checkpoint(self.engine)


# ---- the key of the log ---------------------------------------------------------------------------------------


def default_key_file(database: str) -> Path | None:
    """FILE.key beside a SQLite file; None for a database on a server, which has no folder of its own."""
    file = database.removeprefix("sqlite:///")
    return Path(f"{file}.key") if file != database else None


def key_file(database: str, stated: Path | None) -> Path:
    """The file of the broker's key; raises where none is stated and the database has no place for it."""
    file = stated or default_key_file(database)
    if file is None:
        raise BrokerError(
            "the key of this database's log has no default place",
            "name its file: --key FILE, or PRIVMARKET_BROKER_KEY",
        )
    return file


def read_or_make_key(database: Database, file: Path) -> SigningKey:
    """The key in the file. A new one is made only for a log without entries: any other has its key already.

    Raises:
        BrokerError: the log has entries and the file is not there.
    """
    if file.exists():
        return SigningKey.read(file)
    with database.read() as connection:
        head = log.read_head(connection)
        known = log.announced_key(connection)
    if head.size:
        raise BrokerError(
            f"no key at {file}; the log of {counted(head.size, 'entry', 'entries')} is signed with {known[:16]}…",
            "give the file of that key with --key, or copy it there: a new key cannot go on with this log",
        )
    check_writable(file, "--key")
    made = SigningKey.generate()
    made.write(file)
    return made
