"""The page about money and accuracy under both trusts, rendered from the kept runs: no figure is typed by hand.

python -m privmarket_studies.trust_study render
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import line_look, new_figure, save
from privmarket_studies.free_baseline import best_text, own_records, own_records_line
from privmarket_studies.kept_weights import KeptResult, read_run
from privmarket_studies.page_text import accuracy_text, largest_exposed, largest_spent, table_row
from privmarket_studies.trust_runs import BARS, MONEY, RULES, TrustRun, curve_name, money_of, rules_of
from privmarket_studies.trust_selection import RATES, Selection, decider

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPTIMISED = "graded-ration"
FIXED = ("ration", "ration-0.7", "ration-0.5")
_MARKERS: dict[str, dict[str, str | float]] = {
    "ration-0.7": {"marker": "v"},
    "ration-0.5": {"marker": "o"},
    "ration-0.4": {"marker": "s"},
    "ration-0.3": {"marker": "x", "mew": 1.5},
}
MONEY_TICKS = (1, 3, 10, 30, 100, 300)
TARGET = 0.94

_HEAD = """# Money and accuracy under local and aggregate trust

Valid record-level DP throughout: every sale is (ε, δ = 1e-5)-DP for each record of its client, and every figure
is of the exact integers that sellers would send. 100 clients, Uniform law, persistent types; under aggregate
trust the noise of two thirds of a round's sellers protects each of them ([what that
means](../../theory/secure-sums.md)). Both trusts train the same model on the same public features. Test
accuracy, mean ± standard deviation over the seeds.

Made by `python -m privmarket_studies.trust_study select` and `runs`, rendered by `render`; every run is a file in
[runs](runs).

"""
_BARS_HEAD = """## With a cap on lifetime ε, aggregate trust
`ration` at a price of 1, which everybody accepts; a wallet that spreads the cap over the rounds. Lifetime ε is
the accountant's figure over all rounds for the client that sold most. The last column is what would be left of
it if all other sellers of every round colluded: every lifetime ε here supposes that two thirds of a round's
sellers are honest. *Buyer's own records alone*: what the records that no client holds give on the same features,
for nothing and at ε = 0 ([how](../free-baseline/README.md)), by the model that cross-validation on them chose.

Runs with a cap were computed with wallets that watch one measure of cost, μ² with all of δ (`Wallet(cap,
expected=…)`). A wallet now watches [several](../../decisions/wallet-watches-several-measures.md) unless told
otherwise, and sells about 2 % fewer full-batch releases within the same cap.

| run | accuracy | seeds | buyer's own records alone | rounds | paid in all | lifetime ε | if all others collude |
|---|---|---|---|---|---|---|---|
"""
_TUNING = """
**Tuning was not free of privacy, and no ε above counts it.** Settings were compared on records that no client
holds, but the candidates trained on the clients' 55,000 records; H comes from trainings on them without noise
(`client_spread`); and `mnist-0.1-epsilon-1` went from 20 to 40 rounds, which the kept-back records favoured, after
a test figure (96.89 %) had been seen. [What that means](../../decisions/validation-records.md).
"""
_CURVES_HEAD = """
## What money buys: MNIST, α = 0.1, five rounds
![money and accuracy](money-accuracy.svg)

The curves compare rules and trusts with each other. They do not show that money was worth spending: every one of
them ends below what the buyer's own 5,000 records give alone on these features (above).

Accuracy by money offered in all (what is not spent goes back). `ration` posts a price of 1, which everybody
accepts; `ration-0.7` and so on post lower ones, 0.4 and 0.3 under local trust only. `two-step` (guards against the
worst), `mfg-menunet` under aggregate trust and `graded-ration` are told H as it was measured. The shipped curves of
`mfg-menunet` were learned for the worst split of data over prices, which is not that of trainings, and cost more
than a flat price here; a menu learned for the typical split has an error up to a twentieth below that of
`graded-ration` ([where that was measured](../aggregate-rules/README.md)), too little to ship. Five rounds for every
point, so that rules and trusts are compared on the same work. Points that are missing were not run.

