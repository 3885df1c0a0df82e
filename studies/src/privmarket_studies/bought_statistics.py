"""Does it pay to buy second moments of the inputs first? Whole runs of the market, at equal ε and money.

Three runs in each cell, with the same seed, clients, bids, wallets and money. `none` trains on inputs as they are,
with settings that public records chose, or documented defaults without any. `free` whitens inputs by the moments of
the public records, or by what the schema suggests. `moments` sells them in the first of the ten rounds, a tenth of
ε and money, and whitens by what it bought. Whitened runs take documented defaults everywhere.

Finished runs are kept in docs/results/bought-statistics/runs.json, and a second call goes on where the first ended:

  python -m privmarket_studies.bought_statistics             the tables, about half an hour on one core
  python -m privmarket_studies.bought_statistics --pictures  MNIST and Fashion-MNIST as well, about as long again
  python -m privmarket_studies.bought_statistics --seeds 3   fewer seeds
  python -m privmarket_studies.bought_statistics --page      writes the page from what is there
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.simulation import federate
from privmarket.simulation._config import FederationConfig, Statistics
from privmarket.simulation._federate import settings_of
from privmarket.simulation._federation import Federation
from privmarket.simulation._moments import Array, MomentsSale
from privmarket.simulation._rehearsal import first_round
from privmarket.simulation._result import summarise
from privmarket_studies.page_text import table_row

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "bought-statistics"
ARMS: tuple[Statistics, ...] = ("none", "free", "moments")
LEAST_SQUARES = "least-squares"
TABLES = ("bird-strikes", "nlschools", "medpar", "insteval")
PICTURES = ("mnist", "fashion-mnist")
ROUNDS = 10
SEEDS = 5
# Money per round: enough for a useful sum, and little enough that it limits what is bought.
_BUDGET = {"mnist": 20.0, "fashion-mnist": 20.0}
_FURTHER = ("least squares", "moments − none", "moments − free", "seeds")
_PICTURE_NORM = 10.05  # of (features, 1): centred gradients have norm 10


@dataclass(frozen=True)
class Cell:
    """One task with so many public records, at one lifetime ε."""

    task: str
    public: int
    wallet: float


@dataclass(frozen=True)
class Run:
    """One finished run."""

    task: str
    public: int
    wallet: float
    statistics: str
    seed: int
    score_name: str
    score: float
    spent: float
    largest_epsilon: float
    seconds: float


def cells(pictures: bool) -> Iterator[Cell]:
    """What is run, the question itself first: no public records."""
    for public, wallet in ((0, 1.0), (100, 1.0), (600, 1.0), (0, 0.3), (0, 3.0)):
        for task in TABLES:
            yield Cell(task, public, wallet)
        if pictures and wallet == 1.0 and public < 600:
            for task in PICTURES:
                yield Cell(task, public, wallet)


def measured(cell: Cell, statistics: Statistics, seed: int) -> Run:
    """One run of the market."""
    started = time.perf_counter()
    norm = None
    if cell.task in PICTURES:
        alpha = 0.1 if cell.task == "mnist" else 0.5
        task = pm.task(
            cell.task, alpha=alpha, public=cell.public, features="centred-gradients", model="linear", seed=seed
        )
        norm = None if statistics == "none" or cell.public else _PICTURE_NORM
    else:
        task = pm.task(cell.task, public=cell.public, seed=seed)
    result = federate(
        task,
        trust="aggregate",
        wallet=cell.wallet,
        rounds=ROUNDS,
        budget=_BUDGET.get(cell.task, 5.0),
        seed=seed,
        statistics=statistics,
        statistics_norm=norm,
        evaluate_every=ROUNDS,
    )
    largest = summarise(result, rounds=False)["largest_epsilon_spent"] or 0.0
    return Run(
        cell.task,
        cell.public,
        cell.wallet,
        statistics,
        seed,
        result.task.score.name,
        result.score,
        result.spent,
        largest,
        round(time.perf_counter() - started, 2),
    )


def least_squares(cell: Cell, seed: int) -> Run:
    """All ε and money in one sum of z̃z̃ᵀ, z̃ = (x, 1, label): ridge regression with a penalty as large as the noise.

    The sum has the Gaussian noise that the market's only round would give it, its sellers and their weights;
    a record is clipped at the largest norm that the schema allows, or at a quantile of the public records' norms.
    """
    started = time.perf_counter()
    task = pm.task(cell.task, public=cell.public, seed=seed)
    config = FederationConfig(
        **settings_of(task),
        mechanism="graded-ration",
        trust="aggregate",
        wallet=cell.wallet,
        rounds=1,
        budget=ROUNDS * _BUDGET.get(cell.task, 5.0),
        seed=seed,
    )
    with Federation(config, task=task) as federation:
        first = first_round(federation)
        assert first is not None
        per_client = federation.pool.plan.expected_batch
    bound = MomentsSale.of(config.replace(rounds=2, statistics="moments"), task).norm
    norm = np.sqrt(bound**2 + 1.0)  # targets are scaled to at most 1, and so are class indicators
    rows = _with_label(task.private, task)
    rows *= np.minimum(1.0, norm / np.linalg.norm(rows, axis=1))[:, None]
    weights = np.repeat(first.weights, task.sizes)
    records = float(weights.sum())
    noise = first.noise * per_client * norm**2 / records
    drawn = np.random.default_rng([seed, 31]).normal(size=(rows.shape[1],) * 2)
    second = (rows * weights[:, None]).T @ rows / records + noise * 0.5 * (drawn + drawn.T)
    if task.public is not None and len(task.public) >= 10:
        own = _with_label(task.public, task)
        moments = own.T @ own / len(own)
        variance = float((np.diag(moments) ** 2).mean()) / len(own)
        share = variance / (variance + noise**2)
        second = share * second + (1.0 - share) * moments
        noise *= share
    inputs = task.private.inputs.shape[1] + 1
    values, vectors = np.linalg.eigh(second[:inputs, :inputs])
    penalty = noise * np.sqrt(2.0 * inputs) + 1e-4
    solved = vectors / (np.maximum(values, 0.0) + penalty) @ vectors.T @ second[:inputs, inputs:]
    assert task.test is not None
    outputs = _with_label(task.test, task)[:, :inputs] @ solved
    scores = task.evaluate(outputs.astype(np.float32), task.test)
    return Run(
        cell.task,
        cell.public,
        cell.wallet,
        LEAST_SQUARES,
        seed,
        task.score.name,
        scores[task.score.name],
        first.spent,
        cell.wallet,
        round(time.perf_counter() - started, 2),
    )


def _with_label(records: pm.tasks.Records, task: pm.Task) -> Array:
    """(rows, inputs + 1 + labels): x, 1, and the target or an indicator of each class."""
    labels = records.labels.astype(np.float64).reshape(-1, 1)
    if task.goal == "classification":
        labels = np.eye(len(task.classes))[records.labels]
    return np.concatenate([records.inputs.astype(np.float64), np.ones((len(records), 1)), labels], axis=1)


def kept(folder: Path = FOLDER) -> list[Run]:
    """The runs that are there."""
    path = folder / "runs.json"
    if not path.exists():
        return []
    return [Run(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def measure(*, pictures: bool, seeds: int = SEEDS, folder: Path = FOLDER) -> None:
    """Runs what is missing, and keeps each run as soon as it is done."""
    runs = kept(folder)
    done = {(one.task, one.public, one.wallet, one.statistics, one.seed) for one in runs}
    for cell in cells(pictures):
        for seed in range(seeds):
            for statistics in ARMS:
                if (*asdict(cell).values(), statistics, seed) in done:
                    continue
                runs.append(measured(cell, statistics, seed))
                _keep(runs, folder)
            if cell.task in TABLES and (*asdict(cell).values(), LEAST_SQUARES, seed) not in done:
                runs.append(least_squares(cell, seed))
                _keep(runs, folder)


def _keep(runs: list[Run], folder: Path) -> None:
    lines = ",\n".join(json.dumps(asdict(one)) for one in runs)
    write_atomically(folder / "runs.json", f"[\n{lines}\n]\n")
    print(runs[-1], flush=True)


def interval(differences: list[float]) -> tuple[float, float]:
    """The mean and the half-width of its 95 % interval by Student's t, over seeds."""
    values = np.array(differences)
    factor = float(student.ppf(0.975, values.size - 1))
    return float(values.mean()), factor * float(values.std(ddof=1)) / float(np.sqrt(values.size))


