"""Exact rules under aggregate trust, one beside the other: `python -m privmarket_studies.aggregate_rules FOLDER`.

The page is rendered from `comparison.json` and `typical.json` in the folder, which are made when they are missing.
Every rule meets the same markets. The learned menu is compared with the best *fixed* exact rule of each row in
error and in money: the share of the budget at which it reaches the error that the fixed rule has at the whole
budget.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np

from privmarket._files import write_atomically
from privmarket.market._bids import Array
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import AggregateError, TypicalAggregateError
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._menu_training import RationSearch, curve_value, fluid_design, learn_curve

DISTRIBUTIONS = ("uniform", "bimodal", "lognormal")
HETEROGENEITIES = (0.1, 0.3)
BUDGETS = (5.0, 20.0, 50.0)
# H as measured in trainings on MNIST, and money a round.
TYPICAL_HETEROGENEITIES, TYPICAL_BUDGETS = (1.0, 3.0), (1.0, 2.0, 6.0)
FIXED = ("pac", "mean-field-menu", "ration", "two-step")
LEARNED = "mfg-menunet"
CLIENTS = 100
_BISECTIONS = 12
_EXPLANATION = (
    "Mean `aggregate-error` over {markets} markets of {clients} clients, the same for every rule and not used in "
    "learning, as a multiple of the fluid bound (smaller is better; 1 is the limit for many clients, valuations "
    "being "
    "independent of offers here; these markets move it by a per cent or two). All rules are exactly truthful, "
    "individually rational and within budget. *gain*: how much smaller the learned menu's error is than the best "
    "fixed "
    "rule's of the row, ± standard error of the paired difference; *money*: the share of the budget at which it "
    "reaches that rule's error."
)
_COMMAND = "python -m privmarket_studies.aggregate_rules docs/results/aggregate-rules"


def rule(name: str, distribution: str, heterogeneity: float) -> Mechanism:
    """A rule that is told the distribution and, where it can use it, the objective."""
    facts = MarketFacts.of(scenario(distribution))
    if name == LEARNED:
        return mechanism(name, market=facts, objective=AggregateError.name, heterogeneity=heterogeneity)
    if name in ("ration", "two-step"):
        return mechanism(name, market=facts, heterogeneity=heterogeneity)
    return mechanism(name, market=facts)


class _MarketRow(TypedDict):
    """A market description, what no rule can beat, and what learning gains with its standard error."""

    scenario: str
    heterogeneity: float
    budget: float
    markets: int
    fluid_bound: float
    gain: float
    gain_error: float


class RuleRow(_MarketRow):
    """Mean errors of the rules, and the money with which the learned one reaches the best fixed one's error."""

    error: dict[str, float]
    best_fixed: str
    money: float


class TypicalRow(_MarketRow):
    """Mean errors for the error that counts where prices say nothing of the data."""

    graded: float
    learned: float
    for_the_worst: float


def compare_row(distribution: str, heterogeneity: float, budget: float, markets: int, seed: int = 11) -> RuleRow:
    """One market description: mean errors, and learned against the best fixed rule, paired."""
    goal = AggregateError(heterogeneity=heterogeneity)
    types = scenario(distribution).sample(
        np.random.default_rng([seed, DISTRIBUTIONS.index(distribution)]), CLIENTS, (markets,)
    )

    def errors(name: str, money: float) -> Array:
        return goal.value(rule(name, distribution, heterogeneity).run(types, money), types)

    values = {name: errors(name, budget) for name in (*FIXED, LEARNED)}
    best = min(FIXED, key=lambda name: float(values[name].mean()))
    difference = values[LEARNED] - values[best]
    target = float(values[best].mean())
    return {
        "scenario": distribution,
        "heterogeneity": heterogeneity,
        "budget": budget,
        "markets": markets,
        "fluid_bound": fluid_bound(scenario(distribution), CLIENTS, budget, goal),
        "error": {name: float(value.mean()) for name, value in values.items()},
        "best_fixed": best,
        "gain": -float(difference.mean()) / target,
        "gain_error": float(difference.std(ddof=1)) / markets**0.5 / target,
        "money": _money_for(lambda money: float(errors(LEARNED, money).mean()), target, budget) / budget,
    }


def _money_for(error_of: Callable[[float], float], target: float, budget: float) -> float:
    """The least money, from a fifth to twice the budget, whose error is at most `target`."""
    low, high = 0.2 * budget, 2.0 * budget
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if error_of(middle) <= target else (middle, high)
    return high


def compare(markets: int = 60) -> list[RuleRow]:
    """Measures the rules in every setting; one row per setting."""
    return [
        compare_row(distribution, heterogeneity, budget, markets)
        for distribution in DISTRIBUTIONS
        for heterogeneity in HETEROGENEITIES
        for budget in BUDGETS
    ]


