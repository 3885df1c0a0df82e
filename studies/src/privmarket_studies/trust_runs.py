"""Money → accuracy under local and under aggregate trust: which runs are kept, and a loop that makes them.

    python -m privmarket_studies.trust_study runs --minutes 30

Runs that exist are left alone, so a stopped loop goes on where it was. Runs of one data set share its records in
memory; what is kept of a run is what `privmarket federate --save` would write.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from privmarket._files import write_atomically
from privmarket.simulation._config import FederationConfig, recommended_training
from privmarket.simulation._federation import Federation
from privmarket.simulation._result import RunResult, brief
from privmarket.tasks import Dataset, Task, drawn_parts, load_dataset, task_of, with_features
from privmarket_studies.kept_weights import read_run, with_weights

SEEDS = (0, 1, 2)


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
        """The configuration of the run with this seed."""
        training = replace(recommended_training(self.settings["dataset"], "aggregate"), **self.training)
        return FederationConfig(
            **self.settings, seed=seed, evaluate_every=self.settings["rounds"], training=training
        )

    def path(self, folder: Path, seed: int) -> Path:
        """The result file of one seed."""
        return folder / f"{self.name}-seed-{seed}.json"


def _capped(dataset: str, alpha: float, lifetime: float, rounds: int, budget: float) -> TrustRun:
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
    return TrustRun(f"{dataset}-{alpha:g}-epsilon-{lifetime:g}", settings)


# Rounds were chosen by trials on validation records of MNIST and Fashion-MNIST; everything else is what is
# recommended. MNIST at ε ≤ 1 was changed from 20 to 40 rounds, which validation favoured, after a test figure
# (96.89 %) had been seen.
BARS = (
    _capped("mnist", 0.1, 1.0, 40, 20.0),
    _capped("mnist", 0.1, 3.0, 60, 40.0),
    _capped("fashion-mnist", 0.5, 3.0, 100, 30.0),
    _capped("cifar10", 0.5, 3.0, 100, 30.0),
)

# Rules of the curves: mechanism and settings. H is what `client_spread` measured; see `trust_selection`.
_PRICES = {"ration": 1.0, "ration-0.7": 0.7, "ration-0.5": 0.5, "ration-0.4": 0.4, "ration-0.3": 0.3}
# Under local trust only: there the best price is below 0.5, while under aggregate trust it is 0.7.
_LOCAL_ONLY = ("ration-0.4", "ration-0.3")
RULES = (*_PRICES, "two-step", "graded-ration", "mfg-menunet", "mean-field-menu", "proportional-share", "pac")
MONEY = {"aggregate": (3, 5, 10, 30), "local": (30, 100, 300)}
# The cheapest price under local trust has points near the target as well, so that little is read between points.
_FINER = {("local", "ration-0.4"): (60, 90)}
# Rules that are compared with each other in money: three more seeds.
CONTENDERS = ("ration", "ration-0.7", "ration-0.5", "graded-ration")
MORE_SEEDS = (*SEEDS, 3, 4, 5)
# Five rounds have no time for much momentum or averaging.
ROUNDS = 5
_SHORT = {"momentum": 0.5, "averaging": 0.0, "final_rate": 0.3}


def rules_of(trust: str) -> tuple[str, ...]:
    """The rules whose curves are made under a trust."""
    return tuple(rule for rule in RULES if trust == "local" or rule not in _LOCAL_ONLY)


def money_of(trust: str, rule: str) -> tuple[int, ...]:
    """The sums of money of a rule's curve under a trust, rising."""
    return tuple(sorted((*MONEY[trust], *_FINER.get((trust, rule), ()))))


def tuned_money(trust: str, money: int) -> int:
    """The sum of money whose trials choose the rate: the nearest in ratio of those that were tried."""
    return min(MONEY[trust], key=lambda tried: abs(math.log(tried / money)))


def rule_of(name: str, trust: str, heterogeneity: float) -> tuple[str, dict[str, object]]:
    """The mechanism behind a curve's name, and its settings where clients differ by H."""
    if name in _PRICES:
        return "ration", {"unit_price": _PRICES[name]}
    if name in ("two-step", "graded-ration"):
        return name, {"heterogeneity": heterogeneity}
    if name == "mfg-menunet" and trust == "aggregate":
        return name, {"objective": "aggregate-error", "heterogeneity": heterogeneity}
    return name, {"objective": "aggregation-error"} if name == "mfg-menunet" else {}


