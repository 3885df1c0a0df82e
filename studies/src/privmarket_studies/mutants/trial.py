"""Runs the tests that cover a module against one fault in it, in a process of its own.

The fault exists in memory only: a loader hands the changed syntax tree to the interpreter, and no file is written.
A parent that has imported the heavy third-party packages forks a child per fault; tests that start further
processes see the code without the fault.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import pytest

_PLUGINS = ("_hypothesis_pytestplugin", "pytest_timeout")
_PRELOADED = (
    *("numpy", "scipy.special", "scipy.stats", "scipy.optimize", "dp_accounting.pld.privacy_loss_distribution"),
    *("hypothesis", "hypothesis.strategies", "pytest", "sqlalchemy", "cryptography.hazmat.primitives.ciphers"),
    *_PLUGINS,
)
_POLL_SECONDS = 0.02
KILLED, SURVIVED, TIMED_OUT, NO_TESTS = "killed", "survived", "timed out", "no tests"
NOT_TRIED = "not tried"


class _FaultyLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from a given syntax tree."""

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
    """Imports what takes long, so that children need not."""
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
        """Drops the others."""
        kept = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(kept, key=lambda item: self.place[item.nodeid])
        self.until = time.process_time() + self.patience_seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Passes over a test for which there is no time left."""
        return True if time.process_time() > self.until else None


def try_fault(
    module: str,
    path: Path,
    tree: ast.Module | None,
    tests: Sequence[str],
    root: Path,
    limit_seconds: float,
    plugins: Sequence[object] = (),
) -> tuple[str, float]:
    """Whether the tests notice.

    Args:
        module: dotted name of the module.
        path: its file.
        tree: what to run instead; None to run the tests against the code as it is.
        tests: arguments for pytest: files and options.
        plugins: for pytest.

    Returns:
        `killed`, `survived`, `timed out` or `no tests`, and the seconds that it took.
    """
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(_child(module, path, tree, tests, root, plugins))
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        seconds = time.monotonic() - started
        if ended:
            break
        if seconds > limit_seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMED_OUT, seconds
        time.sleep(_POLL_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    return {0: SURVIVED, 5: NO_TESTS}.get(code, KILLED), seconds


def _child(
    module: str, path: Path, tree: ast.Module | None, tests: Sequence[str], root: Path, plugins: Sequence[object]
) -> int:
    os.setpgid(0, 0)
    os.chdir(root)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        if tree is not None:
            sys.meta_path.insert(0, _FaultyFinder(module, path, tree))
        # Other plugins take a second to load, and none of these tests needs them.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        named = [part for plugin in _PLUGINS for part in ("-p", plugin)]
        quiet = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0", *named]
        try:
            return int(pytest.main([*quiet, f"--basetemp={folder}/pytest", *tests], plugins=list(plugins)))
        except BaseException:  # a fault may break anything, the test runner included
            return 1
