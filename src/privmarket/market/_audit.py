"""The audit: attack a mechanism on sampled markets, and say what was found and how far it is from the best.

`judge` counts what outcomes break: who is underpaid, what is over budget, which gains are more than rounding.
Audits, training, the reproduction of the paper and the figures that ship with weights all use its definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket._counted import counted
from privmarket._figures import new_figure, write
from privmarket._lazy import late
from privmarket._settings import TOLERANCE
from privmarket.errors import ConfigurationError, OutcomeError, UnknownNameError
from privmarket.market import _attacks as attacks
from privmarket.market._bids import Array, Bids
from privmarket.market._bounds import first_best_bound, fluid_bound, one_price_bound, prior_free_reference
from privmarket.market._certificate import certified_regret, check_certifiable
from privmarket.market._distributions import Distribution, refuse_other_sizes
from privmarket.market._exact_optimum import exact_optimum
from privmarket.market._guarantees import (
    ApproximatelyTruthful,
    BudgetFeasible,
    IndividuallyRational,
    OutcomeGuarantee,
    Truthful,
    WithinOffer,
    largest_misreport,
    promises_of,
    shortfall,
)
from privmarket.market._mechanism import (
    CoalitionWitness,
    Finding,
    Guarantee,
    Mechanism,
    Witness,
    WitnessTypes,
)
from privmarket.market._objectives import TOTAL_EPSILON, Objective, TotalEpsilon
from privmarket.market._outcome import Outcome
from privmarket.market._randomised import (
    ExpectedGain,
    FixedCoins,
    RandomisedMechanism,
    best_on_average,
    gains_by_throw,
    measured_gain,
)
from privmarket.market._replay import replay_code
from privmarket.market._watch import Record, check_answers, refuse_mixed, try_designed_markets, watched

if TYPE_CHECKING:
    import pandas

    from privmarket._figures import Figure
else:
    pandas = late("pandas")

special = late("scipy.special")

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>privmarket: audit of {title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 24px auto; padding: 0 14px; }}
table {{ border-collapse: collapse; margin: 18px 0; }}
td, th {{ text-align: left; padding: 3px 14px 3px 0; vertical-align: top; }}
pre {{ overflow-x: auto; background: #f4f4f4; padding: 10px; }}</style></head>
<body>{body}</body></html>
"""
_VALUE_MARKETS = 200
_VALUE_CELLS = 2_000_000


@dataclass(frozen=True)
class RegretSummary:
    """What misreports gain per client and round: in money, and as a share of the mean payment.

    `mean_share_low` and `mean_share_high` enclose the mean share at 95 %, by Student's t over the attacked markets;
    they are the share itself where only one was attacked.
    """

    mean: float
    percentile_99: float
    maximum: float
    mean_share: float
    percentile_99_share: float
    maximum_share: float
    mean_share_low: float
    mean_share_high: float


@dataclass(frozen=True)
class CoalitionSummary:
    """What coalitions of `size` clients gain by joint misreports, in money and as a share of their truthful pay."""

    size: int
    mean: float
    maximum: float
    mean_share: float


@dataclass(frozen=True)
class CertifiedSummary:
    """Upper bounds on what misreports gain, over the attacked markets; in money, and as a share of mean pay.

    Attributes:
        mean, maximum: of the upper bounds, over clients and markets.
        found: the largest gain of such reports that was found, by the attacks or on the way to the bounds.
        reports: which reports the bounds are about.
        not_closed: share of clients for whom all that is known is that nobody is paid more than the budget.
    """

    mean: float
    maximum: float
    mean_share: float
    maximum_share: float
    found: float
    reports: str
    not_closed: float


@dataclass(frozen=True)
class QuintileRow:
    """One fifth of the clients by valuation, cheapest first: who sells, how much, for what."""

    highest_valuation: float
    participation: float
    mean_epsilon: float
    mean_payment: float


