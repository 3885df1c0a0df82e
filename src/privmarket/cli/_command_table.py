"""The commands: where each is defined, and the line about it in `privmarket --help`.

Listing them loads none. A command's module is imported when the command is typed, so it may import at its top what
it needs; what comes with an extra is imported later still (`privmarket._lazy`), so that help works without it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo
from typer.utils import get_params_from_function

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
