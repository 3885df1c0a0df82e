"""Tables, read a block of rows at a time: CSV, TSV, Parquet, a folder with a file per client, a data frame.

Only one block is held as text at any time, so that a file may be much larger than memory.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import DataError, UnknownNameError
from privmarket.tasks._schema import number_text

if TYPE_CHECKING:
    from types import ModuleType

    parquet: ModuleType
else:
    parquet = late("pyarrow.parquet")

_BLOCK_ROWS = 2_000  # few enough for their cells to stay in the processor's cache
_SEPARATORS = ",;\t|"
_CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".tab")
_PARQUET_SUFFIXES = (".parquet", ".pq")
# 1,5 and 1.234,5; and numbers that are read where such stand: with points between thousands, at least twice or
# before a comma, since 1.234 could mean either.
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
_WITH_THOUSANDS = re.compile(r"[+-]?\d{1,3}((\.\d{3})+,\d+|(\.\d{3}){2,})")
FILE_NAME = "\0file"
"""The column of a folder that holds the name of the file a row stands in."""

Cells = Sequence[str] | NDArray[np.float64]
"""The cells of a column: as text, or as numbers (NaN where missing) where the file has types."""


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows that stand together in a file.

    Attributes:
        source: the file.
        lines: line (or row) of each row, from 1.
        line_word: "line" of a text file, "row" where there are no lines.
        cells: column → cells.
        decimal_comma: where the file writes 1,5 for 1.5, the first place that does; else empty.
    """

    source: str
    lines: Sequence[int]
    line_word: str
    cells: Mapping[str, Cells]
    decimal_comma: str = ""

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int, column: str) -> str:
        """Where a cell stands, for a message."""
        return f"{self.source}, {self.line_word} {self.lines[row]}, column {column!r}"


class Table(Protocol):
    """Something with named columns that can be read a block at a time, as often as needed."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns."""

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """All rows, block after block, with these columns."""


def read_table(path: str | Path) -> Table:
    """The table in a file or folder; its header is read and checked now.

    Text files are UTF-8; columns are separated by commas, semicolons, tabs or bars, whichever the header has most
    of.
    """
    path = Path(path)
    if path.is_dir():
        return FolderTable.of(path)
    if not path.exists():
        raise DataError(f"{path}: no such file", "check the path")
    suffix = path.suffix.lower()
    if suffix in _PARQUET_SUFFIXES:
        return ParquetTable.of(path)
    if suffix in _CSV_SUFFIXES:
        return CsvTable.of(path)
    raise DataError(
        f"{path}: {suffix or 'a file without an ending'} is no kind of table that is read here",
        "give .csv, .tsv, .parquet or a folder of such files",
    )


def require_column(table: Table, column: str, what: str) -> None:
    """Refuses a table without the column that should be the `what`, with the nearest name."""
    if column not in table.columns:
        shown = [name for name in table.columns if name != FILE_NAME]
        raise DataError(f"{table.name}: no column {column!r} for the {what}", _nearest(column, shown))


def _nearest(column: str, shown: Sequence[str]) -> str:
    return UnknownNameError.among("column", column, shown).hint


def number_in(text: str, decimal_comma: object = False) -> float:
    """The number that a cell holds.

    Args:
        decimal_comma: whether its file writes 1,5 for 1.5; points then stand between thousands.

    Raises:
        ValueError: it is no number in the notation of its file.
    """
    if decimal_comma:
        if "." in text:
            if not _WITH_THOUSANDS.fullmatch(text):
                raise ValueError(text)
            text = text.replace(".", "")
        text = text.replace(",", ".")
    return float(text)


def cell_text(cells: Cells, row: int) -> str:
    """One cell as text; a missing number is empty."""
    if isinstance(cells, np.ndarray):
        value = float(cells[row])
        return "" if math.isnan(value) else number_text(value)
    return cells[row]


def texts(cells: Cells) -> Sequence[str]:
    """All cells as text."""
    if isinstance(cells, np.ndarray):
        return ["" if value != value else number_text(value) for value in cells.tolist()]
    return cells


