"""The page "What we found", for a reader with five minutes; every figure is from kept cells and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from privmarket_studies import literal_page
from privmarket_studies.reproduce import collusion_page
from privmarket_studies.reproduce.document import NOT_COMPUTED, Results, prose
from privmarket_studies.reproduce.statistics import Measured, compare, interval
from privmarket_studies.what_money_buys import cells as money, page as money_page

NAME = "found.md"
_MARKET = {"scenario": "uniform", "clients": 100, "budget": 50}


def page(results: Results, folder: Path) -> str:
    """The page, as Markdown.

    Args:
        results: the kept cells of all questions.
        folder: docs/results.
    """
    figures = _figures(results)
    return prose("found", **figures, money=_money(results), literal=_literal(folder / "literal")).markdown + "\n"


def _literal(folder: Path) -> dict[str, str]:
    """What the paper's algorithm reaches as printed on MNIST, by reading and α; what its Table V prints."""
    found = literal_page.Findings(folder)
    texts = {}
    for name, reading in (("printed", "printed"), ("sold_out", "sold-out"), ("plain", "noise-free")):
        for alpha, word in ((0.5, "mild"), (0.1, "severe")):
            runs = found.of("mnist", alpha, reading)
            if not runs:
                texts[f"{name}_{word}"] = NOT_COMPUTED
                continue
            reached = literal_page.with_interval([literal_page.final_accuracy(run) for run in runs])
            seeds = f"{len(runs)} seeds" if len(runs) > 1 else "one seed"
            rounds = sorted({len(run["accuracy"]) for run in runs})
            unfinished = "" if rounds == [runs[0]["run"]["rounds"]] else f", {rounds[0]} rounds"
            texts[f"{name}_{word}"] = f"{reached} % ({seeds}{unfinished})"
    for word, alpha in (("mild", 0.5), ("severe", 0.1)):
        texts[f"table_{word}"] = f"{literal_page.table_v('mfg-regretnet', 'mnist', alpha)[0]}"
    return texts


def _money(results: Results) -> dict[str, str]:
    """What own records give, what a lifetime ε and what money add to them."""
    found = money_page.Found(results)
    texts: dict[str, str] = {}
    for name, market in (
        ("mnist", money.MNIST),
        ("few", money.MNIST_100),
        ("fashion", money.FASHION),
        ("cifar", money.CIFAR),
        ("strikes", money.STRIKES),
        ("benefits", money.BENEFITS),
        ("insured", money.INSURED),
    ):
        for wallet in money.WALLETS:
            runs = found.runs(market.capped(wallet))
            key = f"{name}_{wallet:g}"
            texts[f"{key}_before"] = money_page.mean_text(runs, "before")
            texts[f"{key}_score"] = money_page.mean_text(runs, "score")
            texts[f"{key}_gain"] = money_page.gain_text(runs)
            texts[f"{key}_seeds"] = str(len(runs))
            worst = [run["epsilon"]["collude"] for run in runs.values()]
            if market in money.PICTURES:
                texts[f"{key}_left"] = money_page.left_text(found, market, wallet)
                texts[f"{key}_left_share"] = money_page.left_share(found, market, wallet)
            texts[f"{key}_worst"] = f"{max(worst):.1f}" if worst else NOT_COMPUTED
    texts |= {
        f"strikes_{wallet:g}_share": money_page.share_at(found, money.STRIKES, wallet) for wallet in money.WALLETS
    }
    for trust in money.TRUSTS:
        texts[f"half_{trust}"] = money_page.money_for(found, money.CURVE, trust, 0.5)
        texts[f"beside_{trust}"] = money_page.epsilon_beside(found, money.CURVE, trust, 0.5)
    texts["ratio"] = money_page.ratio_for(found, money.CURVE, 0.5)
    for name, market in (("benefits", money.BENEFITS), ("insured", money.INSURED)):
        for wallet in money.WALLETS:
            texts[f"{name}_{wallet:g}_fixed"] = money_page.fixed_text(found, market, wallet)
    texts["equal_epsilon"] = "\n".join(
        "| " + " | ".join([market.name, *money_page.equal_epsilon_gains(found, market, 1.0)]) + " |"
        for market in (money.CIFAR, money.STRIKES, *money.FIRST_LOOKS, money.PUPILS)
    )
    texts["half_worst"] = money_page.money_for(found, money.CURVE, "aggregate", 0.5, "first", "spent_if_worst_case")
    texts["equal"] = "; ".join(
        f"{difference} for {offered}"
        for offered, *_, difference, _ in money_page.equal_money_rows(found, money.CURVE)
    )
    texts["honest"] = f"{(-(-2 * 41 // 3)) ** 0.5:.1f}"
    texts["caption"] = money_page.caption(found, money.CURVE)
    return texts


