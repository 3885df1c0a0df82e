"""What came of the faults: counts per package, and every survivor with what we think of it.

`judgements.json` beside the page says of each survivor what it is: `equivalent` (no behaviour changes), `harmless`
(it changes, but nothing that is promised), or `gap` (a test is missing).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privmarket_studies.mutants.bench import PATIENCE_SECONDS
from privmarket_studies.mutants.trial import NOT_TRIED, SURVIVED

RESULTS, JUDGED = "mutants.json", "judgements.json"
KINDS = ("equivalent", "harmless", "gap")

_HEAD = """# Do the tests bite?

{extent}{faults} small faults (a changed operator, comparison, constant or call, a guard that never fires) were
put one at a time into the packages that decide about money and privacy, and the tests that call the changed
function were run against it: those of less than a second, the quickest first, for at most {patience:g} seconds
of one core.
**{dead} were noticed, {alive} survived.** Of the survivors {equivalent} change no behaviour at all; of the other
{real} faults {share:.1%} were noticed. Made by `make mutants`, which is not part of `make test`; every fault is in
[{results}]({results}), our judgement of the survivors in [{judged}]({judged}).

| where | faults | noticed | endless loop | survived | of these equivalent | harmless | a gap |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

## Survivors
A fault that survives is one of three things: *equivalent* (no input can tell), *harmless* (an input can tell, but
nothing that is promised changes), or a *gap* in the tests.

| fault | judged | why |
| --- | --- | --- |
{survivors}
"""


def render(sample: Sequence[Mapping[str, Any]], judged: Mapping[str, Mapping[str, str]]) -> str:
    """The page.

    Args:
        sample: one entry per fault, with `name`, `path` and `verdict`; the verdict may be `not tried`.
        judged: name of a survivor → its `kind` and `why`.
    """
    results = [entry for entry in sample if entry["verdict"] != NOT_TRIED]
    alive = [entry for entry in results if entry["verdict"] == SURVIVED]
    counts = figures(sample, judged)
    unfinished = (
        f"**This campaign is not finished: {len(results)} of the {len(sample)} faults of its sample were tried** "
        "so far.\nIt ran in pieces on a busy machine, and not as `make mutants` runs it: many faults met the quick "
        "tests of their own module\nalone, for 3 to 6 seconds, and survivors were tried again on test files "
        "chosen by hand. Others may notice a survivor still.\n\n"
    )
    extent = unfinished if len(results) < len(sample) else ""
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
        **counts,
        patience=PATIENCE_SECONDS,
        results=RESULTS,
        judged=JUDGED,
        rows="\n".join(rows),
        survivors="\n".join(lines),
    )


def figures(sample: Sequence[Mapping[str, Any]], judged: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
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


def _where(entry: Mapping[str, Any]) -> str:
    parts = Path(entry["path"]).parts[2:]
    return "/".join(parts) if parts[0] == "broker" else parts[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def load(folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """The kept results and judgements; both empty where there are none."""

    def read(name: str, empty: Any) -> Any:
        path = folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty

    return read(RESULTS, []), read(JUDGED, {})


def write(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Keeps the results of a sample and renders the page."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = ("name", "path", "line", "verdict")
    kept = [{key: entry[key] for key in shown} for entry in results]
    _, judged = load(folder)
    lines = ",\n".join(f" {json.dumps(entry, ensure_ascii=False)}" for entry in kept)
    (folder / RESULTS).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    (folder / "README.md").write_text(render(kept, judged), encoding="utf-8")
