"""`privmarket audit`: attack a mechanism and report what was found."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from privmarket._counted import counted
from privmarket._files import check_writable, write_atomically
from privmarket._lazy import require
from privmarket.cli._options import (
    Budget,
    Json,
    Seed,
    Settings,
    note,
    parse_settings,
    print_json,
    print_table,
)
from privmarket.cli._progress import ProgressBar
from privmarket.errors import ConfigurationError, MissingPartError
from privmarket.market._attacks import LEVELS
from privmarket.market._audit import AuditReport, RegretSummary
from privmarket.market._distributions import Distribution, EmpiricalDistribution, independence_test
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._randomised import RandomisedMechanism
from privmarket.mechanisms import resolve
from privmarket.mechanisms._registry import UNTRAINED as UNTRAINED_FORM
from privmarket.reports._comparison import (
    Comparison,
    attack_called,
    audit as run,
    compare,
    distribution_called,
    market_code,
    rule_code,
)

_Mechanism = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="A name from `privmarket mechanisms`, package.module:Rule, file.py:Rule, or `all` for one "
        "table of the registered rules without paper-literal forms.",
    ),
]
Scenario = Annotated[
    str,
    typer.Option(
        help="uniform, bimodal, lognormal, valuation-function, a CSV file of past bids, or your own file.py:Name."
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        help="The buyer's aim: total-epsilon, aggregation-error, local-error or aggregate-error:heterogeneity=0.3."
    ),
]
_Coalition = Annotated[
    int | None, typer.Option(min=2, help="Also search joint misreports of coalitions of so many clients.")
]


Attack = Annotated[
    str | None,
    typer.Option(
        metavar="ATTACK",
        help="strong, quick, or your own: package.module:Attack or file.py:Attack. [default: strong; quick for "
        "several rules]",
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Also compare with the best truthful rule on a grid of types (≤ 4 clients).")
]
Certify = Annotated[
    bool, typer.Option("--certify", help="Also bound from above what any misreport can gain (menus, networks).")
]
Coins = Annotated[int, typer.Option(min=1, help="Throws of a rule's coins; each is attacked.")]
Independent = Annotated[
    bool, typer.Option("--independent", help="Past bids: v has nothing to do with ε; draw the columns apart.")
]


def audit(
    mechanism: _Mechanism,
    scenario: Scenario = "uniform",
    clients: Annotated[int, typer.Option(help="Clients in each market.")] = 100,
    budget: Budget = 50.0,
    profiles: Annotated[int, typer.Option(help="Markets to sample and attack.")] = 20,
    objective: Objective = "total-epsilon",
    attack: Attack = None,
    coalition: _Coalition = None,
    exact: Exact = False,
    certify: Certify = False,
    coins: Coins = 20,
    independent: Independent = False,
    settings: Settings = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write the report as a page, with witnesses.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure of `--mechanism all`.")] = Path("out"),
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Attack a mechanism on sampled markets: regret, IR, budget, truthfulness in ε, distance to the bounds.

    By default the attack is {attack}; the worst that any of them finds counts.
    It is a lower bound on what a client can gain by a misreport. Ends with exit code 1 if a promise that the rule
    declares was seen broken; the table then names a client and a report that show it, and below it stand the lines
    of Python that run the rule on it again.

    [bold]Examples[/bold]

      privmarket audit --mechanism mean-field-menu --scenario uniform --clients 100 --budget 50

      privmarket sample past-bids.csv

      privmarket audit --mechanism proportional-share --scenario past-bids.csv --clients 30 --budget 9 --json

      privmarket audit --mechanism pac --coalition 20

      privmarket audit --mechanism csra --attack quick --clients 20 --budget 10

      privmarket audit --mechanism two-step --objective aggregate-error:heterogeneity=0.3 --set heterogeneity=0.3

      privmarket audit --mechanism all --clients 50 --budget 25 --profiles 3
    """
    distribution = distribution_called(scenario, independent=independent)
    if coalition is not None and coalition > clients:
        raise ConfigurationError(
            f"coalitions of {coalition} among {clients} clients", f"give --coalition at most {clients}"
        )
    check_writable(html, "--html")
    if mechanism == "all":
        for option, value in (("--html", html), ("--coalition", coalition), ("--set", settings)):
            if value:
                raise ConfigurationError(f"{option} with --mechanism all", "give one rule")
        check_writable(out / "auction-comparison.png")
        with Console(stderr=True).status("starting") as status:
            found = compare(
                scenario=distribution if independent else scenario,
                clients=clients,
                budget=budget,
                profiles=profiles,
                seed=seed,
                objective=objective,
                attack=attack or "quick",
                exact=exact,
                certify=certify,
                coins=coins,
                progress=lambda name: status.update(f"clearing and attacking {name}"),
            )
        again = Again(attack or "quick", objective, independent)
        print_comparison(found, again.commands(found, [(scenario, one.mechanism) for one in found]), json=json)
        _figure_of(found, out)
        for line in about_independence(distribution):
            note(line)
        if found.broken:
            raise typer.Exit(1)
        return
    # Some rules have settings that are called like options of the audit, such as `objective`.
    given = parse_settings(settings)
    search = attack_called("strong" if attack is None else attack)
    rule = resolve(mechanism, market=MarketFacts.of(distribution), **given)
    throws = coins if isinstance(rule, RandomisedMechanism) else 1
    with ProgressBar("attacking", max(profiles, throws), transient=True) as bar:
        report = run(
            rule,
            scenario=distribution,
            clients=clients,
            budget=budget,
            profiles=profiles,
            seed=seed,
            objective=objective,
            attack=search,
            coalition=coalition,
            exact=exact,
            certify=certify,
            coins=coins,
            progress=bar.show,
        )
    drawn_from = market_code(scenario, independent=independent)
    report = replace(report, rule_code=rule_code(mechanism, rule, drawn_from, given))
    if html is not None:
        write_atomically(html, report.to_html())
        note(f"written: {html}")
    if json:
        print_json(report.to_dict())
    else:
        print_table(_table(report))
        print_table(_quintile_table(report))
        if report.witnesses:
            print(_how_to_replay(report, drawn_from))
    if getattr(rule, "untrained", False) and not mechanism.endswith(UNTRAINED_FORM):
        note(untrained_note(rule))
    if report.epsilon_bought == 0:
        note("note: nothing was sold in any market; try a larger --budget or another rule (--mechanism all)")
    for line in about_independence(distribution):
        note(line)
    if report.broken:
        raise typer.Exit(1)


