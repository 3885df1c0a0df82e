"""What Flower costs: a round on the in-process grid beside the same round of the plain simulation; calls for bids.

Both run the same configuration with the same seed and train the same clients; processor time counts, the contenders
take turns, and the fastest turn of each is kept. Records and features are loaded before the clock starts, and the
model is tested after it stops.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypedDict

import numpy as np

from privmarket.flower._client import client_app
from privmarket.flower._federation import federation_client, federation_server
from privmarket.flower._in_process import run_in_process
from privmarket.flower._server import server_app
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation


@dataclass(frozen=True)
class Overhead:
    """Seconds of processor time per round, plain and on the grid."""

    work: str
    clients: int
    sellers: float
    plain_seconds: float
    grid_seconds: float

    @property
    def ratio(self) -> float:
        """How many times longer the grid takes."""
        return self.grid_seconds / self.plain_seconds


class OverheadJson(TypedDict):
    """An `Overhead` with its ratio."""

    work: str
    clients: int
    sellers: float
    plain_seconds: float
    grid_seconds: float
    ratio: float


class BidsJson(TypedDict):
    """Seconds of a call for the bids of so many clients."""

    clients: int
    seconds: float


class FlowerSpeedReport(TypedDict):
    """What `measure` finds on one data set."""

    dataset: str
    overhead: list[OverheadJson]
    bids: BidsJson
    versions: dict[str, str]
    python: str


def workloads(dataset: str) -> dict[str, FederationConfig]:
    """The work that is timed: a full-batch step, and one pass in Poisson batches of 32 expected records."""
    clients, records = (100, 600) if dataset != "digits" else (20, 70)
    base = FederationConfig(dataset=dataset, clients=clients, budget=clients / 2, rounds=3, evaluate_every=1000)
    steps = -(-records // 32)
    one_pass = Training(model="mlp", steps=steps, sampling_rate=32 / records)
    return {
        "one full-batch step": base.replace(training=Training(model="mlp")),
        f"one pass, {steps} steps": base.replace(training=one_pass),
    }


def _json(row: Overhead) -> OverheadJson:
    return {
        "work": row.work,
        "clients": row.clients,
        "sellers": row.sellers,
        "plain_seconds": row.plain_seconds,
        "grid_seconds": row.grid_seconds,
        "ratio": round(row.ratio, 3),
    }


def measure(dataset: str, *, turns: int = 3, progress: Callable[[str], None] = lambda _: None) -> FlowerSpeedReport:
    """Measures the overhead of the grid and the time of bids on one data set; returns the figures."""
    rows = [_overhead(name, config, turns, progress) for name, config in workloads(dataset).items()]
    progress("calls for bids")
    return {
        "dataset": dataset,
        "overhead": [_json(row) for row in rows],
        "bids": {"clients": 1000, "seconds": bid_seconds(1000, turns)},
        "versions": {name: version(name) for name in ("privmarket", "flwr", "torch")},
        "python": platform.python_version(),
    }


def _overhead(name: str, config: FederationConfig, turns: int, progress: Callable[[str], None]) -> Overhead:
    # The first rounds load records and fill caches (noise tables, calibrated noise) for both.
    simulation_seconds(config)
    _grid(config)
    plain, grid, sellers = np.inf, np.inf, 0.0
    for turn in range(turns):
        progress(f"{name}: turn {turn + 1} of {turns}")
        plain = min(plain, simulation_seconds(config))
        seconds, sellers = _grid(config)
        grid = min(grid, seconds)
    return Overhead(name, config.clients, sellers, float(plain), float(grid))


def simulation_seconds(config: FederationConfig) -> float:
    """Seconds that a round of the plain simulation takes."""
    with Federation(config) as federation:
        state = federation.start()
        started = time.process_time()
        for _ in range(config.rounds - 1):  # the last round would test the model
            state = federation.step(state)
        return (time.process_time() - started) / (config.rounds - 1)


def _grid(config: FederationConfig) -> tuple[float, float]:
    """Seconds per round on the in-process grid, and how many sold."""
    clock: list[float] = []
    server = federation_server(config, on_round=lambda _: clock.append(time.process_time()), receipts=False)
    client = federation_client(config)
    started = time.process_time()
    result = run_in_process(server, client, config.clients)
    sellers = float(np.mean([record.sellers for record in result.records]))
    return (clock[config.rounds - 2] - started) / (config.rounds - 1), sellers


def bid_seconds(clients: int, turns: int) -> float:
    """Seconds of the fastest call for bids to `clients` clients, wall clock, answers checked and sorted."""
    client = client_app(
        lambda weights, job: {name: np.zeros_like(array) for name, array in weights.items()},
        valuation=lambda context: 0.1 + float(context.node_config["partition-id"]) / clients,
        epsilon=1.0,
        wallet="unlimited",
    )
    server = server_app(
        initial_weights=lambda: {"w": np.zeros(4, dtype=np.float32)},
        mechanism="proportional-share",
        budget=5.0,
        rounds=turns,
        receipts=False,
    )
    return min(run_in_process(server, client, clients).bid_seconds)
