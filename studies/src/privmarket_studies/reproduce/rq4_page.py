"""Renders the page of research question 4: accuracy of federated runs with each auction rule."""

from __future__ import annotations

from privmarket_studies.free_baseline import own_records
from privmarket_studies.reproduce import rq4_figures
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
from privmarket_studies.reproduce.paper import printed
from privmarket_studies.reproduce.rq4 import ALPHAS, FEW, ROWS
from privmarket_studies.reproduce.rq4_runs import Runs, partition_name
from privmarket_studies.reproduce.statistics import Measured, PairedComparison, compare

TITLE = "RQ4: which rule buys the better model?"
_SETS = ("mnist", "fashion-mnist", "cifar10")
_PAPER_ROWS = {"vcg": "k-plus-one-price", "mfg-pricing": "mfg-pricing:literal"}


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    runs = Runs(results)
    if runs.main is None:
        return ResultPage("rq4", TITLE, [Text("Nothing was computed."), *failure_text(results)])
    blocks: list[Block] = [
        prose("rq4-set-up", answer=_learned(runs).markdown, main=runs.main, seeds=runs.seeds),
        Figure("rq4-curves", _CURVES, lambda: rq4_figures.curves(runs)),
        _final_table(runs),
        *_same_runs(runs),
        Figure("rq4-final", _FINAL, lambda: rq4_figures.final(runs)),
        Text("## The paper's table beside ours"),
        _paper_table(runs),
        prose("rq4-reasons", literal=runs.literal()),
        Text("## At the same mean ε"),
        prose("rq4-matched", matched=runs.matched_at),
        _matched_table(runs),
        Text("## What a unit of money buys"),
        _money_table(runs),
        Text("## Under a lifetime cap"),
        prose("rq4-wallet"),
        _wallet_table(runs),
        *_other_tables(runs),
        Text("## The Nash gap against N"),
        prose("rq4-nash"),
        Figure("rq4-nash", _NASH, lambda: rq4_figures.nash(results)),
        _nash_table(results),
        *failure_text(results),
    ]
    return ResultPage("rq4", TITLE, blocks)


_CURVES = (
    "Test accuracy against rounds, mean over seeds; bands: one standard deviation; one rule of each kind. The "
    "paper's Fig. 6 (a), (b), whose images are missing from its source."
)
_CIFAR = "CIFAR-10, the paper's Fig. 7 (b): mean over seeds; bands: one standard deviation."
_FINAL = "Final accuracy, mean over the last five rounds; bars: mean ± std over seeds, dots: seeds."
_NASH = (
    "Gain from leaving the solved strategy over the mean payment; bars: standard error. The paper's Figs. 6 and 7 "
    "(c), (d)."
)


def _per_cent(value: Measured | None, absent: str = NOT_COMPUTED) -> str:
    if value is None:
        return absent
    spread = f" ± {100 * value.std:.2f}" if value.seeds > 1 else ""
    return f"{100 * value.mean:.2f}{spread}"


def _final_table(runs: Runs) -> Table:
    rows = []
    for row in runs.rows:
        absent = runs.absent(row)
        accuracies = [_per_cent(runs.measured("accuracy", row, alpha), absent) for alpha in ALPHAS]
        market = [runs.measured(name, row, 0.5) for name in ("sellers_per_round", "mean_epsilon", "spent")]
        largest = runs.measured("largest_epsilon_spent", row, 0.5)
        underpaid = runs.measured("underpaid_sales", row, 0.5)
        if row == "no-dp":
            market_texts = ("everyone", "no noise", "nothing is paid", "no guarantee", "nothing is sold")
            rows.append([row, *accuracies, *market_texts])
            continue
        specs = (".0f", ".2f", ",.0f")
        texts = [absent if m is None else m.text(spec) for m, spec in zip(market, specs, strict=True)]
        tail = [absent if m is None else m.text(spec) for m, spec in ((largest, ".0f"), (underpaid, ".0%"))]
        rows.append([row, *accuracies, *texts, *tail])
    columns = (
        "mechanism",
        *(f"{partition_name(alpha)}, %" for alpha in ALPHAS),
        "sellers a round",
        "mean ε a round",
        "spent",
        "largest total ε",
        "sales below cost",
    )
    caption = f"Final accuracy, {runs.main_text()}; mean ± std over {runs.seeds} seeds. Market columns: α = 0.5"
    return Table("rq4-final", caption, columns, rows)


def _same_runs(runs: Runs) -> list[Block]:
    """Names rules that came to the same figures in every split of the records."""
    alike: dict[tuple[float, ...], list[str]] = {}
    for row in runs.rows:
        found = [r for alpha in ALPHAS for r in runs.records(row, alpha)]
        alike.setdefault(tuple(x for r in found for x in (r["accuracy"], r["mean_epsilon"])), []).append(row)
    groups = [", ".join(f"`{row}`" for row in rows) for figures, rows in alike.items() if figures and len(rows) > 1]
    words = "bought the same ε from the same clients in every run."
    return [Text(f"{group} {words}") for group in groups]


