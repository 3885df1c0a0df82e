"""`privmarket compare`: several rules side by side."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from privmarket._files import check_writable, write_atomically
from privmarket._lazy import require
from privmarket.cli._audit import (
    Again,
    Attack,
    Certify,
    Coins,
    Exact,
    Independent,
    Objective,
    about_independence,
    print_comparison,
)
from privmarket.cli._options import Json, Seed, note
from privmarket.reports._comparison import compare as run, distribution_called

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
    exact: Exact = False,
    certify: Certify = False,
    coins: Coins = 20,
    independent: Independent = False,
    figure: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Also draw it: .png, .svg or .pdf (needs matplotlib); may be repeated."),
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

    A star marks a rule that broke a promise of its own. Then the exit code is 1, and below the table stands the
    command that shows the witness.

    [bold]Examples[/bold]

      privmarket compare pac csra mean-field-menu --clients 20 --profiles 3

      privmarket compare csra mean-field-menu --scenario uniform --scenario lognormal --clients 10 --clients 20 \
--seeds 3 --profiles 2 --figure out/rules.pdf --width 3.4 --latex out/rules.tex --csv out/rules.csv
    """
    figures = figure or []
    for path, option in (*((one, "--figure") for one in figures), (latex, "--latex"), (csv, "--csv")):
        check_writable(path, option)
    if figures:
        require("matplotlib")
    named = scenario or ["uniform"]
    sizes = clients or [100]
    distributions = [distribution_called(one, independent=independent) for one in named]
    with Console(stderr=True).status("starting") as status:
        found = run(
            rules,
            scenarios=distributions if independent else named,
            clients=sizes,
            budget=budget,
            budget_per_client=budget_per_client,
            seeds=seeds,
            profiles=profiles,
            seed=seed,
            objective=objective,
            attack=attack or "quick",
            exact=exact,
            certify=certify,
            coins=coins,
            progress=lambda name: status.update(f"clearing and attacking {name}"),
        )
    for one in figures:
        found.plot(one, width=width)
        note(f"figure: {one}")
    if latex is not None:
        write_atomically(latex, found.to_latex())
        note(f"LaTeX: {latex}")
    if csv is not None:
        found.to_csv(csv)
        note(f"CSV: {csv}")
    places = [(where, rule) for where, rule, *_ in product(named, rules, sizes, range(seeds))]
    again = Again(attack or "quick", objective, independent)
    print_comparison(found, again.commands(found, places), json=json)
    for distribution in distributions:
        for line in about_independence(distribution):
            note(line)
    if found.broken:
        raise typer.Exit(1)
