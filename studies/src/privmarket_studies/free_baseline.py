"""What the buyer's own records give without a market, on the public features that the market's runs use.

    python -m privmarket_studies.free_baseline docs/results/free-baseline

The buyer's own records are those that no client holds: every twelfth of a training file (every tenth of CIFAR-10's
and of the digits'). Models and hyper-parameters are chosen by cross-validation on them alone; the test records are
looked at once, for the figure. Rows that are there are not computed again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from privmarket._files import write_atomically
from privmarket.simulation._config import DATASETS, recommended_training
from privmarket.tasks import load_dataset, own_records_alone, with_features
from privmarket_studies.page_text import table_row
from privmarket_studies.reproduce.document import NOT_COMPUTED

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "free-baseline"
NAME = "free-baseline.json"
TRUSTS = ("local", "aggregate")
COMMAND = "python -m privmarket_studies.free_baseline docs/results/free-baseline"


class FittedRow(TypedDict):
    """One model: its settings, its accuracy by cross-validation and on the test records."""

    name: str
    settings: dict[str, float | str]
    cross_validated: float
    test: float


class BaselineRow(TypedDict):
    """What the buyer's own records of one data set give on one kind of features; the best model comes first."""

    name: str
    dataset: str
    features: str
    records: int
    test_records: int
    seconds: float
    models: list[FittedRow]


def settings() -> list[tuple[str, str]]:
    """(data set, features) as recommended under either trust, each once."""
    found = [(name, recommended_training(name, trust).features) for name in DATASETS for trust in TRUSTS]
    return list(dict.fromkeys(found))


def measure(dataset: str, features: str) -> BaselineRow:
    """Fits the baselines to the kept-back records and scores each on the test records."""
    kept_back = with_features(load_dataset(dataset, measured_on="validation"), features)
    test = with_features(load_dataset(dataset), features)
    started = time.perf_counter()
    models: list[FittedRow] = [
        {
            "name": model.name,
            "settings": model.settings,
            "cross_validated": model.cross_validated,
            "test": model.score(test.test_images, test.test_labels),
        }
        for model in own_records_alone(kept_back.test_images, kept_back.test_labels)
    ]
    return {
        "name": f"{dataset} {features}",
        "dataset": dataset,
        "features": features,
        "records": len(kept_back.test_labels),
        "test_records": len(test.test_labels),
        "seconds": round(time.perf_counter() - started, 1),
        "models": models,
    }


def read(folder: Path = FOLDER) -> list[BaselineRow]:
    """The rows that were kept; none if the file is not there."""
    path = folder / NAME
    rows: list[BaselineRow] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def own_records(dataset: str, trust: str, folder: Path = FOLDER) -> BaselineRow | None:
    """The row of a data set on the features that are recommended for it under a trust; None if it was not kept."""
    features = recommended_training(dataset, trust).features
    rows = read(folder)
    return next((row for row in rows if (row["dataset"], row["features"]) == (dataset, features)), None)


def best_text(dataset: str, trust: str, folder: Path = FOLDER) -> str:
    """`98.59 % (kernel ridge)`: the model that cross-validation chose, and its accuracy on the test records."""
    row = own_records(dataset, trust, folder)
    if row is None:
        return NOT_COMPUTED
    best = row["models"][0]
    return f"{100 * best['test']:.2f} % ({best['name']})"


def own_records_line(datasets: Sequence[str], trust: str, folder: Path = FOLDER) -> str:
    """One sentence for a page: what the buyer's own records alone give on each data set."""
    said = []
    for dataset in datasets:
        row = own_records(dataset, trust, folder)
        if row is None:
            said.append(f"{dataset} {NOT_COMPUTED}")
            continue
        best = row["models"][0]
        said.append(f"{dataset} **{100 * best['test']:.1f} %** ({best['name']})")
    return f"Buyer's own records alone, on the same features, for nothing and at ε = 0: {', '.join(said)}."


_HEAD = f"""# What the buyer's own records give for nothing

**Question.** What does a model of the buyer's own records reach, without money and without any client's privacy? A
bought model is worth what it adds to that.

Own records are some that no client holds: every twelfth of MNIST's and Fashion-MNIST's training files, every
tenth of CIFAR-10's and of the digits'. Three plain models on the public features of the market's runs,
hyper-parameters by five-fold cross-validation on the own records alone (one division into folds, seed 0; there
is no other draw of own records, so no interval). The best by cross-validation is in bold; test records were
used for the last column only.

`{COMMAND}` makes this page, with `privmarket.tasks.own_records_alone`.

| data set | features | under | own records | model | by cross-validation | on the test records |
|---|---|---|---|---|---|---|
"""
_NOTES = """
On MNIST cross-validation lies above the test figure, probably because records of one writer fall into several
folds and the test file is by other writers. The market's runs with fixed settings used these records only to
choose rates and rounds. Runs that also start from the buyer's own model: [what money
buys](../what-money-buys/README.md).
"""


def render(folder: Path) -> str:
    """The page, from the kept rows."""
    text = _HEAD
    for row in read(folder):
        trusts = [t for t in TRUSTS if recommended_training(row["dataset"], t).features == row["features"]]
        for place, model in enumerate(row["models"]):
            test = f"{model['test']:.2%}"
            cells = [
                row["dataset"],
                row["features"],
                " and ".join(trusts) + " trust",
                f"{row['records']:,}",
                f"**{model['name']}**" if place == 0 else model["name"],
                f"{model['cross_validated']:.2%}",
                f"**{test}** of {row['test_records']:,}" if place == 0 else test,
            ]
            text += table_row(cells)
    return text + _NOTES


def main(folder: Path) -> None:
    """Computes the rows that are missing and writes the page."""
    for dataset, features in settings():
        rows = read(folder)
        if any((row["dataset"], row["features"]) == (dataset, features) for row in rows):
            continue
        rows.append(measure(dataset, features))
        write_atomically(folder / NAME, json.dumps(rows, indent=1) + "\n")
        print(rows[-1], file=sys.stderr, flush=True)
    write_atomically(folder / "README.md", render(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
