"""The whole loop on embedded data: free baseline, market, private training, wallets, an attack, runs to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from privmarket.market._attacks import STRONG
from privmarket.market._bids import Bids
from privmarket.reports._own_records import OwnRecords, own_records_of
from privmarket.reports._verdict import MisreportCheck
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federation import Federation, OnRound, SimulatedClients, run
from privmarket.simulation._own_records import OwnModel
from privmarket.simulation._pool import builtin_task
from privmarket.simulation._rehearsal import StandIn, tuned_settings
from privmarket.simulation._result import RunResult
from privmarket.training import one_thread

PRIVATE = "private, aggregate trust"

# So that a reader can follow one client through the report's charts and tables.
NAMES = (
    "Ada", "Ben", "Cem", "Dua", "Eli", "Fay", "Gus", "Hal", "Ida", "Jon",
    "Kim", "Leo", "Mia", "Ned", "Ola", "Pam", "Quy", "Ray", "Sue", "Tom",
)  # fmt: skip
OWN_RECORDS = 40
OTHER_NUMBERS = (10, 20, 60, 80, 100, 143)
REMARKS = (
    f"You hold {OWN_RECORDS} digits. The model that the private runs start from was trained on them, and server "
    "rate, clip norm and averaging were chosen on them, under each trust by rehearsals in worlds that look like "
    "them; no client's digit chose anything. Money, rounds, rule and lifetime cap are the demo's own, the same for "
    "every seed. Your own digits alone are the best of four models of these very digits; for other numbers of "
    "digits, means over draws.",
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The runs and findings of the demo.

    Attributes:
        runs: label → run, the one that the demo is about first.
        misreports: what an attack on the first round's auction found.
        own: what the buyer's own records give alone.
    """

    runs: dict[str, RunResult]
    misreports: MisreportCheck
    own: OwnRecords

    @property
    def private(self) -> RunResult:
        """The run that the demo is about."""
        return self.runs[PRIVATE]


def demo_config(seed: int = 0) -> FederationConfig:
    """Digits, 20 clients, a server that sees only sums, and a lifetime ε of at most 1; rates are not chosen yet."""
    return FederationConfig(
        dataset="digits",
        clients=20,
        alpha=0.5,
        budget=5.0,
        rounds=10,
        wallet=1.0,
        trust="aggregate",
        mechanism="graded-ration",
        public=OWN_RECORDS,
        evaluate_every=1,
        seed=seed,
    )


def made_up_worlds(config: FederationConfig) -> StandIn:
    """Worlds that look like the buyer's own digits, and the model of these digits that all runs start from."""
    with one_thread():
        return StandIn(builtin_task(config), clients=config.clients, seed=config.seed)


def tuned(config: FederationConfig, worlds: StandIn) -> FederationConfig:
    """The run with server rate, clip norm and averaging chosen on the buyer's own digits."""
    found = tuned_settings(config, worlds.task, stand_in=worlds)
    return config if found is None else found.applied(config)


def demo_configs(private: FederationConfig, local: FederationConfig) -> dict[str, FederationConfig]:
    """One run per line of the closing table: the demo's own first, then those to compare it with.

    Args:
        private: the demo's own run, under aggregate trust.
        local: the same under local trust.
    """
    return {
        PRIVATE: private,
        "private, local trust, same money and cap": local,
        "aggregate trust without its noise": private.replace(mode="no-noise"),
        "no privacy, everyone for free": local.replace(mode="no-dp"),
        "paper-literal noise (not private)": local.replace(mode="literal"),
    }


def run_demo(
    seed: int = 0, *, on_round: OnRound = lambda _: None, progress: Callable[[str], None] = lambda _: None
) -> DemoResult:
    """Runs everything. `on_round` sees the demo's own run; `progress` is told what comes next."""
    config = demo_config(seed)
    progress(f"choosing settings on your own {OWN_RECORDS} digits")
    worlds = made_up_worlds(config)
    configs = demo_configs(tuned(config, worlds), tuned(config.replace(trust="local"), worlds))
    runs: dict[str, RunResult] = {}
    for label, config in configs.items():
        progress(f"run: {label}")
        watch = on_round if label == PRIVATE else lambda _: None
        runs[label] = run(config, own_model=worlds.own, on_round=watch)
    progress("your own records alone")
    own = _own_records(runs[PRIVATE])
    progress("attacking the auction")
    return DemoResult(runs, _attacked(runs[PRIVATE], worlds.own), own)


def _own_records(result: RunResult) -> OwnRecords:
    """What the buyer's very digits give, with the curve for other numbers of digits."""
    drawn = own_records_of(result.config, OWN_RECORDS, OTHER_NUMBERS)
    exact = OwnRecords.of(result)
    assert exact is not None
    return replace(drawn, accuracy=exact.accuracy)


def _attacked(result: RunResult, own_model: OwnModel) -> MisreportCheck:
    """What the best misreport gains in the first round, where clients offer what their wallets let them."""
    config = result.config
    with Federation(config, own_model=own_model) as federation:
        state = federation.start()
        offers = SimulatedClients(federation, state).offers(federation.pacing.terms(())).values()
        bids = Bids(
            valuation=[offer.valuation for offer in offers],
            epsilon=[offer.epsilon for offer in offers],
            data_size=[offer.data_size for offer in offers],
        )
        regret = STRONG(federation.mechanism, bids, config.budget, np.random.default_rng(config.seed))
    paid = [micro / 1e6 for micro in result.records[0].paid_micro.values()]
    mean = float(np.mean(paid)) if paid else 0.0
    return MisreportCheck(float(regret.gain.max()), mean, config.budget)
