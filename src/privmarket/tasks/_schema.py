"""The schema of a table: the kind of each column, and its public range or values.

A schema is written in TOML:

    client = "hospital"            # the column that names the data holder
    person = "patient_id"          # optional: all rows of a person at one client are protected together

    [label]
    column = "readmitted"
    values = ["no", "yes"]         # classes; for a regression write range = [low, high] instead

    [columns.age]
    kind = "number"
    range = [0, 110]               # public; values outside are moved to the nearer end
    missing = "flag"

    [columns.ward]
    kind = "category"
    values = ["surgery", "medicine"]

Everything in it is public: it is read before any private record is, and nothing in it may be taken from private
records unless their holders agree that it is public.

Missing cells follow the column's rule `missing`:

- "refuse" (the default): the file is refused, with the line and the rule to add.
- "flag": a missing number becomes the middle of the public scale, and a further input says that it was missing; a
  missing category is a value of its own.
- "middle": the same without the further input.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Literal

from privmarket.errors import ConfigurationError, UnknownNameError

KINDS = {
    "number": ("range", "missing"),
    "category": ("values", "missing", "unknown"),
    "boolean": ("values", "missing"),
    "date": ("range", "format", "missing"),
    "length": ("range", "missing"),
    "text": ("buckets", "missing"),
    "tokens": ("buckets", "length", "missing"),
    "ignore": (),
}
MISSING_RULES = ("refuse", "flag", "middle")
UNKNOWN_RULES = ("refuse", "zero")
MISSING_CELLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
_TOP_KEYS = ("client", "person", "missing_values", "taken_from", "label", "columns")
_LABEL_KEYS = ("column", "values", "range")
_BUCKETS = {"text": 256, "tokens": 4096}
_TOKENS = 32


@dataclass(frozen=True)
class Column:
    """What is publicly known of one column.

    Attributes:
        kind: one of `KINDS`. "number"; "category", one input per value; "boolean"; "date", as a number of days;
            "length", the number of characters of a text; "text", counts of its words in a public number of hash
            buckets; "tokens", numbers of its first words for an embedding model; "ignore".
        range: (low, high); for dates as ordinal numbers of days. None: scaled by the public records.
        values: the categories; of a boolean, the words for false and for true. Empty: taken from the public
            records.
        missing: one of `MISSING_RULES`.
        unknown: what happens to a category that is not listed: "refuse" the file, or "zero" for no category at all.
        format: how a date is written, in the letters of `strptime`; ISO (2024-12-31) if empty.
        buckets: how many hash buckets words are put into.
        length: how many words of a text are kept as tokens.
    """

    kind: str
    range: tuple[float, float] | None = None
    values: tuple[str, ...] = ()
    missing: str = "refuse"
    unknown: str = "refuse"
    format: str = ""
    buckets: int = 0
    length: int = 0

    @classmethod
    def from_dict(cls, given: Mapping[str, object], where: str) -> Column:
        """The column that a TOML table describes; `where` names the table in messages."""
        kind = given.get("kind")
        if kind not in KINDS:
            if kind is None:
                raise ConfigurationError(f"{where} has no kind", f"add one of: {', '.join(KINDS)}")
            raise UnknownNameError.among(f"kind in {where}", str(kind), KINDS)
        kind = str(kind)
        _known_keys(given, ("kind", *KINDS[kind]), where)
        missing = _choice(given, "missing", MISSING_RULES, where)
        unknown = _choice(given, "unknown", UNKNOWN_RULES, where)
        form = str(given.get("format", ""))
        values = _texts(given.get("values", ()), f"{where}.values")
        if kind == "boolean" and values and len(values) != 2:
            raise ConfigurationError(
                f"{where}.values has {len(values)} entries", "give the word for false, then the word for true"
            )
        if kind == "category" and len(values) == 1:
            raise ConfigurationError(
                f"{where}.values has one entry: the column says nothing", 'list all values, or use kind = "ignore"'
            )
        limits = None
        if given.get("range") is not None:
            limits = _range(given["range"], f"{where}.range", form if kind == "date" else None)
        buckets = _count(given.get("buckets", _BUCKETS.get(kind, 0)), f"{where}.buckets")
        length = _count(given.get("length", _TOKENS if kind == "tokens" else 0), f"{where}.length")
        return cls(kind, limits, values, missing, unknown, form, buckets, length)

    def to_dict(self) -> dict[str, object]:
        """The TOML table for `from_dict`, without keys that have their default."""
        made: dict[str, object] = {"kind": self.kind}
        if self.range is not None:
            days = self.kind == "date"
            made["range"] = [_day_text(end, self.format) if days else end for end in self.range]
        plain = {"values": list(self.values), "format": self.format, "buckets": self.buckets, "length": self.length}
        made |= {key: value for key, value in plain.items() if value}
        if self.missing != "refuse":
            made["missing"] = self.missing
        if self.unknown != "refuse":
            made["unknown"] = self.unknown
        return made


@dataclass(frozen=True)
class LabelColumn:
    """What is publicly known of the label: classes, or a range. If neither, the public records decide."""

    column: str = ""
    values: tuple[str, ...] = ()
    range: tuple[float, float] | None = None

    @property
    def goal(self) -> Literal["classification", "regression"] | None:
        """The goal that follows from the label, if it is known."""
        if self.values:
            return "classification"
        return None if self.range is None else "regression"


@dataclass(frozen=True)
class Schema:
    """What is publicly known of a table.

    Attributes:
        columns: column → what is known of it; columns that are not listed are read as the public records suggest.
        label: the label's column and classes or range.
        client: the column that names the client; may be empty.
        person: the column that names the person; may be empty.
        missing_values: cells that count as missing.
        taken_from: the file from which ranges and values were drafted; empty once somebody has said that they are
            public.
        source: the schema's file, for messages.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    label: LabelColumn = LabelColumn()
    client: str = ""
    person: str = ""
    missing_values: tuple[str, ...] = MISSING_CELLS
    taken_from: str = ""
    source: str = "schema"

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Reads a schema from a TOML file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}", "check the path") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: not UTF-8: {error.reason}", "save it as UTF-8") from error
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(
                f"{path}: not TOML: {error}", 'names with spaces or dots need quotes, as in [columns."blood type"]'
            ) from error
        return cls.from_dict(given, source=str(path))

    @classmethod
    def from_dict(cls, given: Mapping[str, object], source: str = "schema") -> Schema:
        """The schema that a TOML document describes; unknown keys are refused."""
        _known_keys(given, _TOP_KEYS, source)
        columns = {
            name: Column.from_dict(_table(one, f"{source}, [columns.{name}]"), f"{source}, [columns.{name}]")
            for name, one in _table(given.get("columns", {}), f"{source}, [columns]").items()
        }
        about_label = _table(given.get("label", {}), f"{source}, [label]")
        _known_keys(about_label, _LABEL_KEYS, f"{source}, [label]")
        values = _texts(about_label.get("values", ()), f"{source}, [label].values")
        if len(values) == 1:
            raise ConfigurationError(
                f"{source}, [label].values has one entry", "a classification needs two classes"
            )
        if values and about_label.get("range") is not None:
            raise ConfigurationError(
                f"{source}, [label] has values and a range",
                "keep values for a classification, or range for a regression",
            )
        limits = None
        if about_label.get("range") is not None:
            limits = _range(about_label["range"], f"{source}, [label].range", None)
        label = LabelColumn(_text(about_label, "column", f"{source}, [label]"), values, limits)
        schema = cls(
            columns,
            label,
            _text(given, "client", source),
            _text(given, "person", source),
            _texts(given.get("missing_values", MISSING_CELLS), f"{source}, missing_values"),
            _text(given, "taken_from", source),
            source,
        )
        for role in (label.column, schema.client, schema.person):
            if role and role in columns:
                raise ConfigurationError(
                    f"{source}: {role!r} is both a column of inputs and the label, client or person",
                    f"remove [columns.{toml_key(role)}]",
                )
        tokens = [name for name, one in columns.items() if one.kind == "tokens"]
        others = [name for name, one in columns.items() if one.kind not in ("tokens", "ignore")]
        if tokens and (len(tokens) > 1 or others):
            raise ConfigurationError(
                f"{source}: tokens of {tokens[0]!r} beside {(tokens[1:] + others)[0]!r}",
                'tokens must be the only input: use kind = "text" for it, or kind = "ignore" for the others',
            )
        return schema

    def to_dict(self) -> dict[str, object]:
        """The TOML document for `from_dict`."""
        label: dict[str, object] = {"column": self.label.column}
        if self.label.values:
            label["values"] = list(self.label.values)
        if self.label.range is not None:
            label["range"] = list(self.label.range)
        made: dict[str, object] = {"client": self.client, "person": self.person, "taken_from": self.taken_from}
        made = {key: value for key, value in made.items() if value}
        if self.missing_values != MISSING_CELLS:
            made["missing_values"] = list(self.missing_values)
        made["label"] = label
        made["columns"] = {name: one.to_dict() for name, one in self.columns.items()}
        return made


