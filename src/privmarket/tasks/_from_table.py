"""The records of a task from tables: finds the clients, puts rows aside, and turns cells into inputs.

A file is read two or three times: to find the clients; for the public rows, if these are a share of the file and
the schema leaves something open; and to turn its rows into arrays.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError, DataError
from privmarket.tasks._pipeline import Pipeline, fit_pipeline, says_all
from privmarket.tasks._records import Positions, Records, TaskRecords, declared_size
from privmarket.tasks._schema import Schema, toml_key
from privmarket.tasks._tables import FILE_NAME, Block, FolderTable, Table, read_table, require_column, texts

Progress = Callable[[int, int], None]
"""Called with the number of rows that are done, and of all rows (0 while that is not known)."""

_SPLIT = 11  # names the stream of random numbers that puts rows aside
_PRIVATE = 0
_PUBLIC = 1
_TEST = 2


def same_name(name: str) -> str:
    """The name without case and with single spaces: two names that a reader takes for the same one are equal."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def records_of_files(
    path: str | Path,
    *,
    label: str | None,
    client: str | None,
    person: str | None,
    public: str | Path | None,
    public_share: float | None,
    test: str | Path | None,
    test_share: float | None,
    schema: str | Path | Schema | None,
    goal: str | None,
    seed: int,
    progress: Progress | None = None,
) -> TaskRecords:
    """The records in a file or folder, see `Task.from_csv`."""
    known = _schema(schema)
    table = read_table(path)
    label = label or known.label.column
    if not label:
        raise ConfigurationError(
            f"{path}: which column is the label?", f"give label=…, --label on the command line {_some(table)}"
        )
    client = client or known.client
    if isinstance(table, FolderTable):
        if client:
            raise ConfigurationError(
                f"{path} is a folder, and client is {client!r}",
                "leave client out: a file's name is its client's name",
            )
        client = FILE_NAME
    if not client:
        raise ConfigurationError(
            f"{path}: which column names the client?", f"give client=…, --client on the command line {_some(table)}"
        )
    return records_of_tables(
        table,
        label=label,
        client=client,
        person=person or known.person or None,
        public=None if public is None else read_table(public),
        public_share=public_share,
        test=None if test is None else read_table(test),
        test_share=test_share,
        schema=known,
        goal=goal,
        seed=seed,
        progress=progress,
    )


def records_of_own_file(
    path: str | Path,
    *,
    label: str | None,
    test: object,
    schema: str | Path | Schema | None,
    goal: str | None,
) -> TaskRecords:
    """A buyer's own records in a file, as public ones; clients are added later, see `Task.from_own_records`.

    Args:
        test: a file of test records, or None.
    """
    known = _schema(schema)
    table = read_table(path)
    label = label or known.label.column
    if not label:
        raise ConfigurationError(f"{path}: which column is the label?", f"give label=… {_some(table)}")
    require_column(table, label, "label")
    # Sellers' tables name clients and persons; the buyer's own file need not, and neither is an input.
    aside = {label, known.client, known.person, FILE_NAME}
    ignored = _ignored(known)
    for name in known.columns:
        if name not in ignored:
            require_column(table, name, f"schema {known.source}")
    columns = [name for name in table.columns if name not in aside | ignored]
    own = _gathered(table, (*columns, label), None)
    if len(own) == 0:
        raise DataError(f"{table.name}: no records below the header", "a plan is made from your own records")
    pipeline = fit_pipeline(known, columns, label, goal, own)
    public = _encoded(pipeline, own, clip=True)
    tested = None
    if test is not None:
        if not isinstance(test, str | Path):
            raise ConfigurationError(f"test is {type(test).__name__}", "own records are a file: give a file, too")
        other = read_table(test)
        for name in (*columns, label):
            require_column(other, name, "same inputs and label")
        tested = _encoded(pipeline, _gathered(other, (*columns, label), None))
        if len(tested) == 0:
            raise DataError(f"{other.name}: no test records below the header", "add some, or leave the file out")
    return TaskRecords(
        (),
        np.zeros(0, dtype=np.int64),
        public,
        public,
        tested,
        pipeline.goal,
        pipeline.classes,
        pipeline.target,
        "record",
        pipeline,
        _schema_warnings(known),
    )


