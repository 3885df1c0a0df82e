"""Draws of discrete Laplace noise against their probabilities.

Seeds are fixed; with another seed a right sampler would fail each of the three checks with probability 1e-6.
"""

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

from privmarket.privacy._noise import NoiseSource, draw_discrete_laplace

DRAWS = 40_000
FALSE_ALARM = 1e-6


def chi_square(draws, rate, edge):
    """The χ² statistic over single numbers up to ±edge and the two tails, and its threshold."""
    p = np.exp(-float(rate))
    numbers = np.arange(-edge, edge + 1)
    tail = p ** (edge + 1) / (1 + p)
    expected = np.concatenate([[tail], (1 - p) / (1 + p) * p ** np.abs(numbers), [tail]]) * draws.size
    places = np.clip(draws, -edge - 1, edge + 1) + edge + 1
    seen = np.bincount(places, minlength=expected.size)
    return ((seen - expected) ** 2 / expected).sum(), chi2.isf(FALSE_ALARM, expected.size - 1)


@pytest.mark.parametrize(("rate", "edge"), [(Fraction(1, 2), 12), (Fraction(0.1), 60), (Fraction(7, 3), 2)])
def test_draws_follow_their_distribution(rate, edge):
    draws = np.array(draw_discrete_laplace(NoiseSource.from_seed(11), DRAWS, rate))
    found, threshold = chi_square(draws, rate, edge)
    assert found < threshold


def test_laplace_noise_that_is_rounded_is_noticed():
    """The broken subject: continuous Laplace noise of the same scale, rounded, is no discrete Laplace noise."""
    rounded = np.rint(np.random.default_rng(0).laplace(scale=2.0, size=DRAWS)).astype(int)
    found, threshold = chi_square(rounded, Fraction(1, 2), 12)
    assert found > threshold