def toml_key(name: str) -> str:
    """A column's name as it is written in a heading of TOML."""
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else json.dumps(name, ensure_ascii=False)


# How dates are commonly written, in the letters of `strptime`; "" is ISO. If day and month could be in either
# order, the first format that fits counts.
DATE_FORMATS = ("", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")


def is_day(text: str, form: str = "") -> bool:
    """Whether a text is a date that is written in this format."""
    try:
        day_number(text, form)
    except ValueError:
        return False
    return True


def day_number(text: str, form: str = "") -> int:
    """The ordinal number of a day; raises ValueError for a text that is not one."""
    if form:
        return datetime.strptime(text, form).toordinal()
    return date.fromisoformat(text[:10]).toordinal()


def _day_text(day: float, form: str) -> str:
    moment = date.fromordinal(int(day))
    return moment.strftime(form) if form else moment.isoformat()


def _known_keys(given: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise UnknownNameError.among(f"key in {where}:", key, known)


def _table(given: object, where: str) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} is {given!r}, not a table", "write it as a heading in square brackets")
    return given


def _text(given: Mapping[str, object], key: str, where: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}: {key} is {value!r}", "give the name of a column in quotes")
    return value


def _texts(given: object, where: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigurationError(f"{where} is {given!r}", 'give a list, such as ["no", "yes"]')
    values = tuple(number_text(one) if isinstance(one, int | float) else str(one) for one in given)
    for one in values:
        if values.count(one) > 1:
            raise ConfigurationError(f"{where} lists {one!r} twice", "remove one of them")
    return values


def number_text(value: float) -> str:
    """A number as a category's name: 3 and 3.0 are "3", True is "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _choice(given: Mapping[str, object], key: str, known: tuple[str, ...], where: str) -> str:
    value = given.get(key, known[0])
    if value not in known:
        raise UnknownNameError.among(f"rule {key} in {where}:", str(value), known)
    return str(value)


def _count(given: object, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigurationError(f"{where} is {given!r}", "give a whole number above 0")
    return given


def _range(given: object, where: str, day_format: str | None) -> tuple[float, float]:
    """(low, high) of a list of two numbers, or of two days where `day_format` is given."""
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
        raise ConfigurationError(f"{where} is {given!r}", "give two values, such as [0, 100]")
    ends: list[float] = []
    for end in given:
        try:
            if day_format is not None:
                text = end.isoformat() if isinstance(end, date) else str(end)
                in_iso = isinstance(end, date) or not is_day(text, day_format)
                ends.append(float(day_number(text, "" if in_iso else day_format)))
            elif isinstance(end, bool) or not isinstance(end, int | float):
                raise ValueError
            else:
                ends.append(float(end))
        except ValueError:
            kind = "number" if day_format is None else "date written as YYYY-MM-DD"
            if day_format:
                kind += f" or as {day_format}"
            raise ConfigurationError(f"{where}: {end!r} is no {kind}", "give two values, low and high") from None
    low = ends[0]
    high = ends[1]
    if not low < high or low - low != 0 or high - high != 0:
        raise ConfigurationError(
            f"{where} is {list(given)}: nothing lies between", "give a low and a higher value, both finite"
        )
    return low, high
