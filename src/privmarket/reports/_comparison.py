"""Audits of rules by name, class, object or function, one at a time or side by side.

This is what `privmarket.audit` and `privmarket.compare` are.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket._counted import counted
from privmarket._figures import write
from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.errors import ConfigurationError, MissingPartError, UnknownNameError
from privmarket.market import _attacks as attacks
from privmarket.market._audit import AuditReport, student_t
from privmarket.market._audit import audit as audit_mechanism
from privmarket.market._bids import Array
from privmarket.market._distributions import Distribution, Source
from privmarket.market._distributions import distribution as distribution_of
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import Objective
from privmarket.market._objectives import objective as named_objective
from privmarket.mechanisms import Rule, mechanism_names, resolve
from privmarket.reports._comparison_figure import comparison_figure, percent, worst_gain

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
else:
    pandas = late("pandas")


def audit(
    rule: Rule,
    *,
    scenario: Source = "uniform",
    clients: int = 100,
    budget: float = 50.0,
    profiles: int = 20,
    seed: int = 0,
    objective: str | Objective = "total-epsilon",
    attack: str | attacks.Attack | attacks.Level = "strong",
    coalition: int | None = None,
    exact: bool = False,
    certify: bool = False,
    coins: int = 20,
    progress: Callable[[int], None] = lambda done: None,
    **settings: object,
) -> AuditReport:
    """Attacks a rule on sampled markets and says what was found.

    Args:
        rule: a name, `package.module:Rule`, a `Mechanism` (class or object), or a function
            `(bids, budget) -> (epsilon, payment)` of one market, with a further argument `rng` if it throws coins.
        scenario: the distribution of clients, anything that `market.distribution` takes. A rule that wants to know
            the public distribution is told this one.
        clients: clients per market.
        budget: money per market.
        profiles: markets to attack; the other figures are averaged over more.
        objective: what the buyer wants: `total-epsilon`, `aggregation-error` or `aggregate-error`, or an objective.
        attack: `strong`, `quick`, or an attack of your own.
        coalition: also search joint misreports of coalitions of so many clients.
        exact: also compare with the best truthful rule on a grid of types, for at most 4 clients.
        certify: also bound from above what any misreport can gain, for menus and network rules.
        coins: how often the coins of a randomised rule are thrown. Each throw is attacked as a rule of its own
            (universal truthfulness), and their mean is attacked in expectation.
        progress: called with the number of markets attacked so far.
        settings: settings of the rule.
    """
    distribution = distribution_of(scenario)
    return audit_mechanism(
        resolve(rule, market=MarketFacts.of(distribution), **settings),
        distribution,
        clients,
        budget,
        profiles=profiles,
        seed=seed,
        attack=_attack(attack),
        objective=named_objective(objective) if isinstance(objective, str) else objective,
        coalition=coalition,
        exact=exact,
        certify=certify,
        coins=coins,
        progress=progress,
    )


def compare(
    rules: Iterable[Rule | tuple[str, Rule]] | None = None,
    *,
    scenario: Source = "uniform",
    scenarios: Iterable[Source] | None = None,
    clients: int | Iterable[int] = 100,
    budget: float | None = None,
    budget_per_client: float = 0.5,
    seeds: int | Iterable[int] = 1,
    profiles: int = 20,
    seed: int = 0,
    objective: str | Objective = "total-epsilon",
    attack: str | attacks.Attack | attacks.Level = "quick",
    exact: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Audits several rules on the same sampled markets, for one or several distributions and sizes.

    Args:
        rules: each as for `audit`, or a pair (name, rule) under which tables show it; if left out, all registered
            rules except the paper-literal forms. Of these, rules that need something that is not installed are
            skipped and named in `Comparison.skipped`.
        scenario: the distribution of clients, as for `audit`.
        scenarios: several of them, in place of `scenario`.
        clients: clients per market, one number or several.
        budget: money per market. If left out, `budget_per_client` times the number of clients.
        seeds: how many independent repetitions, or their seeds. With two or more, figures come with an interval.
        seed: the first seed where `seeds` is a number.
        progress: called with what is next.

    The other arguments are those of `audit`; the attack is quick unless told otherwise.
    """
    distributions = [distribution_of(one) for one in ([scenario] if scenarios is None else scenarios)]
    sizes = [clients] if isinstance(clients, int) else list(clients)
    repeats = list(range(seed, seed + seeds)) if isinstance(seeds, int) else list(seeds)
    if not (distributions and sizes and repeats):
        raise ConfigurationError("nothing to compare on", "give a scenario, a number of clients and a seed")
    reports = []
    skipped: list[str] = []
    for distribution in distributions:
        for label, rule in _resolved(rules, distribution, skipped):
            for size in sizes:
                for repeat in repeats:
                    progress(f"{label} on {distribution.name}, {counted(size, 'client')}")
                    report = audit(
                        rule,
                        scenario=distribution,
                        clients=size,
                        budget=budget_per_client * size if budget is None else budget,
                        profiles=profiles,
                        seed=repeat,
                        objective=objective,
                        attack=attack,
                        exact=exact,
                    )
                    reports.append(replace(report, mechanism=label))
    return Comparison(tuple(reports), tuple(dict.fromkeys(skipped)))