"""


def load(folder: Path, run: TrustRun) -> list[KeptResult]:
    """The results of a run, by seed, without those of weights that no longer ship."""
    return _current(path for path in (run.path(folder, seed) for seed in run.seeds) if path.exists())


def _current(paths: Iterable[Path]) -> list[KeptResult]:
    """The results in these files, without those of weights that no longer ship."""
    return [result for result in map(read_run, paths) if result is not None]


def curve(folder: Path, trust: str, rule: str) -> list[tuple[int, list[KeptResult]]]:
    """(money offered, results) of the points that exist, made with the weights that ship."""
    points = []
    for money in money_of(trust, rule):
        results = _current(sorted(folder.glob(f"{curve_name(trust, rule, money)}-seed-*.json")))
        if results:
            points.append((money, results))
    return points


def money_for(points: list[tuple[int, list[KeptResult]]], target: float = TARGET) -> float | None:
    """Money paid at which the mean accuracy reaches the target, between points on a logarithmic scale."""
    paid = np.array([np.mean([result["spent"] for result in results]) for _, results in points])
    reached = np.array([np.mean([result["accuracy"] for result in results]) for _, results in points])
    above = np.flatnonzero(reached >= target)
    if not above.size:
        return None
    first = int(above[0])
    if first == 0:
        return float(paid[0])  # the cheapest point tried is enough: an upper limit
    share = (target - reached[first - 1]) / (reached[first] - reached[first - 1])
    return float(np.exp((1 - share) * np.log(paid[first - 1]) + share * np.log(paid[first])))


def render(folder: Path) -> str:
    """The page's text, from the kept runs below `folder`."""
    runs = folder / "runs"
    return "".join(
        [
            *(_HEAD, _BARS_HEAD, _bars(runs), _alone(runs), _again(folder), _TUNING),
            *(_CURVES_HEAD, _curve_table(runs), _outdated(runs), _target(runs), _paired(runs)),
            *(_measured_spread(folder), _rates(folder), _speed(folder)),
        ]
    )


def _bars(folder: Path) -> str:
    rows = ""
    for run in BARS:
        results = load(folder, run)
        if not results:
            continue
        alone = largest_exposed(results)
        cells = [
            run.name,
            f"**{accuracy_text(results)}**",
            str(len(results)),
            best_text(run.settings["dataset"], "aggregate"),
            str(results[0]["config"]["rounds"]),
            f"{np.mean([result['spent'] for result in results]):,.0f}",
            f"{largest_spent(results):.3f}",
            f"{alone:.1f}",
        ]
        rows += table_row(cells)
    return rows


def _alone(folder: Path) -> str:
    """What every model of the buyer's own records gives, and how many bought models stay below the best of them."""
    text = f"\n{own_records_line(('mnist', 'fashion-mnist', 'cifar10'), 'aggregate')}"
    bought = 0
    below = 0
    for run in BARS:
        row = own_records(run.settings["dataset"], "aggregate")
        results = load(folder, run)
        if row is not None and results:
            bought += 1
            below += bool(np.mean([result["accuracy"] for result in results]) < row["models"][0]["test"])
    said = "All" if bought == below else f"{below}"
    return f"{text} {said} of the {bought} bought models above stay below the best free one.\n"


def _again(folder: Path) -> str:
    """Kept runs that were made once more by later code, beside what was kept."""
    path = folder / "again.json"
    if not path.exists():
        return ""
    found = []
    for name, accuracy in json.loads(path.read_text(encoding="utf-8")).items():
        kept = json.loads((folder / "runs" / f"{name}.json").read_text(encoding="utf-8"))["accuracy"]
        found.append(f"{name} {accuracy:.2%} (kept: {kept:.2%})")
    return f"\nMade once more by later code (`trust_study again`): {', '.join(found)}.\n"


def _curve_table(folder: Path) -> str:
    rows = "| trust | rule | offered | accuracy | seeds | paid | sellers a round | largest lifetime ε |\n"
    rows += "|---|---|---|---|---|---|---|---|\n"
    for trust in MONEY:
        for rule in RULES:
            for money, results in curve(folder, trust, rule):
                cells = [
                    *(trust, f"`{rule}`", f"{money:,}", accuracy_text(results), str(len(results))),
                    f"{np.mean([result['spent'] for result in results]):,.1f}",
                    f"{np.mean([result['sellers_per_round'] for result in results]):.0f}",
                    f"{largest_spent(results):.2f}",
                ]
                rows += table_row(cells)
    return rows


