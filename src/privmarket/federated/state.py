"""What a run carries from round to round, what it leaves behind, and both as a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from privmarket.federated.checkpoint import Checkpoint
from privmarket.federated.config import FederationConfig
from privmarket.federated.global_model import ServerState
from privmarket.market.bids import Bids
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
        """Test accuracy at the end."""
        measured = [r.accuracy for r in self.records if r.accuracy is not None]
        return measured[-1]

    @property
    def spent(self) -> float:
        """Money paid over the run."""
        return sum(r.spent_micro for r in self.records) / MICRO


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
    """The state that `to_checkpoint` wrote."""
    server = ServerState(*(torch.from_numpy(saved.arrays[n]) for n in ("weights", "direction", "averaged")))
    data = saved.data
    return RunState(
        data["next_round"],
        server,
        Wallets.from_json(data["wallets"]),
        data["remaining_micro"],
        tuple(RoundRecord(**r) for r in data["records"]),
    )
