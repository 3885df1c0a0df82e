"""How good is a plan without the sellers' records? Rehearsed gains beside those of whole runs of the same market.

Of each task the sellers' records are known here. A plan is made from the buyer's records and the declared sizes
alone (`Task.without_private_records`); then the market that it chose is run on the sellers' records, with seeds of
its own, and measured on test records. A seed draws which records are the buyer's, the sellers' and for testing. In
the task `noise` inputs say nothing about labels.

  python -m privmarket_studies.rehearsed_gains rows.jsonl --seeds 4    plans and runs, about an hour on one core
  python -m privmarket_studies.rehearsed_gains rows.jsonl --table      the table of what is there

A second call goes on where the first ended.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import privmarket as pm
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federate import settings_of
from privmarket.simulation._plan import run_figures
from privmarket.tasks import Task
from privmarket_studies.page_text import table_row

# Money in all per client; more buys nothing on these tasks.
MONEY = (0.1, 1.0)
RUN_SEEDS = (1, 2)
_PUBLIC = {"bird-strikes": 174, "benefits": 95, "insured": 143, "nlschools": 100}
TASKS = (*_PUBLIC, "breast-cancer", "digits", "noise")


def task_of(name: str, seed: int) -> Task:
    """The task with the buyer's, the sellers' and the test records of a seed."""
    if name == "digits":
        return pm.task("digits", clients=20, alpha=0.5, public=100, seed=seed)
    if name == "noise":
        rng = np.random.default_rng(seed)
        inputs = rng.normal(size=(4_150, 8)).astype(np.float32)
        labels = rng.integers(0, 2, 4_150)
        return pm.Task.from_arrays(
            inputs[:3_000],
            labels[:3_000],
            clients=np.arange(3_000) % 30,
            public=(inputs[3_000:3_150], labels[3_000:3_150]),
            test=(inputs[3_150:], labels[3_150:]),
            classes=2,
            name="noise",
        )
    return pm.task(name, public=_PUBLIC.get(name), seed=seed)


def rows_of(name: str, seed: int, trust: str) -> list[dict[str, Any]]:
    """One row for each amount of money."""
    began = time.perf_counter()
    task = task_of(name, seed)
    totals = [share * len(task.clients) for share in MONEY]
    plan = pm.plan(
        task.without_private_records().replace(test=None),
        money=totals,
        trust="local" if trust == "local" else "aggregate",
        effort="quick",
    )
    base = FederationConfig(**settings_of(task), trust=trust, scenario=plan.base.scenario)
    rows = []
    for point in plan.rehearsed:
        config = point.choice.config(base, point.total)
        runs = [run_figures(config.replace(seed=seed), task, None, {}) for seed in RUN_SEEDS]
        gains = [task.score.gain(run.score_before or 0.0, run.score) for run in runs]
        rows.append(
            {
                "task": name,
                "seed": seed,
                "trust": trust,
                "money": MONEY[totals.index(point.total)],
                "score": task.score.name,
                "cross_validated": plan.score_before,
                "error": plan.score_before_error,
                "score_before": runs[0].score_before,
                "rehearsed": point.rehearsed_gain,
                "spread": point.rehearsed_deviation,
                "pays": point.pays,
                "measured": float(np.mean(gains)),
                "in_worlds": [point.score_before_in_worlds, point.score_in_worlds],
                "choice": f"{point.choice.rounds} rounds of {point.choice.label}",
                "seconds": round(time.perf_counter() - began),
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each task, trust and amount of money: means over seeds."""
    lines = [
        table_row(
            [
                "task",
                "trust",
                "money a client",
                "rehearsed gain ± spread",
                "measured gain",
                '"buy" / seeds',
                "measured > 0",
            ]
        ),
        table_row(["---"] * 7),
    ]
    for key in dict.fromkeys((row["task"], row["trust"], row["money"]) for row in rows):
        some = [row for row in rows if (row["task"], row["trust"], row["money"]) == key]
        gains = np.array([[row["rehearsed"], row["spread"], row["measured"]] for row in some], dtype=float)
        rehearsed, spread, measured = gains.mean(axis=0)
        lines.append(
            table_row(
                [
                    f"{key[0]} ({some[0]['score']})",
                    key[1],
                    f"{key[2]:g}",
                    f"{rehearsed:+.3f} ± {spread:.3f}",
                    f"{measured:+.3f}",
                    f"{sum(bool(row['pays']) for row in some)} / {len(some)}",
                    f"{int((gains[:, 2] > 0).sum())}",
                ]
            )
        )
    return lines


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How far rehearsed gains are off, and how often the verdict was right."""
    gains = np.array([[row["rehearsed"], row["spread"], row["measured"]] for row in rows], dtype=float)
    said = np.array([bool(row["pays"]) for row in rows])
    helped = gains[:, 2] > 0
    within = np.abs(gains[:, 2] - gains[:, 0]) <= 2 * gains[:, 1]
    return [
        f"{len(rows)} plans: {int(said.sum())} said buy, of which {int((said & helped).sum())} gained; "
        f"{int((~said).sum())} said buy nothing, of which {int((~said & helped).sum())} would have gained",
        f"measured gain of those that said buy over rehearsed gain: {_ratio(gains[said])}; "
        f"within two spreads: {int(within.sum())} of {len(rows)}",
    ]


def _ratio(gains: np.ndarray) -> str:
    return f"{gains[:, 2].sum() / gains[:, 0].sum():.2f}" if len(gains) else "none"


def main() -> None:
    """Makes rows, or prints their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trust", default="aggregate", choices=("aggregate", "local"))
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.rows.read_text().splitlines()] if asked.rows.exists() else []
    if asked.table:
        print("\n".join([*table(rows), "", *summary(rows)]))
        return
    done = {(row["task"], row["seed"], row["trust"]) for row in rows}
    for seed in range(1, asked.seeds + 1):
        for name in asked.tasks.split(","):
            if (name, seed, asked.trust) in done:
                continue
            with asked.rows.open("a") as stream:
                for row in rows_of(name, seed, asked.trust):
                    stream.write(json.dumps(row) + "\n")
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
