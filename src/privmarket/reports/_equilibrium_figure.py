"""What a solved mean-field game looks like: prices, bids, who is left, and how the solver got there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket.meanfield import Equilibrium, Result
from privmarket.reports._palette import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOLVED, _NAIVE, _THIRD = "#D55E00", "#0072B2", "#009E73"


def figure(equilibrium: Equilibrium, stem: Path, formats: tuple[str, ...] = ("png",)) -> list[Path]:
    """Draws an equilibrium in four panels and writes it to `stem.png` and so on; returns the paths."""
    drawing = new_figure(10.0, 7.2)
    axes = drawing.subplots(2, 2)
    _prices(axes[0, 0], equilibrium)
    _shading(drawing, axes[0, 1], equilibrium)
    _budgets(axes[1, 0], equilibrium)
    _history(axes[1, 1], equilibrium)
    return save(drawing, stem, formats)


def _prices(axis: Axes, equilibrium: Equilibrium) -> None:
    time = equilibrium.game.mesh.time[:-1]
    naive = equilibrium.game.flow(np.zeros_like(equilibrium.shadow_price))
    axis.plot(time, equilibrium.price, color=_SOLVED, lw=2, label="price, clients look ahead")
    axis.plot(time, naive.price, color=_NAIVE, lw=2, label="price, clients report their valuation")
    axis.plot(time, equilibrium.mean_bid(), color=_SOLVED, ls="--", label="mean bid, looking ahead")
    axis.plot(time, equilibrium.mean_valuation(), color="#777777", ls=":", label="mean valuation, looking ahead")
    axis.set(xlabel="round", ylabel="money per unit of ε", title="Prices and bids")
    axis.legend(fontsize=8)


def _shading(drawing: Figure, axis: Axes, equilibrium: Equilibrium) -> None:
    mesh = equilibrium.game.mesh
    shadow = equilibrium.shadow_price[0, 0]
    image = axis.pcolormesh(mesh.budget, mesh.valuation, shadow, cmap="viridis", shading="nearest")
    report = mesh.valuation[:, None] + shadow
    axis.contour(mesh.budget, mesh.valuation, report, levels=[equilibrium.price[0]], colors="white")
    axis.set(
        xlabel="remaining budget (ε)",
        ylabel="valuation",
        title="Bid − valuation in the first round\n(below the white line: sells)",
    )
    drawing.colorbar(image, ax=axis, label="shadow price of budget")


def _budgets(axis: Axes, equilibrium: Equilibrium) -> None:
    mesh, mass = equilibrium.game.mesh, equilibrium.flow.mass
    shades = ("#cccccc", "#88b4d0", "#3a7ca5", "#12355b")
    for shade, n in zip(shades, np.linspace(0, mesh.grid.time_steps, len(shades)).astype(int), strict=True):
        density = mass[n].sum(axis=(0, 1)) / mesh.budget_width
        out = mass[n, ..., 0].sum()
        label = f"round {mesh.time[n]:.0f}: {100 * out:.0f} % have nothing left"
        axis.plot(mesh.budget[1:], density[1:], color=shade, lw=2, label=label)
    axis.set(xlabel="remaining budget (ε)", ylabel="density of clients", title="Who can still sell", ylim=(0, None))
    axis.legend(fontsize=8)


def _history(axis: Axes, equilibrium: Equilibrium) -> None:
    change = equilibrium.statistics.price_change
    axis.semilogy(range(1, len(change) + 1), change, "o-", color=_THIRD, ms=3)
    verdict = (
        "converged" if equilibrium.result is Result.CONVERGED else f"NOT a solution: {equilibrium.result.value}"
    )
    gain = max(equilibrium.relative_exploitability, 0.0)
    axis.set(
        xlabel="iteration",
        ylabel="largest price change ÷ mean price",
        title=f"{verdict}; best deviation gains\n{gain:.1e} of the mean payment",
    )
