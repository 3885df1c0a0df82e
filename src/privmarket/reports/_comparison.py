"""Audits of rules by name, class, object or function, one at a time or side by side.

`privmarket.audit` and `privmarket.compare` are the functions `audit` and `compare` of this module.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from inspect import isclass
from io import StringIO
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import numpy as np

from privmarket._counted import counted
from privmarket._figures import new_figure, own_look, write
from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket._named import made_callable, names_code
from privmarket.errors import ConfigurationError, MissingPartError, OutcomeError, PrivmarketError, UnknownNameError
from privmarket.market import _attacks as attacks
from privmarket.market._audit import (
    AuditReport,
    audit as audit_mechanism,
    beyond_rounding,
    require_whole,
    student_t,
)
from privmarket.market._bids import Array
from privmarket.market._certificate import check_certifiable
from privmarket.market._distributions import Distribution, Source, distribution as distribution_of
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import Objective, objective as named_objective
from privmarket.market._randomised import RandomisedMechanism
from privmarket.mechanisms import Rule, mechanism_names, resolve
from privmarket.mechanisms._function_rule import FunctionRule, RandomisedFunctionRule
from privmarket.mechanisms._registry import named_object

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    pandas = late("pandas")


AttackLike = str | attacks.Attack | type[attacks.Attack] | attacks.Level
"""`quick` or `strong`, `file.py:Attack` or `package.module:Attack`, an attack's class, or an attack."""


