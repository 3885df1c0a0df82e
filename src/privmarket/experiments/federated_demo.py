"""The whole loop on embedded data: market, private training, wallets, an attack, and three runs to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privmarket.federated.config import FederationConfig
from privmarket.federated.recommended import recommended_training
from privmarket.federated.simulation import Federation, OnRound, run
from privmarket.federated.state import RunResult
from privmarket.market.attacks import STRONG

# One run per line of the closing table: the label, and how it differs from the private run.
COMPARED = {
    "private": "private",
    "no noise": "no-noise",
    "no DP, everyone for free": "no-dp",
    "paper's letter (not private)": "literal",
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
        seed=seed,
        training=recommended_training("digits"),
    )


def run_demo(
    seed: int = 0, *, on_round: OnRound = lambda _: None, progress: Callable[[str], None] = lambda _: None
) -> DemoResult:
    """Runs everything. `on_round` sees the private run; `progress` is told what comes next."""
    config = demo_config(seed)
    runs: dict[str, RunResult] = {}
    for label, mode in COMPARED.items():
        progress(f"run: {label}")
        runs[label] = run(config.replace(mode=mode), on_round=on_round if label == "private" else lambda _: None)
    progress("attacking the auction")
    with Federation(config) as federation:
        types = federation.types(0)
        regret = STRONG(federation.mechanism, types, config.budget, np.random.default_rng(seed))
    paid = [micro / 1e6 for micro in runs["private"].records[0].paid_micro.values()]
    return DemoResult(runs, float(regret.gain.max()), float(np.mean(paid)) if paid else 0.0)
