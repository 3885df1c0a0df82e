"""`privmarket plan`: what a model will cost before anyone is paid, and what it adds to what the buyer has."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import typer
from click.core import ParameterSource
from rich.table import Table

from privmarket._counted import counted
from privmarket._files import check_writable
from privmarket._lazy import late, require
from privmarket.cli._federate import Prepared, prepared, with_training
from privmarket.cli._options import Json, note, parse_settings, print_json, print_table, takes_settings
from privmarket.cli._progress import ProgressBar
from privmarket.errors import ConfigurationError
from privmarket.privacy._statement import cohort_words
from privmarket.reports._plan_figure import check_plot, write_plan
from privmarket.rounds import MICRO, micro_units
from privmarket.simulation._config import DATASETS, FederationConfig, recommended_training, statistics_words
from privmarket.tasks import SOURCE_OPTIONS, TaskSource

if TYPE_CHECKING:
    from privmarket import secagg, tasks
    from privmarket.simulation import _bidding as bidding, _federate as entry_point, _plan as planning
    from privmarket.simulation._plan import Plan, Planner, Point, RehearsedPoint
else:
    bidding = late("privmarket.simulation._bidding")
    entry_point = late("privmarket.simulation._federate")
    planning = late("privmarket.simulation._plan")
    tasks = late("privmarket.tasks")
    secagg = late("privmarket.secagg")

Number = TypeVar("Number", int, float)


_Money = Annotated[
    str | None,
    typer.Option(
        help="Totals to try, e.g. 100,500,2000; by default 0.3 to 10 per client, 0.03 to 1.5 under aggregate trust."
    ),
]
_Training = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A training setting that the plan keeps, e.g. clip_norm=1."),
]
_Records = Annotated[
    str | None,
    typer.Option(
        help="Without the clients' records: how many each declares, one number or a CSV with client and records. "
        "Then --public FILE is all that is read."
    ),
]
_Plot = Annotated[Path | None, typer.Option(help="Also draw money → score, ε and pay (.png, .svg, .pdf or .html).")]


@takes_settings(
    FederationConfig, "dataset", "clients", "alpha", "scenario", "trust", "honest_share", "wallet", "delta"
)
@takes_settings(TaskSource, *SOURCE_OPTIONS, into="source")
def plan(
    settings: dict[str, Any],
    source: dict[str, Any],
    target: Annotated[float | None, typer.Option(help="Find the least money for this score, e.g. 0.95.")] = None,
    total: Annotated[float | None, typer.Option(help="Plan for this much money in all.")] = None,
    money: _Money = None,
    records: _Records = None,
    rounds: Annotated[str | None, typer.Option(help="Numbers of rounds to try, e.g. 10,30,90.")] = None,
    effort: Annotated[str, typer.Option(help="quick, normal or full: how many settings and seeds.")] = "normal",
    training: _Training = None,
    workers: Annotated[int, typer.Option(help="Processes; the plan does not depend on it.", min=1)] = 1,
    folder: Annotated[Path, typer.Option(help="Where runs are saved; a stopped plan resumes.")] = Path("out/plan"),
    plot: _Plot = None,
    json: Json = False,
) -> None:
    """Say what a model will cost, and what it adds to your own records: money → score, lifetime ε, pay.

    Rounds, budget a round, rule, price, server rate and clip norm are chosen by rehearsals on your own records
    (--public) alone. The figures come from whole runs of the market with other seeds, measured on test records.
    Spends nobody's money. Says "buy nothing" where buying does not pay. Ends with exit code 1 if no run reaches
    the target, and says what was tried.

    Whoever has none of the clients' records says how many they declare (--records, --clients). Then gains are
    rehearsed, too, in worlds made up from your own records, and the plan ends with the line for a Flower app.

    [bold]Examples[/bold]

      privmarket plan --dataset digits --clients 20 --trust aggregate --target 0.85 --effort quick --public 40

      privmarket plan --public ours.csv --label churn --schema s.toml --clients 30 --records 130 --trust aggregate

      privmarket plan --data strikes.csv --schema strikes.toml --public-share 0.02 --trust aggregate --plot plan.png

      privmarket plan --dataset mnist --alpha 0.1 --public 600 --bids past-bids.csv --total 500 --wallet 3 --json
    """
    if target is not None and total is not None:
        raise ConfigurationError("--target and --total exclude each other", "give one of them")
    options = planning.chosen_options(effort, None if rounds is None else _numbers("--rounds", rounds, int))
    check_writable(folder / "a-run.json", "--folder")
    if plot is not None:
        check_plot(plot)
        check_writable(plot, "--plot")
    require("torch", "federated")
    given = TaskSource(**source)
    settings = settings | {"mechanism": FederationConfig.mechanism}
    alone = _is_alone(given, records)
    if not alone and not given.is_given and settings["dataset"] in DATASETS:
        if given.public is None:
            # As many as a client holds, so that settings can be chosen on them.
            usual = planning.usual_public(settings["dataset"], settings["clients"], settings["alpha"])
            given = replace(given, public=str(usual))
        # The training recommended for aggregate trust learns most for little money under local trust, too.
        settings["training"] = recommended_training(settings["dataset"], "aggregate")
    run = _prepared_alone(settings, given, str(records), training) if alone else prepared(settings, given, training)
    base = run.config
    totals = planning.checked_totals(_totals(money, total, base))
    planner = planning.Planner(
        base,
        folder,
        options,
        task=run.task,
        asked=run.asked,
        workers=workers,
        fixed=tuple(parse_settings(training)),
    )
    if not planner.measures:
        _check_alone(target, plot, workers)
    if target is not None:
        planner.check_target(target)
    for line in (*planner.task.describe(), *planner.task.warnings) if run.task is not None else ():
        note(line)
    if not planner.rehearses:
        note("no public records to choose settings on: documented defaults are used")
    with ProgressBar("planning", _expected(planner, totals, target is not None)) as bar:
        planner.on_cell = bar.advance
        made = planner.for_target(target, totals) if target is not None else planner.for_totals(totals)
        bar.finish()
    if json:
        print_json(made.to_json())
    else:
        print(_first_line(made))
        if made.points:
            print_table(_table(made))
            for line in _legend(made, planner):
                print(line)
        if made.rehearsed:
            print_table(_rehearsed_table(made))
        advice = _advice_alone(made, given, records) if made.rehearsed else _advice(made, effort, given)
        for line in advice:
            print(line)
    if plot is not None and made.points:
        note(f"plot: {write_plan(made, plot)}")
    elif plot is not None:
        note("no plot: nothing was run, because your own records reach the target")
    if not made.reached:
        raise typer.Exit(1)


def _is_alone(source: TaskSource, records: str | None) -> bool:
    """Whether the plan is made from the buyer's own records alone; refuses options that do not fit.

    Raises:
        ConfigurationError: says what is missing, or what cannot be used.
    """
    context = click.get_current_context()
    named = context.get_parameter_source("dataset") is ParameterSource.COMMANDLINE
    if records is None:
        if source.is_given or named or source.public is None or source.public.isdigit():
            return False
        raise ConfigurationError(
            f"--public {source.public} without --data",
            "say how many records clients declare (--records 130 --clients 30) for a plan from your own records "
            "alone, or name the table of all clients (--data FILE)",
        )
    if source.is_given or named:
        other = "--dataset" if named else "--data" if source.data is not None else "--task"
        raise ConfigurationError(
            f"--records beside {other}, which has the clients' records", f"leave out --records, or {other}"
        )
    if source.public is None or source.public.isdigit():
        raise ConfigurationError("--records without a file of your own records", "name it: --public ours.csv")
    for name in ("client", "person", "public_share", "test_share"):
        if getattr(source, name) is not None:
            raise ConfigurationError(
                f"--{name.replace('_', '-')} without --data",
                "of clients only names and numbers of records are known",
            )
    return True


def _prepared_alone(
    settings: dict[str, Any], source: TaskSource, records: str, training: list[str] | None
) -> Prepared:
    """The configuration and the task of a plan from the buyer's own records."""
    asked = None if source.bids is None else bidding.AskedPrices.read(source.bids)
    if asked is not None:
        settings = settings | {"bids": asked.digest(), "scenario": str(source.bids)}
    context = click.get_current_context()
    typed = context.get_parameter_source("clients") is ParameterSource.COMMANDLINE
    clients = settings["clients"] if typed else None
    names = None if asked is None else asked.clients
    if names is not None and clients not in (None, len(names)):
        raise ConfigurationError(
            f"--clients {clients}, and {source.bids} has {counted(len(names), 'client')}", "leave out --clients"
        )
    assert source.public is not None
    task = tasks.Task.from_own_records(
        source.public,
        records=int(records) if records.isdigit() else records,
        clients=clients if names is None else names,
        label=source.label,
        test=source.test,
        schema=source.schema,
        goal=source.goal,
        model=source.model,
        score=source.score,
    )
    rest = {name: value for name, value in settings.items() if name not in ("dataset", "clients")}
    config = FederationConfig(**entry_point.settings_of(task), **rest)
    return Prepared(with_training(config, training), task, asked)


