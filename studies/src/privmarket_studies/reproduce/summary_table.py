"""The summary of all rules: one table and one figure, rendered from the kept cells of all questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privmarket._figures import colour, new_figure
from privmarket_studies.free_baseline import own_records_line
from privmarket_studies.reproduce.document import Results, Table
from privmarket_studies.reproduce.markets import IN_PAIRS, RULES, UNTRAINED
from privmarket_studies.reproduce.rq2 import NOT_TIMED, is_timed
from privmarket_studies.reproduce.rq4 import ROWS
from privmarket_studies.reproduce.rq4_runs import Runs
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NAME = "summary"
_SETTING = {"scenario": "uniform", "clients": 100, "budget": 50}
_FLOOR = 1e-6


# What a misreport gains, by what is misreported: column, kind of cell, its figure.
_GAINS = (
    ("of v", "regret", "mean_in_valuation"),
    ("less ε", "regret", "mean_in_epsilon"),
    ("v and less ε", "regret", "mean"),
    ("v and more ε", "over-offer", "mean_with_valuation"),
)


def block(results: Results, folder: str = "") -> str:
    """The table and the link to the figure, as Markdown; `folder` leads from the page to the results."""
    bought = results.over_seeds("efficiency", **_SETTING)
    misreports = results.over_seeds("regret", **_SETTING, attack="strong")
    parts = [
        f"![What each rule buys, and what a misreport gains]({folder}{NAME}.png)",
        "*100 clients, budget 50, Uniform distribution: ε bought over the fluid bound (the most that one list of "
        "unit prices for everybody buys among many clients), and the mean gain from the best misreport found "
        f"([how]({folder}rq1/README.md)), over the mean payment ({bought}; misreports: {misreports}; hatched: "
        "breaks "
        "the budget). Promises in ε are about smaller offers only; offers of more count where the client can still "
        f"deliver what is bought. Commands and settings: [RQ1]({folder}rq1/README.md) to "
        f"[RQ4]({folder}rq4/README.md). "
        f"[All results]({folder}README.md).*",
        _table(results).markdown().partition("\n\n")[2],
        "*`:untrained` is the network of `mfg-regretnet` as its training starts, a ladder of menus built by hand. "
        "The last column's settings were chosen by trainings on the clients' records, which no ε counts "
        f"([what that means]({folder}../decisions/validation-records.md)). To be read beside it: "
        f"{_first_lower(own_records_line(('mnist',), 'local'))} ([How]({folder}free-baseline/README.md).) "
        f"{_spent_privacy(results, folder)}*",
    ]
    return "\n\n".join(parts) + "\n"


def _spent_privacy(results: Results, folder: str) -> str:
    """What the runs of the last column use up of their sellers' privacy; empty without such runs."""
    runs = Runs(results)
    spent = {rule: m for rule in RULES if (m := runs.measured("largest_epsilon_spent", rule, 0.1))}
    if not spent or runs.main is None:
        return ""
    least, most = (by(spent, key=lambda rule: spent[rule].mean) for by in (min, max))
    return (
        f"In its {runs.main.rounds} rounds the client that sells most spends a lifetime ε of "
        f"{spent[least].mean:.0f} (`{least}`) to {spent[most].mean:.0f} (`{most}`), δ = 1e-5; for small ones see "
        f"[what money buys]({folder}what-money-buys/README.md)."
    )


def _first_lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:].replace("**", "")


def _gain(results: Results, rule: str, kind: str, name: str) -> Measured | None:
    found = results.all(kind, mechanism=rule, **_SETTING)
    shown = [r.result for r in found if r.result and r.cell.config.get("parts", "") is not None]
    return Measured.of(result[name] for result in shown) if shown else None


def _table(results: Results) -> Table:
    runs = Runs(results)
    rows = []
    for rule in (*RULES, UNTRAINED):
        ratio = results.measured("fluid_ratio", "efficiency", mechanism=rule, **_SETTING)
        over = results.measured("over_budget", "efficiency", mechanism=rule, **_SETTING)
        gains = []
        for _, kind, name in _GAINS:
            gain = _gain(results, rule, kind, name)
            gains.append(results.absent(kind, mechanism=rule, **_SETTING) if gain is None else _share(gain))
        cleared = results.absent("efficiency", mechanism=rule, **_SETTING)
        rows.append(
            [
                f"`{rule}`" if rule != UNTRAINED else "`:untrained`",
                cleared if ratio is None else ratio.text(".3f"),
                *gains,
                cleared if over is None else ("never" if over.mean == 0 else f"{over.mean:.0%} of rounds"),
                "as trained" if rule == UNTRAINED else _seconds(results, rule),
                "not run" if rule == UNTRAINED else _accuracy(runs, rule),
            ]
        )
    columns = (
        "rule",
        "ε bought / fluid bound",
        *(f"gain from misreports: {name}" if place == 0 else name for place, (name, _, _) in enumerate(_GAINS)),
        "over budget",
        "a million bids",
        "MNIST, α = 0.1, record-level DP",
    )
    return Table(NAME, "summary", columns, rows)


