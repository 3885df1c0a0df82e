"""`privmarket plan`: what a model will cost before anyone is paid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table

from privmarket.cli.federate import with_training
from privmarket.cli.options import Json, note, print_json, print_table, takes_settings
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
else:
    plan_choices = late("privmarket.federated.plan_choices")
    plan_runs = late("privmarket.federated.plan_runs")
    planning = late("privmarket.federated.planning")

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
    their own; figures come from other seeds and test records. Ends with exit code 1 if the target is out of reach.

    [bold]Examples[/bold]

      privmarket plan --dataset digits --clients 20 --effort quick

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
    planner = planning.Planner(base, folder, options, proxy=stand_in, workers=workers)
    with ProgressBar("planning", _expected(planner, totals, target is not None)) as bar:
        planner.on_cell = bar.advance
        made = planner.for_target(target, totals) if target is not None else planner.for_totals(totals)
        bar.finish()
    if plot is not None:
        note(f"plot: {write_plan(made, plot)}")
    if json:
        print_json(made.to_json())
    else:
        print_table(_table(made))
        for line in _advice(made):
            print(line)
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


def _advice(made: Plan) -> list[str]:
    """Lines that say what to do with the plan."""
    if made.target is not None and made.chosen is None:
        best = max(made.points, key=lambda point: point.accuracy)
        below = made.ceiling is not None and made.target < made.ceiling
        other = "another model or features (--set) or more rounds (--rounds)"
        return [
            f"{made.target:.2%} is out of reach: {best.accuracy:.2%} for {amount(best.total)} was the best.",
            f"With all clients and no noise these rounds reach {made.ceiling:.2%}: money alone does not pass that. "
            + (f"Try more money (--money), {other}." if below else f"Try {other}."),
        ]
    if made.chosen is None:
        return []
    seeds, largest = counted(made.chosen.seeds, "seed"), made.chosen.lifetime_epsilon
    return [
        f"For {amount(made.chosen.total)}: {_with_deviation(made.chosen)} over {seeds}; "
        f"nobody's lifetime ε above {largest:.3g} at δ = {made.base.delta:g}.",
        _command(made.base, made.chosen),
    ]


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
