"""The section about the paper's own models: an MLP on MNIST's pixels, a CNN on CIFAR-10's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import line_look, new_figure
from privmarket_studies.reproduce.cells import Result
from privmarket_studies.reproduce.document import NOT_COMPUTED, Block, Figure, Results, Table, Text, prose
from privmarket_studies.reproduce.paper import printed
from privmarket_studies.reproduce.statistics import Measured
from privmarket_studies.reproduce.variations import MODEL_ROWS, MODELS, model_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_SEEDS = range(10)
_ROWS = (*MODEL_ROWS, "no-dp")
_NAMES = {"no-noise": "no noise, the menu's sellers"}
_TITLES = {"mlp": "MNIST, MLP on pixels", "cnn": "CIFAR-10, CNN"}
_CAPTION = (
    "Accuracy by round, α = 0.5, mean over seeds, band: ± std; dashed: without noise. As the paper's Figs. 6 and "
    "7, "
    "(a) and (b)."
)


def blocks(results: Results) -> list[Block]:
    """Words, figure and table; runs that nobody has computed are named below the table."""
    listed = [(model, row) for model in MODELS for row in _ROWS]
    known = [pair for pair in listed if _runs(results, *pair) or _absent(results, *pair) != NOT_COMPUTED]
    made: list[Block] = [prose("variations-models")]
    if any(_runs(results, *pair) for pair in known):
        made.append(Figure("variations-models", _CAPTION, lambda: _draw(results)))
    if known:
        made.append(_table(results, known))
    left = [f"{_NAMES.get(row, row)} ({model})" for model, row in listed if (model, row) not in known]
    return [*made, Text(f"Not computed yet: {', '.join(left)}.")] if left else made


def _runs(results: Results, model: str, row: str) -> dict[int, Result]:
    """The results of this model under this rule: seed → result."""
    found = {seed: results.get(model_cell(model, row, seed)) for seed in _SEEDS}
    return {seed: result for seed, result in found.items() if result is not None}


def _absent(results: Results, model: str, row: str) -> str:
    cell = model_cell(model, row, 0)
    named = {name: cell.config[name] for name in ("dataset", "mechanism", "mode", "rounds", "training")}
    return results.absent(cell.kind, **named)


def _table(results: Results, known: list[tuple[str, str]]) -> Table:
    rows = []
    paper = printed("accuracy").rows
    for model, row in known:
        dataset, rounds, _ = MODELS[model]
        found = _runs(results, model, row)
        accuracy, largest, money = [_absent(results, model, row)] * 3
        if found:
            accuracy = Measured.of(100 * r["accuracy"] for r in found.values()).text(".2f")
            spent = [r["largest_epsilon_spent"] for r in found.values()]
            largest = "no guarantee" if None in spent else Measured.of(spent).text(".1f")
            paid = Measured.of(r["spent"] for r in found.values())
            money = "nothing" if row == "no-dp" else paid.text(",.0f")
        told = paper.get(row, {}).get(f"{dataset}/0.5")
        beside = "not in the paper" if told is None else f"{told}"
        head = [dataset, model, _NAMES.get(row, row), str(rounds)]
        rows.append([*head, accuracy, beside, money, largest, str(len(found))])
    columns = ("data set", "model", "mechanism", "rounds", "accuracy, %", "the paper, %, 200 rounds")
    caption = "α = 0.5, 100 clients, B = 50; CNN: a tenth of each seller's records a round; mean ± std over seeds"
    return Table("variations-models", caption, (*columns, "paid", "largest total ε", "seeds"), rows)


def _draw(results: Results) -> Drawing:
    drawing = new_figure(10.0, 4.2)
    panels = drawing.subplots(1, len(MODELS))
    for axes, model in zip(panels, MODELS, strict=True):
        for row in _ROWS:
            curves = [result["curve"] for result in _runs(results, model, row).values()]
            if not curves:
                continue
            shared = sorted(set.intersection(*(set(curve) for curve in curves)), key=int)
            points = [Measured.of(100 * curve[n] for curve in curves) for n in shared]
            at, mean, std = [int(n) for n in shared], *(np.array([getattr(p, k) for p in points]) for k in _SPREAD)
            style = {**line_look(row), **({"ls": "--"} if row.startswith("no-") else {})}
            if row == "no-noise":
                style |= {"color": line_look("mean-field-menu")["color"], "marker": "."}
            axes.plot(at, mean, lw=1.3, label=_NAMES.get(row, row), **style)
            axes.fill_between(at, mean - std, mean + std, color=style["color"], alpha=0.12, lw=0)
        axes.set(title=_TITLES[model], xlabel="round")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("test accuracy, %")
    drawn = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = {label: handle for handle, label in drawn}
    drawing.legend(named.values(), named.keys(), loc="outside right center", fontsize=8, frameon=False)
    return drawing


_SPREAD = ("mean", "std")
