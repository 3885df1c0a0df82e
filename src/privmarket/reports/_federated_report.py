"""One self-contained HTML page about a federated run: a verdict, charts with what they show, every client.

The page is one file without a script: it opens without a network, weighs little and prints as it looks.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket import _svg as charts
from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket._svg import Bars, Line
from privmarket.privacy._statement import rounded_down_percent, rounded_up_percent, trust_words
from privmarket.reports._own_records import OwnRecords
from privmarket.reports._verdict import (
    CURRENCY,
    MisreportCheck,
    accuracy_takeaway,
    both_trusts,
    details,
    headline,
    money_takeaway,
    other_trust_sentence,
    own_records_takeaway,
    percent,
    sales_takeaway,
    strength,
    strength_sentence,
    uncertainty_sentence,
    wallet_takeaway,
    worst_promise,
    worst_promise_alone,
)
from privmarket.rounds import MICRO
from privmarket.simulation._bidding import asks_sentence
from privmarket.simulation._config import FederationConfig, statistics_words
from privmarket.simulation._result import ClientRow, RunResult, RunSummary, summarise

if TYPE_CHECKING:
    import jinja2

    from privmarket.reports import _attack_figure as attack_figure
    from privmarket.simulation._attacks import AttackResult
else:
    jinja2 = late("jinja2")
    attack_figure = late("privmarket.reports._attack_figure")

_RUN_COLOURS = (charts.ORANGE, charts.BLUE, charts.GREEN, charts.GREY, charts.PINK)
_MOST_ROWS = 100  # clients in a chart: more would be thinner than a line
_MOST_COLUMNS = 60  # rounds in the map of sales: longer runs show the mean of several rounds
_SEES = {
    "local": "Local trust: the server sees every update",
    "aggregate": "Aggregate trust: the server sees only sums",
}


def write_report(
    path: Path,
    runs: Mapping[str, RunResult],
    *,
    command: str,
    misreports: MisreportCheck | None = None,
    attacks: Sequence[AttackResult] = (),
    names: Sequence[str] = (),
    currency: str = CURRENCY,
    own: OwnRecords | None = None,
    remarks: Sequence[str] = (),
) -> Path:
    """Writes the page; the first run is the one it is about, the others are drawn for comparison.

    Args:
        command: the command that makes the run again.
        misreports: the result of an attack on the auction.
        attacks: attacks on the first run's releases and model, shown beside the claims.
        names: the clients' names; "client 7" and so on if left out.
        currency: the name of a unit of money.
        own: the scores of the buyer's own records alone, stated before anything else.
        remarks: sentences on how the runs came about, at the end of the page.
    """
    main = next(iter(runs.values()))
    # Owners of records have names; clients that share out a data set have numbers.
    of_task = list(main.task.clients) if main.config.task else [f"client {name}" for name in main.task.clients]
    called = list(names) or of_task
    summary = summarise(main, rounds=False)
    template = jinja2.Template(
        (files("privmarket.reports") / "templates" / "federated_report.html").read_text(encoding="utf-8"),
        autoescape=True,
    )
    page = template.render(
        style=charts.STYLE,
        headline=headline(runs, currency, own),
        details=details(runs, misreports),
        other_trust=other_trust_sentence(runs, currency),
        strength=strength_sentence(worst_promise(main), worst_promise_alone(main)),
        sampling="" if own is None else uncertainty_sentence(main, own),
        statistics=_statistics_sentence(main),
        asks=asks_sentence(main.config),
        prices="" if main.prices is None else main.prices.sentence(),
        trusts=[_trust_column(run, currency) for run in both_trusts(runs)],
        figures=_figures(runs, summary, called, currency, own),
        runs=compared_rows(runs, own),
        main_label=next(iter(runs)),
        score_title=score_title(main),
        left=rounded_down_percent,
        sums=main.config.trust == "aggregate" and main.config.privacy.is_private,
        remarks=remarks,
        clients=sorted(summary["clients"], key=lambda row: -row["paid"]),
        names=called,
        currency=currency,
        delta=main.config.delta,
        config=json.dumps(summary["config"], indent=2, ensure_ascii=False),
        versions=summary["versions"],
        command=command,
        dropped=summary["dropped"],
        attacks=[_attack_line(attack) for attack in attacks],
        attack_picture=_picture(attacks) if attacks else "",
    )
    write_atomically(path, page)
    return path


def _statistics_sentence(run: RunResult) -> str:
    """What scaled the inputs, and what that cost as a sale; empty where they were as they are."""
    if run.config.statistics == "none":
        return ""
    said = statistics_words(run.config)
    sentence = f"{said[0].upper()}{said[1:]}."
    if not run.rounds_of_moments:
        return sentence
    return (
        f"{sentence} Wallets were charged for that sale as for any other, and it is in every total of ε and money."
    )


def _trust_column(run: RunResult, currency: str) -> dict[str, str]:
    """One side of the comparison of both trust models."""
    summary = summarise(run, rounds=False)
    promised = worst_promise(run)
    alone = summary["largest_epsilon_if_others_collude"]
    sums = run.config.trust == "aggregate"
    return {
        "title": _SEES["aggregate" if sums else "local"],
        "trust": trust_words("aggregate" if sums else "local", run.config.honest_share),
        "rule": run.config.mechanism,
        "accuracy": shown(run, run.score),
        "paid": f"{run.spent:,.0f} of {run.config.money_in_all:,.0f} {currency}",
        "largest": f"ε = {summary['largest_epsilon_spent']:.3g}",
        "strength": "about nothing" if promised is None else strength(promised.guess),
        "guess": "–" if promised is None else f"at most {rounded_up_percent(promised.guess)}",
        "alone": "the same" if alone is None else f"ε = {alone:.3g}",
    }


def compared_rows(runs: Mapping[str, RunResult], own: OwnRecords | None = None) -> list[tuple[str, dict[str, str]]]:
    """The table that compares runs, the buyer's own records first: a label, and what each column says."""
    rows = []
    if own is not None:
        label = f"your own {own.records} records alone"
        main = next(iter(runs.values()))
        rows.append((label, {"accuracy": shown(main, own.accuracy), "spent": "0", "largest": "0", "alone": "0"}))
    for label, run in runs.items():
        summary = summarise(run, rounds=False)
        largest = summary["largest_epsilon_spent"]
        alone = summary["largest_epsilon_if_others_collude"]
        private = run.config.privacy.is_private
        rows.append(
            (
                label,
                {
                    "accuracy": shown(run, run.score),
                    "spent": f"{run.spent:,.0f}" if run.config.privacy.holds_auctions else "–",
                    "largest": f"{largest:.3g}" if private else "no promise",
                    "alone": ("the same" if alone is None else f"{alone:.3g}") if private else "no promise",
                },
            )
        )
    return rows


