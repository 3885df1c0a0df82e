"""How long a large table takes: a million rows, 50 columns, 10,000 clients, some of which hold a single row.

    python -m privmarket_studies.large_table make   FOLDER           # table.csv, table.toml, ours.csv, test.csv
    python -m privmarket_studies.large_table measure FOLDER [NAME …]  # runs the commands; keeps time and memory
    python -m privmarket_studies.large_table page                     # writes docs/results/large-table/README.md

Each command runs in a process of its own, as a user would type it. What is kept is its wall time, its processor
time, the most memory that it held, and how long it took until the first sign of life on the terminal.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from privmarket._files import write_atomically

ROWS = 1_000_000
CLIENTS = 10_000
OWN_ROWS = 200
TEST_ROWS = 20_000
NUMBERS = 40
CATEGORIES = 6
BOOLEANS = 2
_COLOURS = ("red", "green", "blue", "white", "black")
_BLOCK_ROWS = 50_000
_SEED = 28
REPOSITORY = Path(__file__).parents[3]
RESULTS = REPOSITORY / "docs" / "results" / "large-table" / "large-table.json"
PAGE = RESULTS.parent / "README.md"


class Figures(TypedDict):
    """What is kept of one command."""

    command: str
    wall_seconds: float
    processor_seconds: float
    peak_megabytes: float
    first_output_seconds: float
    said: list[str]
    python: str
    load: float


def client_sizes(rng: np.random.Generator, rows: int, clients: int) -> NDArray[np.int64]:
    """(clients,) rows of each client, adding up: log-normal, so that many hold a few and some hold one."""
    wanted = rng.lognormal(0.0, 1.6, clients)
    spare = rows - clients
    share = np.floor(spare * wanted / wanted.sum()).astype(np.int64)
    share[int(np.argmax(share))] += spare - int(share.sum())
    # The smallest hundredth holds one row each; what they lose goes to the largest.
    smallest = np.argsort(share)[: max(1, clients // 100)]
    moved = int(share[smallest].sum())
    share[smallest] = 0
    share[int(np.argmax(share))] += moved
    sizes: NDArray[np.int64] = share + 1
    return sizes


def header() -> list[str]:
    """The 50 columns: who holds the row, what is to be predicted, and 48 inputs."""
    numbers = [f"n{at}" for at in range(NUMBERS)]
    categories = [f"c{at}" for at in range(CATEGORIES)]
    booleans = [f"b{at}" for at in range(BOOLEANS)]
    return ["holder", "outcome", *numbers, *categories, *booleans]


def block_text(rng: np.random.Generator, holders: NDArray[np.int64], truth: NDArray[np.float64]) -> str:
    """Some rows as CSV lines; the outcome follows a logistic model of the inputs."""
    rows = len(holders)
    numbers = np.clip(rng.normal(0.0, 1.0, (rows, NUMBERS)), -4, 4).round(3)
    categories = rng.integers(0, len(_COLOURS), (rows, CATEGORIES))
    booleans = rng.integers(0, 2, (rows, BOOLEANS))
    logit = numbers @ truth[:NUMBERS] + (categories == 0) @ truth[NUMBERS : NUMBERS + CATEGORIES]
    logit += booleans @ truth[NUMBERS + CATEGORIES :] - 1.0
    outcome = rng.random(rows) < 1.0 / (1.0 + np.exp(-logit))
    lines = []
    for row in range(rows):
        cells = [f"holder-{holders[row]:05d}", "yes" if outcome[row] else "no"]
        cells.extend(f"{value:g}" for value in numbers[row])
        cells.extend(_COLOURS[value] for value in categories[row])
        cells.extend("yes" if value else "no" for value in booleans[row])
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def schema_text() -> str:
    """The public scale of every column."""
    lines = ['client = "holder"', "", "[label]", 'column = "outcome"', 'values = ["no", "yes"]']
    for name in header()[2:]:
        lines.extend(["", f"[columns.{name}]"])
        if name.startswith("n"):
            lines.extend(['kind = "number"', "range = [-4, 4]"])
        elif name.startswith("c"):
            lines.extend(['kind = "category"', f"values = {json.dumps(list(_COLOURS))}"])
        else:
            lines.extend(['kind = "boolean"', 'values = ["no", "yes"]'])
    return "\n".join(lines) + "\n"


def make(
    folder: Path, rows: int = ROWS, clients: int = CLIENTS, own: int = OWN_ROWS, test: int = TEST_ROWS
) -> None:
    """Writes the table of the clients, the buyer's own records, the test records and the schema."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(_SEED)
    truth = rng.normal(0.0, 0.25, NUMBERS + CATEGORIES + BOOLEANS)
    holders = np.repeat(np.arange(clients), client_sizes(rng, rows, clients))
    rng.shuffle(holders)
    tables = {"table.csv": holders, "ours.csv": np.zeros(own, np.int64), "test.csv": np.zeros(test, np.int64)}
    for name, whose in tables.items():
        with (folder / name).open("w", encoding="utf-8") as stream:
            stream.write(",".join(header()) + "\n")
            for start in range(0, len(whose), _BLOCK_ROWS):
                stream.write(block_text(rng, whose[start : start + _BLOCK_ROWS], truth))
    write_atomically(folder / "table.toml", schema_text())


