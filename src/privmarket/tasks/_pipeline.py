"""From the cells of a table to the inputs of a model, and from the outputs of a model to predictions.

A pipeline is fixed by public facts alone: the schema, and the public records where the schema says nothing. It
turns each row into inputs separately, so no private record influences how another one is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError, DataError, UnknownNameError
from privmarket.tasks._schema import DATE_FORMATS, MISSING_CELLS, Column, Schema, day_number, is_day, toml_key
from privmarket.tasks._tables import Block, cell_text, number_in, read_table, require_column, texts

Inputs = NDArray[np.generic]
# Numbers that are scaled by the public records are cut at this many deviations, so that no outlier outweighs the
# rest.
_MOST_DEVIATIONS = 5.0
_MOST_CATEGORIES = 50
_BOOLEAN_WORDS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("0", "1"))
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class FittedColumn:
    """How one column is read: its public facts, all filled in.

    Attributes:
        name: of the column.
        about: kind and rules, with its `values` if the kind has any.
        centre: is subtracted from a number (for dates, a day).
        spread: the difference is divided by it.
        limit: scaled numbers are clipped to ± this.
        scaled_by: "schema" or "public records".
    """

    name: str
    about: Column
    centre: float = 0.0
    spread: float = 1.0
    limit: float = 1.0
    scaled_by: str = "schema"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that the column becomes."""
        kind = self.about.kind
        if kind == "category":
            names = [f"{self.name}={value}" for value in self.about.values]
        elif kind == "text":
            names = [f"{self.name}#{bucket}" for bucket in range(self.about.buckets)]
        elif kind == "tokens":
            return tuple(f"{self.name}[{place}]" for place in range(self.about.length))
        else:
            names = [self.name]
        return (*names, f"{self.name} is missing") if self.about.missing == "flag" else tuple(names)

    def encode(self, block: Block, missing_values: frozenset[str]) -> Inputs:
        """(rows, inputs) of the cells of a block; float32, or int64 for tokens."""
        cells = block.cells[self.name]
        kind = self.about.kind
        if kind == "category":
            return self._one_hot(block, texts(cells), missing_values)
        if kind in ("text", "tokens"):
            return self._words(block, texts(cells), missing_values)
        return self._scaled(block, self.numbers(block, missing_values))

    def numbers(self, block: Block, missing_values: frozenset[str]) -> NDArray[np.float64]:
        """(rows,) the cells of a number, date, length or boolean before scaling; NaN where they are missing."""
        kind = self.about.kind
        if kind == "number":
            return numbers_of(block, self.name, missing_values)
        cells = texts(block.cells[self.name])
        if kind == "boolean":
            codes = {self.about.values[0]: 0.0, self.about.values[1]: 1.0}
            return self._looked_up(block, cells, codes, missing_values)
        if kind == "date":
            return self._days(block, cells, missing_values)
        return np.array([_length(cell, missing_values) for cell in cells])

    def _scaled(self, block: Block, numbers: NDArray[np.float64]) -> Inputs:
        absent = np.isnan(numbers)
        if absent.any():
            self._allow_missing(block, int(absent.argmax()))
        scaled = np.clip((numbers - self.centre) / self.spread, -self.limit, self.limit)
        scaled[absent] = 0.0
        columns = [scaled, absent] if self.about.missing == "flag" else [scaled]
        return np.stack(columns, axis=1).astype(np.float32)

    def _allow_missing(self, block: Block, row: int) -> None:
        if self.about.missing == "refuse":
            raise DataError(
                f"{block.place(row, self.name)}: no value",
                f'fill it, or add to the schema: [columns.{toml_key(self.name)}] missing = "flag"',
            )

    def _looked_up(
        self, block: Block, cells: Sequence[str], codes: Mapping[str, float], missing: frozenset[str]
    ) -> NDArray[np.float64]:
        """The code of each cell, NaN where it is missing, −1 for values that are not listed."""
        found = [codes.get(cell, math.inf) for cell in cells]
        for row, code in enumerate(found):
            if code == math.inf:
                found[row] = self._of_odd_cell(block, row, cells[row].strip(), codes, missing)
        return np.array(found)

    def _of_odd_cell(
        self, block: Block, row: int, cell: str, codes: Mapping[str, float], missing: frozenset[str]
    ) -> float:
        if cell in codes:
            return codes[cell]
        if cell in missing:
            return math.nan
        if self.about.kind == "boolean":
            lower = cell.lower()
            for false, true in _BOOLEAN_WORDS:
                if lower in (false, true) and {one.lower() for one in self.about.values} == {false, true}:
                    return codes[self.about.values[lower == true]]
        elif self.about.unknown == "zero":
            return -1.0
        shown = ", ".join(self.about.values[:8]) + (", …" if len(self.about.values) > 8 else "")
        remedy = f"mend it, or add it to values in [columns.{toml_key(self.name)}] of the schema"
        if self.about.kind == "category":
            remedy += ', or unknown = "zero"'
        raise DataError(f"{block.place(row, self.name)}: {cell!r} is none of {shown}", remedy)

    def _one_hot(self, block: Block, cells: Sequence[str], missing: frozenset[str]) -> Inputs:
        values = self.about.values
        codes = self._looked_up(block, cells, {value: float(at) for at, value in enumerate(values)}, missing)
        absent = np.isnan(codes)
        if absent.any():
            self._allow_missing(block, int(absent.argmax()))
        hot = np.zeros((len(cells), len(self.inputs)), dtype=np.float32)
        known = np.flatnonzero(codes >= 0)
        hot[known, codes[known].astype(np.int64)] = 1.0
        if self.about.missing == "flag":
            hot[absent, -1] = 1.0
        return hot

    def _days(self, block: Block, cells: Sequence[str], missing: frozenset[str]) -> NDArray[np.float64]:
        days = np.empty(len(cells))
        for row, cell in enumerate(cells):
            text = cell.strip()
            try:
                days[row] = math.nan if text in missing else day_number(text, self.about.format)
            except ValueError:
                form = self.about.format or "YYYY-MM-DD"
                raise DataError(
                    f"{block.place(row, self.name)}: {text!r} is no date written as {form}",
                    f"mend it, or give the format in [columns.{toml_key(self.name)}] of the schema",
                ) from None
        return days

    def _words(self, block: Block, cells: Sequence[str], missing: frozenset[str]) -> Inputs:
        """Counts of words by bucket, each row of norm 1; or the buckets of the first words, 0 after the last."""
        buckets = self.about.buckets
        as_tokens = self.about.kind == "tokens"
        width = self.about.length if as_tokens else len(self.inputs)
        made: Inputs = np.zeros((len(cells), width), dtype=np.int64 if as_tokens else np.float32)
        for row, cell in enumerate(cells):
            text = cell.strip()
            if text in missing:
                self._allow_missing(block, row)
                if self.about.missing == "flag" and not as_tokens:
                    made[row, -1] = 1.0
                continue
            hashes = [crc32(word.encode()) for word in _WORD.findall(text.lower())]
            if as_tokens:
                kept = [1 + one % (buckets - 1) for one in hashes[: self.about.length]]
                made[row, : len(kept)] = kept
            elif hashes:
                counts = np.bincount([one % buckets for one in hashes], minlength=buckets)
                made[row, :buckets] = counts / np.linalg.norm(counts)
        return made

    def to_json(self) -> dict[str, object]:
        """The column as JSON data."""
        scale = {"centre": self.centre, "spread": self.spread, "limit": self.limit, "scaled_by": self.scaled_by}
        return {"name": self.name, **self.about.to_dict(), **scale}


