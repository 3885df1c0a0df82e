"""The page about the kept federated runs, rendered from their result files: no figure is typed by hand.

`privmarket_studies.federated_runs` makes the files; this module, run with the folder above them as its
argument, writes README.md there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import numpy as np

from privmarket._files import write_atomically
from privmarket.simulation._config import MODES
from privmarket_studies.federated_heterogeneity import render_heterogeneity
from privmarket_studies.federated_runs import (
    AGGREGATION,
    BESIDE,
    BUDGET,
    KEPT,
    PROMISED,
    RULES,
    KeptRun,
    command_of,
    curve_name,
)
from privmarket_studies.federated_selection import render_selection
from privmarket_studies.free_baseline import best_text
from privmarket_studies.kept_weights import KeptResult, read_run
from privmarket_studies.page_text import accuracy_text, largest_spent, table_row
from privmarket_studies.reproduce.statistics import DECIDED, compare

Kept = dict[str, list[KeptResult]]

_HEAD = """# Federated runs that were kept

**Question.** How do settings of a market compare, on the same clients and in trainings with valid record-level DP?

Every sale is (ε, δ = 1e-5)-DP for each record of its client, unless the mode says otherwise. 100 clients, 50 of
money a round, 200 rounds, Uniform distribution, unless the command says otherwise. Test accuracy, mean ±
standard deviation over the seeds (a seed fixes who holds which records, who asks what, the first weights and
the noise). *Buyer's own records alone*: the [free baseline](../free-baseline/README.md) on the same features
(the `literal` run trains on pixels).

**Limits.** Settings were chosen [in a former way](#how-the-settings-were-chosen), by trainings on the clients'
records that no ε here counts. What a market is worth beside own records: [what money
buys](../what-money-buys/README.md). The paper's algorithm by its own rule: [the paper,
literally](../literal/README.md).

"""
_COLUMNS = table_row(
    [
        "run",
        "accuracy",
        "seeds",
        "buyer's own records alone",
        "mode",
        "types",
        "sellers",
        "ever sold",
        "paid",
        "largest total ε",
    ]
) + ("|---" * 10 + "|\n")
_AGGREGATION = (
    """
## How updates are weighed
MNIST, α = 0.1, persistent types; the same sellers and noise, other weights. Points of accuracy,
"""
    + DECIDED
    + """.

| weights | accuracy | seeds | against ε² on the same seeds |
|---|---|---|---|
"""
)
_CURVE = (
    """
## Is the curve learned for the P2 error better at a small budget?
MNIST, α = 0.1, persistent types. The posted price buys all that the cheapest clients offer; the P2 curve
(learned for
H = 0.2) buys from more clients, less from the dearer ones. Points of accuracy, """
    + DECIDED
    + """. At 50 a round [RQ4](../rq4/README.md) has both, as `mean-field-menu` and `mfg-menunet`.

| budget a round | rule | accuracy | seeds | sellers a round | ε bought a round | against the posted price |
|---|---|---|---|---|---|---|
"""
)
_HETEROGENEITY = """
H along a training on the validation records (`python -m privmarket_studies.federated_heterogeneity FILE`): clients'
gradients differ much in the first rounds and little afterwards, so one H cannot be right for a whole run. P2 also
looks at one round alone, while noise averages out over rounds and a missing class does not.

