"""What an auction decides: how much ε each client sells and what it is paid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privmarket.market.bids import Array, Bids


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one auction, or of a batch.

    Attributes:
        epsilon: (..., clients) ε sold, ≥ 0; 0 for clients that sell nothing.
        payment: (..., clients) money paid, ≥ 0.
    """

    epsilon: Array
    payment: Array

    def __post_init__(self) -> None:
        self.epsilon.setflags(write=False)
        self.payment.setflags(write=False)

    @property
    def total_epsilon(self) -> Array:
        """(...,) Σ ε sold."""
        return np.asarray(self.epsilon.sum(axis=-1))

    @property
    def spend(self) -> Array:
        """(...,) Σ payments, the paper's revenue R."""
        return np.asarray(self.payment.sum(axis=-1))

    def utility(self, types: Bids) -> Array:
        """(..., clients) u_i = p_i − v_i ε_i at the clients' true valuations."""
        return self.payment - types.valuation * self.epsilon

    def welfare(self, types: Bids) -> Array:
        """(...,) participant surplus SW = Σ u_i, Eq. (sw-def) of [Sun2026]."""
        return np.asarray(self.utility(types).sum(axis=-1))


def nothing(shape: tuple[int, ...]) -> Outcome:
    """The outcome in which nobody sells. Shape (..., clients)."""
    return Outcome(np.zeros(shape), np.zeros(shape))
