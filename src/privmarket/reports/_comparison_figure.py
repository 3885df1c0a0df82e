"""Figures of a comparison: value beside incentive, at the width of a page or of a column.

One distribution and size: a bar per rule. Several distributions of one size: dots. Several sizes: lines over the
number of clients, a panel per distribution. Whiskers are 95 % intervals over the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privmarket._counted import counted
from privmarket._figures import new_figure, own_look
from privmarket.market._audit import beyond_rounding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from privmarket.reports._comparison import Cell, Comparison

# Gains below this share of the mean payment are drawn as none.
_FLOOR = 1e-4
_VALUE = "ε bought / fluid bound"
_INCENTIVE = "worst misreport / mean pay"
_GAIN_TICKS = {1e-4: "none", 1e-3: "0.1%", 1e-2: "1%", 1e-1: "10%", 1.0: "100%", 10.0: "1,000%"}
_BROKEN = "hatched: passes its budget, or pays less than a client's cost"
# Below this width, in inches, panels stand below each other.
_NARROW = 5.0


def comparison_figure(comparison: Comparison, width: float) -> Figure:
    """The figure of a comparison, `width` inches wide."""
    sizes = {size for _, size in comparison.markets}
    if len(comparison.markets) == 1:
        return _bars(comparison, width)
    if len(sizes) == 1:
        return _dots(comparison, width)
    return _lines(comparison, width)


def keeps_promises(cell: Cell) -> bool:
    """Whether a rule never passed its budget and never paid less than a cost."""
    return cell.mean("rationality_violations") == 0 and cell.mean("budget_violations") == 0


def worst_gain(cell: Cell) -> float:
    """The largest gain over the mean payment that was found over all seeds; 0 where it is rounding."""
    if not any(beyond_rounding(report.regret.maximum, report.budget) for report in cell.reports):
        return 0.0
    return float(cell.values("regret.maximum_share").max())


def percent(share: float) -> str:
    """A share as tables write it."""
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}"


def _bars(comparison: Comparison, width: float) -> Figure:
    narrow = width < _NARROW
    cells = comparison.cells()[::-1]
    rules = _rules(comparison)
    height = 0.24 * len(cells) + 0.9
    made = new_figure(width, 2 * height + 0.5 if narrow else height + 0.4)
    value, incentive = made.subplots(2, 1) if narrow else made.subplots(1, 2, sharey=True)
    longest = 1.0
    for row, cell in enumerate(cells):
        kept = keeps_promises(cell)
        shade = own_look(cell.rule, rules.index(cell.rule))["color"]
        style: dict[str, Any] = {"color": shade, "height": 0.66, "alpha": 0.9}
        style |= {"edgecolor": "white", "hatch": None if kept else "////"}
        ratio = cell.mean("fluid_ratio")
        spread = cell.half_width("fluid_ratio")
        value.barh(row, ratio, xerr=spread or None, error_kw={"lw": 0.9, "capsize": 2}, **style)
        _beside(value, ratio + spread, row, f"{ratio:.3f}")
        longest = max(longest, ratio + spread)
        worst = worst_gain(cell)
        if worst == 0:
            _beside(incentive, _FLOOR, row, "none found")
        else:
            incentive.barh(row, max(worst - _FLOOR, _FLOOR), left=_FLOOR, **style)
            _beside(incentive, max(worst, 2 * _FLOOR), row, percent(worst))
    value.axvline(1.0, color="#555555", linestyle="--", linewidth=0.8, zorder=1.5)
    value.set_xlim(0, 1.22 * longest)
    value.set_xlabel(f"{_VALUE} (dashed: limit of truthful rules)" if not narrow else _VALUE, fontsize=8)
    incentive.set_xlabel(_INCENTIVE, fontsize=8)
    incentive.set(xscale="log", xlim=(_FLOOR, 3000))
    incentive.set_xticks([1e-4, 1e-2, 1, 100], ["0.01%", "1%", "100%", "10,000%"])
    incentive.minorticks_off()
    for axes in (value, incentive):
        axes.set_yticks(range(len(cells)), [cell.rule for cell in cells])
        axes.set_ylim(-0.6, len(cells) - 0.4)
        _tidy(axes, "x")
    first = comparison.reports[0]
    made.suptitle(f"{first.scenario}, {counted(first.clients, 'client')}, budget {first.budget:g}", fontsize=8)
    _say_broken(made, cells)
    return made


def _beside(axes: Axes, x: float, y: float, text: str) -> None:
    """A figure at the end of a bar, on white, so that no grid line runs through it."""
    axes.annotate(
        text,
        (x, y),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )


def _dots(comparison: Comparison, width: float) -> Figure:
    """Distributions side by side; rules are moved apart, so that none hides another."""
    names = list(dict.fromkeys(name for name, _ in comparison.markets))
    rules = _rules(comparison)
    narrow = width < _NARROW
    made = new_figure(width, (3.6 if narrow else 3.0) + 0.17 * len(rules) / (2 if narrow else 4))
    value, incentive = made.subplots(2, 1, sharex=True)
    for number, rule in enumerate(rules):
        cells = [cell for cell in comparison.cells() if cell.rule == rule]
        moved = 0.7 * ((number + 0.5) / len(rules) - 0.5)
        at = [names.index(cell.market[0]) + moved for cell in cells]
        _draw(value, incentive, cells, at, {**own_look(rule, number), "ls": "none"})
    for axes in (value, incentive):
        for edge in range(1, len(names)):
            axes.axvline(edge - 0.5, color="#dddddd", lw=0.8, zorder=0)
        axes.set_xlim(-0.5, len(names) - 0.5)
    crowded = max(len(name) for name in names) * len(names) * 0.075 > width - 0.8
    labels = [name.replace(" × ", " ×\n") for name in names]
    incentive.set_xticks(range(len(names)), labels)
    if crowded:
        incentive.tick_params(axis="x", labelrotation=25)
    _label(value, incentive)
    _legend(made, value, comparison, rules, narrow)
    return made


def _lines(comparison: Comparison, width: float) -> Figure:
    names = list(dict.fromkeys(name for name, _ in comparison.markets))
    sizes = sorted({size for _, size in comparison.markets})
    rules = _rules(comparison)
    narrow = width < _NARROW
    legend = 0.17 * len(rules) / (2 if narrow else 4)
    if narrow:  # a row per distribution, value and incentive side by side
        made = new_figure(width, 0.5 + 1.35 * len(names) + legend)
        grid = made.subplots(len(names), 2, squeeze=False, sharex=True, sharey="col")
        panels = [(row[0], row[1]) for row in grid]
    else:  # a column per distribution, value above incentive
        made = new_figure(width, 3.4 + legend)
        grid = made.subplots(2, len(names), squeeze=False, sharex=True, sharey="row")
        panels = [(grid[0][column], grid[1][column]) for column in range(len(names))]
    for name, (value, incentive) in zip(names, panels, strict=True):
        for number, rule in enumerate(rules):
            cells = sorted(
                (cell for cell in comparison.cells(name) if cell.rule == rule), key=lambda cell: cell.market[1]
            )
            # Rules are moved apart a little along the axis, so that none hides another.
            moved = (sizes[-1] / sizes[0]) ** (0.12 * ((number + 0.5) / len(rules) - 0.5))
            _draw(value, incentive, cells, [cell.market[1] * moved for cell in cells], own_look(rule, number))
        for axes in (value, incentive):
            axes.set_xscale("log")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
        value.set_title(name, fontsize=8, loc="left" if narrow else "center")
    for value, incentive in panels if narrow else panels[:1]:
        _label(value, incentive)
    for axes in grid[-1]:
        axes.set_xlabel("clients", fontsize=8)
    _legend(made, panels[0][0], comparison, rules, narrow)
    return made


def _draw(value: Axes, incentive: Axes, cells: Sequence[Cell], at: Sequence[float], look: dict[str, Any]) -> None:
    """One rule in both panels."""
    ratio = [cell.mean("fluid_ratio") for cell in cells]
    spread = [cell.half_width("fluid_ratio") for cell in cells]
    several = any(spread)
    rule = cells[0].rule if cells else ""
    value.errorbar(at, ratio, yerr=spread if several else None, label=rule, capsize=2, lw=0.9, **look)
    incentive.plot(at, [max(worst_gain(cell), _FLOOR) for cell in cells], lw=0.9, **look)
    value.axhline(1.0, color="#555555", linestyle="--", linewidth=0.8, zorder=0.5)
    incentive.set_yscale("log")
    top = max([*(worst_gain(cell) for cell in cells), incentive.get_ylim()[1] / 1.5, 0.1])
    incentive.set_ylim(0.6 * _FLOOR, 1.5 * top)
    shown = {tick: text for tick, text in _GAIN_TICKS.items() if tick <= 1.5 * top}
    incentive.set_yticks(list(shown), list(shown.values()))
    incentive.minorticks_off()
    for axes in (value, incentive):
        _tidy(axes, "y")


def _tidy(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _label(value: Axes, incentive: Axes) -> None:
    value.set_ylabel(_VALUE.replace(" / ", " /\n"), fontsize=8)
    incentive.set_ylabel(_INCENTIVE.replace(" / ", " /\n"), fontsize=8)


def _rules(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(report.mechanism for report in comparison.reports))


def _legend(made: Figure, axes: Axes, comparison: Comparison, rules: Sequence[str], narrow: bool) -> None:
    """Below the panels; a rule that breaks its budget or underpays says so beside its name."""
    broken = {cell.rule for cell in comparison.cells() if not keeps_promises(cell)}
    handles, names = axes.get_legend_handles_labels()
    called = [f"{name}*" if name in broken else name for name in names]
    columns = 2 if narrow else min(len(rules), 4)
    title = "* passes its budget, or pays less than a client's cost" if broken else None
    made.legend(
        handles,
        called,
        loc="outside lower center",
        ncols=columns,
        fontsize=7,
        frameon=False,
        title=title,
        title_fontsize=7,
    )


def _say_broken(made: Figure, cells: Sequence[Cell]) -> None:
    if not all(keeps_promises(cell) for cell in cells):
        made.supxlabel(_BROKEN, fontsize=7)
