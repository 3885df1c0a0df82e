"""The records of a task from arrays in memory: NumPy, torch, a pandas frame, a torch data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import ConfigurationError, DataError, UnknownNameError
from privmarket.tasks._from_table import records_of_tables, same_name
from privmarket.tasks._pipeline import TargetScale, target_of
from privmarket.tasks._records import Positions, Records, TaskRecords
from privmarket.tasks._schema import Schema, number_text
from privmarket.tasks._tables import Cells, FrameTable, object_text

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

_LABEL = "label"
_CLIENT = "client"
_PERSON = "person"
_BLOCK_ROWS = 1000
Features = Callable[..., object]


def records_of_arrays(
    inputs: object,
    labels: object,
    *,
    clients: object,
    public: object,
    test: object,
    features: Features | None,
    person: object,
    classes: int | Sequence[object] | None,
    label_range: tuple[float, float] | None,
    goal: str | None,
    schema: Schema | None,
    own_loss: bool,
) -> TaskRecords:
    """The records in arrays, see `Task.from_arrays`."""
    if _is_frame(inputs):
        if features is not None:
            raise ConfigurationError("features= with a data frame", "use the schema, or pass an array")
        return _of_frame(inputs, labels, clients, public, test, person, classes, label_range, goal, schema)
    if schema is not None:
        raise ConfigurationError(
            "schema= without named columns", "pass a pandas frame, or scale the arrays yourself"
        )
    if goal not in (None, "classification", "regression", "own"):
        raise UnknownNameError.among("goal", str(goal), ("classification", "regression", "own"))
    rows, values = _pair(inputs, labels, "the private records")
    bought = None if public is None else _pair_of(public, "public")
    measured = None if test is None else _pair_of(test, "test")
    for what, other in (("public", bought), ("test", measured)):
        if other is not None and other[0].shape[1:] != rows.shape[1:]:
            raise DataError(
                f"{what} inputs have shape {other[0].shape[1:]}, private ones {rows.shape[1:]}",
                "give all records the same shape",
            )
    if bought is not None and len(bought[0]) == 0:
        raise DataError("public has no records", "leave it out, or give some")
    if measured is not None and len(measured[0]) == 0:
        raise DataError("test has no records", "leave it out, or give some")
    names, codes = _clients(clients, len(rows))
    persons = None if person is None else _persons(person, codes)
    order = np.argsort(codes, kind="stable") if persons is None else np.lexsort((persons, codes))
    if features is not None:
        check_features(features, rows)
        rows = with_features(features, rows)
        bought = None if bought is None else (with_features(features, bought[0]), bought[1])
        measured = None if measured is None else (with_features(features, measured[0]), measured[1])
    rows = _for_models(rows, "inputs")

    if goal is None:
        floats = np.issubdtype(values.dtype, np.floating)
        goal = "regression" if floats else "classification"
        if goal == "classification" and own_loss and classes is None and bought is None:
            goal = "own"  # nothing public lists the classes, and the loss need not know them
    known: tuple[str, ...] = ()
    target = TargetScale()
    if goal == "classification":
        known = _classes(classes, None if bought is None else bought[1])
    elif goal == "regression" and not own_loss:
        target = _target(label_range, None if bought is None else bought[1])

    def prepared(given: NDArray[np.generic], what: str, train: bool) -> NDArray[np.generic]:
        if goal == "own":
            return _for_models(given, "labels")
        if goal == "classification":
            return _codes(given, known, what)
        if not np.issubdtype(given.dtype, np.number) or not np.isfinite(np.asarray(given, np.float64)).all():
            raise DataError(f"{what} labels hold text or NaN", "give finite numbers for a regression")
        scaled = target.scaled(given)
        return target.clipped(scaled) if train else scaled

    private = Records(rows, prepared(values, "private", True), persons)
    already = bool((np.diff(codes) >= 0).all()) and persons is None
    return TaskRecords(
        names,
        np.bincount(codes, minlength=len(names)),
        private if already else private[order],
        None if bought is None else Records(_for_models(bought[0], "public"), prepared(bought[1], "public", True)),
        None
        if measured is None
        else Records(_for_models(measured[0], "test"), prepared(measured[1], "test", False)),
        goal,
        known,
        target,
        "record" if person is None else "person",
    )


def _is_frame(given: object) -> bool:
    return hasattr(given, "columns") and hasattr(given, "iloc")


def _of_frame(
    inputs: object,
    labels: object,
    clients: object,
    public: object,
    test: object,
    person: object,
    classes: int | Sequence[object] | None,
    label_range: tuple[float, float] | None,
    goal: str | None,
    schema: Schema | None,
) -> TaskRecords:
    """The records of a data frame, read like a table in a file: by the schema, or by the public records."""
    known = schema or Schema(source="the schema")
    if classes is not None or label_range is not None:
        given: dict[str, object] = {"column": _LABEL}
        if classes is not None:
            given["values"] = [str(at) for at in range(classes)] if isinstance(classes, int) else list(classes)
        if label_range is not None:
            given["range"] = list(label_range)
        known = Schema.from_dict({**known.to_dict(), "label": given}, source=known.source)
    elif known.label.column and known.label.column != _LABEL:
        known = Schema.from_dict(
            {**known.to_dict(), "label": {**_as_table(known.to_dict()["label"]), "column": _LABEL}}, known.source
        )
    added = {_LABEL: labels, _CLIENT: clients} | ({} if person is None else {_PERSON: person})
    return records_of_tables(
        _table_of(inputs, added, "inputs"),
        label=_LABEL,
        client=_CLIENT,
        person=None if person is None else _PERSON,
        public=None if public is None else _table_of(*_two(public, "public")),
        public_share=None,
        test=None if test is None else _table_of(*_two(test, "test")),
        test_share=None,
        schema=known,
        goal=goal,
        seed=0,
    )


def _as_table(given: object) -> dict[str, object]:
    return dict(given) if isinstance(given, dict) else {}


def _two(given: object, what: str) -> tuple[object, dict[str, object], str]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigurationError(f"{what} is {type(given).__name__}", f"give {what}=(inputs, labels)")
    return given[0], {_LABEL: given[1]}, what


def _table_of(frame: object, added: dict[str, object], name: str) -> FrameTable:
    """A frame's columns, and further ones of the same length, as a table."""
    stored: dict[str, Cells] = {}
    columns = list(frame.columns)  # type: ignore[attr-defined]
    for column in columns:
        text = str(column)
        if text in added:
            raise DataError(f"{name}: the frame has a column {text!r} of its own", "rename it")
        if text in stored:
            raise DataError(f"{name}: column {text!r} appears twice", "rename or remove one")
        stored[text] = _cells(frame[column])  # type: ignore[index]
    rows = len(frame)  # type: ignore[arg-type]
    for text, values in added.items():
        cells = _cells(values)
        if len(cells) != rows:
            raise DataError(f"{name}: {rows} rows and {len(cells)} entries of {text}", "give one per row")
        stored[text] = cells
    return FrameTable(name, stored)