def _checked_header(source: str, header: Sequence[str], separators: str = "") -> tuple[str, ...]:
    """The names of the columns; refuses a file that has none, or the same twice."""
    names = [name.strip() for name in header]
    if not any(names):
        raise DataError(f"{source}: the file is empty", "its first line must name the columns")
    if len(names) == 1 and separators:
        raise DataError(
            f"{source}, line 1: only one column, {names[0][:60]!r}",
            "separate columns by commas, semicolons or tabs",
        )
    for at, name in enumerate(names):
        if not name and at > 0:
            raise DataError(f"{source}, line 1: column {at + 1} has no name", "name it or remove it")
        if names.index(name) != at:
            raise DataError(
                f"{source}, line 1: column {name!r} appears twice (columns {names.index(name) + 1} and {at + 1})",
                "rename or remove one",
            )
    return tuple(names)


@dataclass(frozen=True)
class CsvTable:
    """A text file with a line of names first. A first column without a name holds row numbers and is not used."""

    path: Path
    header: tuple[str, ...]
    separator: str

    @classmethod
    def of(cls, path: Path) -> CsvTable:
        """Reads and checks the header."""
        with _readable(path), path.open(newline="", encoding="utf-8-sig") as stream:
            first = stream.readline()
            counts = {mark: first.count(mark) for mark in _SEPARATORS}
            separator = max(counts, key=lambda mark: counts[mark]) if any(counts.values()) else ","
            stream.seek(0)
            header = next(csv.reader(stream, delimiter=separator, strict=True), [])
        return cls(path, _checked_header(str(path), header, _SEPARATORS), separator)

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, without row numbers."""
        return tuple(name for name in self.header if name)

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """All rows, block after block, with these columns."""
        at = [self.header.index(name) for name in columns]
        width = len(self.header)
        with _readable(self.path), self.path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=self.separator, strict=True)
            next(reader, None)
            while True:
                before = reader.line_num
                rows = list(islice(reader, _BLOCK_ROWS))
                if not rows:
                    return
                lines: Sequence[int] = range(before + 1, reader.line_num + 1)
                if len(lines) != len(rows):  # cells with line breaks in them
                    heights = [1 + sum(cell.count("\n") for cell in row) for row in rows]
                    lines = (before + 1 + np.cumsum([0, *heights[:-1]])).tolist()
                if set(map(len, rows)) != {width}:
                    rows, lines = self._whole_rows(rows, lines)
                    if not rows:
                        continue
                cells: dict[str, Sequence[str]] = {}
                if len(at) * 4 < width:
                    cells = {name: [row[place] for row in rows] for name, place in zip(columns, at, strict=True)}
                else:
                    turned = list(zip(*rows, strict=True))
                    cells = {name: turned[place] for name, place in zip(columns, at, strict=True)}
                yield Block(self.name, lines, "line", cells, self.decimal_comma)

    @cached_property
    def decimal_comma(self) -> str:
        """The first cell that is a number with a decimal comma, and its place; empty where there is none.

        Only looked for where columns are not separated by commas.
        """
        if self.separator == ",":
            return ""
        with _readable(self.path), self.path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=self.separator, strict=True)
            next(reader, None)
            for row in reader:
                for name, cell in zip(self.header, row, strict=False):
                    if "," in cell and _DECIMAL_COMMA.fullmatch(cell.strip()):
                        return f"{cell.strip()!r} in line {reader.line_num}, column {name!r}"
        return ""

    def _whole_rows(self, rows: list[list[str]], lines: Sequence[int]) -> tuple[list[list[str]], list[int]]:
        """Without blank lines; refuses rows of another length."""
        kept: list[list[str]] = []
        kept_lines: list[int] = []
        for row, line in zip(rows, lines, strict=True):
            if len(row) < 2 and not "".join(row).strip():
                continue
            if len(row) != len(self.header):
                raise DataError(
                    f"{self.path}, line {line}: {len(row)} fields where the header has {len(self.header)}",
                    "put cells that contain the separator into quotes, and give every column a cell",
                )
            kept.append(row)
            kept_lines.append(line)
        return kept, kept_lines


class _readable:
    """Turns errors of reading a text file into one that names the file and the place."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnicodeDecodeError):
            raise DataError(
                f"{self.path}, line {_line_of_bad_byte(self.path)}: not UTF-8 text", "save the file as UTF-8"
            ) from error
        if isinstance(error, csv.Error):
            raise DataError(f"{self.path}: not a CSV file: {error}", "check its quotes, or save it anew") from error
        if isinstance(error, OSError):
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}", "check the path") from error


