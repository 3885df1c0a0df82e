"""What a question comes to: text, tables and figures, still without a format."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2

from privmarket.errors import PrivmarketError
from privmarket_studies.reproduce.cache import Record
from privmarket_studies.reproduce.cells import Cell, Result
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


OUTDATED = "older weights"
"""What a table shows where a result was computed with other weights (or other code) than those that ship."""
NOT_COMPUTED = "not computed yet"
"""What a table shows where a cell is listed and nobody has computed it."""
_EMPTY = ("", "-", "–", "—")


class UnexplainedGapError(PrivmarketError):
    """A table has a cell with neither a figure nor a reason."""

    code = "unexplained-gap"


@dataclass(frozen=True)
class Text:
    """A block of Markdown."""

    markdown: str


def prose(name: str, **values: object) -> Text:
    """The template `prose/<name>.md` with its values filled in; an unknown value is an error.

    The pages' texts are templates beside this module; every figure in them comes from the cells.
    """
    text = (files("privmarket_studies.reproduce") / "prose" / f"{name}.md").read_text(encoding="utf-8")
    filled = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True).render(**values)
    return Text(filled.strip())


@dataclass(frozen=True)
class Table:
    """Rows of texts; a cell without a figure says why there is none.

    Attributes:
        name: the stem of its CSV file.
        caption: what is shown, over how many seeds.
        linked: whether the page links the CSV file instead of showing the rows.

    Raises:
        UnexplainedGapError: a cell is empty or a bare dash.
    """

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    linked: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                if cell.strip() in _EMPTY:
                    raise UnexplainedGapError(
                        f"table {self.name}, row {row[0]!r}: {column!r} is {cell!r}",
                        f"say why there is no figure, for example {NOT_COMPUTED!r}",
                    )

    def markdown(self) -> str:
        """A Markdown table under its caption."""
        lines = [f"**{self.caption}**", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join([*lines, *(_line(row) for row in self.rows)])

    def csv(self) -> str:
        """The same rows, figures and spreads in columns of their own."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        split = [any(" ± " in row[i] for row in self.rows) for i in range(len(self.columns))]
        head = [c if not two else (c, f"{c} (std)") for c, two in zip(self.columns, split, strict=True)]
        writer.writerow(_flat(head))
        for row in self.rows:
            cells = [c if not two else tuple([*c.split(" ± "), ""][:2]) for c, two in zip(row, split, strict=True)]
            writer.writerow(_flat(cells))
        return stream.getvalue()


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn when it is written.

    Attributes:
        name: the stem of its files.
        caption: what is shown.
        draw: makes it.
    """

    name: str
    caption: str
    draw: Callable[[], Drawing]


Block = Text | Table | Figure


@dataclass(frozen=True)
class ResultPage:
    """The page of one question: a title and blocks in order."""

    name: str
    title: str
    blocks: Sequence[Block]


def with_command(page: ResultPage, options: str) -> ResultPage:
    """The page of a run with these options, which ends with the command that made it."""
    command = f"privmarket reproduce {page.name} {options}".rstrip()
    return replace(page, blocks=[*page.blocks, Text(f"Command: `{command}`")])


class Results:
    """Finished and failed cells of a question, found by what they are.

    Results of other weights than those that ship are refused: no table, figure or sentence uses them, and tables
    say `older weights` in their places.

    Attributes:
        records: what may be shown.
        outdated: what was refused.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        # Questions share cells; one that comes twice counts once.
        once = {record.cell.slot: record for record in records}
        self._by_slot = {slot: record for slot, record in once.items() if not record.stale}
        self.records = list(self._by_slot.values())
        self.outdated = [record for record in once.values() if record.stale]
        # Tables ask for one mechanism at a time, thousands of times.
        self._finished: dict[tuple[str, object], list[Record]] = defaultdict(list)
        for record in sorted(self.records, key=lambda record: record.cell.seed):
            if record.result is not None:
                for mechanism in {None, record.cell.config.get("mechanism")}:
                    self._finished[record.cell.kind, mechanism].append(record)

    def get(self, cell: Cell) -> Result | None:
        """A cell's result; None if it failed or was not computed."""
        record = self._by_slot.get(cell.slot)
        return None if record is None else record.result

    def all(self, kind: str, **config: object) -> list[Record]:
        """Finished cells of a kind whose configuration has these values, by rising seed."""
        return [
            record
            for record in self._finished[kind, config.get("mechanism")]
            if all(record.cell.config.get(name) == value for name, value in config.items())
        ]

    def measured(self, name: str, kind: str, **config: object) -> Measured | None:
        """A figure of the result over the seeds; None where no cell is finished."""
        found = self.all(kind, **config)
        return Measured.of(_entry(record, name) for record in found) if found else None

    def by_seed(self, name: str, kind: str, **config: object) -> dict[int, float]:
        """A figure of every finished cell, by its seed: what paired comparisons need."""
        return {record.cell.seed: float(_entry(record, name)) for record in self.all(kind, **config)}

    def values(self, name: str, kind: str, **config: object) -> list[Any]:
        """The figure called `name` of every finished cell of a kind."""
        return [_entry(record, name) for record in self.all(kind, **config)]

    def absent(self, kind: str, **config: object) -> str:
        """What a table shows where there is no result.

        `failed`, `older weights` where a result was refused, or `not computed yet`.
        """

        def matches(record: Record) -> bool:
            found = record.cell.config
            return record.cell.kind == kind and all(found.get(name) == value for name, value in config.items())

        if any(matches(record) for record in self.failures):
            return "failed"
        return OUTDATED if any(matches(record) for record in self.outdated) else NOT_COMPUTED

    def over_seeds(self, kind: str, **config: object) -> str:
        """`mean ± std over 5 seeds`, or `over 1 to 5 seeds` where the cells of a table differ."""
        counts = Counter(json.dumps(dict(r.cell.config), sort_keys=True) for r in self.all(kind, **config))
        least, most = min(counts.values(), default=0), max(counts.values(), default=0)
        if most == 1:
            return "one seed"
        return f"mean ± std over {most} seeds" if least == most else f"mean ± std over {least} to {most} seeds"

    @property
    def failures(self) -> list[Record]:
        """The records of the cells that failed."""
        return [record for record in self.records if record.failure is not None]

    @property
    def seeds(self) -> int:
        """The largest number of seeds that any setting has."""
        return len({record.cell.seed for record in self.records})


def failure_text(results: Results) -> list[Block]:
    """A section that names what failed and why; nothing if nothing did."""
    if not results.failures:
        return []
    lines = [f"- {name_of(record.cell)}: {record.failure}" for record in results.failures]
    head = "## Failed\nThese cells failed and are left out above; the next run tries them again.\n\n"
    return [Text(head + "\n".join(lines))]


def name_of(cell: Cell) -> str:
    """A cell's kind, settings and seed in one line."""
    parts = [f"{key} {value}" for key, value in cell.config.items() if not isinstance(value, dict | list)]
    return f"{cell.kind} ({', '.join(parts)}, seed {cell.seed})"


def _entry(record: Record, name: str) -> Any:
    assert record.result is not None
    return record.result[name]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _flat(cells: Sequence[str | tuple[str, ...]]) -> list[str]:
    return [part for cell in cells for part in (cell if isinstance(cell, tuple) else (cell,))]
