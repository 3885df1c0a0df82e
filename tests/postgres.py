"""PostgreSQL on loopback for tests, where Debian's package is installed; and the same test on both databases."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from privmarket.broker.broker import Broker
from privmarket.broker.chain import GENESIS
from privmarket.broker.schema import metadata


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tools() -> Path | None:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return Path(found[-1]).parent if found else None


@contextlib.contextmanager
def postgres(*, durable: bool = True) -> Iterator[str]:
    """The address of a fresh server. It flushes as it comes; unit tests may leave that out."""
    tools, runner = _tools(), shutil.which("runuser")
    if tools is None:
        pytest.skip("Debian's postgresql package is not installed")
    as_user: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        if runner is None:
            pytest.skip("PostgreSQL does not run as root and runuser is not installed")
        as_user = [runner, "-u", "postgres", "--"]
    # A folder of its user's own, so that nobody else's need be opened to it.
    place = os.path.join(tempfile.gettempdir(), "privmarket-pg-XXXXXXXX")
    made = subprocess.run([*as_user, "mktemp", "-d", place], check=True, capture_output=True, text=True, cwd="/")
    data, port = Path(made.stdout.strip()), _free_port()
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": "/"}
    control = [*as_user, str(tools / "pg_ctl"), "-D", str(data / "pg"), "-w"]
    try:
        subprocess.run(
            [*as_user, str(tools / "initdb"), "-D", str(data / "pg"), "-A", "trust", "-U", "market", "-N"], **quiet
        )
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories= -c max_connections=500"
        options += "" if durable else " -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        subprocess.run([*control, "-o", options, "-l", str(data / "log"), "start"], **quiet)
        try:
            yield f"postgresql+psycopg://market@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    finally:
        subprocess.run([*as_user, "rm", "-rf", "--", str(data)], check=False, cwd="/")


def new_database(server: str, template: str = "template0") -> str:
    """The address of an empty database, or of a copy of another one, on a running server."""
    name = f"m_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server.rpartition('/')[0]}/{name}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One server for the whole session, started by the first test that asks for it."""
    with postgres(durable=False) as url:
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
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY")
        connection.execute("INSERT INTO chain_head VALUES (1, 0, %s, 0)", [GENESIS])
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/market.db"
    return new_database(request.getfixturevalue("postgres_server"))
