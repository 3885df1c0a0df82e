"""`privmarket federate`: one federated run in which clients sell ε."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import numpy as np
import typer
from click.core import ParameterSource
from rich.table import Table

from privmarket._counted import counted
from privmarket._files import check_writable, write_atomically
from privmarket._lazy import late, require
from privmarket.cli._attack import show_attacks
from privmarket.cli._options import (
    Json,
    note,
    parse_settings,
    print_json,
    print_table,
    takes_settings,
)
from privmarket.cli._progress import Curve, LiveView, Watch, WorkBar
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.mechanisms import resolve, why_nothing_sold
from privmarket.privacy._statement import SIMULATED_WARNING, cohort_words, rounded_down_percent, rounded_up_percent
from privmarket.simulation._config import DATASETS, FederationConfig, Training, statistics_words, usual_interval
from privmarket.tasks import SOURCE_OPTIONS, TaskSource

if TYPE_CHECKING:
    from privmarket import secagg, tasks as builtin
    from privmarket.privacy._statement import Promise
    from privmarket.reports import (
        _federated_report as federated_report,
        _own_records as baselines,
        _verdict as verdicts,
    )
    from privmarket.reports._own_records import OwnRecords
    from privmarket.rounds import RoundRecord
    from privmarket.simulation import (
        _attacks as attacks_on_runs,
        _bidding as bidding,
        _federate as entry_point,
        _federation as federation,
        _moments as moments,
        _rehearsal as rehearsal,
        _result as results,
    )
    from privmarket.simulation._attacks import AttackResult
    from privmarket.simulation._bidding import AskedPrices
    from privmarket.simulation._result import ClientRow, RunResult, RunSummary
    from privmarket.tasks import Score, Task
else:
    attacks_on_runs = late("privmarket.simulation._attacks")
    bidding = late("privmarket.simulation._bidding")
    federation = late("privmarket.simulation._federation")
    rehearsal = late("privmarket.simulation._rehearsal")
    results = late("privmarket.simulation._result")
    federated_report = late("privmarket.reports._federated_report")
    baselines = late("privmarket.reports._own_records")
    builtin = late("privmarket.tasks")
    entry_point = late("privmarket.simulation._federate")
    moments = late("privmarket.simulation._moments")
    secagg = late("privmarket.secagg")
    verdicts = late("privmarket.reports._verdict")

_ATTACK = 9  # a random stream for the attacker, different from the run's


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


# Settings of a run that are options, in the order of the help text.
_SETTINGS = (
    "dataset",
    "clients",
    "alpha",
    "mechanism",
    "budget",
    "total_budget",
    "rounds",
    "aggregation",
    "heterogeneity",
    "trust",
    "honest_share",
    "dropout",
    "scenario",
    "types",
    "delta",
    "wallet",
    "wallet_policy",
    "evaluate_every",
    "seed",
    "sizes",
    "valuations",
    "valuation_weights",
    "strategy",
    "statistics",
    "statistics_norm",
)


# What happens where these are not given; see `rehearsal.tuned_settings`.
_SHOWN = {
    "statistics": "none, or free if rehearsals on your own records do better with it, which they try for linear "
    "models unless clip_norm or server_rate is given",
    "aggregation": "epsilon-squared, or precision if rehearsals on your own records do better with it",
}


@takes_settings(FederationConfig, *_SETTINGS, shown=_SHOWN)
@takes_settings(TaskSource, *SOURCE_OPTIONS, into="source")
def federate(
    settings: dict[str, Any],
    source: dict[str, Any],
    mechanism_set: _MechanismSet = None,
    literal: Annotated[bool, typer.Option("--literal", help="Paper-literal: noise on the weights.")] = False,
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Plain FedAvg with everyone, for free.")] = False,
    no_noise: Annotated[bool, typer.Option("--no-noise", help="The same run with the noise left out.")] = False,
    training: _Training = None,
    workers: Annotated[int, typer.Option(help="Processes that train; the result does not depend on it.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Also write a short result file (JSON) here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report here.")] = None,
    attack: _Attack = False,
    model_out: Annotated[
        Path | None, typer.Option(help="Also write the model here (.safetensors, and a JSON card beside it).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the score over money (.png, .svg, .pdf).")] = None,
    checkpoint: _Checkpoint = None,
    watch: Watch = None,
    json: Json = False,
) -> None:
    """Run a federated training in which clients sell ε: auction, private training, aggregation, settlement.

    It learns from your own table (--data), your own task (--task) or a built-in data set (--dataset). Your own
    records (--public) train the model that the market starts from and choose the settings, and what they give alone
    is said first. Every update carries the noise that makes the client's sale (ε, δ) true for each of its records.
    A run that was killed goes on from its checkpoint and gives the identical result.

    [bold]Examples[/bold]

      privmarket federate --dataset digits --clients 20 --budget 10 --rounds 30

      privmarket federate --dataset mnist --alpha 0.1 --workers 2 --checkpoint mnist.ckpt --json > mnist.json

      privmarket federate --dataset mnist --wallet 8

      privmarket federate --dataset digits --clients 20 --budget 10 --strategy learning --sizes dirichlet

      privmarket federate --dataset mnist --trust aggregate --mechanism ration --rounds 20 --budget 15

      privmarket federate --data strikes.csv --schema strikes.toml --public-share 0.02 --trust aggregate --wallet 1
    """
    if workers < 1:
        raise ConfigurationError(f"--workers is {workers}", "give at least 1 process")
    outputs = {
        "save": save,
        "report": report,
        "checkpoint": checkpoint,
        "watch": watch,
        "model-out": model_out,
        "plot": plot,
    }
    for option, path in outputs.items():
        check_writable(path, f"--{option}")
    if model_out is not None and model_out.suffix != ".safetensors":
        raise ConfigurationError(f"--model-out {model_out}", "let its name end in .safetensors")
    check_writable(None if model_out is None else model_out.with_suffix(".json"), "--model-out")
    if plot is not None:
        require("matplotlib", "plots")
    require("torch", "federated")
    mode = _mode(literal, no_dp, no_noise)
    of_rule = parse_settings(mechanism_set)
    context = click.get_current_context()
    if context.get_parameter_source("evaluate_every") is ParameterSource.DEFAULT:
        settings = settings | {"evaluate_every": usual_interval(settings["rounds"])}
    run = prepared(settings | {"mechanism_settings": of_rule, "mode": mode}, TaskSource(**source), training)
    config = run.config
    fixed = tuple(parse_settings(training))
    for name in ("statistics", "aggregation"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            fixed = (*fixed, name)
    tuned = None if run.task is None else _tuned(config, run.task, run.asked, fixed=fixed)
    if tuned is not None:
        config = tuned.applied(config)
        if config.statistics != "none":
            note(f"rehearsals did better with scaled inputs: {statistics_words(config)}")
        if tuned.rehearsal.aggregation is not None:
            note(f"rehearsals did best with updates weighted by {config.aggregation}")
    with LiveRounds(config, watch, score=None if run.task is None else run.task.score) as live:
        result = federation.run(
            config,
            task=run.task,
            asked=run.asked,
            own_model=None if tuned is None else tuned.own_model,
            workers=workers,
            checkpoint=checkpoint,
            on_round=live.show_round,
            on_resume=lambda done: note(f"{checkpoint}: {counted(done, 'round')} of {config.rounds} are done"),
        )
    summary = results.summarise(result)
    own = baselines.OwnRecords.of(result)
    attacks = _attacked(result) if attack else []
    # If a figure or a page fails, the table and the JSON are still printed.
    failures = _written(result, attacks, own, report=report, save=save, model_out=model_out, plot=plot)
    if json:
        print_json({**summary, "attacks": [one.to_json() for one in attacks]})
    else:
        _show(result, summary, attacks, own)
    for failure in failures:
        note(f"warning: {failure}")
    if failures:
        raise typer.Exit(1)


def _tuned(
    config: FederationConfig, task: Task, asked: AskedPrices | None, *, fixed: Sequence[str]
) -> rehearsal.Tuned | None:
    """The settings chosen on public records, None if documented defaults are used; prints which."""
    task.require_private_records("a simulated run")
    for line in (*task.describe(), *task.warnings):
        note(line)
    if config.statistics == "none" and task.public is not None:
        note("choosing the server's rate, the clip norm and the averaging on your own records …")
    with WorkBar("rehearsing", "settings") as bar:
        tuned = rehearsal.tuned_settings(
            config, task, asked, fixed=fixed, on_tried=lambda tried: bar.show(tried, 0)
        )
    if config.statistics != "none":
        note(f"{statistics_words(config)}; documented defaults are used")
    elif tuned is None:
        note("no public records to choose settings on: documented defaults are used")
    return tuned


def _written(
    result: RunResult,
    attacks: list[AttackResult],
    own: OwnRecords | None,
    *,
    report: Path | None,
    save: Path | None,
    model_out: Path | None,
    plot: Path | None,
) -> list[str]:
    """Writes what was asked for; returns what could not be written, and why."""
    failures = []
    jobs: list[tuple[Path | None, Callable[[Path], object]]] = [
        (model_out, result.save_model),
        (save, lambda path: _save(path, result)),
        (report, lambda path: _write_report(path, result, attacks, own)),
        (plot, result.plot),
    ]
    for path, job in jobs:
        if path is None:
            continue
        try:
            job(path)
            note(f"written: {path}")
        except Exception as error:  # whatever the error, the run itself is finished and must be shown
            failures.append(f"{path} could not be written: {type(error).__name__}: {error}")
    return failures


def _save(path: Path, result: RunResult) -> None:
    write_atomically(path, dumps(results.brief(result, _command()), indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run as the command line describes it: its configuration, and a task unless a built-in set is meant."""

    config: FederationConfig
    task: Task | None
    asked: AskedPrices | None


