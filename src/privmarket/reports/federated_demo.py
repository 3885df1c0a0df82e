"""The whole loop on embedded data: market, private training, wallets, an attack, and four runs to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privmarket.federated.config import FederationConfig
from privmarket.federated.simulation import Federation, OnRound, run
from privmarket.federated.state import RunResult
from privmarket.market.attacks import STRONG
from privmarket.reports.verdict import MisreportCheck

# One run per line of the closing table: the label, and how it differs from the private run.
PRIVATE = "private, local trust"
COMPARED: dict[str, dict[str, object]] = {
    PRIVATE: {},
    "private, aggregate trust, half the money": {
        "trust": "aggregate",
        "mechanism": "ration",
        "mechanism_settings": {"unit_price": 1.0},
        "budget": 7.5,
    },
    "local trust without its noise": {"mode": "no-noise"},
    "no privacy, everyone for free": {"mode": "no-dp"},
    "paper-literal noise (not private)": {"mode": "literal"},
}


# So that a reader can follow one client through the report's charts and tables.
NAMES = (
    *("Ada", "Ben", "Cem", "Dua", "Eli", "Fay", "Gus", "Hal", "Ida", "Jon"),
    *("Kim", "Leo", "Mia", "Ned", "Ola", "Pam", "Quy", "Ray", "Sue", "Tom"),
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo shows.

    Attributes:
        runs: label → run, the private one first.
        misreports: what an attack on the first round's auction found.
    """

    runs: dict[str, RunResult]
    misreports: MisreportCheck

    @property
    def private(self) -> RunResult:
        """The run that the demo is about."""
        return self.runs[PRIVATE]


def demo_config(seed: int = 0) -> FederationConfig:
    """Digits, 20 clients, a lifetime wallet that the eager sellers use up within the run."""
    return FederationConfig(
        dataset="digits",
        clients=20,
        alpha=0.5,
        budget=15.0,
        rounds=40,
        wallet=25.0,
        wallet_policy="spend",
        evaluate_every=1,
        seed=seed,
    )


def run_demo(
    seed: int = 0, *, on_round: OnRound = lambda _: None, progress: Callable[[str], None] = lambda _: None
) -> DemoResult:
    """Runs everything. `on_round` sees the private run; `progress` is told what comes next."""
    config = demo_config(seed)
    runs: dict[str, RunResult] = {}
    for label, changes in COMPARED.items():
        progress(f"run: {label}")
        runs[label] = run(config.replace(**changes), on_round=on_round if label == PRIVATE else lambda _: None)
    progress("attacking the auction")
    with Federation(config) as federation:
        types = federation.types(0)
        regret = STRONG(federation.mechanism, types, config.budget, np.random.default_rng(seed))
    paid = [micro / 1e6 for micro in runs[PRIVATE].records[0].paid_micro.values()]
    mean = float(np.mean(paid)) if paid else 0.0
    return DemoResult(runs, MisreportCheck(float(regret.gain.max()), mean, config.budget))