def audit(
    rule: Rule,
    *,
    scenario: Source = "uniform",
    clients: int = 100,
    budget: float = 50.0,
    profiles: int = 20,
    seed: int = 0,
    objective: str | Objective = "total-epsilon",
    attack: AttackLike = "strong",
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
        scenario: the distribution of clients, anything that `market.distribution` takes, or `file.py:Name` or
            `package.module:Name` of an object of your own that it takes. A rule that wants to know
            the public distribution is told this one.
        clients: clients per market.
        budget: money per market.
        profiles: markets to attack; the other figures are averaged over more.
        objective: what the buyer wants: `total-epsilon`, `aggregation-error`, `aggregate-error`,
            `typical-aggregate-error` or `local-error`, or an objective.
        attack: `strong`, `quick`, or an attack of your own: `file.py:Attack`, `package.module:Attack`, its class or
            an object (see `market.Attack`). Beside your own, the strong attacks on v alone and on ε alone run.
        coalition: also search joint misreports of coalitions of so many clients.
        exact: also compare with the best truthful rule on a grid of types, for at most 4 clients.
        certify: also bound from above what any misreport can gain, for menus and network rules.
        coins: how often the coins of a randomised rule are thrown. Each throw is attacked as a rule of its own
            (universal truthfulness), on one of the attacked markets in turn, and their mean in expectation. There
            are max(profiles, coins) attacks. What gains under one throw breaks a promise.
        progress: called with the number of attacks done: one per market, or per throw where these are more.
        settings: settings of the rule.
    """
    distribution = distribution_called(scenario)
    mechanism = resolve(rule, market=MarketFacts.of(distribution), **settings)
    search = attack_called(attack)
    aim = named_objective(objective) if isinstance(objective, str) else objective
    try:
        report = audit_mechanism(
            mechanism,
            distribution,
            clients,
            budget,
            profiles=profiles,
            seed=seed,
            attack=search,
            objective=aim,
            coalition=coalition,
            exact=exact,
            certify=certify,
            coins=coins,
            progress=progress,
        )
    except PrivmarketError:
        raise
    except Exception as error:
        place = _place_in_rule(mechanism, error)
        if place is None:
            raise
        said = " ".join([f"{type(error).__name__}:", *str(error).split()]).rstrip(":")
        raise OutcomeError(f"{mechanism.name}: {place}: {said}", "mend it there") from error
    return replace(report, rule_code=rule_code(rule, mechanism, market_code(scenario), settings))


def distribution_called(scenario: Source, *, independent: bool = False) -> Distribution:
    """As `market.distribution`, which imports no code, and `file.py:Name` or `package.module:Name`, which does.

    Raises:
        ConfigurationError: it is no distribution.
    """
    if isinstance(scenario, str) and names_code(scenario) and not scenario.lower().endswith(".csv"):
        found: Any = named_object("distribution", scenario)
        try:
            own: Any = found() if isclass(found) else found
        except TypeError as error:
            raise ConfigurationError(
                f"distribution {scenario} cannot be made: {error}", "give every argument of __init__ a default"
            ) from error
        return distribution_of(own, independent=independent)
    return distribution_of(scenario, independent=independent)


def _place_in_rule(mechanism: Mechanism, error: BaseException) -> str | None:
    """The innermost line of a rule's own file on the way to an error; None for a rule of this package."""
    written = mechanism.clear_with if isinstance(mechanism, RandomisedMechanism) else mechanism.clear
    code = getattr(getattr(mechanism, "function", written), "__code__", None)
    file = "" if code is None else str(code.co_filename)
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    if not lines or Path(__file__).parents[1] in Path(file).parents:
        return None
    return f"{file}, line {lines[-1]}"


def market_code(scenario: Source, *, independent: bool = False) -> str:
    """Python that makes the distribution, wherever it is run; "" unless it was given by a name or a CSV file."""
    if not isinstance(scenario, str | Path):
        return ""
    text = str(scenario)
    if text.lower().endswith(".csv"):
        text = str(Path(text).resolve())
    elif ":" in text:
        return ""
    return f"pm.market.distribution({text!r}{', independent=True' if independent else ''})"


def rule_code(rule: Rule, made: Mechanism, market: str, settings: Mapping[str, object]) -> str:
    """Python that makes the rule of an audit anew: an import where it needs one, and an expression.

    "" where the rule cannot be written as text, for example an object.

    Args:
        rule: as it was given.
        made: the mechanism that it resolved to.
        market: Python that makes the distribution, see `market_code`.
    """
    before = ""
    if isinstance(rule, str):
        file, colon, name = rule.rpartition(":")
        called = repr(f"{Path(file).resolve()}{colon}{name}" if file.endswith(".py") else rule)
    elif isinstance(rule, Mechanism):
        return ""
    else:
        called = getattr(rule, "__qualname__", "<")
        if "<" in called:  # a local class or a lambda: known where it was written, and nowhere else
            return ""
        if rule.__module__ != "__main__":
            before = f"from {rule.__module__} import {called.partition('.')[0]}\n"
    told: tuple[str, ...] = made.market_facts
    if isinstance(made, FunctionRule | RandomisedFunctionRule):
        told = tuple(one.name for one in fields(MarketFacts) if one.name in made.settings)
    words = [called]
    if set(told) - set(settings):
        if not market:
            return ""
        words.append(f"market=pm.MarketFacts.of({market})")
    words += [f"{name}={value!r}" for name, value in settings.items()]
    return f"{before}pm.mechanisms.resolve({', '.join(words)})"


def compare(
    rules: Rule | Iterable[Rule | tuple[str, Rule]] | None = None,
    *,
    scenario: Source = "uniform",
    scenarios: str | Iterable[Source] | None = None,
    clients: int | Iterable[int] = 100,
    budget: float | None = None,
    budget_per_client: float = 0.5,
    seeds: int | Iterable[int] = 1,
    profiles: int = 20,
    seed: int = 0,
    objective: str | Objective = "total-epsilon",
    attack: AttackLike = "quick",
    exact: bool = False,
    certify: bool = False,
    coins: int = 20,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Audits several rules on the same sampled markets, for one or several distributions and sizes.

    Args:
        rules: one or several, each as for `audit`, or a pair (name, rule) under which tables show it; if left
            out, all registered rules except the paper-literal forms. Of these, rules that need something that is
            not installed are skipped and named in `Comparison.skipped`.
        scenario: the distribution of clients, as for `audit`.
        scenarios: several of them, in place of `scenario`.
        clients: clients per market, one number or several.
        budget: money per market. If left out, `budget_per_client` times the number of clients.
        seeds: how many independent repetitions, or their seeds. With two or more, figures come with an interval.
        seed: the first seed where `seeds` is a number.
        certify: also bound from above what misreports gain, for those of the rules for which bounds are known.
        progress: called with what is next.

    The other arguments are those of `audit`; the attack is quick unless told otherwise.
    """
    several = None if rules is None else _several(rules)
    if isinstance(scenarios, str):
        scenarios = [scenarios]
    given = [scenario] if scenarios is None else list(scenarios)
    distributions = [(distribution_called(one), market_code(one)) for one in given]
    require_whole("seed", seed, 0)
    sizes = list(clients) if isinstance(clients, Iterable) else [clients]
    for size in sizes:
        require_whole("clients", size, 1)
    if not isinstance(seeds, Iterable):
        require_whole("seeds", seeds, 0)
    repeats = list(seeds) if isinstance(seeds, Iterable) else list(range(seed, seed + seeds))
    if not (distributions and sizes and repeats):
        raise ConfigurationError("nothing to compare on", "give a scenario, a number of clients and a seed")
    reports = []
    skipped: list[str] = []
    for distribution, market in distributions:
        for label, rule, code in _resolved(several, distribution, skipped, market):
            for size in sizes:
                money = budget_per_client * size if budget is None else budget
                bounded = certify and _certifiable(rule, distribution, size, money)
                for repeat in repeats:
                    if progress is not None:
                        progress(f"{label} on {distribution.name}, {counted(size, 'client')}")
                    report = audit(
                        rule,
                        scenario=distribution,
                        clients=size,
                        budget=money,
                        profiles=profiles,
                        seed=repeat,
                        objective=objective,
                        attack=attack,
                        exact=exact,
                        certify=bounded,
                        coins=coins,
                    )
                    reports.append(replace(report, mechanism=label, rule_code=code))
    return Comparison(tuple(reports), tuple(dict.fromkeys(skipped)))


def _several(rules: Rule | Iterable[Rule | tuple[str, Rule]]) -> list[Rule | tuple[str, Rule]]:
    """The rules as a list, also where one was given by itself."""
    if isinstance(rules, str | Mechanism) or callable(rules):
        return [rules]
    return list(rules)


def _resolved(
    rules: Sequence[Rule | tuple[str, Rule]] | None, distribution: Distribution, skipped: list[str], market: str
) -> list[tuple[str, Mechanism, str]]:
    """(label, rule, its `rule_code`) of each rule, told what is publicly known of the distribution.

    Args:
        market: Python that makes the distribution, see `market_code`.
    """
    facts = MarketFacts.of(distribution)
    made: list[tuple[str, Mechanism, str]] = []
    if rules is not None:
        for given in rules:
            label, rule = given if isinstance(given, tuple) else (None, given)
            built = resolve(rule, market=facts)
            name = label or built.name
            if name in [other for other, *_ in made]:
                raise ConfigurationError(
                    f"two rules are called {name!r}",
                    f"name them in pairs: [({name + ' a'!r}, rule), ({name + ' b'!r}, rule)]",
                )
            made.append((name, built, rule_code(rule, built, market, {})))
        return made
    for name in mechanism_names():
        if ":" in name:
            continue
        try:
            built = resolve(name, market=facts)
            made.append((name, built, rule_code(name, built, market, {})))
        except MissingPartError as error:
            skipped.append(f"{name}: {error}")
    return made


def _certifiable(rule: Mechanism, distribution: Distribution, clients: int, budget: float) -> bool:
    """Whether an upper bound on what misreports gain is known for the rule."""
    try:
        check_certifiable(rule, distribution.sample(np.random.default_rng(0), clients), budget)
    except ConfigurationError:
        return False
    return True


def attack_called(given: AttackLike) -> attacks.Attack | attacks.Level:
    """The attack that a name or a class means.

    Raises:
        ConfigurationError: it is no attack.
        UnknownNameError: there is no attack of that name.
    """
    if isinstance(given, attacks.Level):
        return given
    if isinstance(given, str) and given in attacks.LEVELS:
        return attacks.LEVELS[given]
    if isinstance(given, str) and not names_code(given):
        unknown = UnknownNameError.among("attack", given, attacks.LEVELS)
        raise UnknownNameError(unknown.message, f"{unknown.hint}, or give one of your own as file.py:Attack")
    found = named_object("attack", given) if isinstance(given, str) else given
    write = "__call__(self, mechanism, types, budget, rng) -> Regret"
    own: attacks.Attack = made_callable("attack", found, arguments=4, write=write, shown=given)
    return own


COLUMNS = (
    "bought ε",
    "spent",
    "surplus",
    "worst misreport",
    "worst over-offer",
    "underpaid",
    "over budget",
    "beyond offer",
    "of fluid",
)


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
        """The report on a rule.

        Raises:
            ConfigurationError: the rule was compared on several markets or seeds, and has several reports.
        """
        found = [report for report in self.reports if report.mechanism == rule]
        if not found:
            names = list(dict.fromkeys(report.mechanism for report in self.reports))
            raise UnknownNameError.among("rule of this comparison", str(rule), names)
        if len(found) > 1:
            raise ConfigurationError(
                f"{rule!r} has {len(found)} reports, one for each distribution, size and seed",
                "iterate the comparison, or use cells(scenario, clients)",
            )
        return found[0]

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
            return f"{distributions}; {sizes} clients; {self._budgets}{depth} each"
        return (
            f"{first.scenario}: {counted(first.clients, 'client')}, budget {first.budget:g}, "
            f"fluid bound {first.fluid_bound:.4g}; {depth}"
        )

    @property
    def _budgets(self) -> str:
        """The budget in words, if all markets have the same in all or per client; else ""."""
        totals = {f"{report.budget:g}" for report in self.reports}
        per_client = {f"{report.budget / report.clients:g}" for report in self.reports}
        if len(totals) == 1:
            return f"budget {totals.pop()}; "
        return f"budget {per_client.pop()} per client; " if len(per_client) == 1 else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """What each row of the table shows after the rule's name."""
        where = ("scenario", "clients") if len(self.markets) > 1 else ()
        best = ("of optimum",) if any(report.optimum_ratio is not None for report in self.reports) else ()
        above = ("no gain above",) if self._certified else ()
        return (*where, *COLUMNS, *best, *above)

    @property
    def _certified(self) -> bool:
        return any(report.certified is not None for report in self.reports)

    def rows(self) -> list[tuple[str, ...]]:
        """(rule, *columns) as text, best fluid ratio first within each distribution and size."""
        return [cell.row(self.columns) for cell in self.cells()]

    @property
    def broken(self) -> dict[str, tuple[str, ...]]:
        """The promises of its own that each rule broke, by rule; tables and figures mark these rules."""
        found: dict[str, tuple[str, ...]] = {}
        for cell in self.cells():
            if cell.broken:
                found[cell.rule] = tuple(dict.fromkeys((*found.get(cell.rule, ()), *cell.broken)))
        return found

    @property
    def legend(self) -> str:
        """What stands below a table: what its columns mean, and which rule broke which promise."""
        return " ".join([self._meanings, *self._breaches()])

    @property
    def _meanings(self) -> str:
        """What the columns mean."""
        return f"{LEGEND} {CERTIFIED_LEGEND}" if self._certified else LEGEND

    def _breaches(self) -> list[str]:
        broken = "; ".join(f"{rule}: {', '.join(promises)}" for rule, promises in self.broken.items())
        return [f"{MARK} promised and seen broken: {broken}."] if broken else []

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
        skipped = (f"skipped: {why}" for why in self.skipped)
        return "\n".join([self.title, *body, self._meanings, *self._breaches(), *skipped])

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows()
        )
        head = "".join(f"<th>{escape(name)}</th>" for name in ("rule", *self.columns))
        breaches = "".join(f"<p>{escape(line)}</p>" for line in self._breaches())
        legend = f"<p>{escape(self._meanings)}</p>"
        return f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>{cells}</table>{legend}{breaches}"

    def to_latex(self, columns: Sequence[str] | None = None, *, transpose: bool = False) -> str:
        """The table as a LaTeX `tabular` for the package booktabs; intervals as ±.

        A rule that broke a promise of its own has a star; comments below say which promise, and what the columns
        mean.

        Args:
            columns: which of `Comparison.columns` to show, in this order; by default all.
            transpose: a column per rule and a row per figure, for few rules with many figures.

        Raises:
            UnknownNameError: the comparison has no such column.
        """
        chosen = self.columns if columns is None else tuple(columns)
        for name in chosen:
            if name not in self.columns:
                raise UnknownNameError.among("column", name, self.columns)
        lines = [("rule", *chosen), *(cell.row(chosen) for cell in self.cells())]
        alignment = "l" + "".join("l" if name == "scenario" else "r" for name in chosen)
        if transpose:
            lines = list(zip(*lines, strict=True))
            alignment = "l" + "r" * (len(lines[0]) - 1)
        head, *body = (_latex_row(line) for line in lines)
        inner = "\n".join(body)
        below = "".join(f"% {line}\n" for line in (self._meanings, *self._breaches()))
        return (
            f"% {self.title}\n\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{head}\n\\midrule\n{inner}\n"
            f"\\bottomrule\n\\end{{tabular}}\n{below}"
        )

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line per rule, distribution, size and seed with every figure; also written to `path` where given."""
        rows = self._figures()
        text = StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["mechanism"])
        writer.writeheader()
        writer.writerows(rows)
        if path is not None:
            write_atomically(path, text.getvalue())
        return text.getvalue()

    def to_frame(self) -> pandas.DataFrame:
        """One row per report, one column per figure; nested figures as `regret.mean` and so on. Needs pandas."""
        return pandas.DataFrame(self._figures()).set_index("mechanism")

    def _figures(self) -> list[dict[str, object]]:
        """`AuditReport.figures` of each report, all with the same names; None where a report has no such figure."""
        rows = [report.figures() for report in self.reports]
        names = dict.fromkeys(name for row in rows for name in row)
        nested = {name.partition(".")[0] for name in names if "." in name}
        return [{name: row.get(name) for name in names if name not in nested} for row in rows]

    def plot(self, path: str | Path | None = None, *, width: float = 7.0) -> Figure:
        """Value and incentive by rule; also written to `path` (PNG, PDF, SVG …) where given.

        On one distribution and size: a bar per rule, with a diamond where an offer above the own ε gains. On
        several distributions: dots; on several sizes: lines over the number of clients. Whiskers are 95 %
        intervals over the seeds.

        Args:
            width: in inches; 3.4 is a column of most conferences.
        """
        made = _figure(self, width)
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
    def broken(self) -> tuple[str, ...]:
        """The promises of the rule that were seen broken with any of the seeds."""
        return tuple(dict.fromkeys(promise for report in self.reports for promise in report.broken))

    @property
    def marked(self) -> str:
        """The rule's name, with a mark if it broke a promise of its own."""
        return f"{self.rule}{MARK if self.broken else ''}"

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

    def row(self, columns: Sequence[str]) -> tuple[str, ...]:
        """(rule, *columns) as text; `columns` are some of `Comparison.columns`."""
        texts = self._texts()
        return (self.marked, *(texts[name] for name in columns))

    def _texts(self) -> dict[str, str]:
        """Each column's text."""

        def number(name: str, digits: int) -> str:
            text = f"{self.mean(name):.{digits}f}"
            return text if len(self.reports) == 1 else f"{text} ± {self.half_width(name):.{digits}f}"

        def share(name: str, never: str) -> str:
            worst = float(self.values(name).max())
            return never if worst == 0 else f"{self.mean(name):.0%}"

        def gain(direction: str) -> str:
            worst = _worst_gain(self, direction)
            return _percent(worst) if worst > 0 else "none"

        def bound() -> str:
            known = [report.certified.maximum_share for report in self.reports if report.certified is not None]
            return _percent(max(known)) if known else UNKNOWN

        return {
            "scenario": self.market[0],
            "clients": str(self.market[1]),
            "bought ε": number("epsilon_bought", 1),
            "spent": number("spend", 2),
            "surplus": number("welfare", 2),
            "worst misreport": gain("regret"),
            "worst over-offer": gain("regret_in_epsilon_up"),
            "underpaid": share("rationality_violations", "none"),
            "over budget": share("budget_violations", "never"),
            "beyond offer": share("offer_violations", "never"),
            "of fluid": number("fluid_ratio", 3),
            "of optimum": number("optimum_ratio", 3),
            "no gain above": bound(),
        }


UNKNOWN = "–"
LEGEND = (
    "worst misreport: the largest gain found for any client by another v and an offer up to its own ε, over the "
    "mean payment. worst over-offer: the same by an offer above the own ε that the client can deliver; no promise "
    "covers it. of fluid: ε bought over the fluid bound, the most that a truthful rule, which sees v, ε and "
    "records, buys among many clients."
)
CERTIFIED_LEGEND = (
    "no gain above: upper bound on what the misreports that its certificate is about gain, over the mean payment; "
    f"{UNKNOWN} where no bound is known."
)
MARK = "*"
"""Behind the name of a rule that broke a promise of its own."""


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "\n": " ",
        MARK: "$^{*}$",
        "±": "$\\pm$",
        "×": "$\\times$",
        "ε": "$\\varepsilon$",
    }
)