def declared_by(
    clients: int | Sequence[str] | None, records: int | Mapping[str, int] | str | Path
) -> dict[str, int]:
    """Client → how many records it declares.

    Args:
        clients: how many there are, or their names.
        records: one number for all, a number for each by name, or a CSV file with the columns client and records.
    """
    if isinstance(records, bool) or (isinstance(records, int) and records < 1):
        raise ConfigurationError(f"records is {records}", "say how many a client declares, at least 1")
    if isinstance(records, int):
        if clients is None:
            raise ConfigurationError(
                f"{records} records for each client, and nothing says how many clients", "give clients=…, e.g. 30"
            )
        if isinstance(clients, int):
            if clients < 1:
                raise ConfigurationError(f"clients is {clients}", "a market needs at least 1")
            width = len(str(clients))
            clients = [f"client {number:0{width}}" for number in range(1, clients + 1)]
        return {str(name): declared_size(records) for name in clients}
    sizes = _sizes_in(Path(records)) if isinstance(records, str | Path) else {**records}
    wrong = next((name for name, size in sizes.items() if isinstance(size, bool) or not size >= 1), None)
    if wrong is not None:
        raise ConfigurationError(f"{wrong!r} declares {sizes[wrong]} records", "give whole numbers of at least 1")
    if isinstance(clients, int) and clients != len(sizes):
        raise ConfigurationError(f"clients is {clients}, and {len(sizes)} declare records", "leave clients out")
    if clients is not None and not isinstance(clients, int) and {*clients} != {*sizes}:
        odd = sorted({*clients} ^ {*sizes})[0]
        where = "has no number of records" if odd in {*clients} else "is none of the clients"
        raise ConfigurationError(f"{odd!r} {where}", "name the same clients in both places")
    return {name: declared_size(int(size)) for name, size in sizes.items()}


def _sizes_in(path: Path) -> dict[str, int]:
    """The numbers of records in a CSV file with the columns client and records."""
    table = read_table(path)
    for name in ("client", "records"):
        require_column(table, name, "one row per client")
    sizes: dict[str, int] = {}
    for block in table.blocks(["client", "records"]):
        for row, (name, size) in enumerate(
            zip(texts(block.cells["client"]), texts(block.cells["records"]), strict=True)
        ):
            if not name.strip() or name in sizes:
                wrong = "is there twice" if name.strip() else "has no name"
                raise DataError(f"{block.place(row, 'client')}: the client {name!r} {wrong}", "one row per client")
            if not size.strip().isdigit() or int(size) < 1:
                raise DataError(f"{block.place(row, 'records')}: {size!r}", "give a whole number of at least 1")
            sizes[name] = int(size)
    if not sizes:
        raise DataError(f"{table.name}: no clients below the header", "one row per client")
    return sizes


def _some(table: Table) -> str:
    shown = [name for name in table.columns if name != FILE_NAME]
    return f"(one of: {', '.join(shown[:12])}{', …' if len(shown) > 12 else ''})"


def _schema(given: str | Path | Schema | None) -> Schema:
    if given is None:
        return Schema(source="the schema")
    return given if isinstance(given, Schema) else Schema.read(given)