def curve_name(trust: str, rule: str, money: float) -> str:
    """The name that the files of one point of a curve begin with."""
    return f"curve-{trust}-{rule}-{money:g}"


def point(trust: str, rule: str, money: int, rate: float, heterogeneity: float) -> TrustRun:
    """One point of a curve, the server moving at `rate`."""
    mechanism, settings = rule_of(rule, trust, heterogeneity)
    return TrustRun(
        curve_name(trust, rule, money),
        {
            "dataset": "mnist",
            "alpha": 0.1,
            "trust": trust,
            "mechanism": mechanism,
            "mechanism_settings": settings,
            "budget": money / ROUNDS,
            "rounds": ROUNDS,
        },
        {**_SHORT, "server_rate": rate},
        MORE_SEEDS if rule in CONTENDERS and trust == "aggregate" else SEEDS,
    )


def curves(chosen: Chosen) -> tuple[TrustRun, ...]:
    """The runs of every point for which validation records have chosen a server's rate."""
    found = []
    for trust in MONEY:
        for rule in rules_of(trust):
            for money in money_of(trust, rule):
                rate = chosen.rate(trust, rule, tuned_money(trust, money))
                if rate is not None:
                    found.append(point(trust, rule, money, rate, chosen.heterogeneity(rate)))
    return tuple(found)


class Chosen(Protocol):
    """What validation records decided; see `trust_selection.Selection`."""

    def rate(self, trust: str, rule: str, money: int) -> float | None:
        """The server's rate, None where no trial was made."""

    def heterogeneity(self, rate: float) -> float:
        """H beside κ = 1 of trainings at this rate."""


def missing(folder: Path, runs: tuple[TrustRun, ...]) -> Iterator[tuple[TrustRun, int]]:
    """Yields what is still to be made, or to be made again with the weights that ship: (run, seed), by seed."""
    wanted = [(seed, run) for run in runs for seed in run.seeds]
    for seed, run in sorted(wanted, key=lambda pair: pair[0]):
        path = run.path(folder, seed)
        if not path.exists() or read_run(path) is None:
            yield run, seed


def make(
    folder: Path, kept: tuple[TrustRun, ...], minutes: float, only: str = "", seeds: tuple[int, ...] = MORE_SEEDS
) -> int:
    """Makes what is missing of the runs whose names begin with `only`; returns how many are left in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    runs = tuple(run for run in kept if run.name.startswith(only))
    held: tuple[str, Dataset] | None = None
    todo = [(run, seed) for run, seed in missing(folder, runs) if seed in seeds]
    for count, (run, seed) in enumerate(todo):
        if time.monotonic() > end:
            return len(todo) - count
        config = run.config(seed)
        if held is None or held[0] != config.dataset:
            held = config.dataset, with_features(load_dataset(config.dataset), config.training.features)
        path = run.path(folder, seed)
        command = f"python -m privmarket_studies.trust_study runs --only {run.name} --seeds {seed}"
        done = played(config, held[1])
        result = with_weights(brief(done, command))
        write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.name}: accuracy {done.accuracy:.4f}, paid {done.spent:.1f}", flush=True)
    return 0


def played(config: FederationConfig, features: Dataset) -> RunResult:
    """Plays one run on records whose features are already computed."""
    started = time.perf_counter()
    plain = config.replace_training(features="none")
    with Federation(plain, task=shared_out(config, features)) as federation:
        state = federation.start()
        while state.next_round < config.rounds:
            state = federation.step(state)
        result = federation.result(state)
    return replace(result, config=config, seconds=time.perf_counter() - started)


def shared_out(config: FederationConfig, features: Dataset) -> Task:
    """Records whose features are already computed, shared out among the clients of a run as its seed says."""
    parts = drawn_parts(features.train_labels, config.clients, config.alpha, config.sizes, config.seed)
    return task_of(features, parts, model=config.training.model)
