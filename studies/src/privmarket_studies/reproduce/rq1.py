"""RQ1: what does a misreport gain? Regret under attacks of rising strength, IR, truthfulness in ε."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import colour, line_look, new_figure
from privmarket_studies.reproduce.attack_strengths import STRENGTHS
from privmarket_studies.reproduce.cells import Cell, Result, Scale
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
from privmarket_studies.reproduce.markets import EXACT, LITERAL, RULES, UNTRAINED
from privmarket_studies.reproduce.statistics import Measured, compare, interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Setting = tuple[int, str, int]  # clients, distribution, budget
DISTRIBUTIONS = ("uniform", "bimodal", "lognormal")
_SLOW = "mfg-regretnet:literal"  # has no quick answer about deviations: a whole auction each
_STRONGEST = ("csra", "proportional-share", "mean-field-menu", "mfg-regretnet")
TRAINED = "mfg-regretnet"
# Markets per seed where one of them has too few clients for a mean.
_MARKETS = {10: 10}
_LARGE_MARKETS = 24
_FLOOR = 1e-6
NOT_LISTED = "left out"


def settings(scale: Scale) -> list[tuple[str, int, int]]:
    """(distribution, clients, budget): all three at one size, and Uniform at N = 10 with as much money each."""
    if scale.quick:
        return [(distribution, 10, 5) for distribution in DISTRIBUTIONS]
    return [("uniform", 100, 50), ("uniform", 10, 5), ("bimodal", 100, 50), ("lognormal", 100, 100)]


def cells(scale: Scale) -> list[Cell]:
    """Every rule in every setting; literal forms for Uniform."""
    attack, parts = ("training", "quick") if scale.quick else ("strong", "strong")
    made = [
        _cell(rule, *setting, attack, parts, seed, _markets_of(scale, rule, setting[1]))
        for setting in settings(scale)
        for rule in (*RULES, UNTRAINED, *LITERAL)
        if rule in RULES or (setting[0] == "uniform" and not (rule == _SLOW and setting[1] > 10))
        for seed in _seeds(scale, setting[0])
    ]
    distribution, clients, budget = settings(scale)[0]
    where = {"scenario": distribution, "clients": clients, "budget": budget}
    made += [
        Cell("over-offer", {"mechanism": rule, **where, "attack": "quick" if scale.quick else "strong"}, seed)
        for rule in (*RULES, UNTRAINED)
        for seed in scale.seeds_or(5, 1)
    ]
    # What the network buys before and after training; those of the trained one at N = 100 are cells of RQ3, too.
    made += [
        Cell(
            "efficiency",
            {"mechanism": rule, **_where(many, distribution, money), "markets": scale.pick(1000, 40)},
            seed,
        )
        for distribution, many, money in settings(scale)
        if distribution == "uniform"
        for rule in (TRAINED, UNTRAINED)
        for seed in scale.seeds_or(5, 2)
    ]
    made += [
        Cell(
            "market-regret",
            {
                "mechanism": TRAINED,
                **_where(clients, distribution, budget),
                "attack": "quick" if scale.quick else "strong",
            },
            seed,
            cost=clients / 100,
        )
        for distribution, clients, budget in large(scale)
        for seed in range(scale.pick(_LARGE_MARKETS, 4))
    ]
    made += [
        Cell("ascent", {"mechanism": rule, **where, "start": "uniform"}, seed, clients / 1000)
        for rule in (*RULES, *LITERAL)
        for seed in scale.seeds_or(5, 1)
    ]
    if not scale.quick:
        made += [_cell(_SLOW, "uniform", 100, 50, "quick", "quick", seed) for seed in scale.seeds_or(5, 1)]
        made += [_cell(rule, "uniform", 100, 50, "strongest", None, 0) for rule in _STRONGEST]
    return made


def large(scale: Scale) -> list[tuple[str, int, int]]:
    """(distribution, clients, budget) of the markets that are attacked one by one, binding ones and others."""
    if scale.quick:
        return [("uniform", 10, 5)]
    return [("uniform", 1000, 500), ("bimodal", 1000, 500), ("lognormal", 1000, 1000)]


def _markets_of(scale: Scale, rule: str, clients: int) -> int:
    """How many markets each seed attacks; literal forms, which are slow and far from truthful, always one."""
    return 1 if scale.quick or rule in LITERAL else _MARKETS.get(clients, 1)


def _seeds(scale: Scale, distribution: str) -> range:
    """The seeds of a distribution: more for Uniform, which the paper's tables are about."""
    return scale.seeds_or(5, 1) if distribution == "uniform" else scale.seeds_or(3, 1)


