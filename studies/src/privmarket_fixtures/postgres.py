"""PostgreSQL on loopback, where Debian's package is installed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

from privmarket.errors import PrivmarketError
from privmarket_fixtures.processes import free_port


class PostgresMissingError(PrivmarketError):
    """PostgreSQL cannot be started on this machine."""


def _tools() -> Path | None:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return Path(found[-1]).parent if found else None


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd="/")


@contextlib.contextmanager
def postgres(*, durable: bool = True) -> Iterator[str]:
    """The address of a fresh server that is stopped and removed at the end.

    Args:
        durable: flush every commit to disk; unit tests leave that out.

    Raises:
        PostgresMissingError: if it is not installed or may not be started.
    """
    tools, runner = _tools(), shutil.which("runuser")
    if tools is None:
        raise PostgresMissingError("Debian's postgresql package is not installed", "apt-get install postgresql")
    as_user: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        if runner is None:
            raise PostgresMissingError(
                "PostgreSQL does not run as root and runuser is not installed", "run as another user"
            )
        as_user = [runner, "-u", "postgres", "--"]
    # A folder of its user's own, so that nobody else's need be opened to it.
    place = os.path.join(tempfile.gettempdir(), "privmarket-pg-XXXXXXXX")
    made = subprocess.run([*as_user, "mktemp", "-d", place], check=True, capture_output=True, text=True, cwd="/")
    data, port = Path(made.stdout.strip()), free_port()
    control = [*as_user, str(tools / "pg_ctl"), "-D", str(data / "pg"), "-w"]
    try:
        _quietly([*as_user, str(tools / "initdb"), "-D", str(data / "pg"), "-A", "trust", "-U", "market", "-N"])
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories= -c max_connections=500"
        options += "" if durable else " -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        _quietly([*control, "-o", options, "-l", str(data / "log"), "start"])
        try:
            yield f"postgresql+psycopg://market@127.0.0.1:{port}/postgres"
        finally:
            _quietly([*control, "-m", "immediate", "stop"])
    finally:
        subprocess.run([*as_user, "rm", "-rf", "--", str(data)], check=False, cwd="/")


def new_database(server: str, template: str = "template0") -> str:
    """The address of an empty database, or of a copy of another one, on a running server."""
    name = f"m_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server.rpartition('/')[0]}/{name}"
