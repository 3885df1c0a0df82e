"""Many faults against tests that are imported once.

Importing the package and collecting its tests takes longer than running most of them. A bench collects the tests
of a target once, then forks a child per fault; the child exchanges the code of the changed functions in place and
runs the tests that call them (`coverage`), the quickest first; very slow ones are left out. What a test module
computed while it was imported still comes from the code without the fault: a fault that could matter there is tried
again in a fresh process (`trial`) if it survives here. A fault counts as noticed only if the test that noticed it
passes right afterwards without the fault: a busy machine can fail a test, too.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import CellType, FrameType, FunctionType, ModuleType

import pytest

from privmarket_studies.mutants.coverage import Calls, Coverage, calls_below
from privmarket_studies.mutants.trial import (
    ENDLESS,
    KILLED,
    SURVIVED,
    TIMED_OUT,
    TrialVerdict,
    forked,
    pytest_options,
)

SLOW_SECONDS = 6.0  # processor time, with every call noted
ENDLESS_SECONDS = 5.0  # beyond three times what the test takes without a fault
PATIENCE_SECONDS = 8.0  # processor time for all tests of one fault; the test under way is let finish
Body = Callable[["Bench"], None]
NOTHING = Coverage(set(), {})


class _TooSlowError(BaseException):
    """A test used more processor time than it may."""


class Bench:
    """Collected tests, to be run against one fault after the other; a plugin of pytest in place of its loop."""

    def __init__(
        self,
        body: Body,
        place: Path,
        known: Coverage,
        keep: Callable[[Coverage], None],
        slow_seconds: float,
        endless_seconds: float,
    ) -> None:
        self._body, self._place, self._known, self._keep = body, place, known, keep
        self._slow, self._endless = slow_seconds, endless_seconds
        self._failed = False
        self.quick: list[pytest.Item] = []
        self.watch = contextlib.ExitStack()
        self.imports: Calls = set()
        self.coverage = NOTHING
        self.error: str | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the order in which files were named."""
        self.quick = list(items)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests: runs the body."""
        self.watch.close()  # from here on, tests alone are watched
        self._measure()
        self.quick = [item for item in self.quick if item.nodeid in self.coverage.tests]
        if not self.quick:
            self.error = "no test passes without a fault"
        else:
            self._body(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remembers whether any test has failed."""
        self._failed |= bool(report.failed)

    def _measure(self) -> None:
        """Runs every test that is not known yet in a process of its own, without a fault: what does it call?"""
        tests, seconds = dict(self._known.tests), dict(self._known.seconds)
        left_out = [*self._known.left_out]
        with tempfile.TemporaryDirectory() as folder:
            noted = Path(folder) / "calls.json"
            for number, item in enumerate(self.quick):
                if item.nodeid in tests or item.nodeid in left_out:
                    continue

                def child(item: pytest.Item = item) -> int:
                    started = time.process_time()
                    with calls_below(self._place) as calls:
                        verdict = self._run(item, self._slow)
                    used = time.process_time() - started
                    noted.write_text(json.dumps([used, sorted(calls)]), encoding="utf-8")
                    return 0 if verdict == SURVIVED else 1

                if forked(child, 2 * self._slow)[0] == 0:
                    seconds[item.nodeid], calls = json.loads(noted.read_text())
                    tests[item.nodeid] = {(path, line) for path, line in calls}
                else:
                    left_out.append(item.nodeid)
                if number % 50 == 0:
                    self._keep(Coverage(self.imports, tests, left_out, seconds))
        self.coverage = Coverage(self.imports, tests, left_out, seconds)
        self._keep(self.coverage)

    def try_code(self, module: str, tree: ast.Module, tests: Collection[str] | None = None) -> TrialVerdict:
        """Whether the quick tests notice a changed module; the quickest run first.

        Args:
            tests: only these; all quick ones if left out.
        """
        chosen = [item for item in self.quick if tests is None or item.nodeid in tests]
        order = sorted(chosen, key=lambda item: self.coverage.seconds[item.nodeid])
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder) / "failed"

            def child() -> int:
                try:
                    exchange(module, tree)
                except Exception:
                    return 0  # a fresh process will tell
                until = time.process_time() + PATIENCE_SECONDS
                for item in order:
                    if time.process_time() > until:
                        return 0
                    note.write_text(item.nodeid, encoding="utf-8")
                    verdict = self._run(item, self._limit(item))
                    if verdict != SURVIVED:
                        return ENDLESS if verdict == TIMED_OUT else 1
                return 0

            code, seconds = forked(child, 2 * PATIENCE_SECONDS + 3 * self._limit(order[-1] if order else None))
            if code == 0:
                return TrialVerdict(SURVIVED, seconds)
            failed = note.read_text(encoding="utf-8") if note.exists() else ""
        found = [item for item in order if item.nodeid == failed]
        if found and not self._passes(found[0]):
            self.quick.remove(found[0])  # it can judge nothing now
            return self.try_code(module, tree, tests)
        return TrialVerdict(TIMED_OUT if code == ENDLESS else KILLED, seconds, failed)

    def _passes(self, item: pytest.Item) -> bool:
        """Whether a test passes on the code without a fault."""
        limit = self._limit(item)
        return forked(lambda: 0 if self._run(item, limit) == SURVIVED else 1, 2 * limit)[0] == 0

    def _limit(self, item: pytest.Item | None) -> float:
        """Processor time after which a test must be in an endless loop."""
        return self._endless + (3 * self.coverage.seconds[item.nodeid] if item else 0.0)

    def _run(self, item: pytest.Item, limit_seconds: float) -> str:
        self._failed = False
        with _processor_limit(limit_seconds) as used_up, contextlib.suppress(_TooSlowError):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if used_up:
            return TIMED_OUT  # the test runner may have taken the interruption for a failure
        return KILLED if self._failed else SURVIVED