def _cell(
    rule: str,
    distribution: str,
    clients: int,
    budget: int,
    attack: str,
    parts: str | None,
    seed: int,
    markets: int = 1,
) -> Cell:
    config: dict[str, object] = {
        "mechanism": rule,
        "scenario": distribution,
        "clients": clients,
        "budget": budget,
        "attack": attack,
        "parts": parts,
    }
    if markets > 1:
        config["markets"] = markets
    return Cell("regret", config, seed, cost=clients / 100 * (4 if attack == "strongest" else 1))


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    main = sorted(
        {
            (r.cell.config["clients"], r.cell.config["scenario"], r.cell.config["budget"])
            for r in results.records
            if r.cell.kind == "regret" and r.cell.config["parts"] is not None
        },
        key=lambda s: (-s[0], DISTRIBUTIONS.index(s[1])),
    )
    if not main:
        return ResultPage("rq1", TITLE, [Text("Nothing was computed."), *failure_text(results)])
    first = _where(*main[0])
    attacked = results.all("regret", **first)
    attack = _attack(results, main[0])
    levels = [r.result["levels"] for r in attacked if r.result]
    tried = max(level[attack]["reports"] for level in levels if attack in level)
    blocks: list[Block] = [
        prose("rq1-set-up", answer=_learned(results, main[0]).markdown, attack=attack, tried=f"{tried:,}"),
        Figure("rq1-mean", _MEAN, lambda: _bars(results, main)),
        Figure("rq1-clients", _CLIENTS, lambda: _boxes(results, main)),
        *(_table(results, *setting) for setting in main),
        *_over_offers(results, main[0]),
        *_training(results, main),
        *_market_by_market(results),
        Text("## How the figure grows with the attack"),
        Figure("rq1-strength", _STRENGTH, lambda: _growth(results, main[0])),
        _growth_table(results, main[0]),
        *failure_text(results),
    ]
    return ResultPage("rq1", TITLE, blocks)


TITLE = "RQ1: what does a misreport gain?"
_MEAN = "The paper's Fig. 4 (a): mean gain from the best misreport found, mean ± std over seeds."
_CLIENTS = (
    "The paper's Fig. 4 (b): gains client by client, all seeds; box: quartiles, whiskers: 5th and 95th percentile; "
    "on "
    f"top: share of clients that gain; 0 is drawn at {_FLOOR:g}, a median of 0 as a diamond."
)
_STRENGTH = (
    "Mean gain found against misreports tried per client, mean ± std over seeds. Each level also tries what the "
    "weaker ones try. Dashed: the one seed that also met the strongest attack. Rules whose line runs beside "
    "another "
    "are in the table only."
)


def _where(clients: int, distribution: str, budget: int) -> dict[str, object]:
    return {"clients": clients, "scenario": distribution, "budget": budget}


def _attack(results: Results, setting: Setting) -> str:
    """The attack of the main tables: the one that most rules met."""
    attacked = results.all("regret", **_where(*setting))
    met = Counter(str(r.cell.config["attack"]) for r in attacked if r.cell.config["parts"])
    return met.most_common(1)[0][0] if met else "paper"


def _found(results: Results, rule: str, setting: Setting) -> list[Result]:
    """Results of a rule that also searched misreports of v and of ε alone."""
    records = results.all("regret", mechanism=rule, **_where(*setting))
    return [r.result for r in records if r.result and r.cell.config["parts"] is not None]


def _main(results: Results, name: str, rule: str, setting: Setting) -> Measured | None:
    found = _found(results, rule, setting)
    return Measured.of(result[name] for result in found) if found else None


def _seeds_of(results: Results, rule: str, setting: Setting) -> dict[int, float]:
    records = results.all("regret", mechanism=rule, **_where(*setting))
    return {r.cell.seed: r.result["mean"] for r in records if r.result and r.cell.config["parts"] is not None}


