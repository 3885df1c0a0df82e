"""One scenario, every mechanism: what is bought, what it costs, what a liar gains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from privmarket.experiments.palette import colour, new_figure, save
from privmarket.market.attacks import AscentAttack, GridAttack, combined
from privmarket.market.audit import AuditReport, audit
from privmarket.market.scenarios import Law
from privmarket.mechanisms import mechanism, takes_setting

if TYPE_CHECKING:
    from rich.table import Table

QUICK_ATTACK = combined(GridAttack(valuations=21, shares=6, neighbours=8), AscentAttack(starts=3, steps=12))
"""Seconds instead of a minute; finds the gross lies, not the last per mille."""


def compare(
    names: Iterable[str],
    law: Law,
    clients: int,
    budget: float,
    *,
    profiles: int,
    seed: int,
    progress: Callable[[str], None] = lambda name: None,
) -> list[AuditReport]:
    """One report per mechanism, all on the same sampled markets."""
    reports = []
    for name in names:
        progress(name)
        settings: dict[str, object] = {"law": law} if takes_setting(name, "law") else {}
        if takes_setting(name, "epsilon_max"):
            settings["epsilon_max"] = law.epsilon_max
        rule = mechanism(name, **settings)
        reports.append(audit(rule, law, clients, budget, profiles=profiles, seed=seed, attack=QUICK_ATTACK))
    return reports


def table(reports: list[AuditReport]) -> Table:
    """The comparison as a Rich table."""
    from rich.table import Table

    first = reports[0]
    made = Table(
        title=f"{first.scenario}: {first.clients} clients, budget {first.budget:g}, "
        f"fluid bound {first.fluid_bound:.1f} ε; {first.markets} markets, {first.profiles} of them attacked",
        caption="worst lie: the largest gain found for any client, over the mean payment. "
        "of fluid: ε bought over the limit of truthful buying.",
    )
    made.add_column("mechanism")
    for column in (
        "bought ε",
        "spent",
        "surplus",
        "worst lie",
        "underpaid",
        "over budget",
        "over offer",
        "of fluid",
    ):
        made.add_column(column, justify="right")
    for report in sorted(reports, key=lambda r: -r.fluid_ratio):
        made.add_row(
            report.mechanism,
            f"{report.epsilon_bought:.1f}",
            f"{report.spend:.2f}",
            f"{report.welfare:.2f}",
            "none" if report.regret.maximum <= 1e-9 * first.budget else _percent(report.regret.maximum_share),
            "none" if report.rationality_violations == 0 else f"{report.rationality_violations:.0%}",
            "never" if report.budget_violations == 0 else f"{report.budget_violations:.0%}",
            "never" if report.offer_violations == 0 else f"{report.offer_violations:.0%}",
            f"{report.fluid_ratio:.3f}",
        )
    return made


def figure(reports: list[AuditReport], stem: Path) -> list[Path]:
    """Value beside incentive: ε bought over the fluid bound, and the worst lie found, a bar per mechanism."""
    shown = sorted(reports, key=lambda r: r.fluid_ratio)
    made = new_figure(9.0, 1.2 + 0.34 * len(shown))
    value, incentive = made.subplots(1, 2, sharey=True)
    floor = 1e-4
    for row, report in enumerate(shown):
        kept = report.rationality_violations == 0 and report.budget_violations == 0
        style = {"color": colour(report.mechanism), "height": 0.66, "hatch": None if kept else "///", "alpha": 0.9}
        value.barh(row, report.fluid_ratio, edgecolor="white", **style)
        value.text(
            report.fluid_ratio + 0.01,
            row,
            f"{report.fluid_ratio:.3f}{_broken_note(report)}",
            va="center",
            fontsize=8,
        )
        worst = report.regret.maximum_share
        if report.regret.maximum <= 1e-9 * report.budget:
            incentive.text(floor * 1.15, row, "none found", va="center", fontsize=8)
        else:
            incentive.barh(row, worst, left=floor, edgecolor="white", **style)
            incentive.text(worst * 1.15, row, _percent(worst), va="center", fontsize=8)
    value.axvline(1.0, color="#555555", linestyle="--", linewidth=1)
    value.set_yticks(range(len(shown)), [report.mechanism for report in shown])
    value.set(xlim=(0, 1.95), xlabel="ε bought / fluid bound (dashed: limit of truthful buying)")
    incentive.set(xscale="log", xlim=(floor, 300), xlabel="largest gain from a lie / mean payment")
    first = shown[0]
    made.suptitle(f"{first.scenario}, {first.clients} clients, budget {first.budget:g}", fontsize=10)
    for axes in (value, incentive):
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    return save(made, stem)


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}"


def _broken_note(report: AuditReport) -> str:
    """What a bar cannot show: that the value was had by overspending or by underpaying."""
    notes = []
    if report.budget_violations > 0:
        notes.append(f"overspends in {report.budget_violations:.0%}")
    if report.rationality_violations > 0:
        notes.append(f"underpays {report.rationality_violations:.0%}")
    return f"  ({', '.join(notes)})" if notes else ""