_PAGE = """# Bought statistics

**Question.** Is a tenth of ε and money better spent on second moments of the inputs than on one more gradient?

**Answer.** {verdict}

{table}

- **none**: inputs as they are; settings by rehearsals on public records, documented defaults without any.
- **free**: inputs whitened by the moments of the public records, or by what the schema suggests (of pictures:
  nothing).
- **moments**: inputs whitened by moments bought in the first round, mixed with what is free.
- **least squares**: all in one sum of second moments of inputs and labels, then ridge regression with a penalty
  as large as the noise (Gaussian noise of the size that the market's sum would have).

Each cell: {rounds} rounds under aggregate trust, honest share 2/3, a linear model, up to {seeds} seeds, which
vary split, bids, noise and public records, alike in all columns. Money: 5 a round for tables, 20 for pictures
(centred gradients). Differences are paired over seeds, with 95 % intervals (Student's t).

**Limits.** Settings were chosen on public records or not at all. Whitened runs take documented defaults, which
were fixed after prototypes on some of these tasks, so part of what they gain over **none** may be due to that;
**free** and **moments** share them. The runs are of version 0.3.0, before rehearsals chose settings as they do
[today](../../decisions/settings-on-public-records.md) and before whitening by public moments was offered to
every run.

`python -m privmarket_studies.bought_statistics --pictures` computes missing runs (a new look takes an empty
file) and keeps all of them, with the ε that was spent, in [runs.json](runs.json); `--page` writes this page.
"""


