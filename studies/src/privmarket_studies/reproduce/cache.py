"""Results on disk: one JSON file per cell, written in one step, with a lock so that no cell is computed twice.

Two runs may share a folder. A lock belongs to a process and is gone when the process is, however it ended.
"""

from __future__ import annotations

import fcntl
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import NotRequired, TypedDict

from privmarket._files import write_atomically
from privmarket_studies.reproduce.cells import Cell, Config, Result


class RecordJson(TypedDict):
    """A record as it is stored: with a result, or with the reason for a failure."""

    kind: str
    config: Config
    seed: int
    depends_on: dict[str, object]
    seconds: float
    versions: dict[str, str]
    result: NotRequired[Result]
    failure: NotRequired[str]


@dataclass(frozen=True, eq=False)
class Record:
    """What became of a cell.

    Attributes:
        depends_on: revision and weights that it was computed with.
        result: None if it failed.
        failure: the reason, None if it did not fail.
        seconds: wall time of the process that computed it.
    """

    cell: Cell
    depends_on: Mapping[str, object]
    result: Result | None
    failure: str | None
    seconds: float
    versions: Mapping[str, str]

    @property
    def stale(self) -> bool:
        """Whether today's weights or code would give another result."""
        return dict(self.depends_on) != self.cell.depends_on

    def to_json(self) -> dict[str, object]:
        """The record as JSON data."""
        return {
            **self.cell.to_json(),
            "depends_on": dict(self.depends_on),
            "seconds": round(self.seconds, 3),
            "versions": dict(self.versions),
            **({"failure": self.failure} if self.result is None else {"result": self.result}),
        }

    @staticmethod
    def from_json(data: RecordJson) -> Record:
        """The record that `to_json` wrote."""
        cell = Cell(data["kind"], data["config"], data["seed"])
        return Record(
            cell, data["depends_on"], data.get("result"), data.get("failure"), data["seconds"], data["versions"]
        )


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {
        "privmarket": version("privmarket"),
        "numpy": version("numpy"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


class Cache:
    """A folder with one result file per cell, which several processes may use at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("cells", "failed", "locks", "scratch"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def load(self, cell: Cell) -> Record | None:
        """The finished result, unless code or weights have changed since; None if there is none."""
        return _read(self._place("cells", cell))

    def load_failure(self, cell: Cell) -> Record | None:
        """How the last attempt failed; None if it did not."""
        return _read(self._place("failed", cell))

    def store(self, record: Record) -> None:
        """Keeps a result or a failure; a result clears an earlier failure."""
        kept = "cells" if record.failure is None else "failed"
        write_atomically(self._place(kept, record.cell), json.dumps(record.to_json(), ensure_ascii=False) + "\n")
        if kept == "cells":
            self._place("failed", record.cell).unlink(missing_ok=True)

    def adopt(self, records: Iterable[Record]) -> None:
        """Takes in results that were kept elsewhere and are still valid, so that they are not computed again."""
        for record in records:
            if record.failure is None and not record.stale and self.load(record.cell) is None:
                self.store(record)

    def scratch(self, cell: Cell) -> Path:
        """A folder in which a long cell may keep its state."""
        return self.folder / "scratch" / cell.key

    @contextmanager
    def lock(self, cell: Cell) -> Iterator[bool]:
        """True if nobody else computes this cell meanwhile, False (at once) if somebody does."""
        with (self.folder / "locks" / cell.key).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _place(self, part: str, cell: Cell) -> Path:
        return self.folder / part / f"{cell.key}.json"


def _read(path: Path) -> Record | None:
    try:
        return Record.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        # A damaged file is no result: the cell is computed again and the file replaced.
        return None


def write_bundle(path: Path, records: Iterable[Record]) -> None:
    """All results of a question in one file, a line each, in a stable order."""
    placed = sorted(records, key=lambda record: json.dumps(record.cell.to_json(), sort_keys=True))
    lines = [json.dumps(record.to_json(), ensure_ascii=False) for record in placed]
    write_atomically(path, "\n".join(lines) + "\n")


def read_bundle(path: Path) -> list[Record]:
    """Reads the results of a question from the file that `write_bundle` wrote."""
    return [Record.from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
