"""One self-contained HTML page about a federated run: figures, tables, the settings that give it again.

Plotly's script is written into the page from its own wheel, so the page needs no network.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privmarket.federated.state import RunResult
from privmarket.federated.summary import summarise
from privmarket.privacy.words import rounded_up_percent
from privmarket.rounds import MICRO

if TYPE_CHECKING:
    from privmarket.federated.privacy_attacks import AttackResult

# Okabe–Ito colours: told apart under the common colour-vision deficiencies.
_HEADROOM = 1.12  # of the axis above a full wallet, for the label of the cap
_RUN_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#999999", "#CC79A7")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def write_report(
    path: Path,
    runs: Mapping[str, RunResult],
    *,
    facts: Mapping[str, str],
    command: str,
    attacks: Sequence[AttackResult] = (),
) -> Path:
    """Writes the page; the first run is the one it is about, the others are drawn for comparison.

    Args:
        facts: label → value, shown as tiles at the top.
        command: what to type to get the run again.
        attacks: attacks on the first run's releases and model, shown beside what was claimed.
    """
    import jinja2
    import plotly.offline

    main = next(iter(runs.values()))
    summary = summarise(main, rounds=False)
    figures = [
        ("Test accuracy", accuracy_figure(runs)),
        ("Who sold how much ε, round by round", sales_figure(main)),
        ("Money and ε per round", money_figure(main)),
        ("What each client has spent of its privacy, and what its wallet has left", wallet_figure(summary)),
    ]
    template = jinja2.Template(
        (files("privmarket.reports") / "templates" / "federated_report.html").read_text(encoding="utf-8"),
        autoescape=True,
    )
    page = template.render(
        script=plotly.offline.get_plotlyjs(),
        facts=dict(facts),
        figures=[(title, _html(figure, f"figure-{i}")) for i, (title, figure) in enumerate(figures)],
        runs=[(label, _line(run)) for label, run in runs.items()],
        clients=sorted(summary["clients"], key=lambda row: -row["paid"]),
        config=json.dumps(summary["config"], indent=2, ensure_ascii=False),
        versions=summary["versions"],
        command=command,
        dropped=summary["dropped"],
        attacks=[_attack_line(attack) for attack in attacks],
        attack_picture=_picture(attacks) if attacks else "",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _line(run: RunResult) -> dict[str, str]:
    """One row of the comparison."""
    summary = summarise(run, rounds=False)
    private = run.config.mode == "private"
    return {
        "accuracy": f"{run.accuracy:.1%}",
        "spent": f"{run.spent:,.2f}" if run.config.mode != "no-dp" else "–",
        "epsilon": f"{summary['epsilon_bought']:,.1f}" if run.config.mode != "no-dp" else "–",
        "largest": f"{summary['largest_epsilon_spent']:.1f}" if private else "no guarantee",
    }


def accuracy_figure(runs: Mapping[str, RunResult]) -> Any:
    """Accuracy after each round, one line per run."""
    figure = _figure("round", "test accuracy")
    for (label, run), colour in zip(runs.items(), _RUN_COLOURS, strict=False):
        measured = [(r.number + 1, r.accuracy) for r in run.records if r.accuracy is not None]
        x, y = zip(*measured, strict=True)
        first = run is next(iter(runs.values()))
        line = {"color": colour, "width": 3 if first else 1.8, "dash": "solid" if first else "dot"}
        figure.add_scatter(x=list(x), y=list(y), name=label, mode="lines", line=line)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def sales_figure(run: RunResult) -> Any:
    """A map of ε sold: clients by rising valuation, rounds from left to right."""
    order = np.argsort(run.types.valuation, kind="stable")
    sold = np.zeros((run.config.clients, len(run.records)))
    for record in run.records:
        for client, epsilon in record.sold_epsilon.items():
            sold[int(client), record.number] = epsilon
    # A market of a thousand clients is drawn by its hundred cheapest rows: the rest would be thinner than a line.
    order = order[:100]
    figure = _figure("round", "client (what it asks per unit of ε)")
    labels = [f"{i} ({run.types.valuation[i]:.2f})" for i in order]
    figure.add_heatmap(
        z=sold[order],
        x=[r.number + 1 for r in run.records],
        y=labels,
        colorscale=[[0, "#f3f1ec"], [0.001, "#fde3cf"], [1, "#D55E00"]],
        colorbar={"title": {"text": "ε sold"}, "thickness": 12},
        hovertemplate="round %{x}<br>client %{y}<br>ε = %{z:.2f}<extra></extra>",
    )
    figure.update_yaxes(type="category")
    figure.update_layout(height=max(360, 16 * len(order) + 120))
    return figure


def money_figure(run: RunResult) -> Any:
    """Money paid and refunded per round, and ε bought on a second axis."""
    rounds = [r.number + 1 for r in run.records]
    figure = _figure("round", "money")
    figure.add_bar(x=rounds, y=[r.spent_micro / MICRO for r in run.records], name="paid", marker_color="#0072B2")
    figure.add_bar(
        x=rounds, y=[r.refunded_micro / MICRO for r in run.records], name="refunded", marker_color="#c9d6df"
    )
    figure.add_scatter(
        x=rounds,
        y=[r.total_epsilon for r in run.records],
        name="ε bought (right)",
        yaxis="y2",
        mode="lines",
        line={"color": "#D55E00", "width": 2.5},
    )
    figure.update_layout(
        barmode="stack",
        yaxis2={
            "title": "ε bought",
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "tickmode": "auto",
            "automargin": True,
            "showgrid": False,
        },
    )
    return figure


def wallet_figure(summary: Mapping[str, Any]) -> Any:
    """Total ε spent per client, and the share of its wallet that is left."""
    rows = sorted(summary["clients"], key=lambda row: row["valuation"])[:100]
    names = [str(row["client"]) for row in rows]
    figure = _figure("client, by rising valuation", f"total ε at δ = {summary['config']['delta']:g}")
    figure.add_bar(x=names, y=[row["epsilon_spent"] or 0.0 for row in rows], name="ε spent", marker_color="#D55E00")
    cap = summary["config"]["wallet"]
    if cap is not None:
        figure.update_yaxes(range=[0, _HEADROOM * cap])
        figure.add_hline(
            y=cap,
            line={"color": "#333333", "dash": "dash"},
            annotation_text=f"lifetime cap {cap:g}",
            annotation_position="top left",
        )
        figure.add_scatter(
            x=names,
            y=[row["wallet_left"] for row in rows],
            name="wallet left (right)",
            mode="markers",
            yaxis="y2",
            marker={"color": "#0072B2", "size": 9, "symbol": "diamond"},
        )
        figure.update_layout(
            yaxis2={
                "title": "wallet left",
                "overlaying": "y",
                "side": "right",
                "tickformat": ".0%",
                "range": [0, _HEADROOM],
                "automargin": True,
                "tickmode": "array",
                "tickvals": [0, 0.25, 0.5, 0.75, 1],
                "showgrid": False,
            }
        )
    figure.update_xaxes(type="category")
    return figure


def _figure(x_title: str, y_title: str) -> Any:
    import plotly.graph_objects as go

    axis = {"gridcolor": "#e7e3da", "zeroline": False, "linecolor": "#999999"}
    return go.Figure(
        layout={
            "font": {"family": _FONT, "size": 13, "color": "#222222"},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            # Margins grow with what stands in them, and the legend is below: on a phone it has several lines.
            "margin": {"l": 10, "r": 10, "t": 20, "b": 10},
            "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
            "xaxis": {**axis, "title": x_title, "automargin": True},
            "yaxis": {**axis, "title": y_title, "automargin": True},
            "height": 440,
        }
    )


def _html(figure: Any, name: str) -> str:
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"displayModeBar": False, "responsive": True},
    )
    return html


def _attack_line(attack: AttackResult) -> dict[str, str]:
    return {
        "name": attack.name,
        "claimed": f"{attack.claim_epsilon:.2f}",
        "seen": f"{attack.audit.epsilon_lower:.2f}",
        "guess": f"{100 * attack.guess:.1f} ± {100 * attack.guess_margin:.1f} %",
        "allowed": rounded_up_percent(attack.claim_guess),
        "verdict": "refuted" if attack.refuted else "stands",
    }


def _picture(attacks: Sequence[AttackResult]) -> str:
    """The figure of the attacks as a data address, so that the page stays one file."""
    from privmarket.reports.attack_figure import attack_figure

    buffer = io.BytesIO()
    attack_figure(attacks).savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