def _resolved(
    rules: Iterable[Rule | tuple[str, Rule]] | None, distribution: Distribution, skipped: list[str]
) -> list[tuple[str, Mechanism]]:
    """(label, rule) of each rule, told what is publicly known of the distribution."""
    facts = MarketFacts.of(distribution)
    made = []
    if rules is not None:
        for given in rules:
            label, rule = given if isinstance(given, tuple) else (None, given)
            built = resolve(rule, market=facts)
            made.append((label or built.name, built))
        return made
    for name in mechanism_names():
        if ":" in name:
            continue
        try:
            made.append((name, resolve(name, market=facts)))
        except MissingPartError as error:
            skipped.append(f"{name}: {error}")
    return made


def _attack(given: str | attacks.Attack | attacks.Level) -> attacks.Attack | attacks.Level:
    if not isinstance(given, str):
        return given
    if given not in attacks.LEVELS:
        raise UnknownNameError.among("attack", given, attacks.LEVELS)
    return attacks.LEVELS[given]


COLUMNS = ("bought ε", "spent", "surplus", "worst misreport", "underpaid", "over budget", "over offer", "of fluid")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Reports on several rules, all on the same markets, in the order in which the rules were given.

    `print(comparison)` and a notebook show its table; iterate it, or take a report by the rule's name. `skipped`
    names the rules that could not be used here, and why. Where several seeds were run, tables show means with a
    95 % interval (Student's t over the seeds).
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
    def markets(self) -> list[tuple[str, int]]:
        """The distributions and sizes that were compared on, (scenario, clients)."""
        return list(dict.fromkeys((report.scenario, report.clients) for report in self.reports))

    def cells(self, scenario: str | None = None, clients: int | None = None) -> list[Cell]:
        """The rules on one distribution and size, or on all, each over its seeds; best fluid ratio first."""
        found = []
        for market in self.markets:
            if (scenario or market[0], clients or market[1]) != market:
                continue
            here = [report for report in self.reports if (report.scenario, report.clients) == market]
            names = dict.fromkeys(report.mechanism for report in here)
            cells = [Cell(tuple(report for report in here if report.mechanism == name)) for name in names]
            found += sorted(cells, key=lambda cell: -cell.mean("fluid_ratio"))
        return found

    @property
    def title(self) -> str:
        """One line that says what was compared."""
        if not self.reports:
            return "no rules"
        first = self.reports[0]
        seeds = len({report.seed for report in self.reports})
        depth = f"{counted(first.markets, 'market')}, {first.profiles} of them attacked"
        if seeds > 1:
            depth += f", {seeds} seeds"
        if len(self.markets) > 1:
            distributions = ", ".join(dict.fromkeys(distribution for distribution, _ in self.markets))
            sizes = ", ".join(str(size) for size in dict.fromkeys(size for _, size in self.markets))
            return f"{distributions}; {sizes} clients; {depth} each"
        return (
            f"{first.scenario}: {counted(first.clients, 'client')}, budget {first.budget:g}, "
            f"fluid bound {first.fluid_bound:.4g}; {depth}"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """What each row of the table shows after the rule's name."""
        where = ("scenario", "clients") if len(self.markets) > 1 else ()
        best = ("of optimum",) if any(report.optimum_ratio is not None for report in self.reports) else ()
        return (*where, *COLUMNS, *best)

    def rows(self) -> list[tuple[str, ...]]:
        """(rule, *columns) as text, best fluid ratio first within each distribution and size."""
        several = len(self.markets) > 1
        optimum = "of optimum" in self.columns
        return [cell.row(with_market=several, with_optimum=optimum) for cell in self.cells()]

    def table(self) -> str:
        """The comparison as plain text."""
        lines = [("rule", *self.columns), *self.rows()]
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
        head = "".join(f"<th>{escape(name)}</th>" for name in ("rule", *self.columns))
        return f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>{cells}</table>"

    def to_latex(self) -> str:
        """The table as a LaTeX `tabular` for the package booktabs; intervals as ±."""
        lines = [_latex_row(("rule", *self.columns)), *(_latex_row(row) for row in self.rows())]
        head, *body = lines
        columns = "l" + "r" * len(self.columns)
        inner = "\n".join(body)
        return (
            f"% {self.title}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head}\n\\midrule\n{inner}\n"
            "\\bottomrule\n\\end{tabular}\n"
        )

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line per rule, distribution, size and seed with every figure; also written to `path` where given."""
        rows = [report.figures() for report in self.reports]
        text = StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["mechanism"])
        writer.writeheader()
        writer.writerows(rows)
        if path is not None:
            write_atomically(path, text.getvalue())
        return text.getvalue()

    def to_frame(self) -> pandas.DataFrame:
        """One row per report, one column per figure; nested figures as `regret.mean` and so on. Needs pandas."""
        rows = [report.figures() for report in self.reports]
        return pandas.DataFrame(rows).set_index("mechanism")

    def plot(self, path: str | Path | None = None, *, width: float = 7.0) -> Figure:
        """Value and incentive by rule; also written to `path` (PNG, PDF, SVG …) where given.

        On one distribution and size: a bar per rule. On several distributions: dots; on several sizes: lines over
        the number of clients. Whiskers are 95 % intervals over the seeds.

        Args:
            width: in inches; 3.4 is a column of most conferences.
        """
        made = comparison_figure(self, width)
        if path is not None:
            write(made, path)
        return made

    def __repr__(self) -> str:
        rules = len({report.mechanism for report in self.reports})
        return f"<Comparison of {counted(rules, 'rule')}: {self.title}>"


@dataclass(frozen=True)
class Cell:
    """One rule on one distribution and size, over its seeds."""

    reports: tuple[AuditReport, ...]

    @property
    def rule(self) -> str:
        """The rule's name."""
        return self.reports[0].mechanism

    @property
    def market(self) -> tuple[str, int]:
        """(scenario, clients)."""
        return self.reports[0].scenario, self.reports[0].clients

    def values(self, figure: str) -> Array:
        """(seeds,) a figure of the reports, e.g. `fluid_ratio` or `regret.maximum_share`."""
        first, _, rest = figure.partition(".")
        found = [getattr(report, first) for report in self.reports]
        return np.array([getattr(value, rest) if rest else value for value in found], dtype=np.float64)

    def mean(self, figure: str) -> float:
        """The mean over the seeds."""
        return float(self.values(figure).mean())

    def half_width(self, figure: str) -> float:
        """Half of the 95 % interval of the mean, by Student's t over the seeds; 0 with one seed."""
        values = self.values(figure)
        if values.size < 2:
            return 0.0
        return float(student_t(0.975, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))

    def row(self, *, with_market: bool, with_optimum: bool) -> tuple[str, ...]:
        """(rule, *columns) as text."""

        def number(name: str, digits: int) -> str:
            text = f"{self.mean(name):.{digits}f}"
            return text if len(self.reports) == 1 else f"{text} ± {self.half_width(name):.{digits}f}"

        def share(name: str, never: str) -> str:
            worst = float(self.values(name).max())
            return never if worst == 0 else f"{self.mean(name):.0%}"

        worst = worst_gain(self)
        where = (self.market[0], str(self.market[1])) if with_market else ()
        best = (number("optimum_ratio", 3),) if with_optimum else ()
        return (
            self.rule,
            *where,
            number("epsilon_bought", 1),
            number("spend", 2),
            number("welfare", 2),
            percent(worst) if worst > 0 else "none",
            share("rationality_violations", "none"),
            share("budget_violations", "never"),
            share("offer_violations", "never"),
            number("fluid_ratio", 3),
            *best,
        )


LEGEND = (
    "worst misreport: the largest gain found for any client, over the mean payment. "
    "of fluid: ε bought over the fluid bound, the most that a truthful rule buys among many clients."
)


def _latex_row(cells: tuple[str, ...]) -> str:
    escaped = [
        cell.replace("%", "\\%").replace("_", "\\_").replace(" ± ", " $\\pm$ ").replace("ε", "$\\varepsilon$")
        for cell in cells
    ]
    return " & ".join(escaped) + " \\\\"