def _check_alone(target: float | None, plot: Path | None, workers: int) -> None:
    """Refuses options that need scores measured on test records."""
    if target is not None:
        raise ConfigurationError(
            "--target without the clients' records: no score of theirs can be measured",
            "leave it out, and read the gains of several totals (--money 10,40,160)",
        )
    if plot is not None:
        raise ConfigurationError(
            "--plot without the clients' records: no score is measured", "leave it out; --json has all figures"
        )
    if workers > 1:
        note("rehearsals use one process")


def _expected(planner: Planner, totals: list[float], target: bool) -> int:
    return planning.expected_cells(
        planner.options,
        len(totals),
        len(planner.rules),
        rehearses=planner.rehearses,
        target=target,
        measures=planner.measures,
    )


def _totals(money: str | None, total: float | None, base: FederationConfig) -> list[float]:
    if total is not None:
        return [total]
    if money is None:
        return planning.usual_totals(base.clients, base.trust)
    return _numbers("--money", money, float)


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(word) for word in text.split(",")] if text.strip() else []
    except ValueError as error:
        raise ConfigurationError(f"{option} {text!r}", "write numbers with commas, e.g. 10,30,90") from error


def _table(made: Plan) -> Table:
    base = made.base
    skew = "" if base.task else f"α = {base.alpha:g}, "
    title = (
        f"{base.dataset}, {counted(base.clients, 'client')}, {skew}asks from {base.scenario}, "
        f"{base.trust} trust, {counted(made.cells, 'run')}"
    )
    table = Table(title=title)
    columns = (
        "money",
        made.score.heading,
        "gain",
        "lowest–highest",
        "lifetime ε ≤",
        "pay/client",
        "at most",
        "rounds",
        "a round",
        "server rate",
    )
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("rule")
    for point in made.points:
        chosen = "bold" if point is made.recommended else ""
        table.add_row(
            planning.amount(point.total),
            made.score.format(point.score),
            "–" if point.gain is None else f"{_signed(made, point.gain)} ± {_bare(made, point.gain_error)}",
            f"{made.score.format(point.lowest)}–{made.score.format(point.highest)}"
            if point.seeds > 1
            else "one seed",
            f"{point.lifetime_epsilon:.3g}",
            f"{point.pay_per_client:,.2f}",
            f"{point.highest_pay:,.2f}",
            str(point.choice.rounds),
            f"{point.budget_per_round:,.3g}",
            f"{point.choice.server_rate:g}",
            point.choice.label,
            style=chosen,
        )
    return table


