"""Results that are kept in the repository: a file of cells per question, and the pages rendered from them.

`python -m privmarket.experiments.reproduce.publish docs/results` renders every page again from the kept cells.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from privmarket.experiments.reproduce import summary
from privmarket.experiments.reproduce.cache import Record, read_bundle, write_bundle
from privmarket.experiments.reproduce.cells import Cell
from privmarket.experiments.reproduce.document import Page, Results
from privmarket.experiments.reproduce.prose import prose
from privmarket.experiments.reproduce.questions import QUESTIONS, Question
from privmarket.experiments.reproduce.report import drawn, write_page

CELLS = "cells.jsonl"


def keep(question: Question, listed: Iterable[Cell], records: Iterable[Record], folder: Path) -> None:
    """Adds finished cells to what is kept of a question.

    A cell replaces an earlier one in its place. Kept cells that are no longer listed, or that were computed with
    other weights than those that ship, are dropped, so that a table mixes neither settings nor weights.
    """
    place = folder / question.name / CELLS
    wanted = {cell.slot for cell in listed}
    kept = {r.cell.slot: r for r in (read_bundle(place) if place.exists() else []) if not r.stale}
    kept |= {r.cell.slot: r for r in records if r.failure is None}
    write_bundle(place, [record for slot, record in kept.items() if slot in wanted])


def kept_records(question: Question, folder: Path) -> list[Record]:
    """What is kept of a question."""
    return read_bundle(folder / question.name / CELLS)


def render_kept(question: Question, folder: Path) -> Page:
    """The page of the kept cells."""
    return question.render(Results(kept_records(question, folder)))


def mark_of(question: Question, folder: Path) -> str:
    """Names the kept cells: figures carry it."""
    return "cells " + hashlib.sha256((folder / question.name / CELLS).read_bytes()).hexdigest()[:16]


def kept_questions(folder: Path) -> list[Question]:
    """The questions of which cells are kept."""
    return [question for question in QUESTIONS.values() if (folder / question.name / CELLS).exists()]


def all_kept(folder: Path) -> Results:
    """The kept cells of all questions."""
    return Results([record for question in kept_questions(folder) for record in kept_records(question, folder)])


def publish(folder: Path) -> list[Path]:
    """Writes the pages of all questions of which cells are kept, their index and the summary."""
    written: list[Path] = []
    for question in kept_questions(folder):
        page = render_kept(question, folder)
        written += write_page(page, folder / question.name, mark_of(question, folder))
    results = all_kept(folder)
    drawing = summary.draw(results)
    for kind in ("png", "svg"):
        (folder / f"{summary.NAME}.{kind}").write_bytes(drawn(drawing, kind))
    for name, text in ((f"{summary.NAME}.md", summary.block(results)), ("README.md", index(folder))):
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    if summary.update_readme(folder.parents[1] / "README.md", results):
        written.append(folder.parents[1] / "README.md")
    return written


def index(folder: Path) -> str:
    """The page that leads to all others: how many cells, how long they took, with what."""
    rows = []
    for question in kept_questions(folder):
        records = kept_records(question, folder)
        minutes = sum(r.seconds for r in records) / 60
        seeds = len({r.cell.seed for r in records})
        title = render_kept(question, folder).title
        rows.append(f"| [{title}]({question.name}/README.md) | {len(records)} | up to {seeds} | {minutes:.1f} |")
    versions = kept_records(kept_questions(folder)[0], folder)[0].versions
    stale = {str(r.cell.config.get("mechanism") or r.cell.kind) for r in all_kept(folder).records if r.stale}
    old = ", ".join(f"`{name}`" for name in sorted(stale))
    return prose("index", rows="\n".join(rows), versions=versions, old=old).markdown + "\n"


if __name__ == "__main__":
    for path in publish(Path(sys.argv[1]).resolve()):
        print(path)
