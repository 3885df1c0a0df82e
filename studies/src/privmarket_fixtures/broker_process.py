"""A broker in a process of its own, that can be killed; restarted on the same database."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

import httpx

from privmarket.cli import main
from privmarket_fixtures.processes import free_port

_context = multiprocessing.get_context("forkserver")


class Running(Protocol):
    """A process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""


class BrokerProcess:
    """`privmarket serve` on a database, restarted at will."""

    def __init__(self, database: str, log: Path, **environment: str) -> None:
        """Prepares a broker on `database`; `environment` holds its settings, PRIVMARKET_… = value."""
        key = {"PRIVMARKET_BROKER_KEY": str(log.with_name("broker.key"))}
        self.environment = {**os.environ, **key, **environment}
        self.database, self.log, self.port = database, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.operator_token = ""
        self.rate = 100_000.0  # requests per second of one account
        self.patience_seconds = 300.0  # a machine that others load, or that stands still for a while, is no failure
        self.process: Running | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts the server and returns when it answers; RuntimeError if it does not."""
        where = ["--database", self.database, "--port", str(self.port)]
        self.process = self._launch(["serve", *where, "--rate", str(self.rate)])
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

    def _launch(self, words: list[str]) -> Running:
        code = "from privmarket.cli import main; main()"
        with self.log.open("ab") as out:
            command = [sys.executable, "-c", code, *words]
            return subprocess.Popen(command, stderr=out, stdout=out, env=self.environment)

    def _answers(self) -> bool:
        # Its own word first: somebody else's server may have got the port in the meantime.
        if self.log.read_text().count("listening on") < self.starts:
            return False
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def pause(self) -> None:
        """Stops the broker process where it is (SIGSTOP), with any lock or transaction it holds."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets the paused broker process continue (SIGCONT)."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the broker process at once (SIGKILL)."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


class ForkedBroker(BrokerProcess):
    """The same, forked from a process that has imported everything: a start costs a tenth of the processor time."""

    def _launch(self, words: list[str]) -> Running:
        self.log.touch()
        _context.set_forkserver_preload(["privmarket.cli._serve", "privmarket.broker._api", __name__])
        process = _context.Process(target=_serve, args=(words, self.environment, self.log))
        process.start()
        return _Forked(process)


class _Forked:
    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def _serve(words: list[str], environment: dict[str, str], log: Path) -> None:
    """Runs `privmarket serve` in the forked process."""
    os.environ.update(environment)
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv = ["privmarket", *words]
    main()
