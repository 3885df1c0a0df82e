"""Money → accuracy under local and under aggregate trust: which runs are kept, and a loop that makes them.

    python -m privmarket_studies.trust_runs docs/results/trust/runs --minutes 30

Runs that exist are left alone, so a stopped loop goes on where it was. Runs of one data set share its records in
memory; what is kept of a run is what `privmarket federate --save` would write.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import Dataset, load_dataset
from privmarket.federated.features import with_features
from privmarket.federated.recommended import recommended_training
from privmarket.federated.simulation import Federation
from privmarket.federated.state import RunResult
from privmarket.federated.summary import brief

SEEDS = (0, 1, 2)
VALIDATION_SEED = 100


@dataclass(frozen=True)
class TrustRun:
    """One setting, run for several seeds.

    Attributes:
        name: of its files, `name-seed-0.json` and so on.
        settings: fields of `FederationConfig`.
        training: changes to what is recommended under aggregate trust.
    """

    name: str
    settings: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = SEEDS

    def config(self, seed: int) -> FederationConfig:
        """The whole configuration."""
        training = replace(recommended_training(self.settings["dataset"], "aggregate"), **self.training)
        return FederationConfig(
            **self.settings, seed=seed, evaluate_every=self.settings["rounds"], training=training
        )

    def path(self, folder: Path, seed: int) -> Path:
        """The result file of one seed."""
        return folder / f"{self.name}-seed-{seed}.json"


def _capped(dataset: str, alpha: float, lifetime: float, rounds: int, budget: float, **more: Any) -> TrustRun:
    """Everybody sells an equal part of a lifetime ε in every round, at a price that covers everybody's cost."""
    settings = {
        "dataset": dataset,
        "alpha": alpha,
        "trust": "aggregate",
        "mechanism": "ration",
        "mechanism_settings": {"unit_price": 1.0},
        "wallet": lifetime,
        "rounds": rounds,
        "budget": budget,
    }
    return TrustRun(f"{dataset}-{alpha:g}-epsilon-{lifetime:g}", {**settings, **more})


# Rounds were chosen by trials on validation records of MNIST and Fashion-MNIST; everything else is what is
# recommended. MNIST at ε ≤ 1 was changed from 20 to 40 rounds, which validation favoured, after a test figure
# (96.89 %) had been seen.
BARS = (
    _capped("mnist", 0.1, 1.0, 40, 20.0),
    _capped("mnist", 0.1, 3.0, 60, 40.0),
    _capped("fashion-mnist", 0.5, 3.0, 100, 30.0),
    _capped("cifar10", 0.5, 3.0, 100, 30.0),
)

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "ration": ("ration", {"unit_price": 1.0}),
    "ration-0.5": ("ration", {"unit_price": 0.5}),
    "mean-field-menu": ("mean-field-menu", {}),
    "two-step": ("two-step", {}),
    "proportional-share": ("proportional-share", {}),
    "pac": ("pac", {}),
}
MONEY = {"aggregate": (1, 3, 10, 30, 100, 300), "local": (10, 30, 100, 300, 1000)}
# Five rounds have no time for much momentum or averaging. How fast the server moves is chosen for each trust and
# sum of money on validation records (`select`, selection.json), with one rule that buys from everybody and, where
# updates are noisy on their own, with one that buys much from few.
_ROUNDS = 5
_SHORT = {"momentum": 0.5, "averaging": 0.0, "final_rate": 0.3}
RATES = (4.0, 16.0)
SELECTED_WITH = {
    "aggregate": dict.fromkeys(RULES, "ration"),
    "local": {
        **dict.fromkeys(("ration", "ration-0.5", "two-step", "pac"), "ration"),
        **dict.fromkeys(("mean-field-menu", "proportional-share"), "mean-field-menu"),
    },
}


def server_rate(trust: str, rule: str, money: int) -> float:
    """The best of `RATES` on validation records: much noise asks for small steps."""
    if SELECTED_WITH[trust][rule] == "mean-field-menu":
        return 16.0
    return 4.0 if money <= {"aggregate": 3, "local": 30}[trust] else 16.0


def curve_name(trust: str, rule: str, money: float) -> str:
    """Of the files of one point of a curve."""
    return f"curve-{trust}-{rule}-{money:g}"


def _point(trust: str, rule: str, money: int, **more: Any) -> TrustRun:
    mechanism, settings = RULES[rule]
    return TrustRun(
        curve_name(trust, rule, money),
        {
            "dataset": "mnist",
            "alpha": 0.1,
            "trust": trust,
            "mechanism": mechanism,
            "mechanism_settings": settings,
            "budget": money / _ROUNDS,
            "rounds": _ROUNDS,
        },
        {**_SHORT, "server_rate": server_rate(trust, rule, money), **more},
    )


