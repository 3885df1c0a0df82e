"""`privmarket reproduce`: the paper's evaluation on our code, cell by cell, and one report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._lazy import late
from privmarket.cli._options import Json, note, print_json

if TYPE_CHECKING:
    from rich import console, progress

    from privmarket_studies.reproduce import cache, cells, document, publish, questions, report, runner
else:
    console, progress = late("rich.console"), late("rich.progress")
    cache = late("privmarket_studies.reproduce.cache")
    cells = late("privmarket_studies.reproduce.cells")
    document = late("privmarket_studies.reproduce.document")
    publish = late("privmarket_studies.reproduce.publish")
    questions = late("privmarket_studies.reproduce.questions")
    report = late("privmarket_studies.reproduce.report")
    runner = late("privmarket_studies.reproduce.runner")


def reproduce(
    question: Annotated[
        str,
        typer.Argument(
            help="rq1 … rq4, ablations, fairness, collusion, beliefs, variations, what-money-buys or all."
        ),
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
    chosen = questions.questions(question)
    scale = cells.Scale(quick, seeds)
    listed = {asked.name: asked.cells(scale) for asked in chosen}
    results = cache.Cache(out)
    if keep is not None:
        results.adopt(publish.all_kept(keep).records)
    with _Live() as live:
        records = runner.run_cells(
            [cell for mine in listed.values() for cell in mine],
            results,
            jobs=jobs,
            minutes=minutes,
            on_status=live.show,
        )
    by_key = {record.cell.key: record for record in records}
    pages = []
    for asked in chosen:
        mine = [by_key[cell.key] for cell in listed[asked.name] if cell.key in by_key]
        pages.append(document.with_command(asked.render(document.Results(mine)), _options(quick, seeds)))
        report.write_page(pages[-1], out / asked.name)
        report.write_cells_csv(mine, out / asked.name / "cells.csv")
        if keep is not None:
            publish.keep(asked, listed[asked.name], mine, keep, fewer)
    if keep is not None:
        publish.publish(keep.resolve(), fewer)
    missing = len({cell.key for mine in listed.values() for cell in mine}) - len(records)
    written = report.write_html(pages, out / "report.html", _facts(records, missing), _command())
    _say(records, missing, written)
    if json:
        print_json({"pages": [page.name for page in pages], **_counts(records, missing), "report": str(written)})


def _counts(records: list[cache.Record], missing: int) -> dict[str, float]:
    failed = sum(record.failure is not None for record in records)
    return {
        "finished": len(records) - failed,
        "failed": failed,
        "not_started": missing,
        "seconds": round(sum(record.seconds for record in records), 1),
    }


def _facts(records: list[cache.Record], missing: int) -> dict[str, str]:
    counts = _counts(records, missing)
    facts = {"cells": f"{counts['finished']:,}", "computing time": f"{counts['seconds'] / 60:,.1f} min"}
    facts |= {key.replace("_", " "): f"{counts[key]:,}" for key in ("failed", "not_started") if counts[key]}
    return facts | {f"version of {name}": text for name, text in (records[0].versions if records else {}).items()}


def _say(records: list[cache.Record], missing: int, written: Path) -> None:
    for record in records:
        if record.failure is not None:
            note(f"failed: {document.name_of(record.cell)}: {record.failure}")
    if missing:
        note(f"{missing} cells were not started; run the same command again to go on")
    note(f"report: {written}")


def _options(quick: bool, seeds: int | None) -> str:
    """The options of this run that change what is computed, as they are typed."""
    return " ".join((*(["--quick"] if quick else []), *([] if seeds is None else [f"--seeds {seeds}"])))


def _command() -> str:
    return " ".join(["privmarket", *sys.argv[1:]])


class _Live:
    """Shows how far a reproduction is, in one line on stderr."""

    def __init__(self) -> None:
        self._bar = progress.Progress(
            progress.TextColumn("cells"),
            progress.MofNCompleteColumn(),
            progress.BarColumn(bar_width=24),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}"),
            console=console.Console(stderr=True),
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> _Live:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, status: runner.RunStatus) -> None:
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
