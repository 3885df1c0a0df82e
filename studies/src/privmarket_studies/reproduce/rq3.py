"""RQ3: what a budget buys. R, surplus, ε, and the distance to the fluid bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from privmarket._figures import line_look, new_figure
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.document import (
    NOT_COMPUTED,
    Block,
    Figure,
    ResultPage,
    Results,
    Table,
    Text,
    failure_text,
    prose,
)
from privmarket_studies.reproduce.markets import LITERAL, RULES
from privmarket_studies.reproduce.paper import printed
from privmarket_studies.reproduce.statistics import Measured, compare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

BUDGETS = (10, 50, 100, 200)
SIZES = (10, 100)
OTHER_DISTRIBUTIONS = {"bimodal": (50, 100), "lognormal": (100,)}
# The rule whose figures the paper prints in a row, where that is not the rule of the same name.
PRINTED_BY = {
    "pac": "pac:literal",
    "vcg": "vcg:literal",
    "csra": "csra:literal",
    "mfg-pricing": "mfg-pricing:literal",
}
_BY_ITS_EQUATIONS = "mfg-regretnet:literal"
TITLE = "RQ3: what does a budget buy?"


def cells(scale: Scale) -> list[Cell]:
    """Every rule and literal form, N × B on Uniform; Table II's other distributions at N = 100."""
    markets = scale.pick(1000, 40)
    settings = [("uniform", n, b) for n in SIZES for b in BUDGETS]
    settings += [(distribution, 100, b) for distribution, budgets in OTHER_DISTRIBUTIONS.items() for b in budgets]
    seeds = scale.seeds_or(5, 2)
    made = [
        Cell("efficiency", _config(rule, *setting, markets), seed, cost=markets / 1000)
        for rule in (*RULES, *LITERAL)
        for setting in settings
        for seed in seeds
    ]
    made += [
        Cell("printed-row", {**_printed(rule, clients), "markets": markets}, seed, cost=markets / 1000)
        for rule in [*(PRINTED_BY.get(row, row) for row in printed("efficiency").rows), _BY_ITS_EQUATIONS]
        for clients in SIZES
        for seed in seeds
    ]
    return made


def _printed(rule: str, clients: int) -> dict[str, object]:
    """A cell of the paper's table: B = 50, and data sizes where the rule looks at them."""
    return {"mechanism": rule, "clients": clients, "budget": 50, "sizes": rule == "csra:literal"}


def _config(rule: str, distribution: str, clients: int, budget: int, markets: int) -> dict[str, object]:
    return {"mechanism": rule, "scenario": distribution, "clients": clients, "budget": budget, "markets": markets}


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    markets = {record.cell.config["markets"] for record in results.records}
    rounds = f"{min(markets):,}" if markets else "no"
    blocks: list[Block] = [
        prose("rq3-set-up", answer=_learned(results).markdown, seeds=results.seeds, markets=rounds),
        Text("## The paper's table beside ours"),
        _paper_table(results),
        _reasons(results),
        Text("## What a budget buys"),
        Figure("rq3-fluid-ratio", _caption(results), lambda: _draw(results)),
    ]
    tables = [_table(results, "uniform", clients, budget) for clients in reversed(SIZES) for budget in BUDGETS]
    tables += [
        _table(results, distribution, 100, b)
        for distribution, budgets in OTHER_DISTRIBUTIONS.items()
        for b in budgets
    ]
    blocks += [table for table in tables if table.name in _SHOWN]
    blocks += [Text("The other settings:"), *(replace(t, linked=True) for t in tables if t.name not in _SHOWN)]
    blocks += failure_text(results)
    return ResultPage("rq3", TITLE, blocks)


# One table of each distribution, and one of ten clients; the others are linked.
_SHOWN = ("rq3-uniform-n100-b50", "rq3-uniform-n10-b10", "rq3-bimodal-n100-b50", "rq3-lognormal-n100-b100")
_COLUMNS = (
    "mechanism",
    "R",
    "R/B",
    "over budget",
    "SW",
    "SW/B",
    "ε bought",
    "ε per money",
    "of fluid",
    "underpaid",
)