def _latex_row(cells: tuple[str, ...]) -> str:
    return " & ".join(cell.translate(_LATEX) for cell in cells) + " \\\\"


# Gains below this share of the mean payment are drawn as none.
_FLOOR = 1e-4
_VALUE = "ε bought / fluid bound"
_INCENTIVE = "worst misreport / mean pay"
_UPWARDS = "◇ by an offer above the own ε"
_GAIN_TICKS = {1e-4: "none", 1e-3: "0.1%", 1e-2: "1%", 1e-1: "10%", 1.0: "100%", 10.0: "1,000%"}
_BROKEN_PROMISE = f"{MARK} breaks a promise of its own"
_BEYOND = "passes its budget, or pays less than a client's cost"
# Below this width, in inches, panels stand below each other.
_NARROW = 5.0


def _figure(comparison: Comparison, width: float) -> Figure:
    """The figure of a comparison, `width` inches wide."""
    sizes = {size for _, size in comparison.markets}
    if len(comparison.markets) == 1:
        return _bars(comparison, width)
    if len(sizes) == 1:
        return _dots(comparison, width)
    return _lines(comparison, width)


def _within(cell: Cell) -> bool:
    """Whether a rule never passed its budget and never paid less than a cost."""
    return cell.mean("rationality_violations") == 0 and cell.mean("budget_violations") == 0


