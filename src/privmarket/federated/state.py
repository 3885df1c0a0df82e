"""What a run carries from round to round, what it leaves behind, and both as a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from privmarket.federated.checkpoint import Checkpoint
from privmarket.federated.clients import client_place
from privmarket.federated.config import FederationConfig
from privmarket.federated.global_model import ServerState
from privmarket.market.bids import Array, Bids
from privmarket.privacy.wallet import Wallets
from privmarket.rounds import MICRO, RoundRecord


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything that a run carries from one round to the next."""

    next_round: int
    server: ServerState
    wallets: Wallets
    remaining_micro: int
    records: tuple[RoundRecord, ...]


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run.

    Attributes:
        weights: (parameters,) the final model.
        wallets: every client's releases and what its wallet has left.
        types: the clients' true (v, ε) in the last round.
    """

    config: FederationConfig
    records: tuple[RoundRecord, ...]
    weights: np.ndarray
    wallets: Wallets
    types: Bids
    seconds: float

    @property
    def accuracy(self) -> float:
        """The test accuracy after the last round."""
        measured = [r.accuracy for r in self.records if r.accuracy is not None]
        return measured[-1]

    @property
    def spent(self) -> float:
        """The money paid in all rounds together."""
        return sum(r.spent_micro for r in self.records) / MICRO

    @cached_property
    def sold_epsilon(self) -> Array:
        """(rounds, clients) ε of what each client released in each round."""
        sold = np.zeros((len(self.records), self.config.clients))
        for row, record in zip(sold, self.records, strict=True):
            row[[client_place(client) for client in record.sold_epsilon]] = list(record.sold_epsilon.values())
        return sold

    @cached_property
    def paid_micro(self) -> NDArray[np.int64]:
        """(rounds, clients) money that each client got in each round, micro-units."""
        paid = np.zeros((len(self.records), self.config.clients), dtype=np.int64)
        for row, record in zip(paid, self.records, strict=True):
            row[[client_place(client) for client in record.paid_micro]] = list(record.paid_micro.values())
        return paid


def to_checkpoint(config: FederationConfig, state: RunState) -> Checkpoint:
    """Weights, wallets, money and records together: they cannot get out of step."""
    server = state.server
    arrays = {"weights": server.weights, "direction": server.direction, "averaged": server.averaged}
    data = {
        "config": config.to_json(),
        "next_round": state.next_round,
        "remaining_micro": state.remaining_micro,
        "wallets": state.wallets.to_json(),
        "records": [asdict(r) for r in state.records],
    }
    return Checkpoint({name: array.numpy() for name, array in arrays.items()}, data)


def from_checkpoint(saved: Checkpoint) -> RunState:
    """Restores the state that `to_checkpoint` wrote."""
    server = ServerState(*(torch.from_numpy(saved.arrays[n]) for n in ("weights", "direction", "averaged")))
    data = saved.data
    return RunState(
        data["next_round"],
        server,
        Wallets.from_json(data["wallets"]),
        data["remaining_micro"],
        tuple(RoundRecord(**r) for r in data["records"]),
    )