def _table(results: Results, clients: int, distribution: str, budget: int) -> Table:
    rows = []
    setting = (clients, distribution, budget)
    for rule in (*RULES, UNTRAINED, *LITERAL):
        mean = _main(results, "mean", rule, setting)
        if mean is None:
            reason = results.absent("regret", mechanism=rule, **_where(*setting))
            if reason != NOT_COMPUTED or rule in RULES:
                rows.append([rule, *[reason] * 6])
            continue
        gains = ("mean_in_valuation", "mean_in_epsilon", "maximum")
        texts = [_share(m) for m in (mean, *(_main(results, name, rule, setting) for name in gains))]
        counts = [_main(results, name, rule, setting) for name in ("gainers", "underpaid")]
        shares = [NOT_COMPUTED if m is None else m.text(".1%") for m in counts]
        rows.append([rule, *texts, *shares])
    shown = ("mean gain", "misreports of v alone", "of ε alone (withheld)", "largest gain")
    columns = ("mechanism", *shown, "clients that gain", "underpaid")
    attack = _attack(results, setting)
    seeds = results.over_seeds("regret", **_where(*setting), attack=attack)
    markets = _markets(results, setting)
    each = "" if markets == 1 else f" of {markets} markets each (literal forms: one)"
    return Table(
        f"rq1-{distribution}-n{clients}",
        f"{distribution}, N = {clients}, B = {budget}; shares of the mean payment, {seeds}{each}"
        f"{_weaker(results, setting)}",
        columns,
        rows,
    )


def _markets(results: Results, setting: Setting) -> int:
    """How many markets of a setting each seed attacks."""
    found = results.all("regret", **_where(*setting))
    return max((int(r.cell.config.get("markets", 1)) for r in found), default=1)


def _over_offers(results: Results, setting: Setting) -> list[Block]:
    """Both directions in ε side by side: less than a client has, which is promised, and more, which is not."""
    rows = []
    for rule in (*RULES, UNTRAINED):
        found = {
            name: results.measured(name, "over-offer", mechanism=rule, **_where(*setting))
            for name in ("mean_alone", "mean_with_valuation", "maximum_with_valuation")
        }
        gainers = results.measured("gainers_with_valuation", "over-offer", mechanism=rule, **_where(*setting))
        if gainers is None:
            reason = results.absent("over-offer", mechanism=rule, **_where(*setting))
            if reason != NOT_COMPUTED:
                rows.append([rule, *[reason] * 6])
            continue
        rows.append(
            [
                rule,
                *(_share(_main(results, name, rule, setting)) for name in ("mean_in_epsilon", "mean")),
                *(_share(value) for value in found.values()),
                gainers.text(".1%"),
            ]
        )
    if not rows:
        return []
    clients, distribution, budget = setting
    seeds = results.over_seeds("over-offer", **_where(*setting))
    columns = (
        "mechanism",
        "less ε alone",
        "v and less ε",
        "more ε alone",
        "v and more ε",
        "largest gain with more ε",
        "clients that gain with more ε",
    )
    caption = (
        f"{distribution}, N = {clients}, B = {budget}: both directions in ε, shares of the mean payment, {seeds}"
    )
    return [prose("rq1-over-offers"), Table("rq1-over-offers", caption, columns, rows)]


def _training(results: Results, main: list[Setting]) -> list[Block]:
    """The network before and after its training, in every setting in which both were attacked."""
    rows = []
    for setting in main:
        for rule in (UNTRAINED, TRAINED):
            mean = _main(results, "mean", rule, setting)
            if mean is None or _main(results, "mean", UNTRAINED, setting) is None:
                continue
            bought = results.measured("fluid_ratio", "efficiency", mechanism=rule, **_where(*setting))
            more = results.measured("mean_with_valuation", "over-offer", mechanism=rule, **_where(*setting))
            clients, distribution, budget = setting
            rows.append(
                [
                    f"{distribution}, N = {clients}, B = {budget}",
                    "after training" if rule == TRAINED else "before",
                    NOT_COMPUTED if bought is None else bought.text(".3f"),
                    _share(mean),
                    "not tried" if more is None else _share(more),
                ]
            )
    if not rows:
        return []
    columns = ("market", "network", "ε bought / fluid bound", "v and less ε", "v and more ε")
    caption = f"{TRAINED} before and after its training; gains over the mean payment, mean ± std over seeds"
    return [prose("rq1-training"), Table("rq1-training", caption, columns, rows)]


def binds(spend_over_budget: float) -> bool:
    """Whether a market spends its budget, but for a ten-thousandth that single precision may lose."""
    return spend_over_budget > 1 - 1e-4


