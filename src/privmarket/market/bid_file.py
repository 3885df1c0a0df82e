"""Bids from and to CSV files: columns client, valuation, epsilon and, optionally, data_size and accuracy."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privmarket.errors import BidError
from privmarket.market.bids import Bids

_REQUIRED = ("client", "valuation", "epsilon")
_OPTIONAL = ("data_size", "accuracy")


@dataclass(frozen=True)
class BidFile:
    """Named bids. clients: one name per bid; bids: (clients,)."""

    clients: tuple[str, ...]
    bids: Bids


def read_bids(path: str | Path) -> BidFile:
    """Reads and checks a file of bids; the first thing wrong is named with its line, field and value."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            return _parse(path, csv.reader(stream))
    except OSError as error:
        raise BidError(f"{path}: cannot be read: {error.strerror}", "check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BidError(f"{path}: not a CSV text file: {error}", "save it as UTF-8 CSV") from error


def _parse(path: Path, rows: csv._reader) -> BidFile:  # type: ignore[name-defined]
    header = [name.strip() for name in next(rows, [])]
    _check_header(path, header)
    numeric = [name for name in header if name != "client"]
    columns: dict[str, list[float]] = {name: [] for name in numeric}
    line_of: dict[str, int] = {}
    for row in rows:
        line = rows.line_num
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise BidError(
                f"{path}, line {line}: {len(row)} fields where the header has {len(header)}",
                "give every column a value",
            )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        client = cells["client"]
        if not client:
            raise BidError(f"{path}, line {line}, field client: empty", "name the client")
        if client in line_of:
            raise BidError(
                f"{path}, line {line}, field client: {client!r} was already on line {line_of[client]}",
                "one bid per client",
            )
        line_of[client] = line
        for name in numeric:
            columns[name].append(_number(path, line, name, cells[name]))
    if not line_of:
        raise BidError(f"{path}: no bids below the header", "an auction needs at least one bid")
    bids = Bids(columns["valuation"], columns["epsilon"], columns.get("data_size"), columns.get("accuracy"))
    return BidFile(tuple(line_of), bids)


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise BidError(
            f"{path}, line 1: missing column {missing[0]!r} (found: {', '.join(header) or 'nothing'})",
            f"the first line must name {', '.join(_REQUIRED)}[, {', '.join(_OPTIONAL)}]",
        )
    for name in header:
        if name not in _REQUIRED + _OPTIONAL:
            raise BidError(f"{path}, line 1: unknown column {name!r}", "remove or rename it")
        if header.count(name) > 1:
            raise BidError(f"{path}, line 1: column {name!r} appears twice", "remove one")


# field → (test, what is expected)
_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "valuation": (lambda x: 0 <= x < math.inf, "a finite number of at least 0"),
    "epsilon": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "data_size": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "accuracy": (lambda x: 0 <= x <= 1, "a number between 0 and 1"),
}


def _number(path: Path, line: int, name: str, text: str) -> float:
    accept, expected = _RULES[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not accept(value):
        raise BidError(f"{path}, line {line}, field {name}: {text!r}", f"must be {expected}")
    return value
