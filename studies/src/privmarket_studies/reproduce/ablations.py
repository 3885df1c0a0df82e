"""Ablations: what each part of the learned mechanism, of the default readings and of the floors is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privmarket._figures import colour, new_figure
from privmarket_studies.reproduce import fairness, rq1, rq3
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
from privmarket_studies.reproduce.markets import LITERAL
from privmarket_studies.reproduce.statistics import DECIDED, Measured, PairedComparison, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

VARIANTS: dict[str, dict[str, object]] = {
    "default": {},
    "without b_MFG": {"network.mean_field": False},
    "without L_MFG": {"alignment.weight": 0.0},
    # Names a default, so that its cells are not those of an earlier form of the training, which took Φ at the
    # report of the largest gain.
    "ζ = 0.5": {"baseline.mixing": 0.5, "baseline.frozen_after": 0},
    "ζ = 0.5, critic frozen after 100 steps": {"baseline.mixing": 0.5, "baseline.frozen_after": 100},
    "a tenth of the regret budget": {"steering.regret_budget": [0.0008, 0.0004, 0.0002, 0.00015, 0.00015]},
    "group-regularised regret": {"group_weight": 1.0},
    "the paper's attack in training": {"attack.kind": "ascent"},
}
# The concatenated AHN of Eqs. (ahn-input) and (ahn-output), at N = 10: deviations cost a whole auction each.
CONCATENATED: dict[str, dict[str, object]] = {
    "concatenated": {},
    "concatenated, with b_MFG as a row": {"network.population_row": True},
    "concatenated, 5 of 10 selected": {"network.selected": 5},
}
# The heads of Eqs. (alloc-net) and (pay-net) with m levels, at N = 10 as well; trained for revenue, as printed.
LEVELS: dict[str, dict[str, object]] = {
    "paper-literal, m = 1 level": {},
    "paper-literal, m = 4 levels": {"network.levels": 4},
}
STRATEGIES = ("truthful", "equilibrium")
NETWORKS = ("mfg-regretnet", "regretnet", "dm-regretnet")
# Goals for which `mfg-menunet` learns the shape of its menu, and the H of a curve that ships for each.
MENU_GOALS = {"aggregation-error": 0.2, "aggregate-error": 0.1}
TITLE = "Ablations: what is each part worth?"


def cells(scale: Scale) -> list[Cell]:
    """Short trainings, market games, and the cells of other pages that ablate something."""
    steps, rows = scale.pick(300, 4), scale.pick(800, 60)
    trained = scale.seeds_or(3, 1)
    attack = "training" if scale.quick else "quick"
    made = [
        Cell("training", {"changes": changes, "steps": steps, "rows": rows, "attack": attack}, seed, steps / 100)
        for changes in VARIANTS.values()
        for seed in scale.seeds_or(5, 1)
    ]
    made += [
        Cell("training", {**where, "steps": steps, "rows": rows, "attack": attack}, seed, steps / 100)
        for where in [_where(name) for name in (*CONCATENATED, *LEVELS)][: 1 if scale.quick else None]
        for seed in trained
    ]
    games = scale.pick(20, 4)
    grid = "16x16x20" if scale.quick else "64x64x50"
    made += [
        Cell("strategic", {"strategy": s, "clients": n, "games": games, "grid": grid}, seed, n / 100)
        for s in STRATEGIES
        for n in ((30,) if scale.quick else (30, 300))
        for seed in scale.seeds_or(5, 2)
    ]
    return [*made, *_reseeded_cells(scale), *_literal_cells(scale), *_floor_cells(scale)]


def _reseeded_cells(scale: Scale) -> list[Cell]:
    """Every network that ships, its recipe with three seeds; seed 0 is what ships."""
    clients, markets = (10, 1) if scale.quick else (100, 3)
    config = {"scenario": "uniform", "clients": clients, "budget": clients // 2, "markets": markets}
    config |= {"attack": "training" if scale.quick else "quick", "steps": 5 if scale.quick else None}
    seeds = scale.seeds_or(3, 2)
    networks = [
        Cell("reseeded", {"mechanism": name, **config}, seed, 10.0)
        for seed in seeds
        for name in (NETWORKS[:1] if scale.quick else NETWORKS)
    ]
    menu = {**config, "mechanism": "mfg-menunet", "markets": scale.pick(200, 10)}
    del menu["attack"]
    return networks + [
        Cell("reseeded-menu", {**menu, "objective": goal, "heterogeneity": h}, seed)
        for goal, h in MENU_GOALS.items()
        for seed in seeds
    ]


def _small(network_of: str, changes: dict[str, object]) -> dict[str, object]:
    return {"changes": changes, "network_of": network_of, "clients": 10}


def _literal_cells(scale: Scale) -> list[Cell]:
    """Those cells of RQ1 and RQ3 that set a rule beside its literal form."""
    pairs = {*LITERAL, *(name.partition(":")[0] for name in LITERAL)}
    attacked = [c for c in rq1.cells(scale) if c.config["clients"] == 10 and c.config["scenario"] == "uniform"]
    cleared = [
        c
        for c in rq3.cells(scale)
        if c.kind == "efficiency"
        and (c.config["scenario"], c.config["clients"], c.config["budget"]) == ("uniform", 100, 50)
    ]
    return [c for c in (*attacked, *cleared) if c.config["mechanism"] in pairs]


def _floor_cells(scale: Scale) -> list[Cell]:
    return [
        c
        for c in fairness.cells(scale)
        if c.config["mechanism"] == "mfg-menunet" and c.config["scenario"] == "uniform"
    ]


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    steps = next((r.cell.config["steps"] for r in results.all("training")), 0)
    blocks: list[Block] = [
        prose("ablations-set-up", answer=_learned(results).markdown, steps=steps),
        Figure("ablations-training", _CAPTION, lambda: _draw(results)),
        _training_table(results),
        Text("## The shipped recipes with other seeds"),
        prose("ablations-reseeded", goals=MENU_GOALS),
        _reseeded_table(results),
        Text("## Paper-literal against the default"),
        _literal_table(results),
        Text("## Clients that look ahead"),
        prose("ablations-strategic"),
        _strategic_table(results),
        *failure_text(results),
    ]
    return ResultPage("ablations", TITLE, blocks)


_CAPTION = "Short trainings: regret found against ε bought; large: mean over seeds, small: each seed."


def _variant(results: Results, name: str, figure: str) -> Measured | None:
    return results.measured(figure, "training", **_where(name))


def _where(name: str) -> dict[str, object]:
    if name in CONCATENATED:
        return _small("regretnet", CONCATENATED[name])
    if name in LEVELS:
        return _small("mfg-regretnet:literal", LEVELS[name])
    return {"changes": VARIANTS[name], "network_of": None}


def _seeds_of(results: Results, name: str, figure: str) -> dict[int, float]:
    return results.by_seed(figure, "training", **_where(name))


def _reference(name: str) -> str:
    """The training of the same market that a variant is compared with: the first of its group."""
    return next(iter(next(group for group in (VARIANTS, CONCATENATED, LEVELS) if name in group)))


def _against(results: Results, name: str, figure: str) -> PairedComparison | None:
    """A variant against the first of its group, seed by seed."""
    return compare(_seeds_of(results, name, figure), _seeds_of(results, _reference(name), figure))


def _training_table(results: Results) -> Table:
    rows = []
    for name in (*VARIANTS, *CONCATENATED, *LEVELS):
        texts = []
        for figure, spec in (("regret", ".2%"), ("fluid_ratio", ".3f")):
            found, gap = _variant(results, name, figure), _against(results, name, figure)
            texts.append(results.absent("training", **_where(name)) if found is None else found.text(spec))
            if name == _reference(name):
                texts.append("the reference")
            else:
                texts.append(NOT_COMPUTED if gap is None else gap.entry(f"+{spec}"))
        rows.append([name, *texts, str(len(_seeds_of(results, name, "regret")))])
    beside = "against the reference [95 %]"
    columns = ("training", "regret / mean payment", beside, "ε bought / fluid bound", beside, "seeds")
    caption = (
        "Uniform, N = 100, B = 50; concatenated and paper-literal: N = 10, B = 5, against the first of their kind; "
        f"mean ± std over seeds, {DECIDED}"
    )
    return Table("ablations-training", caption, columns, rows)


def _reseeded_table(results: Results) -> Table:
    rows = []
    for name in NETWORKS:
        for figure, spec in (("regret", ".2%"), ("fluid_ratio", ".3f")):
            found = results.by_seed(figure, "reseeded", mechanism=name)
            absent = results.absent("reseeded", mechanism=name)
            each = [format(found[seed], spec) if seed in found else absent for seed in range(3)]
            spread = Measured.of(found.values()).text(spec) if len(found) > 1 else absent
            rows.append([name, _RESEEDED[figure], *each, spread])
    for goal in MENU_GOALS:
        found = results.by_seed("error_ratio", "reseeded-menu", objective=goal)
        absent = results.absent("reseeded-menu", objective=goal)
        each = [f"{found[seed]:.4f}" if seed in found else absent for seed in range(3)]
        spread = Measured.of(found.values()).text(".4f") if len(found) > 1 else absent
        rows.append(["mfg-menunet", f"{goal} / that of a posted price", *each, spread])
    columns = ("network", "figure", "seed 0 (ships)", "seed 1", "seed 2", "mean ± std over trainings")
    return Table(
        "ablations-reseeded", "Uniform, N = 100, B = 50; three markets attacked, 200 for menus", columns, rows
    )


_RESEEDED = {"regret": "gain from misreports / mean payment", "fluid_ratio": "ε bought / fluid bound"}


def _literal_table(results: Results) -> Table:
    rows = []
    for literal in LITERAL:
        for rule in (literal.partition(":")[0], literal):
            bought = results.measured("fluid_ratio", "efficiency", mechanism=rule)
            over = results.measured("over_budget", "efficiency", mechanism=rule)
            short = results.measured("underpaid", "efficiency", mechanism=rule)
            regret = results.measured("mean", "regret", mechanism=rule)
            specs = ((bought, ".3f"), (over, ".1%"), (short, ".1%"), (regret, ".2%"))
            kinds = ("efficiency", "efficiency", "efficiency", "regret")
            absent = [results.absent(kind, mechanism=rule) for kind in kinds]
            texts = [a if m is None else m.text(spec) for (m, spec), a in zip(specs, absent, strict=True)]
            rows.append([rule, *texts])
    gain = "mean gain from misreports / mean payment"
    columns = ("rule", "ε bought / fluid bound", "over budget", "underpaid", gain)
    seeds = f"{results.over_seeds('efficiency')}; misreports: {results.over_seeds('regret')}"
    caption = f"Uniform, N = 100, B = 50; misreports in the last column: N = 10, B = 5. {seeds}"
    return Table("ablations-literal", caption, columns, rows)


def _strategic_table(results: Results) -> Table:
    rows = []
    for n in sorted({r.cell.config["clients"] for r in results.all("strategic")}):
        for strategy in STRATEGIES:
            figures = [
                results.measured(name, "strategic", strategy=strategy, clients=n)
                for name in ("utility", "epsilon", "pay", "unit_price")
            ]
            absent = results.absent("strategic", strategy=strategy, clients=n)
            rows.append([str(n), strategy, *(absent if m is None else m.text(".4f") for m in figures)])
    columns = (
        "N",
        "all clients report",
        "surplus per client",
        "ε sold per client",
        "paid per client",
        "price per ε",
    )
    caption = f"Twelve rounds, mean-field menu; {results.over_seeds('strategic')}"
    return Table("ablations-strategic", caption, columns, rows)


def _learned(results: Results) -> Text:
    largest = max((r.cell.config["clients"] for r in results.all("strategic")), default=0)
    return prose(
        "ablations-learned",
        clients=largest,
        utility=_ahead(results, "utility", largest),
        epsilon=_ahead(results, "epsilon", largest),
        open=[name for name in VARIANTS if _open(results, name)],
        seeds=len(_seeds_of(results, "default", "regret")),
        equation=_pair(results, "ζ = 0.5"),
        frozen=_pair(results, "ζ = 0.5, critic frozen after 100 steps"),
        strict=_pair(results, "a tenth of the regret budget"),
        one_level=_pair(results, "paper-literal, m = 1 level"),
        more_levels=_pair(results, "paper-literal, m = 4 levels"),
    )


def _pair(results: Results, name: str) -> tuple[str, str] | None:
    regret, ratio = _variant(results, name, "regret"), _variant(results, name, "fluid_ratio")
    return None if regret is None or ratio is None else (regret.text(".2%"), ratio.text(".3f"))


def _ahead(results: Results, figure: str, clients: int) -> str | None:
    """Equilibrium against truthful, seed by seed: both play in the same drawn markets."""
    now, ahead = (results.by_seed(figure, "strategic", strategy=s, clients=clients) for s in STRATEGIES)
    found = compare(ahead, now)
    return None if found is None else found.words("+.4f")


def _open(results: Results, name: str) -> bool:
    """Whether the seeds tell a variant from the default in neither figure."""
    gaps = [_against(results, name, figure) for figure in ("regret", "fluid_ratio")]
    return name != "default" and all(gap is not None and gap.verdict in ("open", "the same") for gap in gaps)


def _draw(results: Results) -> Drawing:
    """All variants on the left, those that buy nearly the bound on the right."""
    drawing = new_figure(11.0, 4.4)
    panels = drawing.subplots(1, 2)
    seen = []
    for name, shade, marker in zip(VARIANTS, _SHADES, "osD<vPX*", strict=True):
        regret = results.values("regret", "training", **_where(name))
        ratio = results.values("fluid_ratio", "training", **_where(name))
        if not regret:
            continue
        means = sum(regret) / len(regret), sum(ratio) / len(ratio)
        seen += [(means[0], means[1]), *zip(regret, ratio, strict=True)]
        for axes in panels:
            axes.plot(regret, ratio, marker, color=shade, ms=4, alpha=0.5, ls="none")
            axes.plot(*means, marker, color=shade, ms=9, label=name, ls="none", markeredgecolor="white")
    for axes in panels:
        axes.axhline(1.0, color="#555555", ls="--", lw=1)
        axes.set(xscale="log", xlabel="mean gain from misreports / mean payment")
        axes.grid(alpha=0.25)
    near = [point for point in seen if point[1] > _NEAR]
    if near:
        panels[1].set_xlim(0.6 * min(x for x, _ in near), 1.6 * max(x for x, _ in near))
        panels[1].set_ylim(min(y for _, y in near) - 0.005, max(y for _, y in near) + 0.005)
    panels[0].set(ylabel="ε bought / fluid bound", title="all")
    panels[1].set_title("near the bound")
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return drawing


_NEAR = 0.95
_SHADES = (
    colour("mfg-regretnet"),
    "#D55E00",
    "#009E73",
    "#8C6D46",
    "#882255",
    "#56B4E9",
    "#000000",
    "#E69F00",
)