def _market_by_market(results: Results) -> list[Block]:
    """Markets attacked one by one, those in which the budget binds apart from the others."""
    found = results.all("market-regret")
    rows = []
    kinds = {(r.cell.config["clients"], r.cell.config["scenario"], r.cell.config["budget"]) for r in found}
    for clients, distribution, budget in sorted(kinds, key=lambda s: (s[0], DISTRIBUTIONS.index(s[1]))):
        mine = [
            r.result
            for r in found
            if r.cell.config["scenario"] == distribution and r.cell.config["clients"] == clients
        ]
        markets = [result for result in mine if result is not None]
        binding = [m["mean"] for m in markets if binds(m["spend_over_budget"])]
        others = [m["mean"] for m in markets if not binds(m["spend_over_budget"])]
        every = [m["mean"] for m in markets]
        rows.append(
            [
                f"{distribution}, N = {clients:,}, B = {budget:,}",
                *(_with_interval(means) for means in (every, binding, others)),
                f"{min(every):.3%} to {max(every):.3%}",
                f"{max(m['maximum'] for m in markets):.1%}",
            ]
        )
    if not rows:
        return []
    columns = (
        "markets",
        "all: mean gain [95 %]",
        "the budget binds",
        "it does not bind",
        "range over markets",
        "largest gain of a client",
    )
    attacks = ", ".join(sorted({f"`{r.cell.config['attack']}`" for r in found}))
    caption = f"{TRAINED}, all clients of every market, {attacks} attack alone, shares of the mean payment"
    return [prose("rq1-markets"), Table("rq1-markets", caption, columns, rows)]


def _with_interval(means: list[float]) -> str:
    """The mean over markets, its interval, and how many markets there are."""
    count = f"{len(means)} market{'' if len(means) == 1 else 's'}"
    if len(means) < 2:
        return f"{means[0]:.3%} ({count})" if means else "no such market"
    measured = Measured.of(means)
    low, high = interval(measured)
    return f"{measured.mean:.3%} [{low:.3%}, {high:.3%}] ({count})"


def _weaker(results: Results, setting: Setting) -> str:
    """Names rules that are too slow for the table's attack, with the one that they met."""
    attack, said = _attack(results, setting), ""
    for rule in (*RULES, *LITERAL):
        mine = results.all("regret", mechanism=rule, **_where(*setting))
        own = {r.cell.config["attack"] for r in mine if r.cell.config["parts"] is not None} - {attack}
        said += f"; {rule}: {', '.join(sorted(own))} attack only" if own else ""
    return said


def _share(value: Measured | None) -> str:
    if value is None:
        return NOT_COMPUTED
    return "0" if value.mean == 0 else value.text(".3%" if value.mean < 0.1 else ".1%")


def _growth_rows(results: Results, setting: Setting) -> dict[str, dict[str, tuple[float, Measured]]]:
    """rule → level → (reports tried, mean share over seeds), from the cells that went furthest."""
    rows: dict[str, dict[str, tuple[float, Measured]]] = {}
    for rule in (*RULES, *LITERAL):
        records = results.all("regret", mechanism=rule, **_where(*setting))
        for level in STRENGTHS:
            # By seed: one that was attacked twice counts once.
            mine = {
                r.cell.seed: r.result["levels"][level] for r in records if r.result and level in r.result["levels"]
            }
            if mine:
                means = Measured.of(entry["mean"] for entry in mine.values())
                rows.setdefault(rule, {})[level] = (next(iter(mine.values()))["reports"], means)
    return rows


def _growth_table(results: Results, setting: Setting) -> Table:
    rows = _growth_rows(results, setting)
    levels = [name for name in STRENGTHS if any(name in row for row in rows.values())]
    tried = [next(row[level][0] for row in rows.values() if level in row) for level in levels]
    names = {"paper": "ascent from the truth"}
    counted = zip(levels, tried, strict=True)
    head = [f"{names.get(level, level)} ({count:,.0f} misreports)" for level, count in counted]
    even = {rule: results.measured("mean", "ascent", mechanism=rule, **_where(*setting)) for rule in rows}
    body = []
    for rule in (*RULES, *LITERAL):
        absent = results.absent("regret", mechanism=rule, **_where(*setting))
        if rule in rows or absent != NOT_COMPUTED:
            row = rows.get(rule, {})
            left = {"strongest": NOT_LISTED} if rule not in _STRONGEST else {}
            if rule == _SLOW:
                left = dict.fromkeys(levels, NOT_LISTED)
            found = [_share(row[level][1]) if level in row else left.get(level, absent) for level in levels]
            body.append([rule, absent if even.get(rule) is None else _share(even[rule]), *found])
    clients, distribution, budget = setting
    seeds = [max(row[level][1].seeds for row in rows.values() if level in row) for level in levels]
    caption = (
        f"{distribution}, N = {clients}, B = {budget}: mean gain over mean payment, by attack ({NOT_LISTED}: not "
        "attacked at "
        "that level); seeds: "
        f"{', '.join(str(s) for s in (max((m.seeds for m in even.values() if m), default=0), *seeds))}"
    )
    return Table("rq1-strength", caption, ["mechanism", "ascent from uniform starts (125 misreports)", *head], body)


