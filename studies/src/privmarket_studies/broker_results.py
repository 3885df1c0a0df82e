"""The page about the broker under load and kills, rendered from its result files: no figure is typed by hand.

privmarket bench broker --bids 0 --seconds 0.5 --turns 10 --json > docs/results/broker/bids.json
privmarket bench broker --turns 0 [--varied] [--database …] --json > docs/results/broker/large-….json
cd docs/results/broker
python -m privmarket_studies.torture.broker_kill --kills 20 --seed 1 [--postgres] --out kills.json
python -m privmarket_studies.torture.broker_simulation --rounds 1000 --seed 1 --out simulation.json
python -m privmarket_studies.torture.broker_fuzz --examples 8 [--postgres] --out fuzz.json
python -m privmarket_studies.broker_results .
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATABASES = ("SQLite", "PostgreSQL")
_LARGE = ("large-sqlite", "large-sqlite-varied", "large-postgresql")
_PAGE_AIM_MS, _RATE_AIM = 200.0, 0.5

_BIDS = """# The broker, measured

Two cores; our other work was paused while rates and times were taken, but the machine is a guest on another,
whose processor and disk are not always equally quick. How to run a broker, and what it defends against:
[run a broker](../../how-to/run-a-broker.md).

## Sealed bids per second
`privmarket bench broker --bids 0 --seconds 0.5 --turns 10` ([bids.json](bids.json)): over HTTP, beside FastAPI +
SQLite that insert one row and commit it, in two forms (on the event loop, in threads), same uvicorn, client,
callers and durability (WAL, `synchronous=FULL`). The ratio is to the faster form; the aim was {aim}. Most of
these bids replace an earlier one of the same seller; the sellers have sold nothing yet. A past costs a lone bid
milliseconds more, because its wallet is looked at; bids that arrive together share that look.

| callers at once | broker | bare, loop | bare, threads | ratio | median wait, ms |
|---|---|---|---|---|---|
"""
_OTHERS = """
With longer and fewer turns, other work on the machine counts for more; two such runs within the same two hours
([bids-other-runs.json](bids-other-runs.json), rates rounded) gave, with one caller, ratios of {ratios}.
"""
_ROUND = """
## One round of 100,000 bids
`privmarket bench broker --turns 0 [--varied] [--database …]`: closed, delivered and settled over HTTP while
three callers keep reading; bids were placed before. *Alike*: four different caps, nothing sold before.
*Varied*: every seller has its own cap and past sales. The aim: clears and settles in seconds, in one
transaction, without blocking readers; pages under {aim:.0f} ms. Varied was not measured on PostgreSQL.

| | {heads} |
|---|{rules}|
"""
_KILLS = """
## Killed and restarted
`python -m privmarket_studies.torture.broker_kill --kills 20 --seed S [--postgres]` ([kills.json](kills.json)): a
server under eight bidders and a buyer is killed with `kill -9` at random moments and started again. After each
run: no acknowledged bid lost, none taken twice, no round paid out twice, escrow + balances = deposits to the
micro-unit, the replay of everything agrees. On a machine that others loaded.

| database | runs | kills | acknowledged bids | settled rounds | broken connections | verdict |
|---|---|---|---|---|---|---|
"""
_ONCE = """
One earlier run failed before its first kill: opening a round was refused. It was not the broker. A pause of 99 s
of everything on the machine fell into those runs; the harness waited 60 s for its server, went on without an
operator's token, and its deposit was refused unnoticed, so that the buyer had no money. Pausing harness and
server for 66 s at that moment gave it again: with that day's harness at the same line, with the next one, which
looked at deposits, at the refused deposit; a third try met another pause and passed. The harness now stops there
and says so, and a test holds that.
"""
_SIMULATED = """
## Simulated
`python -m privmarket_studies.torture.broker_simulation --rounds 1000 --seed S`
([simulation.json](simulation.json)): the same code through crashes at any statement, retries, duplicates,
reordering and clock jumps, invariants checked after every step, everything replayed now
and then; a seed replays exactly. {rounds:,} rounds, {requests:,} requests, {crashes:,} crashes: {verdict}.
"""
_FUZZ = """
## Fuzzed
`python -m privmarket_studies.torture.broker_fuzz --examples N [--postgres]` ([fuzz.json](fuzz.json)): schemathesis
over every operation as every role, well formed and not.

