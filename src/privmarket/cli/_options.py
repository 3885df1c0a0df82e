"""Options and output shared by several commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from privmarket.errors import ConfigurationError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn by chance.", min=0)]
Budget = Annotated[float, typer.Option(help="Money that may be spent in one round.")]
SCHEMA_VERSION = 1
"""Of every JSON document that a command prints; raised when a field changes its meaning or goes away."""

MechanismName = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="RULE",
        help="A name from `privmarket mechanisms`, or your own: package.module:Rule or file.py:Rule.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the mechanism, e.g. --set epsilon_max=10."),
]


def broker_address(url: str) -> str:
    """The address of a broker as it was typed; refuses anything that is not http:// or https://."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} is no address of a broker", "give it as https://HOST")
    return url


def takes_settings(
    record: type, *names: str, into: str = "settings", shown: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option per named field of a settings record, with the field's type, default and help.

    The command gets their values as one dictionary, in its argument `into`.

    Args:
        shown: option → what help says of its default, where the default is not simply a value.
    """
    said = shown or {}
    hints = get_type_hints(record)
    declared = {one.name: one for one in fields(record)}
    options = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=declared[name].default,
            annotation=Annotated[
                hints[name],
                typer.Option(help=declared[name].metadata["help"], show_default=said.get(name, True)),
            ],
        )
        for name in names
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != into]
        every = [*options, *(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own)]

        def run(**given: object) -> None:
            given[into] = {name: given.pop(name) for name in names}
            command(**given)

        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__module__ = command.__module__
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return decorate


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """`--set` pairs as a dictionary; values are read as JSON, or as text where they are not JSON."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, separator, text = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {pair!r}", "write NAME=VALUE, e.g. epsilon_max=10")
        if name.strip() == "market":  # what rules are told of the market is not a setting
            raise ConfigurationError(f"--set {pair}: nothing has a setting 'market'", "see `privmarket mechanisms`")
        try:
            settings[name.strip().replace("-", "_")] = json.loads(text)
        except json.JSONDecodeError:
            settings[name.strip().replace("-", "_")] = text
    return settings


def print_json(data: object) -> None:
    """Prints one JSON document on stdout; an object starts with its schema version.

    Infinities, which JSON does not have, become null.
    """
    if isinstance(data, dict):
        data = {"schema_version": SCHEMA_VERSION, **data}
    json.dump(_plain(data), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(data: object) -> object:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and data - data != 0:
        return None
    return data


def print_table(table: Table) -> None:
    """Prints a table on stdout, wide enough for its columns where stdout is not a terminal."""
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)


def note(text: str) -> None:
    """Prints a line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr)
