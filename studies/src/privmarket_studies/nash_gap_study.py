"""The Nash gap of the solved mean-field game against the number of clients; the real form of RQ4 (c) and (d).

The paper shows the regret of a trained network as a stand-in for the gap. Here the gap itself is measured, in two
populations: one kind of clients (panel c, IID) and four kinds with their own mean valuations (panel d, non-IID),
and under two rules: the exact mean-field menu, whose price a client cannot move, with one price and with a linear
curve, and the plug-in menu with that curve, whose price it can. The stand-in is drawn beside it for every
mechanism that is asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

import numpy as np

from privmarket import __version__
from privmarket._figures import line_look, new_figure, save
from privmarket._files import write_atomically
from privmarket.market._bids import Array
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._menus import POSTED_PRICE, MenuCurve, from_function
from privmarket.meanfield import Equilibrium, FiniteGame, MenuMarket, Problem, Result, nash_gap, solve
from privmarket.meanfield._nash_gap import Deviation
from privmarket.mechanisms import mechanism
from privmarket_fixtures.plug_in_menu import PlugInMenu
from privmarket_studies.nash_gap_rate import fit_slope, one_round_regret
from privmarket_studies.reproduce.cells import weights_digest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Measure = Literal["hindsight", "own_state", "price_error"]


class Timed(TypedDict):
    """A part of the report; earlier ones have no time."""

    seconds: NotRequired[float]


class Headline(Timed):
    """How the game was solved, and what a client is paid and sells in it."""

    result: str
    iterations: int
    relative_exploitability: float
    mean_payment: float
    mean_epsilon_sold: float


class GapCell(Timed):
    """The measures at one number of clients, one figure per run."""

    clients: int
    own_state_limit: float
    hindsight: list[float]
    own_state: list[float]
    price_error: list[float]
    mean_payment: list[float]


class Shading(TypedDict):
    """What one client gains by shading otherwise, with its standard error."""

    share: float
    extra: float
    gain: float
    standard_error: float


class SearchCell(Timed):
    """What the best shading gains at one number of clients, and what all of them do."""

    clients: int
    seeds: int
    best_gain: float
    standard_error: float
    shadings: list[Shading]


class ProxyCell(TypedDict):
    """The one-round regret of a mechanism at one number of clients, one figure per run."""

    mechanism: str
    weights: NotRequired[str | None]
    clients: int
    regret: list[float]
    mean_payment: list[float]


class Fit(TypedDict):
    """A log-log slope with its interval."""

    slope: float
    low: float
    high: float


class NashGapReport(TypedDict):
    """The file of a study: parts by "population/rule/clients", "population/clients" or "mechanism/clients"."""

    setting: dict[str, object]
    version: str
    equilibria: dict[str, Headline]
    cells: dict[str, GapCell]
    search: dict[str, SearchCell]
    proxy: dict[str, ProxyCell]
    slopes: NotRequired[dict[str, Fit | None]]


SIZES = (10, 30, 100, 300, 1_000, 3_000)
POPULATIONS = {"iid": 1, "non-iid": 4}
MEASURES: tuple[Measure, ...] = ("hindsight", "own_state", "price_error")
SALE_CAP = 0.3
_PROXY_BUDGET = 0.5  # per client, B = 50 at N = 100 as in the paper's tables


@dataclass(frozen=True)
class StudySetting:
    """What is measured.

    Attributes:
        scenario: the distribution of clients.
        sizes: numbers of clients.
        seeds: runs per size.
        search_seeds: runs per size in which shadings are tried in the whole game; 0 leaves that out.
        search_sizes: numbers of clients for that.
        proxies: mechanisms whose one-round regret is drawn beside the gap.
        proxy_sizes: numbers of clients for them.
        grid: the mean-field grid.
    """

    scenario: str = "uniform"
    sizes: tuple[int, ...] = SIZES
    seeds: int = 40
    search_seeds: int = 200
    search_sizes: tuple[int, ...] = (10, 100)
    proxies: tuple[str, ...] = ()
    proxy_sizes: tuple[int, ...] = (10, 30, 100, 300)
    grid: str = "64x64x50"


SHADINGS: tuple[tuple[float, float], ...] = (
    (0.0, 0.0),
    (0.5, 0.0),
    (0.8, 0.0),
    (1.2, 0.0),
    (1.5, 0.0),
    (2.0, 0.0),
    (1.0, -0.05),
    (1.0, -0.02),
    (1.0, 0.02),
    (1.0, 0.05),
)
"""(a, d): report valuation + a × shadow price + d. (1, 0) is the solved strategy, (0, 0) is truth."""


@dataclass(frozen=True, eq=False)
class Searched:
    """Gains of shadings in the finite game with nothing held fixed, on the same chance as the solved strategy.

    Attributes:
        clients: N.
        shadings: (shadings,) pairs (a, d).
        gain: (shadings, seeds) over the solved strategy, over the whole game.
    """

    clients: int
    shadings: tuple[tuple[float, float], ...]
    gain: Array

    @property
    def best(self) -> tuple[float, float]:
        """Mean and standard error of the best shading: chosen on half of the seeds, scored on the other half."""
        scored = np.empty(self.gain.shape[1])
        for fit, score in ((0, 1), (1, 0)):
            chosen = int(self.gain[:, fit::2].mean(axis=1).argmax())
            scored[score::2] = self.gain[chosen, score::2]
        return float(scored.mean()), float(scored.std(ddof=1) / np.sqrt(scored.size))


def search(
    equilibrium: Equilibrium,
    mechanism: Mechanism,
    clients: int,
    *,
    seeds: Sequence[int],
    shadings: tuple[tuple[float, float], ...] = SHADINGS,
) -> Searched:
    """Client 0 tries shadings in the whole game; the others respond to the prices it moves."""
    finite = FiniteGame(equilibrium, mechanism)

    def gains(deviation: Deviation | None) -> Array:
        draws = (np.random.default_rng([seed, clients]) for seed in seeds)
        return np.array([finite.run(clients, rng, deviation=deviation, record=False).own_gain for rng in draws])

    solved = gains(None)
    rows = [gains(partial(_shaded, share=a, extra=d)) for a, d in shadings]
    return Searched(clients, shadings, np.stack(rows) - solved)


def _shaded(valuation: Array, shadow: Array, *, share: float, extra: float) -> Array:
    return valuation + share * shadow + extra


def _linear_menu() -> MenuCurve:
    return from_function(lambda s: np.clip(1.0 - s, 0.0, 1.0), 1.0, steps=8)


def _exact(curve: MenuCurve, cap: float) -> Mechanism:
    return mechanism("mean-field-menu", curve=curve, epsilon_max=cap)


def _plug_in(curve: MenuCurve, cap: float) -> Mechanism:
    return PlugInMenu(curve)


RULES: dict[str, tuple[Callable[[], MenuCurve], Callable[[MenuCurve, float], Mechanism]]] = {
    "mean-field-menu": (lambda: POSTED_PRICE, _exact),
    "mean-field-menu-linear": (_linear_menu, _exact),
    "plug-in-menu": (_linear_menu, _plug_in),
}


def rules_of(population: str) -> list[str]:
    """The rules measured in a population: the linear exact menu, a control, only in the first."""
    return [name for name in RULES if population == "iid" or name != "mean-field-menu-linear"]


def run(setting: StudySetting, path: Path, progress: Callable[[str], None] = lambda text: None) -> NashGapReport:
    """Measures all that is not yet in the file at `path`, and writes it there cell by cell."""
    report = _resume(setting, path)
    for population, kinds in POPULATIONS.items():
        for name in rules_of(population):
            curve, build = RULES[name]
            missing = [n for n in setting.sizes if f"{population}/{name}/{n}" not in report["cells"]]
            wants_search = [
                n
                for n in setting.search_sizes
                if (population, name) == ("iid", "mean-field-menu") and setting.search_seeds
                if f"{population}/{n}" not in report["search"]
            ]
            if not missing and not wants_search:
                continue
            progress(f"{population}, {name}: solving")
            solved = solved_game(setting, kinds, curve())
            rule = build(curve(), SALE_CAP * solved.game.mesh.step)
            report["equilibria"][f"{population}/{name}"] = _headline(solved)
            for n in missing:
                progress(f"{population}, {name}: N = {n}")
                report["cells"][f"{population}/{name}/{n}"] = _cell(solved, rule, n, setting.seeds)
                _write(report, path)
            for n in wants_search:
                progress(f"{population}: shadings at N = {n}")
                report["search"][f"{population}/{n}"] = _searched(solved, rule, n, setting.search_seeds)
                _write(report, path)
    _measure_proxies(setting, report, path, progress)
    report["slopes"] = slopes(report)
    _write(report, path)
    return report


def recorded_time(report: NashGapReport) -> dict[str, float]:
    """Minutes that are recorded, of how many parts, and how many parts there are."""
    parts: list[Timed] = [
        *report["equilibria"].values(),
        *report["cells"].values(),
        *report["search"].values(),
    ]
    seconds = [part["seconds"] for part in parts if "seconds" in part]
    return {"minutes": sum(seconds) / 60, "timed": len(seconds), "parts": len(parts)}


def slopes(report: NashGapReport) -> dict[str, Fit | None]:
    """Log-log slopes with 95 % intervals, absolute and over the mean payment of the same run."""
    found: dict[str, Fit | None] = {}
    for population in POPULATIONS:
        for name in rules_of(population):
            cells = _cells(report, population, name)
            sizes = [cell["clients"] for cell in cells]
            for measure_name in MEASURES:
                for scale in ("absolute", "relative"):
                    values = [_values(cell, measure_name, scale) for cell in cells]
                    fit = fit_slope(sizes, values, np.random.default_rng(0)) if len(sizes) > 1 else None
                    key = f"{population}/{name}/{measure_name}/{scale}"
                    found[key] = None if fit is None else {"slope": fit.slope, "low": fit.low, "high": fit.high}
    return found


def solved_game(setting: StudySetting, kinds: int, curve: MenuCurve) -> Equilibrium:
    """The game among `kinds` kinds of clients under a menu, solved; an error if it does not converge."""
    problem = Problem.from_scenario(setting.scenario, market=MenuMarket(curve, SALE_CAP), kinds=kinds)
    solved = solve(problem, "explicit", grid=setting.grid)
    if solved.result is not Result.CONVERGED:
        raise RuntimeError(f"the mean-field game did not converge: {solved.result.value}")
    return solved


def _headline(solved: Equilibrium) -> Headline:
    return {
        "result": solved.result.value,
        "iterations": solved.statistics.iterations,
        "seconds": solved.statistics.seconds,
        "relative_exploitability": solved.relative_exploitability,
        "mean_payment": solved.mean_payment,
        "mean_epsilon_sold": float(solved.flow.sold.sum() * solved.game.mesh.step),
    }


def _cell(solved: Equilibrium, rule: Mechanism, clients: int, seeds: int) -> GapCell:
    started = time.monotonic()
    gap = nash_gap(solved, clients, rule, seeds=range(seeds))
    return {
        "clients": clients,
        "own_state_limit": float(f"{gap.own_state_limit:.6g}"),
        "hindsight": _six_digits(gap.hindsight),
        "own_state": _six_digits(gap.own_state),
        "price_error": _six_digits(gap.price_error),
        "mean_payment": _six_digits(gap.mean_payment),
        "seconds": time.monotonic() - started,
    }


def _six_digits(values: Array) -> list[float]:
    return [float(f"{x:.6g}") for x in values.tolist()]


def _searched(solved: Equilibrium, rule: Mechanism, clients: int, seeds: int) -> SearchCell:
    started = time.monotonic()
    found = search(solved, rule, clients, seeds=range(seeds))
    mean, error = found.best
    spread = found.gain.std(axis=1, ddof=1) / np.sqrt(seeds)
    return {
        "clients": clients,
        "seeds": seeds,
        "best_gain": mean,
        "standard_error": error,
        "shadings": [
            {"share": a, "extra": d, "gain": float(g), "standard_error": float(e)}
            for (a, d), g, e in zip(found.shadings, found.gain.mean(axis=1), spread, strict=True)
        ],
        "seconds": time.monotonic() - started,
    }


def _measure_proxies(
    setting: StudySetting, report: NashGapReport, path: Path, progress: Callable[[str], None]
) -> None:
    distribution = scenario(setting.scenario)
    for name in setting.proxies:
        rule = mechanism(name, market=MarketFacts.of(distribution))
        for n in setting.proxy_sizes:
            kept = report["proxy"].get(f"{name}/{n}")
            same = kept is not None and kept.get("weights") == weights_digest(name)
            if same or n > max(setting.sizes):
                continue
            progress(f"one-round regret of {name}: N = {n}")
            regret, payment = one_round_regret(
                rule, distribution, n, _PROXY_BUDGET, seeds=range(min(setting.seeds, 20))
            )
            report["proxy"][f"{name}/{n}"] = {
                "mechanism": name,
                "weights": weights_digest(name),
                "clients": n,
                "regret": regret.tolist(),
                "mean_payment": payment.tolist(),
            }
            _write(report, path)


def _resume(setting: StudySetting, path: Path) -> NashGapReport:
    fresh: NashGapReport = {
        "setting": {k: list(v) if isinstance(v, tuple) else v for k, v in setting.__dict__.items()},
        "version": __version__,
        "equilibria": {},
        "cells": {},
        "search": {},
        "proxy": {},
    }
    if not path.exists():
        return fresh
    saved: NashGapReport = json.loads(path.read_text(encoding="utf-8"))
    same = all(
        saved["setting"][key] == fresh["setting"][key] for key in ("scenario", "seeds", "grid", "search_seeds")
    )
    if not same:
        return fresh
    saved["setting"] = fresh["setting"]
    return saved


def _write(report: NashGapReport, path: Path) -> None:
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def _cells(report: NashGapReport, population: str, rule: str) -> list[GapCell]:
    mine = [cell for key, cell in report["cells"].items() if key.startswith(f"{population}/{rule}/")]
    return sorted(mine, key=lambda cell: int(cell["clients"]))


def _values(cell: GapCell, name: Measure, scale: str) -> Array:
    values = np.array(cell[name])
    return np.asarray(values / np.array(cell["mean_payment"]) if scale == "relative" else values)


# (rule, measure) → colour, marker, what it is
_LOOK: dict[tuple[str, Measure], tuple[str, str, str]] = {
    ("mean-field-menu", "price_error"): ("#888888", "s", "|utility − the mean-field game's|"),
    ("mean-field-menu", "hindsight"): ("#D55E00", "o", "gap, deviator foresees the others"),
    ("mean-field-menu-linear", "hindsight"): ("#009E73", "D", "same, linear menu"),
    ("plug-in-menu", "hindsight"): ("#882255", "^", "same, linear menu, a price it can move"),
}


def figure(report: NashGapReport, stem: Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Panels (c) and (d), and the stand-in where it was measured."""
    panels = len(POPULATIONS) + bool(report["proxy"])
    drawing = new_figure(5.2 * panels, 5.6)
    axes = drawing.subplots(1, panels, squeeze=False)[0]
    titles = {"iid": "(c) one kind of clients", "non-iid": "(d) four kinds of clients"}
    for axis, population in zip(axes, POPULATIONS, strict=False):
        _panel(axis, report, population)
        axis.set_title(titles[population])
    bottom = max(min(axis.get_ylim()[0] for axis in axes[: len(POPULATIONS)]), 1e-9)
    for axis in axes[: len(POPULATIONS)]:
        axis.set_ylim(bottom, 1.0)
    if report["proxy"]:
        _proxy_panel(axes[-1], report)
    return save(drawing, stem, formats)


