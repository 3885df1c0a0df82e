"""`privmarket account`: what a list of sales costs in (ε, δ)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from privmarket._counted import counted
from privmarket._figures import new_figure, write
from privmarket._files import check_writable, in_words
from privmarket._lazy import require
from privmarket._settings import DELTA
from privmarket.cli._options import Json, note, print_json, print_table
from privmarket.errors import ConfigurationError
from privmarket.privacy._statement import (
    ODOMETER_NOTE,
    Statement,
    parse_sale,
    read_sales,
    rounded_up_percent,
    running_epsilon,
    statement,
)


def account(
    sale: Annotated[
        list[str] | None,
        typer.Option(metavar="EPS[,RATE,STEPS][xCOUNT]", help="Sales of one kind; may be given several times."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="CSV of sales: epsilon[,sampling_rate][,steps][,count].")
    ] = None,
    delta: Annotated[float, typer.Option(help="Keep it below 1 / number of records.")] = DELTA,
    cap: Annotated[float | None, typer.Option(help="Lifetime ε of a wallet; says how many sales fit.")] = None,
    unit: Annotated[str, typer.Option(help="What is protected: a record, or all records of a person.")] = "record",
    trust: Annotated[str, typer.Option(help="local, or aggregate: only a secure sum is seen.")] = "local",
    plot: Annotated[Path | None, typer.Option(help="Draw cumulative ε to this file (.png, .svg, .pdf).")] = None,
    json: Json = False,
) -> None:
    """What a list of sales costs: ε at δ, and the noise that each sale needs.

    A sale of ε is a release that is (ε, δ)-DP for one record zeroed out, the number of records being public: STEPS
    noisy sums, each over a Poisson sample of the records at RATE (default: one sum over all of them). ε does not
    add up like money; the total is given by Rényi accounting (RDP) and, tighter, by privacy loss distributions
    (PLD). Below the table: what it means for one person.

    [bold]Examples[/bold]

      privmarket account --sale 1.0x200

      privmarket account --sale 0.5,0.05,20x100 --sale 2x3 --cap 8 --plot epsilon.png

      privmarket sample sales.csv

      privmarket account --file sales.csv --delta 1e-6 --json
    """
    if plot is not None:
        require("matplotlib")
    check_writable(plot, "--plot")
    sales = [parse_sale(text) for text in sale or []] + (read_sales(file) if file is not None else [])
    result = statement(sales, delta, cap_epsilon=cap, unit=unit, trust=trust)  # type: ignore[arg-type]
    if plot is not None:
        _draw(result, plot)
        note(f"written: {plot}")
    if json:
        print_json(_as_json(result))
    else:
        _print(result)


def _as_json(result: Statement) -> dict[str, object]:
    lines = [
        {**asdict(line.sale), **{k: v for k, v in asdict(line).items() if k not in ("sale", "promise")}}
        | {"promise": line.promise.to_json()}
        for line in result.lines
    ]
    return {
        "delta": result.certificate.delta,
        "epsilon": result.certificate.epsilon,
        "epsilon_rdp": result.certificate.epsilon_rdp,
        "epsilon_pld": result.certificate.epsilon_pld,
        "basic_composition": {"epsilon": result.basic[0], "delta": result.basic[1]},
        "guess_accuracy": result.certificate.guess_accuracy,
        "promise": result.promise.to_json(),
        "cap_epsilon": result.cap_epsilon,
        "lifetime": None if result.lifetime is None else result.lifetime.to_json(),
        "sales": lines,
    }


def _print(result: Statement) -> None:
    total = result.certificate
    columns = ["sale ε", "rate", "steps", "count", "noise multiplier", "the paper's", "ε so far (RDP)"]
    columns.append("right guesses")
    table = Table(title=f"at δ = {total.delta:g}, one {result.promise.unit} zeroed out")
    for column in columns + (["fit the cap"] if result.cap_epsilon is not None else []):
        table.add_column(column, justify="right")
    for line in result.lines:
        sale = line.sale
        cells = [f"{sale.epsilon:g}", f"{sale.sampling_rate:g}", str(sale.steps), str(sale.count)]
        cells += [f"{line.noise_multiplier:.4f}", f"{line.literal_noise_multiplier:.4f}"]
        cells += [f"{line.epsilon_so_far:.4f}", f"≤ {rounded_up_percent(line.promise.guess)}"]
        table.add_row(*cells, *([] if line.fits is None else [str(line.fits)]))
    print_table(table)
    print(f"in all: ε = {total.epsilon_pld:.4f} by PLD, {total.epsilon_rdp:.4f} by RDP")
    print(f"added up like money it would be ε = {result.basic[0]:g} at δ = {result.basic[1]:g}")
    if result.cap_epsilon is not None:
        fits = sum(line.fits or 0 for line in result.lines)
        sold = sum(line.sale.count for line in result.lines)
        print(f"a wallet with cap ε = {result.cap_epsilon:g} lets {fits} of {counted(sold, 'sale')} through")
    print("\nif all of this is sold as planned:")
    for text in result.promise.lines():
        print(f"  {text}")
    if result.lifetime is not None:
        print("\nthe wallet's cap, whatever is sold and however it is chosen:")
        for text in (result.lifetime.sentence, result.lifetime.group_line):
            print(f"  {text}")
    else:
        print(f"\n{ODOMETER_NOTE}; --cap E shows one")


def _draw(result: Statement, path: Path) -> None:
    """Cumulative ε over the sales, one curve per way of adding up."""
    sales, renyi, added = running_epsilon(result)
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.plot(sales, added, color="0.6", linestyle="--", label="added up like money")
    axes.plot(sales, renyi, color="C0", label="Rényi accounting (RDP)")
    axes.plot(sales[-1], result.certificate.epsilon_pld, "o", color="C1", label="certificate (PLD)")
    if result.cap_epsilon is not None:
        axes.axhline(result.cap_epsilon, color="C3", linewidth=1, label="wallet's cap")
    axes.set(xlabel="sales", ylabel=f"ε at δ = {result.certificate.delta:g}", xlim=(0, None))
    axes.set_ylim(0, 1.6 * max(renyi[-1], result.cap_epsilon or 0.0))
    axes.legend(frameon=False)
    try:
        write(figure, path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--plot {path}: {in_words(error)}", "name a writable .png, .svg or .pdf"
        ) from error
