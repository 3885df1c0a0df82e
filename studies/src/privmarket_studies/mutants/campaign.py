"""A fixed sample of faults, tried one after the other; stopped and continued at will."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from privmarket_studies.mutants.coverage import Coverage, in_function
from privmarket_studies.mutants.fault_bench import NOTHING, PATIENCE_SECONDS, Bench
from privmarket_studies.mutants.fault_bench import run as run_bench
from privmarket_studies.mutants.faults import CodeFault, behaviour, faults, tree_with
from privmarket_studies.mutants.targets import NAMED, TARGETS, Target
from privmarket_studies.mutants.trial import (
    NO_TESTS,
    NOT_TRIED,
    SURVIVED,
    Entry,
    Only,
    TrialVerdict,
    preload,
    try_fault,
)

_IMPORT_AND_ENDLESS_SECONDS = 60.0


@dataclass(frozen=True)
class Attempt:
    """A fault of the sample, with the tests that should notice it.

    Attributes:
        target: index into `TARGETS`.
    """

    fault: CodeFault
    target: int


def sample(root: Path) -> list[Attempt]:
    """The faults that are tried: those of `NAMED`, and of each target the first ones by digest.

    The choice depends on the code alone. Faults of one target are taken from its modules in turn, so that a long
    module does not crowd out a short one.
    """
    chosen = []
    for place, target in enumerate(TARGETS):
        by_module = [
            sorted(faults(path, root), key=lambda f: (not _named(f), f.digest)) for path in target.modules(root)
        ]
        named = sum(_named(fault) for found in by_module for fault in found)
        wanted = max(target.faults, named)
        chosen += [Attempt(fault, place) for fault in _in_turn(by_module, wanted)]
    missing = [name for name in NAMED if not any(_is(attempt.fault, name) for attempt in chosen)]
    if missing:
        raise LookupError(f"these faults cannot be made any more; change NAMED: {missing}")
    return chosen


def _in_turn(by_module: list[list[CodeFault]], wanted: int) -> Iterator[CodeFault]:
    queues = [iter(found) for found in by_module]
    taken = 0
    while queues and taken < wanted:
        for queue in [*queues]:
            fault = next(queue, None)
            if fault is None:
                queues.remove(queue)
            elif taken < wanted:
                taken += 1
                yield fault


def _is(fault: CodeFault, name: tuple[str, str, str, str]) -> bool:
    path, function, before, after = name
    return fault.path.endswith(path) and (fault.function, fault.before, fault.after) == (function, before, after)


def _named(fault: CodeFault) -> bool:
    return any(_is(fault, name) for name in NAMED)


def run(
    root: Path,
    out: Path,
    *,
    minutes: float | None = None,
    again: bool = False,
    only: Sequence[str] = (),
    tests: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Tries every fault of the sample that was not tried on this code yet; results go to `out`, a line each.

    Args:
        minutes: start no further fault after so many.
        again: try those once more that survived, after tests were added.
        only: paths of targets; all if left out.
        tests: files, or `file::test`: only these, such as those that were just written; all if left out.
    """
    work = _Work(root, out, None if minutes is None else time.monotonic() + 60 * minutes, say, tests)
    preload()
    attempts = [a for a in sample(root) if not only or TARGETS[a.target].path in only]
    for target in TARGETS:
        mine = [a.fault for a in attempts if TARGETS[a.target] is target]
        done = {entry["key"]: entry for entry in read(out)}
        waiting = [fault for fault in mine if _waits(done.get(_key(fault, root)), again)]
        waiting.sort(key=lambda fault: _key(fault, root) in done)
        say(f"{target.path}: {len(waiting)} of {len(mine)} faults to try")
        if not waiting or work.late():
            continue
        unseen = [
            fault
            for fault in waiting
            if in_function(root / fault.path, fault.line) and (again or _key(fault, root) not in done)
        ]
        _in_a_process(lambda target=target, unseen=unseen: work.on_a_bench(target, unseen))  # type: ignore[misc]
        if not work.measured(target):
            continue
        done = {entry["key"]: entry for entry in read(out)}
        for fault in waiting:
            if _waits(done.get(_key(fault, root)), again) and not work.late():
                work.afresh(target, fault)