def _length(cell: str, missing: frozenset[str]) -> float:
    text = cell.strip()
    return math.nan if text in missing and text else float(len(text))


def numbers_of(block: Block, column: str, missing: frozenset[str]) -> NDArray[np.float64]:
    """The cells of a column as numbers, NaN where they are missing; refuses text and infinities."""
    cells = block.cells[column]
    if isinstance(cells, np.ndarray):
        numbers = cells.astype(np.float64)
    else:
        try:
            if block.decimal_comma:  # there, "1.5" must not pass for 1.5
                raise ValueError
            numbers = np.array(list(map(float, cells)))
        except ValueError:
            numbers = np.array([_number(block, row, column, missing) for row in range(len(cells))])
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(infinite.argmax())
        raise DataError(f"{block.place(row, column)}: {cell_text(cells, row)!r}", "give a finite number")
    return numbers


def _number(block: Block, row: int, column: str, missing: frozenset[str]) -> float:
    text = cell_text(block.cells[column], row).strip()
    if text in missing:
        return math.nan
    try:
        return number_in(text, block.decimal_comma)
    except ValueError:
        if block.decimal_comma and _is_number(text, ""):
            raise DataError(
                f"{block.place(row, column)}: {text!r} has a decimal point, and {block.decimal_comma} a comma",
                "write the numbers of a file in one way; thousands are read as 1.234,5 or 1.234.567",
            ) from None
        raise DataError(
            f"{block.place(row, column)}: {text[:40]!r} is no number",
            f'mend it, list it in missing_values, or use kind = "category" for [columns.{toml_key(column)}]',
        ) from None