def _table(results: Results, distribution: str, clients: int, budget: int) -> Table:
    rows = []
    for rule in (*RULES, *LITERAL):
        where = {"mechanism": rule, "scenario": distribution, "clients": clients, "budget": budget}
        found = {name: results.measured(name, "efficiency", **where) for name in _SPECS}
        rows.append([rule, *_texts(found, results.absent("efficiency", **where))])
    name = f"rq3-{distribution}-n{clients}-b{budget}"
    seeds = results.over_seeds("efficiency", scenario=distribution, clients=clients, budget=budget)
    return Table(name, f"{distribution}, N = {clients}, B = {budget}; {seeds}", _COLUMNS, rows)


_SPECS = {
    "spend": ".2f",
    "spend_over_budget": ".3f",
    "over_budget": ".1%",
    "welfare": ".2f",
    "welfare_over_budget": ".3f",
    "epsilon": ".2f",
    "epsilon_per_money": ".3f",
    "fluid_ratio": ".3f",
    "underpaid": ".1%",
}


def _texts(found: dict[str, Measured | None], absent: str) -> list[str]:
    return [absent if value is None else value.text(_SPECS[name]) for name, value in found.items()]


def _paper_table(results: Results) -> Table:
    source = printed("efficiency")
    rows = []
    for name, row in source.rows.items():
        theirs = [f"{row[k]:.2f} ± {row[k + '_std']:.2f}" for k in ("spend", "w_prime")]
        ours = PRINTED_BY.get(name, name)
        off = " / ".join(_off(results, ours, figure, row[k]) for figure, k in _PRINTED_FIGURES)
        rows.append([name, *theirs, f"{row['bf']:.3f}", f"`{ours}`", off, *_our_row(results, ours)])
    empty = ["mfg-regretnet, by its equations", *["not printed"] * 3, f"`{_BY_ITS_EQUATIONS}`", "no row to meet"]
    rows.append([*empty, *_our_row(results, _BY_ITS_EQUATIONS)])
    ours_at = ("R, N = 10", "SW, N = 10", "R ≤ B in float32, N = 10", "R, N = 100", "SW, N = 100")
    columns = ("row", "paper: R", "paper: W′", "paper: BF", "ours", "off by: R / W′", *ours_at)
    seeds = results.over_seeds("printed-row")
    caption = f"Paper: {source.where}. Ours: Uniform, B = 50, the form that gives the row; {seeds}"
    return Table("rq3-paper", caption, columns, rows)


_PRINTED_FIGURES = (("spend", "spend"), ("welfare", "w_prime"))


def _off(results: Results, rule: str, figure: str, theirs: float) -> str:
    """How far our figure at N = 10 is from the printed one."""
    where = _printed(rule, 10)
    found = results.measured(figure, "printed-row", **where)
    return (
        results.absent("printed-row", **where) if found is None else f"{round(found.mean / theirs - 1, 3) + 0:+.1%}"
    )


def _our_row(results: Results, rule: str) -> list[str]:
    specs = {"spend": ".2f", "welfare": ".2f", "within_budget_float32": ".3f"}
    shown = [(name, 10) for name in specs] + [(name, 100) for name in ("spend", "welfare")]
    return [_printed_figure(results, rule, name, clients, specs[name]) for name, clients in shown]


def _printed_figure(results: Results, rule: str, figure: str, clients: int, spec: str = ".2f") -> str:
    where = _printed(rule, clients)
    found = results.measured(figure, "printed-row", **where)
    return results.absent("printed-row", **where) if found is None else found.text(spec)


def _figure(results: Results, rule: str, figure: str, clients: int, budget: int = 50) -> str:
    where = {"mechanism": rule, "scenario": "uniform", "clients": clients, "budget": budget}
    found = results.measured(figure, "efficiency", **where)
    return results.absent("efficiency", **where) if found is None else found.text(_SPECS[figure])


def _reasons(results: Results) -> Text:
    """The paragraph that says why each row differs from the paper's."""
    rows = printed("efficiency").rows

    def ours(rule: str, figure: str, clients: int) -> str:
        if rule in PRINTED_BY.values() or rule == _BY_ITS_EQUATIONS:
            return _printed_figure(results, rule, figure, clients, _SPECS[figure])
        return _figure(results, rule, figure, clients)

    def cost(name: str) -> float:
        return float(rows[name]["spend"] - rows[name]["w_prime"])

    return prose("rq3-reasons", ours=ours, cost=cost, spend=lambda name: rows[name]["spend"])


