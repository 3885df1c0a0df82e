"""`privmarket federate`: one federated run in which clients sell ε."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privmarket.cli.options import Json, Seed, note, parse_settings, print_json, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from privmarket.federated.config import FederationConfig
    from privmarket.federated.state import RoundRecord, RunResult


def federate(
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")] = "digits",
    clients: Annotated[int, typer.Option(help="How many clients share the records.")] = 100,
    alpha: Annotated[float, typer.Option(help="Dirichlet skew of labels: 0.1 severe, 0.5 mild.")] = 0.5,
    mechanism: Annotated[str, typer.Option(help="Which auction rule.")] = "mean-field-menu",
    mechanism_set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the mechanism, e.g. objective=aggregation-error."),
    ] = None,
    budget: Annotated[float, typer.Option(help="Money per round.")] = 50.0,
    total_budget: Annotated[
        float | None,
        typer.Option(help="Money for the whole run, paced over its rounds, instead of --budget."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 200,
    aggregation: Annotated[str, typer.Option(help="epsilon, epsilon-squared or optimal.")] = "epsilon-squared",
    heterogeneity: Annotated[float, typer.Option(help="H of P2, for --aggregation optimal.")] = 0.1,
    scenario: Annotated[str, typer.Option(help="The law that clients' (v, ε) are drawn from.")] = "uniform",
    types: Annotated[str, typer.Option(help="persistent, or redrawn every round.")] = "persistent",
    delta: Annotated[float, typer.Option(help="The δ of every sale and of the wallets.")] = 1e-5,
    wallet: Annotated[
        float | None, typer.Option(metavar="E", help="Lifetime limit on each client's ε; none if not given.")
    ] = None,
    wallet_policy: Annotated[
        str, typer.Option(help="spread: save for the rounds to come; spend: offer all that is left.")
    ] = "spread",
    literal: Annotated[bool, typer.Option("--literal", help="The paper's letter: noise on weights.")] = False,
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Plain FedAvg with everyone, for free.")] = False,
    no_noise: Annotated[bool, typer.Option("--no-noise", help="The same run with the noise left out.")] = False,
    training: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A training setting, e.g. --set clip_norm=0.5."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that train; the result does not depend on it.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Also write a short result file (JSON) here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report here.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File to save to every few rounds and to resume from.")
    ] = None,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between two measurements.")] = 10,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a federated training in which clients sell ε: auction, private training, aggregation, settlement.

    Every update carries the noise that makes the client's sale (ε, δ) true for each of its records. A run that
    was killed goes on from its checkpoint and gives the identical result.

    [bold]Examples[/bold]

      privmarket federate --dataset digits --clients 20 --budget 10 --rounds 30

      privmarket federate --dataset mnist --alpha 0.1 --workers 2 --checkpoint mnist.ckpt --json > mnist.json

      privmarket federate --dataset mnist --wallet 8
    """
    from json import dumps

    from privmarket.federated.config import FederationConfig
    from privmarket.federated.simulation import run
    from privmarket.federated.summary import brief, summarise

    config = FederationConfig(
        dataset=dataset,
        clients=clients,
        alpha=alpha,
        scenario=scenario,
        mechanism=mechanism,
        mechanism_settings=parse_settings(mechanism_set),
        budget=budget,
        total_budget=total_budget,
        rounds=rounds,
        aggregation=aggregation,
        heterogeneity=heterogeneity,
        delta=delta,
        wallet=wallet,
        wallet_policy=wallet_policy,
        types=types,
        mode=_mode(literal, no_dp, no_noise),
        evaluate_every=evaluate_every,
        seed=seed,
        training=_training(dataset, training, literal),
    )
    with LiveRounds(config) as live:
        result = run(config, workers=workers, checkpoint=checkpoint, on_round=live.show)
    summary = summarise(result)
    if report is not None:
        _write_report(report, result)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        save.write_text(dumps(brief(result, _command()), indent=1, ensure_ascii=False) + "\n")
    if json:
        print_json(summary)
        return
    print_table(_totals_table(summary))
    print_table(clients_table(summary["clients"]))
    for number, dropped in summary["dropped"].items():
        note(f"round {number}: dropped, unpaid: " + ", ".join(f"client {c} ({why})" for c, why in dropped.items()))