def records_of_tables(
    table: Table,
    *,
    label: str,
    client: str,
    person: str | None,
    public: Table | None,
    public_share: float | None,
    test: Table | None,
    test_share: float | None,
    schema: Schema,
    goal: str | None,
    seed: int,
    together: str | None = None,
    progress: Progress | None = None,
) -> TaskRecords:
    """The records of a table, grouped by client, with public and test records beside them or put aside.

    Args:
        together: a column that names persons who are put aside whole, with their rows at all clients. Unlike
            `person` it does not say what is protected.
    """
    _check_shares(public, public_share, test, test_share)
    require_column(table, label, "label")
    require_column(table, client, "client")
    if person is not None:
        require_column(table, person, "person")
    roles = {"label": label, "client": client, "person": person}
    for role, name in roles.items():
        twice = [other for other, same in roles.items() if same == name and other != role]
        if twice and name is not None:
            raise ConfigurationError(f"{name!r} is both the {role} and the {twice[0]}", "name two columns")
    for name in schema.columns:
        if name not in table.columns:
            require_column(table, name, f"schema {schema.source}")
    if together is not None:
        require_column(table, together, "person")
        if person not in (None, together):
            raise ConfigurationError(f"persons are {person!r} and {together!r}", "name one column")
    aside = {label, client, person, together, FILE_NAME}
    columns = [name for name in table.columns if name not in aside | _ignored(schema)]
    for other in (public, test):
        if other is not None:
            require_column(other, label, "label")
            for name in columns:
                if name not in other.columns:
                    raise DataError(
                        f"{other.name}: no column {name!r}, which {table.name} has",
                        f'add it, or use it nowhere: in the schema [columns.{toml_key(name)}] kind = "ignore"',
                    )

    seen = _scan(table, client, together or person, progress)
    part = _parts(seen, public_share or 0.0, test_share or 0.0, seed, whole=together is not None)
    raw_public = None
    if public is not None:
        raw_public = _gathered(public, (*columns, label), None)
    elif public_share and not says_all(schema, columns):
        raw_public = _gathered(table, (*columns, label), part == _PUBLIC)
    if raw_public is not None and len(raw_public) == 0:
        source = public.name if public is not None else f"{table.name}, a share of {public_share:g}"
        raise DataError(f"{source}: no public records", "give more of them, or none at all")
    pipeline = fit_pipeline(schema, columns, label, goal, raw_public)

    order = _grouped(seen, part)
    place = np.full(len(part), -1, dtype=np.int64)
    place[order] = np.arange(order.size)
    filled = {_PRIVATE: _Filled.empty(pipeline, order.size)}
    for kind in (_PUBLIC, _TEST):
        rows_of_kind = np.flatnonzero(part == kind)
        place[rows_of_kind] = np.arange(rows_of_kind.size)
        filled[kind] = _Filled.empty(pipeline, rows_of_kind.size)
    done = 0
    for block in table.blocks([column.name for column in pipeline.columns] + [label]):
        rows = slice(done, done + len(block))
        done += len(block)
        if done > len(part):
            break
        if progress is not None:
            progress(done, len(part))
        inputs = pipeline.encode(block)
        labels = pipeline.encode_labels(block)
        for kind, into in filled.items():
            mine = part[rows] == kind
            into.put(place[rows][mine], inputs[mine], labels[mine])
    if done != len(part):
        raise DataError(f"{table.name} changed while it was read", "read a copy of it")

    sizes = np.bincount(seen.clients[order], minlength=len(seen.names))
    persons = None if person is None else _person_numbers(seen, order)
    kept = filled[_PRIVATE].records(persons, pipeline, clip=True)
    # The buyer knows whose its own records are, so that it can leave out whole persons.
    own = seen.persons[part == _PUBLIC] if together and seen.persons is not None else None
    bought = filled[_PUBLIC].records(own, pipeline, clip=True) if public_share else None
    if public is not None and raw_public is not None:
        bought = _encoded(pipeline, raw_public, clip=True)
    tested = filled[_TEST].records(None, pipeline) if test_share else None
    if test is not None:
        tested = _encoded(pipeline, _gathered(test, (*columns, label), None))
        if len(tested) == 0:
            raise DataError(f"{test.name}: no test records below the header", "add some, or use test_share")
    return TaskRecords(
        seen.names,
        sizes,
        kept,
        bought,
        tested,
        pipeline.goal,
        pipeline.classes,
        pipeline.target,
        "record" if person is None else "person",
        pipeline,
        _schema_warnings(schema),
    )


def _ignored(schema: Schema) -> set[str]:
    return {name for name, one in schema.columns.items() if one.kind == "ignore"}


def _schema_warnings(schema: Schema) -> tuple[str, ...]:
    if not schema.taken_from:
        return ()
    return (
        f"{schema.source}: ranges and values were taken from {schema.taken_from}; they are public only if you "
        "say so: check them, then delete the line taken_from",
    )


