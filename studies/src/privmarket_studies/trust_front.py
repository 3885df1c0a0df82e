"""The front page's picture (money → accuracy for every rule, both trusts in one panel) and two of its sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket.reports.palette import new_figure, save
from privmarket_studies.trust_results import MONEY_TICKS, TARGET, cheapest_rules, curve, load
from privmarket_studies.trust_runs import BARS, RULES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "front"
_COLOURS = {"aggregate": "#0072B2", "local": "#D55E00"}
_SEES = {"aggregate": "the server sees\nonly the sum of updates", "local": "the server sees\nevery update"}
_LOWEST, _HIGHEST = 70.0, 99.0


def caption(folder: Path) -> str:
    """The caption of the picture, as README and the start page show it."""
    runs = folder / "runs"
    cheapest = cheapest_rules(runs)
    seeds = max(len(results) for rule in RULES for _, results in curve(runs, "aggregate", rule))
    text = (
        "Handwritten digits (MNIST) spread very unevenly over 100 clients, every record protected: test accuracy "
        "against all the money paid (clients ask between 0 and 1 for a unit of ε). One line per auction rule; "
        f"bold, with mean and standard deviation over up to {seeds} seeds, the cheapest rule of each kind."
    )
    if len(cheapest) == 2:
        (mine, less), (theirs, more) = cheapest["aggregate"], cheapest["local"]
        text += (
            f" {TARGET:.0%} costs {less:.1f} (`{mine}`) where the server sees only the sum of the updates, and "
            f"{more:.0f} (`{theirs}`) where it sees every update."
        )
    return text


def draw_front(folder: Path) -> list[Path]:
    """Draws the picture and writes it to `front.png` and `front.svg`; returns the files."""
    figure = new_figure(8.0, 4.0)
    axes = figure.subplots()
    cheapest = cheapest_rules(folder / "runs")
    for trust in _COLOURS:
        for rule in RULES:
            _line(axes, folder / "runs", trust, rule, bold=rule == cheapest.get(trust, ("",))[0])
    if len(cheapest) == 2:
        _between(axes, cheapest["aggregate"][1], cheapest["local"][1])
    axes.set(xscale="log", xlim=(1.2, 400), ylim=(_LOWEST, _HIGHEST))
    axes.set(xlabel="money paid to all clients together", ylabel="test accuracy")
    axes.set_xticks(MONEY_TICKS, [str(tick) for tick in MONEY_TICKS], minor=False)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:.0f}%")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    for trust, x, y in (("aggregate", 1.3, 97.0), ("local", 110.0, 80.0)):
        axes.text(x, y, _SEES[trust], color=_COLOURS[trust], fontsize=10.5, weight="bold", va="center")
    return save(figure, folder / NAME, ("png", "svg"))


def _line(axes: Axes, runs: Path, trust: str, rule: str, *, bold: bool) -> None:
    points = curve(runs, trust, rule)
    paid = [float(np.mean([result["spent"] for result in results])) for _, results in points]
    accuracy = [[100 * result["accuracy"] for result in results] for _, results in points]
    mean = [float(np.mean(values)) for values in accuracy]
    if not bold:
        axes.plot(paid, mean, color=_COLOURS[trust], lw=1.0, alpha=0.35)
        return
    spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in accuracy]
    axes.errorbar(paid, mean, spread, color=_COLOURS[trust], lw=2.6, marker="o", ms=6, capsize=3, elinewidth=1.2)


def _between(axes: Axes, less: float, more: float) -> None:
    """Draws the target line and an arrow that says how many times cheaper the target is."""
    height = 100 * TARGET
    axes.axhline(height, color="#999999", lw=0.8, ls=":", zorder=0)
    arrow = {"arrowstyle": "<->", "color": "#333333", "lw": 1.2}
    axes.annotate("", (less, height), (more, height), arrowprops=arrow)
    axes.text(
        np.sqrt(less * more),
        height - 0.4,
        f"{TARGET:.0%} for 1/{more / less:.0f} of the money",
        ha="center",
        va="top",
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8},
    )


def headline(folder: Path) -> str:
    """What is reached under aggregate trust within a lifetime ε, in one sentence."""
    found = {run.name: [100 * result["accuracy"] for result in load(folder / "runs", run)] for run in BARS}
    said = {name: f"{np.mean(values):.1f} %" for name, values in found.items()}
    return (
        f"MNIST reaches {said['mnist-0.1-epsilon-1']} within a lifetime ε of 1 and "
        f"{said['mnist-0.1-epsilon-3']} within 3; Fashion-MNIST {said['fashion-mnist-0.5-epsilon-3']} and CIFAR-10 "
        f"{said['cifar10-0.5-epsilon-3']} within 3"
    )
