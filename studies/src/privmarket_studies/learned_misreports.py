"""What a single client gains against the learned rules: found by attacks, and at most, by certificates.

    python -m privmarket_studies.learned_misreports docs/results/learned/misreports.json

Markets of ten clients at the budgets of Table II. Every learned rule stands beside its untrained start. A few
markets of ten and of twenty clients show how near the upper bounds come, also with attention. Rows that are in the
file are not computed again; a row whose weights have changed is. `--at-most N` computes at most N rows in one call.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import NotRequired, TypedDict

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.mechanisms.learned._weights import load, shipped
from privmarket_studies.make_weights import BUDGET_PER_CLIENT

COMMAND = "python -m privmarket_studies.learned_misreports docs/results/learned/misreports.json"
RULES = ("mfg-regretnet", "regretnet", "dm-regretnet", "regretformer")
DISTRIBUTIONS = ("uniform", "bimodal")
# Whose gains are bounded from above in every market; with attention one market takes half a minute.
CERTIFIED = ("mfg-regretnet", "regretnet", "dm-regretnet")
CLIENTS = 10
MARKETS = 20
FEW_MARKETS = 2


class MisreportRow(TypedDict):
    """Gains over the mean payment in the markets of one rule and distribution.

    See `AuditReport` and `CertifiedSummary`. `certified` bounds misreports of v alone, as `found_in_valuation` are;
    `found` also withholds ε.
    """

    mechanism: str
    scenario: str
    weights: str
    clients: int
    budget: float
    markets: int
    fluid_ratio: float
    found_mean: float
    found_mean_low: float
    found_mean_high: float
    found_largest: float
    found_in_valuation_mean: float
    found_in_valuation_largest: float
    certified_mean: NotRequired[float]
    certified_largest: NotRequired[float]
    reached_largest: NotRequired[float]


def weights_digest(rule: str) -> str:
    """Of the weights file that a row was computed with, whatever its header says."""
    name = rule.removesuffix(":untrained")
    found = hashlib.sha256()
    for key, array in sorted(load(shipped(name), name).arrays.items()):
        found.update(key.encode() + array.tobytes())
    return found.hexdigest()[:16]


def measure(rule: str, distribution: str, clients: int, markets: int) -> MisreportRow:
    """Attacks one rule strongly, and bounds its gains from above where that takes no hours."""
    budget = BUDGET_PER_CLIENT[distribution] * clients
    certify = rule in CERTIFIED or markets == FEW_MARKETS
    report = pm.audit(
        rule, scenario=distribution, clients=clients, budget=budget, profiles=markets, certify=certify
    )
    row: MisreportRow = {
        "mechanism": rule,
        "scenario": distribution,
        "weights": weights_digest(rule),
        "clients": clients,
        "budget": budget,
        "markets": markets,
        "fluid_ratio": report.fluid_ratio,
        "found_mean": report.regret.mean_share,
        "found_mean_low": report.regret.mean_share_low,
        "found_mean_high": report.regret.mean_share_high,
        "found_largest": report.regret.maximum_share,
        "found_in_valuation_mean": report.regret_in_valuation.mean_share,
        "found_in_valuation_largest": report.regret_in_valuation.maximum_share,
    }
    if report.certified is not None:
        paid = report.regret.maximum / report.regret.maximum_share
        row["certified_mean"] = report.certified.mean_share
        row["certified_largest"] = report.certified.maximum_share
        row["reached_largest"] = report.certified.found / paid
    return row


Case = tuple[str, str, int, int]


def wanted() -> list[Case]:
    """(rule, distribution, clients, markets) of every row."""
    many = [
        (form, distribution, CLIENTS, MARKETS)
        for distribution in DISTRIBUTIONS
        for name in RULES
        for form in (name, f"{name}:untrained")
    ]
    bounded = [(name, "uniform", 20, FEW_MARKETS) for name in RULES]
    return [*many, ("regretformer", "uniform", CLIENTS, FEW_MARKETS), *bounded]


def case_of(row: MisreportRow) -> Case:
    """What a row is about."""
    return row["mechanism"], row["scenario"], row["clients"], row["markets"]


def main(path: Path, at_most: int | None = None) -> None:
    """Computes what is missing, in the order of `wanted`."""
    warnings.simplefilter("ignore")  # ten clients are fewer than some networks were trained for
    rows: list[MisreportRow] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    place = {case: number for number, case in enumerate(wanted())}
    rows = [row for row in rows if case_of(row) in place and row["weights"] == weights_digest(row["mechanism"])]
    missing = [case for case in place if case not in map(case_of, rows)]
    for case in missing[:at_most]:
        rows.append(measure(*case))
        rows.sort(key=lambda row: place[case_of(row)])
        print(case, file=sys.stderr, flush=True)
        write_atomically(path, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="docs/results/learned/misreports.json")
    parser.add_argument("--at-most", type=int, help="compute no more rows than that")
    options = parser.parse_args()
    main(options.path, options.at_most)
