"""What we found: five findings for a reader with five minutes, every figure from the kept cells."""

from __future__ import annotations

from privmarket_studies.reproduce import collusion_page
from privmarket_studies.reproduce.document import NOT_COMPUTED, Results
from privmarket_studies.reproduce.prose import prose
from privmarket_studies.reproduce.rq4 import MATCHED_EPSILON
from privmarket_studies.reproduce.scale import Scale
from privmarket_studies.reproduce.statistics import Measured, interval, paired
from privmarket_studies.reproduce.variations import run_of

NAME = "found.md"
_MARKET = {"scenario": "uniform", "clients": 100, "budget": 50}
_SEEDS = range(10)


def page(results: Results) -> str:
    """The page, as Markdown."""
    return prose("found", **_figures(results)).markdown + "\n"


def _figures(results: Results) -> dict[str, object]:
    def bought(rule: str) -> dict[int, float]:
        return results.by_seed("fluid_ratio", "efficiency", mechanism=rule, **_MARKET)

    def lies(rule: str) -> dict[int, float]:
        found = results.all("regret", mechanism=rule, **_MARKET, attack="strong")
        return {r.cell.seed: r.result["mean"] for r in found if r.result}

    def level(rule: str, name: str) -> dict[int, float]:
        found = results.all("regret", mechanism=rule, **_MARKET, attack="strong")
        return {r.cell.seed: r.result["levels"][name]["mean"] for r in found if r.result}

    def accuracy(rule: str, trust: str, budget: float = 50.0) -> dict[int, float]:
        cells = (run_of(Scale(), rule, seed, {"trust": trust}, budget=budget) for seed in _SEEDS)
        pairs = ((cell.seed, results.get(cell)) for cell in cells)
        return {seed: 100 * float(result["accuracy"]) for seed, result in pairs if result is not None}

    def pictures(rule: str) -> dict[int, float]:
        where = {"mechanism": rule, "dataset": "cifar10", "alpha": 0.5, "rounds": 100}
        return {seed: 100 * v for seed, v in results.by_seed("accuracy", "federated", **where).items()}

    def matched(rule: str) -> dict[int, float]:
        where = {"mechanism": rule, "dataset": "mnist", "alpha": 0.1, "matched": MATCHED_EPSILON}
        return {seed: 100 * v for seed, v in results.by_seed("accuracy", "federated", **where).items()}

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
        "net_lies": _text(lies(net), ".2%"),
        "weak": _text(weak, ".2%"),
        "strong": _text(strong, ".2%"),
        "harder": _difference(strong, weak, "+.2%"),
        "jsam_ahead": _difference(accuracy(menu, "local"), accuracy("jsam", "local"), "+.2f"),
        "pac_behind": _difference(accuracy("pac", "local"), accuracy("jsam", "local"), "+.2f"),
        "menu_pictures": _difference(pictures(menu), pictures("jsam"), "+.2f"),
        "pac_pictures": _difference(pictures("pac"), pictures("jsam"), "+.2f"),
        "menu_small": _difference(accuracy(menu, "local", 10.0), accuracy("jsam", "local", 10.0), "+.2f"),
        "fifth": _difference(accuracy("ration", "aggregate", 10.0), accuracy("pac", "local"), "+.2f"),
        "matched": _difference(matched("pac"), matched(menu), "+.2f"),
        "menu_aggregate": _difference(accuracy(menu, "aggregate"), accuracy("jsam", "aggregate"), "+.2f"),
        "ration_ahead": _difference(accuracy("ration", "aggregate"), accuracy("jsam", "aggregate"), "+.2f"),
        "pac_together": _text(together["pac"], ".1%"),
        "menu_together": _text(together[menu], ".2%"),
        "told_wrong": _text(beliefs("mfg-pricing", "over_budget", "lognormal", "uniform"), ".1%"),
        "told_buys": _text(beliefs("mfg-pricing", "fluid_ratio", "uniform", "lognormal"), ".3f"),
        "menu_told": _text(beliefs(menu, "fluid_ratio", "lognormal", "uniform"), ".3f"),
    }


def _text(values: dict[int, float], spec: str) -> str:
    """The mean with its 95 % interval over seeds."""
    return _interval(Measured.of(values.values()), spec) if values else NOT_COMPUTED


def _difference(a: dict[int, float], b: dict[int, float], spec: str) -> str:
    difference = paired(a, b)
    return NOT_COMPUTED if difference is None else _interval(difference, spec)


def _interval(measured: Measured, spec: str) -> str:
    if measured.seeds < 2:
        return f"{format(measured.mean, spec)} (one seed)"
    low, high = interval(measured)
    return f"{format(measured.mean, spec)} [{format(low, spec)}, {format(high, spec)}]"
