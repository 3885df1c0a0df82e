"""A fixed sample of faults, tried one after the other; stopped and continued at will."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privmarket_studies.mutants.bench import NOTHING, PATIENCE_SECONDS, Bench
from privmarket_studies.mutants.bench import run as run_bench
from privmarket_studies.mutants.coverage import Coverage, in_function
from privmarket_studies.mutants.faults import Fault, behaviour, faults, tree_with
from privmarket_studies.mutants.targets import NAMED, TARGETS, Target
from privmarket_studies.mutants.trial import NO_TESTS, NOT_TRIED, SURVIVED, Only, preload, try_fault

LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Attempt:
    """A fault of the sample, with the tests that should notice it.

    Attributes:
        target: index into `TARGETS`.
    """

    fault: Fault
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


def _in_turn(by_module: list[list[Fault]], wanted: int) -> Iterator[Fault]:
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


def _is(fault: Fault, name: tuple[str, str, str, str]) -> bool:
    path, function, before, after = name
    return fault.path.endswith(path) and (fault.function, fault.before, fault.after) == (function, before, after)


def _named(fault: Fault) -> bool:
    return any(_is(fault, name) for name in NAMED)


def run(
    root: Path,
    out: Path,
    *,
    minutes: float | None = None,
    again: bool = False,
    only: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Tries every fault of the sample that was not tried on this code yet; results go to `out`, a line each.

    Args:
        minutes: start no further fault after so many.
        again: try those once more that survived, after tests were added.
        only: paths of targets; all if left out.
    """
    work = _Work(root, out, None if minutes is None else time.monotonic() + 60 * minutes, say)
    preload()
    attempts = [a for a in sample(root) if not only or TARGETS[a.target].path in only]
    for target in TARGETS:
        mine = [a.fault for a in attempts if TARGETS[a.target] is target]
        done = {entry["key"]: entry for entry in read(out)}
        waiting = [fault for fault in mine if _waits(done.get(_key(fault, root)), again)]
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

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def measured(self, target: Target) -> bool:
        """Whether it is known which tests call what."""
        return self._coverage_file(target).exists()

    def on_a_bench(self, target: Target, waiting: Sequence[Fault]) -> None:
        """Faults in functions, against tests that are imported once.

        What survives here is tried afresh only where code that runs at import may see the fault.
        """
        modules = target.modules(self.root)
        stored = self._coverage_file(target)
        place = self.root / "src" / "privmarket" / target.path

        def body(bench: Bench) -> None:
            for fault in waiting:
                if self.late():
                    return
                path = self.root / fault.path
                tree, tests = tree_with(fault, self.root), bench.coverage.of_line(path, fault.line)
                verdict, seconds = bench.try_code(_module(path, self.root), tree, tests)
                self._note(fault, verdict, seconds, fresh=verdict != SURVIVED or tests is not None)

        def keep(coverage: Coverage) -> None:
            part = stored.with_suffix(".part")
            part.write_text(json.dumps(coverage.to_json()), encoding="utf-8")
            part.replace(stored)

        tests = target.tests(modules[0], self.root)
        found = run_bench(tests, self.root, body, place=place, known=_stored(stored), keep=keep)
        if found.error is not None:
            self.say(f"{target.path}: the tests cannot judge faults: {found.error}")

    def afresh(self, target: Target, fault: Fault) -> None:
        """One fault in a fresh process."""
        path = self.root / fault.path
        coverage = _stored(self._coverage_file(target))
        only = coverage.of_line(path, fault.line)
        chosen = set(coverage.tests) if only is None else only
        kept = Only(sorted(chosen, key=lambda name: coverage.seconds[name]), PATIENCE_SECONDS)
        tree, tests = tree_with(fault, self.root), target.tests(path, self.root)
        verdict, seconds = try_fault(_module(path, self.root), path, tree, tests, self.root, LIMIT_SECONDS, [kept])
        if verdict == NO_TESTS:
            verdict = SURVIVED  # no test calls this code
        self._note(fault, verdict, seconds, fresh=True)

    def _note(self, fault: Fault, verdict: str, seconds: float, fresh: bool) -> None:
        entry = {"key": _key(fault, self.root), **asdict(fault), "name": fault.name, "verdict": verdict}
        entry |= {"seconds": round(seconds, 1), "fresh": fresh}
        with self.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self.say(f"{verdict if fresh else 'to be tried on'} ({seconds:.1f} s) {fault.name}")

    def _coverage_file(self, target: Target) -> Path:
        """Where to keep which tests call what, as long as neither code nor tests change."""
        digest = hashlib.sha256()
        for folder in ("src", "tests"):
            for path in sorted((self.root / folder).rglob("*.py")):
                digest.update(path.read_bytes())
        name = target.path.replace("/", "-")
        return self.out.with_name(f"{self.out.stem}-{name}-{digest.hexdigest()[:12]}.json")


def _stored(path: Path) -> Coverage:
    return Coverage.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else NOTHING


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


def read(out: Path) -> list[dict[str, Any]]:
    """What was tried; of a fault that was tried twice, the last attempt."""
    if not out.exists():
        return []
    entries = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return list({entry["key"]: entry for entry in entries}.values())


def of_sample(root: Path, out: Path) -> list[dict[str, Any]]:
    """Today's sample, each fault with its verdict on today's code, or `not tried` (to the end)."""
    done = {entry["key"]: entry for entry in read(out) if entry["fresh"]}
    return [
        done.get(_key(fault, root), {**asdict(fault), "name": fault.name, "verdict": NOT_TRIED})
        for fault in (attempt.fault for attempt in sample(root))
    ]


def _waits(entry: dict[str, Any] | None, again: bool) -> bool:
    return entry is None or not entry["fresh"] or (again and entry["verdict"] == SURVIVED)


def _key(fault: Fault, root: Path) -> str:
    """Names a fault in a file as it behaves: other code, another key; comments and docstrings do not count."""
    return f"{fault.digest}-{behaviour(root / fault.path)}"


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root / "src").with_suffix("").parts)
