"""Commands of other distributions: found, missing, broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from privmarket.cli._extensions import GROUP, STUDIES, add_commands
from privmarket.errors import MissingPartError

HERE = "tests.unit.cli.test_extensions"
group = typer.Typer()


@group.command("twice")
def twice(number: int) -> None:
    """Doubles a number."""
    print(2 * number)


@group.command("thrice")
def thrice(number: int) -> None:
    """Triples a number."""
    print(3 * number)


def _app(**offered: str) -> typer.Typer:
    app = typer.Typer()
    app.command("auction")(lambda: print("sold"))
    add_commands(app, [EntryPoint(name, value, GROUP) for name, value in offered.items()])
    return app


def test_an_offered_function_becomes_a_command_and_an_offered_group_a_group() -> None:
    app = _app(double=f"{HERE}:twice", many=f"{HERE}:group")
    assert CliRunner().invoke(app, ["double", "4"]).output == "8\n"
    assert CliRunner().invoke(app, ["many", "thrice", "4"]).output == "12\n"


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_not_installed_says_how_to_get_it_whatever_its_options(name: str) -> None:
    result = CliRunner().invoke(_app(), [name, "rq1", "--quick", "--seeds", "3"])
    assert isinstance(result.exception, MissingPartError)
    assert "privmarket-studies" in str(result.exception)
    assert "pip install ./studies" in str(result.exception)


def test_an_offered_study_replaces_its_placeholder() -> None:
    assert CliRunner().invoke(_app(bench=f"{HERE}:group"), ["bench", "twice", "2"]).output == "4\n"


def test_a_command_that_cannot_be_loaded_says_so_and_leaves_the_others_alone() -> None:
    app = _app(broken="no.such.module:command")
    assert CliRunner().invoke(app, ["auction"]).output == "sold\n"
    assert "not available" in CliRunner().invoke(app, ["--help"]).output
    result = CliRunner().invoke(app, ["broken"])
    assert isinstance(result.exception, MissingPartError)
    assert "no.such.module" in str(result.exception)