def prepared(settings: dict[str, Any], source: TaskSource, training: list[str] | None) -> Prepared:
    """The configuration and the task that the options describe."""
    asked = None if source.bids is None else bidding.AskedPrices.read(source.bids)
    if asked is not None:
        settings = settings | {"bids": asked.digest(), "scenario": str(source.bids)}
    dataset = str(settings["dataset"])
    task = None
    if source.is_given:
        task = loaded(source)
    else:
        source.require_none_of_a_table()
        if dataset not in DATASETS:
            task = _named_task(dataset, settings, source)
    if task is None:
        if source.public is not None:
            settings = settings | {"public": _count(source.public)}
        if source.score is not None or source.model is not None:
            option = "--score" if source.score is not None else "--model"
            raise ConfigurationError(f"{option} with --dataset {dataset}", "use --set model=… or your own --data")
        config = with_training(FederationConfig(**settings), training)
        return Prepared(config, None, asked)
    rest = {name: value for name, value in settings.items() if name not in _OF_DATASETS}
    if rest["mechanism"] == FederationConfig.mechanism and rest["trust"] == "aggregate":
        rest["mechanism"] = "graded-ration"
    config = FederationConfig(**entry_point.settings_of(task), **rest)
    return Prepared(with_training(config, training), task, asked)


