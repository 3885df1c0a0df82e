"""The page about the broker under load, kills and attacks, rendered from its result files.

cd docs/results/broker
privmarket bench broker --bids 0 --callers 16 --json > bids.json
privmarket bench broker --turns 0 --bids 10000 --json > clearing-1.json (and -2, -3, …)
privmarket bench broker --turns 0 [--varied] [--database …] --json > large-….json
python -m privmarket_studies.torture.broker_kill --kills 30 --seed 1 [--postgres] [--brokers 2] --out kills.json
python -m privmarket_studies.torture.broker_simulation --rounds 1000 --seed 1 --out simulation.json
python -m privmarket_studies.torture.broker_fuzz --examples 8 [--postgres] --out fuzz.json
python -m privmarket_studies.torture.broker_tampering --postgres --out tampering.json
python -m privmarket_studies.torture.broker_outsider --postgres --out outsider.json
python -m privmarket_studies.broker_results .
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from privmarket._files import write_atomically
from privmarket_studies.page_text import table_row

DATABASES = ("SQLite", "PostgreSQL")
_LARGE = ("large-sqlite", "large-sqlite-varied", "large-postgresql", "large-postgresql-million")
_DEFAULTS = {"brokers": 1, "database": "SQLite"}
_RATE_BAR = 300.0  # signed bids a second with sixteen callers on SQLite
_WAIT_BAR_MS = 200.0  # the 99th percentile of other calls while 10,000 bids clear
_PAGE_AIM_MS, _CLEAR_AIM_SECONDS = 200.0, 60.0

_BIDS = """# The broker, measured

**Question.** How fast is the broker, and what does it survive? How to run one, and what it defends against:
[run a broker](../../how-to/run-a-broker.md).

Two cores. *Code*, of which a figure is, is a digest of the broker's Python files without those of pages and clients
(`privmarket_studies.torture.runs.broker_code`; comments do not count).

## Sealed bids per second
Over HTTP on SQLite with durable commits (WAL, `synchronous=FULL`), on an otherwise idle machine. The broker
checks the Ed25519 signature of a *signed* bid and signs the log's head with each commit. The bar is {bar:.0f}
signed bids a second with sixteen callers. *Processor*: time of the server process per answer.

`privmarket bench broker --bids 0 --callers 16` ([bids.json](bids.json))

| code | callers | signed a second | p99, ms | unsigned a second | processor, ms (signed, unsigned) | bar |
|---|---|---|---|---|---|---|
"""
_CLEARING = """
## Other calls while 10,000 bids clear
Readers of the round, of its page and of their own account, and a bidder in another round, before the round
closes and while it clears, on an otherwise idle machine. The bar is a 99th percentile of {bar:.0f} ms. *Ratio*:
of both p99.

`privmarket bench broker --turns 0 --bids 10000` ([clearing-1.json](clearing-1.json) and so on)

| code | cleared in, s | calls before | p99 before, ms | calls while clearing | median, ms | p99, ms | ratio |
|---|---|---|---|---|---|---|---|
"""
_TAMPERING = """
## Tampering
{edits} edits of a market in which every party signs everything, on *{code}*, each checked by `broker verify`
with what a witness saw. *Signed* entries are the party's own, the operator's acts among them; *without effect*
leaves every table that parties live by as it was. tests/studies/torture runs a sample in the suite.

`python -m privmarket_studies.torture.broker_tampering --postgres` ([tampering.json](tampering.json))

| class | edits | found | without effect | signed by the party | missed |
|---|---|---|---|---|---|
"""
_OUTSIDER = """
A second campaign, of {edits} edits on *{code}*, was written from the log's format alone, without reading the
checks. Its market also has two operators, bookings that were undone, proposed, approved and declined, webhooks,
ended sessions, and a log whose key was handed over. *Own*: acts that operators may do in the open, and parties'
own words, which must not raise an alarm. *Refused*: edits that SQLite itself does not take. Only a check that
has the broker's key sees whether a sealed key was exchanged.

