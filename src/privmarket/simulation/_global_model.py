"""What the server does with the aggregate: momentum, and an average over the last rounds' weights.

Both only see what clients already released, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket._settings import TrainingPlan

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
        """The state before the first round: these weights, no momentum, the same weights as average."""
        return cls(weights, torch.zeros_like(weights), weights.clone())

    def moved(self, update: np.ndarray, plan: TrainingPlan, progress: float) -> ServerState:
        """The global weights moved against `update`, (parameters,); `progress` runs from 0 to 1 over the run."""
        rate = plan.server_rate * (1.0 - (1.0 - plan.final_rate) * progress)
        direction = plan.momentum * self.direction + torch.from_numpy(update)
        weights = self.weights - rate * direction
        averaged = plan.averaging * self.averaged + (1.0 - plan.averaging) * weights
        return ServerState(weights, direction, averaged)

    def tested(self, plan: TrainingPlan) -> Tensor:
        """(parameters,) the model that is tested and kept: averaged over rounds where the plan says so."""
        return self.averaged if plan.averaging > 0 else self.weights
