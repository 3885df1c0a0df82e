"""A broker in a process of its own, that can be killed; restarted on the same database."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx


def free_port() -> int:
    """A port of loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BrokerProcess:
    """`privmarket serve` on a database, restarted at will."""

    def __init__(self, database: str, log: Path, **environment: str) -> None:
        """`environment`: settings of the broker, PRIVMARKET_… = value."""
        key = {"PRIVMARKET_BROKER_KEY": str(log.with_name("broker.key"))}
        self.environment = {**os.environ, **key, **environment}
        self.database, self.log, self.port = database, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.operator_token = ""
        self.rate = 100_000.0  # requests per second of one account
        self.patience_seconds = 300.0  # a machine that others load, or that stands still for a while, is no failure
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts the server and returns when it answers; RuntimeError if it does not."""
        code = "from privmarket.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--database", self.database, "--port", str(self.port)]
        with self.log.open("ab") as out:
            arguments = [*command, "--rate", str(self.rate)]
            self.process = subprocess.Popen(arguments, stderr=out, stdout=out, env=self.environment)
        self.starts += 1
        deadline = time.monotonic() + self.patience_seconds
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                # Going on without a server once looked like a round that could not be opened.
                raise RuntimeError(f"the broker did not start: {self.log.read_text()}")
            time.sleep(0.05)
        for line in self.log.read_text().splitlines():
            if line.startswith("operator token"):
                self.operator_token = line.rpartition(" ")[2]

        if not self.operator_token:
            raise RuntimeError(f"the broker made no operator: {self.log.read_text()}")

    def _answers(self) -> bool:
        # Its own word first: somebody else's server may have got the port in the meantime.
        if self.log.read_text().count("listening on") < self.starts:
            return False
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def pause(self) -> None:
        """Stands still, with whatever it holds in its hands."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Goes on."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, at once."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
