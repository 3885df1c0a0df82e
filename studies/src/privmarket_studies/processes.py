"""What the servers of a measurement take of the machine, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privmarket_studies.broker_load import LoadError


def serving(port: int) -> int:
    """The process that we started with this port among its arguments."""
    found = [pid for pid in children(os.getpid()) if str(port) in _read(pid, "cmdline")]
    if not found:
        raise LoadError(f"no process of ours serves port {port}", "this is measured on Linux only")
    return found[0]


def children(pid: int) -> list[int]:
    """The ids of the processes that process `pid` started."""
    tasks = Path(f"/proc/{pid}/task").glob("*") if Path(f"/proc/{pid}/task").exists() else []
    return [int(child) for task in tasks for child in _read(pid, f"task/{task.name}/children").split()]


def resident_mb(pid: int) -> float:
    """The resident memory of a process in megabytes; 0 once it has ended."""
    lines = [line for line in _read(pid, "status").splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) / 1024 if lines else 0.0


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processor so far, in user and system mode; 0 once it has ended."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    if not fields:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def first_in_line(pids: list[int], wanted: bool = True) -> Iterator[None]:
    """Real-time priority for processes, for the few seconds of a measurement on a machine that others use, too.

    Raises:
        LoadError: this user may not give it.
    """
    if wanted:
        _schedule(pids, os.SCHED_RR, 1)
    try:
        yield
    finally:
        if wanted:
            _schedule(pids, os.SCHED_OTHER, 0)


def _schedule(pids: list[int], policy: int, priority: int) -> None:
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))
            except PermissionError:
                raise LoadError("real-time priority is not yours to give", "leave out --real-time") from None
            except ProcessLookupError:  # a thread that has ended
                continue


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended
        return ""
