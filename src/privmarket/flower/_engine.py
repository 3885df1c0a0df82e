"""Flower's own engines on this machine: a SuperLink, SuperNodes or the Ray simulation, started, used and ended.

Flower's home, its logs and the result stay in one folder. Telemetry and update checks are off, nothing is installed
at run time, and only loopback addresses are used. This is meant for tests, rehearsals and first steps; a real
deployment starts the same programs with TLS and node keys.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.app import UserConfigValue

from privmarket.errors import PrivmarketError
from privmarket.flower._checkpoint import RUNNING_VARIABLE, has_ended
from privmarket.flower._result import RESULT_VARIABLE, ResultJson

_CONNECTION = "loopback"
_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0
_LAST_WORDS_SECONDS = 20.0  # after the server app's end, for its result or its error to arrive
_TAIL_LINES = 12
_ACTIVATED = "Activated node_id="
_FINISHED = re.compile(r"Finished task \d+ of run|Run is finished")
# Flower revokes the token of a server app that sent no heartbeat for two of its intervals, and ends the run.
_GIVEN_UP = "task-token authentication failed"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class EngineError(PrivmarketError):
    """An engine that did not start, or a run that failed; `evidence` is the output of its processes."""

    code = "bad-engine"

    def __init__(self, message: str, hint: str = "", evidence: str = "") -> None:
        super().__init__(message, hint)
        self.evidence = evidence

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.evidence}".rstrip()


@dataclass(eq=False)
class Engine(AbstractContextManager["Engine"]):
    """A SuperLink with its nodes, for the length of a `with` block.

    Args:
        folder: where everything is kept.
        nodes: how many nodes; separate processes, or virtual ones if `simulation` is set.
        simulation: whether Flower's simulation (Ray) runs the clients.
        environment: further variables for all processes.
        start_seconds: how long SuperLink, nodes and `flwr run` may take to start.
    """

    folder: Path
    nodes: int
    simulation: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 90.0

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).absolute()
        self.port = _free_port()
        self._run = ""
        self._running = self.folder / "running"
        self.ready_seconds = 0.0
        self._entered = time.monotonic()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that every process of this engine is started with."""
        beside_python = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": f"{beside_python}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr-home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_DEDUP_LOGS": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            RESULT_VARIABLE: str(self.folder / "result.json"),
            RUNNING_VARIABLE: str(self._running),
            **self.environment,
        }

    def __enter__(self) -> Engine:
        self._entered = time.monotonic()
        home = self.folder / "flwr-home"
        home.mkdir(parents=True, exist_ok=True)
        # Flower's command line finds SuperLinks by name in its home.
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        try:
            # "simulation" nodes live in the run's own process; the others are processes that log in.
            kind = ["--simulation"] if self.simulation else []
            self._start("superlink", ["flower-superlink", "--insecure", *self._address(self.port), *kind])
            self._await_link()
            for number in range(0 if self.simulation else self.nodes):
                self.start_node(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_node(self, number: int, node_config: Mapping[str, UserConfigValue] | None = None) -> None:
        """Starts a SuperNode that holds partition `number`."""
        config = {"partition-id": number, "num-partitions": self.nodes, **(node_config or {})}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        self._start(f"node-{number}", [*command, *self._address(_free_port()), "--node-config", text])

    def kill_node(self, number: int) -> None:
        """Ends a SuperNode and the client app in it at once, as a power cut would."""
        self._kill(self._processes.pop(f"node-{number}"), signal.SIGKILL)

    def run(
        self, app: Path, run_config: Mapping[str, UserConfigValue] | None = None, *, timeout_seconds: float
    ) -> ResultJson:
        """Runs the app in folder `app` and returns the result that its server wrote.

        The app's `[tool.flwr.app.config]` must name all keys of `run_config`: others are refused.
        """
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        self.submit(app, run_config or {})
        return self.await_result(result, timeout_seconds)

    def submit(self, app: Path, run_config: Mapping[str, UserConfigValue]) -> None:
        """Hands an app to the SuperLink, once all nodes have logged in."""
        self.await_nodes()
        self._running.unlink(missing_ok=True)
        overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
        command = ["flwr", "run", str(app), _CONNECTION]
        if overrides:
            command += ["--run-config", overrides]
        if self.simulation:
            # Ray is told how many processors it may use, else it takes the machine's.
            federation = f"num-supernodes={self.nodes} client-resources-num-cpus=1 init-args-num-cpus=1"
            command += ["--federation-config", federation]
        try:
            done = subprocess.run(
                command, env=self.variables, capture_output=True, text=True, timeout=self.start_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"flwr run gave no answer in {self.start_seconds:g} s"
            raise EngineError(why, "try again when the machine is less busy", self.evidence()) from None
        started = re.search(r"Successfully started run (\d+)", done.stdout + done.stderr)
        if done.returncode != 0 or started is None:
            said = _last_lines(done.stdout + done.stderr)
            raise EngineError("flwr run refused the app", self._all_logs(), f"it said:\n{said}")
        self._run = started[1]

    def await_result(self, result: Path, timeout_seconds: float) -> ResultJson:
        """Waits for the result that the server writes.

        A run that ends without a result, or does not end in time, raises an error with the output of its processes.
        """
        end = time.monotonic() + timeout_seconds
        ended = given_up = False
        died = math.inf
        while not result.exists():
            self._check_link()
            # Checked again after the run has ended: the result is written shortly before.
            if ended:
                raise EngineError("the run ended without a result", self._all_logs(), self.evidence())
            if given_up:
                why = "Flower gave the run up: its server app sent no sign of life for a minute"
                hint = "the machine slept, or paused or starved that process: run it again when it is less busy"
                raise EngineError(why, hint, self.evidence())
            died = min(died, time.monotonic()) if has_ended(self._running) else math.inf
            if time.monotonic() > died + _LAST_WORDS_SECONDS:
                raise EngineError("the server app died without a result", self._all_logs(), self.evidence())
            if time.monotonic() > end:
                why = f"the run had not ended after {timeout_seconds:g} s"
                raise EngineError(why, f"allow it more time, or {self._all_logs()}", self.evidence())
            log = self.log("superlink")
            ended = _FINISHED.search(log) is not None
            given_up = _GIVEN_UP in log
            time.sleep(_POLL_SECONDS)
        found: ResultJson = json.loads(result.read_text())
        return found

    def ended_alone(self) -> dict[str, int]:
        """Name → exit code of the processes that ended by themselves."""
        codes = {name: process.poll() for name, process in list(self._processes.items())}
        return {name: code for name, code in codes.items() if code is not None}

    def evidence(self) -> str:
        """Which processes ended by themselves, each with the end of its log, and the end of the run's own log."""
        ended = self.ended_alone()
        parts = [f"{name} ended by itself with code {code}; {self.tail(name)}" for name, code in ended.items()]
        if self._run:
            parts.append(f"the server app's log ends:\n{_last_lines(self._run_log())}")
        elif "superlink" in self._processes:
            parts.append(self.tail("superlink"))
        return "\n".join(parts)

    def tail(self, name: str) -> str:
        """The end of a process's log, with the file's name."""
        return f"{name}.log ends:\n{_last_lines(self.log(name))}"

    def stop(self) -> None:
        """Ends every process that this engine started."""
        for name in reversed(self._processes):
            # The SuperLink gets time to end a simulation; a sudden end does not harm nodes.
            self._kill(self._processes[name], signal.SIGTERM if name == "superlink" else signal.SIGKILL)
        self._processes.clear()

    def log(self, name: str) -> str:
        """Everything that a process wrote to its log; `name` is `superlink` or `node-0` and so on."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _run_log(self) -> str:
        """The last lines that the server app logged."""
        command = ["flwr", "log", self._run, _CONNECTION, "--show"]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command, env=self.variables, capture_output=True, text=True, timeout=30.0, check=False
            )
            return done.stdout + done.stderr
        return self.log("superlink")

    def _all_logs(self) -> str:
        return f"see the logs in {self.folder}"

    @staticmethod
    def _address(port: int) -> list[str]:
        return ["--host", "127.0.0.1", "--port", str(port)]

    def _start(self, name: str, command: Sequence[str]) -> None:
        program = shutil.which(command[0], path=self.variables["PATH"])
        if program is None:
            raise EngineError(f"{command[0]} is not installed", 'pip install "privmarket[flower]"')
        with (self.folder / f"{name}.log").open("wb") as log:
            # A session of its own, so that ending it ends the apps that it started, too.
            self._processes[name] = subprocess.Popen(
                [program, *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.variables,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def _await_link(self) -> None:
        end = time.monotonic() + self.start_seconds
        while True:
            self._check_link()
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=2.0).is_success:
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > end:
                why = f"no SuperLink after {self.start_seconds:g} s"
                raise EngineError(why, "try again when the machine is less busy", self.tail("superlink"))
            time.sleep(_POLL_SECONDS)

    def await_nodes(self) -> None:
        """Waits until every node that was started has logged in; `ready_seconds` says how long all took."""
        end = time.monotonic() + self.start_seconds
        wanted = 0 if self.simulation else sum(name.startswith("node-") for name in self._processes)
        while (there := self.log("superlink").count(_ACTIVATED)) < wanted:
            self._check_link()
            if time.monotonic() > end:
                why = f"{there} of {wanted} nodes came in {self.start_seconds:g} s"
                raise EngineError(why, self._all_logs(), self.evidence())
            time.sleep(_POLL_SECONDS)
        self.ready_seconds = self.ready_seconds or time.monotonic() - self._entered

    def _check_link(self) -> None:
        code = self._processes["superlink"].poll()
        if code is not None:
            raise EngineError(f"the SuperLink ended with code {code}", self._all_logs(), self.tail("superlink"))

    @staticmethod
    def _kill(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
        for sign, patience in ((first, _STOP_SECONDS), (signal.SIGKILL, _STOP_SECONDS)):
            try:
                os.killpg(process.pid, sign)
                process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        # Apps in the same session that outlived their parent.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def write_app(folder: Path, code: str, config: Mapping[str, UserConfigValue]) -> Path:
    """A Flower app in `folder` whose one module, `code`, defines `server` and `client`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "market_app.py").write_text(code)
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"result-file": "", **config}.items()]
    (folder / "pyproject.toml").write_text(
        "\n".join(
            [
                "[build-system]",
                'requires = ["setuptools"]',
                'build-backend = "setuptools.build_meta"',
                "",
                "[project]",
                'name = "market-app"',
                'version = "1.0.0"',
                'description = "A market"',
                'license = "Apache-2.0"',
                "dependencies = []",
                "",
                "[tool.flwr.app]",
                'publisher = "privmarket"',
                "",
                "[tool.flwr.app.components]",
                'serverapp = "market_app:server"',
                'clientapp = "market_app:client"',
                "",
                "[tool.flwr.app.config]",
                *lines,
                "",
            ]
        )
    )
    return folder


def _last_lines(text: str) -> str:
    """The last lines that are not empty, without colours and frames, indented."""
    plain = [re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]+", "", line).rstrip() for line in text.splitlines()]
    said = [line for line in plain if line and not line.endswith(": ") and not re.fullmatch(r"[A-Z]+ *:", line)]
    return "\n".join(f"  {line}" for line in said[-_TAIL_LINES:]) or "  (nothing)"


def _die_with_parent() -> None:
    """Makes Linux end this process when its parent has ended, for whatever reason."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


_given_ports: set[int] = set()


def _free_port() -> int:
    """A free port that this process has not handed out before, since its user may not listen on it yet."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _given_ports:
            _given_ports.add(port)
            return port
