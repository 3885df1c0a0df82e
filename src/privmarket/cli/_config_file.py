"""Options of long commands from a TOML file: `privmarket --config run.toml federate`.

A table per command holds its options without dashes: `[federate]`, `[flower.run]`. What is typed on the command
line wins over the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import click

from privmarket.errors import ConfigurationError, UnknownNameError


def defaults_from(path: Path, group: click.Group, context: click.Context) -> dict[str, object]:
    """The file's values as Click's `default_map`; a table or key that no command knows is refused."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror or error}", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {path}: not TOML: {error}", "write NAME = VALUE lines") from error
    return _of_group(given, group, context, str(path))


def _of_group(
    given: Mapping[str, object], group: click.Group, context: click.Context, where: str
) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, table in given.items():
        command = group.get_command(context, name)
        if command is None:
            unknown = UnknownNameError.among("command", name, group.list_commands(context))
            raise UnknownNameError(f"--config {where}: {unknown.message}", unknown.hint)
        if not isinstance(table, dict):
            raise ConfigurationError(f"--config {where}: {name} is {table!r}", f"write a table [{name}]")
        below = f"{where} [{name}]"
        if isinstance(command, click.Group):
            found[name] = _of_group(table, command, context, below)
        else:
            found[name] = _of_command(table, command, below)
    return found


def _of_command(given: Mapping[str, object], command: click.Command, where: str) -> dict[str, object]:
    numbers = {
        p.name for p in command.params if p.type.name in ("integer", "float", "integer range", "float range")
    }
    several = {parameter.name for parameter in command.params if parameter.multiple or parameter.nargs != 1}
    names = {
        name.lstrip("-").replace("-", "_"): parameter.name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts, parameter.name or "")
    }
    found: dict[str, object] = {}
    for key, value in given.items():
        if key.replace("-", "_") not in names:
            unknown = UnknownNameError.among("option", key, sorted(name for name in names if name != "help"))
            raise UnknownNameError(f"--config {where}: {unknown.message}", unknown.hint)
        name = str(names[key.replace("-", "_")])
        if isinstance(value, dict) or (isinstance(value, list) and name not in several):
            raise ConfigurationError(f"--config {where}: {key} is {value!r}", "give one value")
        if isinstance(value, bool) and name in numbers:
            raise ConfigurationError(f"--config {where}: {key} is {str(value).lower()}", "give a number")
        found[name] = value
    return found
