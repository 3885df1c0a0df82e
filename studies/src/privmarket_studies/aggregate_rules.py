"""Exact rules under aggregate trust, one beside the other: `python -m privmarket_studies.aggregate_rules FOLDER`.

The page is rendered from `comparison.json` in the folder, which is made when it is missing. Every rule meets the
same markets. The learned menu is compared with the best *fixed* exact rule of each row in error and in money: the
share of the budget at which it reaches the error that the fixed rule has at the whole budget.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privmarket.files import write_atomically
from privmarket.market.bids import Array
from privmarket.market.bounds import fluid_bound
from privmarket.market.facts import MarketFacts
from privmarket.market.mechanism import Mechanism
from privmarket.market.objectives import AggregateError
from privmarket.market.scenarios import scenario
from privmarket.mechanisms import mechanism

LAWS = ("uniform", "bimodal", "lognormal")
HETEROGENEITIES = (0.1, 0.3)
BUDGETS = (5.0, 20.0, 50.0)
FIXED = ("pac", "mean-field-menu", "ration", "two-step")
LEARNED = "mfg-menunet"
CLIENTS = 100
_BISECTIONS = 12
_EXPLANATION = (
    "Mean `aggregate-error` over {markets} markets of {clients} clients, the same for every rule, as a "
    "multiple of the fluid bound (1 is the limit of truthful buying for many clients, a per cent or two "
    "either way being the luck of these markets; smaller is better). All rules are exactly truthful, "
    "individually rational and within budget. *gain*: how much smaller the learned menu's error is than "
    "that of the best fixed rule of the row, with the standard error of the paired difference; *money*: "
    "the share of the budget at which it reaches the best fixed rule's error."
)
_COMMAND = "python -m privmarket_studies.aggregate_rules docs/results/aggregate-rules"


def rule(name: str, law: str, heterogeneity: float) -> Mechanism:
    """A rule that is told the law and, where it can use it, the objective."""
    facts = MarketFacts.of(scenario(law))
    if name == LEARNED:
        return mechanism(name, market=facts, objective=AggregateError.name, heterogeneity=heterogeneity)
    if name in ("ration", "two-step"):
        return mechanism(name, market=facts, heterogeneity=heterogeneity)
    return mechanism(name, market=facts)


def compare_row(law: str, heterogeneity: float, budget: float, markets: int, seed: int = 11) -> dict[str, Any]:
    """One market description: mean errors, and learned against the best fixed rule, paired."""
    goal = AggregateError(heterogeneity=heterogeneity)
    types = scenario(law).sample(np.random.default_rng([seed, LAWS.index(law)]), CLIENTS, (markets,))

    def errors(name: str, money: float) -> Array:
        return goal.value(rule(name, law, heterogeneity).run(types, money), types)

    values = {name: errors(name, budget) for name in (*FIXED, LEARNED)}
    best = min(FIXED, key=lambda name: float(values[name].mean()))
    difference = values[LEARNED] - values[best]
    target = float(values[best].mean())
    return {
        "scenario": law,
        "heterogeneity": heterogeneity,
        "budget": budget,
        "markets": markets,
        "fluid_bound": fluid_bound(scenario(law), CLIENTS, budget, goal),
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


def compare(markets: int = 60) -> list[dict[str, Any]]:
    """All rows."""
    return [
        compare_row(law, heterogeneity, budget, markets)
        for law in LAWS
        for heterogeneity in HETEROGENEITIES
        for budget in BUDGETS
    ]


def render(rows: list[dict[str, Any]]) -> str:
    """The page."""
    names = (*FIXED, LEARNED)
    lines = [
        "# Exact rules under aggregate trust",
        "",
        _EXPLANATION.format(markets=rows[0]["markets"], clients=CLIENTS),
        "",
        "| law | H | budget | " + " | ".join(f"`{name}`" for name in names) + " | gain | money |",
        "|---|" + "---:|" * (len(names) + 4),
    ]
    for row in rows:
        ratios = [row["error"][name] / row["fluid_bound"] for name in names]
        cells = [f"**{r:.2f}**" if r == min(ratios) else f"{r:.2f}" for r in ratios]
        lines.append(
            f"| {row['scenario']} | {row['heterogeneity']:g} | {row['budget']:g} | {' | '.join(cells)} | "
            f"{row['gain']:.1%} ± {row['gain_error']:.1%} | {row['money']:.2f} |"
        )
    money = [row["money"] for row in rows]
    sure = sum(row["gain"] > 2 * row["gain_error"] for row in rows)
    lines += [
        "",
        f"The learned menu's error is smaller by more than two standard errors in {sure} of {len(rows)} rows. "
        f"It needs {min(money):.2f} to {max(money):.2f} of the money, {float(np.mean(money)):.2f} in the mean. "
        "These markets were not used in learning.",
        "",
        f"Rules and proofs: [aggregate trust](../../theory/aggregate-trust.md). Made by `{_COMMAND}`.",
        "",
    ]
    return "\n".join(lines)


def main(folder: Path) -> None:
    """Makes the comparison if it is missing, and the page."""
    place = folder / "comparison.json"
    if not place.exists():
        write_atomically(place, json.dumps(compare(), indent=1) + "\n")
    write_atomically(folder / "README.md", render(json.loads(place.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
