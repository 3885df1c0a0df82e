"""`privmarket auction`: clear one auction from a file of bids."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, TypedDict

import typer
from rich.table import Table

from privmarket._counted import counted
from privmarket._files import check_writable, write_atomically
from privmarket.cli._options import (
    Budget,
    Json,
    MechanismName,
    Settings,
    note,
    parse_settings,
    print_json,
    print_table,
)
from privmarket.market._bids import BidFile, read_bids
from privmarket.market._outcome import Outcome
from privmarket.mechanisms import resolve, why_nothing_sold

_SHOWN = 40


class _Row(TypedDict):
    """One client in the JSON of an auction: what it offered, sold and was paid."""

    client: str
    valuation: float
    offered: float
    epsilon: float
    payment: float


class _Totals(TypedDict):
    """The totals in the JSON of an auction."""

    clients: int
    sellers: int
    epsilon: float
    spend: float
    welfare: float


def auction(
    bids: Annotated[Path, typer.Argument(metavar="BIDS.csv", help="client,valuation,epsilon[,data_size,accuracy]")],
    budget: Budget,
    mechanism: MechanismName = "mean-field-menu",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Also write the result as CSV to this file.")] = None,
    json: Json = False,
) -> None:
    """Clear one auction: who sells how much ε, for what.

    `privmarket mechanisms` lists the rules, what each promises and its settings. Columns of BIDS.csv may be
    separated by commas, semicolons or tabs; other columns are ignored.

    [bold]Examples[/bold]

      privmarket sample bids.csv

      privmarket auction bids.csv --budget 10

      privmarket auction bids.csv --mechanism proportional-share --budget 10 --json

      privmarket sample my_rules.py

      privmarket auction bids.csv --mechanism my_rules.py:posted_price --set price=0.3 --budget 10
    """
    check_writable(out)
    rule = resolve(mechanism, **parse_settings(settings))
    offers = read_bids(bids)
    outcome = rule.run(offers.bids, budget)
    totals: _Totals = {
        "clients": offers.bids.clients,
        "sellers": int((outcome.epsilon > 0).sum()),
        "epsilon": float(outcome.total_epsilon),
        "spend": float(outcome.spend),
        "welfare": float(outcome.welfare(offers.bids)),
    }
    if out is not None:
        _write(out, offers, outcome)
        note(f"written: {out}")
    if json:
        print_json({"mechanism": rule.name, "budget": budget, "totals": totals, "clients": _rows(offers, outcome)})
    else:
        _print(offers, outcome, rule.name, budget, totals)
    if totals["sellers"] == 0:
        note(f"note: {why_nothing_sold(rule, offers.bids, budget)}")


def _rows(offers: BidFile, outcome: Outcome) -> list[_Row]:
    bids = offers.bids
    return [
        {
            "client": client,
            "valuation": float(bids.valuation[i]),
            "offered": float(bids.epsilon[i]),
            "epsilon": float(outcome.epsilon[i]),
            "payment": float(outcome.payment[i]),
        }
        for i, client in enumerate(offers.clients)
    ]


def _write(path: Path, offers: BidFile, outcome: Outcome) -> None:
    rows = _rows(offers, outcome)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def _print(offers: BidFile, outcome: Outcome, name: str, budget: float, totals: _Totals) -> None:
    table = Table(title=f"{name}, budget {budget:g}")
    for column in ("client", "valuation", "offered ε", "sold ε", "paid", "per unit"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for row in _rows(offers, outcome)[:_SHOWN]:
        sold = row["epsilon"]
        unit = f"{row['payment'] / sold:.4f}" if sold > 0 else "–"
        table.add_row(
            row["client"],
            f"{row['valuation']:.4f}",
            f"{row['offered']:.4f}",
            f"{sold:.4f}" if sold > 0 else "–",
            f"{row['payment']:.4f}" if sold > 0 else "–",
            unit,
        )
    print_table(table)
    if offers.bids.clients > _SHOWN:
        note(f"{counted(offers.bids.clients - _SHOWN, 'more client')}: use --out FILE.csv or --json to see all")
    sell = "sells" if totals["sellers"] == 1 else "sell"
    print(
        f"{totals['sellers']} of {counted(totals['clients'], 'client')} {sell} {totals['epsilon']:.4f} ε for "
        f"{totals['spend']:.4f} of {budget:g}; their surplus is {totals['welfare']:.4f}"
    )
