"""The pages about the mean-field game, rendered from kept result files: no figure is typed by hand.

`python -m privmarket_studies.game_results docs/results` writes the pages again from the files in `equilibrium` and
`nash-gap`; with `--measure` the default game is solved anew, in seconds, and its figure drawn. The comparison of
methods is what `python -m privmarket_studies.solver_comparison docs/results` writes, the Nash gap what
`privmarket nash-gap --out docs/results/nash-gap` writes.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

import jinja2
import numpy as np

from privmarket import __version__
from privmarket._files import write_atomically
from privmarket.meanfield import DiscreteGame, Equilibrium, Grid, Problem, exploitability, solve
from privmarket_studies.nash_gap_study import SIZES, Measure, NashGapReport, recorded_time
from privmarket_studies.solver_comparison import AFTER, MethodRow, Methods, Shared

EQUILIBRIUM = "equilibrium"
NASH_GAP = "nash-gap"
FINE = Grid(128, 127, 100)


class Played(TypedDict):
    """One strategy played by all: prices over time, what a client earns and what it sells."""

    price: list[float]
    earned: float
    sold: float


class EquilibriumFacts(TypedDict):
    """What the page about the default problem says."""

    version: str
    grid: str
    horizon: float
    budget_per_client: float
    sale_cap: float
    iterations: int
    seconds: float
    price_difference_of_two_starts: float
    exploitability: float
    exploitability_on_fine_grid: float
    fine_grid: str
    exploitability_of_truth: float
    truthful: Played
    solved: Played


def measure_equilibrium() -> EquilibriumFacts:
    """The default problem: convergence, what deviations gain, and what looking ahead changes."""
    solved = solve(Problem.from_scenario())
    other = solve(Problem.from_scenario(), start="patient")
    naive = np.zeros_like(solved.shadow_price)
    myopic = solved.game.flow(naive)
    step = solved.game.mesh.step
    return {
        "version": __version__,
        "grid": str(solved.grid),
        "horizon": solved.problem.horizon,
        "budget_per_client": solved.problem.budget_per_client,
        "sale_cap": solved.problem.market.most_sold,
        "iterations": solved.statistics.iterations,
        "seconds": solved.statistics.seconds,
        "price_difference_of_two_starts": float(np.abs(solved.price - other.price).max()),
        "exploitability": max(solved.relative_exploitability, 0.0),
        "exploitability_on_fine_grid": _on_a_finer_grid(solved) / solved.mean_payment,
        "fine_grid": str(FINE),
        "exploitability_of_truth": exploitability(naive, solved.game) / solved.mean_payment,
        "truthful": {
            "price": myopic.price.tolist(),
            "earned": myopic.earned,
            "sold": float(myopic.sold.sum() * step),
        },
        "solved": {
            "price": solved.price.tolist(),
            "earned": solved.flow.earned,
            "sold": float(solved.flow.sold.sum() * step),
        },
    }


def _on_a_finer_grid(solved: Equilibrium) -> float:
    """What the best deviation gains when the solved bid function is played, interpolated, on `FINE`."""
    game = DiscreteGame(solved.problem, solved.scheme, FINE)
    mesh = game.mesh
    strategy = solved.strategy()
    price = np.repeat(solved.price, FINE.time_steps // solved.grid.time_steps)
    v = mesh.valuation[:, None]
    r = mesh.budget - 0.5 * mesh.budget_width
    shadow = np.stack([strategy(v, r, t) - v for t in mesh.time[:-1]])[:, None]
    value, _ = game.best_response(price)
    return float(game.starting_value(value) - game.flow(shadow, price).earned)


def render_equilibrium(facts: EquilibriumFacts, methods: Methods, shared: Shared) -> str:
    """The page about the default problem and the ways to solve it, from its figures."""
    solved = facts["solved"]
    truthful = facts["truthful"]
    return _filled(
        "equilibrium.md",
        facts=facts,
        low=min(solved["price"]),
        high=max(solved["price"]),
        first=truthful["price"][0],
        last=truthful["price"][-1],
        earn=solved["earned"] / truthful["earned"] - 1.0,
        sell=solved["sold"] / truthful["sold"] - 1.0,
        methods=methods,
        after=AFTER,
        rows=[_method_row(row) for row in methods["rows"]],
        shared=shared,
        same=max(shared["same_algorithm_price_difference"].values()),
    )


def _method_row(row: MethodRow) -> dict[str, object]:
    """One method on one game as the table shows it."""
    found = dict(zip(row["after"], row["exploitability"], strict=True))
    reached = [s for gain, s in zip(row["exploitability"], row["seconds"], strict=True) if gain <= 1e-5]
    return {
        "game": row["game"],
        "method": row["method"],
        "cells": [f"{found[k]:.0e}" if k in found else "–" for k in AFTER],
        "per_iteration": f"{1000 * row['seconds'][-1] / row['after'][-1]:.0f}",
        "reached": f"{reached[0]:.2g} s" if reached else "not",
        "ended": row["result"] if row["result"] != "converged" else f"converged after {row['iterations']}",
    }


def render_nash_gap(report: NashGapReport) -> str:
    """The page about the Nash gap, from its figures."""

    def share(key: str, name: Measure = "hindsight") -> float:
        cell = report["cells"][key]
        return float(np.mean(np.array(cell[name]) / np.array(cell["mean_payment"])))

    def limit(clients: int) -> float:
        cell = report["cells"][f"iid/mean-field-menu/{clients}"]
        return float(cell["own_state_limit"] / np.mean(cell["mean_payment"]))

    def slope(key: str, scale: str = "relative") -> str:
        fit = report["slopes"][f"{key}/{scale}"]
        assert fit is not None, f"{key} follows no power law"
        return f"{fit['slope']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]".replace("-", "−")

    def regret(name: str, clients: int) -> float:
        cell = report["proxy"][f"{name}/{clients}"]
        return float(np.mean(cell["regret"]) / np.mean(cell["mean_payment"]))

    return _filled(
        "nash-gap.md",
        share=share,
        limit=limit,
        slope=slope,
        regret=regret,
        searched=_searched(report),
        setting=report["setting"],
        largest=max(SIZES),
        time=recorded_time(report),
        proxy_sizes=report["setting"]["proxy_sizes"],
    )


def _searched(report: NashGapReport) -> list[dict[str, float]]:
    """Per number of clients: the best other shading's gain and truth's, as shares of the mean payment."""
    found = []
    for cell in report["search"].values():
        paid = float(np.mean(report["cells"][f"iid/mean-field-menu/{cell['clients']}"]["mean_payment"]))
        truth = next(s for s in cell["shadings"] if (s["share"], s["extra"]) == (0.0, 0.0))
        found.append(
            {
                "clients": cell["clients"],
                "best": cell["best_gain"] / paid,
                "error": cell["standard_error"] / paid,
                "truth": truth["gain"] / paid,
            }
        )
    return found


def _filled(name: str, **values: object) -> str:
    text = (files("privmarket_studies") / "templates" / name).read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True)
    page: str = template.render(percent=_percent, **values)
    return page.strip() + "\n"


def _percent(value: float, digits: int = 2) -> str:
    """A share in per cent to so many significant digits, with a minus sign instead of a hyphen."""
    return f"{float(f'{100 * value:.{digits}g}'):g} %".replace("-", "−")


def rendered(folder: Path) -> dict[Path, str]:
    """Every page with its text, from the files in `folder`."""

    def kept(page: str, name: str) -> Any:
        return json.loads((folder / page / f"{name}.json").read_text(encoding="utf-8"))

    solved = [kept(EQUILIBRIUM, name) for name in (EQUILIBRIUM, "methods", "mfglib")]
    return {
        folder / EQUILIBRIUM / "README.md": render_equilibrium(*solved),
        folder / NASH_GAP / "README.md": render_nash_gap(kept(NASH_GAP, NASH_GAP)),
    }


if __name__ == "__main__":
    results = Path(sys.argv[1])
    if "--measure" in sys.argv[2:]:
        place = results / EQUILIBRIUM / f"{EQUILIBRIUM}.json"
        write_atomically(place, json.dumps(measure_equilibrium(), indent=1) + "\n")
        solve(Problem.from_scenario()).plot(results.parent / "images" / "equilibrium.png")
    for path, text in rendered(results).items():
        write_atomically(path, text)
        print(path)
