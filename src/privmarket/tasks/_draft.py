"""A first draft of a table's schema, made from the table itself; `privmarket data describe` prints it.

Every range and every list of values in it is taken from the records, so none of it is public until somebody who is
entitled to says so. The draft marks each such line, and `taken_from` at its top makes every task repeat the
warning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privmarket.errors import DataError, UnknownNameError
from privmarket.tasks._schema import DATE_FORMATS, MISSING_CELLS, day_number, number_text, toml_key
from privmarket.tasks._tables import FILE_NAME, Block, number_in, read_table, require_column, texts

_MARK = "# taken from this file: public only if you say so"
_MOST_VALUES = 50
_MOST_CLASSES = 20


@dataclass
class _Seen:
    """What was seen of one column so far; only a bounded number of its values is kept.

    `counted` is how many cells are numbers, and `odd` the first one that is none, with its place.
    `days` has the formats of dates that fit every cell so far, each with the first and the last day.
    """

    cells: int = 0
    missing: int = 0
    values: set[str] = field(default_factory=set)
    many: bool = False
    numbers: bool = True
    counted: int = 0
    odd: str = ""
    decimal_comma: str = ""
    whole: bool = True
    low: float = math.inf
    high: float = -math.inf
    days: dict[str, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(DATE_FORMATS, (10**9, 0)))
    longest: int = 0
    words: int = 0

    def add(self, block: Block, name: str) -> None:
        """Takes in the cells of one more block."""
        cells = texts(block.cells[name])
        self.decimal_comma = block.decimal_comma
        absent = frozenset(MISSING_CELLS)
        held = [cell for cell in map(str.strip, cells) if cell not in absent]
        self.cells += len(cells)
        self.missing += len(cells) - len(held)
        if not held:
            return
        if not self.many:
            self.values.update(held)
            self.many = len(self.values) > _MOST_VALUES
        if self.numbers or 2 * self.counted > self.cells - self.missing - len(held):
            self._add_numbers(held, block, name)
        if not self.numbers:
            self.longest = max(self.longest, max(map(len, held)))
            self.words += sum(len(cell.split()) for cell in held)
            self._add_days(held)

    def _add_numbers(self, held: Sequence[str], block: Block, name: str) -> None:
        numbers = np.array([_number_or_nan(cell, block.decimal_comma) for cell in held])
        finite = np.isfinite(numbers)
        self.counted += int(finite.sum())
        if not finite.all():
            self.numbers = False
            if not self.odd:
                odd = held[int(np.argmin(finite))]
                row = [cell.strip() for cell in texts(block.cells[name])].index(odd)
                self.odd = f"{odd[:40]!r} in {block.line_word} {block.lines[row]}"
            numbers = numbers[finite]
            if not numbers.size:
                return
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        self.whole = self.whole and bool((numbers == np.rint(numbers)).all())

    def _add_days(self, held: Sequence[str]) -> None:
        for form, (first, last) in list(self.days.items()):
            try:
                days = [day_number(cell, form) for cell in held]
            except ValueError:
                del self.days[form]
                continue
            self.days[form] = (min(first, min(days)), max(last, max(days)))

    def sorted_values(self) -> list[str]:
        if not self.numbers:
            return sorted(self.values)
        return sorted(self.values, key=lambda cell: number_in(cell, self.decimal_comma))


def draft_schema(
    path: str | Path,
    *,
    label: str | None = None,
    client: str | None = None,
    person: str | None = None,
    goal: str | None = None,
) -> str:
    """A draft of the schema of a file or folder, as TOML with comments.

    Args:
        path: CSV, TSV, Parquet, or a folder with a file per client.
        label: the column to predict; the draft leaves its name open if not given.
        client: the column that names the data holder.
        person: the column that names the person, if there is one.
        goal: "classification" or "regression"; by the label's values if not given.
    """
    if goal not in (None, "classification", "regression"):
        raise UnknownNameError.among("goal", str(goal), ("classification", "regression"))
    table = read_table(path)
    for column, what in ((label, "label"), (client, "client"), (person, "person")):
        if column is not None:
            require_column(table, column, what)
    names = [name for name in table.columns if name not in (client, person, FILE_NAME)]
    seen = {name: _Seen() for name in names}
    rows = 0
    for block in table.blocks(names):
        rows += len(block)
        _look_at(block, seen)
    if not rows:
        raise DataError(f"{path}: no records below the header", "a schema is drafted from records")
    lines = [
        f"# A draft of the schema of {Path(path).name}: {rows:,} records, {len(names)} columns.",
        "# Ranges and values below come from the records themselves. They are public only if you may say so:",
        "# replace them by what is known without looking (the scale of a form, a physical limit), then delete",
        "# the next line.",
        f"taken_from = {json.dumps(Path(path).name, ensure_ascii=False)}",
    ]
    if FILE_NAME not in table.columns:
        lines.append(_role("client", client, "the column that names the data holder"))
    if person is not None:
        lines.append(_role("person", person, ""))
    lines += ["", "[label]", *_label_lines(label, seen, goal)]
    for name in names:
        if name != label:
            lines += ["", f"[columns.{toml_key(name)}]", *_column_lines(seen[name])]
    return "\n".join(lines) + "\n"


def _look_at(block: Block, seen: dict[str, _Seen]) -> None:
    for name, one in seen.items():
        one.add(block, name)


def _number_or_nan(cell: str, decimal_comma: str) -> float:
    try:
        return number_in(cell, decimal_comma)
    except ValueError:
        return math.nan


def _role(key: str, column: str | None, what: str) -> str:
    if column is None:
        return f'# {key} = "…"   # {what}'
    return f"{key} = {json.dumps(column, ensure_ascii=False)}"


def _label_lines(label: str | None, seen: dict[str, _Seen], goal: str | None) -> list[str]:
    if label is None:
        return ['# column = "…"   # the column to predict; then values = […] for classes, or range = [low, high]']
    one = seen[label]
    lines = [f"column = {json.dumps(label, ensure_ascii=False)}"]
    few = not one.many and len(one.values) <= _MOST_CLASSES and (one.whole or not one.numbers)
    is_class = few if goal is None else goal == "classification"
    if is_class and one.many:
        raise DataError(
            f"the label {label!r} has more than {_MOST_VALUES} different values",
            "use --goal regression, or another label",
        )
    if not is_class and not one.numbers:
        raise DataError(
            f"the label {label!r} holds more than {_MOST_CLASSES} different texts",
            "choose another label, or merge classes",
        )
    if is_class:
        return [*lines, f"values = {_list(one.sorted_values())}   {_MARK}"]
    return [*lines, f"range = {_range(one)}   {_MARK}"]


def _column_lines(one: _Seen) -> list[str]:
    """Kind, range or values, and the rule for missing cells."""
    values = one.sorted_values() if not one.many else []
    if len(values) < 2 and not one.many:
        only = f"always {values[0]!r}" if values else "always empty"
        return ['kind = "ignore"', f"# {only} in this file: a column that says nothing"]
    if one.numbers and set(values) == {"0", "1"}:
        lines = ['kind = "boolean"', f'values = ["0", "1"]   {_MARK}']
    elif one.numbers:
        lines = ['kind = "number"', f"range = {_range(one)}   {_MARK}"]
        if one.many and one.whole and one.high - one.low + 1 == one.cells - one.missing:
            lines.append('# a different whole number in every row: if these are row numbers, use kind = "ignore"')
    elif one.days:
        lines = _date_lines(one)
    elif not one.many:
        lines = ['kind = "category"', f"values = {_list(values)}   {_MARK}"]
    elif one.words > 3 * (one.cells - one.missing):
        lines = ['kind = "text"', "buckets = 256", "# running text: counts of words in 256 buckets"]
    else:
        lines = ['kind = "ignore"', f"# more than {_MOST_VALUES} different texts: names or codes, perhaps"]
    held = one.cells - one.missing
    if not one.numbers and 2 * one.counted > held:
        if one.many and not one.days:
            lines = ['kind = "number"', f"range = {_range(one)}   {_MARK}"]
        lines.append(
            f"# {one.counted:,} of {held:,} cells are numbers; the first that is not: {one.odd}. "
            "Mend it, or list it in missing_values"
        )
    if one.missing and not lines[0].endswith('"ignore"'):
        lines.append(f'missing = "flag"   # some cells are empty; {_MARK.removeprefix("# ")}')
    return lines


def _date_lines(one: _Seen) -> list[str]:
    """A date's format, if it is not ISO, and its range."""
    form, *others = one.days
    first, last = one.days[form]
    lines = ['kind = "date"']
    if form:
        lines.append(f'format = "{form}"')
    if others:
        lines.append(f"# every date would fit {' and '.join(others)} as well: check which is meant")
    if last == first:
        last += 1
    return [*lines, f'range = ["{_day(first)}", "{_day(last)}"]   {_MARK}']


def _day(ordinal: int) -> str:
    return str(np.datetime64(ordinal - 719_163, "D"))  # days are counted from 1970 there, from the year 1 here


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(json.dumps(value, ensure_ascii=False) for value in values) + "]"


def _range(one: _Seen) -> str:
    high = one.high if one.high > one.low else one.low + 1
    return f"[{number_text(one.low)}, {number_text(high)}]"
