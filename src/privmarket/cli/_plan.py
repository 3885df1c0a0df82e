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
from privmarket.cli._federate import prepared
from privmarket.cli._options import Json, note, parse_settings, print_json, print_table, takes_settings
from privmarket.cli._progress import ProgressBar
from privmarket.errors import ConfigurationError
from privmarket.privacy._statement import cohort_words
from privmarket.reports._plan_figure import check_plot, write_plan
from privmarket.rounds import MICRO, micro_units
from privmarket.simulation._config import DATASETS, FederationConfig, recommended_training, statistics_words
from privmarket.tasks import SOURCE_OPTIONS, TaskSource

if TYPE_CHECKING:
    from privmarket import secagg
    from privmarket.simulation import _bidding as bidding, _plan as planning
    from privmarket.simulation._plan import Plan, Planner, Point
else:
    bidding = late("privmarket.simulation._bidding")
    planning = late("privmarket.simulation._plan")
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

    [bold]Examples[/bold]

      privmarket plan --dataset digits --clients 20 --trust aggregate --target 0.85 --effort quick --public 40

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
    if not given.is_given and settings["dataset"] in DATASETS:
        if given.public is None:
            # As many as a client holds, so that settings can be chosen on them.
            usual = planning.usual_public(settings["dataset"], settings["clients"], settings["alpha"])
            given = replace(given, public=str(usual))
        # The training recommended for aggregate trust learns most for little money under local trust, too.
        settings["training"] = recommended_training(settings["dataset"], "aggregate")
    run = prepared(settings, given, training)
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
        for line in _advice(made, effort, given):
            print(line)
    if plot is not None and made.points:
        note(f"plot: {write_plan(made, plot)}")
    elif plot is not None:
        note("no plot: nothing was run, because your own records reach the target")
    if not made.reached:
        raise typer.Exit(1)


def _expected(planner: Planner, totals: list[float], target: bool) -> int:
    return planning.expected_cells(
        planner.options, len(totals), len(planner.rules), rehearses=planner.rehearses, target=target
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
    largest = max(sizes, default=0.0)
    return max(0, 2 - math.floor(math.log10(largest))) if 0.0 < largest < math.inf else 2


def _is_share(made: Plan) -> bool:
    return made.score.name in ("accuracy", "balanced-accuracy")


def _first_line(made: Plan) -> str:
    """What the buyer has, before anything is bought."""
    if made.score_before is None:
        return "You hold no records of your own: what they would give for nothing is not known (--public)."
    had = counted(made.own_records, "record")
    return f"Your own {had} alone: {made.score.heading} {made.score.format(made.score_before)}, for nothing."


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
    largest = f"nobody's lifetime ε above {point.lifetime_epsilon:.3g} at δ = {made.base.delta:g}"
    if point.epsilon_if_others_collude is not None:
        largest += (
            f" if {made.base.honest_share:.1%} of each round's sellers are honest and present, above "
            f"{point.epsilon_if_others_collude:.3g} if all others collude"
        )
        cohorts = secagg.cohorts_of(made.base.clients)
        if cohorts > 1:
            largest += f"; a round in which everybody sells is {cohort_words(cohorts)}"
    gained = ""
    if point.gain is not None:
        points = " points" if _is_share(made) else ""
        gained = f" ({_signed(made, point.gain)} ± {_bare(made, point.gain_error)}{points} over your own records)"
    said = (
        f"For {planning.amount(point.total)}: {made.score.format(point.score)}{gained} over "
        f"{counted(point.seeds, 'seed')}; {largest}."
    )
    return said if point.prices is None else f"{said} {point.prices.sentence()}"


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
    training = config.training
    if config.statistics != "none":
        return [
            f"on Flower: not this plan. Its {statistics_words(config)}, which pm.flower.server_app does not do. "
            f"A plan with --set clip_norm={_OF_FLOWER:g} leaves inputs as they are and ends with a line for Flower."
        ]
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
    return [f"on Flower: pm.flower.server_app(task=task, {', '.join(words)})"]


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
