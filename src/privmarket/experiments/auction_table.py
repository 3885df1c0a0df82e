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
            "none" if report.regret.maximum <= 1e-9 * first.budget else f"{report.regret.maximum_share:.0%}",
            "none" if report.rationality_violations == 0 else f"{report.rationality_violations:.0%}",
            "never" if report.budget_violations == 0 else f"{report.budget_violations:.0%}",
            "never" if report.offer_violations == 0 else f"{report.offer_violations:.0%}",
            f"{report.fluid_ratio:.3f}",
        )
    return made


def figure(reports: list[AuditReport], stem: Path) -> list[Path]:
    """Value against incentive: ε bought over the fluid bound, and the worst lie found."""
    made = new_figure(8.0, 4.6)
    axes = made.add_subplot()
    floor = 1e-4
    shown = [report for report in reports if ":" not in report.mechanism]
    for rank, report in enumerate(sorted(shown, key=lambda r: r.fluid_ratio)):
        x, y = report.fluid_ratio, max(report.regret.maximum_share, floor)
        honest = report.rationality_violations == 0 and report.budget_violations == 0
        axes.scatter(x, y, s=70, color=colour(report.mechanism), marker="o" if honest else "X", zorder=3)
        above = rank % 2 == 0
        axes.annotate(
            report.mechanism,
            (x, y),
            xytext=(0, 9 if above else -15),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.axvline(1.0, color="#777777", linestyle="--", linewidth=1)
    axes.text(
        1.0, 0.98, " fluid bound", transform=axes.get_xaxis_transform(), va="top", fontsize=8, color="#555555"
    )
    axes.set_yscale("log")
    axes.set_ylim(floor / 3, None)
    axes.axhline(floor, color="#dddddd", linewidth=6, zorder=0)
    axes.text(
        0.99, floor, "no lie found", transform=axes.get_yaxis_transform(), va="center", ha="right", fontsize=8
    )
    axes.set_xlabel("ε bought / fluid bound (more is better for the buyer)")
    axes.set_ylabel("largest gain from a lie / mean payment")
    axes.set_title("Crosses underpay somebody or overspend in some markets", fontsize=9)
    axes.grid(alpha=0.25)
    return save(made, stem)
