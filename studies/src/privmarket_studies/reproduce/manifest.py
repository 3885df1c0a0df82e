"""How many results are kept of each study, and which: so that none is lost unnoticed.

`manifest.json` lies beside the results. Per study it says how many results there are in each group (kind and
mechanism), a digest of their names, and how the number went. Its history is only ever added to: a shorter
history than an earlier commit had means that an older file was put over a newer one. Fewer results than before need
a reason.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privmarket.errors import PrivmarketError
from privmarket_studies.reproduce.cache import read_bundle

NAME = "manifest.json"
_FOLDERS = ("federated/runs",)  # a result per file
_LISTS = ("learned/tuning.json", "broker/kills.json", "broker/simulation.json", "broker/fuzz.json")
_ROWS = {"secure-scale/parts.json": "rounds"}  # files in which one field is a list of results
_REMEDY = "bring the cells back, or say why they are gone: publish --fewer REASON"


class LostCellsError(PrivmarketError):
    """There are fewer results than the manifest says, and no reason is given."""

    code = "lost-cells"


@dataclass(frozen=True)
class Inventory:
    """What is there of a study.

    Attributes:
        groups: "kind mechanism" → how many results.
        digest: of the sorted names of all results.
    """

    groups: Mapping[str, int]
    digest: str

    @property
    def results(self) -> int:
        """How many."""
        return sum(self.groups.values())


def inventory(folder: Path) -> dict[str, Inventory]:
    """study → what is there of it, for every study under `folder` that keeps results."""
    found = {}
    for path in sorted(folder.glob("*/cells.jsonl")):
        cells = [record.cell for record in read_bundle(path)]
        groups = [f"{cell.kind} {cell.config.get('mechanism', '')}".strip() for cell in cells]
        found[path.parent.name] = _inventory(groups, [cell.slot for cell in cells])
    for name in _FOLDERS:
        files = sorted(path.name for path in (folder / name).glob("*.json"))
        if files:
            found[name] = _inventory([name] * len(files), files)
    for name in _LISTS:
        if (folder / name).exists():
            rows = json.loads((folder / name).read_text(encoding="utf-8"))
            found[name] = _inventory([name] * len(rows), [json.dumps(row, sort_keys=True) for row in rows])
    for name, field in _ROWS.items():
        if (folder / name).exists():
            rows = json.loads((folder / name).read_text(encoding="utf-8"))[field]
            names = [json.dumps({key: row[key] for key in ("sellers", "weights")}) for row in rows]
            found[name] = _inventory([name] * len(rows), names)
    return found


def _inventory(groups: Iterable[str], names: Iterable[str]) -> Inventory:
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
    return Inventory(dict(sorted(Counter(groups).items())), digest)


def read(folder: Path) -> dict[str, Any]:
    """The manifest beside the results; empty if there is none."""
    path = folder / NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def losses(written: Mapping[str, Any], there: Mapping[str, Inventory]) -> list[str]:
    """What the manifest lists and is not there any more, a sentence each."""
    said = []
    for study, entry in written.items():
        groups: Mapping[str, int] = there[study].groups if study in there else {}
        for group, before in entry["groups"].items():
            if groups.get(group, 0) < before:
                said.append(f"{study}: {groups.get(group, 0)} instead of {before} results of {group}")
    return said


def unexplained(written: Mapping[str, Any]) -> list[str]:
    """Steps of the manifest's history to fewer results without a reason."""
    said = []
    for study, entry in written.items():
        history = entry["history"]
        for before, after in itertools.pairwise(history):
            if after["results"] < before["results"] and not after.get("why_fewer"):
                said.append(f"{study}: {before['results']} → {after['results']} results without a reason")
    return said


def rewritten(earlier: Mapping[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Studies whose history does not begin with the history that an earlier manifest had."""
    said = []
    for study, entry in earlier.items():
        known: Sequence[Any] = entry["history"]
        if written.get(study, {"history": []})["history"][: len(known)] != known:
            said.append(f"{study}: the manifest has forgotten what it said before")
    return said


def update(folder: Path, why_fewer: str = "") -> Path:
    """Writes what is there into the manifest.

    Raises:
        LostCellsError: if results are gone and `why_fewer` is empty; nothing is written then.
    """
    written, there = read(folder), inventory(folder)
    lost = losses(written, there)
    if lost and not why_fewer:
        raise LostCellsError("; ".join(lost), _REMEDY)
    made: dict[str, Any] = {}
    for study in sorted({*written, *there}):
        now = there.get(study, Inventory({}, ""))
        history = written.get(study, {"history": []})["history"]
        gone = [text for text in lost if text.startswith(f"{study}: ")]
        if not history or history[-1]["digest"] != now.digest:
            reason = {"why_fewer": why_fewer} if gone else {}
            history = [*history, {"results": now.results, "digest": now.digest, **reason}]
        made[study] = {"groups": dict(now.groups), "history": history}
    path = folder / NAME
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
