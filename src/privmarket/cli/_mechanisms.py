"""`privmarket mechanisms`: the rules, what each promises and its settings."""

from __future__ import annotations

from inspect import getdoc, signature
from typing import TypedDict

from rich.table import Table

from privmarket.cli._options import Json, print_json, print_table
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism, mechanism_names


class _Row(TypedDict):
    """One rule; `error` says why it cannot be used here."""

    name: str
    summary: str
    promises: list[str]
    settings: list[str]
    error: str


def mechanisms(json: Json = False) -> None:
    """List the auction rules with what they promise and the settings that `--set` takes.

    Rules of other installed distributions (entry-point group `privmarket.mechanisms`) are listed too. A name that
    ends in `:literal` does what the paper prints, also where that is wrong.

    [bold]Examples[/bold]

      privmarket mechanisms

      privmarket mechanisms --json
    """
    rows = _rows()
    if json:
        print_json({"mechanisms": rows})
        return

    table = Table(title="Auction rules (promises are attacked by `privmarket audit`)")
    for column in ("rule", "what it does", "promises", "settings"):
        table.add_column(column)
    for row in rows:
        promises = row["error"] or ", ".join(row["promises"]) or "none"
        table.add_row(row["name"], row["summary"], promises, ", ".join(row["settings"]) or "–")
    print_table(table)


def _rows() -> list[_Row]:
    rows = []
    for name in mechanism_names():
        row: _Row = {"name": name, "summary": "", "promises": [], "settings": [], "error": ""}
        try:
            rule = mechanism(name)
        except (PrivmarketError, ImportError) as error:
            row["error"] = f"not available here: {error}"
            rows.append(row)
            continue
        row["summary"] = (getdoc(type(rule)) or "").partition("\n")[0]
        row["promises"] = [promise.label for promise in rule.guarantees]
        row["settings"] = list(signature(type(rule)).parameters)
        rows.append(row)
    return rows