def _worst_gain(cell: Cell, direction: str = "regret") -> float:
    """The largest gain over the mean payment that was found over all seeds; 0 where it is rounding.

    Args:
        direction: `regret`, or the field of `AuditReport` with the gains of other misreports.
    """
    gains = cell.values(f"{direction}.maximum")
    if not any(beyond_rounding(gain, report.budget) for gain, report in zip(gains, cell.reports, strict=True)):
        return 0.0
    return float(cell.values(f"{direction}.maximum_share").max())


def _percent(share: float) -> str:
    """A share as tables write it."""
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}"


def _bars(comparison: Comparison, width: float) -> Figure:
    narrow = width < _NARROW
    cells = comparison.cells()[::-1]
    rules = _rules(comparison)
    height = 0.24 * len(cells) + 0.9
    made = new_figure(width, 2 * height + 0.5 if narrow else height + 0.4)
    value, incentive = made.subplots(2, 1) if narrow else made.subplots(1, 2, sharey=True)
    longest = 1.0
    for row, cell in enumerate(cells):
        kept = _within(cell)
        shade = own_look(cell.rule, rules.index(cell.rule))["color"]
        style: dict[str, Any] = {"color": shade, "height": 0.66, "alpha": 0.9}
        style |= {"edgecolor": "white", "hatch": None if kept else "////"}
        ratio = cell.mean("fluid_ratio")
        spread = cell.half_width("fluid_ratio")
        value.barh(row, ratio, xerr=spread or None, error_kw={"lw": 0.9, "capsize": 2}, **style)
        _beside(value, ratio + spread, row, f"{ratio:.3f}")
        longest = max(longest, ratio + spread)
        worst = _worst_gain(cell)
        if worst == 0:
            _beside(incentive, _FLOOR, row, "none found")
        else:
            incentive.barh(row, max(worst - _FLOOR, _FLOOR), left=_FLOOR, **style)
            _beside(incentive, max(worst, 2 * _FLOOR), row, _percent(worst))
        upwards = _worst_gain(cell, "regret_in_epsilon_up")
        if upwards > 0:
            incentive.plot(max(upwards, _FLOOR), row, "D", ms=4, mfc="white", mec="black", mew=0.8, zorder=3)
    value.axvline(1.0, color="#555555", linestyle="--", linewidth=0.8, zorder=1.5)
    value.set_xlim(0, 1.22 * longest)
    value.set_xlabel(f"{_VALUE} (dashed: limit of truthful rules)" if not narrow else _VALUE, fontsize=8)
    incentive.set_xlabel(_INCENTIVE, fontsize=8)
    incentive.set(xscale="log", xlim=(_FLOOR, 3000))
    incentive.set_xticks([1e-4, 1e-2, 1, 100], ["0.01%", "1%", "100%", "10,000%"])
    incentive.minorticks_off()
    for axes in (value, incentive):
        axes.set_yticks(range(len(cells)), [cell.marked for cell in cells])
        axes.set_ylim(-0.6, len(cells) - 0.4)
        _tidy(axes, "x")
    first = comparison.reports[0]
    made.suptitle(f"{first.scenario}, {counted(first.clients, 'client')}, budget {first.budget:g}", fontsize=8)
    _say_broken(made, cells, narrow)
    return made