@dataclass(frozen=True, repr=False)
class AuditReport:
    """Everything `privmarket audit` says. Means are per market unless named otherwise.

    Attributes:
        profiles: markets that were attacked, a rule with coins under every throw at least once; markets: markets
            that the other figures are averaged over.
        regret: gains from misreports of valuation and ε together, with offers up to the client's own.
        regret_in_valuation: gains from misreports of the valuation alone.
        regret_in_epsilon: gains from withheld ε alone.
        regret_in_epsilon_up: gains from offers above the own ε, where the client can deliver what is bought.
        rationality_violations: share of (client, market) pairs paid less than their cost.
        budget_violations: share of markets that spend more than the budget.
        offer_violations: share of (client, market) pairs that sell more than they offered.
        collusion: gains from joint misreports of coalitions; None where none were attacked.
        fluid_ratio: objective over the fluid bound (for an error: bound over objective), which is for truthful
            rules that see v, ε and records; see `bounds`.
        fluid_ratio_error, first_best_ratio_error: standard errors of the ratios, by the markets that were sampled.
        one_price_bound: what one list of prices for everybody buys; below the fluid bound where v depends on ε.
        prior_free_reference: 1 − 1/e of the first best, for total ε; None for other aims.
        optimum: the most that a truthful rule buys on a grid of types; None unless it was asked for.
        optimum_ratio: what this rule buys on that grid, over the optimum.
        certified: upper bounds on what misreports gain; None unless they were asked for.
        coins: how often the coins of a randomised rule were thrown; 0 for a rule without any.
        regret_in_expectation: a randomised rule's gain from misreports of its mean outcome, on fresh coins.
        findings: every promise with its verdict, and a witness where it broke.
        declared: what the mechanism promises; broken: which of these the audit saw broken.
        attacks: the searches that ran, in words.
        rule_code: Python that makes the rule, for `replay`; "" where only the caller knows how it is made.
    """

    mechanism: str
    scenario: str
    clients: int
    budget: float
    profiles: int
    markets: int
    seed: int
    objective: str
    regret: RegretSummary
    regret_in_valuation: RegretSummary
    regret_in_epsilon: RegretSummary
    regret_in_epsilon_up: RegretSummary
    collusion: CoalitionSummary | None
    rationality_violations: float
    budget_violations: float
    worst_overspend: float
    offer_violations: float
    epsilon_bought: float
    spend: float
    spend_over_budget: float
    welfare: float
    welfare_over_budget: float
    epsilon_per_unit_spent: float
    objective_value: float
    fluid_bound: float
    fluid_ratio: float
    fluid_ratio_error: float
    one_price_bound: float
    first_best_bound: float
    first_best_ratio: float
    first_best_ratio_error: float
    prior_free_reference: float | None
    optimum: float | None
    optimum_ratio: float | None
    certified: CertifiedSummary | None
    coins: int
    regret_in_expectation: ExpectedGain | None
    participation: float
    quintiles: tuple[QuintileRow, ...]
    findings: tuple[Finding, ...]
    declared: tuple[str, ...]
    broken: tuple[str, ...]
    attacks: tuple[str, ...]
    rule_code: str

    @property
    def witnesses(self) -> dict[str, Witness | CoalitionWitness]:
        """For each promise that broke, the client (or the coalition) and the report that show it."""
        return {one.promise: one.witness for one in self.findings if one.witness is not None}

    def replay(self, promise: str | None = None, *, market: str = "") -> str:
        """A few lines of Python that run the rule on a witness again and print what is gained.

        Args:
            promise: one of `broken`; the first of them if left out.
            market: Python that makes the market's `Bids`; by default its numbers are written out.

        Raises:
            UnknownNameError: no witness of that promise was found.
        """
        name = next(iter(self.witnesses), "") if promise is None else promise
        witness = self.witnesses.get(name)
        if witness is None or witness.types is None:
            raise UnknownNameError.among("broken promise of this audit", name, self.witnesses)
        rule = self.rule_code or f"...  # put the audited rule here: {self.mechanism}"
        return replay_code(name, witness, rule, market)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON data; each finding with a witness has the lines of `replay`."""
        data = asdict(self)
        for finding in data["findings"]:
            witnessed = finding["witness"] is not None and finding["witness"]["types"] is not None
            finding["replay"] = self.replay(finding["promise"]) if witnessed else None
        return data

    def figures(self) -> dict[str, object]:
        """Every figure by name, nested ones as `regret.mean` and so on; without fifths of clients and witnesses."""
        row: dict[str, object] = {}
        for name, value in asdict(self).items():
            if isinstance(value, dict):
                row.update({f"{name}.{key}": figure for key, figure in value.items()})
            elif name not in ("quintiles", "findings", "rule_code"):
                row[name] = ", ".join(value) if isinstance(value, tuple | list) else value
        return row

    def to_frame(self) -> pandas.DataFrame:
        """One row, one column per figure, indexed by the rule's name. Needs pandas."""
        return pandas.DataFrame([self.figures()]).set_index("mechanism")

    def plot(self, path: str | Path | None = None, *, width: float = 7.0) -> Figure:
        """What misreports gain in each direction, and who sells; also written to `path` where given.

        Args:
            path: PNG, PDF or SVG, by its ending.
            width: in inches; 3.4 is a column of most conferences. Needs matplotlib.
        """
        made = _figure(self, width)
        if path is not None:
            write(made, path)
        return made

    def __repr__(self) -> str:
        kept = "no promise broken" if not self.broken else f"broken: {', '.join(self.broken)}"
        return (
            f"<AuditReport {self.mechanism} on {self.scenario}, {counted(self.clients, 'client')}, budget "
            f"{self.budget:g}: {self.fluid_ratio:.3f} of the fluid bound, {kept}>"
        )

    def __str__(self) -> str:
        gains = beyond_rounding(self.regret.maximum, self.budget)
        gain = f"{self.regret.maximum_share:.2%} of the mean payment" if gains else "nothing"
        return "\n".join(
            (
                f"{self.mechanism} on {self.scenario}: {counted(self.clients, 'client')}, budget {self.budget:g}",
                f"  buys {self.epsilon_bought:.4g} ε for {self.spend:.4g}: {self.fluid_ratio:.1%} of the bound "
                f"(± {self.fluid_ratio_error:.1%})",
                f"  best misreport found gains {gain} ({counted(self.profiles, 'market')} attacked)",
                f"  underpaid {self.rationality_violations:.2%} of clients, over budget "
                f"{self.budget_violations:.2%} of markets, beyond the offer {self.offer_violations:.2%} of clients",
                f"  promises: {', '.join(self.declared) or 'none'}",
                f"  promises seen broken: {', '.join(self.broken) or 'none'}",
                *(f"    {promise}: {witness}" for promise, witness in self.witnesses.items()),
                f"  attacks: {'; '.join(self.attacks)}",
            )
        )

    def _repr_html_(self) -> str:
        """The same as tables: figures, gains by direction, and each promise with its verdict and witness."""
        facts = [
            ("ε bought", f"{self.epsilon_bought:.4g}"),
            ("spent", f"{self.spend:.4g}"),
            ("over the fluid bound", f"{self.fluid_ratio:.3f} ± {self.fluid_ratio_error:.3f} (standard error)"),
            ("underpaid", f"{self.rationality_violations:.2%} of clients"),
            ("over budget", f"{self.budget_violations:.2%} of markets"),
            ("beyond the offer", f"{self.offer_violations:.2%} of clients"),
        ]
        gains = [
            (name, f"{summary.mean_share:.3%}", f"{summary.maximum_share:.3%}")
            for name, summary in self.regrets.items()
        ]
        promises = [
            (one.promise, "held" if one.held else "BROKEN", "" if one.witness is None else str(one.witness))
            for one in self.findings
        ]
        title = (
            f"{self.mechanism} on {self.scenario}: {counted(self.clients, 'client')}, budget {self.budget:g}, "
            f"{counted(self.profiles, 'market')} attacked, seed {self.seed}"
        )
        gain_head = ("misreports of", "mean gain over mean pay", "largest")
        return (
            f"<h3>{escape(title)}</h3>{_html_table((), facts)}{_html_table(gain_head, gains)}"
            f"{_html_table(('promise', 'verdict', 'witness'), promises)}{self._replays()}"
            f"<p>Attacks that ran: {escape('; '.join(self.attacks))}.</p>"
        )

    def _replays(self) -> str:
        """The lines that replay each witness, folded away."""
        return "".join(
            f"<details><summary>Run the witness of “{escape(promise)}” again, in Python</summary>"
            f"<pre>{escape(self.replay(promise))}</pre></details>"
            for promise, witness in self.witnesses.items()
            if witness.types is not None
        )

    def to_html(self) -> str:
        """The report as one self-contained page."""
        return _PAGE.format(title=escape(self.mechanism), body=self._repr_html_())

    @property
    def regrets(self) -> dict[str, RegretSummary]:
        """What misreports gain, by direction."""
        return {
            "v and ε": self.regret,
            "v alone": self.regret_in_valuation,
            "ε, downwards": self.regret_in_epsilon,
            "ε, upwards": self.regret_in_epsilon_up,
        }


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{top}</tr>' if head else ''}{body}</table>"