if audit.__doc__ is not None:  # python -OO has none
    audit.__doc__ = audit.__doc__.format(attack=LEVELS["strong"].words[0].removeprefix("v and ε: "))


def untrained_note(rule: Mechanism) -> str:
    """A note for somebody who named a network of their own and gave no weights."""
    return f"note: {rule.name} is the network before training; --set weights=FILE audits what training made of it"


def _how_to_replay(report: AuditReport, market: str) -> str:
    """Python that runs the first witness again, its market drawn as the audit drew it."""
    promise, witness = next(iter(report.witnesses.items()))
    drawn = ""
    if market and witness.market:
        shape = f"{report.clients}, ({report.markets},)"
        drawn = f"{market}.sample(np.random.default_rng({report.seed}), {shape})[{witness.market[0]}]"
    return f"To run the witness of “{promise}” again, in Python:\n\n{report.replay(promise, market=drawn)}"


def about_independence(distribution: Distribution) -> list[str]:
    """What a user of past bids must know about the bounds."""
    if not isinstance(distribution, EmpiricalDistribution):
        return []
    past = distribution.past
    columns = {"ε": "epsilon"} if past.data_size is None else {"ε": "epsilon", "the number of records": "data_size"}
    chances = {said: independence_test(past, column) for said, column in columns.items()}
    dependent = [f"{said} (p = {p_value:.2g})" for said, p_value in chances.items() if p_value < 0.05]
    if dependent:
        return [
            f"note: in these past bids v depends on {' and on '.join(dependent)}, and the bounds take that into "
            "account"
        ]
    return [
        f"note: these past bids do not show that v depends on {' or on '.join(chances)} "
        f"(p = {min(chances.values()):.2g} or more); --independent draws each column by itself: a market without "
        "any dependence, whose bounds are tighter"
    ]


