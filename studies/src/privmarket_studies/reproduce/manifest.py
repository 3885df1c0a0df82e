"""Which results are kept of each study, so that none is lost or replaced unnoticed.

`manifest.json` lies beside the results. Every data file under the folder belongs to a study there. A study has
groups; a group says how many results it has and names the places (slots) that they take in tables, each name
shortened to six digits of its SHA-256. A study also has a history of its totals that is only ever added to: a
shorter history than an earlier commit had means that an older file was put over a newer one. Wherever a slot
vanishes, even if another takes its place, the history has to say why.

    python -m privmarket_studies.reproduce.manifest docs/results [--fewer REASON]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from privmarket._files import write_atomically
from privmarket.errors import PrivmarketError
from privmarket_studies.reproduce.cache import read_bundle

NAME = "manifest.json"
_CELLS = "cells.jsonl"
_FOLDERS = ("federated/runs",)  # a result per file
# Lists of results that are added to and never computed again: a row is its own name.
_LOGS = ("broker/kills.json", "broker/simulation.json", "broker/fuzz.json")
# Lists of results as a study of their own: the list's field in the file ("" for the whole file), the fields of a
# row that name it (none: the whole row).
_LISTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(_LOGS, ("", ())),
    "learned/tuning.json": ("", ()),
    "bought-statistics/runs.json": ("", ("task", "public", "wallet", "statistics", "seed")),
    "secure-sums/costs.json": ("sums", ("sellers", "weights", "dropped")),
}
# The fields that name a row, in lists inside other files.
_ROW_NAMES = (
    "name",
    "command",
    "mechanism",
    "scenario",
    "clients",
    "rounds",
    "heterogeneity",
    "budget",
    "multiplier",
)
# What is rendered from results, beside them; tables in .csv only where cells are.
_RENDERED = (".md", ".png", ".svg")
_REMEDY = "bring the results back, or say why they are gone: --fewer REASON"


class HistoryStep(TypedDict):
    """One step of a study's history."""

    results: int
    digest: str
    gone: NotRequired[int]
    why_fewer: NotRequired[str]


class StudyEntry(TypedDict):
    """A study's part of the manifest: group → number of results, group → their short names, and the history."""

    groups: dict[str, int]
    slots: NotRequired[dict[str, str]]
    history: list[HistoryStep]


Manifest = dict[str, StudyEntry]
_NOTHING: StudyEntry = {"groups": {}, "history": []}


class LostCellsError(PrivmarketError):
    """Results that the manifest lists are not there, and no reason is given."""

    code = "lost-cells"


@dataclass(frozen=True)
class Inventory:
    """What is there of a study.

    Attributes:
        slots: group ("kind mechanism", or a file's name) → short names of its results, sorted.
        digest: of the sorted full names of all results.
    """

    slots: Mapping[str, tuple[str, ...]]
    digest: str

    @property
    def results(self) -> int:
        """The number of results in all groups."""
        return sum(len(names) for names in self.slots.values())