def _share(gain: Measured) -> str:
    if gain.mean == 0:
        return "0"
    return "< 0.005%" if gain.mean < 5e-5 else gain.text(".2%" if gain.mean < 0.1 else ".0%")


def _seconds(results: Results, rule: str) -> str:
    seconds = results.values("seconds", "latency", mechanism=rule, clients=1_000_000)
    if not is_timed(rule, 1_000_000):
        return NOT_TIMED
    absent = results.absent("latency", mechanism=rule, clients=1_000_000)
    return f"{min(seconds):.2f} s" if seconds else absent


def _accuracy(runs: Runs, rule: str) -> str:
    accuracy = runs.measured("accuracy", rule, 0.1)
    if accuracy is None and rule == IN_PAIRS:
        return "not run"
    if accuracy is None:
        return runs.absent(rule) if rule in ROWS else "none: overspends"
    return f"{100 * accuracy.mean:.1f} ± {100 * accuracy.std:.1f} %"


def draw(results: Results) -> Drawing:
    """Draws for every rule what it buys, beside what misreports of v and of ε gain."""
    drawing = new_figure(10.5, 4.8)
    value, of_valuation, of_epsilon = drawing.subplots(1, 3, sharey=True, width_ratios=(1.1, 1, 1))
    rules = (*RULES, UNTRAINED)
    found = {r: m for r in rules if (m := results.measured("fluid_ratio", "efficiency", mechanism=r, **_SETTING))}
    shown = sorted(found, key=lambda rule: found[rule].mean)
    for place, rule in enumerate(shown):
        over = results.measured("over_budget", "efficiency", mechanism=rule, **_SETTING)
        hatch = "///" if over is not None and over.mean > 0 else None
        shade = colour(rule)
        value.barh(place, found[rule].mean, hatch=hatch, color=shade, height=0.66, edgecolor="white")
        beside = found[rule].mean + 0.015
        clear = 1.015 if 0.9 < beside < 1.015 else beside  # of the dashed line
        value.text(clear, place, f"{found[rule].mean:.3f}", va="center", fontsize=8)
        _bar(of_valuation, place, 0.66, _gain(results, rule, "regret", "mean_in_valuation"), shade, 1.0)
        _bar(of_epsilon, place + 0.2, 0.32, _gain(results, rule, "regret", "mean_in_epsilon"), shade, 1.0)
        _bar(of_epsilon, place - 0.2, 0.32, _gain(results, rule, "over-offer", "mean_alone"), shade, 0.45)
    value.axvline(1.0, color="#555555", ls="--", lw=1)
    value.set_yticks(range(len(shown)), [rule.replace("mfg-regretnet:", ":") for rule in shown])
    value.set(xlim=(0, 1.25))
    value.set_xlabel("ε bought / fluid bound (dashed)", fontsize=9)
    of_valuation.set_xlabel("gain from misreports of v / mean pay", fontsize=9)
    of_epsilon.set_xlabel("gain from offers of less ε / mean pay\n(pale: of more ε than it has)", fontsize=9)
    for axes in (of_valuation, of_epsilon):
        axes.set(xscale="log", xlim=(_FLOOR, 100))
    for axes in (value, of_valuation, of_epsilon):
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    return drawing


def _bar(axes: Axes, place: float, height: float, gain: Measured | None, shade: str, alpha: float) -> None:
    """Draws one gain on a logarithmic axis, or says that there is none."""
    if gain is None or gain.mean < _FLOOR:
        text = "not measured" if gain is None else "none found"
        axes.text(_FLOOR * 1.3, place, text, va="center", fontsize=8 if height > 0.5 else 6.5, color="#555555")
        return
    axes.barh(place, gain.mean - _FLOOR, left=_FLOOR, color=shade, alpha=alpha, height=height, edgecolor="white")
    spread = [[min(gain.std, 0.9 * gain.mean)], [gain.std]]
    axes.errorbar(gain.mean, place, xerr=spread, color="#222222", lw=1, capsize=2)