def _cells(values: object) -> Cells:
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    if np.issubdtype(array.dtype, np.number):
        return np.asarray(array, dtype=np.float64)
    return [object_text(one) for one in array.tolist()]


def _array(given: object, what: str) -> NDArray[np.generic]:
    """A NumPy array from NumPy, torch, pandas or lists, without a copy if possible."""
    if hasattr(given, "detach"):  # a tensor
        tensor = given.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # which NumPy does not have
            tensor = tensor.float()
        return np.asarray(tensor.numpy())
    array = np.asarray(given)
    if array.dtype == object:
        try:
            array = np.array([object_text(one) for one in array.tolist()])
        except TypeError:
            raise DataError(f"{what} hold objects of different shapes", "give one array") from None
    return array


def _pair(inputs: object, labels: object, what: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Inputs and labels as arrays; a torch data set gives both."""
    if labels is None:
        if not (hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")):
            raise DataError(f"{what} have no labels", "give labels, or a torch Dataset of (input, label)")
        return _of_dataset(inputs, what)
    rows = _array(inputs, f"inputs of {what}")
    values = _array(labels, f"labels of {what}")
    if rows.ndim == 0 or len(rows) == 0:
        raise DataError(f"{what} are empty", "give at least one record")
    if values.ndim == 0 or len(values) != len(rows):
        count = 1 if values.ndim == 0 else len(values)
        raise DataError(f"{what}: {len(rows)} inputs and {count} labels", "give one label per record")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    return rows, values


def _pair_of(given: object, what: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    if isinstance(given, tuple | list) and len(given) == 2:
        return _pair(given[0], given[1], f"the {what} records")
    return _pair(given, None, f"the {what} records")


def _of_dataset(dataset: object, what: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """All items (input, label) of a torch `Dataset`, stacked."""
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) == 2:
        return _pair(tensors[0], tensors[1], what)
    inputs: list[NDArray[np.generic]] = []
    labels: list[NDArray[np.generic]] = []
    for at in range(len(dataset)):  # type: ignore[arg-type]
        item = dataset[at]  # type: ignore[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {at} of {what} is no pair", "let the data set return (input, label)")
        inputs.append(_array(item[0], "inputs"))
        labels.append(_array(item[1], "labels"))
        if inputs[-1].shape != inputs[0].shape:
            raise DataError(
                f"item {at} of {what} has shape {inputs[-1].shape}, item 0 {inputs[0].shape}",
                "let the data set return inputs of one shape",
            )
    return _pair(np.stack(inputs) if inputs else np.empty(0), np.stack(labels) if labels else np.empty(0), what)


def _for_models(given: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    """float32 for floating-point numbers, int64 for whole ones; refuses text and values that are not finite."""
    if np.issubdtype(given.dtype, np.bool_) or np.issubdtype(given.dtype, np.unsignedinteger):
        return np.ascontiguousarray(given, dtype=np.float32)
    if np.issubdtype(given.dtype, np.integer):
        return np.ascontiguousarray(given, dtype=np.int64)
    if not np.issubdtype(given.dtype, np.floating):
        raise DataError(f"{what} hold text", "give numbers, or a pandas frame with a schema")
    made = np.ascontiguousarray(given, dtype=np.float32)
    good = np.isfinite(made).reshape(len(made), -1).all(axis=1)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise DataError(
            f"{what}: record {row} holds NaN, an infinity or a number too large for float32",
            "fill or remove missing values, and scale large ones",
        )
    return made


def _clients(given: object, rows: int) -> tuple[tuple[str, ...], Positions]:
    """The clients' names in the order in which they appear, and the place of each row's client among them."""
    array = _array(given, "clients")
    if array.shape != (rows,):
        raise DataError(f"{rows} records and clients of shape {array.shape}", "name one client per record")
    numbers = np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_
    values, first, codes = np.unique(array, return_index=True, return_inverse=True)
    if numbers and not np.isfinite(values.astype(np.float64)).all():
        raise DataError("clients hold NaN", "name the client of every record")
    names = [number_text(one) if numbers else str(one) for one in values.tolist()]
    looks: dict[str, str] = {}
    for at, name in enumerate(names):
        if not name.strip():
            raise DataError(f"record {first[at]} has no client", "name the client of every record")
        alike = same_name(name)
        if alike in looks:
            raise DataError(
                f"client {name!r} looks like {looks[alike]!r}",
                "write the name of a client in one way, or tell two clients apart more clearly",
            )
        looks[alike] = name
    if len(names) == 1:
        raise DataError(f"all records belong to one client, {names[0]!r}", "a market needs at least two clients")
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return tuple(names[at] for at in order), rank[codes]


def _persons(given: object, codes: Positions) -> Positions:
    array = _array(given, "persons")
    if array.shape != codes.shape:
        raise DataError(f"{len(codes)} records and persons of shape {array.shape}", "name one person per record")
    known, numbers = np.unique(array, return_inverse=True)
    pairs = codes * len(known) + numbers
    return np.asarray(np.unique(pairs, return_inverse=True)[1], dtype=np.int64)


def _classes(given: int | Sequence[object] | None, public: NDArray[np.generic] | None) -> tuple[str, ...]:
    """Names of the classes: as given, or those of the public labels."""
    if isinstance(given, int):
        names = tuple(str(at) for at in range(given))
    elif given is not None:
        names = tuple(object_text(one) for one in given)
    elif public is None:
        raise ConfigurationError(
            "nothing public says which classes there are",
            "give classes=10, classes=['no', 'yes'], or public records of all classes",
        )
    else:
        names = tuple(object_text(one) for one in np.unique(public).tolist())
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigurationError(
            f"classes are {list(names)}", "a classification needs at least two different classes"
        )
    return names


def _codes(labels: NDArray[np.generic], classes: tuple[str, ...], what: str) -> NDArray[np.int64]:
    """(rows,) the place of each label among the classes."""
    if labels.ndim != 1:
        raise DataError(f"{what} labels have shape {labels.shape}", "give one class per record, or an own loss")
    values, inverse = np.unique(labels, return_inverse=True)
    places = {name: at for at, name in enumerate(classes)}
    if np.issubdtype(labels.dtype, np.integer) and not any(name.lstrip("-").isdigit() for name in classes):
        places = {str(at): at for at in range(len(classes))}  # whole numbers that count names which are texts
    found = []
    for value in values.tolist():
        text = object_text(value)
        if text not in places:
            row = int(np.flatnonzero(labels == value)[0]) if value == value else 0
            shown = ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
            raise DataError(
                f"{what} record {row}: class {text!r} is none of {shown}",
                "mend it, or list all classes in classes=",
            )
        found.append(places[text])
    return np.array(found, dtype=np.int64)[inverse]


def _target(limits: tuple[float, float] | None, public: NDArray[np.generic] | None) -> TargetScale:
    if limits is not None:
        low = float(limits[0])
        high = float(limits[1])
        if not low < high:
            raise ConfigurationError(f"label_range is {limits}", "give a low and a higher value")
        return TargetScale((low + high) / 2, (high - low) / 2, 1.0)
    if public is None:
        raise ConfigurationError(
            "the labels have no public range, and there are no public records to scale them by",
            "give label_range=(low, high), public records, or an own loss",
        )
    return target_of(np.asarray(public, dtype=np.float64), "labels")


def check_features(features: Features, rows: NDArray[np.generic]) -> None:
    """Refuses a function whose features of a record depend on the records beside it."""
    few = rows[:4]
    together = _applied(features, few)
    if len(together) != len(few):
        raise ConfigurationError(
            f"features made {len(together)} records of {len(few)}", "return one row of features per record"
        )
    for at in range(len(few)):
        alone = _applied(features, few[at : at + 1])
        if alone.shape[1:] != together.shape[1:] or not np.allclose(alone[0], together[at], rtol=1e-3, atol=1e-4):
            raise ConfigurationError(
                "features of a record depend on the records beside it",
                "use a function of one record: means and scales of private records are not free",
            )


def with_features(features: Features, rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """The features of all records, a block at a time."""
    starts = range(0, len(rows), _BLOCK_ROWS)
    return np.concatenate([_applied(features, rows[start : start + _BLOCK_ROWS]) for start in starts])


def _applied(features: Features, rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """Calls the function with a tensor; a function that takes NumPy arrays only gets one."""
    try:
        with torch.no_grad():
            made = features(torch.from_numpy(np.ascontiguousarray(rows)))
    except (TypeError, AttributeError):
        made = features(rows)
    return _array(made, "features")
