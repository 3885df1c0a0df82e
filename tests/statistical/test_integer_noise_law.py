"""Integer noise follows its law. Each check has a false-alarm rate of 1e-4 or less at a fixed seed."""

import numpy as np
import pytest
from scipy import stats

from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._noise import NoiseSource, draw_digits, draw_integers

DRAWS = 1_500_000
FALSE_ALARM = 1e-4


def digits(seed: int, count: int = DRAWS, kind: int = 0) -> np.ndarray:
    """Digits of the discrete (0) or the rounded (1) kind: the upper or the lower of two."""
    source, size = NoiseSource.from_seed(seed), integer_noise.CHUNK
    return np.concatenate(
        [draw_digits(source.cells(2 * size), 2, source)[kind].copy() for _ in range(count // size)]
    )


def digit_p_value(sample: np.ndarray, kind: int = 0) -> float:
    """Chi-square of all digits within 3.6 deviations, each in a class of its own, and two tails."""
    reach, edge = integer_noise._REACH, 920
    lower = np.array([float(step / 2**144) for step in integer_noise.digit_tables().steps[kind]])
    inside = np.diff(lower)[reach - 1 - edge : reach + edge]
    tails = lower[reach - 1 - edge]
    expected = np.concatenate([[tails], inside, [1 - inside.sum() - tails]]) * sample.size
    clipped = np.clip(sample.astype(int), -edge - 1, edge + 1)
    counted = np.bincount(clipped + edge + 1, minlength=2 * edge + 3)
    return float(stats.chisquare(counted, expected).pvalue)


@pytest.mark.parametrize("kind", [0, 1])
def test_digits_follow_their_law(kind):
    assert digit_p_value(digits(kind, kind=kind), kind) > FALSE_ALARM


@pytest.mark.parametrize(
    "broken",
    [
        lambda x: np.where(x == 0, 1, x),
        lambda x: np.rint(x * 1.003),
        lambda x: x - (x % 64 == 7) * (np.arange(x.size) % 8 == 0),
    ],
)
def test_a_digit_that_is_slightly_off_is_caught(broken):
    assert digit_p_value(broken(digits(0))) < FALSE_ALARM


@pytest.mark.parametrize("levels", [2, 4])
def test_draws_are_normal_and_uniform_in_their_last_bits(levels):
    sample = draw_integers(NoiseSource.from_seed(5), DRAWS // 3, levels)
    scaled = sample / integer_noise.noise_deviation(levels)
    assert stats.kstest(scaled, "norm").pvalue > FALSE_ALARM
    assert abs(np.mean(scaled**2) - 1) < 4 * np.sqrt(2 / sample.size)
    assert abs(np.mean(scaled[:-1] * scaled[1:])) < 4 / np.sqrt(sample.size)
    for modulus in (2, 7, 128, 1000):
        counted = np.bincount(sample % modulus, minlength=modulus)
        assert stats.chisquare(counted).pvalue > FALSE_ALARM, modulus


def test_digits_of_opendp_have_the_same_law():
    """OpenDP's exact discrete Gaussian of scale 256 as oracle: two samples, one law."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    theirs = np.array((space >> dp.m.then_gaussian(scale=256.0))([0] * 30_000))
    assert stats.ks_2samp(theirs, digits(7, 600_000)).pvalue > FALSE_ALARM
    assert stats.ks_2samp(theirs, np.rint(1.06 * digits(7, 600_000))).pvalue < FALSE_ALARM