def _outdated(folder: Path) -> str:
    """A sentence that names the runs made with weights that no longer ship; "" if there are none."""
    names = [f"`{path.stem}`" for path in sorted(folder.glob("*.json")) if read_run(path) is None]
    return f"\nNot shown, because made with weights that no longer ship: {', '.join(names)}.\n" if names else ""


def cheapest_rules(folder: Path) -> dict[str, tuple[str, float]]:
    """For each trust the exactly truthful rule that reaches the target for the least money, and that money."""
    found: dict[str, tuple[str, float]] = {}
    for trust in MONEY:
        for rule in RULES:
            needed = money_for(curve(folder, trust, rule)) if curve(folder, trust, rule) else None
            # Who offers less ε can gain under proportional-share.
            if needed is None or rule == "proportional-share":
                continue
            if trust not in found or needed < found[trust][1]:
                found[trust] = rule, needed
    return found


@dataclass(frozen=True)
class Compared:
    """What the target cost under each trust, in the cheapest runs that there are.

    Attributes:
        aggregate_rule, aggregate: the cheapest rule of the curves, and the money read off its curve.
        local_rule, local: the same under local trust.
    """

    aggregate_rule: str
    aggregate: float
    local_rule: str
    local: float

    @property
    def ratio(self) -> float:
        """Money under aggregate trust over money under local trust."""
        return self.aggregate / self.local


def compared(folder: Path) -> Compared | None:
    """The cheapest runs of each trust that reach the target; None where the curves do not reach it."""
    cheapest = cheapest_rules(folder)
    if len(cheapest) < 2:
        return None
    aggregate_rule, aggregate = cheapest["aggregate"]
    local_rule, local = cheapest["local"]
    return Compared(aggregate_rule, aggregate, local_rule, local)


@dataclass(frozen=True)
class SamePrice:
    """One ration at one price under both trusts: what the target costs, and what sharing the noise is worth.

    Attributes:
        aggregate, local: money read off the two curves.
        sellers: mean number of sellers in a round under aggregate trust.
        honest: how many of them must be honest, h.
    """

    aggregate: float
    local: float
    sellers: float
    honest: int

    @property
    def from_sharing(self) -> float:
        """√h: with equal noise in the sum, each of h honest sellers adds 1/√h of what it adds alone."""
        return float(self.honest**0.5)


def same_price(folder: Path, rule: str = "ration-0.5") -> SamePrice | None:
    """What the target costs with `rule` under each trust; None where a curve does not reach it."""
    points = curve(folder, "aggregate", rule)
    aggregate = money_for(points) if points else None
    local = money_for(local_points) if (local_points := curve(folder, "local", rule)) else None
    if aggregate is None or local is None:
        return None
    sellers = float(np.mean([result["sellers_per_round"] for _, results in points for result in results]))
    share = float(points[0][1][0]["config"]["honest_share"])
    return SamePrice(aggregate, local, sellers, math.ceil(round(sellers) * share - 1e-9))


RESERVATIONS = (
    "under local trust the cheapest of five prices is taken, two of which were added after test figures of the "
    "others had been seen; a finer search may find a cheaper one, so the true saving may be smaller still",
    "both winners were picked on test records",
    "72 trials and 5 to 6 seeds went into the runs under aggregate trust, 12 trials and 3 seeds into the others",
    "sellers are assumed to charge the same for a unit of ε under both, although the promise under aggregate trust "
    "is weaker: it needs two thirds of them to be honest",
)


