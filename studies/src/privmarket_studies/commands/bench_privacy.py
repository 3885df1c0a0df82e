"""`privmarket bench privacy`: noise, accounting and calibration against references."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from privmarket.cli.options import Json, Seed, print_json, print_table


def bench_privacy(
    normals: Annotated[int, typer.Option(help="How many normals to draw.")] = 1 << 24,
    turns: Annotated[int, typer.Option(help="Each task is timed this often; the best counts.")] = 5,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Noise, accounting and calibration: seconds, and ratios to stated references in the same run.

    [bold]Example[/bold]

      privmarket bench privacy --json
    """
    from rich.table import Table

    from privmarket_studies.privacy_speed import measure

    rows = measure(seed=seed, normals=normals, turns=turns)
    if json:
        print_json([{**asdict(row), "ratio": row.ratio} for row in rows])
        return
    table = Table(title="one thread; ratio below 1 is faster than the reference")
    for column in ("task", "seconds", "reference", "its seconds", "ratio"):
        table.add_column(column, justify="left" if column in ("task", "reference") else "right")
    for row in rows:
        figures = (f"{row.seconds:.4f}", row.reference, f"{row.reference_seconds:.3g}", f"{row.ratio:.2g}")
        table.add_row(row.task, *figures)
    print_table(table)