def inventory(folder: Path) -> dict[str, Inventory]:
    """Study → what is there of it, for every study under `folder` that keeps results."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in data_files(folder):
        for study, group, name in _results(folder, path):
            found.setdefault(study, []).append((group, name))
    return {study: _inventory(pairs) for study, pairs in sorted(found.items())}


def data_files(folder: Path) -> list[Path]:
    """Every file of results below `folder`: all but the manifest and what is rendered."""
    found = []
    for path in sorted(folder.glob("*/**/*")):
        table = path.suffix == ".csv" and (path.parent / _CELLS).exists()
        if path.is_file() and not table and path.suffix not in _RENDERED:
            found.append(path)
    return found


def _results(folder: Path, path: Path) -> list[tuple[str, str, str]]:
    """(study, group, name) of every result in a file; the study is its folder, or the file if `_LISTS` has it."""
    study, file = (place.relative_to(folder).as_posix() for place in (path.parent, path))
    if path.name == _CELLS:
        cells = [record.cell for record in read_bundle(path)]
        return [(study, f"{cell.kind} {cell.config.get('mechanism', '')}".strip(), cell.slot) for cell in cells]
    if study in _FOLDERS:
        return [(study, study, path.name)]
    if path.suffix != ".json":
        raise PrivmarketError(f"{path}: the manifest reads {_CELLS} and .json only", "keep the results as JSON")
    data = json.loads(path.read_text(encoding="utf-8"))
    if file not in _LISTS:
        return [(study, path.name, name) for name in _names(data)]
    field, fields = _LISTS[file]
    rows = data.pop(field) if field else data
    rest = _names(data) if field else []
    return [(file, file, _row_name(row, fields)) for row in rows] + [(study, path.name, name) for name in rest]


def _row_name(row: Mapping[str, object], fields: Sequence[str]) -> str:
    if fields:
        return json.dumps({key: row[key] for key in fields})
    return json.dumps(row, sort_keys=True)


def _names(data: object, depth: int = 2) -> list[str]:
    """Names of what a JSON document holds, two levels deep: keys, and rows of lists by `_ROW_NAMES`."""
    if isinstance(data, dict) and data and depth:
        return [f"{key}/{rest}" for key, value in data.items() for rest in _names(value, depth - 1)]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        rows = [json.dumps({key: row[key] for key in _ROW_NAMES if key in row}) for row in data]
        return [f"{row} {rows[:place].count(row)}" for place, row in enumerate(rows)]
    return [""]


def _inventory(pairs: Iterable[tuple[str, str]]) -> Inventory:
    listed = sorted(pairs)
    digest = hashlib.sha256("\n".join(sorted(name for _, name in listed)).encode()).hexdigest()[:16]
    slots: dict[str, list[str]] = {}
    for group, name in listed:
        slots.setdefault(group, []).append(hashlib.sha256(name.encode()).hexdigest()[:6])
    return Inventory({group: tuple(sorted(names)) for group, names in slots.items()}, digest)


def read(folder: Path) -> Manifest:
    """The manifest beside the results; empty if there is none."""
    path = folder / NAME
    found: Manifest = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def losses(written: Manifest, there: Mapping[str, Inventory]) -> list[str]:
    """What the manifest lists and is not there any more, a sentence each."""
    said = []
    for study, entry in written.items():
        now: Mapping[str, tuple[str, ...]] = there[study].slots if study in there else {}
        for group, before in entry["groups"].items():
            left = now.get(group, ())
            gone = set(_slots(entry, group)) - set(left)
            if gone or len(left) < before:
                which = f" (gone: {' '.join(sorted(gone)[:5])})" if gone else ""
                said.append(f"{study}: {len(left)} instead of {before} results of {group}{which}")
    return said


def _slots(entry: StudyEntry, group: str) -> list[str]:
    """The short names that a manifest lists for a group; none in manifests of before they were listed."""
    listed: str = entry.get("slots", {}).get(group, "")
    return listed.split()


def unlisted(written: Manifest, there: Mapping[str, Inventory]) -> list[str]:
    """Results that are there and not in the manifest, a sentence per study."""
    said = []
    for study, found in there.items():
        entry = written.get(study, _NOTHING)
        new = [group for group in found.slots if set(found.slots[group]) - set(_slots(entry, group))]
        if new:
            said.append(f"{study}: the manifest does not list all results of {', '.join(new)}")
    return said


def unexplained(written: Manifest) -> list[str]:
    """Steps of the manifest's history to fewer or other results without a reason."""
    said = []
    for study, entry in written.items():
        history = entry["history"]
        for before, after in itertools.pairwise(history):
            fewer = after["results"] < before["results"] or after.get("gone", 0)
            if fewer and not after.get("why_fewer"):
                said.append(f"{study}: {before['results']} → {after['results']} results without a reason")
    return said


def rewritten(earlier: Manifest, written: Manifest) -> list[str]:
    """What an earlier manifest said and this one does not: steps of a history, slots gone without a reason."""
    said = []
    for study, entry in earlier.items():
        now = written.get(study, _NOTHING)
        known = entry["history"]
        if now["history"][: len(known)] != known:
            said.append(f"{study}: the manifest has forgotten what it said before")
        explained = any(step.get("why_fewer") for step in now["history"][len(known) :])
        gone = [group for group in entry["groups"] if set(_slots(entry, group)) - set(_slots(now, group))]
        if gone and not explained:
            said.append(f"{study}: results of {', '.join(gone)} left the manifest without a reason")
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
    made = {}
    for study in sorted({*written, *there}):
        made[study] = _entry(written.get(study, _NOTHING), there.get(study), why_fewer)
    path = folder / NAME
    write_atomically(path, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return path


def _entry(before: StudyEntry, found: Inventory | None, why_fewer: str) -> StudyEntry:
    """A study's part of the manifest: what is there, and one more step of its history if that has changed."""
    now = found or Inventory({}, "")
    history = list(before["history"])
    gone = sum(
        max(len(set(_slots(before, group)) - set(now.slots.get(group, ()))), count - len(now.slots.get(group, ())))
        for group, count in before["groups"].items()
    )
    if not history or history[-1]["digest"] != now.digest:
        step: HistoryStep = {"results": now.results, "digest": now.digest}
        if gone > 0:
            step |= {"gone": gone, "why_fewer": why_fewer}
        history.append(step)
    return {
        "groups": {group: len(names) for group, names in now.slots.items()},
        "slots": {group: " ".join(names) for group, names in now.slots.items()},
        "history": history,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes into the manifest which results are kept.")
    parser.add_argument("folder", type=Path, help="docs/results")
    parser.add_argument("--fewer", default="", metavar="REASON", help="why results are gone or replaced")
    options = parser.parse_args()
    print(update(options.folder.resolve(), options.fewer))
