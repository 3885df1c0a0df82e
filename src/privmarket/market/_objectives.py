"""What the buyer wants for its money: much ε, or an accurate aggregate, under either trust.

Notation: W_i = data share, α_i = aggregation weight, n_i = records of client i over the mean number of records,
κ and H = weights of noise and of bias. Local trust: E(ε, α) = κ·Σ α_i²/(n_i ε_i)² + H²·(Σ |α_i − W_i|)².
Aggregate trust: see `AggregateError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from inspect import signature
from typing import ClassVar

import numpy as np

from privmarket._settings import DELTA, HETEROGENEITY, HONEST_SHARE, KAPPA
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._bids import Array, Bids
from privmarket.market._outcome import Outcome
from privmarket.privacy._gaussian import mu_of

_BISECTIONS = 60


class Objective(ABC):
    """The interface of what a buyer wants to make large or small: one figure for each outcome."""

    name: ClassVar[str]
    larger_is_better: ClassVar[bool]

    @abstractmethod
    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) the figure of each market's outcome."""


@dataclass(frozen=True)
class TotalEpsilon(Objective):
    """Σ ε bought: the more, the better."""

    name: ClassVar[str] = "total-epsilon"
    larger_is_better: ClassVar[bool] = True

    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) Σ ε sold in each market."""
        return outcome.total_epsilon


TOTAL_EPSILON = TotalEpsilon()


@dataclass(frozen=True)
class AggregationError(Objective):
    """Problem P2: noise variance plus squared bias of the aggregate, at the best weights for the ε bought.

    Implements: problem P2, Eqs. (fl-loss) and (P2) of [Sun2026], made concrete: see docs/fidelity.md.
    """

    kappa: float = KAPPA
    heterogeneity: float = HETEROGENEITY
    name: ClassVar[str] = "aggregation-error"
    larger_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and self.heterogeneity >= 0):
            raise ConfigurationError(
                f"aggregation error: kappa {self.kappa} and heterogeneity {self.heterogeneity}",
                "kappa must be above 0, heterogeneity at least 0",
            )

    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) the error at the best weights for what was sold; infinite where nobody sells."""
        weights = self.optimal_weights(outcome.epsilon, bids)
        return self.error(outcome.epsilon, weights, bids)

    def error(self, epsilon: Array, weights: Array, bids: Bids) -> Array:
        """(...,) E(ε, α) of sold ε and any weights, both (..., clients)."""
        variance, bias = self.terms(epsilon, weights, bids)
        return variance + bias

    def terms(self, epsilon: Array, weights: Array, bids: Bids) -> tuple[Array, Array]:
        """(...,) the variance term and the squared-bias term of the error."""
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

        low = np.zeros(missing.shape)
        high = np.full(missing.shape, steep)
        for _ in range(_BISECTIONS if steep > 0 else 0):
            nu = 0.5 * (low + high)
            shortfall = np.maximum(share - _weights_at(unit, share, nu), 0.0).sum(axis=-1, keepdims=True)
            too_low = nu < steep * (missing + shortfall)
            low = np.where(too_low, nu, low)
            high = np.where(too_low, high, nu)
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
        low = np.where(enough, low, mu)
        high = np.where(enough, mu, high)
    return _clipped(unit, share, high, nu)


def _clipped(unit: Array, share: Array, mu: Array, nu: Array) -> Array:
    return np.clip(share, mu / (2 * unit), (mu + nu) / (2 * unit))


