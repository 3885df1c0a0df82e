"""The one table and the one figure for README, rendered from the kept cells of all questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privmarket.errors import ConfigurationError
from privmarket.files import write_atomically
from privmarket.reports.palette import colour, new_figure
from privmarket_studies.reproduce.document import Results, Table
from privmarket_studies.reproduce.markets import RULES
from privmarket_studies.reproduce.rq4 import ROWS
from privmarket_studies.reproduce.rq4_runs import Runs
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAME = "summary"
BEGIN, END = "<!-- results: rendered, do not edit -->", "<!-- /results -->"
_SETTING = {"scenario": "uniform", "clients": 100, "budget": 50}
_FLOOR = 1e-6


def block(results: Results, folder: str = "") -> str:
    """The table and the link to the figure, as Markdown; `folder` leads from the page to the results."""
    bought = results.over_seeds("efficiency", **_SETTING)
    misreports = results.over_seeds("regret", **_SETTING, attack="strong")
    parts = [
        f"![What each rule buys, and what a misreport gains]({folder}{NAME}.png)",
        "*100 clients, budget 50, Uniform law: ε bought over the fluid bound (what one unit price posted to all "
        "buys among many clients), and the best "
        f"misreport that thousands of tries per client found ({bought}; misreports: {misreports}; hatched: breaks "
        "the budget). "
        f"[All results]({folder}README.md).*",
        _table(results).markdown().partition("\n\n")[2],
    ]
    return "\n\n".join(parts) + "\n"


def _regret(results: Results, rule: str) -> Measured | None:
    found = results.all("regret", mechanism=rule, **_SETTING)
    means = [r.result["mean"] for r in found if r.result and r.cell.config["parts"] is not None]
    return Measured.of(means) if means else None


def _table(results: Results) -> Table:
    runs = Runs(results)
    rows = []
    for rule in RULES:
        ratio = results.measured("fluid_ratio", "efficiency", mechanism=rule, **_SETTING)
        over = results.measured("over_budget", "efficiency", mechanism=rule, **_SETTING)
        regret = _regret(results, rule)
        seconds = results.values("seconds", "latency", mechanism=rule, clients=1_000_000)
        accuracy = runs.measured("accuracy", rule, 0.1)
        cleared = results.absent("efficiency", mechanism=rule, **_SETTING)
        attacked = results.absent("regret", mechanism=rule, **_SETTING)
        timed = results.absent("latency", mechanism=rule, clients=1_000_000)
        rows.append(
            [
                f"`{rule}`",
                cleared if ratio is None else ratio.text(".3f"),
                attacked if regret is None else ("0" if regret.mean == 0 else regret.text(".2%")),
                cleared if over is None else ("never" if over.mean == 0 else f"{over.mean:.0%} of rounds"),
                f"{min(seconds):.2f} s" if seconds else timed,
                (runs.absent(rule) if rule in ROWS else "none: overspends")
                if accuracy is None
                else f"{100 * accuracy.mean:.1f} ± {100 * accuracy.std:.1f} %",
            ]
        )
    columns = (
        "rule",
        "ε bought / limit",
        "gain from misreports / pay",
        "over budget",
        "a million bids",
        "MNIST, α = 0.1, record-level DP",
    )
    return Table(NAME, "summary", columns, rows)


def draw(results: Results) -> Drawing:
    """Draws for every rule what it buys beside what a misreport gains."""
    drawing = new_figure(9.0, 4.6)
    value, incentive = drawing.subplots(1, 2, sharey=True)
    found = {r: m for r in RULES if (m := results.measured("fluid_ratio", "efficiency", mechanism=r, **_SETTING))}
    shown = sorted(found, key=lambda rule: found[rule].mean)
    for place, rule in enumerate(shown):
        over = results.measured("over_budget", "efficiency", mechanism=rule, **_SETTING)
        style = {"color": colour(rule), "height": 0.66, "edgecolor": "white"}
        hatch = "///" if over is not None and over.mean > 0 else None
        value.barh(place, found[rule].mean, hatch=hatch, **style)
        beside = found[rule].mean + 0.015
        clear = 1.015 if 0.9 < beside < 1.015 else beside  # of the dashed line
        value.text(clear, place, f"{found[rule].mean:.3f}", va="center", fontsize=8)
        regret = _regret(results, rule)
        if regret is None or regret.mean < _FLOOR:
            text = "not measured" if regret is None else "none found"
            incentive.text(_FLOOR * 1.3, place, text, va="center", fontsize=8)
        else:
            incentive.barh(place, regret.mean - _FLOOR, left=_FLOOR, hatch=hatch, **style)
            spread = [[min(regret.std, 0.9 * regret.mean)], [regret.std]]
            incentive.errorbar(regret.mean, place, xerr=spread, color="#222222", lw=1, capsize=2)
    value.axvline(1.0, color="#555555", ls="--", lw=1)
    value.set_yticks(range(len(shown)), shown)
    value.set(xlim=(0, 1.25), xlabel="ε bought / fluid bound (dashed)")
    incentive.set(xscale="log", xlim=(_FLOOR, 100), xlabel="mean gain from the best misreport / mean pay")
    for axes in (value, incentive):
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    return drawing


def between_markers(page: str, text: str) -> str:
    """The page with `text` between the two markers, instead of what stood there."""
    if BEGIN not in page or END not in page:
        raise ConfigurationError(f"no markers {BEGIN} … {END}", "put both on lines of their own")
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}"


def update_readme(path: Path, results: Results) -> bool:
    """Writes the block into README; False if README has no markers."""
    page = path.read_text(encoding="utf-8")
    if BEGIN not in page:
        return False
    write_atomically(path, between_markers(page, block(results, "docs/results/")))
    return True