def _target(folder: Path) -> str:
    """What the target costs under each trust with its cheapest rule, and the ratio."""
    text = f"\n## Money for {TARGET:.0%}\nRead off the curves (between points on a logarithmic scale).\n\n"
    text += "| trust | rule | money paid |\n|---|---|---|\n"
    for trust in MONEY:
        for rule in RULES:
            points = curve(folder, trust, rule)
            if not points:
                continue
            needed = money_for(points)
            text += f"| {trust} | `{rule}` | {'not reached' if needed is None else f'{needed:,.1f}'} |\n"
    found = compared(folder)
    if found is not None:
        text += (
            f"\nSo the cheapest runs under aggregate trust needed about **1/{1 / found.ratio:.0f}** of the money "
            "of the cheapest ones under local trust, at equal prices for ε. "
        )
        same = same_price(folder)
        if same is not None:
            text += (
                f"With one rule and price under both (`ration-0.5`) it was {same.aggregate:.1f} against "
                f"{same.local:.1f}, 1/{same.local / same.aggregate:.1f}. Most of that is √(honest sellers), what "
                f"sharing the noise is worth under any rule: {same.from_sharing:.1f} for the {same.honest} honest "
                f"of {same.sellers:.0f} sellers. "
            )
        text += "With these reservations:\n\n"
        text += "".join(f"{n}. {one};\n" for n, one in enumerate(RESERVATIONS, 1))
        text = text.removesuffix(";\n") + ".\n"
    return text


def paired_ratios(folder: Path, rule: str, other: str, target: float = TARGET) -> list[float]:
    """Money for the target with `rule` over that with `other` under aggregate trust, one figure per common seed."""
    mine, others = (by_seed(curve(folder, "aggregate", name)) for name in (rule, other))
    ratios = []
    for seed in sorted(mine.keys() & others.keys()):
        needed, reference = money_for(mine[seed], target), money_for(others[seed], target)
        if needed is not None and reference is not None:
            ratios.append(needed / reference)
    return ratios


def by_seed(points: list[tuple[int, list[KeptResult]]]) -> dict[int, list[tuple[int, list[KeptResult]]]]:
    """The curve of each seed that has at least two points."""
    found: dict[int, list[tuple[int, list[KeptResult]]]] = {}
    for money, results in points:
        for result in results:
            found.setdefault(int(result["config"]["seed"]), []).append((money, [result]))
    return {seed: own for seed, own in found.items() if len(own) > 1}