`python -m privmarket_studies.torture.broker_outsider --postgres` ([outsider.json](outsider.json))

| class | edits | found | without effect | own | refused | missed | false alarms |
|---|---|---|---|---|---|---|---|
"""
_ROUND = """
## One large round
Closed, delivered and settled over HTTP while callers keep reading, and bidding in another round; bids were
placed before. *Alike*: four different caps, nothing sold before. *Varied*: every seller has its own cap, most
have a past. The aim is pages under {aim:.0f} ms. Rounds of 20,000 bids and more are cleared in a process of
their own: whoever closes one is answered before its auction is held, and *cleared in* counts until the round is
cleared. A million bids are copied into PostgreSQL's tables, not placed one by one.{million} Of *earlier* code
no digest was kept.

`privmarket bench broker --turns 0 [--bids N] [--varied] [--database …]`

| | {heads} |
|---|{rules}|
"""
_KILLS = """
## Killed and restarted
Servers under eight bidders and a buyer are killed with `kill -9` at random moments and started again: {kills:,}
kills, {bids:,} acknowledged bids in all. Bids are signed, every other round has bids that are sealed and
revealed and updates that travel sealed, and one seller's updates are always rejected, disputed and ruled on.
Two brokers on one database are killed in turn; with *pauses* one of them is stopped for 13 s (SIGSTOP) before
each kill, and the other must go on. Checked after each run: no acknowledged bid or key lost, none taken twice,
no round paid out twice, escrow + balances = deposits to the micro-unit, the replay of everything agrees.

`python -m privmarket_studies.torture.broker_kill --kills N --seed S [--postgres] [--brokers 2 [--pause]]`
([kills.json](kills.json))

| code | database | brokers | runs | kills | bids | settled | reveals | disputes | sealed | pauses | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
_PAUSED = """
A broker that is stopped in the middle of a write keeps the lock on SQLite until it goes on or ends; PostgreSQL ends
its transaction after ten seconds, unless it stands in the middle of a COPY (50 rows of one kind or more).
"""
_SIMULATED = """
## Simulated
The same code through crashes at any statement, retries, duplicates, reordering and clock jumps: {rounds:,}
rounds, {crashes:,} crashes. Invariants are checked after every step, everything is replayed now and then; a
seed replays exactly.

`python -m privmarket_studies.torture.broker_simulation --rounds N --seed S [--postgres]`
([simulation.json](simulation.json))

| code | database | rounds | requests | crashes | verdict |
|---|---|---|---|---|---|
"""
_FUZZ = """
## Fuzzed
Schemathesis over every operation as every role, well formed and not:
`python -m privmarket_studies.torture.broker_fuzz --examples N [--postgres]` ([fuzz.json](fuzz.json)).

| code | database | requests | answers | verdict |
|---|---|---|---|---|
"""


Run = dict[str, Any]  # one run of a harness as it wrote it; the fields differ by harness


def render(folder: Path) -> str:
    """The page's text, from the JSON files in `folder`."""
    kills = _read(folder / "kills.json")
    simulated = _read(folder / "simulation.json")
    page = _BIDS.format(bar=_RATE_BAR) + _rate_rows(_read(folder / "bids.json"))
    page += _CLEARING.format(bar=_WAIT_BAR_MS) + _clearing_rows(folder)
    page += _tampering(_read(folder / "tampering.json"))
    page += _outsider(_read(folder / "outsider.json"))
    page += _large(folder)
    page += _KILLS.format(kills=_sum(kills, "kills"), bids=_sum(kills, "acknowledged bids")) + _kill_rows(kills)
    page += _PAUSED
    page += _SIMULATED.format(rounds=_sum(simulated, "rounds"), crashes=_sum(simulated, "crashes"))
    page += _simulated_rows(simulated)
    return page + _FUZZ + "".join(_fuzz_row(run) for run in _read(folder / "fuzz.json"))


def _sum(runs: list[Run], name: str) -> int:
    return sum(run[name] for run in runs)


