"""One cell of RQ4 (c) and (d): the Nash gap of the solved mean-field game with finitely many clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privmarket.experiments.nash_gap import MEASURES, POPULATIONS, RULES, SALE_CAP, Setting, solved_game
from privmarket.meanfield.nash_gap import measure


def run(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Config: population, rule, clients, grid, runs. Shares of the mean payment, averaged over the runs."""
    setting = Setting(grid=config["grid"])
    curve, build = RULES[config["rule"]]
    solved = solved_game(setting, POPULATIONS[config["population"]], curve())
    rule = build(curve(), SALE_CAP * solved.game.mesh.step)
    runs = range(seed * config["runs"], (seed + 1) * config["runs"])
    gap = measure(solved, rule, config["clients"], seeds=runs)
    return {name: float((getattr(gap, name) / gap.mean_payment).mean()) for name in MEASURES}
