"""What is chosen on validation records before any curve is made: the server's rates, and H as it really is.

Trials use a seed that no kept run uses. `spread.json` holds, for each rate, trainings with parts of the clients and
with noise (`simulation._client_spread`); `selection.json` holds accuracies by trust, sum of money, rule and rate.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privmarket._files import write_atomically
from privmarket.simulation._rehearsal import ClientSpread, measure_spread
from privmarket.tasks import Dataset, load_dataset, with_features
from privmarket_studies.trust_runs import MONEY, TrustRun, played, point, rules_of, shared_out

VALIDATION_SEED = 100
RATES = {"aggregate": (4.0, 8.0, 16.0), "local": (4.0, 16.0)}
# Shares of clients that lose enough accuracy to be told from chance.
_SHARES, _DRAWS, _OCTAVES = (0.1, 0.2, 0.3), 4, range(-1, 5)
# Whose trials decide a rule's rate: its own, or those of the rule whose purchases are most like its own.
_LIKE = {"two-step": "ration", "pac": "ration", "proportional-share": "mean-field-menu"}
_SPREADING = ("ration-0.7", "ration-0.5", "ration-0.4", "ration-0.3", "graded-ration")
_LIKE_LOCALLY = {**_LIKE, **dict.fromkeys(_SPREADING, "ration"), "mfg-menunet": "mean-field-menu"}


class Selection:
    """The files in `folder`, and what follows from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials: dict[str, dict[str, float]] = _read(folder / "selection.json")
        self.spreads = {rate: ClientSpread(**found) for rate, found in _read(folder / "spread.json").items()}

    def rate(self, trust: str, rule: str, money: int) -> float | None:
        """The rate with the best accuracy in the trials that decide about this rule."""
        row = self.trials.get(f"{trust} {money}", {})
        tried = {rate: row[name] for rate in RATES[trust] if (name := f"{decider(trust, rule)} {rate:g}") in row}
        return max(tried, key=tried.__getitem__) if len(tried) == len(RATES[trust]) else None

    def heterogeneity(self, rate: float) -> float:
        """H beside κ = 1, as measured at this rate."""
        return float(f"{self.spreads[f'{rate:g}'].heterogeneity:.3g}")


def decider(trust: str, rule: str) -> str:
    """The rule whose trials decide the server's rate for `rule`."""
    return (_LIKE if trust == "aggregate" else _LIKE_LOCALLY).get(rule, rule)


def select(folder: Path, minutes: float) -> int:
    """Makes the measurements and trials that are missing, for so long; returns how many are left."""
    end, features = time.monotonic() + 60 * minutes, _validation_records()
    chosen = Selection(folder)
    for rate in RATES["aggregate"]:
        if f"{rate:g}" not in chosen.spreads:
            config = _validated(point("aggregate", "ration", 10, rate, 1.0)).config(VALIDATION_SEED)
            task = shared_out(config, features)
            spread = measure_spread(config, task, shares=_SHARES, draws=_DRAWS, octaves=_OCTAVES)
            chosen.spreads[f"{rate:g}"] = spread
            _write(folder / "spread.json", {name: asdict(found) for name, found in chosen.spreads.items()})
            print(f"rate {rate:g}: H = {spread.heterogeneity:.3g}", flush=True)
    left = 0
    for trust, money, rule, rate in wanted():
        row = chosen.trials.setdefault(f"{trust} {money}", {})
        if f"{rule} {rate:g}" in row:
            continue
        if time.monotonic() > end:
            left += 1
            continue
        run = _validated(point(trust, rule, money, rate, chosen.heterogeneity(rate)))
        row[f"{rule} {rate:g}"] = played(run.config(VALIDATION_SEED), features).accuracy
        _write(folder / "selection.json", chosen.trials)
        print(trust, money, rule, rate, row[f"{rule} {rate:g}"], flush=True)
    return left


def wanted() -> list[tuple[str, int, str, float]]:
    """(trust, money, rule, rate) of every trial."""
    return [
        (trust, money, rule, rate)
        for trust in MONEY
        for money in MONEY[trust]
        for rule in dict.fromkeys(decider(trust, rule) for rule in rules_of(trust))
        for rate in RATES[trust]
    ]


def _validated(run: TrustRun) -> TrustRun:
    return TrustRun(run.name, {**run.settings, "measured_on": "validation"}, run.training, run.seeds)


def _validation_records() -> Dataset:
    return with_features(load_dataset("mnist", measured_on="validation"), "whitened-scattering")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write(path: Path, content: object) -> None:
    write_atomically(path, json.dumps(content, indent=1) + "\n")