def _code(result: Run) -> str:
    return str(result.get("code", "earlier"))


def _rate_rows(found: Run) -> str:
    rows = ""
    for row in found["bids"]:
        signed, plain, cpu = row["signed"], row["broker"], row["cpu_ms"]
        met = "met" if signed["per_second"] >= _RATE_BAR else "missed"
        rows += table_row(
            (
                _code(found),
                str(row["callers"]),
                f"{signed['per_second']:,.0f}",
                f"{signed['p99_ms']:.0f}",
                f"{plain['per_second']:,.0f}",
                f"{cpu['signed']:.2f}, {cpu['broker']:.2f}",
                met if row["callers"] == 16 else "–",
            )
        )
    return rows


def _clearing_rows(folder: Path) -> str:
    """One row per try, and what the slowest of them says about the bar."""
    rows = ""
    slowest = 0.0
    for file in sorted(folder.glob("clearing-[0-9].json")):
        found = _read(file)
        round_ = found["large_round"]
        before, during = round_["readers_before"]["all"], round_["readers_during_clear"]["all"]
        slowest = max(slowest, during["p99_ms"])
        rows += table_row(
            (
                _code(found),
                f"{round_['clear_seconds']:.2f}",
                f"{before['reads']:,}",
                f"{before['p99_ms']:.0f}",
                f"{during['reads']:,}",
                f"{during['median_ms']:.0f}",
                f"{during['p99_ms']:.0f}",
                f"{during['p99_ms'] / before['p99_ms']:.2f}",
            )
        )
    met = "met" if 0 < slowest < _WAIT_BAR_MS else "not shown to be met"
    return f"{rows}\nThe slowest of these tries has a 99th percentile of {slowest:.0f} ms: the bar is {met}.\n"


def _tampering(found: Run) -> str:
    """One row per class of edits; one that was missed is an error, not a row."""
    counts = found["counts"]
    rows = ""
    for kind, results in counts.items():
        if results.get("missed"):
            raise ValueError(f"{kind}: {results['missed']} edits were missed")
        ways = [results.get(name, 0) for name in ("found", "without effect", "signed", "missed")]
        rows += table_row((kind, str(sum(ways)), *map(str, ways)))
    edits = sum(sum(results.values()) for results in counts.values())
    return _TAMPERING.format(code=found["code"], edits=edits) + rows


def _outsider(found: Run) -> str:
    """One row per class; an edit that was missed, or an own act that was reported, is an error, not a row."""
    counts = found["counts"]
    rows = ""
    for kind, results in counts.items():
        bad = results.get("missed", 0) + results.get("false alarm", 0)
        if bad:
            raise ValueError(f"{kind}: {bad} edits were missed, or own acts reported")
        names = ("found", "without effect", "own", "refused", "missed", "false alarm")
        ways = [results.get(name, 0) for name in names]
        rows += table_row((kind, str(sum(ways)), *map(str, ways)))
    edits = sum(sum(results.values()) for results in counts.values())
    return _OUTSIDER.format(code=found["code"], edits=edits) + rows