def _check_shares(
    public: Table | None, public_share: float | None, test: Table | None, test_share: float | None
) -> None:
    for what, other, share in (("public", public, public_share), ("test", test, test_share)):
        if other is not None and share is not None:
            raise ConfigurationError(
                f"{what} and {what}_share are both given", f"keep one: a file of {what} records or a share"
            )
        if share is not None and not 0 < share < 1:
            raise ConfigurationError(f"{what}_share is {share}", "give a share between 0 and 1, such as 0.1")
    if (public_share or 0) + (test_share or 0) >= 1:
        raise ConfigurationError("public_share and test_share leave no private records", "lower one of them")


@dataclass(frozen=True, eq=False)
class _Scanned:
    """The client and the person of each row of a table.

    Attributes:
        names: the clients, in the order in which they first appear.
        clients: (rows,) the number of each row's client.
        persons: (rows,) the number of each row's person, over the whole table, or None.
    """

    names: tuple[str, ...]
    clients: NDArray[np.int64]
    persons: NDArray[np.int64] | None


def _scan(table: Table, client: str, person: str | None, progress: Progress | None) -> _Scanned:
    """Reads the clients and persons; refuses empty names, names that look the same, and a single client."""
    code: dict[str, int] = {}
    looks: dict[str, tuple[str, str]] = {}
    people: dict[str, int] = {}
    clients: list[NDArray[np.int64]] = []
    persons: list[NDArray[np.int64]] = []
    done = 0
    for block in table.blocks([client] if person is None else [client, person]):
        done += len(block)
        if progress is not None:
            progress(done, 0)
        cells = texts(block.cells[client])
        for row, name in enumerate(cells):
            if name in code:
                continue
            shown = "client" if client == FILE_NAME else client
            if not name.strip():
                raise DataError(
                    f"{block.place(row, shown)}: no name of a client", "name the client of every record"
                )
            alike = same_name(name)
            if alike in looks:
                other, where = looks[alike]
                raise DataError(
                    f"{block.place(row, shown)}: client {name!r} looks like {other!r} ({where})",
                    "write the name of a client in one way, or tell two clients apart more clearly",
                )
            looks[alike] = (name, f"{block.line_word} {block.lines[row]}")
            code[name] = len(code)
        clients.append(np.array([code[name] for name in cells], dtype=np.int64))
        if person is not None:
            named = [cell.strip() for cell in texts(block.cells[person])]
            if "" in named:
                raise DataError(
                    f"{block.place(named.index(''), person)}: no person", "name the person of every row"
                )
            persons.append(np.array([people.setdefault(one, len(people)) for one in named], dtype=np.int64))
    if not code:
        raise DataError(f"{table.name}: no records below the header", "a task needs records")
    if len(code) == 1:
        raise DataError(
            f"{table.name}: all records belong to one client, {next(iter(code))!r}",
            "name a column with at least two clients",
        )
    return _Scanned(tuple(code), np.concatenate(clients), np.concatenate(persons) if persons else None)


def _parts(seen: _Scanned, public_share: float, test_share: float, seed: int, *, whole: bool) -> NDArray[np.int64]:
    """(rows,) whether a row stays private, is public, or is for testing.

    Rows are drawn with the seed. All rows of a person at a client get the same answer, and every client keeps at
    least one of its rows (or persons).

    Args:
        whole: whether all rows of a person get the same answer, at whatever clients.
    """
    rows = len(seen.clients)
    part = np.full(rows, _PRIVATE)
    if not public_share and not test_share:
        return part
    if seen.persons is None:
        unit_of_row = np.arange(rows)
    else:
        unit_of_row = seen.persons if whole else _person_numbers(seen, np.arange(rows))
    size = np.bincount(unit_of_row)
    drawn = np.random.default_rng([seed, _SPLIT]).permutation(len(size))
    place = np.argsort(drawn)
    # The first unit of each client in the drawn order stays.
    keeps = np.full(len(seen.names), rows)
    np.minimum.at(keeps, seen.clients, place[unit_of_row])
    free = np.delete(drawn, np.unique(keeps))
    ends = np.cumsum(size[free])
    wanted = np.rint(np.array([public_share, public_share + test_share]) * rows)
    cuts = np.searchsorted(ends, wanted, side="right")
    kind = np.full(len(size), _PRIVATE)
    kind[free[: cuts[0]]] = _PUBLIC
    kind[free[cuts[0] : cuts[1]]] = _TEST
    for what, share, code in (("public", public_share, _PUBLIC), ("test", test_share, _TEST)):
        if share and not (kind == code).any():
            raise DataError(
                f"a {what}_share of {share:g} of {rows} records leaves no {what} record",
                "raise the share: every client keeps at least one record",
            )
    return np.asarray(kind[unit_of_row])


