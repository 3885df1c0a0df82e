"""Options and output shared by several commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from privmarket.market.scenarios import Law

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn by chance.")]
Budget = Annotated[float, typer.Option(help="Money that may be spent in one round.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the mechanism, e.g. --set epsilon_max=10."),
]


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """`--set` pairs as a dictionary; values are read as JSON, or as text where they are not JSON."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, separator, text = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {pair!r}", "write NAME=VALUE, e.g. epsilon_max=10")
        try:
            settings[name.strip().replace("-", "_")] = json.loads(text)
        except json.JSONDecodeError:
            settings[name.strip().replace("-", "_")] = text
    return settings


def law_of(text: str) -> Law:
    """A scenario by name, or past bids from a CSV file."""
    from privmarket.market.bid_file import read_bids
    from privmarket.market.scenarios import EmpiricalLaw, scenario

    if text.endswith(".csv"):
        return EmpiricalLaw(Path(text).stem, read_bids(text).bids)
    return scenario(text)


def print_json(data: Any) -> None:
    """One JSON document on stdout. Infinities, which JSON does not have, become null."""
    json.dump(_plain(data), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and data - data != 0:
        return None
    return data


def print_table(table: Table) -> None:
    """A table on stdout, wide enough for its columns where stdout is not a terminal."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)


def note(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr)
