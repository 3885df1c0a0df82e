"""Collusion, the paper's named future work: what joint misreports with side payments gain against every rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from privmarket_studies.reproduce.markets import RULES
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLE = "Collusion: what do joint misreports gain?"
SIZES = (2, 5, 10, 20)
# One that is told every cost pays exactly that cost: a misreport alone already takes all, and would hide the rest.
_FULL_INFORMATION = "jsam"


def cells(scale: Scale) -> list[Cell]:
    """Every rule, coalitions of 2 to 20 of 100 clients."""
    clients, budget = (20, 10) if scale.quick else (100, 50)
    return [
        Cell(
            "coalition",
            {
                "mechanism": rule,
                "scenario": "uniform",
                "clients": clients,
                "budget": budget,
                "size": size,
                "markets": scale.pick(3, 1),
            },
            seed,
            0.1,
        )
        for size in (SIZES[:1] if scale.quick else SIZES)
        for rule in (("pac", "csra", "mean-field-menu", "mfg-regretnet") if scale.quick else RULES)
        for seed in scale.seeds_or(3, 1)
    ]


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    found = results.all("coalition")
    if not found and not results.outdated:
        return ResultPage("collusion", TITLE, [Text("Nothing was computed."), *failure_text(results)])
    config = found[0].cell.config if found else results.outdated[0].cell.config
    blocks: list[Block] = [
        prose(
            "collusion-set-up",
            answer=_learned(results).markdown,
            **{name: config[name] for name in ("clients", "budget", "markets")},
        ),
        Figure("collusion-size", _CAPTION, lambda: _draw(results)),
        _table(results),
        *failure_text(results),
    ]
    return ResultPage("collusion", TITLE, blocks)


_CAPTION = (
    "Gain of a coalition over its members' truthful pay, mean over coalitions, markets and seeds; a gain of 0 "
    "(`pac` in twos) has no place on this scale. In the table only: `jsam`, which one misreport beats already, "
    "`vcg`, which runs beside `k-plus-one-price`, and `mfg-menunet`, which for this goal is the menu."
)
_ALIKE = ("vcg", "mfg-menunet")


def sizes_of(results: Results) -> list[int]:
    """The sizes of coalitions that were tried, ascending."""
    return sorted({r.cell.config["size"] for r in results.all("coalition")})


def gain(results: Results, rule: str, size: int) -> Measured | None:
    """The mean gain of coalitions of this size over their truthful pay; None if it was not measured."""
    return results.measured("share", "coalition", mechanism=rule, size=size)


def _table(results: Results) -> Table:
    rows = []
    for rule in RULES:
        texts = []
        for size in sizes_of(results):
            mean = gain(results, rule, size)
            absent = results.absent("coalition", mechanism=rule, size=size)
            texts.append(absent if mean is None else "0" if mean.mean == 0 else mean.text(".2%"))
        rows.append([rule, *texts])
    columns = ("mechanism", *(f"coalitions of {size}" for size in sizes_of(results)))
    caption = f"Mean gain over the coalition's truthful pay; {results.over_seeds('coalition')}"
    return Table("collusion", caption, columns, rows)


def _learned(results: Results) -> Text:
    largest = max(sizes_of(results), default=0)
    means = {rule: m for rule in RULES if (m := gain(results, rule, largest)) and rule != _FULL_INFORMATION}
    ranked = sorted(means, key=lambda rule: means[rule].mean)
    return prose(
        "collusion-learned",
        size=largest,
        least=[(rule, means[rule].text(".2%")) for rule in ranked[:4]],
        most=[(rule, means[rule].text(".1%")) for rule in ranked[::-1][:3]],
        alone=[r for r in ("pac", "mean-field-menu", "mfg-menunet") if r in means and means[r].mean > 0],
        text=lambda rule: means[rule].text(".2%"),
    )


def _draw(results: Results) -> Drawing:
    drawing = new_figure(8.0, 4.6)
    axes = drawing.subplots()
    for rule in RULES:
        points = [(size, m) for size in sizes_of(results) if (m := gain(results, rule, size)) and m.mean > 1e-6]
        if not points or rule in (_FULL_INFORMATION, *_ALIKE):
            continue
        error = [[min(m.std, 0.9 * m.mean) for _, m in points], [m.std for _, m in points]]
        at, mean = [size for size, _ in points], [m.mean for _, m in points]
        axes.errorbar(at, mean, yerr=error, lw=1.3, label=rule, **line_look(rule))
    axes.set(xscale="log", yscale="log", xlabel="clients in the coalition", ylabel="gain / truthful pay")
    axes.set_xticks(sizes_of(results), [str(s) for s in sizes_of(results)])
    axes.minorticks_off()
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.grid(alpha=0.25)
    return drawing