@dataclass(frozen=True)
class AggregateError(Objective):
    """Noise variance plus squared bias of a sum under aggregate trust, where sellers share the noise.

    A sale of ε at δ is a μ-Gaussian release with μ = μ(ε, δ). Client i's update, a sum over its records, enters the
    secure sum with weight ∝ μ_i, and the noise of the whole sum does not grow with the number of sellers. So

        E = κ·(n/h)/(Σ μ_i n_i)² + H²·(Σ |α_i − W_i|)²,   α_i = μ_i n_i/Σ μ_j n_j.

    Attributes:
        kappa: weight of the noise; (clip norm·√parameters/mean records)² for a model of that many parameters.
        heterogeneity: H, how much clients' mean gradients differ.
        honest_share: h/n, the share of a round's sellers whose noise protects each of them.
        delta: δ of every sale. None takes μ = ε, the limit of small ε up to a constant: with H = 0 the objective
            then ranks outcomes exactly as total ε does.

    Implements: the error of the sum in docs/theory/aggregate-trust.md; μ(ε, δ) of [BalleWang2018].
    """

    kappa: float = KAPPA
    heterogeneity: float = HETEROGENEITY
    honest_share: float = HONEST_SHARE
    delta: float | None = DELTA
    name: ClassVar[str] = "aggregate-error"
    larger_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and self.heterogeneity >= 0):
            raise ConfigurationError(
                f"aggregate error: kappa {self.kappa} and heterogeneity {self.heterogeneity}",
                "kappa must be above 0, heterogeneity at least 0",
            )
        if not 0 < self.honest_share <= 1:
            raise ConfigurationError(
                f"aggregate error: honest_share is {self.honest_share}", "give h/n, above 0 and at most 1"
            )
        if self.delta is not None and not 0 < self.delta < 0.5:
            raise ConfigurationError(f"aggregate error: delta is {self.delta}", "give a δ between 0 and 0.5")

    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) the error of the secure sum; infinite where nobody sells."""
        variance, bias = self.terms(outcome.epsilon, bids)
        return variance + bias

    def terms(self, epsilon: Array, bids: Bids) -> tuple[Array, Array]:
        """(...,) the variance and the squared-bias term of sold ε, (..., clients)."""
        strength = self.mu(epsilon) * bids.data_share * bids.clients
        total = strength.sum(axis=-1)
        sold = total > 0
        with np.errstate(divide="ignore"):
            variance = self.kappa / self.honest_share / total**2
        weights = strength / np.where(sold, total, 1.0)[..., None]
        return variance, self.heterogeneity**2 * self._squared_distance(weights - bids.data_share)

    def _squared_distance(self, excess: Array) -> Array:
        """(...,) of weights that miss the data shares by `excess`, (..., clients)."""
        return np.asarray(np.abs(excess).sum(axis=-1) ** 2)

    def mu(self, epsilon: Array) -> Array:
        """μ of each sale, 0 where nothing is sold; same shape as `epsilon`."""
        return strength(epsilon, self.delta)


@dataclass(frozen=True)
class TypicalAggregateError(AggregateError):
    """The mean of the aggregate error where valuations have nothing to do with the data.

    `AggregateError` bounds the bias for the worst case: that the clients left out all differ in the same way. If
    it is chance who asks how much, differences partly cancel, and the mean of the squared bias is

        E = κ·(n/h)/(Σ μ_i n_i)² + H²·N·Σ (α_i − W_i)².

    Attributes:
        heterogeneity: H = √(V/N), V the variance of clients' mean gradients, as rehearsals
            on public records measure it.

    Implements: the bias of a random assignment in docs/theory/aggregate-trust.md.
    """

    name: ClassVar[str] = "typical-aggregate-error"

    def _squared_distance(self, excess: Array) -> Array:
        return np.asarray(excess.shape[-1] * (excess**2).sum(axis=-1))


@dataclass(frozen=True)
class LocalError(Objective):
    """Noise variance plus typical squared bias under local trust, where each seller's update carries its own noise.

    A sale of ε at δ is a μ-Gaussian release with μ = μ(ε, δ). Client i's update is a sum over its records with
    noise of variance ∝ 1/μ_i², and the server weighs updates by μ_i². So

        E = κ·Σ μ_i²/(Σ μ_i² n_i)² + H²·N·Σ (α_i − W_i)²,   α_i = μ_i² n_i/Σ μ_j² n_j,

    the mean error where valuations have nothing to do with the data. Without bias and for equal records it is
    κ/Σ μ_i².

    Attributes:
        kappa, heterogeneity: κ and H, on the scale of `TypicalAggregateError`: an honest client that sells alone
            gives the same error.
        delta: δ of every sale; None takes μ = ε.

    Implements: the error of inverse-variance weights in docs/theory/local-trust.md; μ(ε, δ) of [BalleWang2018].
    """

    kappa: float = KAPPA
    heterogeneity: float = 0.0
    delta: float | None = DELTA
    name: ClassVar[str] = "local-error"
    larger_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and self.heterogeneity >= 0):
            raise ConfigurationError(
                f"local error: kappa {self.kappa} and heterogeneity {self.heterogeneity}",
                "kappa must be above 0, heterogeneity at least 0",
            )
        if self.delta is not None and not 0 < self.delta < 0.5:
            raise ConfigurationError(f"local error: delta is {self.delta}", "give a δ between 0 and 0.5")

    def value(self, outcome: Outcome, bids: Bids) -> Array:
        """(...,) the error of the weighted sum; infinite where nobody sells."""
        variance, bias = self.terms(outcome.epsilon, bids)
        return variance + bias

    def terms(self, epsilon: Array, bids: Bids) -> tuple[Array, Array]:
        """(...,) the variance and the squared-bias term of sold ε, (..., clients)."""
        precision = strength(epsilon, self.delta) ** 2
        counted = precision * bids.data_share * bids.clients
        total = counted.sum(axis=-1)
        sold = total > 0
        safe = np.where(sold, total, 1.0)
        variance = np.where(sold, self.kappa * precision.sum(axis=-1) / safe**2, np.inf)
        excess = counted / safe[..., None] - bids.data_share
        return variance, self.heterogeneity**2 * epsilon.shape[-1] * (excess**2).sum(axis=-1)


def strength(epsilon: Array, delta: float | None) -> Array:
    """μ of each sale at δ, 0 where nothing is sold; same shape as `epsilon`. Without a δ, μ = ε."""
    if delta is None:
        return epsilon
    sold = epsilon > 0
    return np.where(sold, mu_of(np.where(sold, epsilon, 1.0), delta), 0.0)


OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (TotalEpsilon, AggregationError, AggregateError, TypicalAggregateError, LocalError)
}


def objective(name: str, **parameters: float) -> Objective:
    """The objective called `name`; parameters that it does not have are refused, those not given keep defaults.

    Parameters may also stand in the name: `aggregate-error:heterogeneity=0.3,kappa=2`.
    """
    name, _, written = name.partition(":")
    if name not in OBJECTIVES:
        raise UnknownNameError.among("objective", name, OBJECTIVES)
    given = {**_written_parameters(name, written), **parameters}
    known = list(signature(OBJECTIVES[name]).parameters)
    for parameter in given:
        if parameter not in known:
            allowed = ", ".join(known) or "it takes none"
            raise ConfigurationError(f"{name}: unknown parameter {parameter!r}", f"parameters: {allowed}")
    return OBJECTIVES[name](**given)


def _written_parameters(name: str, text: str) -> dict[str, float]:
    """Reads parameters written as `kappa=2,heterogeneity=0.3`: name → number."""
    found = {}
    for pair in text.split(",") if text else []:
        parameter, _, value = pair.partition("=")
        try:
            found[parameter.strip().replace("-", "_")] = float(value)
        except ValueError as error:
            raise ConfigurationError(
                f"{name}: parameter {pair!r}", "write NAME=NUMBER, e.g. heterogeneity=0.3"
            ) from error
    return found
