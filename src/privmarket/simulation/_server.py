"""The server's part of training: it weighs the sellers' updates, adds them up, and moves the global model.

An update is a sum over a client's records divided by a *public* number of records, so larger clients already count
for more, and its noise depends on ε alone. Weights here multiply those updates. The server's momentum and its
average over the last rounds' weights use only what clients released, so they cost no privacy.

Implements: α ∝ ε of Algorithm 2 of [Sun2026]; inverse variance of sums; inverse variance of means; the weights that
minimise the error of P2.
Deviation: ε² is what minimises the variance; ε is kept as the paper's rule.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from privmarket._lazy import late
from privmarket._settings import AGGREGATIONS, TrainingPlan
from privmarket.errors import UnknownNameError
from privmarket.market._bids import Array
from privmarket.market._objectives import AggregationError
from privmarket.rounds import Round
from privmarket.secagg import DEFAULT_COHORT, SharedSum, deal_places

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:  # updates are weighed without it
    torch = late("torch")

_CLIENTS_AT_ONCE = 32


def seller_weights(
    auction: Round, usable: Collection[str], scheme: str, objective: AggregationError | None = None
) -> Array:
    """Weights of the updates of a cleared round that can be used, ≥ 0.

    They add up to 1, except those of `precision`: there the sum counts as many records as under equal weights, so
    that the server's rate means the same step.

    Args:
        usable: the sellers who delivered such an update.
        scheme: epsilon (α ∝ ε), inverse-noise (α ∝ 1/σ, the weights of a secure sum), epsilon-squared
            (α ∝ 1/variance, which is ∝ ε² while σ ∝ 1/ε), optimal, or precision (α ∝ declared records/variance,
            which has the least noise for the records that it counts).
        objective: κ and H of P2, for `optimal`.

    Returns:
        (usable updates,) in the order of the offers.
    """
    if scheme not in AGGREGATIONS:
        raise UnknownNameError(f"unknown aggregation {scheme!r}", f"choose one of: {', '.join(AGGREGATIONS)}")
    awards = [auction.awards.get(client) if client in usable else None for client in auction.offers]
    epsilon = np.array([0.0 if award is None else award.epsilon for award in awards])
    noise = np.array([1.0 if award is None else award.event.noise_multiplier for award in awards])
    sells = epsilon > 0
    if not sells.any():
        return np.zeros(0)
    relative_size = auction.bids.data_share * auction.bids.clients
    if scheme == "epsilon":
        raw = epsilon
    elif scheme == "inverse-noise":
        raw = np.where(sells, 1.0 / noise, 0.0)
    elif scheme == "epsilon-squared":
        raw = np.where(sells, 1.0 / noise**2, 0.0)
    elif scheme == "precision":
        raw = np.where(sells, relative_size / noise**2, 0.0)
        return np.asarray((raw * (relative_size[sells].mean() / (raw @ relative_size)))[sells])
    else:
        # P2 weighs the clients' means; divided by the relative size this is a weight of their sums.
        raw = (objective or AggregationError()).optimal_weights(epsilon, auction.bids) / relative_size
    return np.asarray((raw / raw.sum())[sells])


def aggregate(weights: Array, updates: np.ndarray) -> np.ndarray:
    """Σ α_i·update_i in float64, returned as float32. Shapes: (clients,), (clients, parameters)."""
    total = np.zeros(updates.shape[1])
    # A few clients at a time: a float64 copy of all updates would double the memory of a round.
    for first in range(0, len(updates), _CLIENTS_AT_ONCE):
        some = slice(first, first + _CLIENTS_AT_ONCE)
        total += weights[some] @ updates[some].astype(np.float64)
    return total.astype(np.float32)


def simulated_sum(
    noise_multiplier: ArrayLike,
    records: ArrayLike,
    *,
    clip_norm: float,
    parameters: int,
    honest_share: float,
    sellers: int,
    seed: str,
    largest_cohort: int = DEFAULT_COHORT,
) -> SharedSum:
    """The public numbers of a round's sums, its sellers dealt to cohorts of at most `largest_cohort`.

    Args:
        noise_multiplier, records, clip_norm, parameters, honest_share: as for `SharedSum.plan`.
        sellers: how many there are.
        seed: names run and round; it replaces the randomness that real sellers generate together.
    """
    cohorts = deal_places(sellers, seed.encode(), largest_cohort) if sellers else None
    return SharedSum.plan(
        noise_multiplier,
        records,
        clip_norm=clip_norm,
        parameters=parameters,
        honest_share=honest_share,
        cohort_of=cohorts,
    )


# The plan of a server that takes the plain average.
PLAIN_AVERAGE = TrainingPlan(momentum=0.0)


@dataclass(frozen=True, eq=False)
class ServerState:
    """The weights that are sent out, the momentum, and the averaged weights; (parameters,) each."""

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
        """(parameters,) the model that is tested and kept: averaged over rounds if the plan says so."""
        return self.averaged if plan.averaging > 0 else self.weights
