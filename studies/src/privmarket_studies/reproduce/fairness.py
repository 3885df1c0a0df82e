"""Fairness: who sells, who is paid, by fifths of the clients' valuations, and what floors change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import line_look, new_figure
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.document import (
    Block,
    Figure,
    ResultPage,
    Results,
    Table,
    Text,
    failure_text,
    prose,
)
from privmarket_studies.reproduce.market_cells import FIFTHS
from privmarket_studies.reproduce.markets import RULES
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

DISTRIBUTIONS = {"uniform": 50, "lognormal": 100}
FLOORS: dict[str, dict[str, object]] = {
    "mfg-menunet, service floor": {"service_share": 0.1, "service_valuation": 1.0},
    "mfg-menunet, compensation floor": {"unit_compensation": 0.5},
}
TITLE = "Fairness: who sells, and who is paid?"


def cells(scale: Scale) -> list[Cell]:
    """Every rule, and the learned menu with each floor (on Uniform)."""
    markets, seeds = scale.pick(200, 20), scale.seeds_or(5, 2)
    made = [
        _cell(rule, {}, distribution, b, markets, s)
        for distribution, b in DISTRIBUTIONS.items()
        for rule in RULES
        for s in seeds
    ]
    made += [_cell("mfg-menunet", floor, "uniform", 50, markets, s) for floor in FLOORS.values() for s in seeds]
    return made


def _cell(rule: str, settings: dict[str, object], distribution: str, budget: int, markets: int, seed: int) -> Cell:
    config = {"mechanism": rule, "settings": settings, "scenario": distribution}
    return Cell("fairness", {**config, "clients": 100, "budget": budget, "markets": markets}, seed, markets / 200)


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    blocks: list[Block] = [
        prose("fairness-set-up", answer=_learned(results).markdown, seeds=results.seeds, floors=FLOORS),
        Figure("fairness-fifths", _CAPTION, lambda: _draw(results)),
        *(_table(results, "uniform", figure) for figure in _WORDS),
        Text("LogNormal:"),
        *(replace(_table(results, "lognormal", figure), linked=True) for figure in _WORDS),
        Text("## What floors change"),
        floor_table(results),
        *failure_text(results),
    ]
    return ResultPage("fairness", TITLE, blocks)


_CAPTION = (
    "Share of clients that sell, ε sold and pay, by fifths of valuation, Uniform; mean over seeds. One rule of "
    "each kind: the others run beside one of these, and are in the tables."
)
_DRAWN = ("pac", "k-plus-one-price", "jsam", "mean-field-menu", "regretnet", "mfg-regretnet")
_WORDS = {"sell": "share that sells", "epsilon": "mean ε sold", "pay": "mean pay"}
_SPECS = {"sell": ".1%", "epsilon": ".2f", "pay": ".2f"}


def fifth(
    results: Results, distribution: str, rule: str, settings: dict[str, object], figure: str, place: int
) -> Measured | None:
    """A figure of one fifth of the clients, over the seeds; None if it was not measured."""
    found = results.values("fifths", "fairness", scenario=distribution, mechanism=rule, settings=settings)
    return Measured.of(fifths[place][figure] for fifths in found) if found else None


def _table(results: Results, distribution: str, figure: str) -> Table:
    rows = []
    for rule in RULES:
        values = [fifth(results, distribution, rule, {}, figure, place) for place in range(FIFTHS)]
        absent = results.absent("fairness", scenario=distribution, mechanism=rule)
        rows.append([rule, *(absent if v is None else v.text(_SPECS[figure]) for v in values)])
    seeds = results.over_seeds("fairness", scenario=distribution)
    caption = f"{distribution}, N = 100, B = {DISTRIBUTIONS[distribution]}: {_WORDS[figure]}, by fifth; {seeds}"
    return Table(f"fairness-{distribution}-{figure}", caption, ("mechanism", *_heads()), rows)


def _heads() -> list[str]:
    return ["cheapest fifth", "second", "third", "fourth", "dearest fifth"]


def floor_table(results: Results) -> Table:
    """The learned menu without and with each floor."""
    rows = []
    for label, settings in {"mfg-menunet, no floor": {}, **FLOORS}.items():
        shares = [fifth(results, "uniform", "mfg-menunet", settings, "sell", place) for place in range(FIFTHS)]
        where = {"scenario": "uniform", "mechanism": "mfg-menunet", "settings": settings}
        ratio = results.measured("fluid_ratio", "fairness", **where)
        least = results.measured("least_unit_price", "fairness", **where)
        absent = results.absent("fairness", **where)
        texts = [absent if v is None else v.text(".1%") for v in shares]
        tail = [absent if m is None else m.text(".3f") for m in (ratio, least)]
        rows.append([label, *texts, *tail])
    columns = ("rule", *(f"{head} sells" for head in _heads()), "ε bought / fluid bound", "least pay per unit of ε")
    seeds = results.over_seeds("fairness", scenario="uniform")
    return Table("fairness-floors", f"Uniform, N = 100, B = 50; {seeds}", columns, rows)


def _learned(results: Results) -> Text:
    def last(rule: str, settings: dict[str, object], figure: str = "sell") -> Measured | None:
        return fifth(results, "uniform", rule, settings, figure, FIFTHS - 1)

    excluded = [rule for rule in RULES if (m := last(rule, {})) is not None and m.mean == 0]
    served = [rule for rule in RULES if (m := last(rule, {})) is not None and m.mean > 0]
    where = {"scenario": "uniform", "mechanism": "mfg-menunet"}
    floor = FLOORS["mfg-menunet, service floor"]
    return prose(
        "fairness-learned",
        excluded=excluded,
        served=", ".join(f"`{rule}`" for rule in served),
        floor=last("mfg-menunet", floor),
        plain=last("mfg-menunet", {}),
        ratio=results.measured("fluid_ratio", "fairness", **where, settings={}),
        ratio_floor=results.measured("fluid_ratio", "fairness", **where, settings=floor),
        share=floor["service_share"],
    )


def _draw(results: Results) -> Drawing:
    drawing = new_figure(12.0, 4.6)
    panels = drawing.subplots(1, 3)
    for axes, figure in zip(panels, _WORDS, strict=True):
        for rule in _DRAWN:
            _line(axes, results, rule, {}, figure, rule, "-")
        floor = FLOORS["mfg-menunet, service floor"]
        _line(axes, results, "mfg-menunet", floor, figure, "mfg-menunet, service floor", "--")
        axes.set(xlabel="fifth of clients by valuation", ylabel=_LABELS[figure])
        axes.set_xticks(range(1, FIFTHS + 1), ["cheapest", "2", "3", "4", "dearest"])
        axes.grid(alpha=0.25)
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return drawing


_LABELS = {"sell": "share of clients that sell", "epsilon": "mean ε sold", "pay": "mean pay (money)"}


def _line(
    axes: Axes, results: Results, rule: str, settings: dict[str, object], figure: str, label: str, dash: str
) -> None:
    values = [fifth(results, "uniform", rule, settings, figure, place) for place in range(FIFTHS)]
    if all(v is not None for v in values):
        mean = np.array([v.mean for v in values if v is not None])
        axes.plot(range(1, FIFTHS + 1), mean, lw=1.3, label=label, **{**line_look(rule), "ls": dash})
