"""`privmarket reproduce`: the paper's evaluation on our code, cell by cell, and one report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privmarket.cli.options import Json, note, print_json

if TYPE_CHECKING:
    from privmarket_studies.reproduce.cache import Record
    from privmarket_studies.reproduce.runner import RunStatus


def reproduce(
    question: Annotated[
        str, typer.Argument(help="rq1 … rq4, ablations, fairness, collusion, beliefs, variations or all.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Every table and figure in small.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per setting.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that compute cells.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="Start no further cell after so many minutes; the next run goes on.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for cells, tables, figures and the report.")] = Path(
        "out/reproduce"
    ),
    keep: Annotated[
        Path | None, typer.Option(help="Go on from the results kept in this folder; add new cells and pages to it.")
    ] = None,
    fewer: Annotated[
        str, typer.Option(metavar="REASON", help="Why kept cells may go; without it none is dropped.")
    ] = "",
    json: Json = False,
) -> None:
    """Compute the tables and figures of the paper's RQ1–RQ4 and of the studies beyond it, and write one report.

    Each cell (mechanism × setting × seed) is kept on disk with its configuration: a run can be stopped at any
    moment and continued on any day, and two runs can share a folder. A cell that fails is shown as failed with
    its reason, and tried again by the next run. Cells of a learned mechanism are computed anew when its weights
    have changed.

    [bold]Examples[/bold]

      privmarket reproduce all --quick

      privmarket reproduce rq3 --jobs 2

      privmarket reproduce rq1 --minutes 10          # and again, until nothing is left
    """
    from privmarket_studies.reproduce.cache import Cache
    from privmarket_studies.reproduce.document import Results
    from privmarket_studies.reproduce.publish import all_kept, publish
    from privmarket_studies.reproduce.publish import keep as keep_cells
    from privmarket_studies.reproduce.questions import questions
    from privmarket_studies.reproduce.report import write_cells_csv, write_html, write_page
    from privmarket_studies.reproduce.runner import run_cells
    from privmarket_studies.reproduce.scale import Scale

    chosen = questions(question)
    scale = Scale(quick, seeds)
    listed = {asked.name: asked.cells(scale) for asked in chosen}
    cache = Cache(out)
    if keep is not None:
        cache.adopt(all_kept(keep).records)
    with _Live() as live:
        records = run_cells(
            [cell for cells in listed.values() for cell in cells],
            cache,
            jobs=jobs,
            minutes=minutes,
            on_status=live.show,
        )
    by_key = {record.cell.key: record for record in records}
    pages = []
    for asked in chosen:
        mine = [by_key[cell.key] for cell in listed[asked.name] if cell.key in by_key]
        pages.append(asked.render(Results(mine)))
        write_page(pages[-1], out / asked.name)
        write_cells_csv(mine, out / asked.name / "cells.csv")
        if keep is not None:
            keep_cells(asked, listed[asked.name], mine, keep, fewer)
    if keep is not None:
        publish(keep.resolve(), fewer)
    missing = len({cell.key for cells in listed.values() for cell in cells}) - len(records)
    report = write_html(pages, out / "report.html", _facts(records, missing), _command())
    _say(records, missing, report)
    if json:
        print_json({"pages": [page.name for page in pages], **_counts(records, missing), "report": str(report)})


def _counts(records: list[Record], missing: int) -> dict[str, Any]:
    failed = sum(record.failure is not None for record in records)
    return {
        "finished": len(records) - failed,
        "failed": failed,
        "not_started": missing,
        "seconds": round(sum(record.seconds for record in records), 1),
    }


def _facts(records: list[Record], missing: int) -> dict[str, str]:
    counts = _counts(records, missing)
    facts = {"cells": f"{counts['finished']:,}", "computing time": f"{counts['seconds'] / 60:,.1f} min"}
    facts |= {key.replace("_", " "): f"{counts[key]:,}" for key in ("failed", "not_started") if counts[key]}
    return facts | {f"version of {name}": text for name, text in (records[0].versions if records else {}).items()}


def _say(records: list[Record], missing: int, report: Path) -> None:
    from privmarket_studies.reproduce.document import name_of

    for record in records:
        if record.failure is not None:
            note(f"failed: {name_of(record.cell)}: {record.failure}")
    if missing:
        note(f"{missing} cells were not started; run the same command again to go on")
    note(f"report: {report}")


def _command() -> str:
    return " ".join(["privmarket", *sys.argv[1:]])


class _Live:
    """Shows how far a reproduction is, in one line on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("cells"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> _Live:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, status: RunStatus) -> None:
        """Replaces the line by where the run stands now."""
        running = ", ".join(f"{cell.kind} {cell.config.get('mechanism', '')}" for cell in status.running[:2])
        failed = f"{status.failed} failed · " if status.failed else ""
        left = "" if status.done + status.failed == status.total else f"{status.remaining} · "
        self._bar.update(
            self._task,
            total=status.total,
            completed=status.done + status.failed,
            description=f"{failed}{left}{running}",
        )
