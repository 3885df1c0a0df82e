"""Opening a database, SQLite or PostgreSQL: connections set up for durable writes, tables brought up to date."""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url

from privmarket._lazy import late
from privmarket.broker import _sql as sql
from privmarket.broker._http_errors import DatabaseError
from privmarket.broker._merkle import EMPTY_ROOT
from privmarket.broker._schema import metadata

if TYPE_CHECKING:
    from alembic import command as alembic_command
    from alembic import config as alembic_config
else:
    # Only a database of an older version needs them.
    alembic_command = late("alembic.command")
    alembic_config = late("alembic.config")

REVISION = "0001"  # the newest file below migrations/versions
# How far SQLite's WAL grows before it is moved into the file: pages that many writes touch are then moved once.
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
    # A role or database may have another search_path, and with it tables of the same name in another schema.
    # And one in which commits return before they are on disk would lose acknowledged writes in a crash.
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
        # A file without a WAL beside it is in nobody's use: SQLite need not make one to read it.
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
    """Moves what SQLite's WAL holds into the file, as far as nobody reads an older state."""
    raw = engine.raw_connection()
    try:
        raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except engine.dialect.loaded_dbapi.Error:
        pass  # somebody reads an older state; SQLite does it later
    finally:
        raw.close()


def _keep_private(file: Path) -> None:
    """The file exists and only its owner may read it: bids of open rounds are in it."""
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
    """For readers: the tables are there, in this version's form, and the file is whole."""
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
    """Brings the tables to this version's form, in one transaction; nothing to do where they are in it."""
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
    """Every table and the head of an empty log."""
    metadata.create_all(connection)
    begin_log(connection)
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    sql.run(connection, "INSERT INTO alembic_version (version_num) VALUES (?)", REVISION)


def begin_log(connection: Connection) -> None:
    """The head of an empty log under a fresh name."""
    sql.run(
        connection,
        "INSERT INTO head (id, log_id, size, root, at_ms, frontier, signature, signed_by, clean) "
        "VALUES (1, ?, 0, ?, 0, '', '', '', TRUE)",
        secrets.token_hex(16),
        EMPTY_ROOT.hex(),
    )
