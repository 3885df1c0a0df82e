"""The page about a private round's speed and memory, rendered from its result files: no figure is typed by hand.

git worktree add ../before e7818cb
for run in 1 2 3; do
  privmarket bench federate --clients 10 --before ../before --json > docs/results/speed/federate-$run.json
done
for run in 1 2 3; do
  privmarket bench federate --clients 5 --before ../before --json > docs/results/speed/steps-$run.json
done
privmarket bench memory --json > docs/results/speed/memory.json
python -m privmarket_studies.federated_speed_page docs/results/speed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from privmarket._files import write_atomically

_ROUND = """# What a private round costs

## Time
A round of {clients} clients × {records} records of 784 numbers, MLP 784-128-64-10, batch 32, one epoch,
processor seconds of one thread. Contenders take turns, {turns} each, and the median turn counts; the table has
the median of {runs} separate runs in fresh processes, with the smallest and the largest, one after the other on
a busy machine of two cores.

`privmarket bench federate --clients {clients} --before CHECKOUT` ({files})

| contender | seconds | over our private round |
|---|---|---|
"""
_AIMS = """
Exact sums and noise are included. Accounting is in wall time, all else in processor time. *before*: the tree
before the release kernel (e7818cb), with float32 noise on float32 sums. *One step* takes all records, *several
steps* are the round above. Why some aims cannot be met: [one engine](../../decisions/one-gradient-engine.md).

| | median | runs | aim |
|---|---|---|---|
"""
_BARS = {
    "one step over before": ("one step, over the tree before", "at most 1.5"),
    "several steps over before": ("several steps, over the tree before", "at most 3"),
    "private over non-private": ("round of 19 sampled steps: ours over our own without privacy", "at most 3"),
    "opacus ghost clipping": ("the same round: Opacus' ghost clipping over ours", "at least 3"),
    "opacus default": ("the same round: Opacus' default over ours", ""),
}
_STEP_PAGE = """
## One full-batch step
One step of each client on its {records} records: the MLP, a CNN of two convolutions on 32 × 32 × 3, a
transformer block (width 64, 32 tokens). *Plain*: an ordinary backward pass on the same rows, the fastest of
three lengths of batches; the best of {turns} turns counts. `privmarket bench federate --clients {clients}
--before CHECKOUT` ({files})

| | median | runs | aim |
|---|---|---|---|
"""
_STEP_BARS = {
    "mlp step over backward": ("MLP step: ours over plain backward", "at most 2"),
    "cnn step over backward": ("CNN step: ours over plain backward", "at most 2.5"),
    "transformer step over backward": ("transformer step: ours over plain backward", "at most 2"),
    "opacus ghost clipping over mlp step": ("MLP step: ghost clipping over ours", "at least 4"),
    "opacus ghost clipping over cnn step": ("CNN step: ghost clipping over ours", ""),
    "opacus ghost clipping over transformer step": (
        "transformer step: ghost clipping over ours",
        "at least 2",
    ),
}
_GROWTH = """
| clients | seconds | milliseconds per client |
|---|---|---|
"""
_MEMORY = """
## Memory
Two whole rounds in a fresh process, every client with 600 records of 784 numbers, all of them selling, the same
MLP; the aim was less than 4 GB with 1,000 clients. `privmarket bench memory` ([memory.json](memory.json))

| clients | peak memory, GB | of which the records | above the first row, MB per client |
|---|---|---|---|
"""


class SpeedRun(TypedDict):
    """What `privmarket bench federate --json` printed; growth is by number of clients."""

    clients: int
    records: int
    turns: dict[str, list[float]]
    seconds: dict[str, float]
    ratios: dict[str, float]
    growth: dict[str, float]
    draws_per_second: float
    accounting_seconds: float


def render(folder: Path) -> str:
    """The page's text, from the JSON files in `folder`."""
    names = sorted(path.name for path in folder.glob("federate-*.json"))
    runs: list[SpeedRun] = [_read(folder / name) for name in names]
    first, files = runs[0], ", ".join(f"[{name}]({name})" for name in names)
    turns = len(first["turns"]["private"])
    page = _ROUND.format(
        clients=first["clients"], records=first["records"], turns=turns, runs=len(runs), files=files
    )
    for name in first["seconds"]:
        seconds = [run["seconds"][name] for run in runs]
        over = [run["seconds"][name] / run["seconds"]["private"] for run in runs]
        page += f"| {name} | {_with_spread(seconds)} | {_with_spread(over)} |\n"
    page += _AIMS
    for name, (words, aim) in _BARS.items():
        found = [run["ratios"][name] for run in runs]
        page += f"| {words} | {median(found):.2f} | {min(found):.2f}–{max(found):.2f} | {aim} |\n"
    draws = [run["draws_per_second"] / 1e6 for run in runs]
    spread = f"{min(draws):.0f}–{max(draws):.0f}"
    page += f"| million exact draws a second | {median(draws):.0f} | {spread} | at least 20 |\n"
    accounting = [run["accounting_seconds"] for run in runs]
    spread = f"{min(accounting):.3f}–{max(accounting):.3f}"
    page += (
        f"| accounting for 100 clients × 200 rounds, seconds | {median(accounting):.3f} | {spread} | below 0.1 |\n"
    )
    page += _GROWTH
    for clients in first["growth"]:
        seconds = [run["growth"][clients] for run in runs]
        page += f"| {clients} | {_with_spread(seconds)} | {1000 * median(seconds) / int(clients):.1f} |\n"
    return page + _steps(folder) + _MEMORY + _memory_rows(_read(folder / "memory.json"))


def _steps(folder: Path) -> str:
    """The section on full-batch steps; empty without files of their own."""
    names = sorted(path.name for path in folder.glob("steps-*.json"))
    if not names:
        return ""
    runs = [_read(folder / name) for name in names]
    files = ", ".join(f"[{name}]({name})" for name in names)
    turns = len(runs[0]["steps"]["mlp"]["private"])
    section = _STEP_PAGE.format(clients=runs[0]["clients"], records=runs[0]["records"], turns=turns, files=files)
    for name, (words, aim) in _STEP_BARS.items():
        found = [run["ratios"][name] for run in runs]
        section += f"| {words} | {median(found):.2f} | {min(found):.2f}–{max(found):.2f} | {aim} |\n"
    for network, words in (("mlp", "MLP"), ("cnn", "CNN"), ("transformer", "transformer")):
        bounds = [
            run["ratios"][f"opacus ghost clipping over {network} step"]
            * run["ratios"][f"{network} step over backward"]
            for run in runs
        ]
        spread = f"{min(bounds):.2f}–{max(bounds):.2f}"
        section += f"| {words} step: ghost clipping over plain | {median(bounds):.2f} | {spread} | |\n"
    return section


def _with_spread(figures: list[float]) -> str:
    return f"{median(figures):.2f} ({min(figures):.2f}–{max(figures):.2f})"


def _memory_rows(memory: dict[str, dict[str, int]]) -> str:
    peak = {int(n): size for n, size in memory["peak_bytes"].items()}
    fewest = min(peak)
    rows = ""
    for clients, size in peak.items():
        slope = "" if clients == fewest else f"{(size - peak[fewest]) / (clients - fewest) / 1e6:.2f}"
        rows += f"| {clients:,} | {size / 1e9:.2f} | {memory['record_bytes'][str(clients)] / 1e9:.2f} | {slope} |\n"
    return rows


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_atomically(target / "README.md", render(target))