def _panel(axis: Axes, report: NashGapReport, population: str) -> None:
    for (rule, name), (shade, marker, text) in _LOOK.items():
        if rule not in rules_of(population):
            continue
        cells = _cells(report, population, rule)
        values = [_values(cell, name, "relative") for cell in cells]
        sizes = np.array([cell["clients"] for cell in cells])
        mean = np.array([v.mean() for v in values])
        error = np.array([1.96 * v.std(ddof=1) / np.sqrt(v.size) for v in values])
        clear = mean > error
        fit = report["slopes"][f"{population}/{rule}/{name}/relative"]
        if clear.all() and fit is not None:
            text += f"\n    slope {fit['slope']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]"
        bars = [error[clear], error[clear]]
        line = "-" if clear.all() else "none"
        if clear.any():
            axis.errorbar(
                sizes[clear], mean[clear], yerr=bars, color=shade, marker=marker, ls=line, ms=5, label=text
            )
        limit = np.maximum(mean + error, 0.0)
        shown = ~clear & (limit > 0)
        if shown.any():
            text += "\n    open: not above 0, upper 95 % limit shown"
            axis.plot(sizes[shown], limit[shown], color=shade, marker=marker, ls="none", mfc="white", label=text)
    _own_state_limits(axis, _cells(report, population, "mean-field-menu"))
    guide = np.array([10.0, 3000.0])
    for power, dash in ((-0.5, ":"), (-1.0, "--")):
        text = "N^(−1/2), the rate of the theorem's bound" if power == -0.5 else "N^(−1)"
        axis.plot(guide, 0.25 * (guide / 10) ** power, color="black", lw=0.8, ls=dash, label=text)
    axis.set(xscale="log", yscale="log", xlabel="clients N", ylabel="share of the mean payment")
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)