CURVES = tuple(_point(trust, rule, money) for rule in RULES for trust in MONEY for money in MONEY[trust])
KEPT = (*BARS, *CURVES)


def missing(folder: Path, runs: tuple[TrustRun, ...] = KEPT) -> Iterator[tuple[TrustRun, int]]:
    """What is still to be made: every run once, then every run a second time, …; grouped by data set."""
    wanted = [(seed, run) for run in runs for seed in run.seeds]
    for seed, run in sorted(wanted, key=lambda pair: pair[0]):
        if not run.path(folder, seed).exists():
            yield run, seed


def make(folder: Path, minutes: float, only: str = "", seeds: tuple[int, ...] = SEEDS) -> int:
    """Makes what is missing of the runs whose names begin with `only`; returns how many are left in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    runs = tuple(run for run in KEPT if run.name.startswith(only))
    held: tuple[str, Dataset] | None = None
    todo = [(run, seed) for run, seed in missing(folder, runs) if seed in seeds]
    for done, (run, seed) in enumerate(todo):
        if time.monotonic() > end:
            return len(todo) - done
        config = run.config(seed)
        if held is None or held[0] != config.dataset:
            held = config.dataset, with_features(load_dataset(config.dataset), config.training.features)
        path = run.path(folder, seed)
        command = (
            f"python -m privmarket_studies.trust_runs docs/results/trust/runs --only {run.name} --seeds {seed}"
        )
        kept = brief(played(config, held[1]), command)
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: accuracy {kept['accuracy']:.4f}, paid {kept['spent']:.1f}", flush=True)
    return 0


def select(path: Path) -> None:
    """Tries server rates for each trust and sum of money on validation records, on a seed that no kept run uses."""
    found: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    features: Dataset | None = None
    for trust, rules in SELECTED_WITH.items():
        for money in MONEY[trust]:
            for rule in dict.fromkeys(rules.values()):
                row = found.setdefault(f"{trust} {money}", {})
                for rate in RATES:
                    if f"{rule} {rate:g}" in row:
                        continue
                    run = _point(trust, rule, money, server_rate=rate)
                    config = run.config(VALIDATION_SEED).replace(measured_on="validation")
                    if features is None:
                        raw = load_dataset(config.dataset, measured_on="validation")
                        features = with_features(raw, config.training.features)
                    row[f"{rule} {rate:g}"] = played(config, features).accuracy
                    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                    print(trust, money, rule, rate, row[f"{rule} {rate:g}"], flush=True)


def selected_rate(path: Path, trust: str, rule: str, money: int) -> float:
    """The best rate for a rule in the file that `select` wrote."""
    row = json.loads(path.read_text(encoding="utf-8"))[f"{trust} {money}"]
    with_rule = {name: value for name, value in row.items() if name.startswith(SELECTED_WITH[trust][rule] + " ")}
    return float(max(with_rule, key=with_rule.__getitem__).split()[1])


def measure_speed(path: Path, rounds: int = 4) -> None:
    """Processor seconds of a round on MNIST under each trust, the fastest of several; written to `path`."""
    features = with_features(load_dataset("mnist"), "whitened-scattering")
    seconds: dict[str, float] = {}
    for trust in ("local", "aggregate"):
        config = _point("aggregate", "ration", 100).config(0).replace(trust=trust)
        plain = replace(config, training=replace(config.training, features="none"))
        with Federation(plain, dataset=features) as federation:
            state, taken = federation.start(), []
            for _ in range(rounds):
                started = time.process_time()
                state = federation.step(state)
                taken.append(time.process_time() - started)
        seconds[trust] = min(taken)
    path.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")


def played(config: FederationConfig, features: Dataset) -> RunResult:
    """One run on records whose features are computed already."""
    started = time.perf_counter()
    plain = replace(config, training=replace(config.training, features="none"))
    with Federation(plain, dataset=features) as federation:
        state = federation.start()
        while state.next_round < config.rounds:
            state = federation.step(state)
        weights, types = federation.model_weights(state).numpy(), federation.types(config.rounds - 1)
    return RunResult(config, state.records, weights, state.wallets, types, time.perf_counter() - started)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="Runs whose names begin with this.")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--select", type=Path, help="Only choose the server's rates; keep the trials in this file.")
    parser.add_argument("--speed", type=Path, help="Only time a round under each trust; write the figures here.")
    given = parser.parse_args()
    if given.speed:
        measure_speed(given.speed)
        raise SystemExit
    if given.select:
        select(given.select)
        raise SystemExit
    left = make(given.folder, given.minutes, given.only, tuple(given.seeds))
    print(f"{left} runs are missing" if left else "complete")
