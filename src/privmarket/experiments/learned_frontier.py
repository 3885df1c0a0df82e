"""What regret buys: `python -m privmarket.experiments.learned_frontier STEM`.

Short trainings for one market (Uniform, 100 clients, budget 50) that differ in the regret they may leave.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from privmarket.experiments.palette import colour, new_figure, save
from privmarket.market.attacks import AscentAttack, GridAttack, combined
from privmarket.market.scenarios import scenario
from privmarket.mechanisms.learned.recipes import Attack, recipe
from privmarket.mechanisms.learned.session import measure, train

REGRET_BUDGETS = (0.03, 0.005, 0.0003)
ATTACK = combined(GridAttack(), AscentAttack(4, 15))


def frontier(steps: int = 120, markets: int = 4) -> list[dict[str, Any]]:
    """One row per regret budget: regret found as a share of pay, ε bought as a share of the fluid bound."""
    torch.set_num_threads(1)
    law, rows = scenario("uniform"), []
    market = {"scenarios": ("uniform",), "clients": (100, 100), "budget_per_client": (0.5, 0.5)}
    base = recipe("mfg-regretnet", "quick", **market)
    for limit in REGRET_BUDGETS:
        steering = replace(base.steering, regret_budget=(limit,) * 5, first=1.0, rate=0.1)
        chosen = replace(base, steps=steps, rows=800, attack=Attack(rows=400), steering=steering)
        with TemporaryDirectory() as folder:
            out = Path(folder) / "w.safetensors"
            train(chosen, [law], out)
            row = measure(out, "mfg-regretnet", [(law, 100, 50.0, markets)], ATTACK)["cases"][0]
        rows.append({"regret_budget": limit, **row})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def figure(rows: list[dict[str, Any]], stem: Path) -> list[Path]:
    """Value against regret."""
    made = new_figure(5.0, 3.4)
    axes = made.subplots()
    regret, value = [row["regret_share"] for row in rows], [row["fluid_ratio"] for row in rows]
    axes.plot(regret, value, "o-", color=colour("mfg-regretnet"))
    axes.axhline(1.0, color="#555555", linewidth=0.8)
    axes.set(xscale="log", xlabel="regret / pay (grid and ascent)", ylabel="ε bought / fluid bound")
    axes.grid(alpha=0.25)
    return save(made, stem)


if __name__ == "__main__":
    figure(frontier(), Path(sys.argv[1]))