def _learned(results: Results, setting: Setting) -> Text:
    clients, distribution, budget = setting
    means = {rule: m for rule in RULES if (m := _main(results, "mean", rule, setting)) is not None}
    in_valuation = {rule: _main(results, "mean_in_valuation", rule, setting) for rule in means}
    only_epsilon = [r for r, m in means.items() if m.mean > 0 and (v := in_valuation[r]) and v.mean == 0]
    net = means.get("mfg-regretnet")
    mine = _seeds_of(results, "mfg-regretnet", setting)
    others = [
        f"against `{rule}` ({_share(means[rule])}) {found.text('+.3%')}"
        for rule in ("regretnet", "dm-regretnet", "regretformer")
        if (found := compare(mine, _seeds_of(results, rule, setting))) is not None
    ]
    return prose(
        "rq1-learned",
        clients=clients,
        distribution=distribution,
        budget=budget,
        exact=_names([rule for rule, m in means.items() if m.mean == 0]),
        only_epsilon=_names(only_epsilon),
        over_offers=_over_offer_words(results, setting),
        net=_share(net),
        trained="; ".join(others),
        growth=_growth_words(_growth_rows(results, setting).get("mfg-regretnet", {})),
        even=None
        if (even := results.measured("mean", "ascent", mechanism="mfg-regretnet", **_where(*setting))) is None
        else _share(even),
    )


def _over_offer_words(results: Results, setting: Setting) -> str:
    """The rules that promise something in ε, exactly or nearly, and what the other direction gains against each."""
    said = []
    for rule in (*EXACT, TRAINED):
        more = results.measured("mean_with_valuation", "over-offer", mechanism=rule, **_where(*setting))
        less = _main(results, "mean", rule, setting)
        if more is not None and less is not None and more.mean > 0:
            said.append(f"{_share(more)} against `{rule}` ({_share(less)} with smaller offers)")
    return "; ".join(said)


def _growth_words(levels: dict[str, tuple[float, Measured]]) -> dict[str, str] | None:
    if len(levels) < 2:
        return None
    # The strongest level has one seed; figures over different seeds are not compared.
    seeds = max(measured.seeds for _, measured in levels.values())
    whole = [(name, measured) for name, (_, measured) in levels.items() if measured.seeds == seeds]
    (_, weak), (last, strong) = whole[0], whole[-1]
    factor = f"a factor of {strong.mean / weak.mean:.1f}" if weak.mean > 0 else "nothing"
    return {"weak": _share(weak), "strong": _share(strong), "level": last, "factor": factor}


def _names(rules: list[str]) -> str:
    return ", ".join(f"`{rule}`" for rule in rules)


def _bars(results: Results, main: list[Setting]) -> Drawing:
    drawing = new_figure(11.0, 4.6)
    shown = main[:3]
    panels = drawing.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    names = [rule for rule in RULES if _main(results, "mean", rule, main[0]) is not None][::-1]
    for axes, setting in zip(panels, shown, strict=True):
        for row, rule in enumerate(names):
            mean = _main(results, "mean", rule, setting)
            if mean is None:
                text = results.absent("regret", mechanism=rule, **_where(*setting))
                axes.text(_FLOOR * 1.3, row, text, va="center", fontsize=8)
            elif mean.mean < _FLOOR:
                axes.text(_FLOOR * 1.3, row, "0" if mean.mean == 0 else "< 1e-6", va="center", fontsize=8)
            else:
                low = min(mean.std, mean.mean - _FLOOR)
                axes.barh(row, mean.mean - _FLOOR, left=_FLOOR, color=colour(rule), height=0.66, alpha=0.9)
                axes.errorbar(mean.mean, row, xerr=[[low], [mean.std]], color="#222222", lw=1, capsize=2)
        clients, distribution, budget = setting
        axes.set(xscale="log", xlim=(_FLOOR, 100), title=f"{distribution}, N = {clients}, B = {budget}")
        axes.set(xlabel="mean gain / mean payment")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.grid(axis="x", alpha=0.25)
    return drawing