| database | requests | answers | verdict |
|---|---|---|---|
"""


def render(folder: Path) -> str:
    """The page's text."""
    rates = _read(folder / "bids.json")["bids"]
    page = _BIDS.format(aim=_RATE_AIM) + "".join(_rate_row(rate) for rate in rates)
    page += _OTHERS.format(ratios=_other_ratios(_read(folder / "bids-other-runs.json")))
    page += _large(folder) + _KILLS + _kill_rows(_read(folder / "kills.json")) + _ONCE
    runs = _read(folder / "simulation.json")
    sums = {name: sum(run[name] for run in runs) for name in ("rounds", "requests", "crashes")}
    page += _SIMULATED.format(**sums, verdict=_one_of({run["verdict"] for run in runs}))
    return page + _FUZZ + "".join(_fuzz_row(run) for run in _read(folder / "fuzz.json"))


def _rate_row(row: dict[str, Any]) -> str:
    bare = row["bare"]
    rates = [row["broker"], bare["loop"], bare["threads"]]
    shown = " | ".join(f"{rate['per_second']:,.0f}" for rate in rates)
    return f"| {row['callers']} | {shown} | {row['ratio']:.2f} | {row['broker']['median_ms']:.1f} |\n"


def _other_ratios(runs: list[dict[str, Any]]) -> str:
    lone = [row for run in runs for row in run["rows"] if row["callers"] == 1]
    return " and ".join(f"{row['broker'] / max(row['loop'], row['threads']):.2f}" for row in lone)


def _large(folder: Path) -> str:
    """One column per kept round."""
    kept = {name: _read(folder / f"{name}.json")["large_round"] for name in _LARGE}
    columns = list(kept.values())
    kinds = {"sqlite": "SQLite", "postgresql+psycopg": "PostgreSQL"}
    variants = ["varied" if c["past_sales"] else "alike" for c in columns]
    heads = [
        f"[{kinds[c['database']]}, {variant}]({name}.json)"
        for (name, c), variant in zip(kept.items(), variants, strict=True)
    ]
    lines = {
        "bids": [f"{c['bids']:,}" for c in columns],
        "different caps": [f"{c['different_caps']:,}" for c in columns],
        "sales before": [f"{c['past_sales']:,}" for c in columns],
        "sellers that sell": [f"{c['sellers']:,}" for c in columns],
        "cleared in, s": [f"{c['clear_seconds']:.1f}" for c in columns],
        "delivered in, s": [f"{c['deliver_seconds']:.2f}" for c in columns],
        "settled in, s": [f"{c['settle_seconds']:.2f}" for c in columns],
    }
    for reader, name in (("round", "the round"), ("page", "its page"), ("me", "a seller's self")):
        lines[f"{name}, read before, ms: median (longest)"] = [_wait(c["readers_before"][reader]) for c in columns]
        lines[f"{name}, read while clearing, ms"] = [_wait(c["readers_during_clear"][reader]) for c in columns]
    lines["slowest page of all roles and states, ms"] = [_slowest(c["pages_ms"]) for c in columns]
    table = "".join(f"| {name} | {' | '.join(cells)} |\n" for name, cells in lines.items())
    return _ROUND.format(heads=" | ".join(heads), rules="|".join("---" for _ in heads), aim=_PAGE_AIM_MS) + table


def _wait(latency: dict[str, float]) -> str:
    return f"{latency['median_ms']:.0f} ({latency['largest_ms']:.0f})"


def _slowest(pages_ms: dict[str, float]) -> str:
    name = max(pages_ms, key=pages_ms.__getitem__)
    return f"{pages_ms[name]:.0f} ({name})"


def _kill_rows(runs: list[dict[str, Any]]) -> str:
    rows = ""
    for database in DATABASES:
        mine = [run for run in runs if run["database"] == database]
        names = ("kills", "acknowledged bids", "settled rounds", "broken or refused connections")
        sums = " | ".join(f"{sum(run[name] for run in mine):,}" for name in names)
        rows += f"| {database} | {len(mine)} | {sums} | {_one_of({run['verdict'] for run in mine})} |\n"
    return rows


def _fuzz_row(run: dict[str, Any]) -> str:
    answers = ", ".join(f"{count:,} × {status}" for status, count in run["answers"].items())
    return f"| {run['database']} | {run['requests']:,} | {answers} | {run['verdict']} |\n"


def _one_of(verdicts: set[str]) -> str:
    """What all runs agree on; a file with two different verdicts must not be summed up as one."""
    (verdict,) = verdicts
    return verdict


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "README.md").write_text(render(target), encoding="utf-8")