def _write_report(path: Path, result: RunResult) -> None:
    from privmarket.experiments.federated_report import write_report

    facts = {
        "test accuracy": f"{result.accuracy:.1%}",
        "paid to clients": f"{result.spent:,.2f}",
        "ε sold": f"{sum(r.total_epsilon for r in result.records):,.0f}",
        "rounds": str(result.config.rounds),
    }
    label = f"{result.config.dataset}, {result.config.mode}"
    note(f"report: {write_report(path, {label: result}, facts=facts, command=_command())}")


def _command() -> str:
    """What was typed, without what does not change the result."""
    words = sys.argv[1:]
    for option in ("--save", "--report", "--checkpoint", "--workers"):
        if option in words:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return " ".join(["privmarket", *words])


def _mode(literal: bool, no_dp: bool, no_noise: bool) -> str:
    from privmarket.errors import ConfigurationError

    chosen = [n for n, on in (("literal", literal), ("no-dp", no_dp), ("no-noise", no_noise)) if on]
    if len(chosen) > 1:
        raise ConfigurationError(f"--{' and --'.join(chosen)} exclude each other", "give one of them")
    return chosen[0] if chosen else "private"


def _training(dataset: str, pairs: list[str] | None, literal: bool) -> Any:
    from dataclasses import fields, replace

    from privmarket.errors import ConfigurationError
    from privmarket.federated.config import Training
    from privmarket.federated.recommended import recommended_training

    given = parse_settings(pairs)
    known = [f.name for f in fields(Training)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigurationError(f"unknown training setting {unknown[0]!r}", f"choose one of: {', '.join(known)}")
    # The paper's letter is its MLP on pixels.
    return replace(Training() if literal else recommended_training(dataset), **given)


class LiveRounds:
    """A progress line on stderr: round, accuracy, sellers, ε sold, money spent."""

    def __init__(self, config: FederationConfig) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("starting", total=config.rounds)
        self._accuracy: float | None = None
        self._spent_micro = 0

    def __enter__(self) -> LiveRounds:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Replaces the line by a text: what is being done outside the shown run."""
        if text:
            self._bar.console.print(f"[dim]{text}[/dim]")

    def show(self, record: RoundRecord) -> None:
        """Moves the line on by one round."""
        self._accuracy = record.accuracy if record.accuracy is not None else self._accuracy
        self._spent_micro += record.spent_micro
        accuracy = "—" if self._accuracy is None else f"{self._accuracy:.1%}"
        text = (
            f"accuracy {accuracy}  sellers {record.sellers}  ε sold {record.total_epsilon:.1f}  "
            f"spent {self._spent_micro / 1e6:,.2f}"
        )
        self._bar.update(self._task, completed=record.number + 1, description=text)


def _totals_table(summary: dict[str, Any]) -> Table:
    from rich.table import Table

    config = summary["config"]
    title = (
        f"{config['dataset']}, {config['clients']} clients, α = {config['alpha']:g}, {config['mechanism']}, "
        f"{config['mode']}, seed {config['seed']}"
    )
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("test accuracy", f"{summary['accuracy']:.2%}")
    table.add_row("rounds", f"{config['rounds']}")
    table.add_row("paid in all", f"{summary['spent']:,.2f}")
    table.add_row("ε bought, sum over rounds and clients", f"{summary['epsilon_bought']:,.1f}")
    table.add_row("sellers per round", f"{summary['sellers_per_round']:.1f}")
    largest = summary["largest_epsilon_spent"]
    table.add_row(
        f"largest total ε of a client at δ = {config['delta']:g}",
        "no guarantee" if largest is None else f"{largest:.2f}",
    )
    table.add_row("seconds", f"{summary['seconds']:.1f}")
    return table


def clients_table(rows: list[dict[str, Any]], limit: int = 12) -> Table:
    """The clients that were paid most, with what their wallets have left."""
    from rich.table import Table

    shown = sorted(rows, key=lambda row: -row["paid"])[:limit]
    table = Table(title=f"Clients by pay ({len(shown)} of {len(rows)})")
    for column in ("client", "asks per ε", "sells at most", "sales", "paid", "total ε", "wallet left"):
        table.add_column(column, justify="right")
    for row in shown:
        left = "no limit" if row["wallet_left"] is None else f"{row['wallet_left']:.0%}"
        table.add_row(
            str(row["client"]),
            f"{row['valuation']:.3f}",
            f"{row['epsilon_per_round']:.2f}",
            str(row["sales"]),
            f"{row['paid']:.2f}",
            "none" if row["epsilon_spent"] is None else f"{row['epsilon_spent']:.2f}",
            left,
        )
    return table
