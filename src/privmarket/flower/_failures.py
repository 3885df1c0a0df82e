"""Errors of a client for its owner: the error, and the line of the owner's own file.

A server gets one word (`privacy._policy.Reason`). The owner of a client finds the details in the client's log. If
client and user are the same person, in one process or in processes that `privmarket flower run` started, the first
error of each client is repeated at the end of the run.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from privmarket.errors import PrivmarketError

LOGGER = "privmarket.client"
_RUN_OUTPUT = "flwr.privmarket"
# In the environment of clients that `privmarket flower run` started: a file for the first line of each error.
# Flower's simulation discards the output of its workers.
FILE_VARIABLE = "PRIVMARKET_FAILURES"
_PACKAGE = Path(__file__).resolve().parents[1]
_MARK = "client failure: "
_MARKED = re.compile(re.escape(_MARK) + r"(?P<client>\S+): (?P<story>.*)")
_LONGEST = 400


def own_line(error: BaseException) -> str:
    """`file.py, line 12, in train`: the innermost line of the owner's own code on the way to an error.

    Code of this package, of Python and of installed packages is skipped. Causes are followed, because an error may
    have been turned into a refusal. Empty if no line of the owner's code is involved.
    """
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    for found in reversed(chain):
        for frame in reversed(traceback.extract_tb(found.__traceback__)):
            if _is_own(frame.filename):
                return f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return ""


def story(error: BaseException) -> str:
    """An error in one line: the place in the owner's code, the kind of error, and its message."""
    root = error
    while root.__cause__ is not None and not isinstance(root, PrivmarketError):
        root = root.__cause__
    where = own_line(error)
    said = str(root).strip() or "no message"
    text = said if isinstance(root, PrivmarketError) else f"{type(root).__name__}: {said}"
    line = f"{where}: {text}" if where else text
    return "".join(c if c.isprintable() else " " for c in line)[:_LONGEST]


def marked(client: str, error: BaseException) -> str:
    """The line of a client's log that `in_logs` finds."""
    line = f"{_MARK}{client}: {story(error)}"
    place = os.environ.get(FILE_VARIABLE)
    if place:
        with suppress(OSError), Path(place).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    return line


def in_logs(texts: Iterable[str]) -> dict[str, str]:
    """Client → its first error, from the logs of one's own processes."""
    found: dict[str, str] = {}
    for text in texts:
        for line in text.splitlines():
            match = _MARKED.search(line)
            if match is not None:
                plain = re.sub(r"\x1b\[[0-9;]*m", "", match["story"]).strip()
                found.setdefault(match["client"], plain)
    return found


class _Collector(logging.Handler):
    """Keeps the first marked line of each client. Other warnings, e.g. of NaN records, go to the run's output."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        for client, text in in_logs([said]).items():
            self.found.setdefault(client, text)
        if record.levelno == logging.WARNING and said not in self._told:
            self._told.add(said)
            logging.getLogger(_RUN_OUTPUT).warning("a client says: %s", said)


@contextmanager
def collected() -> Iterator[dict[str, str]]:
    """A context that collects client → its first error, for clients in this process."""
    collector = _Collector()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(collector)
    try:
        yield collector.found
    finally:
        logger.removeHandler(collector)


def summary_lines(found: dict[str, str]) -> list[str]:
    """One line per error, with the clients that had it."""
    clients: dict[str, list[str]] = {}
    for client, text in found.items():
        clients.setdefault(text, []).append(client)
    lines = []
    for text, names in clients.items():
        who = f"client {names[0]}" if len(names) == 1 else f"clients {', '.join(names)}"
        lines.append(f"{who} failed: {text}")
    return lines


def _is_own(filename: str) -> bool:
    """Whether a file is the owner's: not of this package, of Python, or of an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places = [_PACKAGE, *(Path(place).resolve() for place in installed if place)]
    examples = _PACKAGE / "examples"
    if examples in path.parents:
        return True
    if Path(sys.prefix).resolve() in path.parents and "site-packages" in path.parts:
        return False
    return not any(place in path.parents for place in places)
