"""`privmarket federate`: one federated run in which clients sell ε."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from privmarket.cli.attack import show_attacks
from privmarket.cli.live import Curve, LiveView, Watch
from privmarket.cli.options import (
    Json,
    OwnRecordsOption,
    note,
    parse_settings,
    print_json,
    print_table,
    takes_settings,
)
from privmarket.counted import counted
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.extras import require
from privmarket.federated.clients import client_place
from privmarket.federated.config import FederationConfig, Training
from privmarket.files import check_writable, write_atomically
from privmarket.lazy import late
from privmarket.market.facts import MarketFacts
from privmarket.market.scenarios import scenario
from privmarket.mechanisms import resolve, why_nothing_sold
from privmarket.privacy.words import SIMULATED_WARNING, rounded_down_percent, rounded_up_percent

if TYPE_CHECKING:
    from privmarket.federated import attack_suite, simulation
    from privmarket.federated import summary as summaries
    from privmarket.federated.privacy_attacks import AttackResult
    from privmarket.federated.state import RunResult
    from privmarket.federated.summary import ClientRow, RunSummary
    from privmarket.privacy.words import Promise
    from privmarket.reports import federated_report
    from privmarket.reports import own_records as baselines
    from privmarket.reports import verdict as verdicts
    from privmarket.reports.own_records import OwnRecords
    from privmarket.rounds import RoundRecord
else:
    attack_suite = late("privmarket.federated.attack_suite")
    simulation = late("privmarket.federated.simulation")
    summaries = late("privmarket.federated.summary")
    federated_report = late("privmarket.reports.federated_report")
    baselines = late("privmarket.reports.own_records")
    verdicts = late("privmarket.reports.verdict")

_ATTACK = 9  # keeps the attacker's random numbers apart from the run's


_MechanismSet = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A setting of the mechanism, e.g. objective=aggregation-error."),
]
_Training = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A training setting, e.g. --set clip_norm=0.5."),
]
_Attack = Annotated[
    bool,
    typer.Option("--attack", help="Attack the largest sale and the model afterwards; also in the report."),
]
_Checkpoint = Annotated[Path | None, typer.Option(help="File to save to every few rounds and to resume from.")]


@takes_settings(
    FederationConfig,
    *("dataset", "clients", "alpha", "mechanism", "budget", "total_budget", "rounds", "aggregation"),
    *("heterogeneity", "trust", "honest_share", "dropout", "scenario", "types", "delta", "wallet"),
    *("wallet_policy", "evaluate_every", "seed", "sizes", "valuations", "valuation_weights", "strategy"),
)
def federate(
    settings: dict[str, Any],
    mechanism_set: _MechanismSet = None,
    literal: Annotated[bool, typer.Option("--literal", help="Paper-literal: noise on the weights.")] = False,
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Plain FedAvg with everyone, for free.")] = False,
    no_noise: Annotated[bool, typer.Option("--no-noise", help="The same run with the noise left out.")] = False,
    training: _Training = None,
    workers: Annotated[int, typer.Option(help="Processes that train; the result does not depend on it.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Also write a short result file (JSON) here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report here.")] = None,
    attack: _Attack = False,
    own_records: OwnRecordsOption = None,
    checkpoint: _Checkpoint = None,
    watch: Watch = None,
    json: Json = False,
) -> None:
    """Run a federated training in which clients sell ε: auction, private training, aggregation, settlement.

    Every update carries the noise that makes the client's sale (ε, δ) true for each of its records. A run that
    was killed goes on from its checkpoint and gives the identical result.

    [bold]Examples[/bold]

      privmarket federate --dataset digits --clients 20 --budget 10 --rounds 30

      privmarket federate --dataset mnist --alpha 0.1 --workers 2 --checkpoint mnist.ckpt --json > mnist.json

      privmarket federate --dataset mnist --wallet 8

      privmarket federate --dataset digits --clients 20 --budget 10 --strategy learning --sizes dirichlet

      privmarket federate --dataset mnist --trust aggregate --mechanism ration --rounds 20 --budget 15
    """
    mode, of_rule = _mode(literal, no_dp, no_noise), parse_settings(mechanism_set)
    config = with_training(FederationConfig(**settings, mechanism_settings=of_rule, mode=mode), training)
    if workers < 1:
        raise ConfigurationError(f"--workers is {workers}", "give at least 1 process")
    for option, path in {"save": save, "report": report, "checkpoint": checkpoint, "watch": watch}.items():
        check_writable(path, f"--{option}")
    require("torch", "federated")
    own = None if own_records is None else baselines.own_records_of(config, own_records)
    with LiveRounds(config, watch) as live:
        result = simulation.run(config, workers=workers, checkpoint=checkpoint, on_round=live.show_round)
    summary = summaries.summarise(result)
    attacks = _attacked(result) if attack else []
    if report is not None:
        _write_report(report, result, attacks, own)
    if save is not None:
        write_atomically(save, dumps(summaries.brief(result, _command()), indent=1, ensure_ascii=False) + "\n")
    if json:
        free = None if own is None else asdict(own)
        print_json({**summary, "own_records": free, "attacks": [one.to_json() for one in attacks]})
    else:
        _show(result, summary, attacks, own)


def _show(result: RunResult, summary: RunSummary, attacks: list[AttackResult], own: OwnRecords | None) -> None:
    """The run for people: tables, the verdict in words, and what to beware of."""
    config = result.config
    promised = verdicts.worst_promise(result)
    print_table(_totals_table(config, summary, promised))
    print_table(clients_table(summary["clients"]))
    print(verdicts.verdict({"": result}, own=own))
    if config.privacy.is_private:
        print(verdicts.strength_sentence(promised, verdicts.worst_promise_alone(result)))
    if attacks:
        show_attacks(attacks)
    if config.privacy.is_private:
        note("warning: " + SIMULATED_WARNING.format(seed=config.seed))
    if summary["arithmetic"] not in (None, "exact"):
        note(f"warning: arithmetic {summary['arithmetic']}")
    if result.spent == 0 and config.privacy.holds_auctions:
        note(f"note: {_why_nothing_sold(result)}")
    for number, dropped in summary["dropped"].items():
        note(f"round {number}: dropped, unpaid: " + ", ".join(f"client {c} ({why})" for c, why in dropped.items()))


def _why_nothing_sold(result: RunResult) -> str:
    config = result.config
    facts = MarketFacts.of(scenario(config.scenario))
    rule = resolve(config.mechanism, market=facts, **config.mechanism_settings)
    return why_nothing_sold(rule, result.types, config.budget_per_round)


def _attacked(result: RunResult) -> list[AttackResult]:
    """The run's largest sale and its model under attack; how they are attacked follows from the seed."""
    return attack_suite.attack_run(result, np.random.default_rng([result.config.seed, _ATTACK]))