def _paper_table(runs: Runs) -> Table:
    source = printed("accuracy")
    rows = []
    for name, theirs in source.rows.items():
        ours = _PAPER_ROWS.get(name, name)
        texts = [name]
        for dataset, alpha in (("mnist", 0.5), ("mnist", 0.1), ("cifar10", 0.5)):
            key = f"{dataset}/{alpha}"
            texts += [
                f"{theirs[key]:.1f} ± {theirs[key + ' std']:.1f}",
                _per_cent(runs.beside_paper(dataset, alpha, ours), runs.absent(ours)),
            ]
        rows.append([*texts, f"`{ours}`"])
    heads = [f"{d}, α = {a}" for d, a in (("MNIST", 0.5), ("MNIST", 0.1), ("CIFAR-10", 0.5))]
    columns = ("row", *(text for head in heads for text in (f"{head}: paper", "ours")), "our rule")
    ours_text = f"Ours: as above, CIFAR-10 as below; mean ± std over {runs.seeds} seeds"
    caption = f"Final accuracy in per cent. Paper: {source.where}. {ours_text}"
    return Table("rq4-paper", caption, columns, rows)


def _matched_table(runs: Runs) -> Table:
    rows = []
    for row in runs.rows:
        raw, matched = runs.measured("accuracy", row, 0.1), runs.matched("accuracy", row)
        if matched is None:
            if runs.absent(row) != NOT_COMPUTED:
                rows.append([row, *[runs.absent(row)] * 4])
            continue
        bought = runs.measured("mean_epsilon", row, 0.1)
        low, high = runs.matched_range(row)
        rows.append(
            [
                row,
                NOT_COMPUTED if bought is None else bought.text(".3f"),
                _per_cent(raw),
                f"{low:.6f} – {high:.6f}",
                _per_cent(matched),
            ]
        )
    columns = (
        "mechanism",
        "mean ε bought",
        "accuracy, %",
        "mean ε, matched: least – most of all rounds",
        "accuracy matched, %",
    )
    caption = f"α = 0.1, as bought and matched; {runs.seeds_text('matched')}"
    return Table("rq4-matched", caption, columns, rows)


def _money_table(runs: Runs) -> Table:
    target = runs.target(0.5)
    rows = []
    for row in runs.rows:
        spent, accuracy = runs.measured("spent", row, 0.5), runs.measured("accuracy", row, 0.5)
        if row == "no-dp":
            continue
        if spent is None or accuracy is None:
            if runs.absent(row) != NOT_COMPUTED:
                rows.append([row, *[runs.absent(row)] * 4])
            continue
        until = [runs.money_until(record, target) for record in runs.records(row, 0.5)]
        reached = [money for money in until if money is not None]
        text = (
            Measured.of(reached).text(",.0f")
            if len(reached) == len(until)
            else f"not reached in {len(until) - len(reached)} of {len(until)}"
        )
        per_money = Measured.of(
            1e5 * (r["accuracy"] - 0.1) / r["spent"] for r in runs.records(row, 0.5) if r["spent"] > 0
        )
        rows.append([row, spent.text(",.0f"), _per_cent(accuracy), per_money.text(".2f"), text])
    columns = (
        "mechanism",
        "spent",
        "accuracy, %",
        "points above chance per 1,000 money",
        f"money until {target:.1%}",
    )
    caption = f"α = 0.5; {target:.1%} is 95 % of No-DP's accuracy; mean ± std over {runs.seeds} seeds"
    return Table("rq4-money", caption, columns, rows)


def _wallet_table(runs: Runs) -> Table:
    caps = runs.wallets
    rows = []
    for row in FEW[:-1]:
        free = runs.measured("accuracy", row, 0.5)
        capped = [runs.capped("accuracy", row, cap) for cap in caps]
        largest = [runs.capped("largest_epsilon_spent", row, cap) for cap in caps]
        texts = [
            f"{_per_cent(a)} (ε {e.mean:.2f})" if e is not None else runs.absent(row)
            for a, e in zip(capped, largest, strict=True)
        ]
        rows.append([row, _per_cent(free, runs.absent(row)), *texts])
    columns = ("mechanism", "no cap", *(f"cap {cap:g} (largest total ε spent)" for cap in caps))
    caption = f"Accuracy in per cent, α = 0.5; {runs.seeds_text('capped')}"
    return Table("rq4-wallet", caption, columns, rows)


