"""The whole loop on embedded data: market, private training, wallets, an attack, and four runs to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from privmarket.federated.config import FederationConfig
from privmarket.federated.recommended import recommended_training
from privmarket.federated.simulation import Federation, OnRound, run
from privmarket.federated.state import RunResult
from privmarket.market.attacks import STRONG

# One run per line of the closing table: the label, and how it differs from the private run.
COMPARED: dict[str, dict[str, Any]] = {
    "private": {},
    "private, server sees sums, half the money": {
        "trust": "aggregate",
        "mechanism": "ration",
        "mechanism_settings": {"unit_price": 1.0},
        "budget": 7.5,
    },
    "no noise": {"mode": "no-noise"},
    "no DP, everyone for free": {"mode": "no-dp"},
    "paper-literal (not private)": {"mode": "literal"},
}


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo shows.

    Attributes:
        runs: label → run, the private one first.
        largest_gain: most money that any client could gain in the first round by lying about v or ε.
        mean_payment: mean payment of that round's sellers.
    """

    runs: dict[str, RunResult]
    largest_gain: float
    mean_payment: float

    @property
    def private(self) -> RunResult:
        """The run that the demo is about."""
        return self.runs["private"]


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
        training=recommended_training("digits"),
    )


def run_demo(
    seed: int = 0, *, on_round: OnRound = lambda _: None, progress: Callable[[str], None] = lambda _: None
) -> DemoResult:
    """Runs everything. `on_round` sees the private run; `progress` is told what comes next."""
    config = demo_config(seed)
    runs: dict[str, RunResult] = {}
    for label, changes in COMPARED.items():
        progress(f"run: {label}")
        runs[label] = run(config.replace(**changes), on_round=on_round if label == "private" else lambda _: None)
    progress("attacking the auction")
    with Federation(config) as federation:
        types = federation.types(0)
        regret = STRONG(federation.mechanism, types, config.budget, np.random.default_rng(seed))
    paid = [micro / 1e6 for micro in runs["private"].records[0].paid_micro.values()]
    return DemoResult(runs, float(regret.gain.max()), float(np.mean(paid)) if paid else 0.0)
