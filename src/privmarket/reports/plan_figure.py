"""Money → accuracy, lifetime ε and pay of a plan, as a picture (PNG, SVG) or a page (HTML)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privmarket.errors import ConfigurationError
from privmarket.files import write_atomically
from privmarket.reports.palette import new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from privmarket.federated.planning import Plan, Point

PLOT_ENDINGS = (".png", ".svg", ".pdf", ".html")
_PANELS = ("accuracy", "largest lifetime ε", "pay per client")


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
    """Three panels over money, accuracy with the range over seeds."""
    figure = new_figure(9.5, 3.4)
    panels = figure.subplots(1, 3)
    money = [point.total for point in plan.points]
    for axes, title, values in zip(panels, _PANELS, _values(plan.points), strict=True):
        axes.plot(money, values, "o-", color="#D55E00")
        axes.set(xscale="log", xlabel="money in all", title=title)
        axes.set_xticks(money, [f"{total:,.4g}" for total in money], minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.25)
    low, high = ([getattr(point, name) for point in plan.points] for name in ("lowest", "highest"))
    panels[0].fill_between(money, low, high, color="#D55E00", alpha=0.2, lw=0)
    panels[1].set_yscale("log")
    panels[1].yaxis.set_major_formatter("{x:g}")
    panels[1].yaxis.set_minor_formatter("{x:g}")
    if plan.target is not None:
        panels[0].axhline(plan.target, color="k", ls="--", lw=0.8)
    if plan.ceiling is not None:
        panels[0].axhline(plan.ceiling, color="#777777", ls=":", lw=1.0)
    if plan.chosen is not None:
        panels[0].plot([plan.chosen.total], [plan.chosen.accuracy], "s", color="k", ms=7)
    return figure


def _values(points: Sequence[Point]) -> tuple[list[float], list[float], list[float]]:
    return (
        [point.accuracy for point in points],
        [point.lifetime_epsilon for point in points],
        [point.pay_per_client for point in points],
    )


def _page(plan: Plan) -> str:
    """One self-contained page."""
    from plotly.graph_objects import Figure as PlotlyFigure
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    page: PlotlyFigure = make_subplots(rows=1, cols=3, subplot_titles=_PANELS)
    money = [point.total for point in plan.points]
    notes = [
        f"{point.choice.rounds} rounds × {point.budget_per_round:,.4g}, {point.choice.label}"
        for point in plan.points
    ]
    for column, values in enumerate(_values(plan.points), start=1):
        page.add_trace(Scatter(x=money, y=values, text=notes, mode="lines+markers", showlegend=False), 1, column)
        page.update_xaxes(type="log", title="money in all", row=1, col=column)
    spread = [(point.highest - point.accuracy, point.accuracy - point.lowest) for point in plan.points]
    page.data[0].error_y = {
        "type": "data",
        "symmetric": False,
        "array": [up for up, _ in spread],
        "arrayminus": [down for _, down in spread],
    }
    page.update_yaxes(type="log", row=1, col=2)
    for value, look in ((plan.target, "dash"), (plan.ceiling, "dot")):
        if value is not None:
            page.add_hline(y=value, line_dash=look, row=1, col=1)
    html: str = page.to_html(include_plotlyjs=True, full_html=True)
    return html