def _own_state_limits(axis: Axes, cells: list[GapCell]) -> None:
    share = [cell["own_state_limit"] / np.mean(cell["mean_payment"]) for cell in cells]
    text = "gap, deviator sees its own state only:\n    upper estimate"
    axis.plot([c["clients"] for c in cells], share, color="#0072B2", marker="v", mfc="white", ls=":", label=text)


def _proxy_panel(axis: Axes, report: NashGapReport) -> None:
    names: Sequence[str] = sorted({cell["mechanism"] for cell in report["proxy"].values()})
    drawn = False
    for name in names:
        mine = [cell for cell in report["proxy"].values() if cell["mechanism"] == name]
        cells = sorted(mine, key=lambda cell: int(cell["clients"]))
        share = np.array([np.mean(cell["regret"]) / np.mean(cell["mean_payment"]) for cell in cells])
        if share.max() < 1e-9:
            axis.plot([], [], label=f"{name}: 0", **line_look(name))
        else:
            drawn = True
            axis.plot([cell["clients"] for cell in cells], share, label=name, **line_look(name))
    axis.set(
        xscale="log",
        yscale="log",
        xlim=(8.0, 400.0),
        ylim=None if drawn else (1e-6, 1.0),
        xlabel="clients N",
        ylabel="regret ÷ mean payment",
        title="the paper's stand-in: regret in one round,\nunder a quick grid attack (a lower bound)",
    )
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)