@dataclass(frozen=True)
class TargetScale:
    """How the label of a regression is scaled for training: (value − centre) / spread, within ± limit."""

    centre: float = 0.0
    spread: float = 1.0
    limit: float = math.inf

    def scaled(self, values: NDArray[np.generic]) -> NDArray[np.float32]:
        """Values in the unit of the data → targets for the loss."""
        return np.asarray((np.asarray(values, np.float64) - self.centre) / self.spread, dtype=np.float32)

    def clipped(self, targets: NDArray[np.float32]) -> NDArray[np.float32]:
        """Targets clipped to ± `limit`, for records to train on."""
        return np.clip(targets, -self.limit, self.limit)

    def restored(self, outputs: NDArray[np.generic]) -> NDArray[np.float64]:
        """Outputs of a model, or targets → values in the unit of the data."""
        return np.asarray(outputs, dtype=np.float64) * self.spread + self.centre


@dataclass(frozen=True)
class Pipeline:
    """How rows of a table become inputs and labels, and outputs become predictions.

    Attributes:
        columns: of the inputs, in their order.
        label: name of the label's column.
        goal: "classification" or "regression".
        classes: names of the classes, in the order of the model's outputs.
        target: how the label of a regression is scaled.
        missing_values: cells that count as missing.
    """

    columns: tuple[FittedColumn, ...]
    label: str
    goal: str
    classes: tuple[str, ...] = ()
    target: TargetScale = TargetScale()
    missing_values: tuple[str, ...] = MISSING_CELLS

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs, in their order."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """int64 for tokens, else float32."""
        tokens = any(column.about.kind == "tokens" for column in self.columns)
        return np.dtype(np.int64 if tokens else np.float32)

    def encode(self, block: Block) -> Inputs:
        """(rows, inputs) of a block that has all columns."""
        missing = frozenset(self.missing_values)
        if len(self.columns) == 1:
            return self.columns[0].encode(block, missing)
        return np.concatenate([column.encode(block, missing) for column in self.columns], axis=1)

    def encode_labels(self, block: Block) -> NDArray[np.generic]:
        """(rows,) int64 class numbers, or float32 targets on the scale of the loss, not clipped."""
        missing = frozenset(self.missing_values)
        if self.goal == "regression":
            values = numbers_of(block, self.label, missing)
            absent = np.isnan(values)
            if absent.any():
                self._no_label(block, int(absent.argmax()))
            return self.target.scaled(values)
        codes = {name: at for at, name in enumerate(self.classes)}
        cells = texts(block.cells[self.label])
        found = np.array([codes.get(cell, -1) for cell in cells], dtype=np.int64)
        for row in np.flatnonzero(found < 0).tolist():
            text = cells[row].strip()
            if text in codes:
                found[row] = codes[text]
            elif text in missing:
                self._no_label(block, row)
            else:
                shown = ", ".join(self.classes[:8]) + (", …" if len(self.classes) > 8 else "")
                raise DataError(
                    f"{block.place(row, self.label)}: class {text!r} is none of {shown}",
                    "mend it, or list all classes: in the schema, [label] values = […]",
                )
        return found

    def _no_label(self, block: Block, row: int) -> None:
        raise DataError(f"{block.place(row, self.label)}: no label", "remove the row, or give its label")

    def encode_file(self, path: str | Path) -> Inputs:
        """(rows, inputs) of a file with at least the columns of the inputs, such as new rows to predict."""
        table = read_table(path)
        names = [column.name for column in self.columns]
        for name in names:
            require_column(table, name, "model's inputs")
        blocks = [self.encode(block) for block in table.blocks(names)]
        if not blocks:
            raise DataError(f"{path}: no records below the header", "give at least one row")
        return np.concatenate(blocks)

    def predictions(self, outputs: NDArray[np.generic]) -> NDArray[np.generic]:
        """(rows,) names of the most likely classes, or values in the unit of the data."""
        if self.goal == "regression":
            return self.target.restored(outputs.reshape(len(outputs)))
        chosen: NDArray[np.generic] = np.array(self.classes)[
            class_logits(outputs, len(self.classes)).argmax(axis=1)
        ]
        return chosen

    def to_json(self) -> dict[str, object]:
        """The pipeline as JSON data, for the card of a model."""
        target = {"centre": self.target.centre, "spread": self.target.spread}
        if math.isfinite(self.target.limit):
            target["limit"] = self.target.limit
        return {
            "columns": [column.to_json() for column in self.columns],
            "label": self.label,
            "goal": self.goal,
            "classes": list(self.classes),
            "target": target,
            "missing_values": list(self.missing_values),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, object]) -> Pipeline:
        """The pipeline that `to_json` wrote."""
        try:
            columns = tuple(_fitted_from_json(one) for one in given["columns"])  # type: ignore[attr-defined]
            target = TargetScale(**given["target"])  # type: ignore[arg-type]
            return cls(
                columns,
                str(given["label"]),
                str(given["goal"]),
                tuple(given["classes"]),  # type: ignore[arg-type]
                target,
                tuple(given["missing_values"]),  # type: ignore[arg-type]
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"this does not describe a table's columns: {error!r}", "use a card written by save_model"
            ) from error


def _fitted_from_json(given: Mapping[str, object]) -> FittedColumn:
    rest = dict(given)
    name = str(rest.pop("name"))
    centre = float(str(rest.pop("centre")))
    spread = float(str(rest.pop("spread")))
    limit = float(str(rest.pop("limit")))
    scaled_by = str(rest.pop("scaled_by"))
    return FittedColumn(name, Column.from_dict(rest, f"column {name!r}"), centre, spread, limit, scaled_by)


def fit_pipeline(
    schema: Schema, columns: Sequence[str], label: str, goal: str | None, public: Block | None
) -> Pipeline:
    """The pipeline of a table, from its schema, and from the public records where the schema says nothing.

    Args:
        schema: what is publicly known.
        columns: names of the columns of inputs.
        label: name of the label's column.
        goal: "classification", "regression", or None to take it from the schema or the public labels.
        public: all public records as one block, or None if there are none.
    """
    missing = frozenset(schema.missing_values)
    fitted = []
    for name in columns:
        about = schema.columns.get(name)
        if about is None:
            guessed = _fitted(schema, name, _guessed(schema, name, public, missing), public, missing)
            fitted.append(replace(guessed, scaled_by="public records"))
        elif about.kind != "ignore":
            fitted.append(_fitted(schema, name, about, public, missing))
    if not fitted:
        raise DataError(
            f"{schema.source}: no column of inputs is left", 'give some column a kind other than "ignore"'
        )
    goal = _goal(schema, label, goal, public, missing)
    if goal == "regression":
        target = _target(schema, label, public, missing)
        return Pipeline(tuple(fitted), label, goal, (), target, schema.missing_values)
    classes = schema.label.values or _public_classes(schema, label, public, missing)
    return Pipeline(tuple(fitted), label, goal, classes, TargetScale(), schema.missing_values)


def class_logits(outputs: NDArray[np.generic], classes: int) -> NDArray[np.generic]:
    """(rows, classes); a single output for two classes is the logit of the second one."""
    if classes == 2 and outputs.size == len(outputs):
        second = outputs.reshape(len(outputs))
        return np.stack([np.zeros_like(second), second], axis=1)
    return outputs


def says_all(schema: Schema, columns: Sequence[str]) -> bool:
    """Whether the schema alone fixes the pipeline, so that no record has to be read for it."""
    if schema.label.goal is None:
        return False
    for name in columns:
        about = schema.columns.get(name)
        if about is None:
            return False
        if about.kind in ("number", "date", "length") and about.range is None:
            return False
        if about.kind in ("category", "boolean") and not about.values:
            return False
    return True


def _guessed(schema: Schema, name: str, public: Block | None, missing: frozenset[str]) -> Column:
    """The kind of a column that the schema does not list, from its public cells."""
    heading = f"[columns.{toml_key(name)}]"
    if public is None:
        raise DataError(
            f"column {name!r} has no public scale, and there are no public records to scale it by",
            f'add to the schema: {heading} kind = "number" and range = […], or kind = "ignore"; '
            "`privmarket data describe` drafts one",
        )
    cells = [cell.strip() for cell in texts(public.cells[name])]
    held = [cell for cell in cells if cell not in missing]
    rule = "flag" if len(held) < len(cells) else "refuse"
    if not held:
        raise DataError(
            f"column {name!r} is empty in all public records",
            f'add to the schema: {heading} kind = "number" and range = […], or kind = "ignore"',
        )
    if isinstance(public.cells[name], np.ndarray) or all(_is_number(cell, public.decimal_comma) for cell in held):
        return Column("number", missing=rule)
    for form in DATE_FORMATS:
        if all(is_day(cell, form) for cell in held):
            return Column("date", missing=rule, format=form)
    distinct = {cell.lower() for cell in held}
    for words in _BOOLEAN_WORDS[:-1]:
        if distinct == set(words):
            spelt = tuple(next(cell for cell in held if cell.lower() == word) for word in words)
            return Column("boolean", values=spelt, missing=rule)
    values = sorted(set(held))
    if len(values) == 1:
        raise _constant(name, values[0], heading)
    if len(values) > _MOST_CATEGORIES or len(values) > max(10, len(held) // 2):
        kept = [row for row, cell in enumerate(cells) if cell not in missing]
        odd = [row for row in kept if not _is_number(cells[row], public.decimal_comma)]
        if len(odd) < len(held) / 2:
            raise DataError(
                f"{public.place(odd[0], name)}: {cells[odd[0]][:40]!r} is no number, as most of the column are",
                f'mend it, list it in missing_values, or add to the schema: {heading} kind = "text"',
            )
        raise DataError(
            f"column {name!r} has {len(values)} different texts in {len(held)} public records",
            f'add to the schema: {heading} kind = "ignore", "text", "length" or "category" with its values',
        )
    return Column("category", values=tuple(values), missing=rule, unknown="zero")


def _is_number(cell: str, decimal_comma: str) -> bool:
    try:
        number_in(cell, decimal_comma)
    except ValueError:
        return False
    return True


def _fitted(
    schema: Schema, name: str, about: Column, public: Block | None, missing: frozenset[str]
) -> FittedColumn:
    """The column with its scale or its values filled in."""
    heading = f"[columns.{toml_key(name)}]"
    if about.kind in ("text", "tokens"):
        if about.buckets < 2 or (about.kind == "tokens" and about.length < 1):
            raise ConfigurationError(f"{schema.source}, {heading}: too few buckets", "give buckets = 256 or more")
        return FittedColumn(name, about)
    if about.kind == "boolean":
        if not about.values:
            about = replace(about, values=_boolean_words(schema, name, public, missing))
        return FittedColumn(name, about, 0.5, 0.5)
    if about.kind == "category":
        if about.values:
            return FittedColumn(name, about)
        held = _held(public, name, missing)
        if not held:
            raise DataError(f"column {name!r} has no values", f"add to the schema: {heading} values = […]")
        if len(held) == 1:
            raise _constant(name, next(iter(held)), heading)
        about = replace(about, values=tuple(sorted(held)), unknown="zero")
        return FittedColumn(name, about, scaled_by="public records")
    if about.range is not None:
        low = about.range[0]
        high = about.range[1]
        return FittedColumn(name, about, (low + high) / 2, (high - low) / 2)
    if public is None:
        raise DataError(
            f"column {name!r} has no public range, and there are no public records to scale it by",
            f"add to the schema: {heading} range = [low, high]",
        )
    numbers = FittedColumn(name, about).numbers(public, missing)
    numbers = numbers[~np.isnan(numbers)]
    if numbers.size == 0 or not numbers.std() > 0:
        raise _constant(name, f"{numbers[0]:g}" if numbers.size else "nothing", heading)
    return FittedColumn(
        name, about, float(numbers.mean()), float(numbers.std()), _MOST_DEVIATIONS, "public records"
    )


def _constant(name: str, value: str, heading: str) -> DataError:
    return DataError(
        f"column {name!r} holds {value} in all public records: nothing to scale it by",
        f'add to the schema: {heading} with its range or values, or kind = "ignore"',
    )


def _held(public: Block | None, name: str, missing: frozenset[str]) -> set[str]:
    """The different cells of a column in the public records, without missing ones."""
    if public is None:
        return set()
    return {cell.strip() for cell in texts(public.cells[name])} - missing


def _boolean_words(schema: Schema, name: str, public: Block | None, missing: frozenset[str]) -> tuple[str, ...]:
    """The words for false and true: the usual pair that the public records use, or true and false."""
    held = {cell.lower() for cell in _held(public, name, missing)}
    for pair in _BOOLEAN_WORDS:
        if held and held <= set(pair):
            return pair
    if not held:
        return ("false", "true")
    raise DataError(
        f"column {name!r} holds {', '.join(sorted(held)[:4])} in the public records, which is no yes or no",
        f'add to the schema: [columns.{toml_key(name)}] values = ["word for false", "word for true"]',
    )


def _goal(schema: Schema, label: str, goal: str | None, public: Block | None, missing: frozenset[str]) -> str:
    """The goal as asked for, or from the schema, or from public labels if these allow one goal only."""
    if goal not in (None, "classification", "regression"):
        raise UnknownNameError.among("goal", str(goal), ("classification", "regression"))
    known = schema.label.goal
    if goal is not None and known not in (None, goal):
        has = "values" if known == "classification" else "a range"
        raise ConfigurationError(
            f"goal {goal!r}, but {schema.source} gives the label {has}",
            "change one of them",
        )
    if goal is not None or known is not None:
        return goal or str(known)
    held = _held(public, label, missing)
    if not held:
        raise ConfigurationError(
            f"nothing says whether {label!r} is a class or a number",
            'add to the schema: [label] values = ["no", "yes"] or range = [low, high]',
        )
    if len(held) == 2 or not all(_is_number(cell, "" if public is None else public.decimal_comma) for cell in held):
        return "classification"
    raise ConfigurationError(
        f"the label {label!r} holds numbers: classes or values?",
        "say goal='classification' or goal='regression' (--goal on the command line)",
    )


def _public_classes(schema: Schema, label: str, public: Block | None, missing: frozenset[str]) -> tuple[str, ...]:
    """The classes in the public records, numbers by size and texts by letter."""
    held = _held(public, label, missing)
    if len(held) < 2:
        found = f"one class, {next(iter(held))!r}," if held else "no class"
        where = "the public records" if public is not None else schema.source
        raise DataError(f"{where} show {found} of the label {label!r}", "add to the schema: [label] values = […]")
    if all(_is_number(one, "") for one in held):
        return tuple(sorted(held, key=float))
    return tuple(sorted(held))


def _target(schema: Schema, label: str, public: Block | None, missing: frozenset[str]) -> TargetScale:
    """The scale of a regression's label: the public range, or mean and deviation of the public labels."""
    limits = schema.label.range
    if limits is not None:
        return TargetScale((limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2, 1.0)
    if public is None:
        raise DataError(
            f"the label {label!r} has no public range, and there are no public records to scale it by",
            "add to the schema: [label] range = [low, high]",
        )
    values = numbers_of(public, label, missing)
    values = values[~np.isnan(values)]
    return target_of(values, label)


def target_of(values: NDArray[np.generic], label: str) -> TargetScale:
    """The scale of a regression's label by public labels: mean 0, deviation 1, cut at 5 deviations."""
    spread = float(values.std()) if values.size else 0.0
    if not spread > 0:
        raise DataError(
            f"the label {label!r} has one value in all public records", "give its public range, low and high"
        )
    return TargetScale(float(values.mean()), spread, _MOST_DEVIATIONS)
