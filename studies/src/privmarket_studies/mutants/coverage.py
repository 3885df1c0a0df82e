"""Which tests call which functions, so that a fault is tried against the tests that can notice it."""

from __future__ import annotations

import ast
import contextlib
import cProfile
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import TypedDict

Calls = set[tuple[str, int]]  # (file, first line) of every function that was called


@contextlib.contextmanager
def calls_below(place: Path) -> Iterator[Calls]:
    """Notes the functions of a file, or of the files below a folder, that are called meanwhile, in any thread.

    This thread is watched by the interpreter's own profiler, which costs little; the set is complete at the end.
    """
    noted: Calls = set()
    prefix = str(place)

    def note(code: CodeType) -> None:
        if code.co_filename.startswith(prefix):
            noted.add((code.co_filename, code.co_firstlineno))

    def in_thread(frame: FrameType, event: str, argument: object) -> None:
        note(frame.f_code)

    profile = cProfile.Profile(builtins=False)
    threading.setprofile(in_thread)
    profile.enable()
    try:
        yield noted
    finally:
        profile.disable()
        threading.setprofile(None)
        for entry in profile.getstats():
            if isinstance(entry.code, CodeType):
                note(entry.code)


class CoverageJson(TypedDict):
    """A coverage as it is stored; calls are pairs of file and line."""

    imports: list[tuple[str, int]]
    tests: dict[str, list[tuple[str, int]]]
    left_out: list[str]
    seconds: dict[str, float]
    files: dict[str, str]


@dataclass(frozen=True)
class Coverage:
    """What was called.

    Attributes:
        imports: while the tests were imported.
        tests: by each test.
        left_out: tests that are very slow, or fail on a busy machine.
        seconds: processor time of each test, with every call noted.
        files: digest of each test file when its tests were measured.
    """

    imports: Calls
    tests: Mapping[str, Calls]
    left_out: Collection[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def of_line(self, path: Path, line: int) -> set[str] | None:
        """Tests that call the function around a line; None if any test may depend on it.

        That is so for code that runs when the module, or a test module, is imported.
        """
        span = _function(path, line)
        if span is None or _touches(self.imports, path, span):
            return None
        return {name for name, calls in self.tests.items() if _touches(calls, path, span)}

    def of_files(self, files: Mapping[str, str]) -> Coverage:
        """What is still true of tests in files with these digests."""

        def same(name: str) -> bool:
            file = name.partition("::")[0]
            return file in files and self.files.get(file) == files[file]

        tests = {name: calls for name, calls in self.tests.items() if same(name)}
        seconds = {name: used for name, used in self.seconds.items() if same(name)}
        return Coverage(self.imports, tests, [name for name in self.left_out if same(name)], seconds, files)

    def to_json(self) -> CoverageJson:
        """The coverage as JSON data, for `from_json`."""
        tests = {name: sorted(calls) for name, calls in self.tests.items()}
        return {
            "imports": sorted(self.imports),
            "tests": tests,
            "left_out": sorted(self.left_out),
            "seconds": {name: round(used, 3) for name, used in self.seconds.items()},
            "files": dict(self.files),
        }

    @staticmethod
    def from_json(given: CoverageJson) -> Coverage:
        """The coverage that `to_json` wrote."""
        tests = {name: {(path, line) for path, line in calls} for name, calls in given["tests"].items()}
        imports = {(path, line) for path, line in given["imports"]}
        return Coverage(imports, tests, given["left_out"], given["seconds"], given["files"])


def _touches(calls: Calls, path: Path, span: range) -> bool:
    return any(file == str(path) and line in span for file, line in calls)


def in_function(path: Path, line: int) -> bool:
    """Whether a line runs when a function is called, rather than at import."""
    return _function(path, line) is not None


def _function(path: Path, line: int) -> range | None:
    """Lines of the innermost function around a line, decorators included."""
    best = None
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            span = range(first, (node.end_lineno or first) + 1)
            # A default is computed when the function is made, not when it is called.
            if line in span and line >= node.body[0].lineno and (best is None or len(span) < len(best)):
                best = span
    return best
