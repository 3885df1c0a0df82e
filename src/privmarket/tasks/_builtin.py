"""Tasks by name: public pictures and tables, shared out among clients or with clients of their own.

Pictures and scikit-learn's tables have no clients, so records are assigned to clients at random. The other tables
come with *natural* clients: airlines, departments, school classes, hospitals, states, communes, industries,
writers, maintainers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import ConfigurationError, DataError, UnknownNameError
from privmarket.tasks._datasets import Dataset, data_folder, dataset_files, load_dataset, missing_files
from privmarket.tasks._from_table import records_of_tables
from privmarket.tasks._partition import drawn_parts
from privmarket.tasks._pipeline import TargetScale
from privmarket.tasks._records import Records, TaskRecords
from privmarket.tasks._schema import Schema
from privmarket.tasks._scores import ScoreLike
from privmarket.tasks._tables import FrameTable, read_table
from privmarket.tasks._task import Task

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from privmarket.tasks import _features as image_features

    sklearn_datasets: ModuleType
else:
    image_features = late("privmarket.tasks._features")
    sklearn_datasets = late("sklearn.datasets")

# Names the stream of random numbers that decides which kept-back records are public.
_PUBLIC = 12
_TEST_SHARE = 0.2
_TEST_EVERY = 5
_KEPT_BACK_EVERY = 10


@dataclass(frozen=True)
class _Picture:
    """A set of pictures: the names of its classes, and default features and model."""

    classes: tuple[str, ...]
    features: str
    model: str


_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PICTURES = {
    "digits": _Picture(_DIGITS, "none", "linear"),
    "mnist": _Picture(_DIGITS, "centred-gradients", "mlp"),
    "fashion-mnist": _Picture(_CLOTHES, "centred-gradients", "mlp"),
    "cifar10": _Picture(_THINGS, "centred-gradients", "mlp"),
}
_SCIKIT = {"breast-cancer": "load_breast_cancer", "diabetes": "load_diabetes"}


@dataclass(frozen=True)
class _Natural:
    """A table whose rows name their client.

    Attributes:
        file: in the data folder, or in this package's examples.
        ships: whether it comes with this package.
        label: the table [label] of the schema.
        columns: the columns of the schema. Ranges are documented scales, or round numbers beyond what occurs.
        clients: kind of client → the column that names them; the first is the default.
        person: the column that names the person, if there is one.
        whole: whether public and test rows are those of whole persons, whatever is protected: nobody who is tested
            is known to a client, and both units have the same split.
        text: the column of text, if that is the input; read as tokens or as counts of words, as the model needs.
    """

    file: str
    label: dict[str, object]
    columns: dict[str, dict[str, object]]
    clients: dict[str, str]
    person: str = ""
    ships: bool = False
    text: str = ""
    whole: bool = False


_RATINGS: dict[str, dict[str, object]] = {
    "studage": {"kind": "number", "range": [2, 8]},
    "lectage": {"kind": "number", "range": [1, 6]},
    "service": {"kind": "boolean", "values": ["0", "1"]},
    "dept": {"kind": "category", "values": [str(at) for at in range(1, 16) if at != 13]},
}
_NATURAL = {
    "bird-strikes": _Natural("strikes.csv", {}, {}, {"airline": "operator"}, ships=True),
    "insteval": _Natural(
        "InstEval.csv",
        {"column": "y", "range": [1, 5]},
        _RATINGS,
        {"department": "dept", "lecturer": "d"},
        "s",
    ),
    "nlschools": _Natural(
        "nlschools.csv",
        {"column": "lang", "range": [0, 60]},
        {
            "IQ": {"kind": "number", "range": [0, 20]},
            "GS": {"kind": "number", "range": [0, 40]},
            "SES": {"kind": "number", "range": [0, 50]},
            "COMB": {"kind": "boolean", "values": ["0", "1"]},
        },
        {"class": "class"},
    ),
    "medpar": _Natural(
        "medpar.csv",
        {"column": "died", "values": ["0", "1"]},
        {
            "los": {"kind": "number", "range": [0, 120]},
            "hmo": {"kind": "boolean", "values": ["0", "1"]},
            "white": {"kind": "boolean", "values": ["0", "1"]},
            "age80": {"kind": "boolean", "values": ["0", "1"]},
            "type": {"kind": "category", "values": ["1", "2", "3"]},
            "type1": {"kind": "ignore"},
            "type2": {"kind": "ignore"},
            "type3": {"kind": "ignore"},
        },
        {"hospital": "provnum"},
    ),
    "benefits": _Natural(
        "Benefits.csv",
        {"column": "ui", "values": ["no", "yes"]},
        {
            "stateur": {"kind": "number", "range": [0, 20]},
            "statemb": {"kind": "number", "range": [0, 300]},
            "age": {"kind": "number", "range": [15, 75]},
            "tenure": {"kind": "number", "range": [0, 50]},
            "joblost": {
                "kind": "category",
                "values": ["other", "position_abolished", "seasonal_job_ended", "slack_work"],
            },
            "sex": {"kind": "boolean", "values": ["female", "male"]},
            **{
                name: {"kind": "boolean", "values": ["no", "yes"]}
                for name in ("nwhite", "school12", "smsa", "married", "dkids", "dykids", "head")
            },
            # The table is of blue-collar workers alone.
            "bluecol": {"kind": "ignore"},
            "yrdispl": {"kind": "number", "range": [1, 10]},
            "rr": {"kind": "number", "range": [0, 1]},
        },
        {"state": "state"},
    ),
    "insured": _Natural(
        "VietNamI.csv",
        {"column": "insurance", "values": ["0", "1"]},
        {
            "pharvis": {"kind": "number", "range": [0, 30]},
            # The logarithms of expenses and of years.
            "lnhhexp": {"kind": "number", "range": [0, 6]},
            "age": {"kind": "number", "range": [0, 5]},
            "sex": {"kind": "boolean", "values": ["female", "male"]},
            "married": {"kind": "boolean", "values": ["0", "1"]},
            "educ": {"kind": "number", "range": [0, 10]},
            "illness": {"kind": "number", "range": [0, 10]},
            "injury": {"kind": "boolean", "values": ["0", "1"]},
            "illdays": {"kind": "number", "range": [0, 30]},
            "actdays": {"kind": "number", "range": [0, 30]},
        },
        {"commune": "commune"},
    ),
    "wages": _Natural(
        "Males.csv",
        # The logarithm of dollars an hour: from 14 cents to 148 dollars.
        {"column": "wage", "range": [-2, 5]},
        {
            # The years of the panel; years of school; years since then, of men who are young.
            "year": {"kind": "number", "range": [1980, 1987]},
            "school": {"kind": "number", "range": [0, 20]},
            "exper": {"kind": "number", "range": [0, 25]},
            **{name: {"kind": "boolean", "values": ["no", "yes"]} for name in ("union", "married", "health")},
            "ethn": {"kind": "category", "values": ["black", "hisp", "other"]},
            "occupation": {
                "kind": "category",
                "values": [
                    "Clerical_and_kindred",
                    "Craftsmen, Foremen_and_kindred",
                    "Farm_Laborers_and_Foreman",
                    "Laborers_and_farmers",
                    "Managers, Officials_and_Proprietors",
                    "Operatives_and_kindred",
                    "Professional, Technical_and_kindred",
                    "Sales_Workers",
                    "Service_Workers",
                ],
            },
            # Missing for a third of the buyer's rows: that is a value of its own.
            "residence": {
                "kind": "category",
                "values": ["north_east", "nothern_central", "rural_area", "south"],
                "missing": "flag",
            },
        },
        {"industry": "industry"},
        "nr",
        whole=True,
    ),
    "sentences": _Natural(
        "sentences.csv",
        {"column": "sentiment", "values": ["negative", "positive"]},
        {"rating": {"kind": "ignore"}},
        {"writer": "writer"},
        text="sentence",
    ),
    "packages": _Natural(
        "packages.csv",
        {
            "column": "section",
            "values": ["admin", "devel", "doc", "games", "libdevel", "libs", "net", "python", "science", "utils"],
        },
        {},
        {"maintainer": "maintainer"},
        text="description",
    ),
}
# How texts are read: as word numbers for models of tokens, as word counts for the others.
_AS_TOKENS: dict[str, object] = {"kind": "tokens", "buckets": 1024, "length": 24}
_AS_COUNTS: dict[str, object] = {"kind": "text", "buckets": 1024}


def task_names() -> tuple[str, ...]:
    """The names that `task` accepts."""
    return (*_PICTURES, *_SCIKIT, *_NATURAL)


def task(
    name: str,
    *,
    clients: int | str | None = None,
    alpha: float | None = None,
    sizes: str | None = None,
    public: int | None = None,
    features: str | None = None,
    model: str | Callable[..., nn.Module] | None = None,
    score: ScoreLike | Sequence[ScoreLike] | None = None,
    measured_on: str = "test",
    unit: str = "record",
    seed: int = 0,
) -> Task:
    """A task by its name.

    | name | records | clients |
    |---|---|---|
    | digits | 1,797 pictures of 8 × 8 pixels (scikit-learn) | drawn |
    | mnist, fashion-mnist, cifar10 | 60,000 or 50,000 pictures (`privmarket data get`) | drawn |
    | breast-cancer, diabetes | 569 tumours, 442 patients (scikit-learn) | drawn |
    | bird-strikes | 8,677 wildlife strikes of aircraft (ships with this package) | 41 airlines |
    | insteval | 73,421 ratings of lectures (`privmarket data get`) | 14 departments or 1,128 lecturers |
    | nlschools | 2,287 pupils (`privmarket data get`) | 133 classes |
    | medpar | 1,495 stays in hospital (`privmarket data get`) | 54 hospitals |
    | benefits | 4,877 workers who lost a job (`privmarket data get`) | 51 states |
    | insured | 27,765 persons, with health insurance or without (`privmarket data get`) | 194 communes |
    | wages | 4,360 years of 545 young men: log of the hourly wage (`privmarket data get`) | 12 industries |
    | sentences | 8,898 sentences, positive or negative (`privmarket data get`) | 798 reviews and editorials |
    | packages | 24,202 descriptions of packages by section (`privmarket data get`) | 408 maintainers of Debian |

    Args:
        name: one of `task_names()`.
        clients: how many clients share the records (100 for pictures, 10 for scikit-learn's tables); for tables
            with clients of their own, which ones they are: "department" or "lecturer".
        alpha: Dirichlet skew of labels where clients are drawn: 0.1 severe, 0.5 (the default) mild.
        sizes: "equal" (the default), or "dirichlet", where clients differ in size as well.
        public: how many records the buyer owns; if left out, as many as a client holds on average. They come from
            records that are kept back from the clients, so the clients' records do not depend on this number. With
            natural clients they are drawn from all records with the seed.
        features: of pictures: "none" or a fixed public transform.
        model: as in `Task.from_csv`; if left out, a default for this task.
        score: the headline score.
        measured_on: of pictures: "test", or "validation": kept-back records that are not public.
        unit: "record", or "person" for insteval, where a student rates several lectures, and for wages, where a man
            has eight years; his years in one industry are then protected together.
        seed: of all draws.
    """
    if public is not None and public < 0:
        raise ConfigurationError(f"public is {public}", "give a number of records, or 0 for none")
    if unit not in ("record", "person"):
        raise UnknownNameError.among("unit", unit, ("record", "person"))
    if name in _NATURAL:
        asked = {"alpha": alpha, "sizes": sizes, "features": features}
        by = _only(name, asked, clients)
        if _NATURAL[name].text:
            model = model or "embedding"
        counts = model in ("linear", "mlp")
        records = _natural(name, by, public, unit, seed, _AS_COUNTS if counts else _AS_TOKENS)
    elif name in _PICTURES or name in _SCIKIT:
        if isinstance(clients, str) or unit != "record":
            raise ConfigurationError(f"{name} has no clients or persons of its own", "give a number of clients")
        split = _Split(clients or (100 if name in _PICTURES else 10), 0.5 if alpha is None else alpha, sizes, seed)
        if name in _PICTURES:
            chosen = _PICTURES[name].features if features is None else features
            records = _pictures(name, split, public, chosen, measured_on)
            model = model or _PICTURES[name].model
        else:
            _only(name, {"features": features}, None)
            records = _scikit(name, split, public)
    else:
        raise UnknownNameError.among("task", name, task_names())
    return Task.from_records(name, records, model=model or "linear", score=score)


def _only(name: str, asked: Mapping[str, object], clients: int | str | None) -> str | None:
    """Refuses settings that a task does not have. Returns the kind of natural clients."""
    for option, value in asked.items():
        if value is not None:
            raise ConfigurationError(f"{name} has no {option}", "leave it out")
    if isinstance(clients, int):
        raise ConfigurationError(
            f"{name} has clients of its own, so their number cannot be chosen",
            f"leave clients out, or give one of: {', '.join(_NATURAL[name].clients)}",
        )
    return clients


@dataclass(frozen=True)
class _Split:
    """How records without clients are shared out, by the same draw as in `FederationConfig`."""

    clients: int
    alpha: float
    sizes: str | None
    seed: int

    def parts(self, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Record numbers of each client."""
        return drawn_parts(labels, self.clients, self.alpha, self.sizes or "equal", self.seed)

    def public_rows(self, pool: int, asked: int | None, records: int) -> NDArray[np.int64]:
        """Which of the kept-back records are the buyer's."""
        count = min(pool, max(1, records // self.clients)) if asked is None else asked
        if count > pool:
            raise DataError(
                f"{count} public records, but only {pool} are kept back from the clients", "ask for fewer"
            )
        return np.random.default_rng([self.seed, _PUBLIC]).permutation(pool)[:count]


def _pictures(name: str, split: _Split, public: int | None, features: str, measured_on: str) -> TaskRecords:
    raw = load_dataset(name, measured_on="test")
    kept_back = load_dataset(name, measured_on="validation")
    if measured_on not in ("test", "validation"):
        raise UnknownNameError.among("set to measure on", measured_on, ("test", "validation"))
    made = image_features.with_features(raw, features)
    pool = image_features.with_features(
        replace(kept_back, train_images=kept_back.train_images[:1], train_labels=kept_back.train_labels[:1]),
        features,
    )
    parts = split.parts(raw.train_labels)
    chosen = split.public_rows(len(pool.test_labels), public, len(raw.train_labels))
    rest = np.setdiff1d(np.arange(len(pool.test_labels)), chosen)
    # With Dirichlet sizes some clients may hold nothing; they keep their place.
    names = tuple(str(at) for at in range(len(parts)))
    order = np.concatenate(parts)
    test = Records(made.test_images, made.test_labels)
    if measured_on == "validation":
        test = Records(pool.test_images[rest], pool.test_labels[rest])
    return TaskRecords(
        names,
        np.array([part.size for part in parts], dtype=np.int64),
        Records(_rows(made, order), made.train_labels[order]),
        Records(pool.test_images[chosen], pool.test_labels[chosen]) if chosen.size else None,
        test,
        "classification",
        _PICTURES[name].classes,
        TargetScale(),
        "record",
    )


def task_of(dataset: Dataset, parts: Sequence[NDArray[np.int64]], *, model: str = "linear") -> Task:
    """A task on pictures that are ready: client i, called "i", holds the records `parts[i]` of the data set.

    Args:
        dataset: features already computed; its test records are the task's.
        model: "linear" (or "logistic"), "mlp" or "cnn".
    """
    order = np.concatenate(list(parts)).astype(np.int64)
    records = TaskRecords(
        tuple(str(at) for at in range(len(parts))),
        np.array([part.size for part in parts], dtype=np.int64),
        Records(_rows(dataset, order), dataset.train_labels[order]),
        None,
        Records(dataset.test_images, dataset.test_labels),
        "classification",
        tuple(str(number) for number in range(dataset.classes)),
        TargetScale(),
        "record",
    )
    return Task.from_records(dataset.name, records, model="linear" if model == "logistic" else model)


def _rows(dataset: Dataset, order: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(dataset.train_images[order])


def _scikit(name: str, split: _Split, public: int | None) -> TaskRecords:
    """A table of scikit-learn's: every fifth row for testing, every tenth of the others kept back for the buyer."""
    found = getattr(sklearn_datasets, _SCIKIT[name])(**({"scaled": False} if name == "diabetes" else {}))
    inputs = np.asarray(found.data, dtype=np.float64)
    target = np.asarray(found.target, dtype=np.float64)
    is_class = name == "breast-cancer"
    at = np.arange(len(target))
    test = at % _TEST_EVERY == 0
    train = at[~test]
    kept_back = train[np.arange(train.size) % _KEPT_BACK_EVERY == _KEPT_BACK_EVERY - 1]
    private = np.setdiff1d(train, kept_back)
    chosen = kept_back[split.public_rows(kept_back.size, public, private.size)]
    if chosen.size < 2:
        raise DataError(f"{name} is scaled by public records, of which there are {chosen.size}", "give public=20")
    # A regression's records are shared out by fifths of its target.
    fifths = np.searchsorted(np.quantile(target[private], [0.2, 0.4, 0.6, 0.8]), target[private])
    parts = split.parts(target[private].astype(np.int64) if is_class else fifths.astype(np.int64))
    holder = np.full(len(target), "", dtype=object)
    for number, part in enumerate(parts):
        holder[private[part]] = str(number)
    labels = [str(found.target_names[int(one)]) for one in target] if is_class else []

    def table(rows: NDArray[np.int64], what: str) -> FrameTable:
        stored = {str(column): inputs[rows, place] for place, column in enumerate(found.feature_names)}
        stored["target"] = [labels[row] for row in rows] if is_class else target[rows]
        stored["client"] = holder[rows].tolist()
        return FrameTable(f"{name}, {what} records", stored)

    about = (
        {"column": "target", "values": [str(one) for one in found.target_names]}
        if is_class
        else {"column": "target"}
    )
    return records_of_tables(
        table(np.concatenate([private[part] for part in parts]), "private"),
        label="target",
        client="client",
        person=None,
        public=table(chosen, "public"),
        public_share=None,
        test=table(at[test], "test"),
        test_share=None,
        schema=Schema.from_dict({"label": about}, source=name),
        goal="classification" if is_class else "regression",
        seed=0,
    )


def _natural(
    name: str, by: str | None, public: int | None, unit: str, seed: int, text: dict[str, object]
) -> TaskRecords:
    """A table with clients of its own: a fifth of the rows for testing, the public ones drawn with the seed.

    Args:
        text: how a column of text is read.
    """
    about = _NATURAL[name]
    if about.text:
        about = replace(about, columns={**about.columns, about.text: text})
    by = by or next(iter(about.clients))
    if by not in about.clients:
        raise UnknownNameError.among(f"clients of {name}:", by, about.clients)
    if unit == "person" and not about.person:
        raise ConfigurationError(f"{name} does not say whose records are whose", "use unit='record'")
    if not about.ships:
        return _natural_file(name, about, data_folder() / name / about.file, by, public, unit, seed)
    with as_file(files("privmarket") / "examples" / "own-data") as folder:
        schema = Schema.read(folder / "strikes.toml")
        label: dict[str, object] = {"column": schema.label.column, "values": schema.label.values}
        columns = {column: one.to_dict() for column, one in schema.columns.items()}
        shipped = replace(about, label=label, columns=columns)
        return _natural_file(name, shipped, folder / about.file, by, public, unit, seed)


def _natural_file(
    name: str, about: _Natural, path: Path, by: str, public: int | None, unit: str, seed: int
) -> TaskRecords:
    if not about.ships and missing_files(dataset_files(name), path.parent):
        state = "corrupted" if path.exists() else "missing"
        raise DataError(f"{name}: {path.name} {state} in {path.parent}", f"run: privmarket data get {name}")
    table = read_table(path)
    client = about.clients[by]
    # Columns that name other clients or persons are not inputs.
    names = {*about.clients.values(), about.person} - {client, ""}
    ignored: dict[str, dict[str, object]] = {one: {"kind": "ignore"} for one in names if one not in about.columns}
    person = about.person if unit == "person" else None
    columns = {key: one for key, one in {**ignored, **about.columns}.items() if key not in (client, person)}
    schema = Schema.from_dict({"label": about.label, "columns": columns}, source=name)
    rows = sum(len(block) for block in table.blocks([client]))
    holders = len({cell for block in table.blocks([client]) for cell in map(str, block.cells[client])})
    asked = max(1, rows // holders) if public is None else public
    return records_of_tables(
        table,
        label=schema.label.column,
        client=client,
        person=person,
        public=None,
        public_share=asked / rows if asked else None,
        test=None,
        test_share=_TEST_SHARE,
        schema=schema,
        goal=None,
        seed=seed,
        together=about.person if about.whole else None,
    )
