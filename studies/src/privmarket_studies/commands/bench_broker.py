"""`privmarket bench broker`: bids per second against a bare insert, and a round with very many bids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._lazy import late
from privmarket.cli._options import Json, Seed, print_json, print_table

if TYPE_CHECKING:
    from rich import console, table as tables

    from privmarket_studies import broker_large_round, broker_speed
    from privmarket_studies.torture import runs
else:
    console, tables = late("rich.console"), late("rich.table")
    broker_large_round = late("privmarket_studies.broker_large_round")
    broker_speed = late("privmarket_studies.broker_speed")
    runs = late("privmarket_studies.torture.runs")


def bench_broker(
    seconds: Annotated[float, typer.Option(help="How long each turn of each server lasts.", min=0.1)] = 2.0,
    turns: Annotated[
        int, typer.Option(help="Turns per server; the fastest counts. 0 leaves the rates out.", min=0)
    ] = 3,
    callers: Annotated[list[int] | None, typer.Option(help="Callers at once; may be repeated.")] = None,
    memory: Annotated[
        Path | None, typer.Option(help="A folder in memory: also measure there, where flushing is free.")
    ] = None,
    bids: Annotated[int, typer.Option(help="Bids of the large round; 0 leaves it out.", min=0)] = 100_000,
    database: Annotated[
        str | None, typer.Option(help="An empty database for the large round; SQLite unless told.")
    ] = None,
    varied: Annotated[
        bool, typer.Option("--varied", help="Sellers of the large round each have their own cap and a past.")
    ] = False,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Server and callers go first while calls are timed; needs root.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Sealed bids per second over a bare FastAPI + SQLite insert of one row, durability on; then one large round.

    The bare server, in two forms (insert on the event loop, insert in threads), the broker and the client are
    processes on loopback in the same run. The ratio is to the faster bare form.

    [bold]Examples[/bold]

      privmarket bench broker --json

      privmarket bench broker --bids 0 --callers 16 --turns 5

      privmarket bench broker --turns 0 --bids 100000 --varied
    """
    chosen = tuple(callers or broker_speed.CALLERS)
    with console.Console(stderr=True).status("starting") as status:
        rows = [
            row
            for folder in ([None, *([memory] if memory else [])] if turns else [])
            for row in broker_speed.measure(
                folder, callers=chosen, seconds=seconds, turns=turns, progress=status.update
            )
        ]
        large = None
        if bids:
            large = broker_large_round.measure(
                bids,
                database=database,
                varied=varied,
                real_time=real_time,
                seed=seed,
                progress=status.update,
            )
    if json:
        print_json(
            {
                "code": runs.broker_code(),
                "bids": [row.to_dict() for row in rows],
                "large_round": None if large is None else large.to_dict(),
            }
        )
        return
    if rows:
        print_table(_rates_table(rows))
    if large is not None:
        print_table(_large_table(large.to_dict()))


def _rates_table(rows: list[broker_speed.BidSpeed]) -> tables.Table:
    table = tables.Table(title="sealed bids per second; bare = FastAPI + SQLite, one durable row")
    columns = ("storage", "callers", "signed", "unsigned", "bare, loop", "bare, threads", "signed / faster bare")
    for column in columns:
        table.add_column(column, justify="left" if column == "storage" else "right")
    for row in rows:
        rates = [row.signed, row.broker, row.bare["loop"], row.bare["threads"]]
        shown = [f"{rate.per_second:,.0f}" for rate in rates]
        table.add_row(row.storage, str(row.callers), *shown, f"{row.signed_ratio:.2f}")
    return table


def _large_table(large: dict[str, object]) -> tables.Table:
    table = tables.Table(title="a large round over HTTP", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in large.items():
        if isinstance(value, dict):
            for part, figure in value.items():
                shown = figure if isinstance(figure, float) else figure["largest_ms"]
                kind = "" if isinstance(figure, float) else ", largest"
                table.add_row(f"{name.replace('_', ' ')}: {part}{kind}", f"{shown:.1f} ms")
        else:
            table.add_row(name.replace("_", " "), f"{value:.2f}" if isinstance(value, float) else str(value))
    return table
