"""What the servers of a measurement take of the machine, read from /proc."""

from __future__ import annotations

import os
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


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended
        return ""