@dataclass(frozen=True)
class Again:
    """Options of a comparison with which an audit attacks a rule as the comparison did."""

    attack: str
    objective: str
    independent: bool

    def commands(self, found: Comparison, places: Iterable[tuple[str, str]]) -> list[str]:
        """For each rule that broke a promise, the `privmarket audit` that finds the same, with its witness.

        Args:
            places: the scenario and the rule of each report, as they were typed.
        """
        commands: dict[str, str] = {}
        for (scenario, rule), report in zip(places, found, strict=True):
            if report.broken and report.mechanism not in commands:
                options = {
                    "mechanism": rule,
                    "scenario": scenario,
                    "clients": report.clients,
                    "budget": report.budget,
                    "profiles": report.profiles,
                    "seed": report.seed,
                    "attack": self.attack,
                    **({} if self.objective == "total-epsilon" else {"objective": self.objective}),
                    **({"coins": report.coins} if report.coins else {}),
                }
                words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
                alone = ["--independent"] if self.independent else []
                commands[report.mechanism] = shlex.join(["privmarket", "audit", *words, *alone])
        return list(commands.values())


def print_comparison(found: Comparison, commands: Sequence[str], *, json: bool) -> None:
    """The table of a comparison, or JSON; then the commands that show the witnesses of rules with a star."""
    if json:
        print_json({"reports": [report.to_dict() for report in found]})
    else:
        print_table(comparison_table(found))
        if commands:
            print("\n".join(["To see the witness of a broken promise:", *(f"  {one}" for one in commands)]))
    for why in found.skipped:
        note(f"skipped: {why}")


def _figure_of(comparison: Comparison, out: Path) -> None:
    path = out / "auction-comparison.png"
    try:
        require("matplotlib")
    except MissingPartError as error:
        note(f"no figure: {error}")
    else:
        comparison.plot(path)
        note(f"figure: {path}")


def comparison_table(comparison: Comparison) -> Table:
    """A comparison for the terminal."""
    table = Table(title=comparison.title, caption=comparison.legend)
    table.add_column("rule")
    for column in comparison.columns:
        table.add_column(column, justify="right")
    for row in comparison.rows():
        table.add_row(*row)
    return table


