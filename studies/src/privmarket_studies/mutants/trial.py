"""Runs the tests that cover a module against one fault in it, in a process of its own.

The fault exists in memory only: a loader hands the changed syntax tree to the interpreter, and no file is written.
A parent that has imported the heavy third-party packages forks a child per fault; tests that start further
processes see the code without the fault. Every limit is processor time, so that a busy machine changes nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import Phase, settings

PLUGINS = ("_hypothesis_pytestplugin", "pytest_timeout")
_PRELOADED = (
    *("numpy", "scipy.special", "scipy.stats", "scipy.optimize", "dp_accounting.pld.privacy_loss_distribution"),
    *("hypothesis", "hypothesis.strategies", "pytest", "sqlalchemy", "cryptography.hazmat.primitives.ciphers"),
    *PLUGINS,
)
_POLL_SECONDS = 0.01
# For a child that only waits. Counted in polls: a machine that is paused meanwhile does not use it up.
_WAIT_SECONDS = 600.0
ENDLESS = 99  # exit code of a child that had to be ended; pytest has others
KILLED, SURVIVED, TIMED_OUT, NO_TESTS = "killed", "survived", "timed out", "no tests"
NOT_TRIED = "not tried"
Entry = dict[str, Any]  # a fault with what came of it, as it is kept; entries of a page have fewer fields


@dataclass(frozen=True)
class TrialVerdict:
    """What came of a fault.

    Attributes:
        word: `killed`, `survived`, `timed out` or `no tests`.
        seconds: processor time.
        test: the test that noticed the fault.
    """

    word: str
    seconds: float
    test: str = ""


class _FaultyLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from a syntax tree that holds the fault."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


class _FaultyFinder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = _FaultyLoader(fullname, str(self.path), self.tree)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def preload() -> None:
    """Imports the modules that take long, so that forked children find them loaded."""
    for name in _PRELOADED:
        importlib.import_module(name)
    if any(name.partition(".")[0] == "privmarket" for name in sys.modules):
        raise RuntimeError("privmarket is imported already: a fault would not be seen by all of it")


class Only:
    """Runs the tests of these names in this order as long as there is processor time, as a plugin of pytest."""

    def __init__(self, names: Sequence[str], patience_seconds: float) -> None:
        self.place = {name: number for number, name in enumerate(names)}
        self.patience_seconds = patience_seconds
        self.until = float("inf")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the tests that were named, in the order in which they were named."""
        kept = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(kept, key=lambda item: self.place[item.nodeid])
        self.until = time.process_time() + self.patience_seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Passes over a test for which there is no time left."""
        return True if time.process_time() > self.until else None


class _Failed:
    """Writes down the test that failed first, as a plugin of pytest."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.note.exists():
            self.note.write_text(report.nodeid, encoding="utf-8")


def try_fault(
    module: str,
    path: Path,
    tree: ast.Module | None,
    tests: Sequence[str],
    root: Path,
    limit_seconds: float,
    plugins: Sequence[object] = (),
) -> TrialVerdict:
    """Whether the tests notice.

    Args:
        module: dotted name of the module.
        path: its file.
        tree: what to run instead; None to run the tests against the code as it is.
        tests: arguments for pytest: files and options.
        limit_seconds: processor time, imports included, after which a test must be in an endless loop.
        plugins: for pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "failed"

        def child() -> int:
            os.chdir(root)
            if tree is not None:
                sys.meta_path.insert(0, _FaultyFinder(module, path, tree))
            with pytest_options(folder) as options:
                quiet = ["-x", "-q", "--no-header", "--tb=no", *options, *tests]
                return int(pytest.main(quiet, plugins=[*plugins, _Failed(note)]))

        code, seconds = forked(child, limit_seconds)
        if code == pytest.ExitCode.USAGE_ERROR:
            raise RuntimeError(f"pytest cannot run {' '.join(tests)}")
        failed = note.read_text(encoding="utf-8") if note.exists() else ""
    return TrialVerdict({0: SURVIVED, ENDLESS: TIMED_OUT, 5: NO_TESTS}.get(code, KILLED), seconds, failed)


@contextlib.contextmanager
def pytest_options(folder: str) -> Iterator[list[str]]:
    """Options that both ways of trying a fault share; everything is written to `folder`.

    Other plugins take a second to load, and no test needs them. Time limits of tests count wall time, and a failing
    example need not be made small.
    """
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    settings.register_profile("mutants", settings.get_profile("default"), deadline=None, phases=phases)
    settings.load_profile("mutants")
    named = [part for plugin in PLUGINS for part in ("-p", plugin)]
    yield [*named, "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=0", f"--basetemp={folder}/pytest"]
    settings.load_profile("default")


def forked(child: Callable[[], int], limit_seconds: float) -> tuple[int, float]:
    """The exit code of `child` in a process of its own, and the processor time that it used.

    The code is 1 if it ended badly, `ENDLESS` if it used up its processor time or waited for ever.
    """
    sys.stdout.flush()
    before = _children_seconds()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_seconds),) * 2)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            code = child()
        finally:
            os._exit(code)
    ended, status, waited = 0, 0, 0.0
    while not ended and waited < _WAIT_SECONDS:
        time.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    endless = code in (-signal.SIGXCPU, -signal.SIGKILL)
    return (ENDLESS if endless else 1 if code < 0 else code), _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