def render(folder: Path = FOLDER) -> str:
    """The page, from the kept runs."""
    runs = kept(folder)
    lines = [
        table_row(("task", "score", "public", "lifetime ε", *ARMS, *_FURTHER)),
        table_row(("---",) * 11),
    ]
    better_than_none: dict[str, list[str]] = {}
    better_than_free: dict[str, list[str]] = {}
    tried: dict[str, list[str]] = {}
    seen = sorted({(PICTURES + TABLES).index(r.task) * 10**6 + r.public * 100 + int(10 * r.wallet) for r in runs})
    for key in seen:
        name = (PICTURES + TABLES)[key // 10**6]
        public = key % 10**6 // 100
        wallet = key % 100 / 10
        mine = [r for r in runs if (r.task, r.public, r.wallet) == (name, public, wallet)]
        scores: dict[str, dict[int, float]] = {
            arm: {r.seed: r.score for r in mine if r.statistics == arm} for arm in ARMS
        }
        common = sorted(set.intersection(*(set(found) for found in scores.values())))
        if len(common) < 2:
            continue
        shown = []
        if public == 0:
            tried.setdefault(name, []).append(f"{wallet:g}")
        for other, found in (("none", better_than_none), ("free", better_than_free)):
            mean, half = interval([scores["moments"][seed] - scores[other][seed] for seed in common])
            shown.append(f"{mean:+.4f} ± {half:.4f}")
            if mean > half and public == 0:
                found.setdefault(name, []).append(f"{wallet:g}")
        means = [f"{np.mean([scores[arm][seed] for seed in common]):.4f}" for arm in ARMS]
        squares = [r.score for r in mine if r.statistics == LEAST_SQUARES and r.seed in common]
        means.append(f"{np.mean(squares):.4f}" if squares else "")
        heading = (name, mine[0].score_name, str(public), f"{wallet:g}")
        lines.append(table_row((*heading, *means, *shown, str(len(common)))))
    verdict = (
        "Without public records the interval of *moments − none* lies above 0 on "
        f"{_names(better_than_none, tried)}, that of *moments − free* on {_names(better_than_free, tried)} "
        f"({sum(map(len, tried.values()))} rows each, without a correction for their number)."
    )
    return _PAGE.format(rounds=ROUNDS, seeds=SEEDS, table="".join(lines).rstrip(), verdict=verdict)


def _names(found: dict[str, list[str]], tried: dict[str, list[str]]) -> str:
    """`mnist, bird-strikes (at ε = 1; not at 0.3, 3)`: where something was found, of what was tried."""
    texts = []
    for name in [one for one in PICTURES + TABLES if one in found]:
        missing = [wallet for wallet in tried[name] if wallet not in found[name]]
        here = f"{name} (at ε = {', '.join(found[name])}"
        texts.append(f"{here}; not at {', '.join(missing)})" if missing else f"{here})")
    return ", ".join(texts) or "no task"


if __name__ == "__main__":
    if "--page" in sys.argv:
        write_atomically(FOLDER / "README.md", render())
    else:
        count = int(sys.argv[sys.argv.index("--seeds") + 1]) if "--seeds" in sys.argv else SEEDS
        measure(pictures="--pictures" in sys.argv, seeds=count)