def _legend(made: Plan, planner: Planner) -> list[str]:
    """What the columns of the table say, and where the asks come from."""
    lines = []
    if any(point.gain is not None for point in made.points):
        test = planner.task.test
        records = "" if test is None else f" of {counted(len(test), 'test record')}"
        unit = " (points)" if _is_share(made) else ""
        lines.append(
            f"gain{unit}: over your own records, ± its standard error, over seeds and from the choice{records}; "
            "lowest–highest: the score over seeds."
        )
    lines.append(
        "pay/client: the mean; at most: what one client got in any run; a round: its budget; server rate: the step "
        "size of the training."
    )
    if made.heterogeneity is not None:
        lines.append(
            f"H = {made.heterogeneity:g}, measured in rehearsals: how much leaving clients out harms beside noise; "
            "rules for H weigh the two by it."
        )
    asks = bidding.asks_sentence(made.base)
    return [*lines, *([asks] if asks else [])]


def _bare(made: Plan, value: float, sign: str = "") -> str:
    """A difference of scores: in points for shares of records, without the word; else as a number."""
    return f"{100 * value:{sign}.2f}" if _is_share(made) else f"{value:{sign}.{_decimals(made)}f}"


def _signed(made: Plan, gain: float) -> str:
    return _bare(made, gain, "+")