def loaded(source: TaskSource) -> Task:
    """The task that the options name; shows progress if reading takes a while."""
    what = source.data if source.data is not None else source.task
    with WorkBar(f"reading {Path(str(what)).name}", "rows") as bar:
        return source.load(bar.show)


_OF_DATASETS = ("dataset", "clients", "alpha", "sizes", "public", "measured_on")


def _named_task(name: str, settings: dict[str, Any], source: TaskSource) -> Task:
    """A built-in task that is not one of the paper's picture sets."""
    public = None if source.public is None else _count(source.public)
    seed = int(settings.get("seed", 0))
    return builtin.task(name, public=public, model=source.model, score=source.score, seed=seed)


def _count(text: str) -> int:
    """A number of kept-back records."""
    if not text.isdigit():
        raise ConfigurationError(
            f"--public {text} with --dataset", "give how many of the kept-back records are yours"
        )
    return int(text)


def _show(result: RunResult, summary: RunSummary, attacks: list[AttackResult], own: OwnRecords | None) -> None:
    """Prints the run for people: tables, the verdict in words, and warnings."""
    config = result.config
    promised = verdicts.worst_promise(result)
    print_table(_totals_table(result, summary, promised))
    print_table(clients_table(summary["clients"], names=result.task.clients))
    if result.scores is not None:
        print(verdicts.verdict({"": result}, own=own))
    if result.prices is not None and not result.prices.is_too_much:
        print(result.prices.sentence())
    if asks := bidding.asks_sentence(config):
        print(asks)
    if config.privacy.is_private:
        print(verdicts.strength_sentence(promised, verdicts.worst_promise_alone(result)))
    if attacks:
        show_attacks(attacks)
    if config.privacy.is_private:
        note("warning: " + SIMULATED_WARNING.format(seed=config.seed))
    if summary["arithmetic"] not in (None, "exact"):
        note(f"warning: arithmetic {summary['arithmetic']}")
    if result.prices is not None and result.prices.is_too_much:
        note(f"warning: {result.prices.sentence()}")
    if result.spent == 0 and config.privacy.holds_auctions:
        note(f"note: {_why_nothing_sold(result)}")
    for number, dropped in summary["dropped"].items():
        note(f"round {number}: dropped, unpaid: " + ", ".join(f"{c} ({why})" for c, why in dropped.items()))