def _figure(report: AuditReport, width: float) -> Figure:
    """Two panels: the gains by direction on a logarithmic axis, and ε and pay by fifth of the clients."""
    narrow = width < 5.0
    made = new_figure(width, 4.6 if narrow else 2.6)
    gains, fifths = made.subplots(2, 1) if narrow else made.subplots(1, 2)
    floor = 1e-5
    for row, summary in enumerate(report.regrets.values()):
        if not beyond_rounding(summary.maximum, report.budget):
            gains.text(floor * 1.3, row, "none found", va="center", fontsize=7)
            continue
        gains.barh(
            row, max(summary.maximum_share - floor, floor), left=floor, height=0.6, color="#E69F00", alpha=0.6
        )
        low = max(summary.mean_share_low, floor)
        high = max(summary.mean_share_high, floor)
        gains.plot([low, high], [row, row], color="black", lw=2)
    gains.set_yticks(range(len(report.regrets)), list(report.regrets))
    gains.set_ylim(len(report.regrets) - 0.4, -0.6)
    gains.set(xscale="log", xlim=(floor, max(10.0, 3 * report.regret.maximum_share)))
    gains.set_xticks([1e-4, 1e-2, 1.0], ["0.01%", "1%", "100%"])
    gains.set_xlabel("gain over mean pay:\nlargest (bar), mean (line, 95 %)", fontsize=8)
    gains.set_ylabel("misreports of", fontsize=8)
    shares = list(range(1, len(report.quintiles) + 1))
    for at, fifth in zip(shares, report.quintiles, strict=True):
        fifths.bar(at - 0.2, fifth.mean_epsilon, 0.38, color="#0072B2", label="ε sold" if at == 1 else None)
        fifths.bar(at + 0.2, fifth.mean_payment, 0.38, color="#009E73", label="pay" if at == 1 else None)
    fifths.set_xticks(shares, [f"≤ {fifth.highest_valuation:.2g}" for fifth in report.quintiles])
    fifths.set_xlabel("valuation, a fifth of the clients each", fontsize=8)
    fifths.set_ylabel("mean per client", fontsize=8)
    fifths.legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    for axes in (gains, fifths):
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return made


