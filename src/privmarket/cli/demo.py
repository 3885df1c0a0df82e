"""`privmarket demo`: something worth seeing, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privmarket.cli.options import Seed, note, print_table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
    seed: Seed = 0,
) -> None:
    """Clear the same markets with every mechanism: one table, one figure."""
    from rich.console import Console

    from privmarket.experiments.auction_table import compare, figure, table
    from privmarket.market.scenarios import scenario
    from privmarket.mechanisms import mechanisms

    console = Console(stderr=True)
    with console.status("starting") as status:
        reports = compare(
            mechanisms(),
            scenario("uniform"),
            clients=50,
            budget=25.0,
            profiles=3,
            seed=seed,
            progress=lambda name: status.update(f"clearing and attacking {name}"),
        )
    print_table(table(reports))
    for path in figure(reports, out / "demo-auction"):
        note(f"figure: {path}")
