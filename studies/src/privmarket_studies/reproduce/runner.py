"""Computes the cells that are missing: in this process or in several, going on where one fails."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from privmarket_studies.reproduce.cache import Cache, Record, versions
from privmarket_studies.reproduce.cells import Cell
from privmarket_studies.reproduce.estimate import CellTimer, Remaining

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunStatus:
    """How far a run of cells is."""

    done: int
    failed: int
    total: int
    running: tuple[Cell, ...]
    remaining: Remaining


OnStatus = Callable[[RunStatus], None]


def run_cells(
    cells: Iterable[Cell],
    cache: Cache,
    *,
    jobs: int = 1,
    minutes: float | None = None,
    on_status: OnStatus = lambda status: None,
) -> list[Record]:
    """Computes every cell that the cache does not hold.

    Args:
        jobs: processes; with 1 everything happens in this one.
        minutes: start no further cell after so many; cells under way are finished.

    Returns:
        One record per cell that is finished or has failed; cells that were not started are left out.
    """
    wanted = list({cell.key: cell for cell in cells}.values())
    return _Run(wanted, cache, jobs, minutes, on_status).run()


def compute(cell: Cell, folder: Path) -> Record | None:
    """Computes one cell and keeps it; None if somebody else is computing it just now."""
    _one_thread()
    cache = Cache(folder)
    with cache.lock(cell) as mine:
        if not mine:
            return None
        if (kept := cache.load(cell)) is not None:
            return kept
        started = time.perf_counter()
        try:
            result, failure = cell.compute(cache.scratch(cell)), None
        except Exception as error:  # one broken cell must not cost the others
            result, failure = None, f"{type(error).__name__}: {error}"
        record = Record(cell, cell.depends_on, result, failure, time.perf_counter() - started, versions())
        cache.store(record)
        return record


class _Run:
    def __init__(
        self, cells: Sequence[Cell], cache: Cache, jobs: int, minutes: float | None, on_status: OnStatus
    ) -> None:
        self.cache, self.jobs, self.on_status = cache, max(1, jobs), on_status
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.clock, self.total = CellTimer(), len(cells)
        self.waiting: deque[Cell] = deque()
        self.running: dict[Future[Record | None], Cell] = {}
        self.records: dict[str, Record] = {}
        for cell in cells:
            kept = cache.load(cell)
            if kept is None:
                self.waiting.append(cell)
            else:
                self._finish(cell, kept)
        self.order = [cell.key for cell in cells]

    def run(self) -> list[Record]:
        self._tell()
        if self.waiting:
            self._here() if self.jobs == 1 else self._in_processes()
        return [self.records[key] for key in self.order if key in self.records]

    def _here(self) -> None:
        busy_in_a_row = 0
        while self.waiting and not self._late():
            cell = self.waiting.popleft()
            self._tell(cell)
            record = compute(cell, self.cache.folder)
            if record is None:
                self.waiting.append(cell)
                busy_in_a_row += 1
                if busy_in_a_row >= len(self.waiting):
                    time.sleep(_POLL_SECONDS)
            else:
                busy_in_a_row = 0
                self._finish(cell, record)
            self._tell()

    def _in_processes(self) -> None:
        pool = self._new_pool()
        try:
            while self.running or (self.waiting and not self._late()):
                while self.waiting and len(self.running) < self.jobs and not self._late():
                    cell = self.waiting.popleft()
                    self.running[pool.submit(compute, cell, self.cache.folder)] = cell
                self._tell()
                if self._collect():
                    pool.shutdown(wait=False, cancel_futures=True)
                    pool = self._new_pool()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _collect(self) -> bool:
        """Takes in what is finished; True if the pool broke."""
        finished, _ = wait(self.running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        broken = any(isinstance(future.exception(), BrokenProcessPool) for future in finished)
        for future in list(self.running) if broken else finished:
            cell = self.running.pop(future)
            error = future.exception() if future.done() else BrokenProcessPool()
            if error is None:
                record = future.result()
            else:
                died = isinstance(error, BrokenProcessPool)
                reason = "the process that computed it died" if died else f"{type(error).__name__}: {error}"
                record = Record(cell, cell.depends_on, None, reason, 0.0, versions())
                self.cache.store(record)
            if record is None:
                self.waiting.append(cell)
            else:
                self._finish(cell, record)
        return broken

    def _new_pool(self) -> ProcessPoolExecutor:
        # Fresh interpreters: a fork of a process that runs threads may hang.
        return ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _one_thread)

    def _finish(self, cell: Cell, record: Record) -> None:
        self.records[cell.key] = record
        if record.failure is None:
            self.clock.add(cell, record.seconds)

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _tell(self, *cells: Cell) -> None:
        running = (*self.running.values(), *cells)
        failed = sum(record.failure is not None for record in self.records.values())
        left = self.clock.remaining([*self.waiting, *running], self.jobs)
        self.on_status(RunStatus(len(self.records) - failed, failed, self.total, running, left))


def _one_thread() -> None:
    """Limits OpenMP to one thread: on a busy machine two were seen many times slower."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