def _decimals(made: Plan) -> int:
    """Decimals that all differences of a plan are shown with: three digits of the largest."""
    sizes = [abs(size) for point in made.points for size in (point.gain_error, point.gain or 0.0)]
    sizes += [abs(size) for one in made.rehearsed for size in (one.rehearsed_deviation, one.rehearsed_gain or 0.0)]
    largest = max(sizes, default=0.0)
    return max(0, 2 - math.floor(math.log10(largest))) if 0.0 < largest < math.inf else 2


def _is_share(made: Plan) -> bool:
    return made.score.name in ("accuracy", "balanced-accuracy")


def _first_line(made: Plan) -> str:
    """What the buyer has, before anything is bought."""
    if made.score_before is None:
        return "You hold no records of your own: what they would give for nothing is not known (--public)."
    had = counted(made.own_records, "record")
    score = made.score.format(made.score_before)
    if made.score_before_on == "cross-validation":
        error = made.score_before_error
        score += f" in cross-validation{'' if error is None else f' (standard error {_bare(made, error)})'}"
    return f"Your own {had} alone: {made.score.heading} {score}, for nothing."


def _rehearsed_table(made: Plan) -> Table:
    base = made.base
    title = (
        f"REHEARSED in made-up worlds, not measured: {base.dataset}, {counted(base.clients, 'client')}, "
        f"asks from {base.scenario}, {base.trust} trust"
    )
    table = Table(title=title)
    columns = (
        "money",
        f"rehearsed gain in {made.score.heading}",
        "worlds that gain",
        "lifetime ε ≤",
        "pay/client",
        "most",
        "sellers",
        "rounds",
        "a round",
        "rate",
    )
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("rule")
    for point in made.rehearsed:
        table.add_row(
            planning.amount(point.total),
            _rehearsed_gain(made, point),
            f"{point.worlds_with_gain} of {point.worlds}" if point.worlds else "–",
            f"{point.lifetime_epsilon:.3g}",
            f"{point.pay_per_client:,.2f}",
            f"{point.highest_pay:,.2f}",
            f"{point.sellers_per_round:.0f}",
            str(point.choice.rounds),
            f"{point.budget_per_round:,.3g}",
            f"{point.choice.server_rate:g}",
            point.choice.label,
        )
    return table


def _rehearsed_gain(made: Plan, point: RehearsedPoint) -> str:
    if point.rehearsed_gain is None:
        return "–"
    points = " points" if _is_share(made) else ""
    return f"{_signed(made, point.rehearsed_gain)} ± {_bare(made, point.rehearsed_deviation)}{points}"


