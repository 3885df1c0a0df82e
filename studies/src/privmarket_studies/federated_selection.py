"""Chooses the training settings of each data set on validation records, which no client holds.

Every candidate trains under the same conditions: 100 clients, a budget of 50 a round, 200 rounds, persistent types,
on seeds that no reported run uses; MNIST under mild and severe skew of labels, the others under mild skew. The
highest mean validation accuracy wins, and test records are never looked at. One file keeps all that was measured,
so a stopped search goes on where it was:

    python -m privmarket_studies.federated_selection docs/results/federated/selection/selection.json --minutes 9
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from privmarket._files import write_atomically
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run
from privmarket.training import one_thread

_START = Training(
    features="centred-gradients",
    clip_norm=4.0,
    server_rate=4.0,
    final_rate=0.1,
    momentum=0.9,
    averaging=0.9,
)
_LOGISTIC = {"model": "logistic"}


@dataclass(frozen=True)
class SelectionTask:
    """What settings are wanted for, and the candidates.

    Attributes:
        conditions: (α, seed) under which every candidate is run.
        changes: of each candidate against `_START`.
        wallet: lifetime limit on ε, if any.
    """

    dataset: str
    conditions: tuple[tuple[float, int], ...]
    changes: tuple[dict[str, Any], ...]
    wallet: float | None = None

    def candidates(self) -> list[Training]:
        """The settings that are compared."""
        return [replace(_START, **changes) for changes in self.changes]

    def configuration(self, training: Training, alpha: float, seed: int) -> FederationConfig:
        """One run of the search."""
        return FederationConfig(
            dataset=self.dataset,
            clients=100,
            alpha=alpha,
            mechanism="mfg-menunet",
            budget=50.0,
            rounds=200,
            evaluate_every=200,
            measured_on="validation",
            wallet=self.wallet,
            seed=seed,
            training=training,
        )


_MILD, _SEVERE = (0.5, 1000), (0.1, 1001)
TASKS = {
    "mnist": SelectionTask(
        "mnist",
        (_MILD, _SEVERE),
        (
            {},
            {"features": "oriented-gradients"},
            _LOGISTIC,
            {"server_rate": 2.0},
            {"clip_norm": 2.0, "server_rate": 2.0},
            {"clip_norm": 8.0, "server_rate": 8.0},
        ),
    ),
    "fashion-mnist": SelectionTask("fashion-mnist", (_MILD,), ({}, {"features": "oriented-gradients"})),
    "mnist, lifetime ε ≤ 8": SelectionTask(
        "mnist",
        (_MILD,),
        (
            {"server_rate": 1.0},
            {**_LOGISTIC, "server_rate": 2.0},
            {**_LOGISTIC, "server_rate": 1.0},
        ),
        wallet=8.0,
    ),
    "cifar10": SelectionTask(
        "cifar10",
        (_MILD,),
        ({}, {"features": "oriented-gradients"}, {"server_rate": 2.0}),
    ),
}


def configurations() -> Iterator[FederationConfig]:
    """Yields every run of the search, task by task."""
    for task in TASKS.values():
        for training, (alpha, seed) in itertools.product(task.candidates(), task.conditions):
            yield task.configuration(training, alpha, seed)


class MeasuredRun(TypedDict):
    """One run of the search, as it is kept."""

    config: dict[str, object]
    accuracy: float
    seconds: float


def search(path: Path, minutes: float) -> int:
    """Measures what the file does not hold yet, until the time is over; returns how many runs are missing."""
    end = time.monotonic() + 60 * minutes
    missing = [c for c in configurations() if c.digest() not in _measured(path)]
    while missing and time.monotonic() < end:
        config = missing.pop(0)
        with one_thread():
            result = run(config)
        cells = _measured(path)
        cells[config.digest()] = {
            "config": config.to_json(),
            "accuracy": result.accuracy,
            "seconds": round(result.seconds, 1),
        }
        write_atomically(path, json.dumps(cells, indent=1) + "\n")
        print(
            f"{config.dataset} {config.alpha} {_changed(config.training)}: {result.accuracy:.2%}", file=sys.stderr
        )
    return len(missing)


def scores(path: Path, name: str) -> dict[Training, float]:
    """Mean validation accuracy of each candidate of a task; all of them, or the search is not over."""
    cells, task = _measured(path), TASKS[name]
    return {
        training: float(
            np.mean([cells[task.configuration(training, *c).digest()]["accuracy"] for c in task.conditions])
        )
        for training in task.candidates()
    }


def best(path: Path, name: str) -> Training:
    """The settings with the best accuracy on validation records."""
    found = scores(path, name)
    return max(found, key=lambda training: found[training])


def render_selection(path: Path) -> str:
    """The compared settings as a Markdown table, the best in bold."""
    lines = [
        "| for | settings, as they differ from the first line | mean validation accuracy |",
        "|---|---|---|",
    ]
    for name in TASKS:
        found = scores(path, name)
        top = best(path, name)
        for training, value in found.items():
            text = f"{value:.2%}"
            lines.append(f"| {name} | {_changed(training)} | {f'**{text}**' if training == top else text} |")
    return "\n".join(lines) + "\n"


def _changed(training: Training) -> str:
    start, given = asdict(_START), dict(sorted(asdict(training).items()))
    return ", ".join(f"{k} = {v}" for k, v in given.items() if v != start[k]) or "first candidate"


def _measured(path: Path) -> dict[str, MeasuredRun]:
    kept: dict[str, MeasuredRun] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    options = parser.parse_args()
    print(f"{search(options.file, options.minutes)} runs missing", file=sys.stderr)