def _figures(
    runs: Mapping[str, RunResult],
    summary: RunSummary,
    names: Sequence[str],
    currency: str,
    own: OwnRecords | None,
) -> list[tuple[str, str, str]]:
    """(title, takeaway, chart) in the order of the page."""
    main = next(iter(runs.values()))
    # One number of own records is a level in the first chart; several are a chart of their own.
    free = [_own_figure(own, main.score)] if own is not None and len(own.curve) > 1 else []
    return [
        ("How well the model does", accuracy_takeaway(runs), accuracy_chart(runs, own)),
        *free,
        ("Who sold, and when", sales_takeaway(main), sales_chart(main, names)),
        ("Where the money went", money_takeaway(main, currency), money_chart(main, currency)),
        (
            "What each client has spent of its privacy",
            wallet_takeaway(summary["clients"], main.config.wallet, names),
            wallet_chart(main.config, summary["clients"], names),
        ),
    ]


def _own_figure(own: OwnRecords, accuracy: float) -> tuple[str, str, str]:
    """What other numbers of own records would give, beside what the market gave."""
    records = [records for records, _ in own.curve]
    reached = [accuracy for _, accuracy in own.curve]
    chart = charts.line_chart(
        [Line("your own records alone", records, reached, charts.GREEN, strong=True, dots=True)],
        x_title="records of your own",
        y_title="right on the test",
        y_text=lambda y: f"{y:.0%}",
        levels=[(f"the market's model, {percent(accuracy)}", accuracy)],
        names_right=True,
    )
    return "How many records of your own would do as well", own_records_takeaway(own, accuracy), chart


