"""Closed forms of one Gaussian release, full batch or one Poisson-sampled step.

Notation: μ = 1/noise_multiplier, Φ the standard normal distribution function, q the sampling rate.
All functions take and return float64 arrays of any one shape.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtri

Array = NDArray[np.float64]

# Halvings of a bracket; float64 has 52 bits of fraction.
_HALVINGS = 60


def delta_of(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """The smallest δ for which a μ-Gaussian release is (ε, δ)-DP.

    Implements: Theorem 8 of [BalleWang2018].
    """
    e = np.asarray(epsilon, float)
    m = np.asarray(mu, float)
    # e^ε Φ(·) in logarithms: e^ε alone overflows from ε = 710 on.
    return np.asarray(np.exp(log_ndtr(m / 2 - e / m)) - np.exp(e + log_ndtr(-m / 2 - e / m)))


def mu_of(epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """The largest μ that is (ε, δ)-DP, from below: never more than the exact value.

    Implements: the analytic Gaussian mechanism of [BalleWang2018], by bisection on log μ.
    """
    e, d = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    # δ(ε; μ) ≤ P(loss > ε), which falls short of δ at the lower end and exceeds it at the upper end.
    tail = -ndtri(d)
    safe = np.log(np.sqrt(tail**2 * (tail > 0) + 2 * e) - tail * (tail > 0))
    low = safe - 1.0
    high = np.log(2 * np.sqrt(2 * e) + 20.0)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        private = delta_of(e, np.exp(middle)) <= d
        low = np.where(private, middle, low)
        high = np.where(private, high, middle)
    return np.asarray(np.exp(low))


def epsilon_of(mu: ArrayLike, delta: ArrayLike) -> Array:
    """The smallest ε ≥ 0 at which a μ-Gaussian release is (ε, δ)-DP, from above.

    Implements: the inverse of Theorem 8 of [BalleWang2018], by bisection.
    """
    m, d = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    m = np.maximum(m, 1e-300)  # nothing released, μ = 0, costs nothing
    # The privacy loss is N(μ²/2, μ²) and δ(ε) ≤ P(loss > ε).
    low = np.zeros(m.shape)
    high = m**2 / 2 + m * np.maximum(-ndtri(d), 0.0)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        private = delta_of(middle, m) <= d
        low = np.where(private, low, middle)
        high = np.where(private, middle, high)
    return np.asarray(high)


def sampled_noise_multiplier(epsilon: ArrayLike, delta: float, sampling_rate: float) -> Array:
    """The smallest noise multiplier that makes one Poisson-sampled step (ε, δ)-DP, from above.

    Implements: privacy amplification by Poisson sampling, Theorem 8 of [BalleBartheGaboardi2018], which for
    add/remove neighbours is tight: δ_q(log(1 + q(e^ε − 1))) = q·δ_1(ε).
    """
    e = np.asarray(epsilon, float)
    return 1.0 / mu_of(np.log1p(np.expm1(e) / sampling_rate), min(delta / sampling_rate, 0.5))


def sampled_epsilon(noise_multiplier: ArrayLike, delta: float, sampling_rate: float) -> Array:
    """The smallest ε of one Poisson-sampled step, the inverse of `sampled_noise_multiplier`."""
    inner = epsilon_of(1.0 / np.asarray(noise_multiplier, float), min(delta / sampling_rate, 0.5))
    return np.asarray(np.log1p(sampling_rate * np.expm1(inner)))


def literal_noise_multiplier(epsilon: ArrayLike, delta: float, *, form: str = "algorithm-2") -> Array:
    """The paper's classical formulas, for comparison only; no promise is made by them.

    `algorithm-2` is √(2 ln(1.25/δ))/ε, `definition` is 2√ln(1.25/δ)/ε: they differ by √2.

    Implements: the noise of Algorithm 2 and of the DP definition in [Sun2026]; see docs/fidelity.md.
    Deviation: none; the classical theorem behind it needs ε < 1, and above that it under-noises.
    """
    factors = {"algorithm-2": np.sqrt(2.0), "definition": 2.0}
    return np.asarray(factors[form] * np.sqrt(np.log(1.25 / delta)) / np.asarray(epsilon, float))
