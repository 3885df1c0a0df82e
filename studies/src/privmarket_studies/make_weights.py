"""How the weights that ship were made: `python -m privmarket_studies.make_weights NAME`.

Networks run their full recipe, then the strong attack measures them in the markets below and the figures go into
the file. Menu curves are learned for a grid of public market descriptions. A call that was stopped goes on where it
was, in training and in measuring.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from privmarket.market._distributions import scenario
from privmarket.market._objectives import TOTAL_EPSILON, AggregateError, AggregationError
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._measure import CaseRow, measure, summary
from privmarket.mechanisms.learned._menu_training import DesignPoint, MenuProgress, learn_menus
from privmarket.mechanisms.learned._menunet import AGGREGATE_WEIGHTS
from privmarket.mechanisms.learned._recipes import PAPER_SCENARIOS, Recipe, recipe
from privmarket.mechanisms.learned._session import run_recipe
from privmarket.mechanisms.learned._trainer import TrainingStep
from privmarket.mechanisms.learned._weights import Weights, load, save, shipped

Case = tuple[str, int, float, int]  # scenario, clients, budget, markets attacked
BUDGET_PER_CLIENT = {"uniform": 0.5, "bimodal": 0.5, "lognormal": 1.0}
# About a thousand clients attacked in each cell, five hundred in small markets, where each gains more.
MARKETS = {10: 50, 30: 20, 100: 10, 300: 3, 1000: 1}


def _cases(markets: dict[int, int]) -> tuple[Case, ...]:
    """Table II, and other sizes at the same budget per client."""
    return tuple(
        (distribution, clients, money * clients, count)
        for clients, count in markets.items()
        for distribution, money in BUDGET_PER_CLIENT.items()
    )


CASES = _cases(MARKETS)
# Baselines, in fewer markets: a deviation costs them a group's whole auction.
BASELINE_CASES = _cases({10: 50, 30: 10, 100: 3})
ATTENTION_CASES = _cases({10: 50, 30: 20, 100: 20})
# Each deviation is an auction whose clients all look at each other: in large markets only so many clients of each
# market are attacked.
ATTENTION_ATTACKED = {100: 10}
LITERAL_CASES = (("uniform", 10, 5.0, 10), ("uniform", 30, 15.0, 2))
MENU_CLIENTS = 100
MENU_BUDGETS = (0.2, 0.5, 1.0)
MENU_HETEROGENEITY = (0.1, 0.2, 0.4)
RATION_BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
RATION_HETEROGENEITY = (0.03, 0.1, 0.3, 1.0)


def menu_points() -> list[DesignPoint]:
    """Total ε once, and the aggregation error over distributions, budgets and ratios of bias to noise."""
    points = [DesignPoint(scenario("uniform"), MENU_CLIENTS, MENU_CLIENTS / 2, TOTAL_EPSILON)]
    for name in PAPER_SCENARIOS:
        for budget in MENU_BUDGETS:
            for heterogeneity in MENU_HETEROGENEITY:
                goal = AggregationError(1.0, heterogeneity)
                points.append(DesignPoint(scenario(name), MENU_CLIENTS, budget * MENU_CLIENTS, goal))
    return points


def ration_points() -> list[DesignPoint]:
    """The error under aggregate trust over distributions, budgets and ratios of bias to noise."""
    return [
        DesignPoint(scenario(name), MENU_CLIENTS, budget * MENU_CLIENTS, AggregateError(1.0, heterogeneity))
        for name in PAPER_SCENARIOS
        for budget in RATION_BUDGETS
        for heterogeneity in RATION_HETEROGENEITY
    ]


def stamp(path: Path, name: str, cases: Sequence[Case], note: Callable[..., None] = print) -> None:
    """Measures weights case by case and writes each figure into the file at once; what is there is not repeated."""
    attacked = ATTENTION_ATTACKED if name == "regretformer" else {}
    for case in cases:
        stored = load(path, name)
        rows = [row for row in stored.facts["measured"].get("cases", []) if _case(row) in cases]
        if any(_case(row) == case for row in rows):
            continue
        distribution, clients, budget, markets = case
        market = (scenario(distribution), clients, budget, markets)
        found = measure(mechanism(name, weights=path), [market], attacked=attacked.get(clients))["cases"]
        note(found[0], file=sys.stderr, flush=True)
        measured = summary([*rows, *found])
        save(path, Weights(name, stored.arrays, {**stored.facts, "measured": measured}))


def _case(row: CaseRow) -> Case:
    return row["scenario"], row["clients"], row["budget"], row["profiles"]


def main(name: str) -> None:
    """Makes one weights file from nothing, or goes on where an earlier call stopped."""
    torch.set_num_threads(1)
    place = shipped(name)
    if name == "mfg-menunet":
        learn_menus(menu_points(), place, report=_menu_note)
        return
    if name == AGGREGATE_WEIGHTS:
        learn_menus(ration_points(), place, report=_menu_note)
        return
    chosen: Recipe = recipe(name)
    if not (place.exists() and Recipe.from_json(load(place, name).facts["recipe"]) == chosen):
        run_recipe(chosen, [scenario(distribution) for distribution in chosen.scenarios], place, _note)
    cases = {
        "mfg-regretnet": CASES,
        "mfg-regretnet:literal": LITERAL_CASES,
        "regretformer": ATTENTION_CASES,
    }.get(name, BASELINE_CASES)
    stamp(place, name, cases)


def _menu_note(progress: MenuProgress) -> None:
    if progress.step % 60 == 0:
        print(progress, file=sys.stderr, flush=True)


def _note(progress: TrainingStep) -> None:
    if progress.step % 100 == 0:
        print(progress, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
