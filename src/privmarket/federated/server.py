"""What the server does with the aggregate: momentum, and an average over the last rounds' weights.

Both only see what clients already released, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privmarket.errors import ConfigurationError


@dataclass(frozen=True)
class ServerPlan:
    """The server's optimiser.

    Attributes:
        learning_rate: step size at the first round.
        final_rate: share of it left at the last round; it falls linearly.
        momentum: share of the last direction that is kept, in [0, 1).
        averaging: share of the averaged weights kept each round, in [0, 1); 0 tests the last weights.
    """

    learning_rate: float = 1.0
    final_rate: float = 1.0
    momentum: float = 0.0
    averaging: float = 0.0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or not 0 <= self.final_rate <= 1:
            raise ConfigurationError(
                f"server learning rate {self.learning_rate}, final share {self.final_rate}",
                "the rate must be above 0, the final share between 0 and 1",
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.averaging < 1:
            raise ConfigurationError(
                f"momentum {self.momentum}, averaging {self.averaging}", "both must lie in [0, 1)"
            )


@dataclass(frozen=True, eq=False)
class ServerState:
    """Weights that are sent out, the running direction, and the averaged weights; (parameters,) each."""

    weights: Tensor
    direction: Tensor
    averaged: Tensor

    @classmethod
    def start(cls, weights: Tensor) -> ServerState:
        """Before the first round."""
        return cls(weights, torch.zeros_like(weights), weights.clone())


def server_step(state: ServerState, update: Tensor, plan: ServerPlan, progress: float) -> ServerState:
    """Moves the global weights against `update`, (parameters,); `progress` runs from 0 to 1 over the run."""
    rate = plan.learning_rate * (1.0 - (1.0 - plan.final_rate) * progress)
    direction = plan.momentum * state.direction + update
    weights = state.weights - rate * direction
    averaged = plan.averaging * state.averaged + (1.0 - plan.averaging) * weights
    return ServerState(weights, direction, averaged)