def _beside(axes: Axes, x: float, y: float, text: str) -> None:
    """A figure at the end of a bar, on white, so that no grid line runs through it."""
    axes.annotate(
        text,
        (x, y),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )


def _dots(comparison: Comparison, width: float) -> Figure:
    """Distributions side by side; rules are moved apart, so that none hides another."""
    names = list(dict.fromkeys(name for name, _ in comparison.markets))
    rules = _rules(comparison)
    narrow = width < _NARROW
    made = new_figure(width, (3.6 if narrow else 3.0) + 0.17 * len(rules) / (2 if narrow else 4))
    value, incentive = made.subplots(2, 1, sharex=True)
    for number, rule in enumerate(rules):
        cells = [cell for cell in comparison.cells() if cell.rule == rule]
        moved = 0.7 * ((number + 0.5) / len(rules) - 0.5)
        at = [names.index(cell.market[0]) + moved for cell in cells]
        _draw(value, incentive, cells, at, {**own_look(rule, number), "ls": "none"})
    for axes in (value, incentive):
        for edge in range(1, len(names)):
            axes.axvline(edge - 0.5, color="#dddddd", lw=0.8, zorder=0)
        axes.set_xlim(-0.5, len(names) - 0.5)
    crowded = max(len(name) for name in names) * len(names) * 0.075 > width - 0.8
    labels = [name.replace(" × ", " ×\n") for name in names]
    incentive.set_xticks(range(len(names)), labels)
    if crowded:
        incentive.tick_params(axis="x", labelrotation=25)
    _label(value, incentive)
    _legend(made, value, comparison, rules, narrow)
    return made


