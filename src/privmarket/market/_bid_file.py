"""Bids from CSV files: columns client, valuation, epsilon and, optionally, data_size and accuracy.

Columns may be separated by commas, semicolons or tabs; where the separator is not a comma, numbers may have decimal
commas. Other columns are ignored.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from privmarket.errors import BidError
from privmarket.market._bids import Bids

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
            separator = _separator(stream)
            return _parse(path, csv.reader(stream, delimiter=separator), separator)
    except OSError as error:
        raise BidError(f"{path}: cannot be read: {error.strerror}", "check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BidError(f"{path}: not a CSV text file: {error}", "save it as UTF-8 CSV") from error


def _separator(stream: TextIO) -> str:
    """The separator of the header line, which has no numbers in it."""
    header = stream.readline()
    stream.seek(0)
    return max(",;\t", key=header.count) if any(mark in header for mark in ",;\t") else ","


def _parse(path: Path, rows: csv._reader, separator: str) -> BidFile:  # type: ignore[name-defined]
    header = [name.strip() for name in next(rows, [])]
    _check_header(path, header)
    numeric = [name for name in _RULES if name in header]
    columns: dict[str, list[float]] = {name: [] for name in numeric}
    line_of: dict[str, int] = {}
    for row in rows:
        line = rows.line_num
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise BidError(
                f"{path}, line {line}: {len(row)} fields where the header has {len(header)}",
                "give every column a value; numbers with decimal commas need semicolons between the columns",
            )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        client = cells["client"]
        if not client:
            raise BidError(f"{path}, line {line}, field client: empty", "name the client")
        if client in line_of:
            raise BidError(
                f"{path}, line {line}, field client: {client!r} was already on line {line_of[client]}",
                "keep one bid per client",
            )
        line_of[client] = line
        for name in numeric:
            columns[name].append(_number(path, line, name, cells[name], separator))
    if not line_of:
        raise BidError(f"{path}: no bids below the header", "an auction needs at least one bid")
    bids = Bids(**columns, client_ids=tuple(line_of))
    return BidFile(tuple(line_of), bids)


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        near = get_close_matches(missing[0], header, n=1)
        guess = f"rename {near[0]!r}? " if near else ""
        raise BidError(
            f"{path}, line 1: missing column {missing[0]!r} (found: {', '.join(header) or 'nothing'})",
            f"{guess}the first line must name {', '.join(_REQUIRED)}[, {', '.join(_OPTIONAL)}]",
        )
    known = _REQUIRED + _OPTIONAL
    for name in header:
        if name in known and header.count(name) > 1:
            raise BidError(f"{path}, line 1: column {name!r} appears twice", "remove one")
        # A column of another meaning is ignored; a misspelt one would be lost silently.
        near = get_close_matches(name.lower().replace(" ", "_"), _OPTIONAL, n=1, cutoff=0.8)
        if name not in known and near and near[0] not in header:
            raise BidError(f"{path}, line 1: unknown column {name!r}", f"did you mean {near[0]!r}?")


# field → (test, what is expected)
_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "valuation": (lambda x: 0 <= x < math.inf, "a finite number of at least 0"),
    "epsilon": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "data_size": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "accuracy": (lambda x: 0 <= x <= 1, "a number between 0 and 1"),
}


def _number(path: Path, line: int, name: str, text: str, separator: str) -> float:
    accept, expected = _RULES[name]
    plain = text.replace(",", ".") if separator != "," and "." not in text and text.count(",") == 1 else text
    try:
        value = float(plain)
    except ValueError:
        value = math.nan
    if not accept(value):
        raise BidError(f"{path}, line {line}, field {name}: {text!r}", f"must be {expected}")
    return value