# What is known of rehearsed gains; the figures are those of docs/decisions/settings-on-public-records.md.
_REHEARSED = (
    "Rehearsed: nothing here was measured on anybody's real records, your own score apart. A gain is the mean "
    "± the spread over worlds that are made up to look like your records and to be as hard. Real clients may "
    "differ from you in ways that your records do not show; and what a model like yours cannot express, "
    "nobody's records teach it. Take it as rough: of 42 such plans beside whole runs, 6 said buy and 2 of "
    "these gained, a quarter of what was rehearsed in all; 36 said buy nothing, and 21 of these would have "
    "gained. Buy a little, measure, and plan again."
)


def _advice_alone(made: Plan, source: TaskSource, records: str | None) -> list[str]:
    """Lines that say what to do with a plan from the buyer's own records alone."""
    if made.no_gain_because:
        most = max(made.rehearsed, key=lambda point: point.total)
        return [
            f"No gain is stated: {made.no_gain_because}. The settings below are the best of those rehearsed; "
            "whether they beat your own records, only buying or a plan with the clients' records can say.",
            *_next_alone(made, most, source, records),
        ]
    if not made.worth_buying:
        most = max(made.rehearsed, key=lambda point: point.total)
        return [
            f"Buy nothing: of {counted(len(made.rehearsed), 'total')} up to {planning.amount(most.total)} none "
            "has a rehearsed gain beyond its spread over worlds.",
            _REHEARSED,
        ]
    best = max(made.rehearsed, key=lambda point: point.rehearsed_gain or 0.0)
    return [
        f"For {planning.amount(best.total)}: a rehearsed gain of {_rehearsed_gain(made, best)} over your own "
        f"records; {_largest_epsilon(made, best)}.",
        _REHEARSED,
        *_next_alone(made, best, source, records),
    ]


def _next_alone(made: Plan, point: RehearsedPoint, source: TaskSource, records: str | None) -> list[str]:
    """Lines of Python that start the real market: the task from one's own records, and a Flower app's server."""
    if not source.public or records is None:
        return [_server_app(made.base, point)]
    given = [repr(source.public), f"records={records if records.isdigit() else repr(records)}"]
    if records.isdigit():
        given.append(f"clients={made.base.clients}")
    for name in ("label", "test", "schema", "goal", "model", "score"):
        value = getattr(source, name)
        if value is not None:
            given.append(f"{name}={value!r}")
    return [
        'Next, to buy: the server of a Flower app (docs/how-to/flower.md); with broker="https://…" a broker holds '
        "the auctions and the money.",
        f"  task = pm.Task.from_own_records({', '.join(given)})",
        f"  server = {_server_app(made.base, point)}",
    ]


def _advice(made: Plan, effort: str, source: TaskSource) -> list[str]:
    """Lines that say what to do with the plan."""
    if made.target is not None and made.own_records_suffice:
        stopped = "" if made.points else " Nothing was rehearsed or run."
        return [f"Buy nothing: your own records reach {made.score.format(made.target)} already.{stopped}"]
    if made.target is not None and made.chosen is None:
        return _not_reached(made, made.target, effort)
    if not made.worth_buying:
        most = max(made.points, key=lambda point: point.total)
        best = max(made.points, key=lambda point: point.gain or 0.0)
        gained = ""
        if best.gain is not None and best.gain > 0:
            error = _bare(made, best.gain_error)
            gained = f" (the best gain, {_signed(made, best.gain)}, has a standard error of {error})"
        return [
            f"Buy nothing: of {counted(len(made.points), 'total')} up to {planning.amount(most.total)} none gave a "
            f"better {made.score.heading} than your own records, beyond what chance explains{gained}."
        ]
    taken = made.recommended
    if taken is None:
        return []
    lines = [_said(made, taken)]
    if made.chosen is None:
        best = max(made.points, key=lambda point: point.gain or 0.0)
        if best is not taken:
            lines.append(
                f"That is the cheapest total within one standard error of the best gain, which "
                f"{planning.amount(best.total)} buys."
            )
    return [*lines, _command(made.base, taken, source), *_on_flower(made.base, taken, source)]


