"""The page of learned mechanisms: `python -m privmarket_studies.learned_results FOLDER`.

Every figure on it comes from the metadata of the weights that ship or from a JSON file in the folder:
`comparison.json` (made here where rules are missing), `misreports.json` (`learned_misreports`), `tuning.json`
(`learned_tuning`), `frontier.json` (`learned_frontier`) and `speed.json` (`privmarket bench train --json`), or
from the kept cells of RQ1 beside it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from privmarket._files import write_atomically
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._measure import CaseRow
from privmarket.mechanisms.learned._weights import load, shipped
from privmarket_studies.learned_frontier import FrontierRow
from privmarket_studies.learned_misreports import COMMAND as MISREPORTS, MisreportRow, case_of, wanted
from privmarket_studies.learned_tuning import TuningRow
from privmarket_studies.make_weights import (
    ATTENTION_CASES,
    BASELINE_CASES,
    BUDGET_PER_CLIENT,
    CASES,
    LITERAL_CASES,
)
from privmarket_studies.reproduce.cache import read_bundle
from privmarket_studies.reproduce.document import Results
from privmarket_studies.reproduce.statistics import Measured

# Networks that ship, and the markets in which each is attacked.
SHIPPED_CASES = {
    "mfg-regretnet": CASES,
    "regretnet": BASELINE_CASES,
    "dm-regretnet": BASELINE_CASES,
    "regretformer": ATTENTION_CASES,
    "mfg-regretnet:literal": LITERAL_CASES,
}
COMPARED = (
    "mfg-regretnet",
    "regretnet",
    "dm-regretnet",
    "regretformer",
    "mfg-menunet",
    "proportional-share",
    "pac",
)
SIZES = (10, 30, 100, 1000)
COMMANDS = {
    "comparison": "python -m privmarket_studies.learned_results docs/results/learned",
    "tuning": "python -m privmarket_studies.learned_tuning docs/results/learned/tuning.json",
    "frontier": "python -m privmarket_studies.learned_frontier docs/results/learned/frontier",
    "speed": "privmarket bench train --repeats 4 --json > docs/results/learned/speed.json",
}


class ComparisonRow(TypedDict):
    """Rule → ε bought over the fluid bound, and its standard error, in markets of one distribution and size."""

    scenario: str
    clients: int
    markets: int
    ratio: dict[str, float]
    error: dict[str, float]


def compare(kept: list[ComparisonRow], seed: int = 7, clients_in_all: int = 20_000) -> list[ComparisonRow]:
    """ε bought over the fluid bound: one row per distribution and size, the same markets for all rules.

    Rules that `kept` has are not computed again.
    """
    found = {(row["scenario"], row["clients"]): row for row in kept}
    rows = []
    for distribution, money in BUDGET_PER_CLIENT.items():
        for clients in SIZES:
            markets = clients_in_all // clients
            types = scenario(distribution).sample(np.random.default_rng([seed, clients]), clients, (markets,))
            bound = fluid_bound(scenario(distribution), clients, money * clients)
            row: ComparisonRow = {
                "scenario": distribution,
                "clients": clients,
                "markets": markets,
                "ratio": {},
                "error": {},
            }
            before = found.get((distribution, clients))
            for name in COMPARED:
                if before is not None and name in before["ratio"]:
                    row["ratio"][name] = before["ratio"][name]
                    row["error"][name] = before["error"][name]
                    continue
                rule = mechanism(name, market=MarketFacts(scenario=distribution))
                ratio = rule.run(types, money * clients).total_epsilon / bound
                row["ratio"][name] = float(ratio.mean())
                row["error"][name] = float(ratio.std() / markets**0.5)
            rows.append(row)
    return rows


def render(folder: Path) -> str:
    """The page, from the shipped weights and the files of the folder."""
    parts = [
        "# Learned mechanisms, measured",
        "**Question.** What do the networks that ship buy, and what do they leave to misreports? Before training: "
        "[RQ1](../rq1/README.md#what-training-adds). What the figures mean: "
        "[learned mechanisms](../../theory/learned-mechanisms.md). "
        f"`{COMMANDS['comparison']}` renders this page from the metadata of the weights and the files beside it.",
        _measured(folder),
        _misreports(_read(folder, "misreports")),
        _comparison(_read(folder, "comparison")),
        _tuning(_read(folder, "tuning")),
        _frontier(_read(folder, "frontier")),
        _menus(),
        _speed(_read(folder, "speed")),
    ]
    return "\n\n".join(parts) + "\n"


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rq1(folder: Path) -> Results:
    """The kept cells of RQ1, which has more markets of a thousand clients and the network before its training."""
    return Results(read_bundle(folder.parent / "rq1" / "cells.jsonl"))


def _measured(folder: Path) -> str:
    rows = []
    large = _rq1(folder)
    for name in SHIPPED_CASES:
        for case in load(shipped(name), name).facts["measured"]["cases"]:
            where = {"mechanism": name, "scenario": case["scenario"], "clients": case["clients"]}
            one_by_one = large.values("mean", "market-regret", **where)
            markets = len(one_by_one) or case["profiles"]
            regret = Measured.of(one_by_one).mean if one_by_one else case["regret_share"]
            bought = f"{case['fluid_ratio']:.3f} ± {case['fluid_ratio_error']:.3f}"
            rows.append(
                [
                    f"`{name}`",
                    case["scenario"],
                    f"{case['clients']:,}",
                    f"{case['budget']:g}",
                    f"{markets}, {case['attacked']} clients each" if "attacked" in case else str(markets),
                    f"{regret:.3%}",
                    bought,
                    f"{case['spend_over_budget']:.1%}",
                    f"{case['underpaid']:.0%}",
                    f"{case['over_budget']:.0%}",
                ]
            )
    header = [
        "weights",
        "distribution",
        "N",
        "B",
        "markets",
        "regret / pay",
        "of the fluid bound",
        "spent",
        "underpaid",
        "over B",
    ]
    text = (
        "## Regret and value\n\nThe strong attack: a grid of 41 × 20 over (v, ε) with neighbours of other bids, "
        "and 20 starts of ascent; client by client the worst counts. Regret is as in [RQ1](../rq1/README.md); a "
        "rule "
        "promises the largest of its rows with a quarter on top, because other samples differ. Value is measured "
        "in "
        "more markets than are attacked. `python -m privmarket_studies.make_weights NAME`; the rows of "
        "`mfg-regretnet` with 1,000 clients are RQ1's."
    )
    return f"{text}\n\n{_table(header, rows)}{_unmeasured()}"


def _misreports(rows: list[MisreportRow]) -> str:
    """What a single client gains: found by the strong attack, and at most."""
    table = []
    for row in rows:
        has_bound = "certified_mean" in row
        table.append(
            [
                f"`{row['mechanism']}`",
                f"{row['scenario']}, {row['clients']}",
                str(row["markets"]),
                f"{row['fluid_ratio']:.3f}",
                f"{row['found_mean']:.2%} ({row['found_mean_low']:.2%} to {row['found_mean_high']:.2%})",
                f"{row['found_largest']:.1%}",
                f"{row['certified_mean']:.2%}" if has_bound else "not bounded",
                f"{row['certified_largest']:.1%}" if has_bound else "not bounded",
                f"{row['certified_largest'] / row['reached_largest']:.2f}" if has_bound else "not bounded",
            ]
        )
    bounded = [row for row in rows if "certified_mean" in row]
    worst = min(bounded, key=lambda row: row["found_in_valuation_mean"] / row["certified_mean"])
    share = worst["found_in_valuation_mean"] / worst["certified_mean"]
    share = int(100 * share) / 100  # "or more" holds only if it is rounded down
    apart = max(row["certified_largest"] / row["reached_largest"] for row in bounded)
    lead = (
        "## What a single client gains\n\nA rule's promise is about the mean; the most that one client gains is "
        "many "
        "times that. Every client of every market is attacked as above, at the budgets above; gains over the mean "
        "pay. *At most*: no misreport of v alone gains more ([how](../../theory/fluid-bound.md)). *Apart*: the "
        "bound "
        "on the largest gain over a gain that was reached. For misreports of v the strong attack found "
        f"{share:.0%} of the bound on the mean, or more (least for `{worst['mechanism']}`, {worst['scenario']}), "
        "and "
        f"the bound on the largest gain is at most {apart:.2f} times a gain that was reached. Networks before "
        "training "
        "(`:untrained`) are not bounded, and attention, which takes half a minute a market of ten clients, only in "
        "the rows of two markets. Those rows, but for `mfg-regretnet`, were also searched for round offers of ε. "
        f"`{MISREPORTS}`"
    )
    header = [
        "rule",
        "distribution, N",
        "markets",
        "of the fluid bound",
        "mean gain found (95 %)",
        "largest found",
        "mean, at most",
        "largest, at most",
        "apart",
    ]
    computed = set(map(case_of, rows))
    missing: dict[str, list[str]] = {}
    for rule, distribution, clients, markets in (case for case in wanted() if case not in computed):
        missing.setdefault(f"{distribution}, N = {clients}, {markets} markets", []).append(f"`{rule}`")
    texts = "; ".join(f"{where}: {', '.join(rules)}" for where, rules in missing.items())
    later = f"\n\nNot computed yet (the command goes on): {texts}." if missing else ""
    return f"{lead}\n\n{_table(header, table)}{later}"


def _unmeasured() -> str:
    """Which listed markets no attack was run in, so that no row is missing without a word."""
    missing = []
    for name, cases in SHIPPED_CASES.items():
        found = load(shipped(name), name).facts["measured"]["cases"]
        seen = {(case["scenario"], case["clients"]) for case in found}
        missing += [
            f"`{name}`, {distribution}, N = {clients:,}"
            for distribution, clients, *_ in cases
            if (distribution, clients) not in seen
        ]
    if not missing:
        return ""
    why = "each deviation costs a whole auction; the command above goes on with it"
    return f"\n\nNot attacked yet ({why}): {'; '.join(missing)}."


def _comparison(rows: list[ComparisonRow]) -> str:
    header = ["distribution, N", *(f"`{name}`" for name in COMPARED)]
    table = []
    for row in rows:
        best = max(row["ratio"].values())
        cells = [_bold(value, best) for value in row["ratio"].values()]
        table.append([f"{row['scenario']}, {row['clients']:,}", *cells])
    worst = max(max(row["error"].values()) for row in rows)
    lead = (
        "## Where a classical rule beats a learned one\n\nε bought over the fluid bound, the same markets for all "
        f"rules (standard error at most {worst:.3f}). `mfg-menunet` and `pac` are truthful, `proportional-share` "
        "in v only, the networks up to the regret above."
    )
    return f"{lead}\n\n{_table(header, table)}"


def _bold(value: float, best: float) -> str:
    return f"**{value:.3f}**" if value == best else f"{value:.3f}"


def _tuning(rows: list[TuningRow]) -> str:
    sizes = sorted({case["clients"] for case in rows[0]["cases"]})
    table = [[f"`{row['mechanism']}`", row["trial"], *_means(row["cases"], sizes)] for row in rows]
    steps = max(row["settings"]["steps"] for row in rows)
    lead = (
        f"## How the networks were tuned\n\nTrainings of {steps} steps, judged by one attack in markets that no "
        "training saw (fewer points and starts than the strong one); means over the three distributions. "
        "Multipliers "
        "for groups were chosen in a longer run, in which those of `mfg-regretnet` climbed in the smallest groups "
        "and "
        "cost value. What was tried for `mfg-regretnet` before was not kept in this form. Every setting is in "
        "`tuning.json`: "
        f"`{COMMANDS['tuning']}`"
    )
    header = ["network", "trial"]
    for clients in sizes:
        header += [f"N = {clients}: regret / pay", "of the fluid bound"]
    return f"{lead}\n\n{_table(header, table)}"


def _means(cases: list[CaseRow], sizes: list[int]) -> list[str]:
    """Rows of regret and value by number of clients, means over the distributions."""
    cells = []
    for clients in sizes:
        chosen = [case for case in cases if case["clients"] == clients]
        cells.append(f"{sum(case['regret_share'] for case in chosen) / len(chosen):.2%}")
        cells.append(f"{sum(case['fluid_ratio'] for case in chosen) / len(chosen):.3f}")
    return cells


def _frontier(rows: list[FrontierRow]) -> str:
    table = [
        [
            f"{row['multiplier']:g}",
            f"{row['regret_share']:.3%}",
            f"{row['fluid_ratio']:.3f} ± {row['fluid_ratio_error']:.3f}",
        ]
        for row in rows
    ]
    lead = (
        "## What regret buys\n\nShort trainings for one market (Uniform, N = 10, B = 5) that differ in the "
        f"multiplier λ of the regret; grid and ascent. `{COMMANDS['frontier']}`"
    )
    shown = _table(["λ in training", "regret / pay", "of the fluid bound"], table)
    return f"{lead}\n\n{shown}\n\n![Value against regret](frontier.png)"


def _menus() -> str:
    curves = load(shipped("mfg-menunet"), "mfg-menunet").facts["curves"]
    error = [c for c in curves if c["objective"] == "aggregation-error"]
    ratios = sorted({c["bias_to_noise"] for c in error})
    cells = {(c["scenario"], c["budget_per_client"], c["bias_to_noise"]): c for c in error}
    rows = []
    for distribution, money in dict.fromkeys((c["scenario"], c["budget_per_client"]) for c in error):
        gains = [cells[distribution, money, ratio] for ratio in ratios]
        rows.append(
            [
                f"{distribution}, {money:g}",
                *(f"{1 - gain['value'] / gain['posted_price_value']:.0%}" for gain in gains),
            ]
        )
    lead = (
        "## `mfg-menunet` for the aggregation error\n\nLess error than the same exact mechanism with a posted "
        "price, N = 100, by distribution and budget per client; r = H²N/κ (validation markets, in the file's "
        "metadata)."
    )
    return f"{lead}\n\n{_table(['distribution, B/N', *(f'r = {ratio:g}' for ratio in ratios)], rows)}"


def _speed(report: dict[str, float]) -> str:
    clients = report["forward_clients"]
    rows = [
        [
            "training step over a concatenated network's (N = 100, 64 profiles, 25 ascent steps)",
            f"{report['step_ratio']:.2f}",
            "1/3",
        ],
        [
            "the recipe's own attack on the same profiles, over that concatenated step",
            f"{report['default_step'] / report['concatenated_step']:.2f}",
            "none set",
        ],
        [
            "growth of a step in N, mean field / concatenated",
            f"N^{report['mean_field_exponent']:.2f} / N^{report['concatenated_exponent']:.2f}",
            "1.1 / 2",
        ],
        [
            f"one auction at N = {clients:,} over the bare products of its row network",
            f"{report['forward_ratio']:.2f}",
            "1.5",
        ],
        ["resident memory then", f"{report['peak_gigabytes']:.2f} GB", "2 GB"],
        ["one auction at N = 100", f"{1e3 * report['small_forward_seconds']:.1f} ms", "a few ms"],
    ]
    lead = (
        f"## Speed\n\n`{COMMANDS['speed']}`, one thread, ratios within one run. The first and the fourth row lie "
        "at their aims; some of several runs on this shared machine fell on the other side."
    )
    return f"{lead}\n\n{_table(['figure', 'measured', 'aim'], rows)}"


def main(folder: Path) -> None:
    """Measures what the comparison lacks, and writes the page."""
    path = folder / "comparison.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_atomically(path, json.dumps(compare(kept), indent=1) + "\n")
    write_atomically(folder / "README.md", render(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
