"""The table of commands, and options of commands from a file.

- `COMMANDS` says where each command is defined, with the line about it in `privmarket --help`. Listing them loads
  none. A command's module is imported when the command is typed, so it may import at its top what it needs; what
  comes with an extra is imported later still (`privmarket._lazy`), so that help works without it.
- Other distributions add commands through the entry-point group `privmarket.commands`. An entry point names a
  function (one command) or a `typer.Typer` (a group of commands). The studies of this repository
  are added in this way.
- `privmarket --config run.toml federate` takes options from a TOML file with a table per command: `[federate]`,
  `[flower.run]`. What is typed on the command line wins over the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo
from typer.utils import get_params_from_function

from privmarket._files import in_words
from privmarket.errors import ConfigurationError, MissingPartError, UnknownNameError

# command → module:attribute, a function or a `typer.Typer`, and its first line of help
COMMANDS = {
    "demo": (
        "_demo:demo",
        "Run the whole market on handwritten digits: auction, private training, wallets, settlement, report.",
    ),
    "auction": ("_auction:auction", "Clear one auction: who sells how much ε, for what."),
    "audit": (
        "_audit:audit",
        "Attack a mechanism on sampled markets: regret, IR, budget, truthfulness in ε, distance to the bounds.",
    ),
    "compare": (
        "_compare:compare",
        "Compare rules, your own among them, on several distributions and sizes: table, LaTeX, CSV, figure.",
    ),
    "mechanisms": (
        "_mechanisms:mechanisms",
        "List the auction rules with what they promise and the settings that `--set` takes.",
    ),
    "federate": (
        "_federate:federate",
        "Run a federated training in which clients sell ε: auction, private training, aggregation, settlement.",
    ),
    "plan": (
        "_plan:plan",
        "Say what a model will cost, and what it adds to your own records: money → score, lifetime ε, pay.",
    ),
    "predict": (
        "_predict:predict",
        "Apply a model that `privmarket federate --model-out` wrote to new rows of a table.",
    ),
    "equilibrium": (
        "_equilibrium:equilibrium",
        "Solve the game in which clients sell a limited budget over many rounds and look ahead.",
    ),
    "account": ("_account:account", "What a list of sales costs: ε at δ, and the noise that each sale needs."),
    "attack": ("_attack:attack", "Attack real releases and compare what shows with what was claimed."),
    "train": (
        "_train:train",
        "Learn a mechanism. Shows objective, regret, IR and multipliers as it goes, saves checkpoints and a curve.",
    ),
    "sample": (
        "_examples:sample",
        "Copy a sample file: bids to auction, sales to account for, a rule of your own.",
    ),
    "example": ("_examples:example", "Copy an example project to start from: a Flower app, a rule of your own."),
    "serve": ("_serve:serve", "Run the market as a service: API, dashboard, ledger and wallets in one process."),
    "witness": ("_witness:witness", "Keep the heads of a broker's log and check that each continues the last."),
    "replay": (
        "_replay:replay",
        "Run the auction of a round again, from the entries that its broker shows once the round has ended.",
    ),
    "data": ("_data:app", "Fetch data sets and verify them; draft the schema of your own table."),
    "seller": ("_seller:app", "For sellers: write a policy, check it, and read what was sold."),
    "register": ("_register:app", "Keep a register of sellers: it signs who is in a round's secure sum."),
    "broker": ("_broker_admin:app", "Look after a broker: verify, back up, restore, erase names, new token."),
    "flower": ("_flower:app", "The market on Flower: run an app, rehearse a deployment."),
}


class CommandTable(TyperGroup):
    """The group of all commands: those of the table, and those that other distributions add to the Typer app."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        added = self.commands
        self._summaries = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        self.commands = {**self._summaries, **added}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, loaded when it is asked for the first time."""
        command = self.commands.get(cmd_name)
        if command is not None and command is self._summaries.get(cmd_name):
            command = self.commands[cmd_name] = load(cmd_name)
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help from the table's own lines, without loading the commands."""
        self._listing().format_help(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Names of commands, without loading them."""
        return self._listing().shell_complete(ctx, incomplete)

    def _listing(self) -> TyperGroup:
        """This group with a line per command in place of the commands that the table would load."""
        commands = {**self.commands, **self._summaries}
        return TyperGroup(name=self.name, commands=commands, params=self.params, help=self.help)


@cache
def load(name: str) -> click.Command:
    """Imports the module of the command called `name` and returns the command; built once per process."""
    place, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"privmarket.cli.{place}"), attribute)
    if isinstance(found, typer.Typer):
        command: click.Command = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.name = name
    _restore_argument_help(command)
    return command


def _restore_argument_help(command: click.Command) -> None:
    """Gives arguments their help back, which Click 8.5 overwrites after Typer has set it."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _restore_argument_help(inner)
    if isinstance(command, click.Group) or command.callback is None:
        return
    declared = get_params_from_function(command.callback)
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.name in declared:
            info = declared[parameter.name].default
            parameter.help = info.help if isinstance(info, ArgumentInfo) else None


GROUP = "privmarket.commands"
STUDIES = {
    "reproduce": "Compute the tables and figures of the paper's evaluation.",
    "bench": "Speed, as ratios against stated references in the same run.",
    "nash-gap": "Measure the Nash gap of the solved mean-field game.",
}
_HOW_TO_GET = "in a checkout of privmarket: pip install ./studies"


def add_commands(app: typer.Typer, found: list[EntryPoint] | None = None) -> None:
    """Adds every command that an installed distribution offers, and a placeholder for each study that is missing.

    Args:
        found: the entry points; those that are installed if left out.
    """
    offered = {point.name: point for point in (entry_points(group=GROUP) if found is None else found)}
    for name, point in sorted(offered.items()):
        try:
            command = point.load()
        except Exception as error:  # another distribution's fault must not take this command line down
            _add_placeholder(app, name, f"{point.value} cannot be loaded: {error}", "install it again")
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    for name in [name for name in STUDIES if name not in offered]:
        _add_placeholder(app, name, "it is part of privmarket-studies, which is not installed", _HOW_TO_GET)


def _add_placeholder(app: typer.Typer, name: str, reason: str, remedy: str) -> None:
    def missing(context: typer.Context) -> None:
        raise MissingPartError(f"no command {name!r}: {reason}", remedy)

    app.command(
        name,
        help=f"{STUDIES.get(name, '')} (not available: {reason})",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(missing)


def defaults_from(path: Path, group: click.Group, context: click.Context) -> dict[str, object]:
    """The file's values as Click's `default_map`; a table or key that no command knows is refused."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {in_words(error)}", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"--config {path}: not TOML: {in_words(error)}", "write NAME = VALUE lines"
        ) from error
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
