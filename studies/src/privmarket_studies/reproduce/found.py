"""The page "What we found", for a reader with five minutes; every figure is from kept cells and runs."""

from __future__ import annotations

from pathlib import Path

from privmarket_studies import trust_front, trust_results
from privmarket_studies.page_text import largest_exposed, largest_spent
from privmarket_studies.reproduce import collusion_page
from privmarket_studies.reproduce.cells import Scale
from privmarket_studies.reproduce.document import NOT_COMPUTED, Results, prose
from privmarket_studies.reproduce.statistics import Measured, compare, interval
from privmarket_studies.reproduce.variations import TRUSTS, run_of
from privmarket_studies.trust_runs import BARS

NAME = "found.md"
_MARKET = {"scenario": "uniform", "clients": 100, "budget": 50}
_SEEDS = range(10)
_CAPPED = next(run for run in BARS if run.name == "mnist-0.1-epsilon-3")


def page(results: Results, folder: Path) -> str:
    """The page, as Markdown.

    Args:
        results: the kept cells of all questions.
        folder: docs/results, for the runs under both trusts.
    """
    return prose("found", **_figures(results), trust=_trust(folder / "trust" / "runs")).markdown + "\n"


def _trust(runs: Path) -> dict[str, str]:
    """What one accuracy costs under each trust in the cheapest runs, and what the promise rests on."""
    found = trust_results.compared(runs)
    same = trust_results.same_price(runs)
    capped = trust_results.load(runs, _CAPPED)
    if found is None or same is None or not capped:
        names = ["target", "part", "promised", "exposed", "ratio", "same_ratio", "shared", "honest", "sellers"]
        names += [f"{trust}_{what}" for trust in TRUSTS for what in ("rule", "money", "same")]
        return dict.fromkeys([*names, "reservations"], NOT_COMPUTED)
    return {
        "target": f"{trust_results.TARGET:.0%}",
        "part": trust_front.part(found.ratio),
        "promised": f"{largest_spent(capped):.1f}",
        "exposed": f"{largest_exposed(capped):.1f}",
        "aggregate_rule": found.aggregate_rule,
        "aggregate_money": f"{found.aggregate:.1f}",
        "local_rule": found.local_rule,
        "local_money": f"{found.local:.1f}",
        "ratio": f"1/{1 / found.ratio:.1f}",
        "aggregate_same": f"{same.aggregate:.1f}",
        "local_same": f"{same.local:.1f}",
        "same_ratio": f"1/{same.local / same.aggregate:.1f}",
        "shared": f"{same.from_sharing:.1f}",
        "honest": str(same.honest),
        "sellers": f"{same.sellers:.0f}",
        "reservations": "; ".join(f"({n}) {one}" for n, one in enumerate(trust_results.RESERVATIONS, 1)),
    }


def _figures(results: Results) -> dict[str, object]:
    def bought(rule: str) -> dict[int, float]:
        return results.by_seed("fluid_ratio", "efficiency", mechanism=rule, **_MARKET)

    def misreports(rule: str) -> dict[int, float]:
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
        "jsam_ahead": _difference(accuracy(menu, "local"), accuracy("jsam", "local"), "+.2f"),
        "pac_behind": _difference(accuracy("pac", "local"), accuracy("jsam", "local"), "+.2f"),
        "menu_pictures": _difference(pictures(menu), pictures("jsam"), "+.2f"),
        "pac_pictures": _difference(pictures("pac"), pictures("jsam"), "+.2f"),
        "menu_small": _difference(accuracy(menu, "local", 10.0), accuracy("jsam", "local", 10.0), "+.2f"),
        "menu_aggregate": _difference(accuracy(menu, "aggregate"), accuracy("jsam", "aggregate"), "+.2f"),
        "ration_ahead": _difference(accuracy("ration", "aggregate"), accuracy("jsam", "aggregate"), "+.2f"),
        "ration_menu": _difference(accuracy("ration", "aggregate"), accuracy(menu, "aggregate"), "+.2f"),
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
    found = compare(a, b)
    return NOT_COMPUTED if found is None else found.text(spec)


def _interval(measured: Measured, spec: str) -> str:
    if measured.seeds < 2:
        return f"{format(measured.mean, spec)} (one seed)"
    low, high = interval(measured)
    return f"{format(measured.mean, spec)} [{format(low, spec)}, {format(high, spec)}]"