def _line_of_bad_byte(path: Path) -> int:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file; needs pyarrow. Lists, structs and binary columns cannot be used."""

    path: Path
    columns: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> ParquetTable:
        """Reads and checks the names of the columns."""
        try:
            names = parquet.read_schema(path).names
        except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
            raise DataError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}", "write it anew") from error
        return cls(path, _checked_header(str(path), names))

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """All rows, block after block, with these columns."""
        done = 0
        with parquet.ParquetFile(self.path) as stored:
            for batch in stored.iter_batches(batch_size=_BLOCK_ROWS, columns=list(columns)):
                cells = {
                    name: _arrow_cells(batch.column(name), f"{self.path}, column {name!r}") for name in columns
                }
                yield Block(self.name, range(done + 1, done + len(batch) + 1), "row", cells)
                done += len(batch)


def _arrow_cells(column: object, where: str) -> Cells:
    """Numbers as float64 with NaN for nulls; everything else as text, dates in ISO form."""
    kind = str(column.type)  # type: ignore[attr-defined]
    if kind.startswith(("int", "uint", "float", "double", "half")):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)  # type: ignore[attr-defined]
    if kind.startswith(("list", "struct", "map", "binary", "large_list", "fixed_size")):
        raise DataError(f"{where} holds {kind}", "leave the column out, or store numbers or text")
    values = column.to_pylist()  # type: ignore[attr-defined]
    return [object_text(value) for value in values]


def object_text(value: object) -> str:
    """A value of any type as a cell: nothing is empty, truth is "true" or "false", dates are in ISO form."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | float | np.number):
        return number_text(float(value))
    return str(value)


@dataclass(frozen=True)
class FolderTable:
    """A folder with a file per client; a file's name without its ending is the client's name."""

    path: Path
    parts: tuple[Table, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> FolderTable:
        """Reads and checks all headers; all files must have the columns of the first."""
        suffixes = (*_CSV_SUFFIXES, *_PARQUET_SUFFIXES)
        files = sorted(one for one in path.iterdir() if one.suffix.lower() in suffixes and one.is_file())
        if not files:
            raise DataError(
                f"{path}: no tables in this folder", f"put one file per client into it: {suffixes[0]}, …"
            )
        names = [one.stem for one in files]
        for at, name in enumerate(names):
            if names.index(name) != at:
                raise DataError(f"{path}: two files are named {name!r}", "keep one file per client")
        parts = tuple(read_table(one) for one in files)
        for part in parts[1:]:
            missing = [name for name in parts[0].columns if name not in part.columns]
            if missing:
                raise DataError(
                    f"{part.name}: no column {missing[0]!r}, which {parts[0].name} has",
                    "give all files the same columns",
                )
        return cls(path, parts, (*parts[0].columns, FILE_NAME))

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """All rows, file after file, with these columns."""
        stored = [name for name in columns if name != FILE_NAME]
        for part in self.parts:
            rows = 0
            for block in part.blocks(stored):
                rows += len(block)
                cells = dict(block.cells)
                if FILE_NAME in columns:
                    cells[FILE_NAME] = [Path(part.name).stem] * len(block)
                yield Block(block.source, block.lines, block.line_word, cells, block.decimal_comma)
            if not rows:
                raise DataError(f"{part.name}: no records below the header", "remove the file, or add its records")


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Columns in memory: arrays, lists, or the columns of a data frame."""

    name: str
    stored: Mapping[str, Cells]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.stored)

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """All rows, block after block, with these columns."""
        rows = len(next(iter(self.stored.values()))) if self.stored else 0
        for start in range(0, rows, _BLOCK_ROWS):
            end = min(rows, start + _BLOCK_ROWS)
            cells = {name: self.stored[name][start:end] for name in columns}
            yield Block(self.name, range(start + 1, end + 1), "row", cells)
