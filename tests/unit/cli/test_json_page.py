"""The page about `--json`: every command has its table, and a wrong table is noticed.

The tables are compared with real documents where the commands are tested (`tests.json_fields.check_fields`).
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer.main

from privmarket.cli import app
from tests.json_fields import PAGE, differences, sections

STUDIES = {"reproduce", "bench", "nash-gap"}


def with_json(command: click.Command, path: list[str]) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from with_json(below, [*path, name])
    elif any("--json" in one.opts for one in command.params) and path[0] not in STUDIES:
        yield " ".join(path)


def test_every_command_with_json_has_its_table():
    assert set(sections(PAGE.read_text(encoding="utf-8"))) == set(with_json(typer.main.get_command(app), []))


def test_a_field_too_many_and_one_too_few_are_noticed():
    (documented,) = sections("## x\n| `a`, `b[].c` | always |\n| `d.*` | with `--d`: more |\n").values()
    assert differences(documented, {"schema_version": 1, "a": 1, "b": [{"c": 2}], "d": {"e": 3}}) == []
    assert differences(documented, {"a": 1, "b": [{"c": 2}]}) == []
    assert differences(documented, {"a": 1, "b": [{"c": 2, "f": 3}]}) == ["not documented: b[].f"]
    assert differences(documented, {"b": [{"c": 2}]}) == ["documented, but not there: a"]
