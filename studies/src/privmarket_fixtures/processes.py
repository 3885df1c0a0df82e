"""Servers on this machine: free ports for them, and what they take of it, read from /proc."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privmarket.errors import PrivmarketError

_PORTS = range(20_000, 32_000)  # Linux hands out those from 32,768 on
_claims: list[socket.socket] = []


class LoadError(PrivmarketError):
    """A server under load that did not answer as it must."""

    code = "load"


def free_port() -> int:
    """A TCP port on loopback on which nothing listens, and that is given to nobody else while this process runs.

    Below those that Linux hands out to whoever asks for any port: its server may start, or be killed and start
    again, seconds later.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                claim.bind(f"\0privmarket port {port}")  # a name that Linux forgets with the process
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise LoadError("no free port", "end some of the servers on this machine")


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
