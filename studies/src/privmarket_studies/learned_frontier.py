"""What regret buys: `python -m privmarket_studies.learned_frontier STEM`.

Short trainings for one market (Uniform, 10 clients, budget 5) that differ in the weight of regret. Small markets,
because there one client weighs most and the two aims conflict.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from privmarket._figures import colour, new_figure, save
from privmarket._files import write_atomically
from privmarket.market._attacks import QUICK
from privmarket.market._distributions import scenario
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._measure import CaseRow, measure
from privmarket.mechanisms.learned._recipes import MisreportSearch, recipe
from privmarket.mechanisms.learned._session import run_recipe

MULTIPLIERS = (2.0, 10.0, 50.0)


class FrontierRow(CaseRow):
    """What an attack found after a training with one multiplier of the regret."""

    multiplier: float


def frontier(steps: int = 120, markets: int = 30) -> list[FrontierRow]:
    """One row per multiplier: regret found as a share of pay, ε bought as a share of the fluid bound."""
    torch.set_num_threads(1)
    distribution = scenario("uniform")
    rows: list[FrontierRow] = []
    market = {"scenarios": ("uniform",), "clients": (10, 10), "budget_per_client": (0.5, 0.5)}
    search = MisreportSearch(rows=200)
    base = replace(recipe("mfg-regretnet", "quick", **market), steps=steps, rows=400, attack=search)
    for multiplier in MULTIPLIERS:
        chosen = replace(base, steering=replace(base.steering, first=multiplier, rate=0.0))
        with TemporaryDirectory() as folder:
            out = Path(folder) / "w.safetensors"
            run_recipe(chosen, [distribution], out)
            rule = mechanism("mfg-regretnet", weights=out)
            row = measure(rule, [(distribution, 10, 5.0, markets)], QUICK)["cases"][0]
        rows.append({"multiplier": multiplier, **row})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def figure(rows: list[FrontierRow], stem: Path) -> list[Path]:
    """Draws value against regret, a point per multiplier; returns the files."""
    made = new_figure(5.0, 3.4)
    axes = made.subplots()
    regret, value = [100 * row["regret_share"] for row in rows], [row["fluid_ratio"] for row in rows]
    axes.plot(regret, value, "o-", color=colour("mfg-regretnet"))
    for row, x, y in zip(rows, regret, value, strict=True):
        axes.annotate(f"λ = {row['multiplier']:g}", (x, y), (8, -3), textcoords="offset points", fontsize=9)
    axes.set_xlim(right=1.18 * max(regret))
    axes.axhline(1.0, color="#555555", linewidth=0.8)
    axes.set(xlabel="regret / pay, % (grid and ascent)", ylabel="ε bought / fluid bound")
    axes.grid(alpha=0.25)
    return save(made, stem)


def main(stem: Path) -> None:
    """Writes the rows as JSON and draws them, both beside `stem`."""
    rows = frontier()
    write_atomically(stem.with_suffix(".json"), json.dumps(rows, indent=1) + "\n")
    figure(rows, stem)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
