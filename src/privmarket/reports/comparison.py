"""Audits of rules by name, class, object or function, one at a time or side by side.

This is what `privmarket.audit` and `privmarket.compare` are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from privmarket.counted import counted
from privmarket.errors import MissingPartError, UnknownNameError
from privmarket.lazy import late
from privmarket.market import attacks
from privmarket.market.audit_report import AuditReport
from privmarket.market.audit_report import audit as audit_mechanism
from privmarket.market.bids import Bids
from privmarket.market.evaluation import beyond_rounding
from privmarket.market.facts import MarketFacts
from privmarket.market.objectives import Objective
from privmarket.market.objectives import objective as named_objective
from privmarket.market.scenarios import Law
from privmarket.market.scenarios import scenario as law_of
from privmarket.mechanisms import Rule, mechanism_names, resolve
from privmarket.reports.palette import colour, new_figure

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
else:
    pandas = late("pandas")


def audit(
    rule: Rule,
    *,
    scenario: str | Path | Law | Bids = "uniform",
    clients: int = 100,
    budget: float = 50.0,
    profiles: int = 5,
    seed: int = 0,
    objective: str | Objective = "total-epsilon",
    attack: str | attacks.Attack | attacks.Level = "strong",
    coalition: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    **settings: object,
) -> AuditReport:
    """Attacks a rule on sampled markets and says what was found.

    Args:
        rule: a name, `package.module:Rule`, a `Mechanism` (class or object), or a function
            `(bids, budget) -> (epsilon, payment)` of one market.
        scenario: the law that clients are drawn from: a name, past bids, a CSV file of them, or a law. A rule
            that wants to know the public law is told this one.
        clients: clients per market.
        budget: money per market.
        profiles: markets to attack; the other figures are averaged over more.
        objective: what the buyer wants: `total-epsilon`, `aggregation-error` or `aggregate-error`, or an objective.
        attack: `strong`, `quick`, or an attack of your own.
        coalition: also search joint misreports of coalitions of so many clients.
        progress: called with the number of markets attacked so far.
        settings: settings of the rule.
    """
    law = law_of(scenario)
    return audit_mechanism(
        resolve(rule, market=MarketFacts.of(law), **settings),
        law,
        clients,
        budget,
        profiles=profiles,
        seed=seed,
        attack=_attack(attack),
        objective=named_objective(objective) if isinstance(objective, str) else objective,
        coalition=coalition,
        progress=progress,
    )


def compare(
    rules: Iterable[Rule] | None = None,
    *,
    scenario: str | Path | Law | Bids = "uniform",
    clients: int = 100,
    budget: float = 50.0,
    profiles: int = 3,
    seed: int = 0,
    objective: str | Objective = "total-epsilon",
    attack: str | attacks.Attack | attacks.Level = "quick",
    progress: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Audits several rules on the same sampled markets.

    Args:
        rules: each as for `audit`; if left out, all registered rules except the paper-literal forms. Of these,
            rules that need something that is not installed are skipped and named in `Comparison.skipped`.
        progress: called with the name of the rule that is next.

    The other arguments are those of `audit`; the attack is quick unless told otherwise.
    """
    law = law_of(scenario)
    facts, skipped, made = MarketFacts.of(law), [], []
    if rules is not None:
        made = [resolve(rule, market=facts) for rule in rules]
    else:
        for name in [name for name in mechanism_names() if ":" not in name]:
            try:
                made.append(resolve(name, market=facts))
            except MissingPartError as error:
                skipped.append(f"{name}: {error}")
    reports = []
    for rule in made:
        progress(rule.name)
        reports.append(
            audit(
                rule,
                scenario=law,
                clients=clients,
                budget=budget,
                profiles=profiles,
                seed=seed,
                objective=objective,
                attack=attack,
            )
        )
    return Comparison(tuple(reports), tuple(skipped))


def _attack(given: str | attacks.Attack | attacks.Level) -> attacks.Attack | attacks.Level:
    if not isinstance(given, str):
        return given
    if given not in attacks.LEVELS:
        raise UnknownNameError.among("attack", given, attacks.LEVELS)
    return attacks.LEVELS[given]


COLUMNS = ("bought ε", "spent", "surplus", "worst misreport", "underpaid", "over budget", "over offer", "of fluid")


