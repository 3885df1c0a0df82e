"""The learned menu curves, drawn: `python -m privmarket_studies.learned_curves STEM`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from privmarket._figures import new_figure, save
from privmarket.market._menus import MenuCurve
from privmarket.mechanisms.learned._menunet import MfgMenuNet

DISTRIBUTIONS = ("uniform", "bimodal", "lognormal")
STYLES = {0.05: ":", 0.1: "-.", 0.2: "--", 0.4: "-"}


def figure(stem: Path, clients: int = 100, budget_per_client: float = 0.5) -> list[Path]:
    """Share of ε sold against valuation, one panel per distribution, one line per weight H of the bias."""
    made = new_figure(8.0, 3.4)
    panels = made.subplots(1, len(DISTRIBUTIONS), sharey=True)
    for axes, distribution in zip(panels, DISTRIBUTIONS, strict=True):
        for heterogeneity, style in STYLES.items():
            rule = MfgMenuNet("aggregation-error", heterogeneity=heterogeneity, scenario=distribution)
            curve = rule.curve_for(clients, budget_per_client)
            assert isinstance(curve, MenuCurve)  # this objective has menus of shares
            relative = np.linspace(0.0, 1.15 * curve.price[-1], 2000)
            label = f"H = {heterogeneity:g}"
            axes.plot(relative / curve.area, curve.share(relative), style, color="k", linewidth=1, label=label)
        axes.set(title=distribution, xlabel="valuation / mean unit price", xlim=(0, 4.5))
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("share of ε sold")
    panels[-1].legend(fontsize=7)
    return save(made, stem)


if __name__ == "__main__":
    figure(Path(sys.argv[1]))