"""
_SELECTION = """
## How the settings were chosen
Candidates trained on the clients' records ([why that matters](../../decisions/validation-records.md)) and were
compared on 5,000 records of each training file that no client holds, with seeds that no run above uses. The
best, in bold, is what `privmarket federate` takes by itself, and what `mnist-0.5-wallet-8` takes. The
comparison's start is not free of test records: one full-batch step a round, momentum, averaging and the first
candidate's rates date from an earlier search on test accuracy. All changes since, and every choice in the
table, were decided on validation records. Runs with a cap have the wallets of
[RQ4](../rq4/README.md#under-a-lifetime-cap).

    python -m privmarket_studies.federated_selection docs/results/federated/selection/selection.json

"""
_COMMANDS = """
## The commands
`python -m privmarket_studies.federated_runs docs/results/federated/runs` makes the runs, which are in
[runs](runs), and `python -m privmarket_studies.federated_results docs/results/federated` this page. Each run by
itself:

| run | command of seed 0 |
|---|---|
"""
_RULE_NAMES = {
    "posted": "posted price (`mfg-menunet`, total ε)",
    "p2-curve": "P2 curve",
}


def render(folder: Path) -> str:
    """The page's text, from the kept runs below `folder`."""
    kept = load(folder / "runs")
    main = "".join(_row(run, kept[run.name]) for run in (*PROMISED, *BESIDE) if run.name in kept)
    commands = "".join(table_row([run.name, f"`{command_of(run, 0)}`"]) for run in KEPT if run.name in kept)
    return "".join(
        [
            _HEAD,
            _COLUMNS,
            main,
            _missing(folder / "runs"),
            _AGGREGATION + _aggregation_rows(kept),
            _CURVE + _curve_rows(kept),
            _HETEROGENEITY + render_heterogeneity(folder / "selection" / "heterogeneity.json"),
            _SELECTION + render_selection(folder / "selection" / "selection.json"),
            _COMMANDS + commands,
        ]
    )


def load(folder: Path) -> Kept:
    """Run name → its results, by seed, without those of weights that no longer ship."""
    kept: Kept = {}
    for run in KEPT:
        paths = [run.path(folder, seed) for seed in run.seeds]
        found = [result for result in (read_run(p) for p in paths if p.exists()) if result is not None]
        if found:
            kept[run.name] = found
    return kept


def _missing(runs: Path) -> str:
    """A sentence that names the listed runs nobody has made with the weights that ship; "" if all are made."""

    def made(path: Path) -> bool:
        return path.exists() and read_run(path) is not None

    absent = {run.name: [seed for seed in run.seeds if not made(run.path(runs, seed))] for run in KEPT}
    named = [f"`{name}` ({_seeds(seeds)})" for name, seeds in absent.items() if seeds]
    return f"\nListed and not made yet, for want of processor time: {', '.join(named)}.\n" if named else ""


def _seeds(numbers: list[int]) -> str:
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(str(number) for number in numbers)}"


def paired_difference(ours: list[KeptResult], theirs: list[KeptResult]) -> str:
    """Mean difference in accuracy on common seeds, in points, with its 95 % interval by Student's t."""
    first, second = ({r["config"]["seed"]: 100 * r["accuracy"] for r in group} for group in (ours, theirs))
    found = compare(first, second)
    return "no common seed" if found is None else found.entry()


def _row(run: KeptRun, results: list[KeptResult]) -> str:
    config = results[0]["config"]
    mode = MODES[config["mode"]]

    def mean(key: Literal["sellers_per_round", "clients_that_sold", "spent"]) -> float:
        return float(np.mean([r[key] for r in results]))

    cells = [
        run.name,
        f"**{accuracy_text(results)}**",
        str(len(results)),
        best_text(config["dataset"], "local"),
        mode.name + ("" if config["wallet"] is None else f", lifetime ε ≤ {config['wallet']:g}"),
        config["types"],
        f"{mean('sellers_per_round'):.0f}" if mode.holds_auctions else "everyone",
        f"{mean('clients_that_sold'):.0f}" if mode.is_private else "not counted",
        f"{mean('spent'):,.0f}" if mode.holds_auctions else "nothing",
        f"{largest_spent(results):.1f}" if mode.is_private else "no guarantee",
    ]
    return table_row(cells)


def _aggregation_rows(kept: Kept) -> str:
    base = kept["mnist-0.1"]
    rows = f"| ε² (inverse variance; the default) | {accuracy_text(base)} | {len(base)} | the reference |\n"
    for run in AGGREGATION:
        if run.name in kept:
            results = kept[run.name]
            rule = {"epsilon": "ε (the paper)", "optimal": "P2-optimal"}[results[0]["config"]["aggregation"]]
            gap = paired_difference(results, base)
            rows += f"| {rule} | {accuracy_text(results)} | {len(results)} | {gap} |\n"
    return rows


def _curve_rows(kept: Kept) -> str:
    rows = ""
    posted = kept.get(curve_name("posted"), [])
    for rule in RULES:
        results = kept.get(curve_name(rule))
        if results is None:
            continue
        bought = np.mean([r["epsilon_bought"] / r["config"]["rounds"] for r in results])
        cells = [
            str(BUDGET),
            _RULE_NAMES[rule],
            accuracy_text(results),
            str(len(results)),
            f"{np.mean([r['sellers_per_round'] for r in results]):.0f}",
            f"{bought:.0f}",
            "the reference" if rule == "posted" else paired_difference(results, posted),
        ]
        rows += table_row(cells)
    return rows


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_atomically(target / "README.md", render(target))