def _other_tables(runs: Runs) -> list[Block]:
    if not runs.others:
        return []
    rows = []
    for group in runs.others:
        for row in ROWS:
            found = runs.in_group(group, row)
            if found is None and not runs.outdated_in(group, row):
                continue
            head = [group.dataset, partition_name(group.alpha), group.model, str(group.rounds), row]
            rows.append([*head, _per_cent(found, runs.absent(row)), str(found.seeds) if found else "0"])
    columns = ("data set", "partition", "model", "rounds", "mechanism", "accuracy, %", "seeds")
    caption = "Other data and the recommended MLP, a few mechanisms; mean ± std over seeds"
    blocks: list[Block] = [
        Text("## Other data sets, and the recommended model"),
        Table("rq4-others", caption, columns, rows),
    ]
    cifar = next((group for group in runs.others if group.dataset == "cifar10"), None)
    if cifar is not None:
        blocks.append(Figure("rq4-cifar10", _CIFAR, lambda: rq4_figures.other_curves(runs, cifar)))
    return blocks


def _nash_table(results: Results) -> Table:
    rows = []
    for population, rule in rq4_figures.nash_pairs(results):
        sizes = rq4_figures.nash_sizes(results)
        texts = []
        for n in sizes:
            gap = results.measured("hindsight", "nash", population=population, rule=rule, clients=n)
            texts.append(NOT_COMPUTED if gap is None else _with_error(gap))
        rows.append(
            [
                rq4_figures.POPULATION_NAMES[population],
                rule,
                *texts,
                rq4_figures.slope_text(results, population, rule),
            ]
        )
    seeds = results.over_seeds("nash").replace("std", "standard error")
    columns = ("population", "rule", *(f"N = {n:,}" for n in rq4_figures.nash_sizes(results)), "slope")
    return Table("rq4-nash", f"Gap with hindsight over the mean payment; {seeds}", columns, rows)


def _with_error(gap: Measured) -> str:
    return f"{gap.mean:.1e} ± {gap.standard_error:.0e}" if gap.seeds > 1 else f"{gap.mean:.1e} (one seed)"


def _points(runs: Runs, row: str, other: str) -> PairedComparison | None:
    """Accuracy at α = 0.1 of one rule against another's, in points, seed by seed."""
    a, b = ({s: 100 * v for s, v in runs.by_seed("accuracy", name, 0.1).items()} for name in (row, other))
    return compare(a, b)


def _difference(runs: Runs, row: str, other: str) -> str | None:
    found = _points(runs, row, other)
    return None if found is None else found.words("+.2f")


def _beside_own_records(runs: Runs) -> list[tuple[str, str, str, bool]]:
    """By data set: its name, the best private accuracy, that of own records alone, and if the first is more."""
    found = []
    for dataset in _SETS:
        free = own_records(dataset, "local")
        private = [m for row in ROWS if row != "no-dp" for m in runs.everywhere(dataset, row)]
        if free is None or not private:
            continue
        best, alone = max(private, key=lambda one: one.mean), free["models"][0]["test"]
        found.append((dataset, _per_cent(best), f"{100 * alone:.2f}", best.mean > alone))
    return found


def _learned(runs: Runs) -> Text:
    def best(rows: list[str]) -> tuple[str, Measured] | None:
        found = [(row, m) for row in rows if row != "no-dp" and (m := runs.measured("accuracy", row, 0.1))]
        return max(found, key=lambda pair: pair[1].mean) if found else None

    underpaid = {row: m.mean for row in runs.rows if (m := runs.measured("underpaid_sales", row, 0.1))}
    severe, fair = best(runs.rows), best([row for row in runs.rows if not underpaid.get(row)])
    tied = []
    if severe is not None:
        tied = [
            row
            for row in runs.rows
            if row not in ("no-dp", severe[0])
            and (found := _points(runs, row, severe[0])) is not None
            and found.verdict not in ("above", "below")
        ]
    bought = {row: m for row in runs.rows if row != "no-dp" and (m := runs.measured("mean_epsilon", row, 0.1))}
    most = max(bought, key=lambda row: bought[row].mean) if bought else None
    loses = most is not None and severe is not None and most != severe[0] and most not in tied
    return prose(
        "rq4-learned",
        severe=None if severe is None else (severe[0], _per_cent(severe[1])),
        underpaid=None if severe is None or not underpaid.get(severe[0]) else f"{underpaid[severe[0]]:.0%}",
        fair=None if fair is None else (fair[0], _per_cent(fair[1])),
        tied=[] if severe is None else [(row, _difference(runs, row, severe[0])) for row in tied],
        most=(most, bought[most].text(".2f"), _per_cent(runs.measured("accuracy", most, 0.1)))
        if most and loses
        else None,
        relation=_difference(runs, "mfg-regretnet", "mean-field-menu"),
        plain=_per_cent(runs.measured("accuracy", "no-dp", 0.1)),
        literal=runs.literal(),
        alone=(alone := _beside_own_records(runs)),
        none_more=not any(more for _, _, _, more in alone),
    )