@dataclass(frozen=True)
class Comparison:
    """Reports on several rules, all on the same markets, in the order in which the rules were given.

    `print(comparison)` and a notebook show its table; iterate it, or take a report by the rule's name. `skipped`
    names the rules that could not be used here, and why.
    """

    reports: tuple[AuditReport, ...]
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.reports)

    def __iter__(self) -> Iterator[AuditReport]:
        return iter(self.reports)

    def __getitem__(self, rule: str) -> AuditReport:
        for report in self.reports:
            if report.mechanism == rule:
                return report
        raise UnknownNameError.among("rule of this comparison", rule, [r.mechanism for r in self.reports])

    @property
    def title(self) -> str:
        """One line that says what was compared."""
        if not self.reports:
            return "no rules"
        first = self.reports[0]
        return (
            f"{first.scenario}: {counted(first.clients, 'client')}, budget {first.budget:g}, "
            f"fluid bound {first.fluid_bound:.4g}; "
            f"{counted(first.markets, 'market')}, {first.profiles} of them attacked"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """(rule, *COLUMNS) as text, best fluid ratio first."""
        return [_row(report) for report in sorted(self.reports, key=lambda r: -r.fluid_ratio)]

    def table(self) -> str:
        """The comparison as plain text."""
        lines = [("rule", *COLUMNS), *self.rows()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        body = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([self.title, *body, LEGEND, *(f"skipped: {why}" for why in self.skipped)])

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows()
        )
        head = "".join(f"<th>{escape(name)}</th>" for name in ("rule", *COLUMNS))
        return f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>{cells}</table>"

    def to_frame(self) -> pandas.DataFrame:
        """One row per rule, one column per figure; nested figures as `regret.mean` and so on. Needs pandas."""
        rows = [_flat(report) for report in self.reports]
        return pandas.DataFrame(rows).set_index("mechanism")

    def plot(self, path: str | Path | None = None) -> Figure:
        """Value beside incentive, a bar per rule; also written to `path` (PNG, PDF, SVG …) where given."""
        made = figure(self.reports)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            made.savefig(path)
        return made


LEGEND = (
    "worst misreport: the largest gain found for any client, over the mean payment. "
    "of fluid: ε bought over the fluid bound, what one unit price posted to all buys among many clients."
)


def _flat(report: AuditReport) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, value in report.to_dict().items():
        if isinstance(value, dict):
            row.update({f"{name}.{key}": figure for key, figure in value.items()})
        elif isinstance(value, tuple | list):
            if name != "quintiles":
                row[name] = ", ".join(value)
        else:
            row[name] = value
    return row


def _row(report: AuditReport) -> tuple[str, ...]:
    return (
        report.mechanism,
        f"{report.epsilon_bought:.1f}",
        f"{report.spend:.2f}",
        f"{report.welfare:.2f}",
        _percent(report.regret.maximum_share) if beyond_rounding(report.regret.maximum, report.budget) else "none",
        "none" if report.rationality_violations == 0 else f"{report.rationality_violations:.0%}",
        "never" if report.budget_violations == 0 else f"{report.budget_violations:.0%}",
        "never" if report.offer_violations == 0 else f"{report.offer_violations:.0%}",
        f"{report.fluid_ratio:.3f}",
    )


def figure(reports: Iterable[AuditReport]) -> Figure:
    """Value beside incentive: ε bought over the fluid bound, and the worst misreport found, a bar per rule."""
    shown = sorted(reports, key=lambda r: r.fluid_ratio)
    made = new_figure(9.0, 1.5 + 0.34 * len(shown))
    value, incentive = made.subplots(1, 2, sharey=True)
    floor = 1e-4
    # On white, so that no grid line or limit runs through a figure.
    text = {"va": "center", "fontsize": 8, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
    for row, report in enumerate(shown):
        kept = report.rationality_violations == 0 and report.budget_violations == 0
        style = {"color": colour(report.mechanism), "height": 0.66, "hatch": None if kept else "///", "alpha": 0.9}
        value.barh(row, report.fluid_ratio, edgecolor="white", **style)
        value.text(report.fluid_ratio + 0.02, row, f"{report.fluid_ratio:.3f}{_broken_note(report)}", **text)
        worst = report.regret.maximum_share
        if not beyond_rounding(report.regret.maximum, report.budget):
            incentive.text(floor * 1.3, row, "none found", **text)
        else:
            incentive.barh(row, worst, left=floor, edgecolor="white", **style)
            incentive.text(worst * 1.3, row, _percent(worst), **text)
    value.axvline(1.0, color="#555555", linestyle="--", linewidth=1, zorder=1.5)
    value.set_yticks(range(len(shown)), [report.mechanism for report in shown])
    # Room beside the longest bar for its figure, and for the note on a promise that was not kept.
    room = 0.95 if any(map(_broken_note, shown)) else 0.25
    longest = max(1.0, *(report.fluid_ratio for report in shown))
    value.set(
        xlim=(0, longest + room), xlabel="ε bought / fluid bound\n(dashed: one unit price for all, many clients)"
    )
    incentive.set(
        xscale="log", xlim=(floor, 3000), xlabel="largest gain from a misreport\nas a share of the mean payment"
    )
    incentive.set_xticks([1e-4, 1e-2, 1, 100], ["0.01%", "1%", "100%", "10,000%"])
    first = shown[0]
    made.suptitle(f"{first.scenario}, {counted(first.clients, 'client')}, budget {first.budget:g}", fontsize=10)
    for axes in (value, incentive):
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return made


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