def _why_nothing_sold(result: RunResult) -> str:
    config = result.config
    distribution = scenario(result.types if config.bids else config.scenario)
    facts = MarketFacts.of(distribution)
    rule = resolve(config.mechanism, market=facts, **config.mechanism_settings)
    return why_nothing_sold(rule, result.types, config.budget_per_round)


def _attacked(result: RunResult) -> list[AttackResult]:
    """Attacks the run's largest sale and its model; the attacker's random numbers follow from the run's seed."""
    return attacks_on_runs.attack_run(result, np.random.default_rng([result.config.seed, _ATTACK]))


def _write_report(path: Path, result: RunResult, attacks: list[AttackResult], own: OwnRecords | None) -> None:
    label = f"{result.config.dataset}, {result.config.mode}"
    federated_report.write_report(path, {label: result}, command=_command(), attacks=attacks, own=own)


def _command() -> str:
    """The command as it was typed, without options that do not change the result."""
    words = sys.argv[1:]
    for option in ("--save", "--report", "--checkpoint", "--workers", "--watch", "--model-out", "--plot"):
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
    """The live view of a federated run: score, pay, sellers, and who earned most so far.

    Args:
        names: what to call clients that have numbers.
        score: what is measured, where it is not accuracy.
    """

    def __init__(
        self,
        config: FederationConfig,
        page: Path | None = None,
        names: Sequence[str] = (),
        score: Score | None = None,
    ) -> None:
        self._names = names
        self._money = config.money_in_all
        self._owners = bool(config.task)
        self._score = "accuracy" if score is None else score.heading
        self._earned: Counter[str] = Counter()
        self._dropped = 0
        curves = (
            Curve(self._score, (lambda value: f"{value:.1%}") if score is None else score.format),
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
            self._score: record.accuracy,
            "sellers": record.sellers,
            "paid in the round": record.spent_micro / 1e6,
            "largest ε sold in the round": max(record.sold_epsilon.values(), default=0.0),
        }
        self.show(record.number + 1, figures, facts)

    def _name(self, client: str) -> str:
        if self._names:
            return self._names[int(client)]
        return client if self._owners else f"client {client}"


def _totals_table(result: RunResult, summary: RunSummary, promised: Promise | None) -> Table:
    config = result.config
    skew = "" if config.task else f"α = {config.alpha:g}, "
    title = (
        f"{config.dataset}, {counted(config.clients, 'client')}, {skew}{config.mechanism}, "
        f"{config.mode}, seed {config.seed}"
    )
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    score = result.task.score
    if result.own_records is not None and result.score_before is not None:
        had = counted(result.own_records.records, "record")
        table.add_row(
            f"{score.heading} of your own {had} alone ({result.own_records.best})",
            score.format(result.score_before),
        )
    after = "no test records" if result.scores is None else score.format(result.score)
    table.add_row(f"test {score.heading}", after)
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
        used = "one of its records was" if promised.unit == "record" else "a person's records were"
        table.add_row(f"right guesses whether {used} used", guesses)
        table.add_row("unit, arithmetic", f"one {promised.unit} zeroed out, {promised.arithmetic}")
    alone = summary["largest_epsilon_if_others_collude"]
    if alone is not None:
        share = config.honest_share
        table.add_row("that ε holds if of a round's sellers collude at most", f"{(1 - share) / 2:.1%}")
        table.add_row("and a round's sum is opened only if there came through", f"{(1 + share) / 2:.1%}")
        table.add_row("largest total ε if all other sellers collude", f"{alone:.2f}")
        cohorts = max((secagg.cohorts_of(record.sellers) for record in result.records), default=1)
        if cohorts > 1:
            table.add_row("sellers of the largest round", cohort_words(cohorts))
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