def _paired(folder: Path) -> str:
    """The optimised rule beside every fixed price, seed by seed."""
    rows = ""
    for fixed in FIXED:
        ratios = paired_ratios(folder, OPTIMISED, fixed)
        if len(ratios) < 2:
            continue
        logs = np.log(ratios)
        error = float(logs.std(ddof=1)) / len(logs) ** 0.5
        cells = [
            *(f"`{fixed}`", str(len(ratios)), f"**{np.exp(logs.mean()):.2f}**"),
            f"{np.exp(logs.mean() - 2 * error):.2f} to {np.exp(logs.mean() + 2 * error):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]
        rows += table_row(cells)
    if not rows:
        return ""
    return f"""
## The optimised rule against fixed prices
Money that `{OPTIMISED}` needs for {TARGET:.0%} under aggregate trust over what a ration at a fixed price needs,
with the same seed, so the same clients, data and valuations, for both. It chooses by itself how many to buy from,
from the law and from H. Seeds are those at which both were seen to reach the target.

| fixed rule | seeds | money, ratio (geometric mean) | ± 2 standard errors | range over seeds |
|---|---|---|---|---|
{rows}"""


def _measured_spread(folder: Path) -> str:
    """How bias and noise compare, from trainings on validation records."""
    spreads = Selection(folder).spreads
    if not spreads:
        return ""
    text = """
## H as it is along a training
Trainings of a random part of the clients without noise, measured on validation records, and the noise (its
deviation over the clip norm, on the mean of all clients' sums) that costs equal accuracy with all clients. H beside
κ = 1 ([why](../../theory/aggregate-trust.md)).

| server's rate | clients that take part | accuracy | equal noise | H from all |
|---|---|---|---|---|
"""
    for rate, spread in sorted(spreads.items(), key=lambda pair: float(pair[0])):
        for share, accuracy, noise in zip(spread.share, spread.share_accuracy, spread.equal_noise, strict=True):
            text += f"| {rate} | {share:.0%} | {accuracy:.2%} | {noise:.2f} | {spread.heterogeneity:.2f} |\n"
    return text


def _rates(folder: Path) -> str:
    path = folder / "selection.json"
    if not path.exists():
        return ""
    trials = json.loads(path.read_text(encoding="utf-8"))
    every = sorted({rate for rates in RATES.values() for rate in rates})
    text = (
        "\n## How the server's rates were chosen\nTrainings on the clients' records, their accuracy on validation "
        "records, seed 100. `two-step` and `pac` take the rate of `ration`, `proportional-share` that of "
        "`mean-field-menu`; under local trust all rations take that of `ration`.\n\n"
    )
    text += "| trust | money offered | rule | " + " | ".join(f"rate {rate:g}" for rate in every) + " |\n"
    text += "|---|---|---|" + "---|" * len(every) + "\n"
    for trust in MONEY:
        for money in MONEY[trust]:
            tried_there = trials.get(f"{trust} {money}", {})
            for rule in dict.fromkeys(decider(trust, rule) for rule in rules_of(trust)):
                tried = [tried_there.get(f"{rule} {rate:g}") for rate in every]
                if not any(tried):
                    continue
                cells = ["–" if t is None else f"{t:.2%}" for t in tried]
                text += table_row([trust, f"{money:,}", f"`{rule}`", *cells])
    return text


def _speed(folder: Path) -> str:
    path = folder / "speed.json"
    if not path.exists():
        return ""
    seconds = json.loads(path.read_text(encoding="utf-8"))
    ratio = seconds["aggregate"] / seconds["local"]
    return f"""
## Cost of the simulation
`python -m privmarket_studies.trust_study speed`: a round of 100 sellers on MNIST takes
{seconds["aggregate"]:.2f} processor seconds under aggregate trust and {seconds["local"]:.2f} under local trust, a
ratio of {ratio:.2f} (asked: at most 1.3). Exact integer noise in both; the masks of a real sum are not simulated.
"""


def draw_own_records(axes: Axes, right: float) -> None:
    """Draws what the buyer's own MNIST records give alone, as a dashed line with its words at its right end."""
    row = own_records("mnist", "aggregate")
    if row is None:
        return
    best = row["models"][0]
    accuracy = 100 * best["test"]
    axes.axhline(accuracy, color="#444444", lw=1.1, ls="--", zorder=0)
    text = f"buyer's own {row['records']:,} records alone, for nothing: {accuracy:.1f}%"
    axes.text(right, accuracy + 0.25, text, ha="right", va="bottom", fontsize=8, color="#444444")


def draw(folder: Path) -> list[Path]:
    """Writes the figure: money paid → accuracy, one panel for each trust, on the same axes."""
    figure = new_figure(9.6, 4.2)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = {"aggregate": "the server sees only the sum", "local": "the server sees every update"}
    cheapest = cheapest_rules(folder / "runs")
    for axes, (trust, title) in zip(panels, titles.items(), strict=True):
        for rule in RULES:
            points = curve(folder / "runs", trust, rule)
            if not points:
                continue
            paid = [np.mean([result["spent"] for result in results]) for _, results in points]
            values = [[100 * result["accuracy"] for result in results] for _, results in points]
            spread = [np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values]
            look = {**line_look(rule.partition("-0")[0]), **_MARKERS.get(rule, {})}
            mean = [np.mean(v) for v in values]
            axes.errorbar(paid, mean, spread, fmt="none", ecolor=look["color"], alpha=0.35, capsize=2)
            axes.plot(paid, mean, label=rule, lw=2.4 if rule == cheapest.get(trust, ("",))[0] else 1.2, **look)
        axes.axhline(100 * TARGET, color="#bbbbbb", lw=0.8, zorder=0)
        draw_own_records(axes, 350)
        if trust in cheapest:
            rule, money = cheapest[trust]
            axes.axvline(money, color="#bbbbbb", lw=0.8, ls=":", zorder=0)
            axes.annotate(f"{TARGET:.0%} for {money:.2g}, {rule}", (money, 97.0), ha="center", fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("money paid in all")
    panels[0].set(xscale="log", ylabel="test accuracy, %", ylim=(70, 101))
    panels[0].set_xticks(MONEY_TICKS, [str(tick) for tick in MONEY_TICKS], minor=False)
    panels[0].set_xticks([], minor=True)
    if panels[1].has_data():
        figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.suptitle("MNIST, 100 clients, α = 0.1, five rounds, every record protected", fontsize=11)
    return save(figure, folder / "money-accuracy", ("png", "svg"))