def _write_report(path: Path, result: RunResult, attacks: list[AttackResult], own: OwnRecords | None) -> None:
    label = f"{result.config.dataset}, {result.config.mode}"
    federated_report.write_report(path, {label: result}, command=_command(), attacks=attacks, own=own)
    note(f"report: {path}")


def _command() -> str:
    """What was typed, without what does not change the result."""
    words = sys.argv[1:]
    for option in ("--save", "--report", "--checkpoint", "--workers", "--watch"):
        if option in words:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return " ".join(["privmarket", *words])


def _mode(literal: bool, no_dp: bool, no_noise: bool) -> str:
    chosen = [n for n, on in (("literal", literal), ("no-dp", no_dp), ("no-noise", no_noise)) if on]
    if len(chosen) > 1:
        raise ConfigurationError(f"--{' and --'.join(chosen)} exclude each other", "give one of them")
    return chosen[0] if chosen else "private"


def with_training(config: FederationConfig, pairs: list[str] | None) -> FederationConfig:
    """The run with the settings of its training that `--set` gives."""
    given = parse_settings(pairs)
    known = [one.name for one in fields(Training)]
    for name in given:
        if name not in known:
            raise UnknownNameError.among("training setting", name, known)
    return config.replace_training(**given)


class LiveRounds(LiveView):
    """The live view of a federated run: accuracy, pay, sellers, and who earned most so far."""

    def __init__(self, config: FederationConfig, page: Path | None = None, names: Sequence[str] = ()) -> None:
        self._names, self._money = names, config.money_in_all
        self._earned: Counter[str] = Counter()
        self._dropped = 0
        curves = (
            Curve("accuracy", lambda value: f"{value:.1%}"),
            Curve("sellers", lambda value: f"{value:.0f}"),
            Curve("paid in the round", lambda value: f"{value:,.2f}"),
            Curve("largest ε sold in the round", lambda value: f"{value:.2f}"),
        )
        title = f"{config.dataset}, {counted(config.clients, 'client')}, {config.mechanism}, {config.trust} trust"
        super().__init__(title, "round", config.rounds, curves, page)

    def show_round(self, record: RoundRecord) -> None:
        """Adds a finished round to the view: its figures, what clients earned, who dropped out."""
        for client, micro in record.paid_micro.items():
            self._earned[client] += micro
        self._dropped += len(record.dropped)
        best = ", ".join(
            f"{self._name(client)}: {micro / 1e6:,.2f}" for client, micro in self._earned.most_common(4)
        )
        facts = {"paid so far": f"{self._earned.total() / 1e6:,.2f} of {self._money:,.2f}"}
        facts |= {"earned most": best} if best else {}
        facts |= {"dropped, unpaid": str(self._dropped)} if self._dropped else {}
        figures = {
            "accuracy": record.accuracy,
            "sellers": record.sellers,
            "paid in the round": record.spent_micro / 1e6,
            "largest ε sold in the round": max(record.sold_epsilon.values(), default=0.0),
        }
        self.show(record.number + 1, figures, facts)

    def _name(self, client: str) -> str:
        return self._names[client_place(client)] if self._names else f"client {client}"