def accuracy_chart(runs: Mapping[str, RunResult], own: OwnRecords | None = None) -> str:
    """The score after each round, one line per run; what the buyer's own records give is a level.

    Shares of right answers count from 0. Other scores have no such start: an AUC of chance is 0.5, an R² may be
    below 0. Their axis spans the values alone, so that what the money added can be seen.
    """
    lines = []
    for i, ((label, run), colour) in enumerate(zip(runs.items(), _RUN_COLOURS, strict=False)):
        measured = [record for record in run.records if record.accuracy is not None]
        x = [record.number + 1 for record in measured]
        y = [record.accuracy for record in measured]
        lines.append(Line(label, x, y, colour, dashed=not run.config.privacy.is_private, strong=i == 0))
    levels = [] if own is None else [(f"your own {own.records} records alone", own.accuracy)]
    main = next(iter(runs.values()))
    by_accuracy = main.task.score.name == "accuracy"
    return charts.line_chart(
        lines,
        x_title="round",
        y_title=score_title(main),
        y_text=(lambda y: f"{y:.0%}") if by_accuracy else (lambda y: f"{y:.4g}"),
        y_from_zero=by_accuracy,
        levels=levels,
        names_right=True,
    )


def score_title(run: RunResult) -> str:
    """The name of the headline score on axes and in tables."""
    score = run.task.score
    return "right on the test" if score.name == "accuracy" else f"{score.heading} on the test"


def shown(run: RunResult, value: float) -> str:
    """A value of the headline score as pages write it."""
    return percent(value) if run.task.score.name == "accuracy" else run.task.score.format(value)


def sales_chart(run: RunResult, names: Sequence[str]) -> str:
    """A map of ε sold: clients by rising price, rounds from left to right."""
    order = np.argsort(run.types.valuation, kind="stable")[:_MOST_ROWS]
    sold = np.ascontiguousarray(run.sold_epsilon.T)
    together = -(-len(run.records) // _MOST_COLUMNS)
    starts = list(range(0, len(run.records), together))
    rows = [[float(sold[i, at : at + together].mean()) for at in starts] for i in order]
    labels = [f"{names[i]}, asks {run.types.valuation[i]:.2f}" for i in order]
    what = "ε sold in a round" if together == 1 else f"ε sold in a mean round of {together}"
    return charts.heat_map(labels, rows, [at + 1 for at in starts], x_title="round", what=what)


def money_chart(run: RunResult, currency: str) -> str:
    """Money paid and given back, per round."""
    layers = [
        Bars("paid to sellers", [r.spent_micro / MICRO for r in run.records], charts.BLUE),
        Bars("given back", [r.refunded_micro / MICRO for r in run.records], charts.PALE),
    ]
    return charts.bar_chart(layers, [r.number + 1 for r in run.records], x_title="round", y_title=currency)


def wallet_chart(config: FederationConfig, clients: Sequence[ClientRow], names: Sequence[str]) -> str:
    """Total ε spent per client, beside the cap of its wallet."""
    rows = sorted(clients, key=lambda row: -(row["epsilon_spent"] or 0.0))[:_MOST_ROWS]
    cap = config.wallet
    return charts.named_bars(
        [names[row["client"]] for row in rows],
        [row["epsilon_spent"] or 0.0 for row in rows],
        x_title=f"total ε of all its sales, at δ = {config.delta:g}",
        limit=None if cap is None else (f"lifetime cap {cap:g}", cap),
    )


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
    buffer = io.BytesIO()
    attack_figure.attack_figure(attacks).savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
