"""The page about a private round's speed and memory, rendered from its result files: no figure is typed by hand.

privmarket bench federate --turns 1 --json > docs/results/speed/federate.json
privmarket bench memory --json > docs/results/speed/memory.json
python -m privmarket_studies.federated_speed_page docs/results/speed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_ROUND = """# What a private round costs

## Time
`privmarket bench federate --turns 1`: one round of {clients} clients × {records} records × 784, MLP 784-128-64-10,
batch 32, one epoch, processor seconds of one thread, all in one run on an otherwise quiet machine
([federate.json](federate.json)).

| contender | seconds | over our private round |
|---|---|---|
"""
_AIMS = """
Ours over our own round without privacy: {plain:.2f} (aim: at most 2.5). Opacus' ghost clipping over ours:
{ghost:.1f} (at least 6); its default over ours: {default:.1f} (at least 12). Accounting for 100 clients × 200
rounds: {accounting:.3f} s (under 0.1).

| clients | seconds | milliseconds per client |
|---|---|---|
"""
_MEMORY = """
## Memory
`privmarket bench memory`: two whole rounds in a fresh process, every client with 600 records of 784 numbers, all
of them selling, the same MLP ([memory.json](memory.json)). The aim was less than 4 GB with 1,000 clients.

| clients | peak memory, GB | of which the records | above the first row, MB per client |
|---|---|---|---|
"""


def render(folder: Path) -> str:
    """The page's text."""
    speed, memory = (_read(folder / f"{name}.json") for name in ("federate", "memory"))
    seconds, ratios = speed["seconds"], speed["ratios"]
    aims = _AIMS.format(
        plain=ratios["private over non-private"],
        ghost=ratios["opacus ghost clipping"],
        default=ratios["opacus default"],
        accounting=speed["accounting_seconds"],
    )
    contenders = "".join(f"| {n} | {s:.2f} | {s / seconds['private']:.2f} × |\n" for n, s in seconds.items())
    growth = "".join(f"| {n} | {s:.2f} | {1000 * s / int(n):.1f} |\n" for n, s in speed["growth"].items())
    page = _ROUND.format(clients=speed["clients"], records=speed["records"])
    return page + contenders + aims + growth + _MEMORY + _memory_rows(memory)


def _memory_rows(memory: dict[str, Any]) -> str:
    peak = {int(n): size for n, size in memory["peak_bytes"].items()}
    fewest = min(peak)
    rows = ""
    for clients, size in peak.items():
        slope = "" if clients == fewest else f"{(size - peak[fewest]) / (clients - fewest) / 1e6:.2f}"
        rows += f"| {clients:,} | {size / 1e9:.2f} | {memory['record_bytes'][str(clients)] / 1e9:.2f} | {slope} |\n"
    return rows


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "README.md").write_text(render(target), encoding="utf-8")
