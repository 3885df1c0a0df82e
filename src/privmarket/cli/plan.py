"""`privmarket plan`: what a model will cost before anyone is paid."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import typer
from click.core import ParameterSource
from rich.table import Table

from privmarket.cli.federate import with_training
from privmarket.cli.options import Json, OwnRecordsOption, note, print_json, print_table, takes_settings
from privmarket.cli.progress import ProgressBar
from privmarket.counted import counted
from privmarket.errors import ConfigurationError
from privmarket.federated.config import FederationConfig, recommended_training
from privmarket.files import check_writable
from privmarket.lazy import late
from privmarket.reports.plan_figure import amount, check_plot, write_plan

if TYPE_CHECKING:
    from privmarket.federated import plan_choices, plan_runs, planning
    from privmarket.federated.plan_choices import Options
    from privmarket.federated.planning import Plan, Planner, Point
    from privmarket.reports import own_records as baselines
    from privmarket.reports import verdict as verdicts
else:
    plan_choices = late("privmarket.federated.plan_choices")
    plan_runs = late("privmarket.federated.plan_runs")
    planning = late("privmarket.federated.planning")
    baselines = late("privmarket.reports.own_records")
    verdicts = late("privmarket.reports.verdict")

Number = TypeVar("Number", int, float)


_Proxy = Annotated[
    Path | None,
    typer.Option(help="Public records to plan on (.npz: images, labels) in place of --dataset's own."),
]
_Money = Annotated[
    str | None,
    typer.Option(
        help="Totals to try, e.g. 100,500,2000; by default 0.3 to 10 per client, 0.03 to 1.5 under aggregate trust."
    ),
]
_Training = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A training setting, e.g. --set model=logistic."),
]
_Plot = Annotated[
    Path | None, typer.Option(help="Also draw money → accuracy, ε and pay (.png, .svg, .pdf or .html).")
]


@takes_settings(
    FederationConfig, "dataset", "clients", "alpha", "scenario", "trust", "honest_share", "wallet", "delta"
)
def plan(
    settings: dict[str, Any],
    proxy: _Proxy = None,
    target: Annotated[float | None, typer.Option(help="Find the least money for this accuracy, e.g. 0.95.")] = None,
    total: Annotated[float | None, typer.Option(help="Plan for this much money in all.")] = None,
    money: _Money = None,
    rounds: Annotated[str | None, typer.Option(help="Numbers of rounds to try, e.g. 10,30,90.")] = None,
    own_records: OwnRecordsOption = None,
    effort: Annotated[str, typer.Option(help="quick, normal or full: how many settings and seeds.")] = "normal",
    training: _Training = None,
    workers: Annotated[int, typer.Option(help="Processes; the plan does not depend on it.", min=1)] = 1,
    folder: Annotated[Path, typer.Option(help="Where runs are saved; a stopped plan resumes.")] = Path("out/plan"),
    plot: _Plot = None,
    json: Json = False,
) -> None:
    """Say what a model will cost: money → accuracy, largest lifetime ε, pay per client.

    Runs the whole market and training on the data set or a public stand-in, spends nobody's money, and picks
    rounds, budget a round, rule, price and server rate. Settings are chosen on validation records with seeds of
    their own; figures come from other seeds and test records. Ends with exit code 1 if no run reaches the target,
    and says what was tried.

    [bold]Examples[/bold]

      privmarket plan --dataset digits --clients 20 --trust aggregate --target 0.85 --effort quick --own-records 40

      privmarket plan --dataset mnist --alpha 0.1 --target 0.94 --workers 2 --plot plan.png

      privmarket plan --dataset mnist --proxy public.npz --scenario past-bids.csv --total 500 --wallet 3 --json
    """
    if target is not None and total is not None:
        raise ConfigurationError("--target and --total exclude each other", "give one of them")
    if target is not None and not 0 < target < 1:
        raise ConfigurationError(f"--target is {target:g}", "give a share between 0 and 1, e.g. 0.95")
    options = _options(effort, rounds)
    # What is recommended for a sum learns most for little money under local trust, too.
    usual = recommended_training(settings["dataset"], "aggregate")
    base = with_training(FederationConfig(**settings, training=usual), training)
    totals = planning.checked_totals(_totals(money, total, base))
    check_writable(folder / "a-run.json", "--folder")
    stand_in = None if proxy is None else plan_runs.PublicProxy.at(proxy)
    if stand_in is not None:
        plan_runs.check_proxy(stand_in.load("test"), base.dataset)
    if plot is not None:
        check_plot(plot)
        check_writable(plot, "--plot")
    own = None
    if own_records is not None:
        kept, test = (plan_runs.records_of(base, stand_in, part) for part in ("validation", "test"))
        own = baselines.measure_own_records(kept, test, own_records, seed=base.seed)
    planner = planning.Planner(base, folder, options, proxy=stand_in, workers=workers)
    with ProgressBar("planning", _expected(planner, totals, target is not None)) as bar:
        planner.on_cell = bar.advance
        made = planner.for_target(target, totals) if target is not None else planner.for_totals(totals)
        bar.finish()
    if plot is not None:
        note(f"plot: {write_plan(made, plot)}")
    if json:
        print_json({**made.to_json(), "own_records": None if own is None else asdict(own)})
    else:
        if own is not None:
            print(verdicts.own_records_sentence(own))
        print_table(_table(made))
        for line in _advice(made, effort):
            print(line)
        if own is None:
            note("What do your own records give for nothing? Add --own-records and how many you have.")
    if not made.reached:
        raise typer.Exit(1)


def _expected(planner: Planner, totals: list[float], target: bool) -> int:
    trust = planner.base.trust
    return plan_choices.expected_cells(planner.options, len(totals), len(planner.rules), trust, target=target)


def _totals(money: str | None, total: float | None, base: FederationConfig) -> list[float]:
    if total is not None:
        return [total]
    if money is None:
        return plan_choices.usual_totals(base.clients, base.trust)
    return _numbers("--money", money, float)


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(word) for word in text.split(",")] if text.strip() else []
    except ValueError as error:
        raise ConfigurationError(f"{option} {text!r}", "write numbers with commas, e.g. 10,30,90") from error


def _options(effort: str, rounds: str | None) -> Options:
    if effort not in plan_choices.EFFORTS:
        raise ConfigurationError(f"unknown effort {effort!r}", f"choose one of: {', '.join(plan_choices.EFFORTS)}")
    chosen = plan_choices.EFFORTS[effort]
    return chosen if rounds is None else replace(chosen, rounds=tuple(sorted(_numbers("--rounds", rounds, int))))


def _table(made: Plan) -> Table:
    base = made.base
    title = (
        f"{base.dataset}, {counted(base.clients, 'client')}, α = {base.alpha:g}, law {base.scenario}, "
        f"{base.trust} trust, {counted(made.cells, 'run')}"
        + ("" if made.heterogeneity is None else f", H = {made.heterogeneity:g} measured")
    )
    table = Table(title=title)
    columns = (
        "money",
        "accuracy",
        "lowest–highest",
        "lifetime ε ≤",
        "pay/client",
        "most",
        "rounds",
        "a round",
        "rate",
    )
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("rule")
    for point in made.points:
        chosen = "bold" if point is made.chosen else ""
        table.add_row(
            amount(point.total),
            _with_deviation(point),
            f"{point.lowest:.2%}–{point.highest:.2%}" if point.seeds > 1 else "one seed",
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


def _with_deviation(point: Point) -> str:
    return f"{point.accuracy:.2%}" + (f" ± {point.deviation:.2%}" if point.seeds > 1 else "")


def _advice(made: Plan, effort: str) -> list[str]:
    """Lines that say what to do with the plan."""
    if made.target is not None and made.chosen is None:
        return _not_reached(made, made.target, effort)
    if made.chosen is None:
        return []
    point = made.chosen
    largest = f"nobody's lifetime ε above {point.lifetime_epsilon:.3g} at δ = {made.base.delta:g}"
    if point.epsilon_if_others_collude is not None:
        largest += (
            f" if {made.base.honest_share:.1%} of each round's sellers are honest and present, above "
            f"{point.epsilon_if_others_collude:.3g} if all others collude"
        )
    return [
        f"For {amount(point.total)}: {_with_deviation(point)} over {counted(point.seeds, 'seed')}; {largest}.",
        _command(made.base, point),
    ]


def _not_reached(made: Plan, target: float, effort: str) -> list[str]:
    """What was tried for a target that no run reached, nothing about what was not, and the next command."""
    tried = made.tried
    best = max(made.points, key=lambda point: point.accuracy)
    dearest = max(made.points, key=lambda point: point.total)
    largest = dearest.total
    ceiling = made.ceiling or 0.0
    changes = {"--rounds": f"{max(tried.rounds)},{3 * max(tried.rounds)}"}
    settings = f"{counted(best.choice.rounds, 'round')} at a server rate of {best.choice.server_rate:g}"
    if ceiling < target:
        meaning = "More money for these very settings is not likely to pass that; other settings may."
    elif dearest.spent < 0.9 * largest:
        cap = "" if made.base.wallet is None else f", within a lifetime ε of {made.base.wallet:g}"
        meaning = (
            f"Of the largest total only {amount(dearest.spent)} was spent{cap}: more money is not what is missing "
            "there; other settings may do."
        )
    else:
        meaning = "More money may do, with these settings or others."
        changes = {"--money": f"{4 * largest:g},{16 * largest:g}"}
    wider = {"quick": "normal", "normal": "full"}.get(effort)
    if wider is not None:
        changes = {"--effort": wider, "--rounds": ""}
    return [
        f"Not reached: {target:.2%}. The best of what was tried: {_with_deviation(best)} for {amount(best.total)}.",
        f"Tried: {_listed(tried.rounds)} rounds; server rates {_listed(tried.server_rates)}; "
        f"{counted(tried.rules, 'rule')}; {counted(len(made.points), 'total')} up to {amount(largest)}. "
        f"Settings were chosen with {counted(tried.search_seeds, 'seed')}, figures come from "
        f"{counted(tried.seeds, 'seed')}.",
        f"With all clients and no noise, {settings} give {ceiling:.2%}. {meaning}",
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


def _command(base: FederationConfig, point: Point) -> str:
    """The `privmarket federate` command that makes the run of this point."""
    words = ["privmarket federate", f"--dataset {base.dataset} --clients {base.clients} --alpha {base.alpha:g}"]
    words += [f"--scenario {base.scenario} --rounds {point.choice.rounds} --budget {point.budget_per_round:.6g}"]
    words += [f"--mechanism {point.choice.rule}"]
    words += [f"--mechanism-set {name}={value}" for name, value in point.choice.settings]
    words += [f"--set server_rate={point.choice.server_rate:g}", *_training_words(base)]
    words += [] if base.trust == "local" else [f"--trust {base.trust} --honest-share {base.honest_share:.6g}"]
    words += [] if base.wallet is None else [f"--wallet {base.wallet:g}"]
    words += [] if base.delta == FederationConfig.delta else [f"--delta {base.delta:g}"]
    return " ".join(words)


def _training_words(base: FederationConfig) -> list[str]:
    """The training's settings that are not what `federate` takes by itself; the rate is the plan's choice."""
    usual, chosen = recommended_training(base.dataset, base.trust), base.training
    names = [one.name for one in fields(chosen) if one.name != "server_rate"]
    return [f"--set {n}={getattr(chosen, n)}" for n in names if getattr(chosen, n) != getattr(usual, n)]
