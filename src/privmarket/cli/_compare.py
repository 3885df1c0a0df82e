"""`privmarket compare`: several rules side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from privmarket._files import check_writable, write_atomically
from privmarket._lazy import require
from privmarket.cli._audit import Attack, Objective, comparison_table
from privmarket.cli._options import Json, Seed, note, print_json, print_table
from privmarket.reports._comparison import compare as run

_Rules = Annotated[
    list[str],
    typer.Argument(
        metavar="RULE...",
        help="Names from `privmarket mechanisms`, package.module:Rule or file.py:Rule.",
        show_default=False,
    ),
]


def compare(
    rules: _Rules,
    scenario: Annotated[
        list[str] | None,
        typer.Option(help="A distribution, as for `privmarket audit`; may be repeated. [default: uniform]"),
    ] = None,
    clients: Annotated[
        list[int] | None, typer.Option(help="Clients in each market; may be repeated. [default: 100]")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Money per market; else --budget-per-client.")] = None,
    budget_per_client: Annotated[float, typer.Option(help="Money per client of a market.")] = 0.5,
    seeds: Annotated[int, typer.Option(min=1, help="Independent repetitions; two or more give intervals.")] = 1,
    profiles: Annotated[int, typer.Option(help="Markets to attack, with each seed.")] = 20,
    objective: Objective = "total-epsilon",
    attack: Attack = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Also compare with the best truthful rule on a grid of types (≤ 4 clients)."),
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw it: .png, .svg or .pdf (needs matplotlib).")
    ] = None,
    width: Annotated[
        float, typer.Option(min=2.0, help="Of the figure, in inches; 3.4 is a column of most conferences.")
    ] = 7.0,
    latex: Annotated[Path | None, typer.Option(metavar="FILE.tex", help="Also write the table as LaTeX.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Also write every figure as CSV.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Compare rules, your own among them, on several distributions and sizes: table, LaTeX, CSV, figure.

    A star marks a rule that broke a promise of its own. Then the exit code is 1.

    [bold]Examples[/bold]

      privmarket compare pac csra mean-field-menu --clients 20 --profiles 3

      privmarket compare csra mean-field-menu --scenario uniform --scenario lognormal --clients 10 --clients 20 \
--seeds 3 --profiles 2 --figure out/rules.pdf --width 3.4 --latex out/rules.tex --csv out/rules.csv
    """
    for path, option in ((figure, "--figure"), (latex, "--latex"), (csv, "--csv")):
        check_writable(path, option)
    if figure is not None:
        require("matplotlib")
    with Console(stderr=True).status("starting") as status:
        found = run(
            rules,
            scenarios=scenario or ["uniform"],
            clients=clients or [100],
            budget=budget,
            budget_per_client=budget_per_client,
            seeds=seeds,
            profiles=profiles,
            seed=seed,
            objective=objective,
            attack=attack or "quick",
            exact=exact,
            progress=lambda name: status.update(f"clearing and attacking {name}"),
        )
    if figure is not None:
        found.plot(figure, width=width)
        note(f"figure: {figure}")
    if latex is not None:
        write_atomically(latex, found.to_latex())
        note(f"LaTeX: {latex}")
    if csv is not None:
        found.to_csv(csv)
        note(f"CSV: {csv}")
    if json:
        print_json({"reports": [report.to_dict() for report in found]})
    else:
        print_table(comparison_table(found))
    if found.broken:
        raise typer.Exit(1)
