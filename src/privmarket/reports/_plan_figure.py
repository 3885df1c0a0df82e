"""Money → accuracy, lifetime ε and pay of a plan, as a picture (PNG, SVG) or a page (HTML)."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from privmarket import _svg as charts
from privmarket._counted import counted
from privmarket._files import write_atomically
from privmarket._svg import Line
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        plan.plot(path)
    return path


def check_plot(path: Path) -> None:
    """Refuses a name that does not say how to draw."""
    if path.suffix not in PLOT_ENDINGS:
        raise ConfigurationError(f"a plot called {path.name!r}", f"let its name end in {', '.join(PLOT_ENDINGS)}")


def _titles(plan: Plan) -> tuple[str, ...]:
    return (f"{plan.score.heading} on test records", *_PANELS[1:])


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
        return _PAGE.format(style=charts.STYLE, panels=f"<p>{escape(plan.sentence())}</p>", spent_on=spent_on)
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
            y_text=(lambda y: plan.score_text(y)) if i == 0 else (lambda y: f"{y:g}"),
            y_from_zero=i > 0,
            x_log=True,
            levels=levels if i == 0 else (),
        )
        for i, (title, of_panel) in enumerate(zip(_titles(plan), lines, strict=True))
    ]
    panels = "".join(f"<h2>{title}</h2>{chart}" for title, chart in zip(_titles(plan), drawn, strict=True))
    return _PAGE.format(style=charts.STYLE, panels=panels, spent_on=spent_on)