def _said(made: Plan, point: Point) -> str:
    """What one total buys, in a sentence."""
    gained = ""
    if point.gain is not None:
        points = " points" if _is_share(made) else ""
        gained = f" ({_signed(made, point.gain)} ± {_bare(made, point.gain_error)}{points} over your own records)"
    said = (
        f"For {planning.amount(point.total)}: {made.score.format(point.score)}{gained} over "
        f"{counted(point.seeds, 'seed')}; {_largest_epsilon(made, point)}."
    )
    return said if point.prices is None else f"{said} {point.prices.sentence()}"


def _largest_epsilon(made: Plan, point: Point | RehearsedPoint) -> str:
    """How much of anybody's privacy a point uses, and on what that rests."""
    largest = f"nobody's lifetime ε above {point.lifetime_epsilon:.3g} at δ = {made.base.delta:g}"
    if point.epsilon_if_others_collude is not None:
        largest += (
            f" if {made.base.honest_share:.1%} of each round's sellers are honest and present, above "
            f"{point.epsilon_if_others_collude:.3g} if all others collude"
        )
        cohorts = secagg.cohorts_of(made.base.clients)
        if cohorts > 1:
            largest += f"; a round in which everybody sells is {cohort_words(cohorts)}"
    return largest


def _not_reached(made: Plan, target: float, effort: str) -> list[str]:
    """Lines for a target that no run reached: what was tried, what that means, and the next command."""
    tried = made.tried
    best = max(made.points, key=lambda point: made.score.gain(target, point.score))
    dearest = max(made.points, key=lambda point: point.total)
    if dearest.spent < 0.9 * dearest.total:
        cap = "" if made.base.wallet is None else f" within a lifetime ε of {made.base.wallet:g}"
        meaning = (
            f"Of the largest total only {planning.amount(dearest.spent)} could be spent, because clients do not "
            f"offer more ε{cap}. More money for these settings will not do; other settings may."
        )
        changes = {"--rounds": f"{max(tried.rounds)},{3 * max(tried.rounds)}"}
    else:
        meaning = "More money may do, with these settings or others."
        changes = {"--money": f"{4 * dearest.total:g},{16 * dearest.total:g}"}
    wider = {"quick": "normal", "normal": "full"}.get(effort)
    if wider is not None:
        changes = {"--effort": wider, "--rounds": ""}
    return [
        f"Not reached: {made.score.format(target)}. The best of what was tried: {made.score.format(best.score)} "
        f"for {planning.amount(best.total)}.",
        f"Tried: {_listed(tried.rounds)} rounds; {counted(tried.rules, 'rule')}; "
        f"{counted(len(made.points), 'total')} up to {planning.amount(dearest.total)}. Settings were chosen by "
        f"{counted(tried.rehearsals, 'rehearsal')} on your own records, figures come from "
        f"{counted(tried.seeds, 'seed')}.",
        meaning,
        f"Next: {_again(changes)}",
    ]


def _listed(numbers: Sequence[float]) -> str:
    """Numbers as a sentence lists them: 5, 10 and 30."""
    words = [f"{number:g}" for number in numbers]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _again(changes: Mapping[str, str]) -> str:
    """The command as it was typed, with other values for some options; an empty value leaves the option out."""
    context = click.get_current_context()
    words = ["privmarket plan"]
    for parameter in context.command.params:
        name = parameter.name or ""
        option = max(parameter.opts, key=len)
        if option in changes or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        given = context.params[name]
        for value in given if isinstance(given, list | tuple) else [given]:
            words.append(option if isinstance(value, bool) else f"{option} {shlex.quote(str(value))}")
    words += [f"{option} {value}" for option, value in changes.items() if value]
    return " ".join(words)