def _figures(results: Results) -> dict[str, object]:
    def bought(rule: str) -> dict[int, float]:
        return results.by_seed("fluid_ratio", "efficiency", mechanism=rule, **_MARKET)

    def misreports(rule: str) -> dict[int, float]:
        found = results.all("regret", mechanism=rule, **_MARKET, attack="strong")
        return {r.cell.seed: r.result["mean"] for r in found if r.result}

    def level(rule: str, name: str) -> dict[int, float]:
        found = results.all("regret", mechanism=rule, **_MARKET, attack="strong")
        return {r.cell.seed: r.result["levels"][name]["mean"] for r in found if r.result}

    def beliefs(rule: str, figure: str, believed: str, truth: str) -> dict[int, float]:
        where = {"mechanism": rule, "believed": believed, "truth": truth, "past": 0, "scale": 1.0}
        return results.by_seed(figure, "belief", **where)

    net, menu = "mfg-regretnet", "mean-field-menu"
    weak, strong = level(net, "paper"), level(net, "strong")
    size = max(collusion_page.sizes_of(results), default=0)
    together = {rule: results.by_seed("share", "coalition", mechanism=rule, size=size) for rule in ("pac", menu)}
    return {
        "size": size,
        "menu_bought": _text(bought(menu), ".3f"),
        "net_bought": _text(bought(net), ".3f"),
        "more": _difference(bought(net), bought(menu), "+.3f"),
        "net_misreports": _text(misreports(net), ".2%"),
        "weak": _text(weak, ".2%"),
        "strong": _text(strong, ".2%"),
        "harder": _difference(strong, weak, "+.2%"),
        **_times(strong, weak),
        "pac_together": _text(together["pac"], ".1%"),
        "menu_together": _text(together[menu], ".2%"),
        "told_wrong": _of_markets(results, "mfg-pricing", "lognormal", "uniform"),
        "told_buys": _text(beliefs("mfg-pricing", "fluid_ratio", "uniform", "lognormal"), ".3f"),
        "menu_told": _text(beliefs(menu, "fluid_ratio", "lognormal", "uniform"), ".3f"),
    }


def _times(above: dict[int, float], below: dict[int, float]) -> dict[str, str]:
    """How many times as much, of the means over seeds, and from least to most of a seed."""
    seeds = sorted(above.keys() & below.keys())
    if not seeds:
        return {"times": NOT_COMPUTED, "times_by_seed": NOT_COMPUTED}
    ratios = [above[seed] / below[seed] for seed in seeds]
    mean = np.mean([above[seed] for seed in seeds]) / np.mean([below[seed] for seed in seeds])
    return {"times": f"{mean:.1f}", "times_by_seed": f"{min(ratios):.1f} to {max(ratios):.1f}"}


def _of_markets(results: Results, rule: str, believed: str, truth: str) -> str:
    """In how many of all markets a rule that is told one law and meets another is over budget.

    Where that is all of them, seeds have no spread to form an interval from; markets are drawn independently, so
    the exact binomial bound counts them instead: with n of n, at least 0.025^(1/n).
    """
    where = {"mechanism": rule, "believed": believed, "truth": truth, "past": 0, "scale": 1.0}
    found = [one for one in results.all("belief", **where) if one.result]
    markets = sum(one.cell.config["markets"] for one in found)
    over = sum(round(one.result["over_budget"] * one.cell.config["markets"]) for one in found if one.result)
    if not markets:
        return NOT_COMPUTED
    low, high = (float(x) for x in binomtest(over, markets).proportion_ci(0.95, method="exact"))
    return f"{over:,} of {markets:,} markets ({over / markets:.1%} [{low:.1%}, {high:.1%}])"


def _text(values: dict[int, float], spec: str) -> str:
    """The mean with its 95 % interval over seeds."""
    return _interval(Measured.of(values.values()), spec) if values else NOT_COMPUTED


def _difference(a: dict[int, float], b: dict[int, float], spec: str) -> str:
    found = compare(a, b)
    return NOT_COMPUTED if found is None else found.text(spec)


def _interval(measured: Measured, spec: str) -> str:
    if measured.seeds < 2:
        return f"{format(measured.mean, spec)} (one seed)"
    low, high = interval(measured)
    return f"{format(measured.mean, spec)} [{format(low, spec)}, {format(high, spec)}]"
