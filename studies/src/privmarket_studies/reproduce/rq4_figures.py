"""The figures of RQ4: accuracy curves, final accuracies, the Nash gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import colour, line_look, new_figure
from privmarket_studies.nash_gap_rate import fit_slope
from privmarket_studies.reproduce.document import Results
from privmarket_studies.reproduce.rq4 import ALPHAS
from privmarket_studies.reproduce.rq4_runs import Group, Runs, partition_name
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_NASH_LOOK = {
    "mean-field-menu": ("#D55E00", "o"),
    "mean-field-menu-linear": ("#009E73", "D"),
    "plug-in-menu": ("#882255", "^"),
}


# One rule of each kind: those left out run beside one of these, and are in the tables.
CURVES = ("pac", "jsam", "mean-field-menu", "mfg-regretnet", "no-dp")


def curves(runs: Runs) -> Drawing:
    """A panel per partition, a line per kind of rule."""
    drawing = new_figure(12.0, 4.6)
    panels = drawing.subplots(1, len(ALPHAS), sharey=True)
    started: list[float] = []
    for axes, alpha in zip(panels, ALPHAS, strict=True):
        found = {row: runs.curve(row, alpha) for row in runs.rows if row in CURVES}
        started += _panel(axes, found)
        axes.set(title=partition_name(alpha), xlabel="round")
    # The first rounds would take most of the height.
    panels[0].set_ylim(bottom=np.floor(min(started, default=0.0)))
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return drawing


def _panel(axes: Axes, found: dict[str, dict[int, Measured]]) -> list[float]:
    """Draws curves; returns where each is at its second point."""
    started = []
    for row, curve in found.items():
        if not curve:
            continue
        n = list(curve)
        mean, std = (np.array([getattr(m, name) for m in curve.values()]) for name in ("mean", "std"))
        style = {**line_look(row), **({"ls": "--"} if row == "no-dp" else {})}
        axes.plot(n, 100 * mean, lw=1.2, label=row, markevery=_apart(n), **style)
        axes.fill_between(n, 100 * (mean - std), 100 * (mean + std), color=style["color"], alpha=0.1, lw=0)
        started.append(100 * float(mean[min(1, len(mean) - 1)]))
    axes.grid(alpha=0.25)
    return started


def _apart(rounds: Sequence[int]) -> list[int]:
    """Where markers go: the last five rounds are all measured, their markers would lie on each other."""
    least, chosen = (rounds[-1] - rounds[0]) / 15, [0]
    for place, number in enumerate(rounds):
        if number - rounds[chosen[-1]] > least:
            chosen.append(place)
    return chosen


def other_curves(runs: Runs, group: Group) -> Drawing:
    """The curves of one of the other data sets."""
    drawing = new_figure(7.0, 4.4)
    axes = drawing.subplots()
    started = _panel(axes, {row: runs.curve_in(group, row) for row in CURVES})
    axes.set_ylim(bottom=np.floor(min(started, default=0.0)))
    axes.set(title=f"{group.dataset}, {partition_name(group.alpha)}", xlabel="round", ylabel="test accuracy, %")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return drawing


def final(runs: Runs) -> Drawing:
    """A panel per partition, a bar per mechanism; the axis starts where the worst seed is, and says so."""
    drawing = new_figure(12.0, 4.4)
    panels = drawing.subplots(1, len(ALPHAS), sharey=True)
    names = runs.rows[::-1]
    for axes, alpha in zip(panels, ALPHAS, strict=True):
        seen = [100 * r["accuracy"] for row in names for r in runs.records(row, alpha)]
        start = np.floor(min(seen) - 1.0) if seen else 0.0
        for place, row in enumerate(names):
            mean = runs.measured("accuracy", row, alpha)
            if mean is None:
                continue
            axes.barh(place, 100 * mean.mean - start, left=start, color=colour(row), height=0.66, alpha=0.85)
            axes.errorbar(100 * mean.mean, place, xerr=100 * mean.std, color="#222222", capsize=2, lw=1)
            dots = [100 * r["accuracy"] for r in runs.records(row, alpha)]
            axes.plot(dots, [place] * len(dots), ".", color="white", markeredgecolor="#222222", ms=5, mew=0.5)
        axes.set(title=partition_name(alpha), xlabel=f"final test accuracy, % (axis from {start:g})")
        axes.set_yticks(range(len(names)), names)
        axes.grid(axis="x", alpha=0.25)
    return drawing


TOO_FEW_SEEDS = "too few seeds"
# What differs between the populations is valuations, not records.
POPULATION_NAMES = {"iid": "one kind of valuations", "non-iid": "four kinds of valuations"}


def nash_sizes(results: Results) -> list[int]:
    """Numbers of clients that were measured."""
    return sorted({r.cell.config["clients"] for r in results.all("nash")})


def nash_pairs(results: Results) -> list[tuple[str, str]]:
    """(population, rule) that were measured."""
    return sorted({(r.cell.config["population"], r.cell.config["rule"]) for r in results.all("nash")})


def slope_text(results: Results, population: str, rule: str) -> str:
    """Log-log slope of the gap with its 95 % interval."""
    sizes = nash_sizes(results)
    values = [
        np.array(results.values("hindsight", "nash", population=population, rule=rule, clients=n)) for n in sizes
    ]
    if len(sizes) < 2 or any(v.size < 2 for v in values):
        return TOO_FEW_SEEDS
    fit = fit_slope(sizes, values, np.random.default_rng(0))
    return "not above 0" if fit is None else f"{fit.slope:.2f} [{fit.low:.2f}, {fit.high:.2f}]"


def nash(results: Results) -> Drawing:
    """Panels (c) and (d) of the paper's RQ4, with the gap itself."""
    drawing = new_figure(10.0, 4.4)
    panels = drawing.subplots(1, 2, sharey=True)
    titles = {key: f"({panel}) {name}" for panel, (key, name) in zip("cd", POPULATION_NAMES.items(), strict=True)}
    for axes, (population, title) in zip(panels, titles.items(), strict=True):
        for rule in (r for p, r in nash_pairs(results) if p == population):
            shade, marker = _NASH_LOOK[rule]
            for name, dash in (("hindsight", "-"), ("price_error", ":")):
                if name == "price_error" and rule != "mean-field-menu":
                    continue
                found = [
                    (n, m)
                    for n in nash_sizes(results)
                    if (m := results.measured(name, "nash", population=population, rule=rule, clients=n))
                    if m.mean > 0
                ]
                label = f"{rule}: gap" if name == "hindsight" else "|utility − the mean-field game's|"
                error = [min(m.standard_error, 0.9 * m.mean) if m.seeds > 1 else 0.0 for _, m in found]
                where, means = [n for n, _ in found], [m.mean for _, m in found]
                tint = shade if name == "hindsight" else "#777777"
                axes.errorbar(where, means, yerr=error, color=tint, marker=marker, ls=dash, ms=5, label=label)
        guide = np.array([10.0, nash_sizes(results)[-1]]) if nash_sizes(results) else np.array([10.0, 100.0])
        axes.plot(guide, 0.2 * (guide / 10) ** -0.5, "k:", lw=0.8, label="N^(−1/2)")
        axes.plot(guide, 0.02 * (guide / 10) ** -1.0, "k--", lw=0.8, label="N^(−1)")
        axes.set(xscale="log", yscale="log", xlabel="clients N", title=title)
        axes.grid(alpha=0.25)
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    panels[0].set_ylabel("share of the mean payment")
    return drawing