@dataclass(frozen=True)
class _Work:
    root: Path
    out: Path
    deadline: float | None
    say: Callable[[str], None]
    tests: Sequence[str] = ()

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def measured(self, target: Target) -> bool:
        """Whether it was recorded which tests of the target call which functions."""
        return self._coverage_file(target).exists()

    def on_a_bench(self, target: Target, waiting: Sequence[CodeFault]) -> None:
        """Faults in functions, against tests that are imported once.

        What survives here is tried afresh only where code that runs at import may see the fault.
        """
        modules = target.modules(self.root)
        stored, files = self._coverage_file(target), self._test_files()
        place = self.root / "src" / "privmarket" / target.path

        def body(bench: Bench) -> None:
            for fault in waiting:
                if self.late():
                    return
                path = self.root / fault.path
                tree, tests = tree_with(fault, self.root), bench.coverage.of_line(path, fault.line)
                verdict = bench.try_code(_module(path, self.root), tree, tests)
                self._note(fault, verdict, final=verdict.word != SURVIVED or tests is not None)

        def keep(coverage: Coverage) -> None:
            part = stored.with_suffix(".part")
            part.write_text(json.dumps(replace(coverage, files=files).to_json()), encoding="utf-8")
            part.replace(stored)

        known = _stored(stored).of_files(files)
        chosen = self.tests or target.tests(modules[0], self.root)
        found = run_bench(chosen, self.root, body, place=place, known=known, keep=keep)
        if found.error is not None:
            self.say(f"{target.path}: the tests cannot judge faults: {found.error}")

    def afresh(self, target: Target, fault: CodeFault) -> None:
        """Tries one fault in a process of its own that imports everything anew."""
        path = self.root / fault.path
        coverage = _stored(self._coverage_file(target))
        only = coverage.of_line(path, fault.line)
        chosen = set(coverage.tests) if only is None else only
        order = _within(PATIENCE_SECONDS, sorted(chosen, key=lambda name: coverage.seconds[name]), coverage)
        tree = tree_with(fault, self.root)

        def attempt(tree: ast.Module | None, names: Sequence[str]) -> TrialVerdict:
            files = list(dict.fromkeys(name.partition("::")[0] for name in names))
            if not files:
                return TrialVerdict(NO_TESTS, 0.0)
            kept = Only(names, PATIENCE_SECONDS)
            limit = PATIENCE_SECONDS + _IMPORT_AND_ENDLESS_SECONDS
            return try_fault(_module(path, self.root), path, tree, files, self.root, limit, [kept])

        verdict = attempt(tree, order)
        while verdict.test and attempt(None, [verdict.test]).word != SURVIVED:
            order.remove(verdict.test)  # fails without the fault as well: it can judge nothing now
            verdict = attempt(tree, order)
        if verdict.word == NO_TESTS:
            verdict = TrialVerdict(SURVIVED, verdict.seconds)  # no test calls this code
        self._note(fault, verdict, final=True)

    def _note(self, fault: CodeFault, verdict: TrialVerdict, final: bool) -> None:
        entry = {"key": _key(fault, self.root), **asdict(fault), "name": fault.name, "verdict": verdict.word}
        entry |= {"seconds": round(verdict.seconds, 1), "test": verdict.test, "final": final}
        with self.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self.say(f"{verdict.word if final else 'to be tried on'} ({verdict.seconds:.1f} s) {fault.name}")

    def _coverage_file(self, target: Target) -> Path:
        """Where to keep which tests call what, as long as neither code nor what tests share changes."""
        digest = hashlib.sha256()
        shared = [path for path in (self.root / "tests").rglob("*.py") if not path.name.startswith("test_")]
        for path in sorted([*(self.root / "src").rglob("*.py"), *shared]):
            digest.update(path.read_bytes())
        digest.update("\n".join(self.tests).encode())
        name = target.path.replace("/", "-")
        return self.out.with_name(f"{self.out.stem}-{name}-{digest.hexdigest()[:12]}.json")

    def _test_files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            for path in (self.root / "tests").rglob("test_*.py")
        }


def _stored(path: Path) -> Coverage:
    return Coverage.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else NOTHING


def _within(seconds: float, order: Sequence[str], coverage: Coverage) -> list[str]:
    """The first tests, as long as those before them took less than twice so long when they were measured."""
    before = itertools.accumulate((coverage.seconds[name] for name in order), initial=0.0)
    return [name for name, used in zip(order, before, strict=False) if used < 2 * seconds]


def _in_a_process(work: Callable[[], None]) -> None:
    """Runs `work` in a child, so that what it imports does not stay."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)


def read(out: Path) -> list[Entry]:
    """What was tried; of a fault that was tried twice, the last attempt."""
    return list({entry["key"]: entry for entry in _all(out)}.values())


def _all(out: Path) -> list[Entry]:
    """Every attempt that is on disk, in the order in which they were made."""
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def of_sample(root: Path, out: Path) -> list[Entry]:
    """Today's sample, each fault with its verdict on today's code, or `not tried` (to the end).

    `later` says that it survived at first and is noticed now.
    """
    done = {entry["key"]: entry for entry in _all(out) if entry["final"]}  # the last verdict that was one
    survived = {entry["key"] for entry in _all(out) if entry["final"] and entry["verdict"] == SURVIVED}
    for key, entry in done.items():
        entry["later"] = key in survived and entry["verdict"] != SURVIVED
    return [
        done.get(_key(fault, root), {**asdict(fault), "name": fault.name, "verdict": NOT_TRIED})
        | {"named": _named(fault)}
        for fault in (attempt.fault for attempt in sample(root))
    ]


def _waits(entry: Entry | None, again: bool) -> bool:
    return entry is None or not entry["final"] or (again and entry["verdict"] == SURVIVED)


def _key(fault: CodeFault, root: Path) -> str:
    """Names a fault in a file as it behaves: other code, another key; comments and docstrings do not count."""
    return f"{fault.digest}-{behaviour(root / fault.path)}"


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root / "src").with_suffix("").parts)
