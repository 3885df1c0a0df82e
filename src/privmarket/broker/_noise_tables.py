"""Noise tables of release schedules, prepared before they are needed, in a process that can be ended.

A full batch and a single sampled step have closed forms and are ready at once. Any other schedule needs a table
that takes seconds to minutes, and buyers choose the schedule. So a table is built in a separate process, at the
lowest priority, with limits on memory and time, and never inside a write. An account may have one table under
way, and a few a day. Finished tables are in the cache folder, where bids and auctions find them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from privmarket.broker._errors import ConflictError, TooManyRequestsError, UnavailableError
from privmarket.privacy import _calibration as tables
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallets

if sys.platform != "win32":
    import resource

PATIENCE_SECONDS = 20.0
BUILD_SECONDS = 600.0  # after which a table is given up
MEMORY_BYTES = 1 << 30  # of address space of the process that builds a table
TABLES_A_DAY = 10  # that one account may ask for
CLOSED_FORMS_A_DAY = 500  # new schedules with a closed form, a tenth of a second each
_DAY_SECONDS = 86_400.0
_QUEUE_MOST = 8
_WAITERS_MOST = 8  # each holds a thread of the server while it waits
_REMEMBERED = 10_000  # schedules that are ready, and as many that were given up
_OPERATOR = ""  # the broker itself, which has no quota


@dataclass
class _Job:
    """A table that is queued or being built."""

    family: ReleaseFamily
    account: str
    done: threading.Event = field(default_factory=threading.Event)
    process: subprocess.Popen[bytes] | None = None


class TableBuilder:
    """Builds tables one after the other. `stop` ends the one under way and refuses further ones."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "privmarket.broker._noise_tables")) -> None:
        """`command`: starts the process that builds one table; sampling rate, steps and δ are added to it."""
        self._command = list(command)
        self._lock = threading.Lock()
        self._ready: OrderedDict[ReleaseFamily, None] = OrderedDict()
        self._failed: OrderedDict[ReleaseFamily, str] = OrderedDict()
        self._jobs: dict[ReleaseFamily, _Job] = {}
        self._asked: dict[tuple[str, int], deque[float]] = {}
        self._queue: deque[_Job] = deque()
        self._worker: threading.Thread | None = None
        self._waiters = 0
        self._stopped = False

    def is_ready(self, family: ReleaseFamily) -> bool:
        """Whether everything that an auction needs of this schedule is in memory."""
        return family in self._ready

    def prepare(self, family: ReleaseFamily, account: str = _OPERATOR, patience_seconds: float = -1.0) -> None:
        """Returns once everything that an auction needs of a schedule is in memory.

        Args:
            account: who asks, for its quota; the broker itself by default.
            patience_seconds: how long to wait; 0 only begins, negative means `PATIENCE_SECONDS`.

        Raises:
            UnavailableError: the table is being built; the same request may be sent again later.
            TooManyRequestsError: this account has a table under way, or had its tables for today.
            ConflictError: the schedule needs more memory or time than this broker gives to one.
        """
        patience = PATIENCE_SECONDS if patience_seconds < 0 else patience_seconds
        if family in self._ready:
            return
        if patience > 0 and tables.is_ready(family.delta, family.sampling_rate, family.steps):
            with self._lock:
                self._take_quota(account, CLOSED_FORMS_A_DAY)
            self._load(family)
            return
        with self._lock:
            job = self._job(family, account)
            if patience > 0:
                if self._waiters >= _WAITERS_MOST:
                    raise _preparing(family)
                self._waiters += 1
        if patience == 0:
            return
        try:
            finished = job.done.wait(patience)
        finally:
            with self._lock:
                self._waiters -= 1
        if not finished:
            raise _preparing(family)
        if family in self._failed:
            raise _too_costly(family, self._failed[family])
        if family not in self._ready:
            raise UnavailableError("the broker is stopping", "send the same again in a minute")

    def stop(self) -> None:
        """Ends the process under way and wakes everybody who waits."""
        with self._lock:
            self._stopped = True
            waiting = list(self._jobs.values())
        for job in waiting:
            if job.process is not None:
                job.process.kill()
            job.done.set()

    def _job(self, family: ReleaseFamily, account: str) -> _Job:
        """The table's place in the queue, made if there is none; call it with the lock held."""
        if family in self._failed:
            raise _too_costly(family, self._failed[family])
        if family in self._jobs:
            return self._jobs[family]
        if self._stopped:
            raise UnavailableError("the broker is stopping", "send the same again in a minute")
        if account != _OPERATOR and any(job.account == account for job in self._jobs.values()):
            raise TooManyRequestsError(
                "a new release schedule of this account is being computed", "wait for it, then publish the next"
            )
        if account != _OPERATOR and len(self._queue) >= _QUEUE_MOST:
            error = UnavailableError(
                "too many new release schedules at once", "use one of an earlier task, or wait"
            )
            error.code = "preparing"
            raise error
        self._take_quota(account, TABLES_A_DAY)
        job = _Job(family, account)
        self._jobs[family] = job
        self._queue.append(job)
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="noise tables", daemon=True)
            self._worker.start()
        return job

    def _take_quota(self, account: str, a_day: int) -> None:
        """Counts one of the new schedules that an account may have in a day; call it with the lock held."""
        if account == _OPERATOR:
            return
        recent = self._asked.setdefault((account, a_day), deque())
        now = time.monotonic()
        while recent and recent[0] < now - _DAY_SECONDS:
            recent.popleft()
        if len(recent) >= a_day:
            raise TooManyRequestsError(
                f"this account had {a_day} new release schedules today", "use a schedule of an earlier task"
            )
        recent.append(now)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue or self._stopped:
                    self._worker = None
                    return
                job = self._queue.popleft()
            fault = self._build(job)
            with self._lock:
                if fault is not None and not self._stopped:
                    self._failed[job.family] = fault
                    if len(self._failed) > _REMEMBERED:
                        self._failed.popitem(last=False)
                del self._jobs[job.family]
            job.done.set()

    def _build(self, job: _Job) -> str | None:
        """Runs the process that builds one table; returns what went wrong, or None."""
        family = job.family
        if tables.is_ready(family.delta, family.sampling_rate, family.steps):
            self._load(family)
            return None
        _require_cache()
        numbers = [repr(family.sampling_rate), str(family.steps), repr(family.delta)]
        try:
            with self._lock:
                if self._stopped:
                    return None
                job.process = subprocess.Popen(
                    [*self._command, *numbers],
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            code = job.process.wait(BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            assert job.process is not None
            job.process.kill()
            job.process.wait()
            return f"more than {BUILD_SECONDS:g} s"
        except OSError as error:
            return f"a process that could not be started: {error.strerror}"
        if code != 0 or not tables.is_ready(family.delta, family.sampling_rate, family.steps):
            return f"more than {MEMORY_BYTES >> 20} MiB of memory, or has no noise that suffices"
        self._load(family)
        return None

    def _load(self, family: ReleaseFamily) -> None:
        """Reads the table, or evaluates the closed form, and computes the costs that every wallet shares."""
        family.menu()
        Wallets([1.0], family.delta).is_empty(family)
        with self._lock:
            self._ready[family] = None
            if len(self._ready) > _REMEMBERED:
                self._ready.popitem(last=False)


def _preparing(family: ReleaseFamily) -> UnavailableError:
    error = UnavailableError(
        f"noise for sampling rate {family.sampling_rate} over {family.steps} steps is being computed",
        "this schedule is new here; send the same again in a minute",
    )
    error.code = "preparing"
    return error


def _too_costly(family: ReleaseFamily, needs: str) -> ConflictError:
    schedule = f"sampling rate {family.sampling_rate:g} over {family.steps:,} steps at delta {family.delta:g}"
    error = ConflictError(
        f"the noise of {schedule} needs {needs}",
        "take fewer steps or a larger sampling rate; sampling_rate 1 and steps 1 need no table",
    )
    error.code = "schedule-too-costly"
    return error


def _require_cache() -> None:
    """Uses a temporary cache folder if the usual one is not writable; processes pass tables by that folder."""
    folder = tables.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except OSError:
        pass
    os.environ["PRIVMARKET_CACHE"] = tempfile.mkdtemp(prefix="privmarket-tables-")


builder = TableBuilder()


def is_ready(family: ReleaseFamily) -> bool:
    """Whether everything that an auction needs of this schedule is in memory."""
    return builder.is_ready(family)


def prepare(family: ReleaseFamily, account: str = _OPERATOR, patience_seconds: float = -1.0) -> None:
    """See `TableBuilder.prepare`."""
    builder.prepare(family, account, patience_seconds)


def main(arguments: Sequence[str]) -> None:
    """Builds one table within the limits on memory and time, and leaves it in the cache folder."""
    sampling_rate, steps, delta = float(arguments[0]), int(arguments[1]), float(arguments[2])
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (round(BUILD_SECONDS), round(BUILD_SECONDS)))
        os.nice(19)
    tables.noise_table(delta, sampling_rate, steps)


if __name__ == "__main__":
    main(sys.argv[1:])