def _command(base: FederationConfig, point: Point, source: TaskSource) -> str:
    """The `privmarket federate` command that makes the run of this point, to the last digit."""
    config = point.choice.config(base, point.total)
    words = ["privmarket federate"]
    if source.is_given:
        words += source.words()
    elif base.task:
        words += [f"--dataset {base.dataset}", *source.words()]
    else:
        words += [f"--dataset {base.dataset} --clients {base.clients} --alpha {base.alpha!r}", *source.words()]
    words += [] if source.bids is not None else [f"--scenario {shlex.quote(base.scenario)}"]
    words += [f"--rounds {config.rounds} --budget {_budget(config)}"]
    words += [f"--mechanism {config.mechanism}"]
    words += [f"--mechanism-set {name}={value}" for name, value in point.choice.settings]
    words += _training_words(config)
    if base.task:
        # With public records `federate` would choose these two again.
        words += [f"--statistics {config.statistics}"]
        words += [f"--aggregation {config.aggregation}"] if base.trust == "local" else []
    words += [] if base.trust == "local" else [f"--trust {base.trust}"]
    for name in ("honest_share", "wallet", "delta"):
        value = getattr(config, name)
        if value != getattr(FederationConfig, name):
            words.append(f"--{name.replace('_', '-')} {value!r}")
    return " ".join(words)


def _budget(config: FederationConfig) -> str:
    """The budget of a round as it is typed: money is counted in micro-units, so six decimals are all of it."""
    return f"{Decimal(micro_units(config.budget)) / MICRO:f}"


def _on_flower(base: FederationConfig, point: Point, source: TaskSource) -> list[str]:
    """The same settings as a line of a Flower app, for a task of one's own; why not, where the app cannot do it."""
    if not source.is_given:
        return []
    config = point.choice.config(base, point.total)
    if config.statistics != "none":
        return [
            f"on Flower: not this plan. Its {statistics_words(config)}, which pm.flower.server_app does not do. "
            f"A plan with --set clip_norm={_OF_FLOWER:g} leaves inputs as they are and ends with a line for Flower."
        ]
    return [f"on Flower: {_server_app(base, point)}"]


def _server_app(base: FederationConfig, point: Point | RehearsedPoint) -> str:
    """The server of a Flower app with the settings of a point, inputs as they are."""
    config = point.choice.config(base, point.total)
    training = config.training
    given: dict[str, object] = {
        "rounds": config.rounds,
        "budget": float(_budget(config)),
        "mechanism": config.mechanism,
        "steps": training.steps,
        "sampling_rate": training.sampling_rate,
        "clip_norm": training.clip_norm,
        "learning_rate": training.local_rate / training.clip_norm,
        "server_rate": training.server_rate,
        "final_rate": training.final_rate,
        "momentum": training.momentum,
        "averaging": training.averaging,
        "trust": config.trust,
        "delta": config.delta,
    }
    if config.trust == "local":
        given["aggregation"] = config.aggregation
    else:
        given["honest_share"] = config.honest_share
    words = [f"{name}={value!r}" for name, value in given.items()]
    if point.choice.settings:
        words.append(f"mechanism_settings={dict(point.choice.settings)!r}")
    return f"pm.flower.server_app(task=task, {', '.join(words)})"


# A clip norm that suits inputs as they are; what somebody who wants a plan for Flower may keep.
_OF_FLOWER = 1.0


def _training_words(config: FederationConfig) -> list[str]:
    """`--set` options for the settings of the training that `federate` would not use by itself."""
    chosen = config.training
    usual = FederationConfig(
        dataset=config.dataset, task=config.task, trust=config.trust, statistics=config.statistics
    ).training
    names = [one.name for one in fields(chosen)]
    # `federate` would choose these again on the public records, so the plan's choice is written out.
    said = ("server_rate", "clip_norm", "averaging") if config.task else ()
    return [
        f"--set {name}={getattr(chosen, name)}"
        for name in names
        if name in said or getattr(chosen, name) != getattr(usual, name)
    ]
