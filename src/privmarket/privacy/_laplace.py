"""Releases with Laplace noise: what they cost, in closed form.

Notation: ε is what one release costs on its own, with δ = 0: the statistic's sensitivity over the noise's scale.
P and Q are the distributions of the output with and without one unit, α an order, Φ the standard normal
distribution function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import ndtri

from privmarket._lazy import late
from privmarket.errors import PrivacyError
from privmarket.privacy._events import Array, OtherRelease

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

pld = late("dp_accounting.pld.privacy_loss_distribution")

# The loss distribution of discrete Laplace noise has one loss per step of the sensitivity; more take minutes.
_MOST_LOSSES = 10**6


@dataclass(frozen=True)
class LaplaceRelease(OtherRelease):
    """A number plus Laplace noise of scale sensitivity / ε, in exact arithmetic.

    For accounting only: this package draws no such noise. Added to a floating-point number it is not private in the
    last bits [Mironov2012]; `DiscreteLaplaceRelease` is, and its noise is drawn exactly.
    """

    stored_name: ClassVar[str] = "laplace"

    epsilon: float

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)

    def renyi_divergence(self, orders: Array) -> Array:
        """(orders,) the Rényi divergence of two Laplace distributions that are ε scales apart.

        Implements: Proposition 6 of [Mironov2017]:
        D_α = log(α/(2α − 1)·e^{(α−1)ε} + (α − 1)/(2α − 1)·e^{−αε})/(α − 1).
        """
        a = np.asarray(orders, dtype=np.float64)
        log_moment = np.logaddexp(
            np.log(a / (2 * a - 1)) + (a - 1) * self.epsilon, np.log((a - 1) / (2 * a - 1)) - a * self.epsilon
        )
        return _rounded_up(log_moment, a, self.epsilon)

    @property
    def pure_epsilon(self) -> float:
        """ε: what the release costs on its own, at δ = 0."""
        return self.epsilon

    @property
    def gaussian_mu(self) -> float:
        """The smallest μ for which the release is μ-GDP: 2Φ⁻¹(1 − e^{−ε/2}/2).

        Both error rates of the best test with likelihood threshold s are ½e^{−s} and ½e^{−(ε−s)}, 0 ≤ s ≤ ε. Write
        h(s) = Φ⁻¹(1 − ½e^{−s}). The test is no better than one between N(0, 1) and N(μ, 1) if h(s) + h(ε − s) ≤ μ.
        h is concave, being the inverse of the convex −log(2(1 − Φ(z))), so the sum is largest at s = ε/2. Outside
        of [0, ε] the sum is h(s) − h(s − ε) with s > ε, which falls in s from h(ε) ≤ 2h(ε/2).
        """
        return 2.0 * float(-ndtri(math.exp(-self.epsilon / 2) / 2))

    def loss_distribution(self, spacing: float) -> PrivacyLossDistribution:
        """The loss distribution of the Laplace mechanism, by dp-accounting."""
        return pld.from_laplace_mechanism(1.0 / self.epsilon, value_discretization_interval=spacing)

    def for_group(self, records: int) -> LaplaceRelease:
        """The same noise on a shift that is so many times as large."""
        return LaplaceRelease(self.epsilon * records)


@dataclass(frozen=True)
class DiscreteLaplaceRelease(OtherRelease):
    """A whole number plus discrete Laplace noise: P(N = k) ∝ e^{−|k|·ε/sensitivity}.

    Also of several whole numbers, where one unit moves only one of them, such as the counts of a histogram.

    Attributes:
        epsilon: ε of the release, at δ = 0.
        sensitivity: by how much one unit moves the number at most; a whole number.
    """

    stored_name: ClassVar[str] = "discrete-laplace"

    epsilon: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)
        if self.sensitivity != int(self.sensitivity) or self.sensitivity < 1:
            raise PrivacyError(
                f"a sensitivity of {self.sensitivity}: must be a whole number, at least 1",
                "round what is released to a grid, and give the sensitivity in its steps",
            )

    @property
    def deviation(self) -> float:
        """The noise's standard deviation: √(2p)/(1 − p), p = e^{−ε/sensitivity}."""
        rate = self.epsilon / self.sensitivity
        return math.sqrt(2.0 * math.exp(-rate)) / -math.expm1(-rate)

    def renyi_divergence(self, orders: Array) -> Array:
        """(orders,) the Rényi divergence of the noise and the noise shifted by Δ, the sensitivity.

        With p = e^{−ε/Δ}, Σ_k P(k)^α·Q(k)^{1−α} is (1 − p)/(1 + p) times the sum of three geometric series:
        p^{(1−α)Δ}/(1 − p) for k ≤ 0, p^{αΔ}/(1 − p) for k ≥ Δ, and p^{(1−α)Δ}·Σ p^{(2α−1)k} for 0 < k < Δ. A
        smaller shift is a smaller divergence.
        """
        a = np.asarray(orders, dtype=np.float64)
        rate = self.epsilon / self.sensitivity
        log_one_plus_p = math.log1p(math.exp(-rate))
        below = (a - 1) * self.epsilon - log_one_plus_p
        above = -a * self.epsilon - log_one_plus_p
        log_moment = np.logaddexp(below, above)
        if self.sensitivity > 1:
            step = (2 * a - 1) * rate  # Σ e^{−step·k} over k = 1, …, Δ − 1
            log_series = -step + np.log(-np.expm1(-step * (self.sensitivity - 1))) - np.log(-np.expm1(-step))
            between = below + math.log(-math.expm1(-rate)) + log_series
            log_moment = np.logaddexp(log_moment, between)
        return _rounded_up(log_moment, a, self.epsilon)

    @property
    def pure_epsilon(self) -> float:
        """ε: what the release costs on its own, at δ = 0."""
        return self.epsilon

    @property
    def gaussian_mu(self) -> float:
        """The smallest μ for which the release is μ-GDP.

        Tests with a threshold k on the output have error rates p^k/(1 + p) and p^{Δ+1−k}/(1 + p), and the trade-off
        curve is the lines between these points. As for `LaplaceRelease`, Φ⁻¹(1 − p^k/(1 + p)) is concave in k, so
        the point in the middle, k = ⌊(Δ + 1)/2⌋, decides. For Δ = 1 this is 2Φ⁻¹(e^ε/(1 + e^ε)), as of every ε-DP
        release.
        """
        rate = self.epsilon / self.sensitivity
        middle = (self.sensitivity + 1) // 2
        scale = 1.0 + math.exp(-rate)
        errors = [math.exp(-rate * k) / scale for k in (middle, self.sensitivity + 1 - middle)]
        return float(-ndtri(errors[0]) - ndtri(errors[1]))

    def loss_distribution(self, spacing: float) -> PrivacyLossDistribution:
        """The loss distribution of the discrete Laplace mechanism, by dp-accounting."""
        if self.sensitivity > _MOST_LOSSES:
            raise PrivacyError(
                f"{self}: a loss distribution of {self.sensitivity} different losses",
                f"use a coarser grid, of at most {_MOST_LOSSES} steps",
            )
        return pld.from_discrete_laplace_mechanism(
            self.epsilon / self.sensitivity,
            self.sensitivity,
            value_discretization_interval=spacing,
            use_connect_dots=True,
        )

    def for_group(self, records: int) -> DiscreteLaplaceRelease:
        """The same noise on a shift that is so many times as large."""
        return replace(self, epsilon=self.epsilon * records, sensitivity=self.sensitivity * records)


def _require_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < math.inf:
        raise PrivacyError(f"a Laplace release of ε = {epsilon}: must be finite and above 0", "leave it out")


def _rounded_up(log_moment: Array, orders: Array, epsilon: float) -> Array:
    """(orders,) the divergence of a log moment, plus what float64 may have lost, and never above two known bounds.

    Every ε-DP release has D_α ≤ ε and D_α ≤ αε²/2 [BunSteinke2016]; for very small ε, where the moment is 1 up to
    rounding, the second is the better figure.
    """
    lost = 16 * np.finfo(np.float64).eps * (1.0 + (orders - 1) * epsilon)
    computed = (np.maximum(log_moment, 0.0) + lost) / (orders - 1)
    return np.asarray(np.minimum(computed, np.minimum(epsilon, orders * epsilon**2 / 2)))
