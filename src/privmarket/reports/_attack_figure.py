"""One figure of attacks on releases: what they saw, and how far below the claim they stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm

from privmarket._figures import new_figure
from privmarket.privacy._statement import rounded_up_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from privmarket.simulation._attacks import AttackResult

_COLOURS = {"canary": "C0", "one-run": "C2", "membership": "C4"}
_CLAIM = "C3"


def attack_figure(results: Sequence[AttackResult]) -> Figure:
    """Scores of the first attack, curves of all of them, and the lower bounds beside the claims."""
    figure = new_figure(12.0, 3.9)
    scores, curves, bounds = figure.subplots(1, 3, width_ratios=(1.1, 1.0, 1.1))
    _draw_scores(scores, results[0])
    _draw_curves(curves, results)
    _draw_bounds(bounds, results)
    return figure


def _draw_scores(axes: Axes, result: AttackResult) -> None:
    both = np.concatenate([result.inside, result.outside])
    low, high = (float(end) for end in np.quantile(both, [0.002, 0.998]))
    bins = np.linspace(low, high, 41).tolist()
    axes.hist(result.outside, bins, density=True, alpha=0.55, color="0.55", label="record out")
    colour = _COLOURS.get(result.name, "C7")
    axes.hist(result.inside, bins, density=True, alpha=0.55, color=colour, label="record in")
    if result.name == "canary" and result.claim_mu is not None:
        # What the scores would follow if the noise were exactly what the claim needs; the canary adds 1.
        middle = float(np.median(result.outside))
        x = np.linspace(low, high, 300)
        for shift in (0.0, 1.0):
            density = norm.pdf(x, middle + shift, 1 / result.claim_mu)
            axes.plot(x, density, color=_CLAIM, linewidth=1, label=None if shift else "as claimed")
    allowed = rounded_up_percent(result.claim_guess)
    seen = f"{100 * result.guess:.1f} ± {100 * result.guess_margin:.1f} %"
    axes.set(title=f"{result.name}: {seen} right, {allowed} allowed", xlabel="score", ylabel="density")
    axes.legend(frameon=False, fontsize=8)


def _draw_curves(axes: Axes, results: Sequence[AttackResult]) -> None:
    chance = np.linspace(0, 1, 400)
    for result in results:
        colour = _COLOURS.get(result.name, "C7")
        false, true = result.roc()
        axes.plot(false, true, color=colour, linewidth=1.2, label=f"{result.name}, area {result.area:.2f}")
        if result.claim_mu is not None:
            best = norm.cdf(norm.ppf(chance) + result.claim_mu)
            axes.plot(chance, best, color=colour, linewidth=0.9, linestyle="--")
    axes.plot([], [], color="0.4", linewidth=0.9, linestyle="--", label="the most that the claim allows")
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=0.8, zorder=0)
    axes.set(title="in or out?", xlabel="false positives", ylabel="true positives", xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=7, loc="lower right")


def _draw_bounds(axes: Axes, results: Sequence[AttackResult]) -> None:
    names = [result.name for result in results]
    at = np.arange(len(results))
    lower = np.array([result.audit.epsilon_lower for result in results])
    claims = np.array([result.claim_epsilon for result in results])
    axes.barh(at, lower, 0.5, color=[_COLOURS.get(name, "C7") for name in names])
    axes.scatter(claims, at, marker="|", s=700, linewidths=2.5, color=_CLAIM, zorder=3)
    axes.plot([], [], color=_CLAIM, linewidth=2.5, label="claimed ε")
    for y, low, result in zip(at, lower, results, strict=True):
        verdict = "REFUTED" if result.refuted else "stands"
        axes.text(0.02, y + 0.36, f"ε ≥ {low:.2f}: claim {verdict}", va="center", fontsize=8)
    confidence = results[0].audit.confidence
    axes.set(title=f"least ε that explains it ({confidence:.0%} sure)", xlabel=f"ε at δ = {results[0].delta:g}")
    axes.set_yticks(at, names)
    axes.set_ylim(-0.6, len(results) - 0.3)
    axes.set_xlim(0, 1.12 * max(claims.max(), lower.max()))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
