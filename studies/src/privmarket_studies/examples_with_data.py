"""Real records, what a buyer has for nothing, and what money adds: the table of `how-to/examples-with-data.md`.

    python -m privmarket_studies.examples_with_data measure [NAME …]   # computes what is missing, a run at a time
    python -m privmarket_studies.examples_with_data page               # writes the table into the page

Every task gets the same terms: aggregate trust, ten rounds, a lifetime ε of at most 2, half a credit per client and
round. Server rate, clip norm and averaging are chosen on the buyer's own records. Seeds decide which records are
the buyer's and which are for testing, what clients ask, and the noise.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from scipy.special import stdtrit

import privmarket
from privmarket._files import write_atomically
from privmarket.simulation import federate
from privmarket.tasks import task

if TYPE_CHECKING:
    from privmarket.tasks import Task

SEEDS = tuple(range(1, 11))
FEWER_SEEDS = SEEDS[:3]
ROUNDS = 10
WALLET = 2.0
CREDITS_PER_CLIENT = 0.5
REPOSITORY = Path(__file__).parents[3]
RESULTS = REPOSITORY / "docs" / "results" / "examples" / "examples.json"
PAGE = REPOSITORY / "docs" / "how-to" / "examples-with-data.md"
BEGIN = "<!-- table: begin -->"
END = "<!-- table: end -->"


@dataclass(frozen=True)
class Case:
    """One row of the page: whose records they are, which model, and how the task is made."""

    clients: str
    model: str
    make: Callable[[int], Task]
    seeds: tuple[int, ...] = SEEDS


class Run(TypedDict):
    """What is kept of a run."""

    seed: int
    score_name: str
    better: str
    clients: int
    private: int
    public: int
    parameters: int
    before: float
    best: str
    after: float
    spent: float
    epsilon: float
    epsilon_if_others_collude: float
    server_rate: float
    clip_norm: float
    seconds: float
    version: str


def _example(folder: str, module: str, name: str) -> object:
    """An object of a module in one of the examples that ship with privmarket."""
    place = str(files("privmarket") / "examples" / folder)
    sys.path.insert(0, place)
    try:
        return getattr(import_module(module), name)
    finally:
        sys.path.remove(place)


def _packages(seed: int) -> Task:
    build = _example("text", "packages", "build")
    return task("packages", public=300, model=build, seed=seed)  # type: ignore[arg-type]


def _frozen(seed: int) -> Task:
    made: Task = _example("frozen-encoder", "sentences", "task")(seed)  # type: ignore[operator]
    return made


CASES = {
    "breast-cancer": Case("10, drawn", "linear", lambda seed: task("breast-cancer", seed=seed)),
    "diabetes": Case("10, drawn", "linear", lambda seed: task("diabetes", seed=seed)),
    "medpar": Case("hospitals", "linear", lambda seed: task("medpar", seed=seed)),
    "nlschools": Case("school classes", "linear", lambda seed: task("nlschools", seed=seed)),
    "bird-strikes": Case("airlines", "linear", lambda s: task("bird-strikes", seed=s)),
    "insteval": Case("departments", "linear", lambda seed: task("insteval", seed=seed), FEWER_SEEDS),
    "packages": Case("maintainers", "embedding from scratch", _packages, FEWER_SEEDS),
    "packages, counts of words": Case(
        "maintainers", "linear", lambda seed: task("packages", public=300, model="linear", seed=seed), FEWER_SEEDS
    ),
    "sentences, frozen encoder": Case(
        "reviews and editorials", "frozen MiniLM, trained head", _frozen, FEWER_SEEDS
    ),
}


def measure(made: Task, seed: int) -> Run:
    """One run of a task on the terms of this page."""
    started = time.perf_counter()
    clients = len(made.clients)
    result = federate(
        made, trust="aggregate", wallet=WALLET, rounds=ROUNDS, budget=CREDITS_PER_CLIENT * clients, seed=seed
    )
    if result.own_records is None or result.score_before is None or made.public is None:
        raise RuntimeError(f"{made.name} has no records of the buyer's own")
    rows = result.client_rows
    return {
        "seed": seed,
        "score_name": made.score.name,
        "better": made.score.direction,
        "clients": clients,
        "private": len(made.private),
        "public": len(made.public),
        "parameters": made.parameters,
        "before": result.score_before,
        "best": result.own_records.best,
        "after": result.score,
        "spent": result.spent,
        "epsilon": max(row["epsilon_spent"] or 0.0 for row in rows),
        "epsilon_if_others_collude": max(row["epsilon_if_others_collude"] or 0.0 for row in rows),
        "server_rate": result.config.training.server_rate,
        "clip_norm": result.config.training.clip_norm,
        "seconds": round(time.perf_counter() - started, 1),
        "version": privmarket.__version__,
    }


def read() -> dict[str, list[Run]]:
    """The runs that were kept, by the name of the case."""
    found: dict[str, list[Run]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of the 95 % interval by Student's t."""
    quantile = float(stdtrit(len(values) - 1, 0.975))
    return float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def gains(runs: list[Run]) -> list[float]:
    """By how much each run is better than the buyer's own records, whatever the direction of the score."""
    sign = 1.0 if runs[0]["better"] == "higher" else -1.0
    return [sign * (run["after"] - run["before"]) for run in runs]


def verdict(runs: list[Run]) -> str:
    """What money added, in words: an interval that holds 0 is nothing."""
    mean, half = interval(gains(runs))
    if mean - half > 0:
        return "better"
    return "worse" if mean + half < 0 else "nothing beyond chance"


def table(kept: dict[str, list[Run]]) -> str:
    """The table of the page."""
    lines = [
        BEGIN,
        "| task | clients | records: clients', yours | model (numbers sent) | score"
        " | yours alone, free | bought | added, 95 % interval | money | lifetime ε, if all others collude"
        " | so money adds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        runs = kept.get(name, [])
        if len(runs) != len(case.seeds):
            continue
        first = runs[0]
        mean, half = interval(gains(runs))
        before = float(np.mean([run["before"] for run in runs]))
        after = float(np.mean([run["after"] for run in runs]))
        best = max(sorted({run["best"] for run in runs}), key=[run["best"] for run in runs].count)
        cells = [
            name,
            f"{first['clients']:,} {case.clients}" if not case.clients[0].isdigit() else case.clients,
            f"{first['private']:,}, {first['public']:,}",
            f"{case.model} ({first['parameters']:,})",
            first["score_name"],
            f"{before:.3f} ({best})",
            f"{after:.3f}",
            f"{mean:+.3f} ± {half:.3f} ({len(runs)} seeds)",
            f"{np.mean([run['spent'] for run in runs]):,.0f}",
            f"{max(run['epsilon'] for run in runs):.2f},"
            f" {max(run['epsilon_if_others_collude'] for run in runs):.1f}",
            verdict(runs),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, END])


def write_page() -> None:
    """Replaces the table between the two marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    write_atomically(PAGE, before + table(read()) + after)


def main(words: list[str]) -> None:
    """The two commands of this file."""
    if words == ["page"]:
        write_page()
        return
    if words[:1] != ["measure"]:
        sys.exit(str(__doc__))
    for name in words[1:] or CASES:
        for seed in CASES[name].seeds:
            kept = read()
            if any(run["seed"] == seed for run in kept.get(name, [])):
                continue
            run = measure(CASES[name].make(seed), seed)
            print(name, run, file=sys.stderr, flush=True)
            kept = read()
            kept.setdefault(name, []).append(run)
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(RESULTS, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