def run(
    tests: Sequence[str],
    root: Path,
    body: Body,
    *,
    place: Path | None = None,
    known: Coverage = NOTHING,
    keep: Callable[[Coverage], None] = lambda coverage: None,
    slow_seconds: float = SLOW_SECONDS,
    endless_seconds: float = ENDLESS_SECONDS,
) -> Bench:
    """Collects the tests and hands them to `body`; `error` of the result says why they cannot be used.

    Args:
        place: folder or file whose functions are watched; everything below `root` if left out.
        known: what an earlier bench measured with the same code and tests.
        keep: gets what is measured, now and then and at the end.
        slow_seconds: processor time of a test above which it is left out.
        endless_seconds: processor time, beyond three times its own, after which a test is in an endless loop.
    """
    os.chdir(root)
    os.environ.pop("PYTEST_ADDOPTS", None)  # options for people, such as -rs, are unknown without a terminal
    bench = Bench(body, place or root, known, keep, slow_seconds, endless_seconds)
    with tempfile.TemporaryDirectory() as folder, pytest_options(folder) as options:
        quiet = ["-p", "no:terminal", "-o", "addopts="]
        with bench.watch:
            bench.imports = bench.watch.enter_context(calls_below(place or root))
            code = pytest.main([*options, *quiet, *tests], plugins=[bench])
    if code not in (0, 5) and bench.error is None:
        bench.error = f"the tests cannot be collected (exit code {int(code)})"
    return bench


def exchange(name: str, tree: ast.Module) -> None:
    """Puts the functions of a changed module into the module that everybody has imported."""
    old = importlib.import_module(name)
    new = ModuleType(name)
    new.__dict__.update(__file__=old.__file__, __package__=old.__package__, __spec__=old.__spec__)
    sys.modules[name] = new  # dataclasses look their module up
    exec(compile(tree, str(old.__file__), "exec"), new.__dict__)
    sys.modules[name] = old
    seen: set[int] = set()
    for key, value in list(new.__dict__.items()):
        _exchange_value(old.__dict__, key, value, seen)


def _exchange_value(holder: dict[str, object], key: str, value: object, seen: set[int]) -> None:
    before = holder.get(key)
    if isinstance(value, type) and isinstance(before, type) and id(before) not in seen:
        seen.add(id(before))
        if value.__module__ == before.__module__ and value is not before:
            for attribute, inner in list(vars(value).items()):
                _exchange_value(dict(vars(before)), attribute, inner, seen)
        return
    mine, theirs = _function_of(before), _function_of(value)
    if mine is not None and theirs is not None and mine is not theirs and mine.__module__ == theirs.__module__:
        _exchange_function(mine, theirs)
        clear = getattr(before, "cache_clear", None)
        if clear is not None:
            clear()


def _function_of(value: object) -> FunctionType | None:
    """The function inside a method, a property or a cache; None if there is none."""
    if isinstance(value, staticmethod | classmethod):
        return _function_of(value.__func__)
    if isinstance(value, property):
        return _function_of(value.fget)
    if isinstance(value, functools.cached_property):
        return _function_of(value.func)
    if not isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
        return _function_of(value.__wrapped__)
    return value if isinstance(value, FunctionType) else None


def _exchange_function(mine: FunctionType, theirs: FunctionType) -> None:
    if hasattr(mine, "__wrapped__") and hasattr(theirs, "__wrapped__"):
        inner, changed = _function_of(mine.__wrapped__), _function_of(theirs.__wrapped__)
        if inner is not None and changed is not None:
            _exchange_function(inner, changed)
    if mine.__code__.co_freevars != theirs.__code__.co_freevars:
        raise RuntimeError(f"{mine.__qualname__} cannot be exchanged")
    mine.__code__, mine.__defaults__ = theirs.__code__, theirs.__defaults__
    mine.__kwdefaults__ = theirs.__kwdefaults__
    for cell, changed_cell in zip(mine.__closure__ or (), theirs.__closure__ or (), strict=True):
        _exchange_cell(cell, changed_cell)


def _exchange_cell(cell: CellType, changed: CellType) -> None:
    with contextlib.suppress(ValueError):  # an empty cell
        value = changed.cell_contents
        if isinstance(value, int | float | str | tuple | bool):
            cell.cell_contents = value


@contextlib.contextmanager
def _processor_limit(seconds: float) -> Iterator[list[bool]]:
    """Interrupts what uses more processor time; the list is filled when that happens."""
    used_up: list[bool] = []

    def stop(number: int, frame: FrameType | None) -> None:
        used_up.append(True)
        raise _TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield used_up
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
