"""Money → accuracy, lifetime ε and pay of a plan, as a picture (PNG, SVG) or a page (HTML)."""

from __future__ import annotations

import math
import textwrap
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from privmarket import _svg as charts
from privmarket._counted import counted
from privmarket._figures import new_figure
from privmarket._files import write_atomically
from privmarket._svg import Line
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from privmarket.simulation._plan import Plan, Point

PLOT_ENDINGS = (".png", ".svg", ".pdf", ".html")
_PANELS = ("score", "largest lifetime ε", "pay per client")
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>privmarket: a plan</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 24px auto; padding: 0 14px; }}
{style}</style></head><body><h1>What a model will cost</h1>
{panels}<h2>What the money is spent on</h2><ul>{spent_on}</ul></body></html>
"""


def write_plan(plan: Plan, path: Path) -> Path:
    """Draws the plan to `path`; the name's ending says how."""
    check_plot(path)
    if path.suffix == ".html":
        write_atomically(path, _page(plan))
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        plan_figure(plan).savefig(path)
    return path


def check_plot(path: Path) -> None:
    """Refuses a name that does not say how to draw."""
    if path.suffix not in PLOT_ENDINGS:
        raise ConfigurationError(f"a plot called {path.name!r}", f"let its name end in {', '.join(PLOT_ENDINGS)}")


def plan_figure(plan: Plan) -> Figure:
    """Three panels over money, the score with its range over seeds; of a plan with one total, a sentence."""
    if len(plan.points) == 1:
        said = new_figure(7.0, 1.2)
        said.text(0.5, 0.5, "\n".join(textwrap.wrap(sentence(plan), 95)), ha="center", va="center", fontsize=9)
        return said
    figure = new_figure(9.5, 3.4)
    panels = figure.subplots(1, 3)
    money = [point.total for point in plan.points]
    for axes, title, values in zip(panels, _titles(plan), _values(plan.points), strict=True):
        axes.plot(money, values, "o-", color="#D55E00")
        axes.set(xscale="log", xlabel="money in all", title=title)
        axes.set_xticks(money, _labels(money), minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.25)
    low, high = ([getattr(point, name) for point in plan.points] for name in ("lowest", "highest"))
    panels[0].fill_between(money, low, high, color="#D55E00", alpha=0.2, lw=0)
    panels[0].yaxis.set_major_formatter(lambda value, _: _score_text(plan, value))
    panels[1].set_yscale("log")
    ticks = _round_numbers([point.lifetime_epsilon for point in plan.points])
    panels[1].set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    panels[1].set_yticks([], minor=True)
    if plan.target is not None:
        panels[0].axhline(plan.target, color="k", ls="--", lw=0.8, label="target")
    if plan.score_before is not None:
        had = counted(plan.own_records, "record")
        panels[0].axhline(plan.score_before, color="#009E73", ls=":", lw=1.4, label=f"your own {had} alone")
    if plan.chosen is not None:
        panels[0].plot([plan.chosen.total], [plan.chosen.score], "s", color="k", ms=7, label="chosen")
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(loc="upper left", bbox_to_anchor=(0.0, -0.18), fontsize=8, frameon=False)
    return figure


def sentence(plan: Plan) -> str:
    """What the first total of a plan buys, in words: one point is no curve."""
    point = plan.points[0]
    score = f"{plan.score.heading} {_score_text(plan, point.score)} on test records"
    if point.lowest < point.highest:
        score += f" ({_score_text(plan, point.lowest)} to {_score_text(plan, point.highest)} over seeds)"
    own = ""
    if plan.score_before is not None:
        had = counted(plan.own_records, "record")
        own = f", where your own {had} alone give {_score_text(plan, plan.score_before)}"
    return (
        f"For {amount(point.total)} in all: {score}{own}; the largest lifetime ε is {point.lifetime_epsilon:.3g}, "
        f"and a client is paid {amount(point.pay_per_client)} on average."
    )


def _titles(plan: Plan) -> tuple[str, ...]:
    return (f"{plan.score.heading} on test records", *_PANELS[1:])


def _score_text(plan: Plan, value: float) -> str:
    """A score on an axis."""
    return f"{100 * value:.3g}%" if plan.score.name in ("accuracy", "balanced-accuracy") else f"{value:.3g}"


def _round_numbers(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around the values, for an axis whose labels do not overlap."""
    sold = [value for value in values if 0 < value < math.inf] or [1.0]
    low = min(sold)
    high = max(sold)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [step for step in steps if low / 2.5 <= step <= high * 2.5]


def amount(money: float) -> str:
    """An amount of money with three digits, from a hundred on in whole units."""
    return f"{money:,.0f}" if money >= 100 else f"{money:.3g}"


def _labels(money: Sequence[float]) -> list[str]:
    """Amounts below their ticks; none where the next one to the left is too near on the logarithmic scale."""
    apart = 0.12 * math.log(money[-1] / money[0])
    last = -math.inf
    said = []
    for total in money:
        near = math.log(total) - last < apart
        said.append("" if near else amount(total))
        last = last if near else math.log(total)
    return said


def _values(points: Sequence[Point]) -> tuple[list[float], list[float], list[float]]:
    return (
        [point.score for point in points],
        [point.lifetime_epsilon for point in points],
        [point.pay_per_client for point in points],
    )


def _page(plan: Plan) -> str:
    """One self-contained page: a chart per panel, then what each amount of money was spent on."""
    spent_on = "".join(
        f"<li>{point.total:,.4g}: {counted(point.choice.rounds, 'round')} × {point.budget_per_round:,.4g}, "
        f"{escape(point.choice.label)}</li>"
        for point in plan.points
    )
    if len(plan.points) == 1:
        return _PAGE.format(style=charts.STYLE, panels=f"<p>{escape(sentence(plan))}</p>", spent_on=spent_on)
    money = [point.total for point in plan.points]
    levels = [
        (name, value)
        for name, value in (("target", plan.target), ("your own records alone", plan.score_before))
        if value is not None
    ]
    accuracy, lifetime, pay = _values(plan.points)
    lowest, highest = ([getattr(point, name) for point in plan.points] for name in ("lowest", "highest"))
    lines = [
        [
            Line("mean over seeds", money, accuracy, charts.ORANGE, strong=True, dots=True),
            Line("lowest", money, lowest, charts.GREY, dashed=True),
            Line("highest", money, highest, charts.BLUE, dashed=True),
        ],
        [Line(_PANELS[1], money, lifetime, charts.ORANGE, strong=True, dots=True)],
        [Line(_PANELS[2], money, pay, charts.ORANGE, strong=True, dots=True)],
    ]
    drawn = [
        charts.line_chart(
            of_panel,
            x_title="money in all",
            y_title=title,
            y_text=(lambda y: _score_text(plan, y)) if i == 0 else (lambda y: f"{y:g}"),
            y_from_zero=i > 0,
            x_log=True,
            levels=levels if i == 0 else (),
        )
        for i, (title, of_panel) in enumerate(zip(_titles(plan), lines, strict=True))
    ]
    panels = "".join(f"<h2>{title}</h2>{chart}" for title, chart in zip(_titles(plan), drawn, strict=True))
    return _PAGE.format(style=charts.STYLE, panels=panels, spent_on=spent_on)
