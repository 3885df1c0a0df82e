"""`privmarket equilibrium`: solve the mean-field game."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from privmarket._counted import counted
from privmarket._files import check_writable
from privmarket._lazy import require
from privmarket.cli._options import Json, note, print_json, print_table
from privmarket.errors import ConfigurationError
from privmarket.market._menus import POSTED_PRICE, MenuCurve, from_function
from privmarket.meanfield import Equilibrium, Grid, MenuMarket, Problem, Result, solve

_Volatility = Annotated[float, typer.Option(help="Noise of valuations per √round, over their standard deviation.")]
_METHODS = "How prices are found: best-response, fictitious-play or online-mirror-descent."


def equilibrium(
    scenario: Annotated[str, typer.Option(help="uniform, bimodal, lognormal, or a CSV of past bids.")] = "uniform",
    budget: Annotated[float, typer.Option(help="Money per client and round.")] = 0.1,
    horizon: Annotated[float, typer.Option(help="Rounds that the game lasts.")] = 12.0,
    sale_cap: Annotated[float, typer.Option(help="The most ε that a client sells in a round.")] = 0.3,
    menu: Annotated[str, typer.Option(help="posted: one price; linear: more from lower bids.")] = "posted",
    kinds: Annotated[int, typer.Option(help="Groups of clients, each with its own mean valuation.")] = 1,
    reversion: Annotated[float, typer.Option(help="How fast valuations return to their mean, per round.")] = 0.3,
    volatility: _Volatility = 0.35,
    grid: Annotated[str, typer.Option(help="Valuation cells x budget nodes x time steps.")] = "64x64x50",
    scheme: Annotated[str, typer.Option(help="explicit, or implicit: slower, stable for every step.")] = "explicit",
    method: Annotated[str, typer.Option(help=_METHODS)] = "best-response",
    tolerance: Annotated[float, typer.Option(help="Relative error of prices that is accepted.")] = 1e-6,
    max_iterations: Annotated[int, typer.Option(help="Iterations before it gives up.")] = 200,
    start: Annotated[str, typer.Option(help="Strategy to start from: truthful or patient.")] = "truthful",
    out: Annotated[Path | None, typer.Option(help="Folder for equilibrium.npz and the figure.")] = None,
    json: Json = False,
) -> None:
    """Solve the game in which clients sell a limited budget over many rounds and look ahead.

    Prints the price path, what clients bid and sell, and how much the best deviation would gain. Exit code 1
    means that the tolerance was not reached: the figures printed are then not a solution.

    [bold]Examples[/bold]

      privmarket equilibrium --scenario uniform --budget 0.1 --horizon 12

      privmarket equilibrium --scenario lognormal --budget 0.2 --out out/lognormal --json > lognormal.json

      privmarket equilibrium --kinds 4 --scheme implicit --grid 40x60x30
    """
    if out is not None:
        require("matplotlib")
    check_writable(None if out is None else out / "equilibrium.npz")
    problem = Problem.from_scenario(
        scenario,
        budget_per_client=budget,
        horizon=horizon,
        market=MenuMarket(_curve(menu), sale_cap),
        reversion=reversion,
        relative_volatility=volatility,
        kinds=kinds,
    )
    with Console(stderr=True).status("solving") as status:
        solved = solve(
            problem,
            scheme,
            method=method,
            grid=Grid.parse(grid),
            tolerance=tolerance,
            max_iterations=max_iterations,
            start=start,
            progress=lambda k, change: status.update(f"iteration {k}: prices still change by {change:.1e}"),
        )
    if out is not None:
        _write(solved, out)
    if json:
        print_json(solved.summary())
    else:
        print_table(_table(solved))
    _judge(solved)


def _judge(solved: Equilibrium) -> None:
    """Says on stderr what a reader must know; ends the command with exit code 1 where there is no solution."""
    for remark in solved.notes:
        note(f"note: {remark.message} ({remark.remedy})")
    if solved.result is not Result.CONVERGED:
        note(f"not converged: {solved.result.value} (raise --max-iterations or --tolerance)")
        raise typer.Exit(1)


def _curve(name: str) -> MenuCurve:
    if name == "posted":
        return POSTED_PRICE
    if name == "linear":
        return from_function(lambda s: np.clip(1.0 - s, 0.0, 1.0), 1.0, steps=16)
    raise ConfigurationError(f"unknown menu {name!r}", "choose posted or linear")


def _write(solved: Equilibrium, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    solved.save(out / "equilibrium.npz")
    solved.plot(out / "equilibrium.png")
    for name in ("equilibrium.npz", "equilibrium.png"):
        note(f"written: {out / name}")


def _table(solved: Equilibrium) -> Table:
    statistics = solved.statistics
    title = (
        f"{solved.result.value} after {counted(statistics.iterations, 'iteration')}, {statistics.seconds:.1f} s; "
        f"the best deviation gains {max(solved.relative_exploitability, 0.0):.1e} of the mean payment"
    )
    table = Table(title=title)
    for column in ("round", "price", "mean bid", "mean valuation", "ε sold per round", "can still sell"):
        table.add_column(column, justify="right")
    steps = solved.grid.time_steps
    active = solved.share_with_budget_left()
    curves = (solved.price, solved.mean_bid(), solved.mean_valuation(), solved.flow.sold)
    for n in sorted({round(k * (steps - 1) / 12) for k in range(13)}):
        table.add_row(
            f"{solved.game.mesh.time[n]:.2f}",
            *(f"{curve[n]:.4f}" for curve in curves),
            f"{100 * active[n]:.1f} %",
        )
    return table
