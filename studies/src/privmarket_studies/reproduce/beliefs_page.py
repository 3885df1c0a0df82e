"""Wrong beliefs: rules told or trained on one distribution meet another, a drifting one, or few past bids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privmarket._figures import line_look, new_figure
from privmarket_studies.reproduce.cache import Record
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
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLE = "Wrong beliefs: who degrades gracefully?"
RULES = (
    "mfg-pricing",
    "mfg-menunet",
    "mean-field-menu",
    "proportional-share",
    "csra",
    "mfg-regretnet",
    "regretnet",
)
BUDGETS = {"uniform": 50, "bimodal": 50, "lognormal": 100}
DRIFTS = (0.5, 0.8, 1.0, 1.25, 2.0)
PAST = (10, 30, 100, 1000)


def cells(scale: Scale) -> list[Cell]:
    """Every pair of distributions, a drift of valuations, few past bids, and networks trained on one of them."""
    markets, seeds = scale.pick(200, 20), scale.seeds_or(5, 1)
    rules = ("mfg-pricing", "mean-field-menu") if scale.quick else RULES
    made = [
        _cell(rule, believed, truth, s, markets)
        for rule in rules
        for believed in BUDGETS
        for truth in BUDGETS
        for s in seeds
    ]
    made += [
        _cell(rule, "uniform", "uniform", s, markets, drift=d) for rule in rules for d in DRIFTS for s in seeds
    ]
    made += [
        _cell(rule, distribution, distribution, s, markets, past=n)
        for rule in (rules[:1] if scale.quick else ("mfg-pricing", "mfg-menunet"))
        for distribution in ("uniform", "lognormal")
        for n in PAST
        for s in seeds
    ]
    steps = scale.pick(300, 8)
    made += [
        Cell(
            "belief-training",
            {"believed": distribution, "steps": steps, "truths": BUDGETS, "clients": 100, "markets": markets},
            seed,
            steps / 100,
        )
        for distribution in (list(BUDGETS)[:1] if scale.quick else BUDGETS)
        for seed in scale.seeds_or(3, 1)
    ]
    return list({cell.slot: cell for cell in made}.values())


def _cell(
    rule: str, believed: str, truth: str, seed: int, markets: int, *, drift: float = 1.0, past: int = 0
) -> Cell:
    config: dict[str, object] = {
        "mechanism": rule,
        "settings": {"objective": "aggregation-error"} if rule == "mfg-menunet" else {},
        "believed": believed,
        "past": past,
        "truth": truth,
        "scale": drift,
        "clients": 100,
        "budget": BUDGETS[truth],
        "markets": markets,
    }
    return Cell("belief", config, seed, 0.05)


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    blocks: list[Block] = [
        prose("beliefs-set-up", answer=_learned(results).markdown),
        Figure("beliefs-drift", _DRIFT, lambda: _draw(results)),
        Text("## Told one distribution, met by another"),
        *(_told_and_true(results, figure) for figure in ("fluid_ratio", "over_budget", "regret")),
        Text("## Valuations that drift away"),
        _drifts(results),
        Text("## Few past bids"),
        _few(results),
        Text("## Networks trained on one distribution"),
        _trained(results),
        *failure_text(results),
    ]
    return ResultPage("beliefs", TITLE, blocks)


_DRIFT = "Uniform, N = 100, B = 50, valuations times a factor that nobody told the rule about; mean over seeds."
_NAMES = {
    "fluid_ratio": ("ε bought over the fluid bound of the true distribution", ".3f"),
    "over_budget": ("share of markets that spend more than the budget", ".1%"),
    "regret": ("mean gain from misreports (training's attack) over the mean payment", ".2%"),
}


def _measured(results: Results, figure: str, rule: str, **where: object) -> Measured | None:
    return results.measured(figure, "belief", mechanism=rule, **{"past": 0, "scale": 1.0, **where})


def _text(results: Results, figure: str, rule: str, **where: object) -> str:
    found = _measured(results, figure, rule, **where)
    if found is None:
        return results.absent("belief", mechanism=rule, **{"past": 0, "scale": 1.0, **where})
    return "0" if found.mean == 0 else found.text(_NAMES[figure][1])


def _told_and_true(results: Results, figure: str) -> Table:
    pairs = [(believed, truth) for truth in BUDGETS for believed in BUDGETS]
    rows = [
        [rule, *(_text(results, figure, rule, believed=believed, truth=truth) for believed, truth in pairs)]
        for rule in RULES
    ]
    columns = ("mechanism", *(f"{truth}, told {believed}" for believed, truth in pairs))
    caption = f"{_NAMES[figure][0]}; N = 100, {results.over_seeds('belief', past=0, scale=1.0)}"
    return Table(f"beliefs-{figure.replace('_', '-')}", caption, columns, rows)


def _drifts(results: Results) -> Table:
    where = {"believed": "uniform", "truth": "uniform"}
    rows = []
    for rule in RULES:
        bought = [_text(results, "fluid_ratio", rule, scale=d, **where) for d in DRIFTS]
        over = [_text(results, "over_budget", rule, scale=d, **where) for d in DRIFTS]
        rows.append([rule, *(a if a == b else f"{a} ({b})" for a, b in zip(bought, over, strict=True))])
    columns = ("mechanism", *(f"valuations × {d:g}" for d in DRIFTS))
    caption = f"ε bought over the true fluid bound (markets over budget); {results.over_seeds('belief', **where)}"
    return Table("beliefs-drift", caption, columns, rows)


def _few(results: Results) -> Table:
    rows = []
    for distribution in ("uniform", "lognormal"):
        for rule in ("mfg-pricing", "mfg-menunet"):
            texts = []
            for n in (*PAST, 0):
                where = {"believed": distribution, "truth": distribution, "past": n}
                bought, over = (_text(results, name, rule, **where) for name in ("fluid_ratio", "over_budget"))
                texts.append(bought if bought == over else f"{bought} ({over})")
            rows.append([distribution, rule, *texts])
    columns = ("distribution", "mechanism", *(f"{n:,} past bids" for n in PAST), "the distribution itself")
    caption = "ε bought over the fluid bound (markets over budget); mean ± std over seeds"
    return Table("beliefs-past", caption, columns, rows)


def _trained(results: Results) -> Table:
    rows = []
    for distribution in BUDGETS:
        found = results.all("belief-training", believed=distribution)
        texts = [
            f"{_over(found, truth, 'fluid_ratio', '.3f')} / {_over(found, truth, 'regret', '.2%')}"
            if found
            else NOT_COMPUTED
            for truth in BUDGETS
        ]
        rows.append([distribution, *texts, str(len(found))])
    columns = ("trained on", *(f"met by {truth}" for truth in BUDGETS), "seeds")
    steps = next((r.cell.config["steps"] for r in results.all("belief-training")), 0)
    shown = "ε bought over the true fluid bound / gain from misreports"
    caption = f"`mfg-regretnet` after {steps} steps on one distribution: {shown}"
    return Table("beliefs-trained", caption, columns, rows)


def _over(records: list[Record], truth: str, figure: str, spec: str) -> str:
    return Measured.of(r.result[truth][figure] for r in records if r.result).text(spec)


def _learned(results: Results) -> Text:
    def told(rule: str, figure: str, believed: str, truth: str) -> str:
        return _text(results, figure, rule, believed=believed, truth=truth)

    def drifted(rule: str, figure: str, factor: float) -> str:
        return _text(results, figure, rule, believed="uniform", truth="uniform", scale=factor)

    return prose("beliefs-learned", told=told, drifted=drifted)


def _draw(results: Results) -> Drawing:
    drawing = new_figure(10.0, 4.2)
    panels = drawing.subplots(1, 2)
    for axes, figure in zip(panels, ("fluid_ratio", "over_budget"), strict=True):
        for rule in ("mfg-pricing", "mean-field-menu", "mfg-regretnet", "proportional-share"):
            where = {"believed": "uniform", "truth": "uniform"}
            points = [(d, m) for d in DRIFTS if (m := _measured(results, figure, rule, scale=d, **where))]
            if points:
                axes.errorbar(
                    [d for d, _ in points],
                    [m.mean for _, m in points],
                    yerr=[m.std for _, m in points],
                    lw=1.3,
                    label=rule,
                    **line_look(rule),
                )
        axes.set(xscale="log", xlabel="true valuations / believed ones")
        axes.set_xticks(DRIFTS, [f"{d:g}" for d in DRIFTS])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("ε bought / fluid bound of the true distribution")
    panels[1].set_ylabel("share of markets over budget")
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return drawing
