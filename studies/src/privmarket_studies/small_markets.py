"""Every rule beside the best truthful rule that exists, in markets of two, three and four clients.

    python -m privmarket_studies.small_markets docs/results/small-markets

Types come from a grid of six valuations and two offers, and every profile of types is cleared, so nothing on the
page is sampled. The optimum is a linear programme (`privmarket.market._exact_optimum`).
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TypedDict

import numpy as np

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.market._audit import judge
from privmarket.market._exact_optimum import TypeGrid, exact_optimum
from privmarket.market._facts import MarketFacts
from privmarket.market._guarantees import Truthful
from privmarket_studies.page_text import table_row

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "small-markets"
NAME = "small-markets.json"
COMMAND = "python -m privmarket_studies.small_markets docs/results/small-markets"
DISTRIBUTIONS = ("uniform", "bimodal", "lognormal", "valuation-function")
CLIENTS = (2, 3, 4)
BUDGET_PER_CLIENT = 0.5


class RuleRow(TypedDict):
    """One rule on one grid: what it buys over the optimum, and how often it breaks what the optimum keeps."""

    rule: str
    ratio: float
    truthful: bool
    over_budget: float
    underpaid: float


class MarketRow(TypedDict):
    """One grid: the optima and the rules beside them, the best first."""

    law: str
    clients: int
    budget: float
    optimum: float
    optimum_in_epsilon_too: float
    rules: list[RuleRow]


def rule_names() -> list[str]:
    """Every registered rule without its paper-literal form."""
    return [name for name in pm.mechanism_names() if ":" not in name]


def measure(distribution: str, clients: int) -> MarketRow:
    """Solves one grid and clears every profile of it by every rule."""
    of = pm.scenario(distribution)
    grid = TypeGrid.of(of)
    budget = BUDGET_PER_CLIENT * clients
    best = exact_optimum(grid, clients, budget)
    both = exact_optimum(grid, clients, budget, truthful_in="epsilon")
    bids, probability = best.profiles
    rules: list[RuleRow] = []
    for name in rule_names():
        rule = pm.mechanism(name, market=MarketFacts.of(of))
        outcome = rule.run(bids, budget)
        over = outcome.spend > budget * (1 + 1e-9)
        rules.append(
            {
                "rule": name,
                "ratio": float(probability @ outcome.total_epsilon) / best.total_epsilon,
                "truthful": Truthful("valuation") in rule.guarantees,
                "over_budget": float(probability @ over),
                "underpaid": judge(bids, outcome, budget).underpaid,
            }
        )
    rules.sort(key=lambda row: -row["ratio"])
    return {
        "law": distribution,
        "clients": clients,
        "budget": budget,
        "optimum": best.total_epsilon,
        "optimum_in_epsilon_too": both.total_epsilon,
        "rules": rules,
    }


def page(rows: list[MarketRow]) -> str:
    """The page as Markdown."""
    lines = [
        "# Small markets: how far is each rule from the best truthful one?",
        "",
        "**Question.** How much of the optimum does each rule buy from two to four clients? The optimum is the "
        "most ε "
        "that any rule buys in expectation which is truthful in v, pays at least the cost and keeps the budget on "
        "*every* profile ([how it is computed](../../theory/fluid-bound.md)).",
        "",
        f"**Answer.** {_answer(rows)} A ratio above 1 is only possible for a rule that breaks a promise; the notes "
        "say "
        "which.",
        "",
        "Half a unit of money per client. Types lie on a grid of six valuations and two offers that stands for "
        "each "
        f"distribution. Every profile was cleared, so there is no sampling error: `{COMMAND}`.",
        "",
    ]
    for distribution in dict.fromkeys(row["law"] for row in rows):
        markets = [row for row in rows if row["law"] == distribution]
        lines += [
            f"## {distribution}",
            "",
            table_row(["rule", *(f"{row['clients']} clients" for row in markets), "notes"]),
        ]
        lines.append(table_row(["---"] * (len(markets) + 2)))
        names = sorted(
            (rule["rule"] for rule in markets[0]["rules"]),
            key=lambda name: -np.mean([_of(row, name)["ratio"] for row in markets]),
        )
        for name in names:
            found = [_of(row, name) for row in markets]
            lines.append(table_row([f"`{name}`", *(f"{one['ratio']:.3f}" for one in found), _notes(found)]))
        best = [f"{row['optimum']:.3f}" for row in markets]
        both = [f"{row['optimum_in_epsilon_too']:.3f}" for row in markets]
        lines.append(table_row(["*optimum, ε*", *best, "truthful in v"]))
        lines.append(table_row(["*optimum, ε*", *both, "truthful in v and in withheld ε"]))
        lines.append("")
    return "\n".join(line.rstrip("\n") for line in lines)


def _answer(rows: list[MarketRow]) -> str:
    """What rules without a note buy at most, and what the exact mean-field menu buys."""
    names = [rule["rule"] for rule in rows[0]["rules"]]
    clean = [name for name in names if not _notes([_of(row, name) for row in rows])]
    ratios = {name: [_of(row, name)["ratio"] for row in rows] for name in clean}
    if not clean:
        return "No rule keeps every promise."
    best = max(clean, key=lambda name: max(ratios[name]))
    menu = ratios.get("mean-field-menu")
    said = f", the exact `mean-field-menu` {min(menu):.2f} to {max(menu):.2f}" if menu else ""
    return f"Rules that keep every promise buy at most {max(ratios[best]):.2f} of it (`{best}`){said}."


def _of(row: MarketRow, name: str) -> RuleRow:
    return next(rule for rule in row["rules"] if rule["rule"] == name)


def _notes(found: list[RuleRow]) -> str:
    notes = []
    if not found[0]["truthful"]:
        notes.append("not exactly truthful")
    if (worst := max(one["over_budget"] for one in found)) > 0:
        notes.append(f"over budget in up to {worst:.0%} of profiles")
    if max(one["underpaid"] for one in found) > 0:
        notes.append("underpays")
    return ", ".join(notes)


def main(folder: Path) -> None:
    """Computes what is missing, then writes the page."""
    warnings.simplefilter("ignore")  # learned rules were trained for more clients
    path = folder / NAME
    rows: list[MarketRow] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    rows = [row for row in rows if {rule["rule"] for rule in row["rules"]} == set(rule_names())]
    have = {(row["law"], row["clients"]) for row in rows}
    for distribution in DISTRIBUTIONS:
        for clients in CLIENTS:
            if (distribution, clients) not in have:
                rows.append(measure(distribution, clients))
                write_atomically(path, json.dumps(rows, indent=1) + "\n")
                print(distribution, clients, file=sys.stderr)
    write_atomically(folder / "README.md", page(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
