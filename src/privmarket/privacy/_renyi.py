"""Rényi divergence of one noisy step, for many noise multipliers at once, and its conversion to (ε, δ).

Notation: α an order, σ the noise multiplier, q the sampling rate, ρ the Rényi divergence at α.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from privmarket.privacy._gaussian import Array

# dp-accounting's default orders, so that the two agree to rounding.
ORDERS: Array = np.array(
    [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024], dtype=np.float64
)
ORDERS.setflags(write=False)

# Below, an integral is summed; from here on, orders are whole and the binomial sum is exact.
_FIRST_BINOMIAL = 11.0
_SUMMED = ORDERS[ORDERS < _FIRST_BINOMIAL]
_WHOLE = ORDERS[ORDERS >= _FIRST_BINOMIAL].astype(np.int64)


def step_divergence(noise_multiplier: ArrayLike, sampling_rate: float) -> Array:
    """ρ(α) of one Poisson-sampled Gaussian step at every order.

    Args:
        noise_multiplier: (n,) or a number.

    Returns:
        (n, orders), or (orders,) for a number.

    Implements: Section 3.3 of [MironovTalwarZhang2019]; of the two directions the one with the record in the
    numerator is the larger, as shown there, so one suffices for add/remove.
    """
    sigma = np.atleast_1d(np.asarray(noise_multiplier, dtype=np.float64))
    if sampling_rate == 1.0:
        rows = ORDERS / (2.0 * sigma[:, None] ** 2)
    else:
        summed = np.stack([_log_moment_integral(s, sampling_rate) for s in sigma])
        whole = _log_moment_binomial(sigma, sampling_rate)
        # log of a moment is ≥ 0; rounding may leave it at −1e-16.
        rows = np.maximum(np.concatenate([summed, whole], axis=1), 0.0) / (ORDERS - 1.0)
    return rows if np.ndim(noise_multiplier) else rows[0]


def epsilon_from_divergence(divergence: ArrayLike, delta: float) -> Array:
    """The ε that ρ(α), known at every order, certifies at δ. (..., orders) → (...,).

    Implements: Proposition 12 of [CanonneKamathSteinke2020]; ε = 0 where the total variation, bounded
    through the divergence of order 1 or more, is below δ.
    """
    rho = np.asarray(divergence, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        candidate = rho + conversion_cost(ORDERS, delta)
    # TV ≤ √(1 − e^(−KL)) and KL ≤ ρ(α), Bretagnolle–Huber.
    tiny = -np.expm1(-rho) < delta**2
    return np.asarray(np.maximum(np.where(tiny, 0.0, candidate).min(axis=-1), 0.0))


def conversion_cost(order: ArrayLike, delta: float) -> Array:
    """What turning ρ(α) into ε at δ adds: ε = ρ(α) + cost. Negative for some large orders."""
    a = np.asarray(order, dtype=np.float64)
    return np.log1p(-1.0 / a) - np.log(delta * a) / (a - 1.0)


def _log_moment_binomial(sigma: Array, q: float) -> Array:
    """(n, whole orders) log E[(1 − q + q e^loss)^α] by the binomial theorem, in logarithms."""
    starts = np.concatenate([[0], np.cumsum(_WHOLE + 1)[:-1]])
    alpha = np.repeat(_WHOLE, _WHOLE + 1).astype(np.float64)
    i = np.concatenate([np.arange(a + 1) for a in _WHOLE]).astype(np.float64)
    choose = gammaln(alpha + 1) - gammaln(i + 1) - gammaln(alpha - i + 1)
    constant = choose + i * np.log(q) + (alpha - i) * np.log1p(-q)
    terms = constant + (i * i - i) / (2.0 * sigma[:, None] ** 2)
    top = np.maximum.reduceat(terms, starts, axis=1)
    scaled = np.exp(terms - np.repeat(top, _WHOLE + 1, axis=1))
    return np.asarray(top + np.log(np.add.reduceat(scaled, starts, axis=1)))


def _log_moment_integral(sigma: float, q: float) -> Array:
    """(orders below 11,) log E[(1 − q + q e^loss)^α] under N(0, σ²), by the trapezoidal rule.

    The integrand is analytic in a strip of half-width πσ² and falls like a Gaussian, so the rule converges
    exponentially in 1/spacing; the spacing is small against both σ and σ².
    """
    spacing = min(sigma / 8.0, sigma**2 / 2.0)
    z = np.arange(-13.0 * sigma, _SUMMED[-1] + 13.0 * sigma, spacing)
    log_density = -0.5 * (z / sigma) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(sigma)
    log_ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2.0 * z - 1.0) / (2.0 * sigma**2))
    exponent = _SUMMED[:, None] * log_ratio + log_density
    top = exponent.max(axis=1)
    total: NDArray[np.float64] = np.exp(exponent - top[:, None]).sum(axis=1)
    return np.asarray(top + np.log(total * spacing))
