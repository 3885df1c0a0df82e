"""The table of commands, and commands of other distributions."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import click
import pytest
import typer
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.cli._commands import COMMANDS, GROUP, STUDIES, add_commands, load
from privmarket.errors import MissingPartError
from privmarket.market._attacks import LEVELS, GridAttack

runner = CliRunner()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_has_the_first_line_of_the_commands_own_help(name):
    command = load(name)
    assert (command.help or "").partition("\n")[0] == COMMANDS[name][1]
    assert command.name == name


def test_the_audit_says_how_strong_its_attack_is():
    said = " ".join((load("audit").help or "").split())
    assert f"the attack is {LEVELS['strong'].words[0].removeprefix('v and ε: ')}; the worst" in said
    grid = GridAttack()  # what the strong attack uses
    assert f"a grid of {grid.valuations} valuations × {grid.shares} offers" in said


def test_every_command_can_be_reached_and_shows_its_own_options():
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group)
    assert set(COMMANDS) <= set(group.list_commands(context))
    federate = group.get_command(context, "federate")
    assert federate is not None
    assert "clients" in {parameter.name for parameter in federate.params}
    assert group.get_command(context, "federate") is federate
    assert group.get_command(context, "fedrate") is None


def test_a_group_of_the_table_lists_its_own_commands():
    assert "operator-token" in runner.invoke(app, ["broker", "--help"]).output


@pytest.mark.parametrize("arguments", [["--help"], ["fedrate"]])
def test_listing_loads_no_command(arguments):
    code = (
        f"import sys; sys.argv = ['privmarket', *{arguments!r}]\n"
        "from privmarket.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('privmarket.cli._federate', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr


HELPS = """
import sys
from privmarket.cli import main
for name in ("federate", "demo", "attack", "plan", "train", "serve", "flower"):
    sys.argv = ["privmarket", name, "--help"]
    try:
        main()
    except SystemExit:
        pass
    loaded = [part for part in ("torch", "fastapi", "flwr", "matplotlib") if part in sys.modules]
    if loaded:
        sys.exit(f"the help of {name} loads {loaded}")
"""


def test_help_loads_neither_torch_nor_a_server():
    done = subprocess.run([sys.executable, "-c", HELPS], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr


def arguments(command):
    if isinstance(command, click.Group):
        return [one for inner in command.commands.values() for one in arguments(inner)]
    return [(command.name, one) for one in command.params if isinstance(one, click.Argument)]


def test_arguments_show_their_help():
    """Click 8.5 drops the help that Typer gives an argument."""
    found = [(command, one.name, one.help) for name in COMMANDS for command, one in arguments(load(name))]
    assert len(found) > 10
    assert [(command, name) for command, name, text in found if not text] == []
    assert "client,valuation,epsilon" in runner.invoke(app, ["auction", "--help"]).output


HERE = "tests.unit.cli.test_commands"
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