def _totals_table(config: FederationConfig, summary: RunSummary, promised: Promise | None) -> Table:
    title = (
        f"{config.dataset}, {counted(config.clients, 'client')}, α = {config.alpha:g}, {config.mechanism}, "
        f"{config.mode}, seed {config.seed}"
    )
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("test accuracy", f"{summary['accuracy']:.2%}")
    table.add_row("rounds", f"{config.rounds}")
    table.add_row("paid in all", f"{summary['spent']:,.2f}")
    table.add_row("sellers per round", f"{summary['sellers_per_round']:.1f}")
    largest = summary["largest_epsilon_spent"]
    table.add_row(
        f"largest total ε of a client at δ = {config.delta:g}",
        "no guarantee" if largest is None else f"{largest:.2f}",
    )
    if promised is not None:
        guesses = f"≤ {rounded_up_percent(promised.guess)}"
        table.add_row("right guesses whether one of its records was used", guesses)
        table.add_row("unit, arithmetic", f"one {promised.unit} zeroed out, {promised.arithmetic}")
    alone = summary["largest_epsilon_if_others_collude"]
    if alone is not None:
        share = config.honest_share
        table.add_row("that ε holds if of a round's sellers collude at most", f"{(1 - share) / 2:.1%}")
        table.add_row("and a round's sum is opened only if there came through", f"{(1 + share) / 2:.1%}")
        table.add_row("largest total ε if all other sellers collude", f"{alone:.2f}")
    table.add_row("seconds", f"{summary['seconds']:.1f}")
    return table


def clients_table(rows: Sequence[ClientRow], limit: int = 12, names: Sequence[str] = ()) -> Table:
    """The clients that were paid most, by number or name, with what their wallets have left."""
    shown = sorted(rows, key=lambda row: -row["paid"])[:limit]
    table = Table(title=f"Clients by pay ({len(shown)} of {len(rows)})")
    for column in ("client", "asks per ε", "sells at most", "sales", "paid", "total ε", "wallet left"):
        table.add_column(column, justify="right")
    for row in shown:
        left = "no limit" if row["wallet_left"] is None else rounded_down_percent(row["wallet_left"])
        table.add_row(
            names[row["client"]] if names else str(row["client"]),
            f"{row['valuation']:.3f}",
            f"{row['epsilon_per_round']:.2f}",
            str(row["sales"]),
            f"{row['paid']:.2f}",
            "none" if row["epsilon_spent"] is None else f"{row['epsilon_spent']:.2f}",
            left,
        )
    return table