def markdown(report: NashGapReport) -> str:
    """The figures as tables, for the documentation."""
    lines = ["Shares of the mean payment, means over seeds ± standard error.", ""]
    lines += ["| population | rule | N | hindsight | own state, from below | from above | utility error |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for population in POPULATIONS:
        for rule in rules_of(population):
            for cell in _cells(report, population, rule):
                shares = [_values(cell, name, "relative") for name in MEASURES]
                texts = [f"{v.mean():.2e} ± {v.std(ddof=1) / np.sqrt(v.size):.0e}" for v in shares]
                limit = cell["own_state_limit"] / np.mean(cell["mean_payment"])
                texts.insert(2, f"{limit:.2e}")
                lines.append(f"| {population} | {rule} | {cell['clients']} | " + " | ".join(texts) + " |")
    lines += ["", "Log-log slopes in N with 95 % bootstrap intervals.", ""]
    lines += ["| population | rule | measure | absolute | over the mean payment |", "|---|---|---|---|---|"]
    for population in POPULATIONS:
        for rule in rules_of(population):
            for name in MEASURES:
                stem = f"{population}/{rule}/{name}"
                fits = [_fit_text(report["slopes"][f"{stem}/{scale}"]) for scale in ("absolute", "relative")]
                lines.append(f"| {population} | {rule} | {name} | {fits[0]} | {fits[1]} |")
    if report["search"]:
        lines += [
            "",
            "One client shades otherwise in the whole game, nothing held fixed (iid, mean-field-menu).",
            "",
        ]
        lines += ["| N | seeds | best shading's gain ± standard error | truth's gain |", "|---|---|---|---|"]
        for tried in report["search"].values():
            paid = np.mean(report["cells"][f"iid/mean-field-menu/{tried['clients']}"]["mean_payment"])
            truth = next(s for s in tried["shadings"] if (s["share"], s["extra"]) == (0.0, 0.0))
            gain = f"{tried['best_gain'] / paid:.1e} ± {tried['standard_error'] / paid:.0e}"
            naive = f"{truth['gain'] / paid:.1e} ± {truth['standard_error'] / paid:.0e}"
            lines.append(f"| {tried['clients']} | {tried['seeds']} | {gain} | {naive} |")
    return "\n".join(lines) + "\n"


def _fit_text(fit: Fit | None) -> str:
    return "not above 0" if fit is None else f"{fit['slope']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]"