def _groups(runs: list[Run], *names: str) -> dict[tuple[str, ...], list[Run]]:
    """Runs that share their code and what else is named, the newest code last, in the order of the file."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        place = (_code(run), *(str(run.get(name, _DEFAULTS.get(name))) for name in names))
        found.setdefault(place, []).append(run)
    return found


def _simulated_rows(runs: list[Run]) -> str:
    rows = ""
    for (code, database), mine in _groups(runs, "database").items():
        sums = " | ".join(f"{sum(run[name] for run in mine):,}" for name in ("rounds", "requests", "crashes"))
        rows += f"| {code} | {database} | {sums} | {_one_of({run['verdict'] for run in mine})} |\n"
    return rows


def _large(folder: Path) -> str:
    """The table of large rounds, one column per kept file."""
    files = {name: _read(folder / f"{name}.json") for name in _LARGE if (folder / f"{name}.json").exists()}
    kept = {name: found["large_round"] for name, found in files.items()}
    columns = list(kept.values())
    kinds = {"sqlite": "SQLite", "postgresql+psycopg": "PostgreSQL"}
    variants = ["varied" if c["past_sales"] else "alike" for c in columns]
    heads = [
        f"[{kinds[c['database']]}, {variant}]({name}.json), {_code(files[name])}"
        for (name, c), variant in zip(kept.items(), variants, strict=True)
    ]
    lines = {
        "bids": [f"{c['bids']:,}" for c in columns],
        "different caps": [f"{c['different_caps']:,}" for c in columns],
        "sales before": [f"{c['past_sales']:,}" for c in columns],
        "sellers that sell": [f"{c['sellers']:,}" for c in columns],
        "closing answered in, s": [f"{c['close_seconds']:.2f}" if "close_seconds" in c else "–" for c in columns],
        "cleared in, s": [f"{c['clear_seconds']:.1f}" for c in columns],
        "delivered in, s": [f"{c['deliver_seconds']:.2f}" for c in columns],
        "settled in, s": [f"{c['settle_seconds']:.2f}" for c in columns],
    }
    readers = (("round", "the round"), ("page", "its page"), ("me", "a seller's self"), ("bid", "a bid elsewhere"))
    for reader, name in readers:
        lines[f"{name}, before, ms: median (longest)"] = [_wait(c["readers_before"].get(reader)) for c in columns]
        lines[f"{name}, while clearing, ms"] = [_wait(c["readers_during_clear"].get(reader)) for c in columns]
    for where in ("server", "auction"):
        held = [c.get(f"{where}_memory_mb") for c in columns]
        lines[f"memory of the {where}'s process, MB"] = [f"{one:,.0f}" if one else "–" for one in held]
    lines["slowest page of all roles and states, ms"] = [_slowest(c["pages_ms"]) for c in columns]
    table = "".join(table_row([name, *cells]) for name, cells in lines.items())
    rules = "|".join("---" for _ in heads)
    return _ROUND.format(heads=" | ".join(heads), rules=rules, aim=_PAGE_AIM_MS, million=_million(columns)) + table


def _million(columns: list[Run]) -> str:
    """Whether the largest round that is kept met the aim of the issue."""
    took = [c["clear_seconds"] for c in columns if c["bids"] >= 1_000_000]
    if not took:
        return " None is kept, so the aim of a minute is not shown to be met."
    met = "met" if max(took) <= _CLEAR_AIM_SECONDS else "missed"
    return f" Their aim, cleared in {_CLEAR_AIM_SECONDS:.0f} s, was {met}."


def _wait(latency: dict[str, float] | None) -> str:
    if latency is None:
        return "–"
    return f"{latency['median_ms']:.0f} ({latency['largest_ms']:.0f})"


def _slowest(pages_ms: dict[str, float]) -> str:
    name = max(pages_ms, key=pages_ms.__getitem__)
    return f"{pages_ms[name]:.0f} ({name})"


def _kill_rows(runs: list[Run]) -> str:
    rows = ""
    names = (
        "kills",
        "acknowledged bids",
        "settled rounds",
        "reveals",
        "disputes",
        "sealed updates opened",
        "pauses",
    )
    for (code, database, brokers), mine in _groups(runs, "database", "brokers").items():
        sums = " | ".join(f"{sum(run.get(name, 0) for run in mine):,}" for name in names)
        verdict = _one_of({run["verdict"] for run in mine})
        rows += f"| {code} | {database} | {brokers} | {len(mine)} | {sums} | {verdict} |\n"
    return rows


def _fuzz_row(run: Run) -> str:
    answers = ", ".join(f"{count:,} × {status}" for status, count in run["answers"].items())
    return f"| {_code(run)} | {run['database']} | {run['requests']:,} | {answers} | {run['verdict']} |\n"


def _one_of(verdicts: set[str]) -> str:
    """What all runs agree on; a file with two different verdicts must not be summed up as one."""
    (verdict,) = verdicts
    return verdict


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_atomically(target / "README.md", render(target))
