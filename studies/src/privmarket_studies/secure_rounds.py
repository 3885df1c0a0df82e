"""Secure rounds in one process beside plain ones: processor seconds and bytes of a client and of the server.

Clients answer inside the grid's `answer`, so their time can be told from the server's. Vectors are there already:
training and noise, which both kinds of round need, are left out.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict

import privmarket as pm
from privmarket.federated.config import FederationConfig, Training
from privmarket.flower.neighbours import neighbourhood
from privmarket.flower.result import MarketResult
from privmarket_studies.flower_speed import simulation_seconds

HONEST_SHARE = FederationConfig().honest_share
MEASURED_RECORDS = 100  # that every seller declares
ROUNDS = tuple((sellers, weights) for weights in (10_000, 100_000) for sellers in (10, 20, 40, 100))
# Rings of neighbours; from some 450 sellers on nobody is shown everybody. Some five minutes on a quiet core.
LARGE_ROUNDS = ((300, 10_000), (1_000, 10_000), (2_500, 10_000))


@dataclass(frozen=True)
class MeasuredRound:
    """One round.

    Attributes:
        client_seconds: processor time of one client, the mean.
        server_seconds: processor time of the server, bids and auction with it.
        bytes_up, bytes_down: what one client sends and gets after the auction.
    """

    client_seconds: float
    server_seconds: float
    bytes_up: float
    bytes_down: float


class _CountingGrid(pm.flower.InProcessGrid):
    """Counts the bytes of orders and their answers, and the processor time of clients."""

    def __init__(self, app: Any, nodes: int) -> None:
        super().__init__(app, nodes)
        self.up = self.down = 0
        self.client_seconds = self.counting_seconds = 0.0

    def answer(self, message: Message) -> Message:
        """Answers a message, and counts its bytes and the seconds that the client took."""
        if message.metadata.message_type != "train":
            return super().answer(message)
        begun = time.process_time()
        self.down += size(message.content)
        started = time.process_time()
        reply = super().answer(message)
        answered = time.process_time()
        self.up += 0 if reply.has_error() else size(reply.content)
        self.client_seconds += answered - started
        self.counting_seconds += time.process_time() - answered + started - begun
        return reply


def size(content: RecordDict) -> int:
    """Bytes of a message's records: arrays as they are written, settings with their names, numbers as 8 bytes."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
            continue
        for key, value in record.items():
            items = value if isinstance(value, list) else [value]
            total += len(key) + sum(len(one) if isinstance(one, bytes | str) else 8 for one in items)
    return total


@dataclass(frozen=True)
class _Drawn:
    """Stands in for training: gives integers that were drawn before."""

    integers: Mapping[str, np.ndarray]

    def records(self, context: Context) -> int:
        """The number of records that the seller is said to hold."""
        return MEASURED_RECORDS

    def share(self, weights: object, job: object, grid: object) -> Mapping[str, np.ndarray]:
        """The integers that were drawn before."""
        return self.integers


def measured_round(sellers: int, weights: int, *, secure: bool) -> MeasuredRound:
    """One round of a market in which everybody sells."""
    rng = np.random.default_rng(0)
    drawn = _Drawn({"w": rng.integers(-(2**20), 2**20, weights)})
    updates = rng.standard_normal((sellers, weights), dtype=np.float32)
    app = pm.flower.client_app(
        lambda w, job: {"w": updates[int(job.client)]},
        valuation=0.1,
        epsilon=1.0,
        data_size=float(MEASURED_RECORDS),
        wallet="unlimited",
        secure_aggregation=secure,
        share=drawn,
    )
    server = pm.flower.server_app(
        initial_weights=lambda: {"w": np.zeros(weights, dtype=np.float32)},
        mechanism="ration",
        mechanism_settings={"unit_price": 0.5},
        budget=float(sellers),
        rounds=1,
        trust="aggregate" if secure else "local",
        receipts=False,
    )
    grid = _CountingGrid(app, sellers)
    gc.collect()
    gc.disable()  # it would walk what all sellers remember, which nobody holds in one process
    try:
        started = time.process_time()
        result = pm.flower.run_in_process(server, app, sellers, grid=grid)
        whole = time.process_time() - started
    finally:
        gc.enable()
    _require_all(result, sellers)
    server_seconds = whole - grid.client_seconds - grid.counting_seconds
    return MeasuredRound(grid.client_seconds / sellers, server_seconds, grid.up / sellers, grid.down / sellers)


def _require_all(result: MarketResult, sellers: int) -> None:
    """A round in which someone was refused would be a cheap one."""
    (record,) = result.records
    if record.sellers != sellers or record.dropped:
        raise RuntimeError(f"{record.sellers} of {sellers} sold: {record.dropped}")


class SecureRoundRow(TypedDict):
    """The least of every figure of `Measured` over some turns, without and with a secure sum."""

    sellers: int
    weights: int
    window: int
    plain: dict[str, float]
    secure: dict[str, float]


class SimulationTimes(TypedDict):
    """Processor seconds of a simulated round by trust, turn by turn."""

    dataset: str
    clients: int
    turns: list[dict[str, float]]
    load_average: float


def measure_rounds(
    rounds: tuple[tuple[int, int], ...] = ROUNDS,
    *,
    turns: int = 2,
    progress: Callable[[str], None] = lambda _: None,
) -> list[SecureRoundRow]:
    """A row per (sellers, weights): a plain and a secure round, and how many pieces each key was cut into.

    Both kinds take turns; the smallest figure of all turns counts.
    """
    kinds = {"plain": False, "secure": True}
    for secure in kinds.values():  # imports and tables of noise are not part of a round
        measured_round(3, 10, secure=secure)
    rows = []
    for sellers, weights in rounds:
        progress(f"{sellers} sellers × {weights:,} weights")
        runs = [
            {name: asdict(measured_round(sellers, weights, secure=secure)) for name, secure in kinds.items()}
            for _ in range(turns)
        ]
        plain, secure_best = (
            {figure: min(run[name][figure] for run in runs) for figure in runs[0][name]} for name in kinds
        )
        window = neighbourhood(sellers, HONEST_SHARE).window
        rows.append(
            SecureRoundRow(sellers=sellers, weights=weights, window=window, plain=plain, secure=secure_best)
        )
    return rows


def measure_simulation(turns: int = 8) -> SimulationTimes:
    """Processor seconds of a simulated round under both trusts: 100 clients of MNIST, one full-batch step.

    The trusts take turns and every turn is kept, but for the first, which loads records.
    """
    base = FederationConfig(dataset="mnist", clients=100, budget=50.0, rounds=3, evaluate_every=1000)
    configs = {trust: base.replace(training=Training(model="mlp"), trust=trust) for trust in ("local", "aggregate")}
    taken = [{trust: simulation_seconds(config) for trust, config in configs.items()} for _ in range(turns)][1:]
    return {"dataset": "mnist", "clients": 100, "turns": taken, "load_average": round(os.getloadavg()[0], 1)}
