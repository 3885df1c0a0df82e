"""Results that are kept in the repository: a file of cells per question, and the pages rendered from them.

`python -m privmarket.experiments.reproduce.publish docs/results` renders every page again from the kept cells.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from privmarket.experiments.reproduce.cache import Record, read_bundle, write_bundle
from privmarket.experiments.reproduce.document import Page, Results
from privmarket.experiments.reproduce.questions import QUESTIONS, Question
from privmarket.experiments.reproduce.report import write_page

CELLS = "cells.jsonl"


def keep(question: Question, records: Iterable[Record], folder: Path) -> None:
    """Adds finished cells to what is kept of a question; a cell replaces an earlier one in its place."""
    place = folder / question.name / CELLS
    kept = {record.cell.slot: record for record in (read_bundle(place) if place.exists() else [])}
    kept |= {record.cell.slot: record for record in records if record.failure is None}
    write_bundle(place, kept.values())


def kept_records(question: Question, folder: Path) -> list[Record]:
    """What is kept of a question."""
    return read_bundle(folder / question.name / CELLS)


def render_kept(question: Question, folder: Path) -> Page:
    """The page of the kept cells."""
    return question.render(Results(kept_records(question, folder)))


def mark_of(question: Question, folder: Path) -> str:
    """Names the kept cells: figures carry it."""
    return "cells " + hashlib.sha256((folder / question.name / CELLS).read_bytes()).hexdigest()[:16]


def publish(folder: Path) -> list[Path]:
    """Writes the pages of all questions of which cells are kept."""
    written: list[Path] = []
    for question in QUESTIONS.values():
        if (folder / question.name / CELLS).exists():
            page = render_kept(question, folder)
            written += write_page(page, folder / question.name, mark_of(question, folder))
    return written


if __name__ == "__main__":
    for path in publish(Path(sys.argv[1])):
        print(path)
