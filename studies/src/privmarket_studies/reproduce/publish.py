"""Results that are kept in the repository: a file of cells per question, and the pages rendered from them.

`python -m privmarket_studies.reproduce.publish docs/results` renders every page again from the kept cells and
refuses to do so if cells were lost; `--fewer REASON` says why there are fewer of them than before.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from privmarket._files import write_atomically
from privmarket_studies.reproduce import found, manifest, summary_table
from privmarket_studies.reproduce.cache import Record, read_bundle, write_bundle
from privmarket_studies.reproduce.cells import Cell
from privmarket_studies.reproduce.document import ResultPage, Results, Text, prose
from privmarket_studies.reproduce.questions import QUESTIONS, Question
from privmarket_studies.reproduce.report import drawn, write_page

CELLS = "cells.jsonl"


def keep(
    question: Question, listed: Iterable[Cell], records: Iterable[Record], folder: Path, fewer: str = ""
) -> None:
    """Adds finished cells to what is kept of a question.

    A cell replaces an earlier one in its place. One that was computed with other weights than those that ship stays
    until it is replaced; pages do not show it. Kept cells that are no longer listed are dropped, so that a table
    does not mix settings, but only if there is a reason.

    Args:
        fewer: why cells that are no longer listed may go.

    Raises:
        LostCellsError: if cells would go and no reason is given; nothing is written then.
    """
    place = folder / question.name / CELLS
    wanted = {cell.slot for cell in listed}
    kept = {r.cell.slot: r for r in (read_bundle(place) if place.exists() else [])}
    unlisted = kept.keys() - wanted
    if unlisted and not fewer:
        raise manifest.LostCellsError(
            f"{question.name}: {len(unlisted)} of {len(kept)} kept cells are not among those asked for",
            "ask for the full question (no --quick, no --seeds), or say why they go with --fewer REASON",
        )
    kept |= {r.cell.slot: r for r in records if r.failure is None}
    write_bundle(place, [record for slot, record in kept.items() if slot in wanted])


def kept_records(question: Question, folder: Path) -> list[Record]:
    """The kept records of a question."""
    return read_bundle(folder / question.name / CELLS)


def render_kept(question: Question, folder: Path) -> ResultPage:
    """The page of the kept cells, with how long they took and how to go on."""
    records = kept_records(question, folder)
    page = question.render(Results(records))
    minutes = sum(record.seconds for record in records) / 60
    command = f"privmarket reproduce {question.name} --keep docs/results"
    time = f"{len(records):,} cells, {minutes:.0f} minutes of one shared core in all"
    return replace(page, blocks=[*page.blocks, Text(f"*{time}; `{command}` computes what is missing.*")])


def mark_of(question: Question, folder: Path) -> str:
    """A digest of the kept cells of a question, which its figures carry in their metadata."""
    return "cells " + hashlib.sha256((folder / question.name / CELLS).read_bytes()).hexdigest()[:16]


def kept_questions(folder: Path) -> list[Question]:
    """The questions of which cells are kept."""
    return [question for question in QUESTIONS.values() if (folder / question.name / CELLS).exists()]


def all_kept(folder: Path) -> Results:
    """The kept cells of all questions."""
    return Results([record for question in kept_questions(folder) for record in kept_records(question, folder)])


def publish(folder: Path, fewer: str = "") -> list[Path]:
    """Writes the pages of all questions of which cells are kept, their index, the summary and the manifest.

    Args:
        fewer: why there are fewer cells than the manifest says, if there are.

    Raises:
        LostCellsError: if there are fewer and no reason is given; nothing is written then.
    """
    written = [manifest.update(folder, fewer)]
    for question in kept_questions(folder):
        page = render_kept(question, folder)
        written += write_page(page, folder / question.name, mark_of(question, folder), published=True)
    results = all_kept(folder)
    drawing = summary_table.draw(results)
    for kind in ("png", "svg"):
        write_atomically(folder / f"{summary_table.NAME}.{kind}", drawn(drawing, kind))
    texts = ((f"{summary_table.NAME}.md", summary_table.block(results)), ("README.md", index(folder)))
    for name, text in (*texts, (found.NAME, found.page(results, folder))):
        write_atomically(folder / name, text)
        written.append(folder / name)
    return written


def versions_of(records: Iterable[Record]) -> dict[str, str]:
    """Program → the versions that the records were computed with, each with the number of records: 0.1.0 (12)."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        for name, version in record.versions.items():
            found.setdefault(name, Counter())[version] += 1
    return {
        name: " and ".join(f"{version} ({count:,})" for version, count in sorted(counts.items()))
        for name, counts in found.items()
    }


def index(folder: Path) -> str:
    """The page that leads to all others: how many cells, how long they took, with what."""
    rows = []
    for question in kept_questions(folder):
        records = kept_records(question, folder)
        minutes = sum(r.seconds for r in records) / 60
        seeds = len({r.cell.seed for r in records})
        link = f"[{question.title}]({question.name}/README.md)"
        rows.append(f"| {link} | {len(records)} | up to {seeds} | {minutes:.1f} |")
    versions = versions_of(
        record for question in kept_questions(folder) for record in kept_records(question, folder)
    )
    stale = {str(r.cell.config.get("mechanism") or r.cell.kind) for r in all_kept(folder).outdated}
    old = ", ".join(f"`{name}`" for name in sorted(stale))
    return prose("index", rows="\n".join(rows), versions=versions, old=old).markdown + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="docs/results")
    parser.add_argument("--fewer", default="", metavar="REASON", help="why there are fewer cells than before")
    options = parser.parse_args()
    for path in publish(options.folder.resolve(), options.fewer):
        print(path)
