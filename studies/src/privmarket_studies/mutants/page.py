"""What came of the faults: counts per package, and every survivor with what we think of it.

`judgements.json` beside the page says of each survivor what it is: `equivalent` (no behaviour changes), `harmless`
(it changes, but nothing that is promised), or `gap` (a test is missing).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from privmarket._files import write_atomically
from privmarket_studies.mutants.fault_bench import PATIENCE_SECONDS, SLOW_SECONDS
from privmarket_studies.mutants.trial import NOT_TRIED, SURVIVED, Entry

RESULTS, JUDGED = "mutants.json", "judgements.json"
KINDS = ("equivalent", "harmless", "gap")

_HEAD = """# Do the tests bite?

{extent}{faults} small faults (a changed operator, comparison, constant or call, a guard that never fires) were
put one at a time into the packages that decide about money and privacy, as they were in commit {commit}, and the
tests that call the changed function were run against each.
**{dead} were noticed, {alive} survived.** Of the survivors {equivalent} change no behaviour at all; of the other
{real} faults {share:.1%} were noticed.
{newer}
| where | faults | noticed | endless loop | survived | of these equivalent | harmless | a gap |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

## How it ran
`make mutants`, which is not part of `make test`, tries every fault of a fixed sample in the same way:

1. Which tests call which function is measured first, each test alone. Those that take more than {slow:g} seconds
   are left out.
2. The tests that call the changed function are run against the fault, the quickest first, for at most
   {patience:g} seconds (the test under way is let finish). They are imported once; a child per fault exchanges the
   changed functions. A fault outside functions, or in one that is called while modules are imported, is loaded in a
   fresh process if it survives so.
3. A fault counts as noticed only if the test that noticed it passes right afterwards without the fault.

All seconds are processor time, so that a busy machine changes no verdict. A test that runs into an endless
loop has noticed the fault. With `--again` survivors are tried once more, after tests were written for them;
`--test` limits that to the new tests.
Every fault, with the test that noticed it, is in [{results}]({results}), our judgement of the survivors in
[{judged}]({judged}).

## Faults that once survived
Every sample holds these; they lived in an earlier one.

| fault | today |
| --- | --- |
{named}

## Survivors
A fault that survives is one of three things: *equivalent* (no input can tell), *harmless* (an input can tell, but
nothing that is promised changes), or a *gap* in the tests.

| fault | judged | why |
| --- | --- | --- |
{survivors}
"""


_NEWER = """
Some tests are newer than the code, the newest of commit {tests}: {count} of the noticed faults survived
at first and were tried again, in the same code, after tests had been written for them.
"""


def render(sample: Sequence[Entry], judged: Mapping[str, Mapping[str, str]], commit: str, tests: str = "") -> str:
    """The page.

    Args:
        sample: one entry per fault, with `name`, `path` and `verdict` (which may be `not tried`), `named` if it
            once survived an earlier sample, `later` if it survived this one at first.
        judged: name of a survivor → its `kind` and `why`.
        commit: whose code got the faults.
        tests: the commit of the newest tests, where some are newer than the code.
    """
    results = [entry for entry in sample if entry["verdict"] != NOT_TRIED]
    alive = [entry for entry in results if entry["verdict"] == SURVIVED]
    counts = figures(sample, judged)
    later = sum(bool(entry.get("later")) for entry in results)
    extent = ""
    if len(results) < len(sample):
        extent = f"**This campaign is not finished: {len(results)} of the {len(sample)} faults were tried.**\n\n"
    rows = []
    for where in sorted({_where(entry) for entry in results}):
        mine = [entry for entry in results if _where(entry) == where]
        verdicts = Counter(entry["verdict"] for entry in mine)
        kinds = Counter(judged[e["name"]]["kind"] for e in mine if e["verdict"] == SURVIVED and e["name"] in judged)
        figures_of = (len(mine), verdicts["killed"], verdicts["timed out"], verdicts[SURVIVED])
        cells = [*figures_of, *(kinds[kind] for kind in KINDS)]
        rows.append(f"| `{where}` | " + " | ".join(str(cell) for cell in cells) + " |")
    lines = []
    for entry in sorted(alive, key=lambda e: str(e["name"])):
        verdict = judged.get(entry["name"], {"kind": "not judged", "why": ""})
        lines.append(f"| `{_cell(entry['name'])}` | {verdict['kind']} | {_cell(verdict['why'])} |")
    return _HEAD.format(
        extent=extent,
        newer=_NEWER.format(count=later, tests=tests) if tests else "",
        commit=commit,
        **counts,
        slow=SLOW_SECONDS,
        patience=PATIENCE_SECONDS,
        named="\n".join(f"| `{_cell(e['name'])}` | {e['verdict']} |" for e in sample if e.get("named")),
        results=RESULTS,
        judged=JUDGED,
        rows="\n".join(rows),
        survivors="\n".join(lines),
    )


def figures(sample: Sequence[Entry], judged: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """How many faults, how many noticed, and the share of those that change behaviour."""
    results = [entry for entry in sample if entry["verdict"] != NOT_TRIED]
    alive = [entry["name"] for entry in results if entry["verdict"] == SURVIVED]
    equivalent = sum(judged.get(name, {}).get("kind") == "equivalent" for name in alive)
    dead, real = len(results) - len(alive), len(results) - equivalent
    return {
        "faults": len(results),
        "dead": dead,
        "alive": len(alive),
        "equivalent": equivalent,
        "real": real,
        "share": dead / real if real else 0.0,
    }


def _where(entry: Entry) -> str:
    parts = Path(entry["path"]).parts[2:]
    return "/".join(parts) if parts[0] == "broker" else parts[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


class Kept(NamedTuple):
    """Commits of the code and of newer tests, results and judgements; all empty where there are none."""

    commit: str
    tests: str
    faults: list[Entry]
    judged: dict[str, dict[str, str]]


def load(folder: Path) -> Kept:
    """Reads the faults and the judgements that are kept in a folder."""

    def read(name: str, empty: object) -> Any:
        path = folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty

    kept = read(RESULTS, {"commit": "", "faults": []})
    return Kept(kept["commit"], kept.get("tests", ""), kept["faults"], read(JUDGED, {}))


def write(folder: Path, results: Sequence[Entry], commit: str, tests: str = "") -> None:
    """Keeps the results of a sample and renders the page."""
    shown = ("name", "path", "line", "verdict", "test", "named", "later")
    kept = [{key: entry[key] for key in shown if entry.get(key)} for entry in results]
    lines = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in kept)
    commits = f' "commit": {json.dumps(commit)},\n "tests": {json.dumps(tests)},\n'
    text = f'{{\n{commits} "faults": [\n{lines}\n ]\n}}\n'
    write_atomically(folder / RESULTS, text)
    write_atomically(folder / "README.md", render(kept, load(folder).judged, commit, tests))