def _lines(comparison: Comparison, width: float) -> Figure:
    names = list(dict.fromkeys(name for name, _ in comparison.markets))
    sizes = sorted({size for _, size in comparison.markets})
    rules = _rules(comparison)
    narrow = width < _NARROW
    legend = 0.17 * len(rules) / (2 if narrow else 4)
    if narrow:  # a row per distribution, value and incentive side by side
        made = new_figure(width, 0.5 + 1.35 * len(names) + legend)
        grid = made.subplots(len(names), 2, squeeze=False, sharex=True, sharey="col")
        panels = [(row[0], row[1]) for row in grid]
    else:  # a column per distribution, value above incentive
        made = new_figure(width, 3.4 + legend)
        grid = made.subplots(2, len(names), squeeze=False, sharex=True, sharey="row")
        panels = [(grid[0][column], grid[1][column]) for column in range(len(names))]
    for name, (value, incentive) in zip(names, panels, strict=True):
        for number, rule in enumerate(rules):
            cells = sorted(
                (cell for cell in comparison.cells(name) if cell.rule == rule), key=lambda cell: cell.market[1]
            )
            # Rules are moved apart a little along the axis, so that none hides another.
            moved = (sizes[-1] / sizes[0]) ** (0.12 * ((number + 0.5) / len(rules) - 0.5))
            _draw(value, incentive, cells, [cell.market[1] * moved for cell in cells], own_look(rule, number))
        for axes in (value, incentive):
            axes.set_xscale("log")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
        value.set_title(name, fontsize=8, loc="left" if narrow else "center")
    for value, incentive in panels if narrow else panels[:1]:
        _label(value, incentive)
    for axes in grid[-1]:
        axes.set_xlabel("clients", fontsize=8)
    _legend(made, panels[0][0], comparison, rules, narrow)
    return made


