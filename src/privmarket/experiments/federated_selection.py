"""Chooses the training settings of each data set on validation records, which no client holds.

Every candidate trains under the same conditions: 100 clients, a budget of 50 a round, 200 rounds, persistent types,
on seeds that no reported run uses; MNIST under mild and severe skew of labels, the others under mild skew. The
highest mean validation accuracy wins, and test records are never looked at. One file keeps all that was measured,
so a stopped search goes on where it was:

    python -m privmarket.experiments.federated_selection docs/results/federated/selection/selection.json --minutes 9
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.federated.config import FederationConfig, Training

_START = Training(
    features="centred-gradients",
    clip_norm=4.0,
    server_rate=4.0,
    final_rate=0.1,
    momentum=0.9,
    averaging=0.9,
)
# One change at a time, then those that helped together.
_CHANGES: dict[str, list[dict[str, Any]]] = {
    "mnist": [
        {},
        {"features": "oriented-gradients"},
        {"model": "logistic"},
        {"server_rate": 2.0},
        {"clip_norm": 2.0, "server_rate": 2.0},
        {"clip_norm": 8.0, "server_rate": 8.0},
    ],
    "cifar10": [{}, {"features": "oriented-gradients"}, {"server_rate": 2.0}],
    "fashion-mnist": [{}, {"features": "oriented-gradients"}],
}


# (α, seed) under which the candidates of a data set are compared.
_MILD, _SEVERE = (0.5, 1000), (0.1, 1001)
_CONDITIONS = {"mnist": (_MILD, _SEVERE), "cifar10": (_MILD,), "fashion-mnist": (_MILD,)}


def candidates(dataset: str) -> list[Training]:
    """The settings that are compared."""
    return [replace(_START, **changes) for changes in _CHANGES[dataset]]


def configurations() -> Iterator[FederationConfig]:
    """Every run of the search, data set by data set."""
    for dataset in _CHANGES:
        for training in candidates(dataset):
            for alpha, seed in _CONDITIONS[dataset]:
                yield FederationConfig(
                    dataset=dataset,
                    clients=100,
                    alpha=alpha,
                    mechanism="mfg-menunet",
                    budget=50.0,
                    rounds=200,
                    evaluate_every=200,
                    measured_on="validation",
                    seed=seed,
                    training=training,
                )


def search(path: Path, minutes: float) -> int:
    """Measures what the file does not hold yet, until the time is over; returns how many runs are missing."""
    from privmarket.federated.simulation import run
    from privmarket.federated.workers import one_thread

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
        path.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
        print(
            f"{config.dataset} {config.alpha} {_changed(config.training)}: {result.accuracy:.2%}", file=sys.stderr
        )
    return len(missing)


def scores(path: Path, dataset: str) -> dict[Training, float]:
    """Mean validation accuracy of each candidate; of all of them, or the search is not over."""
    cells = _measured(path)
    found: dict[Training, list[float]] = {}
    for config in configurations():
        if config.dataset == dataset:
            found.setdefault(config.training, []).append(cells[config.digest()]["accuracy"])
    return {training: float(np.mean(values)) for training, values in found.items()}


def best(path: Path, dataset: str) -> Training:
    """The settings that were chosen."""
    found = scores(path, dataset)
    return max(found, key=lambda training: found[training])


def render_selection(path: Path) -> str:
    """The comparison as a table."""
    lines = [
        "| data set | settings, as they differ from the first line | mean validation accuracy |",
        "|---|---|---|",
    ]
    for dataset in _CHANGES:
        found = scores(path, dataset)
        top = best(path, dataset)
        for training, value in found.items():
            text = f"{value:.2%}"
            lines.append(f"| {dataset} | {_changed(training)} | {f'**{text}**' if training == top else text} |")
    return "\n".join(lines) + "\n"


def _changed(training: Training) -> str:
    start, given = asdict(_START), asdict(training)
    return ", ".join(f"{k} = {v}" for k, v in given.items() if v != start[k]) or "first candidate"


def _measured(path: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return kept


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    options = parser.parse_args()
    print(f"{search(options.file, options.minutes)} runs missing", file=sys.stderr)