def _table(report: AuditReport) -> Table:
    table = Table(
        title=f"{report.mechanism} on {report.scenario}: {counted(report.clients, 'client')}, "
        f"budget {report.budget:g}, {counted(report.profiles, 'market')} attacked, "
        f"{report.markets} averaged, seed {report.seed}",
        show_header=False,
    )
    table.add_column("figure")
    table.add_column("value", justify="right")

    def regret(label: str, summary: RegretSummary) -> None:
        table.add_row(
            f"{label}: mean / 99th percentile / maximum",
            f"{summary.mean:.3g} / {summary.percentile_99:.3g} / {summary.maximum:.3g}",
        )
        table.add_row(
            "  as a share of the mean payment",
            f"{summary.mean_share:.3%} / {summary.percentile_99_share:.3%} / {summary.maximum_share:.3%}",
        )
        if report.profiles > 1 and summary.mean_share_high > 0:
            table.add_row(
                "  the mean share, at 95 %", f"{summary.mean_share_low:.3%} to {summary.mean_share_high:.3%}"
            )

    regret("gain from misreports of v and ε", report.regret)
    regret("gain from misreports of v alone", report.regret_in_valuation)
    regret("gain from withheld ε alone", report.regret_in_epsilon)
    regret("gain from offers above the own ε that can be delivered", report.regret_in_epsilon_up)
    if report.regret_in_expectation is not None:
        expected = report.regret_in_expectation
        table.add_row(
            f"gain in expectation over {expected.coins} fresh throws of the coins, market 0",
            f"{expected.gain:.3g} ± {expected.standard_error:.2g}",
        )
    if report.certified is not None:
        table.add_row(
            f"no gain above (mean / maximum), for {report.certified.reports}",
            f"{report.certified.mean:.3g} / {report.certified.maximum:.3g}",
        )
        table.add_row(
            "  as a share of the mean payment",
            f"{report.certified.mean_share:.3%} / {report.certified.maximum_share:.3%}",
        )
        table.add_row("  largest gain found, by attacks or on the way", f"{report.certified.found:.3g}")
        if report.certified.not_closed > 0:
            table.add_row(
                "  does not close: no more than the whole budget is all that is known",
                f"{report.certified.not_closed:.1%} of clients",
            )
    if report.collusion is not None:
        table.add_row(
            f"gain of coalitions of {report.collusion.size}: mean / maximum / mean as a share of their pay",
            f"{report.collusion.mean:.3g} / {report.collusion.maximum:.3g} / {report.collusion.mean_share:.3%}",
        )
    table.add_section()
    table.add_row("paid less than their cost (IR violations)", f"{report.rationality_violations:.2%} of clients")
    table.add_row("markets over budget", f"{report.budget_violations:.2%}")
    table.add_row("worst overspend", f"{report.worst_overspend:.2%} of the budget")
    table.add_row("sold more than offered", f"{report.offer_violations:.2%} of clients")
    table.add_section()
    table.add_row("ε bought", f"{report.epsilon_bought:.4f}")
    table.add_row("spent (R)", f"{report.spend:.4f}")
    table.add_row("spent over budget (R/B)", f"{report.spend_over_budget:.4f}")
    table.add_row("clients' surplus (SW)", f"{report.welfare:.4f}")
    table.add_row("surplus over budget (SW/B)", f"{report.welfare_over_budget:.4f}")
    table.add_row("ε per unit of money", f"{report.epsilon_per_unit_spent:.4f}")
    table.add_section()
    table.add_row(f"objective: {report.objective}", f"{report.objective_value:.6g}")
    table.add_row(
        "fluid bound (truthful rules that see v, ε and records; many clients)", f"{report.fluid_bound:.6g}"
    )
    table.add_row(
        "ratio to the fluid bound, ± its standard error",
        f"{report.fluid_ratio:.4f} ± {report.fluid_ratio_error:.4f}",
    )
    if report.one_price_bound != report.fluid_bound:
        table.add_row("  with one list of prices for everybody", f"{report.one_price_bound:.6g}")
    table.add_row("first-best bound (costs known)", f"{report.first_best_bound:.6g}")
    table.add_row(
        "ratio to the first-best bound, ± its standard error",
        f"{report.first_best_ratio:.4f} ± {report.first_best_ratio_error:.4f}",
    )
    if report.prior_free_reference is not None:
        table.add_row("(1 − 1/e) of the first best (no distribution known)", f"{report.prior_free_reference:.6g}")
    if report.optimum is not None and report.optimum_ratio is not None:
        table.add_row("best truthful rule on a grid of types", f"{report.optimum:.6g}")
        table.add_row("ratio to that optimum, on the grid", f"{report.optimum_ratio:.4f}")
    table.add_section()
    table.add_row("promised", ", ".join(report.declared) or "nothing")
    table.add_row("promises seen broken", ", ".join(report.broken) or "none")
    for promise, witness in report.witnesses.items():
        table.add_row(f"  {promise}", str(witness))
    table.add_section()
    for place, words in enumerate(report.attacks):
        table.add_row("attacks that ran" if place == 0 else "", words)
    return table


def _quintile_table(report: AuditReport) -> Table:
    table = Table(title="By valuation, a fifth of the clients per row")
    for column in ("valuation up to", "sell something", "mean ε", "mean pay"):
        table.add_column(column, justify="right")
    for row in report.quintiles:
        table.add_row(
            f"{row.highest_valuation:.3f}",
            f"{row.participation:.1%}",
            f"{row.mean_epsilon:.3f}",
            f"{row.mean_payment:.3f}",
        )
    return table
