"""What the server does with the aggregate: momentum, and an average over the last rounds' weights.

Both only see what clients already released, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privmarket.plans import TrainingPlan

# The server takes the average as it is.
PLAIN_AVERAGE = TrainingPlan(momentum=0.0)


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


def server_step(state: ServerState, update: Tensor, plan: TrainingPlan, progress: float) -> ServerState:
    """Moves the global weights against `update`, (parameters,); `progress` runs from 0 to 1 over the run."""
    rate = plan.server_rate * (1.0 - (1.0 - plan.final_rate) * progress)
    direction = plan.momentum * state.direction + update
    weights = state.weights - rate * direction
    averaged = plan.averaging * state.averaged + (1.0 - plan.averaging) * weights
    return ServerState(weights, direction, averaged)