_SOURCE = "--data table.csv --schema table.toml --public ours.csv --test test.csv"
COMMANDS = {
    "federate, aggregate trust": f"federate {_SOURCE} --trust aggregate --wallet 1 --rounds 10 --budget 400",
    "federate, local trust": f"federate {_SOURCE} --trust local --wallet 3 --rounds 10 --budget 3000",
    "plan for one total, aggregate trust": (
        f"plan {_SOURCE} --trust aggregate --wallet 1 --effort quick --total 4000 --rounds 3 --folder plans"
    ),
    "plan for one total, local trust": (
        f"plan {_SOURCE} --trust local --wallet 3 --effort quick --total 30000 --rounds 3 --folder plans"
    ),
}


def measure(folder: Path, name: str) -> Figures:
    """Runs a command in the folder and watches it."""
    with tempfile.TemporaryFile("w+b") as out, tempfile.NamedTemporaryFile("w+b") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "privmarket", *COMMANDS[name].split()], cwd=folder, stdout=out, stderr=errors
        )
        first = 0.0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            now = time.perf_counter() - started
            if not first and Path(errors.name).stat().st_size:
                first = now
            if pid:
                break
            time.sleep(0.05)
        code = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        said = out.read().decode()
        if code:
            raise RuntimeError(f"{COMMANDS[name]} ended with {code}: {errors.read().decode()[-2000:]}")
    return {
        "command": "privmarket " + COMMANDS[name],
        "wall_seconds": round(now, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_megabytes": round(usage.ru_maxrss / 1024),
        "first_output_seconds": round(first, 1),
        "said": said.splitlines()[-3:],
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def read() -> dict[str, Figures]:
    """What was kept, by the name of the command."""
    found: dict[str, Figures] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def page(kept: dict[str, Figures]) -> str:
    """The page `docs/results/large-table/README.md`."""
    lines = [
        "# How long a large table takes",
        "",
        f"A CSV of {ROWS:,} rows, {len(header())} columns and {CLIENTS:,} clients, of whom a hundred hold one row; "
        f"{OWN_ROWS:,} records of the buyer's own and {TEST_ROWS:,} to test on; a linear model. Commands run in "
        "one "
        "thread, reading included, so on an idle machine processor time is waiting time. *Sign of life*: the first "
        "line on the terminal, slowed down here by other work. `python -m privmarket_studies.large_table make "
        "FOLDER` "
        "makes the table, `… measure FOLDER` the figures.",
        "",
        "| run | processor time | peak memory | sign of life | command |",
        "|---|---|---|---|---|",
    ]
    for name in COMMANDS:
        if name in kept:
            one = kept[name]
            lines.append(
                f"| {name} | {one['processor_seconds'] / 60:.1f} min | {one['peak_megabytes'] / 1000:.1f} GB"
                f" | {one['first_output_seconds']:.1f} s | `{one['command']}` |"
            )
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> None:
    """The three commands of this file."""
    if words[:1] == ["make"] and len(words) == 2:
        make(Path(words[1]))
    elif words[:1] == ["measure"] and len(words) >= 2:
        for name in words[2:] or COMMANDS:
            figures = measure(Path(words[1]), name)
            print(name, figures, file=sys.stderr, flush=True)
            kept = read() | {name: figures}
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(RESULTS, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    elif words == ["page"]:
        write_atomically(PAGE, page(read()))
    else:
        sys.exit(str(__doc__))


if __name__ == "__main__":
    main(sys.argv[1:])
