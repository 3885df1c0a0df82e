"""How the weights that ship were made: `python -m privmarket.mechanisms.learned.shipping NAME`.

Networks run their full recipe (a stopped run resumes), then the strong attack measures them in the markets
below and the figures go into the file. Menu curves are learned for a grid of public market descriptions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privmarket.market.objectives import TOTAL_EPSILON, AggregationError
from privmarket.market.scenarios import Law, scenario
from privmarket.mechanisms.learned.recipes import TABLE_I, Recipe, recipe
from privmarket.mechanisms.learned.session import DesignPoint, learn_menus, measure, train
from privmarket.mechanisms.learned.weights import Weights, load, save, shipped

# (scenario, clients, budget, markets): Table I, and other sizes at the same budget per client.
CASES: tuple[tuple[str, int, float, int], ...] = (
    ("uniform", 100, 50.0, 10),
    ("bimodal", 100, 50.0, 5),
    ("lognormal", 100, 100.0, 5),
    ("uniform", 10, 5.0, 50),
    ("bimodal", 10, 5.0, 50),
    ("lognormal", 10, 10.0, 50),
    ("uniform", 30, 15.0, 20),
    ("uniform", 300, 150.0, 2),
    ("uniform", 1000, 500.0, 1),
)
# Baselines, measured in fewer markets.
SMALL_CASES: tuple[tuple[str, int, float, int], ...] = (
    ("uniform", 100, 50.0, 2),
    ("bimodal", 100, 50.0, 2),
    ("lognormal", 100, 100.0, 2),
)
LITERAL_CASES = (("uniform", 10, 5.0, 5), ("uniform", 30, 15.0, 1))
MENU_CLIENTS = 100
MENU_BUDGETS = (0.2, 0.5, 1.0)
MENU_HETEROGENEITY = (0.1, 0.2, 0.4)


def menu_points() -> list[DesignPoint]:
    """Total ε once, and the aggregation error over laws, budgets and ratios of bias to noise."""
    points = [DesignPoint(scenario("uniform"), MENU_CLIENTS, MENU_CLIENTS / 2, TOTAL_EPSILON)]
    for name in TABLE_I:
        for budget in MENU_BUDGETS:
            for heterogeneity in MENU_HETEROGENEITY:
                goal = AggregationError(1.0, heterogeneity)
                points.append(DesignPoint(scenario(name), MENU_CLIENTS, budget * MENU_CLIENTS, goal))
    return points


def stamp(path: Path, name: str, cases: Sequence[tuple[str, int, float, int]], note: Any = print) -> None:
    """Measures weights and writes the figures into the file."""
    asked: list[tuple[Law, int, float, int]] = [(scenario(law), n, b, p) for law, n, b, p in cases]
    measured = measure(path, name, asked, progress=lambda row: note(row, file=sys.stderr, flush=True))
    stored = load(path, name)
    save(path, Weights(name, stored.arrays, {**stored.facts, "measured": measured}))


def main(name: str) -> None:
    """Makes one weights file from nothing."""
    torch.set_num_threads(1)
    if name == "mfg-menunet":
        np.set_printoptions(precision=3)
        learn_menus(menu_points(), shipped(name), report=_menu_note)
        return
    chosen: Recipe = recipe(name)
    train(chosen, [scenario(law) for law in chosen.scenarios], shipped(name), _note)
    cases = {"mfg-regretnet": CASES, "mfg-regretnet:literal": LITERAL_CASES}.get(name, SMALL_CASES)
    stamp(shipped(name), name, cases)


def _menu_note(point: int, step: int, value: float) -> None:
    if step % 60 == 0:
        print(f"curve {point}, step {step}: {value:.5g}", file=sys.stderr, flush=True)


def _note(progress: Any) -> None:
    if progress.step % 100 == 0:
        print(progress, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
