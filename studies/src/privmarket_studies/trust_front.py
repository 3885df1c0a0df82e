"""The front page's picture (money → accuracy for every rule, both trusts in one panel) and two of its sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import new_figure, save
from privmarket_studies.page_text import largest_exposed
from privmarket_studies.trust_results import (
    MONEY_TICKS,
    TARGET,
    cheapest_rules,
    compared,
    curve,
    draw_own_records,
    load,
)
from privmarket_studies.trust_runs import BARS, RULES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "front"
_COLOURS = {"aggregate": "#0072B2", "local": "#D55E00"}
_SEES = {"aggregate": "the server sees\nonly the sum of updates", "local": "the server sees\nevery update"}
_LOWEST = 70.0
_HIGHEST = 100.5
_PARTS = {4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh", 8: "an eighth", 9: "a ninth", 10: "a tenth"}


def caption(folder: Path) -> str:
    """The caption of the picture, as README and the start page show it."""
    runs = folder / "runs"
    seeds = max(len(results) for rule in RULES for _, results in curve(runs, "aggregate", rule))
    text = (
        "Handwritten digits (MNIST) spread very unevenly over 100 clients, every record protected: test accuracy "
        "against all the money paid (clients ask between 0 and 1 for a unit of ε). One line per auction rule; "
        f"bold, with mean and standard deviation over up to {seeds} seeds, the cheapest rule of each kind."
    )
    found = compared(runs)
    if found is not None:
        text += (
            f" {TARGET:.0%} took about {part(found.ratio)} of the money where the server sees only the sum of the "
            "updates, if sellers charge the same for ε under both; most of that is √(honest sellers)."
        )
    return text


def part(ratio: float) -> str:
    """A ratio below 1 as a part in words: a sixth."""
    return _PARTS.get(round(1 / ratio), f"1/{1 / ratio:.0f}")


def draw_front(folder: Path) -> list[Path]:
    """Draws the picture and writes it to `front.png` and `front.svg`; returns the files."""
    figure = new_figure(8.0, 4.0)
    axes = figure.subplots()
    cheapest = cheapest_rules(folder / "runs")
    for trust in _COLOURS:
        for rule in RULES:
            _line(axes, folder / "runs", trust, rule, bold=rule == cheapest.get(trust, ("",))[0])
    axes.axhline(100 * TARGET, color="#999999", lw=0.8, ls=":", zorder=0)
    draw_own_records(axes, 390)
    axes.set(xscale="log", xlim=(1.2, 400), ylim=(_LOWEST, _HIGHEST))
    axes.set(xlabel="money paid to all clients together", ylabel="test accuracy")
    axes.set_xticks(MONEY_TICKS, [str(tick) for tick in MONEY_TICKS], minor=False)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:.0f}%")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    for trust, x, y in (("aggregate", 1.3, 96.9), ("local", 110.0, 80.0)):
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


def headline(folder: Path) -> str:
    """What is reached under aggregate trust within a lifetime ε, with what that ε supposes, in one sentence."""
    said = {}
    exposed = {}
    for run in BARS:
        results = load(folder / "runs", run)
        said[run.name] = f"{np.mean([100 * result['accuracy'] for result in results]):.1f} %"
        exposed[run.name] = f"{largest_exposed(results):.1f}"
    one = "mnist-0.1-epsilon-1"
    three = "mnist-0.1-epsilon-3"
    fashion = "fashion-mnist-0.5-epsilon-3"
    cifar = "cifar10-0.5-epsilon-3"
    return (
        f"If two thirds of a round's sellers are honest, MNIST reaches {said[one]} within a lifetime ε of 1 "
        f"({exposed[one]} if all others collude) and {said[three]} within 3 ({exposed[three]} if all others "
        f"collude), Fashion-MNIST {said[fashion]} and CIFAR-10 {said[cifar]} within 3 ({exposed[fashion]} if all "
        "others collude)"
    )