def typical_row(distribution: str, heterogeneity: float, budget: float, markets: int = 200) -> TypicalRow:
    """What learning adds to the graded design, for the error that counts where prices say nothing of the data."""
    goal, of_distribution = TypicalAggregateError(heterogeneity=heterogeneity), scenario(distribution)
    chance = [DISTRIBUTIONS.index(distribution), round(1000 * heterogeneity), round(1000 * budget)]
    found = learn_curve(of_distribution, CLIENTS, budget, goal, np.random.default_rng([5, *chance]), RationSearch())
    start = fluid_design(of_distribution, CLIENTS, budget, goal)
    types = of_distribution.sample(np.random.default_rng([7, *chance]), CLIENTS, (markets,))
    graded, learned = (
        np.array(
            [curve_value(c, types[k : k + 1], budget, goal, of_distribution.epsilon_max) for k in range(markets)]
        )
        for c in (start, found.curve)
    )
    worst = mechanism(
        LEARNED, market=MarketFacts.of(of_distribution), objective=AggregateError.name, heterogeneity=heterogeneity
    )
    difference, mean = graded - learned, float(graded.mean())
    return {
        "scenario": distribution,
        "heterogeneity": heterogeneity,
        "budget": budget,
        "markets": markets,
        "fluid_bound": fluid_bound(of_distribution, CLIENTS, budget, goal),
        "graded": mean,
        "learned": float(learned.mean()),
        "for_the_worst": float(goal.value(worst.run(types, budget), types).mean()),
        "gain": float(difference.mean()) / mean,
        "gain_error": float(difference.std(ddof=1)) / markets**0.5 / mean,
    }


def compare_typical() -> list[TypicalRow]:
    """Measures what learning adds to the graded design; one row per setting."""
    return [
        typical_row(distribution, heterogeneity, budget)
        for distribution in DISTRIBUTIONS
        for heterogeneity in TYPICAL_HETEROGENEITIES
        for budget in TYPICAL_BUDGETS
    ]


def render_typical(rows: list[TypicalRow]) -> list[str]:
    """The section on what a learned menu gains over the graded design, line by line."""
    lines = [
        "## Where prices have nothing to do with the data",
        "",
        "The same for `typical-aggregate-error`, the error that decides in trainings: the graded design of "
        "`graded-ration`; a menu learned from there for that error; and the shipped `mfg-menunet`, learned for the "
        f"worst case (`aggregate-error`). {rows[0]['markets']} fresh markets of {CLIENTS} clients.",
        "",
        "| distribution | H | budget | graded | learned from it | gain | learned for the worst case |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        bound = row["fluid_bound"]
        lines.append(
            f"| {row['scenario']} | {row['heterogeneity']:g} | {row['budget']:g} | {row['graded'] / bound:.3f} | "
            f"{row['learned'] / bound:.3f} | {row['gain']:.2%} ± {row['gain_error']:.2%} | "
            f"{row['for_the_worst'] / bound:.2f} |"
        )
    gains, worse = [row["gain"] for row in rows], [row["for_the_worst"] / row["graded"] for row in rows]
    return [
        *lines,
        "",
        f"Learning lowers the graded design's error by {min(gains):.1%} to {max(gains):.1%}. A menu learned "
        f"for the worst case has {min(worse):.2f} to {max(worse):.2f} times the graded design's error here: in "
        "trainings it costs more than a flat price because of what it was asked for, not of how it was learned. A "
        "buyer with no reason to think that dear clients hold special data takes `graded-ration`.",
        "",
    ]


def render(rows: list[RuleRow], typical: list[TypicalRow]) -> str:
    """The page's text, from both lists of rows."""
    names = (*FIXED, LEARNED)
    money = [row["money"] for row in rows]
    sure = sum(row["gain"] > 2 * row["gain_error"] for row in rows)
    lines = [
        "# Exact rules under aggregate trust",
        "",
        "**Question.** Which exact rule has the least error of a sum, and what does learning add? "
        "([Rules and proofs](../../theory/aggregate-trust.md).)",
        "",
        "**Answer.** The learned menu's error is smaller than the best fixed rule's by more than two standard "
        "errors in "
        f"{sure} of {len(rows)} rows. It needs {min(money):.2f} to {max(money):.2f} of the money, "
        f"{float(np.mean(money)):.2f} in the mean.",
        "",
        _EXPLANATION.format(markets=rows[0]["markets"], clients=CLIENTS),
        "",
        "| distribution | H | budget | " + " | ".join(f"`{name}`" for name in names) + " | gain | money |",
        "|---|" + "---:|" * (len(names) + 4),
    ]
    for row in rows:
        ratios = [row["error"][name] / row["fluid_bound"] for name in names]
        cells = [f"**{r:.2f}**" if r == min(ratios) else f"{r:.2f}" for r in ratios]
        lines.append(
            f"| {row['scenario']} | {row['heterogeneity']:g} | {row['budget']:g} | {' | '.join(cells)} | "
            f"{row['gain']:.1%} ± {row['gain_error']:.1%} | {row['money']:.2f} |"
        )
    lines += [
        "",
        *render_typical(typical),
        f"Made by `{_COMMAND}`.",
        "",
    ]
    return "\n".join(lines)


def main(folder: Path) -> None:
    """Makes the comparison if it is missing, and the page."""
    place = folder / "comparison.json"
    if not place.exists():
        write_atomically(place, json.dumps(compare(), indent=1) + "\n")
    other = folder / "typical.json"
    if not other.exists():
        write_atomically(other, json.dumps(compare_typical(), indent=1) + "\n")
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in (place, other)]
    write_atomically(folder / "README.md", render(*kept))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
