"""A broker in a process of its own, that can be killed; and PostgreSQL on loopback where Debian's is installed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BrokerProcess:
    """`privmarket serve` on a database, restarted at will."""

    def __init__(self, database: str, log: Path) -> None:
        self.database, self.log, self.port = database, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.operator_token = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        code = "from privmarket.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--database", self.database, "--port", str(self.port)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen([*command, "--rate", "100000"], stderr=out, stdout=out)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    break
            if self.process.poll() is not None:
                raise RuntimeError(f"the broker did not start: {self.log.read_text()}")
            time.sleep(0.05)
        for line in self.log.read_text().splitlines():
            if line.startswith("operator token"):
                self.operator_token = line.rpartition(" ")[2]

    def kill(self) -> None:
        """kill -9, at once."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _postgres_tools() -> Path | None:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return Path(found[-1]).parent if found else None


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The address of a fresh PostgreSQL, durable as it comes."""
    tools = _postgres_tools()
    if tools is None:
        pytest.skip("Debian's postgresql package is not installed")
    as_user: list[str] = []
    data = folder / "pg"
    if os.getuid() == 0:  # the server refuses to run as root
        runner = shutil.which("runuser")
        if runner is None:
            pytest.skip("PostgreSQL does not run as root and runuser is not installed")
        as_user = [runner, "-u", "postgres", "--"]
        data.mkdir()
        shutil.chown(data, "postgres")
        for parent in [folder, *folder.parents]:
            if parent.owner() == "root" and parent != Path("/") and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
    port = free_port()
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": "/"}
    subprocess.run([*as_user, str(tools / "initdb"), "-D", str(data), "-A", "trust", "-U", "market"], **quiet)
    options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories="
    control = [*as_user, str(tools / "pg_ctl"), "-D", str(data), "-w"]
    subprocess.run([*control, "-o", options, "-l", str(data / "log"), "start"], **quiet)
    try:
        yield f"postgresql+psycopg://market@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