def _person_numbers(seen: _Scanned, rows: Positions) -> Positions:
    """A number for each row that is the same for rows of one person at one client and for no others."""
    assert seen.persons is not None
    pairs = seen.clients[rows] * (int(seen.persons.max()) + 1) + seen.persons[rows]
    return np.asarray(np.unique(pairs, return_inverse=True)[1], dtype=np.int64)


def _grouped(seen: _Scanned, part: NDArray[np.int64]) -> Positions:
    """The private rows, client after client, within a client person after person, otherwise as in the file."""
    rows = np.flatnonzero(part == _PRIVATE)
    if seen.persons is not None:
        rows = rows[np.argsort(seen.persons[rows], kind="stable")]
    return rows[np.argsort(seen.clients[rows], kind="stable")]


def _gathered(table: Table, columns: Sequence[str], chosen: NDArray[np.bool_] | None) -> Block:
    """The cells of the chosen rows (or of all) as one block."""
    parts: dict[str, list[Sequence[str] | NDArray[np.float64]]] = {name: [] for name in columns}
    lines: list[int] = []
    last: Block | None = None
    done = 0
    for block in table.blocks(columns):
        rows = np.arange(len(block)) if chosen is None else np.flatnonzero(chosen[done : done + len(block)])
        done += len(block)
        if rows.size == 0:
            continue
        last = block
        lines += [block.lines[row] for row in rows.tolist()]
        for name in columns:
            cells = block.cells[name]
            parts[name].append(
                cells[rows] if isinstance(cells, np.ndarray) else [cells[row] for row in rows.tolist()]
            )
    joined = {name: _joined(some) for name, some in parts.items()}
    word = "line" if last is None else last.line_word
    return Block(table.name, lines, word, joined, "" if last is None else last.decimal_comma)


def _joined(parts: Sequence[Sequence[str] | NDArray[np.float64]]) -> Sequence[str] | NDArray[np.float64]:
    numbers = [part for part in parts if isinstance(part, np.ndarray)]
    if parts and len(numbers) == len(parts):
        return np.concatenate(numbers)
    return [cell for part in parts for cell in texts(part)]


def _encoded(pipeline: Pipeline, block: Block, *, clip: bool = False) -> Records:
    """Records of a block that has been read whole."""
    if len(block) == 0:
        return _Filled.empty(pipeline, 0).records(None, pipeline)
    labels = pipeline.encode_labels(block)
    if clip and pipeline.goal == "regression":
        labels = pipeline.target.clipped(np.asarray(labels, dtype=np.float32))
    return Records(pipeline.encode(block), labels)


@dataclass(frozen=True, eq=False)
class _Filled:
    """Arrays that are filled row by row."""

    inputs: NDArray[np.generic]
    labels: NDArray[np.generic]

    @classmethod
    def empty(cls, pipeline: Pipeline, rows: int) -> _Filled:
        label_type = np.float32 if pipeline.goal == "regression" else np.int64
        return cls(np.empty((rows, len(pipeline.inputs)), pipeline.dtype), np.empty(rows, label_type))

    def put(self, places: Positions, inputs: NDArray[np.generic], labels: NDArray[np.generic]) -> None:
        self.inputs[places] = inputs
        self.labels[places] = labels

    def records(self, persons: Positions | None, pipeline: Pipeline, *, clip: bool = False) -> Records:
        labels = self.labels
        if clip and pipeline.goal == "regression":
            labels = pipeline.target.clipped(np.asarray(labels, dtype=np.float32))
        return Records(self.inputs, labels, persons)
