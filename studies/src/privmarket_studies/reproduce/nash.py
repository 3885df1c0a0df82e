"""One cell of RQ4 (c) and (d): the Nash gap of the solved mean-field game with finitely many clients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from privmarket.meanfield import Equilibrium
from privmarket.meanfield.deviation_gain import measure
from privmarket_studies.nash_gap_study import MEASURES, POPULATIONS, RULES, SALE_CAP, StudySetting, solved_game


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: population, rule, clients, grid, runs. Shares of the mean payment, averaged over the runs."""
    curve, build = RULES[config["rule"]]
    solved = _solved(config["grid"], config["population"], config["rule"])
    rule = build(curve(), SALE_CAP * solved.game.mesh.step)
    runs = range(seed * config["runs"], (seed + 1) * config["runs"])
    gap = measure(solved, rule, config["clients"], seeds=runs)
    return {name: float((getattr(gap, name) / gap.mean_payment).mean()) for name in MEASURES}


@lru_cache(maxsize=2)
def _solved(grid: str, population: str, rule: str) -> Equilibrium:
    return solved_game(StudySetting(grid=grid), POPULATIONS[population], RULES[rule][0]())