def _draw(value: Axes, incentive: Axes, cells: Sequence[Cell], at: Sequence[float], look: dict[str, Any]) -> None:
    """One rule in both panels."""
    ratio = [cell.mean("fluid_ratio") for cell in cells]
    spread = [cell.half_width("fluid_ratio") for cell in cells]
    several = any(spread)
    rule = cells[0].rule if cells else ""
    value.errorbar(at, ratio, yerr=spread if several else None, label=rule, capsize=2, lw=0.9, **look)
    incentive.plot(at, [max(_worst_gain(cell), _FLOOR) for cell in cells], lw=0.9, **look)
    value.axhline(1.0, color="#555555", linestyle="--", linewidth=0.8, zorder=0.5)
    incentive.set_yscale("log")
    top = max([*(_worst_gain(cell) for cell in cells), incentive.get_ylim()[1] / 1.5, 0.1])
    incentive.set_ylim(0.6 * _FLOOR, 1.5 * top)
    shown = {tick: text for tick, text in _GAIN_TICKS.items() if tick <= 1.5 * top}
    incentive.set_yticks(list(shown), list(shown.values()))
    incentive.minorticks_off()
    for axes in (value, incentive):
        _tidy(axes, "y")


def _tidy(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _label(value: Axes, incentive: Axes) -> None:
    value.set_ylabel(_VALUE.replace(" / ", " /\n"), fontsize=8)
    incentive.set_ylabel(_INCENTIVE.replace(" / ", " /\n"), fontsize=8)


def _rules(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(report.mechanism for report in comparison.reports))


def _legend(made: Figure, axes: Axes, comparison: Comparison, rules: Sequence[str], narrow: bool) -> None:
    """Below the panels; a rule that breaks a promise, passes its budget or underpays says so beside its name."""
    broken = comparison.broken
    beyond = {cell.rule for cell in comparison.cells() if not _within(cell)}
    handles, names = axes.get_legend_handles_labels()
    called = [f"{name}{MARK if name in broken else ''}{'†' if name in beyond else ''}" for name in names]
    columns = 2 if narrow else min(len(rules), 4)
    said = [*([_BROKEN_PROMISE] if broken else []), *([f"† {_BEYOND}"] if beyond else [])]
    title = ("\n" if narrow else "; ").join(said) or None
    made.legend(
        handles,
        called,
        loc="outside lower center",
        ncols=columns,
        fontsize=7,
        frameon=False,
        title=title,
        title_fontsize=7,
    )


def _say_broken(made: Figure, cells: Sequence[Cell], narrow: bool) -> None:
    said = [_BROKEN_PROMISE] if any(cell.broken for cell in cells) else []
    if any(_worst_gain(cell, "regret_in_epsilon_up") > 0 for cell in cells):
        said.append(_UPWARDS)
    if not all(_within(cell) for cell in cells):
        said.append(f"hatched: {_BEYOND}")
    if said:
        made.supxlabel(("\n" if narrow else "; ").join(said), fontsize=7)
