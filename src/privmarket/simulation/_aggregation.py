"""How the server weighs the sellers' updates.

An update is a sum over a client's records divided by a *public* number of records, so it already counts
larger clients for more, and its noise depends on ε alone. Weights here multiply those updates.

Implements: α ∝ ε of Algorithm 2 of [Sun2026]; inverse variance; the weights that minimise the error of P2.
Deviation: ε² is what minimises the variance; ε is kept as the paper's rule.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from privmarket._settings import AGGREGATIONS
from privmarket.errors import UnknownNameError
from privmarket.market._bids import Array
from privmarket.market._objectives import AggregationError
from privmarket.rounds import Round

_CLIENTS_AT_ONCE = 32


def seller_weights(
    market: Round, usable: Collection[str], scheme: str, objective: AggregationError | None = None
) -> Array:
    """Weights of the updates of a cleared round that can be used, ≥ 0, adding up to 1.

    Args:
        usable: the sellers who delivered such an update.
        scheme: epsilon (α ∝ ε), inverse-noise (α ∝ 1/σ, the weights of a secure sum), epsilon-squared
            (α ∝ 1/variance, which is ∝ ε² while σ ∝ 1/ε), or optimal.
        objective: κ and H of P2, for `optimal`.

    Returns:
        (usable updates,) in the order of the offers.
    """
    if scheme not in AGGREGATIONS:
        raise UnknownNameError(f"unknown aggregation {scheme!r}", f"choose one of: {', '.join(AGGREGATIONS)}")
    awards = [market.awards.get(client) if client in usable else None for client in market.offers]
    epsilon = np.array([0.0 if award is None else award.epsilon for award in awards])
    noise = np.array([1.0 if award is None else award.event.noise_multiplier for award in awards])
    sells = epsilon > 0
    if not sells.any():
        return np.zeros(0)
    if scheme == "epsilon":
        raw = epsilon
    elif scheme == "inverse-noise":
        raw = np.where(sells, 1.0 / noise, 0.0)
    elif scheme == "epsilon-squared":
        raw = np.where(sells, 1.0 / noise**2, 0.0)
    else:
        # P2 weighs clients' means; divided by the relative size that is a weight of their sums.
        relative_size = market.bids.data_share * market.bids.clients
        raw = (objective or AggregationError()).optimal_weights(epsilon, market.bids) / relative_size
    return np.asarray((raw / raw.sum())[sells])


def aggregate(weights: Array, updates: np.ndarray) -> np.ndarray:
    """Σ α_i·update_i in float64, returned as float32. Shapes: (clients,), (clients, parameters)."""
    total = np.zeros(updates.shape[1])
    # A few clients at a time: a float64 copy of all updates would double what a round needs.
    for first in range(0, len(updates), _CLIENTS_AT_ONCE):
        some = slice(first, first + _CLIENTS_AT_ONCE)
        total += weights[some] @ updates[some].astype(np.float64)
    return total.astype(np.float32)