def audit(
    mechanism: Mechanism,
    distribution: Distribution,
    clients: int,
    budget: float,
    *,
    profiles: int = 20,
    seed: int = 0,
    attack: attacks.Attack | attacks.Level = attacks.LEVELS["strong"],
    objective: Objective = TOTAL_EPSILON,
    coalition: int | None = None,
    exact: bool = False,
    certify: bool = False,
    coins: int = 20,
    progress: Callable[[int], None] = lambda done: None,
) -> AuditReport:
    """Samples markets from `distribution`, attacks them, and compares the outcomes with the bounds.

    `privmarket.audit` is this function for rules and distributions in all their forms.

    Args:
        profiles: markets to attack; value is averaged over more, because auctions are cheap and attacks are not.
        attack: a level of `attacks.LEVELS`, or one attack on (v, ε) beside which the strong attacks on v alone
            and on ε alone run.
        coalition: also search joint misreports of coalitions of so many clients.
        exact: also compute the exact optimum on a grid of types, for at most 4 clients.
        certify: also bound from above what a misreport can gain, for menus and network rules.
        coins: how often the coins of a randomised rule are thrown: each throw is attacked as a rule of its own, on
            one of the attacked markets in turn, so that there are max(profiles, coins) attacks; and their mean is
            attacked in expectation.
        progress: called with the number of attacks done.
    """
    level = attack if isinstance(attack, attacks.Level) else attacks.own_level(attack)
    for name, number in (("clients", clients), ("profiles", profiles), ("coins", coins)):
        require_whole(name, number, 1)
    require_whole("seed", seed, 0)
    if isinstance(budget, bool) or not isinstance(budget, Real) or not 0 < budget < float("inf"):
        raise ConfigurationError(f"budget is {budget!r}: must be finite and above 0", "give the money per market")
    refuse_other_sizes(distribution, clients)
    rng = np.random.default_rng(seed)
    # Attacks are dear and auctions cheap: value is averaged over more markets than are attacked.
    markets = max(profiles, min(_VALUE_MARKETS, _VALUE_CELLS // clients))
    types = distribution.sample(rng, clients, (markets,))
    if certify:
        check_certifiable(mechanism, types[0], budget)
    thrown = _thrown(mechanism, coins, seed)
    outcome = _mean_outcome(thrown, types, budget)
    if not isinstance(mechanism, RandomisedMechanism):
        _check_repeatable(mechanism, types, budget)
    upward = attacks.UpwardAttack(distribution.epsilon_max)
    searches = {
        "valuation": level.valuation,
        "epsilon": level.epsilon,
        "epsilon_up": upward,
        "joint": level.joint,
    }
    record = Record([promise for promise in mechanism.guarantees if isinstance(promise, OutcomeGuarantee)])
    rules = [watched(rule, record) for rule in thrown]
    found: dict[str, list[_Attacked]] = {direction: [] for direction in searches}
    for index in range(max(profiles, len(thrown))):
        # A rule with coins is attacked under one throw at a time, as a rule that knows no chance.
        market = index % profiles
        rule = rules[index % len(rules)]
        here = {name: search(rule, types[market], budget, rng) for name, search in searches.items()}
        here["joint"] = here["joint"].worst_of(here["valuation"]).worst_of(here["epsilon"])
        check_answers(rule, types[market], budget, [*here.values()])
        for direction, regret in here.items():
            found[direction].append(_Attacked(market, rule.rule, regret))
        progress(index + 1)
    failed = try_designed_markets(rules, types, budget)
    paid = float(outcome.payment.mean())
    gains = {direction: np.stack([one.regret.gain for one in each]) for direction, each in found.items()}
    summaries = {direction: _summary(gain, paid, profiles) for direction, gain in gains.items()}
    expected = None
    if isinstance(mechanism, RandomisedMechanism):
        lies = best_on_average(mechanism, types[0], budget, level.joint, coins, seed)
        expected = measured_gain(mechanism, types[0], budget, lies, coins, seed)
        alone = {
            "joint": lies,
            "valuation": replace(lies, epsilon=types[0].epsilon),
            "epsilon": replace(lies, valuation=types[0].valuation),
        }
        for direction, one in alone.items():
            worst = gains_by_throw(mechanism, types[0], budget, one, range(seed, seed + 2 * coins))
            found[direction].append(_Attacked(0, *worst))
    findings = tuple(
        _with_types(finding, types, budget, thrown)
        for finding in _findings(mechanism, thrown, types, outcome, budget, found, summaries["joint"], rng, record)
    )
    best = exact_optimum(distribution, clients, budget) if exact else None
    certified = _certified(mechanism, types[:profiles], budget, paid, gains) if certify else None
    return AuditReport(
        mechanism=mechanism.name,
        scenario=distribution.name,
        clients=clients,
        budget=budget,
        profiles=profiles,
        markets=markets,
        seed=seed,
        objective=objective.name,
        regret=summaries["joint"],
        regret_in_valuation=summaries["valuation"],
        regret_in_epsilon=summaries["epsilon"],
        regret_in_epsilon_up=summaries["epsilon_up"],
        collusion=None if coalition is None else _collusion(thrown[0], types[:profiles], budget, coalition, rng),
        **_outcome_figures(types, outcome, budget),
        **_bound_figures(types, outcome, distribution, budget, objective),
        prior_free_reference=_prior_free(distribution, clients, budget, objective),
        optimum=None if best is None else best.total_epsilon,
        optimum_ratio=None if best is None else float(np.mean([best.ratio(rule) for rule in thrown])),
        certified=certified,
        coins=coins if isinstance(mechanism, RandomisedMechanism) else 0,
        regret_in_expectation=expected,
        quintiles=_quintiles(types, outcome),
        findings=findings,
        declared=tuple(promise.label for promise in mechanism.guarantees),
        broken=tuple(finding.promise for finding in findings if not finding.held),
        attacks=(
            *level.words,
            upward.words,
            *_further_attacks(coalition, expected, mechanism.guarantees, failed),
        ),
        rule_code="",
    )


def require_whole(name: str, number: object, least: int) -> None:
    """Refuses what is no whole number, or below the least one.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise ConfigurationError(f"{name} is {number!r}", f"give a whole number, at least {least}")


@dataclass(frozen=True)
class _Attacked:
    """What an attack found in the sampled market of this number, for the rule or for one throw of its coins."""

    market: int
    rule: Mechanism
    regret: attacks.Regret

    def placed(self, finding: Finding, types: Bids, budget: float) -> Finding:
        """The finding with this market in its witness."""
        if finding.witness is None:
            return finding
        told = WitnessTypes.of(types[self.market], float(budget), _coins_of(self.rule))
        return replace(finding, witness=replace(finding.witness, market=(self.market,), types=told))


def _further_attacks(
    coalition: int | None, expected: ExpectedGain | None, promises: tuple[Guarantee, ...], failed: int
) -> list[str]:
    """The searches that not every audit runs, in words."""
    said = []
    if any(isinstance(promise, OutcomeGuarantee) for promise in promises):
        words = "pay and budget: every auction that was run, and designed markets under three budgets"
        said.append(f"{words}; in {failed} of these the rule raised an error" if failed else words)
    if coalition is not None:
        said.append(f"joint misreports of coalitions of {coalition}")
    if expected is not None:
        said.append(f"misreports of the mean outcome over {counted(expected.coins, 'throw')} of the coins")
    return said


def _thrown(mechanism: Mechanism, coins: int, seed: int) -> list[Mechanism]:
    """The rule, or as many rules with fixed coins as coins are thrown."""
    if not isinstance(mechanism, RandomisedMechanism):
        return [mechanism]
    return [FixedCoins(mechanism, seed + throw) for throw in range(coins)]


def _mean_outcome(thrown: list[Mechanism], types: Bids, budget: float) -> Outcome:
    """Each market under one throw, in turn: over many markets that is the mean over coins."""
    if len(thrown) == 1:
        return thrown[0].run(types, budget)
    parts = [thrown[index % len(thrown)].run(types[index], budget) for index in range(len(types))]
    return Outcome(np.stack([one.epsilon for one in parts]), np.stack([one.payment for one in parts]))


def _check_repeatable(mechanism: Mechanism, types: Bids, budget: float) -> None:
    """Refuses what cannot be audited: a rule with two answers to the same bids, or whose markets see each other."""
    few = types[:2]
    money = budget * np.array([1.0, 0.5])[: len(few)]
    together = mechanism.run(few, money)
    if mechanism.run(few, money) != together:
        raise OutcomeError(
            f"{mechanism.name} gave two outcomes for the same bids",
            "take the coins as an argument: a RandomisedMechanism, or a function of (bids, budget, rng)",
        )
    for number, alone in enumerate(few):
        here = Outcome(together.epsilon[number], together.payment[number])
        refuse_mixed(mechanism, alone, float(money[number]), here)


def student_t(level: float, degrees: int) -> float:
    """The quantile of Student's t distribution."""
    return float(special.stdtrit(degrees, level))


def _summary(gain: Array, paid: float, markets: int) -> RegretSummary:
    """The figures of gains, (attacks, clients); the attacks go over so many markets, round and round."""

    def share(figure: float) -> float:
        return figure / paid if paid > 0 else 0.0

    mean = float(gain.mean())
    percentile = float(np.percentile(gain, 99))
    maximum = float(gain.max())
    half = 0.0
    if markets > 1:
        of_markets = np.array([gain[market::markets].mean() for market in range(markets)])
        half = student_t(0.975, markets - 1) * float(of_markets.std(ddof=1)) / markets**0.5
    return RegretSummary(
        mean=mean,
        percentile_99=percentile,
        maximum=maximum,
        mean_share=share(mean),
        percentile_99_share=share(percentile),
        maximum_share=share(maximum),
        mean_share_low=max(share(mean - half), 0.0),
        mean_share_high=share(mean + half),
    )


def _certified(
    mechanism: Mechanism, types: Bids, budget: float, paid: float, gains: dict[str, Array]
) -> CertifiedSummary:
    found = [certified_regret(mechanism, market, budget) for market in types]
    attacked = gains["valuation" if found[0].valuation_only else "joint"]
    upper = np.stack([one.upper for one in found])
    mean = float(upper.mean())
    maximum = float(upper.max())
    return CertifiedSummary(
        mean=mean,
        maximum=maximum,
        mean_share=mean / paid if paid > 0 else 0.0,
        maximum_share=maximum / paid if paid > 0 else 0.0,
        found=max(float(attacked.max()), *(float(one.lower.max()) for one in found)),
        reports=found[0].reports,
        not_closed=float(np.mean([~one.closed for one in found])),
    )


def _prior_free(distribution: Distribution, clients: int, budget: float, objective: Objective) -> float | None:
    if not isinstance(objective, TotalEpsilon):
        return None
    return prior_free_reference(distribution, clients, budget)


def _collusion(
    mechanism: Mechanism, types: Bids, budget: float, size: int, rng: np.random.Generator
) -> CoalitionSummary:
    found = attacks.CoalitionAttack(size)(mechanism, types, budget, rng)
    return CoalitionSummary(size, float(found.gain.mean()), float(found.gain.max()), found.share)


def _outcome_figures(types: Bids, outcome: Outcome, budget: float) -> dict[str, float]:
    merit = judge(types, outcome, budget)
    return {
        "rationality_violations": merit.underpaid,
        "budget_violations": merit.over_budget,
        "worst_overspend": merit.worst_overspend,
        "offer_violations": merit.over_offer,
        "epsilon_bought": merit.epsilon,
        "spend": merit.spend,
        "spend_over_budget": merit.spend / budget,
        "welfare": merit.welfare,
        "welfare_over_budget": merit.welfare / budget,
        "epsilon_per_unit_spent": merit.epsilon_per_money,
        "participation": merit.participation,
    }


def _bound_figures(
    types: Bids, outcome: Outcome, distribution: Distribution, budget: float, objective: Objective
) -> dict[str, float]:
    values = objective.value(outcome, types)
    value = float(values.mean())
    error = float(values.std(ddof=1)) / values.size**0.5 / value if values.size > 1 and value else float("inf")
    fluid = fluid_bound(distribution, types.clients, budget, objective)
    best = first_best_bound(distribution, types.clients, budget, objective)

    def ratio(bound: float) -> float:
        return value / bound if objective.larger_is_better else bound / value

    return {
        "objective_value": value,
        "fluid_bound": fluid,
        "fluid_ratio": ratio(fluid),
        "fluid_ratio_error": ratio(fluid) * error if ratio(fluid) else 0.0,
        "one_price_bound": one_price_bound(distribution, types.clients, budget, objective),
        "first_best_bound": best,
        "first_best_ratio": ratio(best),
        "first_best_ratio_error": ratio(best) * error if ratio(best) else 0.0,
    }


def _quintiles(types: Bids, outcome: Outcome) -> tuple[QuintileRow, ...]:
    order = np.argsort(types.valuation, axis=None, kind="stable")
    rows = []
    for part in np.array_split(order, min(5, order.size)):
        sold = outcome.epsilon.ravel()[part]
        paid = outcome.payment.ravel()[part]
        rows.append(
            QuintileRow(
                highest_valuation=float(types.valuation.ravel()[part].max()),
                participation=float((sold > 0).mean()),
                mean_epsilon=float(sold.mean()),
                mean_payment=float(paid.mean()),
            )
        )
    return tuple(rows)


def _findings(
    mechanism: Mechanism,
    thrown: list[Mechanism],
    types: Bids,
    outcome: Outcome,
    budget: float,
    found: dict[str, list[_Attacked]],
    joint: RegretSummary,
    rng: np.random.Generator,
    record: Record,
) -> tuple[Finding, ...]:
    """What the outcomes and the attacks say about each promise.

    That v and ε together never gain follows from two promises. It is listed only where each of them held alone.
    """

    def judged(promise: Guarantee) -> Finding:
        if isinstance(promise, OutcomeGuarantee):
            sampled = promise.holds(types, outcome, budget)
            return record.findings.get(promise.label, sampled) if sampled.held else sampled
        if isinstance(promise, Truthful):
            direction = "joint" if promise.in_ == "both" else promise.in_
            worst = _worst(found[direction])
            return worst.placed(promise.judge(worst.rule, types[worst.market], budget, worst.regret), types, budget)
        if isinstance(promise, ApproximatelyTruthful):
            # The promise is about a mean over markets, which a few unlucky ones do not break: the lower end of the
            # 95 % interval does, or the mean itself where only one market was attacked.
            over = joint.mean_share_low - promise.max_regret
            if over <= 0:
                return Finding(promise.label, True, 0.0)
            worst = _worst(found["joint"])
            lie = largest_misreport(worst.rule, types[worst.market], budget, worst.regret)
            return worst.placed(Finding(promise.label, False, over, lie), types, budget)
        return promise.check(thrown[0], types[:1], budget, rng)

    findings = [judged(promise) for promise in promises_of(mechanism)]
    implied = Truthful("both")
    if implied not in mechanism.guarantees:
        alone = {Truthful("valuation").label, Truthful("epsilon").label}
        told = any(one.promise in alone and not one.held for one in findings)
        findings = [one for one in findings if one.promise != implied.label or not (told or one.held)]
    return tuple(findings)


def _with_types(finding: Finding, types: Bids, budget: float, thrown: list[Mechanism]) -> Finding:
    """The finding with the whole market in its witness, so that the rule can be run on it again."""
    witness = finding.witness
    if witness is None or witness.types is not None:
        return finding
    index = witness.market[0] if witness.market else 0
    told = WitnessTypes.of(types[index], float(budget), _coins_of(thrown[index % len(thrown)]))
    return replace(finding, witness=replace(witness, types=told))


def _coins_of(rule: Mechanism) -> int | None:
    """The seed of a rule's one throw; None for a rule without coins."""
    return rule.seed if isinstance(rule, FixedCoins) else None


def _worst(found: list[_Attacked]) -> _Attacked:
    """The attack by which a client gains most."""
    return max(found, key=lambda one: float(one.regret.gain.max()))


@dataclass(frozen=True)
class Merit:
    """What a rule did on a batch of markets. Sums are means per market.

    Attributes:
        underpaid: share of (client, market) pairs paid less than their cost v·ε.
        over_budget: share of markets that spend more than the budget.
        worst_overspend: the largest spend above the budget, as a share of the budget; 0 where none is.
        over_offer: share of (client, market) pairs that sell more ε than they offered.
        epsilon: ε bought.
        spend: money spent.
        welfare: the clients' surplus Σ (p − v·ε).
        participation: share of (client, market) pairs that sell something.
        mean_payment: money per client, over all clients.
    """

    underpaid: float
    over_budget: float
    worst_overspend: float
    over_offer: float
    epsilon: float
    spend: float
    welfare: float
    participation: float
    mean_payment: float

    @property
    def epsilon_per_money(self) -> float:
        """ε bought per unit of money spent, 0 where nothing was spent."""
        return self.epsilon / self.spend if self.spend > 0 else 0.0


def judge(types: Bids, outcome: Outcome, budget: float) -> Merit:
    """The figures of an outcome at the clients' true types, both (..., clients)."""
    column = np.full((*types.shape[:-1], 1), budget)
    overspend = BudgetFeasible().excess(types, outcome, column)
    return Merit(
        underpaid=_share(IndividuallyRational().excess(types, outcome, column)),
        over_budget=_share(overspend),
        worst_overspend=float(max(overspend.max(), 0.0)),
        over_offer=_share(WithinOffer().excess(types, outcome, column)),
        epsilon=float(outcome.total_epsilon.mean()),
        spend=float(outcome.spend.mean()),
        welfare=float(outcome.welfare(types).mean()),
        participation=float((outcome.epsilon > 0).mean()),
        mean_payment=float(outcome.payment.mean()),
    )


def _share(excess: Array) -> float:
    return float((excess > TOLERANCE).mean())


def underpaid_share(cost: Array, payment: Array, coin: float = 0.0) -> float:
    """Share of sales paid less than their cost; 0 where nothing was sold.

    Args:
        coin: the unit that payments were rounded down to, which takes almost one from each; two are allowed.
    """
    return _share(shortfall(cost, payment + 2 * coin)) if cost.size else 0.0


def beyond_rounding(gain: float, budget: float) -> bool:
    """Whether a gain in a market of this budget is more than rounding can make."""
    return gain > TOLERANCE * budget


def gain_shares(gain: Array, mean_payment: float, budget: float) -> Array:
    """Gains over the mean payment, same shape; what rounding alone makes counts as 0.

    Where nobody was paid, the gains themselves.
    """
    real = np.where(gain > TOLERANCE * budget, gain, 0.0)
    return real / mean_payment if mean_payment > 0 else real
