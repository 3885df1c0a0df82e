"""`privmarket nash-gap`: what leaving the solved strategy gains with finitely many clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.cli._options import Json, note, print_json, print_table
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from rich import console, table as tables

    from privmarket_studies import nash_gap_study
    from privmarket_studies.nash_gap_study import NashGapReport
else:
    console, tables = late("rich.console"), late("rich.table")
    nash_gap_study = late("privmarket_studies.nash_gap_study")


def nash_gap(
    out: Annotated[Path, typer.Option(help="Folder for nash-gap.json and the figures; resumes from it.")] = Path(
        "out/nash-gap"
    ),
    scenario: Annotated[str, typer.Option(help="The distribution of clients, a scenario of Table II.")] = "uniform",
    sizes: Annotated[str, typer.Option(help="Numbers of clients.")] = "10,30,100,300,1000,3000",
    seeds: Annotated[int, typer.Option(help="Runs per number of clients.")] = 40,
    search_seeds: Annotated[int, typer.Option(help="Runs per shading that is tried; 0: none.")] = 200,
    proxy: Annotated[
        list[str] | None, typer.Option(help="A mechanism whose one-round regret is shown beside; repeatable.")
    ] = None,
    grid: Annotated[str, typer.Option(help="Valuation cells x budget nodes x time steps.")] = "64x64x50",
    json: Json = False,
) -> None:
    """Measure the Nash gap of the solved mean-field game for growing numbers of clients.

    All clients play the solved strategy; one looks for something better. Panels (c) and (d) of the paper's RQ4,
    with the gap itself instead of a stand-in. About half an hour on one core; killed runs go on where they stopped.

    [bold]Examples[/bold]

      privmarket nash-gap --out out/nash-gap

      privmarket nash-gap --sizes 10,100 --seeds 20 --search-seeds 0 --grid 24x24x30 --json

      privmarket nash-gap --proxy mfg-regretnet --proxy mean-field-menu
    """
    try:
        numbers = tuple(int(part) for part in sizes.split(","))
    except ValueError as error:
        raise ConfigurationError(f"--sizes {sizes!r}", "write numbers with commas, e.g. 10,100,1000") from error
    if min(numbers) < 2:
        raise ConfigurationError(f"--sizes {sizes!r}", "use at least 2 clients")
    searched = tuple(n for n in (10, 100) if n in numbers)
    proxies = tuple(proxy or ())
    setting = nash_gap_study.StudySetting(scenario, numbers, seeds, search_seeds, searched, proxies, grid=grid)
    with console.Console(stderr=True).status("starting") as status:
        report = nash_gap_study.run(setting, out / "nash-gap.json", progress=status.update)
    page = out / "nash-gap.md"
    write_atomically(page, nash_gap_study.markdown(report))
    for path in [page, *nash_gap_study.figure(report, out / "nash-gap")]:
        note(f"written: {path}")
    if json:
        print_json(report)
    else:
        print_table(_table(report))


def _table(report: NashGapReport) -> tables.Table:
    table = tables.Table(title="log-log slope in N of each measure ÷ mean payment, with its 95 % interval")
    for column in ("population", "rule", "measure", "slope"):
        table.add_column(column)
    for key, fit in report["slopes"].items():
        population, rule, name, scale = key.split("/")
        if scale == "relative":
            text = "no power law: not above 0" if fit is None else f"{fit['slope']:.2f}"
            interval = "" if fit is None else f" [{fit['low']:.2f}, {fit['high']:.2f}]"
            table.add_row(population, rule, name, text + interval)
    return table