def _learned(results: Results) -> Text:
    def ratio(rule: str, clients: int = 100, budget: int = 50) -> Measured | None:
        where = {"mechanism": rule, "scenario": "uniform", "clients": clients, "budget": budget}
        return results.measured("fluid_ratio", "efficiency", **where)

    def against(rule: str, other: str) -> str:
        where = {"scenario": "uniform", "clients": 100, "budget": 50}
        a, b = (results.by_seed("fluid_ratio", "efficiency", mechanism=name, **where) for name in (rule, other))
        found = compare(a, b)
        return NOT_COMPUTED if found is None else found.text("+.3f")

    return prose(
        "rq3-learned",
        against=against,
        menu=ratio("mean-field-menu"),
        share=ratio("proportional-share"),
        net=ratio("mfg-regretnet"),
        pac=ratio("pac"),
        jsam=ratio("jsam"),
        small=ratio("mean-field-menu", 10, 10),
        large=ratio("mean-field-menu", 100, 100),
    )


def _caption(results: Results) -> str:
    spent = [m.mean for m in _spending(results, "vcg")]
    most = f": `vcg`, which knows no budget, spends up to {max(spent):.1f} times B" if spent else ""
    return (
        f"ε bought over the fluid bound, and per unit of money, Uniform. Open and dotted: breaks the budget{most}. "
        "Rules whose line would lie on another's are in the tables only."
    )


def _spending(results: Results, rule: str) -> list[Measured]:
    """R/B at every size and budget of the figure, over the seeds."""
    found = (
        results.measured(
            "spend_over_budget", "efficiency", mechanism=rule, scenario="uniform", clients=clients, budget=budget
        )
        for clients in SIZES
        for budget in BUDGETS
    )
    return [m for m in found if m is not None]


# Lines that would lie on one of these are left out: mfg-menunet on the menu, the other networks, csra.
_DRAWN = (
    "pac",
    "vcg",
    "k-plus-one-price",
    "jsam",
    "mfg-pricing",
    "proportional-share",
    "mean-field-menu",
    "mfg-regretnet",
)
_OVERSPENDING = ("vcg", "mfg-pricing")


def _draw(results: Results) -> Drawing:
    drawing = new_figure(10.0, 6.6)
    panels = drawing.subplots(2, 2, sharex=True)
    for axes, clients in zip(panels.T, SIZES, strict=True):
        for row, figure in enumerate(("fluid_ratio", "epsilon_per_money")):
            _lines(axes[row], results, figure, clients)
            axes[row].set(xscale="log", ylabel=("ε bought / fluid bound", "ε per unit of money")[row])
            axes[row].grid(alpha=0.25)
            axes[row].set_xticks(BUDGETS, [str(b) for b in BUDGETS])
            axes[row].minorticks_off()
        axes[0].axhline(1.0, color="#555555", ls="--", lw=1)
        axes[0].set_title(f"N = {clients}")
        axes[1].set(xlabel="budget B (money per market)", yscale="log")
        axes[1].yaxis.set_major_formatter("{x:g}")
        axes[1].yaxis.set_minor_formatter("")
        axes[1].set_yticks(
            [t for t in (0.1, 0.2, 0.5, 1, 2, 5) if axes[1].get_ylim()[0] <= t <= axes[1].get_ylim()[1]]
        )
    handles, labels = panels[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return drawing


def _lines(axes: Axes, results: Results, figure: str, clients: int) -> None:
    """A line per rule against the budget; points are shifted a little, so that none hides another."""
    for offset, rule in enumerate(_DRAWN):
        where = {"mechanism": rule, "scenario": "uniform", "clients": clients}
        points = [
            (b, m) for b in BUDGETS if (m := results.measured(figure, "efficiency", **where, budget=b)) is not None
        ]
        at = [b * 1.012 ** (offset - len(_DRAWN) / 2) for b, _ in points]
        mean, std = [m.mean for _, m in points], [m.std for _, m in points]
        look = line_look(rule)
        if rule in _OVERSPENDING:
            look |= {"ls": ":", "mfc": "white", "mew": 1.0}
        label = f"{rule} (breaks the budget)" if rule in _OVERSPENDING else rule
        axes.errorbar(at, mean, yerr=std, lw=1.2, label=label, **look)
