"""`privmarket bench flower`: what the in-process grid costs over the plain simulation."""

from __future__ import annotations

from typing import Annotated

import typer

from privmarket.cli.options import Json, note, print_json, print_table


def bench_flower(
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")] = "mnist",
    turns: Annotated[int, typer.Option(help="Each task is timed this often; the best counts.")] = 3,
    json: Json = False,
) -> None:
    """A round on Flower's in-process grid beside the same round of the plain simulation, and calls for bids.

    [bold]Example[/bold]

      privmarket bench flower --dataset mnist --json
    """
    from rich.table import Table

    from privmarket_studies.flower_speed import measure

    report = measure(dataset, turns=turns, progress=note)
    if json:
        print_json(report)
        return
    table = Table(title=f"seconds per round on {dataset}, one thread")
    for column in ("local training", "clients", "sellers", "plain simulation", "in-process grid", "ratio"):
        table.add_column(column, justify="left" if column == "local training" else "right")
    for row in report["overhead"]:
        figures = (f"{row['plain_seconds']:.3f}", f"{row['grid_seconds']:.3f}", f"{row['ratio']:.2f}")
        table.add_row(row["work"], str(row["clients"]), f"{row['sellers']:.0f}", *figures)
    print_table(table)
    print(f"bids of {report['bids']['clients']} clients: {report['bids']['seconds']:.3f} s")
