"""What the buyer wants for its money: much ε, or an accurate aggregate.

Notation: W_i = data share, α_i = aggregation weight, n_i = records of client i over the mean number of records,
κ and H = weights of noise and of bias. E(ε, α) = κ·Σ α_i²/(n_i ε_i)² + H²·(Σ |α_i − W_i|)².
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market.bids import Array, Bids
from privmarket.market.outcome import Outcome

_BISECTIONS = 60


class Objective(ABC):
    """A figure of merit of an outcome."""

    name: ClassVar[str]
    larger_is_better: ClassVar[bool]

    @abstractmethod
    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) one figure per market."""


@dataclass(frozen=True)
class TotalEpsilon(Objective):
    """Σ ε bought."""

    name: ClassVar[str] = "total-epsilon"
    larger_is_better: ClassVar[bool] = True

    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,)."""
        return outcome.total_epsilon


TOTAL_EPSILON = TotalEpsilon()


@dataclass(frozen=True)
class AggregationError(Objective):
    """Problem P2: noise variance plus squared bias of the aggregate, at the best weights for the ε bought.

    Implements: problem P2, Eqs. (fl-loss) and (P2) of [Sun2026], made concrete: see docs/fidelity.md.
    """

    kappa: float = 1.0
    heterogeneity: float = 0.1
    name: ClassVar[str] = "aggregation-error"
    larger_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and self.heterogeneity >= 0):
            raise ConfigurationError(
                f"aggregation error: kappa {self.kappa} and heterogeneity {self.heterogeneity}",
                "kappa must be above 0, heterogeneity at least 0",
            )

    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) infinite where nobody sells."""
        weights = self.optimal_weights(outcome.epsilon, bids)
        return self.error(outcome.epsilon, weights, bids)

    def error(self, epsilon: Array, weights: Array, bids: Bids) -> Array:
        """(...,) E(ε, α) of sold ε and any weights, both (..., clients)."""
        variance, bias = self.terms(epsilon, weights, bids)
        return variance + bias

    def terms(self, epsilon: Array, weights: Array, bids: Bids) -> tuple[Array, Array]:
        """(...,) the variance and the squared-bias term."""
        unit = self._unit_variance(epsilon, bids)
        with np.errstate(invalid="ignore"):
            variance = np.where(weights > 0, unit * weights**2, 0.0).sum(axis=-1)
        distance = np.abs(weights - bids.data_share).sum(axis=-1)
        nobody = ~(epsilon > 0).any(axis=-1)
        return np.where(nobody, np.inf, variance), self.heterogeneity**2 * distance**2

    def optimal_weights(self, epsilon: Array, bids: Bids) -> Array:
        """(..., clients) the α ≥ 0 on sellers, Σα = 1, that minimises E; zeros where nobody sells.

        With unit variances c_i the optimality conditions give α_i = clip(W_i, μ/2c_i, (μ + ν)/2c_i): μ is the
        multiplier of Σα = 1, and ν that of the shortfall Σ(W_i − α_i)⁺, which fixes the bias. Two nested
        bisections find them; both sides are monotone.
        """
        seller = epsilon > 0
        sells = seller.any(axis=-1, keepdims=True)
        unit = np.where(seller, self._unit_variance(epsilon, bids), np.inf)
        share = np.where(seller, bids.data_share, 0.0)
        missing = 1.0 - share.sum(axis=-1, keepdims=True)
        steep = 8.0 * self.heterogeneity**2

        low, high = np.zeros(missing.shape), np.full(missing.shape, steep)
        for _ in range(_BISECTIONS if steep > 0 else 0):
            nu = 0.5 * (low + high)
            shortfall = np.maximum(share - _weights_at(unit, share, nu), 0.0).sum(axis=-1, keepdims=True)
            too_low = nu < steep * (missing + shortfall)
            low, high = np.where(too_low, nu, low), np.where(too_low, high, nu)
        weights = _weights_at(unit, share, high)
        total = weights.sum(axis=-1, keepdims=True)
        return np.where(sells, weights / np.where(total > 0, total, 1.0), 0.0)

    def _unit_variance(self, epsilon: Array, bids: Bids) -> Array:
        """(..., clients) κ/(n_i ε_i)², infinite for clients that sell nothing."""
        records = bids.data_share * bids.clients
        with np.errstate(divide="ignore"):
            return self.kappa / (records * epsilon) ** 2


def _weights_at(unit: Array, share: Array, nu: Array) -> Array:
    """(..., clients) clip(W, μ/2c, (μ + ν)/2c) with the μ that makes them sum to 1."""
    sellers = np.where(np.isfinite(unit), unit, 0.0)
    low = np.zeros(nu.shape)
    high = 2.0 * sellers.max(axis=-1, keepdims=True)
    for _ in range(_BISECTIONS):
        mu = 0.5 * (low + high)
        enough = _clipped(unit, share, mu, nu).sum(axis=-1, keepdims=True) >= 1.0
        low, high = np.where(enough, low, mu), np.where(enough, mu, high)
    return _clipped(unit, share, high, nu)


def _clipped(unit: Array, share: Array, mu: Array, nu: Array) -> Array:
    return np.clip(share, mu / (2 * unit), (mu + nu) / (2 * unit))


OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (TotalEpsilon, AggregationError)}


def objective(name: str) -> Objective:
    """The objective called `name`, with its default parameters."""
    if name not in OBJECTIVES:
        raise UnknownNameError(f"unknown objective {name!r}", f"choose one of: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]()