def _boxes(results: Results, main: list[Setting]) -> Drawing:
    """Draws the gains from misreports as boxes, one panel per distribution."""
    shown = main[:3]
    drawing = new_figure(9.0, 1.2 + 2.9 * len(shown))
    names = [rule for rule in RULES if _main(results, "mean", rule, main[0]) is not None]
    panels = drawing.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, setting in zip(panels, shown, strict=True):
        for place, rule in enumerate(names):
            found = _found(results, rule, setting)
            if found:
                _client_box(axes, place, rule, np.concatenate([result["gains"] for result in found]))
            else:
                text = results.absent("regret", mechanism=rule, **_where(*setting))
                axes.text(place, 200, text, ha="center", fontsize=7.5)
        axes.set(yscale="log", ylim=(_FLOOR * 0.5, 1500), ylabel="gain / mean payment")
        axes.set_title(f"{setting[1]}, N = {setting[0]}, B = {setting[2]}", fontsize=10)
        axes.grid(axis="y", alpha=0.25)
    panels[-1].set_xticks(range(len(names)), names, rotation=30, ha="right")
    return drawing


def _client_box(axes: Axes, place: int, rule: str, gains: np.ndarray) -> None:
    if gains.any():
        _one_box(axes, place, np.maximum(gains, _FLOOR), colour(rule))
    if np.median(gains) < _FLOOR:
        axes.plot(place, _FLOOR, marker="D", ms=6, color=colour(rule))
    axes.text(place, 250, f"{np.mean(gains > 0):.0%}", ha="center", fontsize=7.5)


def _one_box(axes: Axes, place: int, gains: np.ndarray, shade: str) -> None:
    box = axes.boxplot(
        gains,
        positions=[place],
        widths=0.6,
        whis=(5, 95),
        patch_artist=True,
        manage_ticks=False,
        boxprops={"lw": 2.5},
        medianprops={"color": "white", "lw": 1.2},
        flierprops={"marker": ".", "ms": 3, "markerfacecolor": shade, "markeredgecolor": shade, "alpha": 0.5},
    )
    for patch in box["boxes"]:
        patch.set(facecolor=shade, edgecolor=shade)
    for line in (*box["whiskers"], *box["caps"]):
        line.set_color(shade)


_ALIKE = ("vcg", "csra", "mfg-pricing:literal")


def _growth(results: Results, setting: Setting) -> Drawing:
    drawing = new_figure(8.0, 4.6)
    axes = drawing.subplots()
    zero = []
    for rule, row in _growth_rows(results, setting).items():
        seeds = max(m.seeds for _, m in row.values())
        points = [(count, m) for count, m in row.values() if m.mean > 0 and m.seeds == seeds]
        if not points:
            zero.append(rule)
        if not points or rule in _ALIKE:
            continue
        axes.errorbar(
            [count for count, _ in points],
            [m.mean for _, m in points],
            yerr=[[min(m.std, 0.9 * m.mean) for _, m in points], [m.std for _, m in points]],
            lw=1.3,
            label=rule,
            **line_look(rule),
        )
        for alone in results.all("regret", mechanism=rule, attack="strongest", **_where(*setting)):
            last = [alone.result["levels"][name] for name in ("strong", "strongest")] if alone.result else []
            look = {**line_look(rule), "ls": "--"}
            axes.plot([e["reports"] for e in last], [e["mean"] for e in last], lw=1.0, alpha=0.7, **look)
    axes.set(xscale="log", yscale="log", xlabel="misreports tried per client", ylabel="mean gain / mean payment")
    axes.xaxis.set_minor_formatter("")
    ticks = [t for t in (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000) if _inside(t, axes.get_xlim())]
    axes.set_xticks(ticks, [f"{t:,}" for t in ticks])
    note = f"nothing found at any strength:\n{', '.join(zero)}" if zero else ""
    axes.set_title(f"{setting[1]}, N = {setting[0]}, B = {setting[2]}", fontsize=10)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.text(0.01, 1.08, note, transform=axes.transAxes, fontsize=7.5, color="#555555")
    axes.grid(alpha=0.25, which="both")
    return drawing


def _inside(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]
