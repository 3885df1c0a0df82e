"""Integer noise against its law: by mpmath for the tables and the lemmas, by brute force for the inversion."""

import math
import time
from bisect import bisect_right

import mpmath as mp
import numpy as np
import pytest

from privmarket.errors import PrivacyError
from privmarket.privacy import _integer_noise as integer_noise
from privmarket.privacy._integer_noise import _REACH, DIGIT_DEVIATION, RADIX, draw, draw_digits, tables
from privmarket.privacy._noise import NoiseSource

mp.mp.dps = 80
DISCRETE, ROUNDED = 0, 1


class FixedBytes:
    """Further random bytes that are chosen, to reach the corners."""

    def __init__(self, more):
        self.more = more

    def more_bytes(self, count):
        taken, self.more = self.more[:count], self.more[count:]
        assert len(taken) == count
        return np.frombuffer(taken, dtype=np.uint8)


def weight(x, variance):
    return mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(variance)))


def discrete_gaussian(x, variance):
    """P(X = x) of the discrete Gaussian on the integers; from s = 6 on the total is √(2π)·s to 300 digits."""
    return weight(x, variance) / (mp.sqrt(2 * mp.pi) * mp.sqrt(variance))


@pytest.mark.parametrize("k", [-3000, -700, -256, 0, 1, 900, 2500])
def test_steps_are_the_distribution_functions(k):
    discrete = mp.fsum(discrete_gaussian(x, DIGIT_DEVIATION**2) for x in range(-4000, k))
    rounded = mp.ncdf((k - mp.mpf(1) / 2) / DIGIT_DEVIATION)
    for kind, exact in ((DISCRETE, discrete), (ROUNDED, rounded)):
        step = tables().steps[kind][k + _REACH - 1]
        assert 0 <= exact * mp.mpf(2) ** 144 - step < 1.01  # rounded down, the ends cut off


def test_steps_are_symmetric_and_ascending():
    for steps in tables().steps:
        assert list(steps) == sorted(steps)
        assert len(steps) == 2 * _REACH
        assert all(0 <= low + high - 2**144 + 1 <= 1 for low, high in zip(steps, steps[::-1], strict=True))


def digit_of(uniform, kind):
    """What `draw_digits` makes of a uniform number of 144 bits, given as the random words it would draw."""
    raw = uniform.to_bytes(18, "big")
    more = raw[2:3] + raw[3:11][::-1] + raw[11:][::-1]
    cell = np.array([int.from_bytes(raw[:2], "big")] * (2 if kind == DISCRETE else 1), dtype=np.uint16)
    if kind == DISCRETE:  # the first of two digits; the second is the rounded kind, decided by its first bits
        cell[1] = 40_000
    return int(draw_digits(cell, cell.size, FixedBytes(more + bytes(16)))[0, 0])


@pytest.mark.parametrize("kind", [DISCRETE, ROUNDED])
def test_every_uniform_number_is_inverted(kind):
    """The tables say what bisection of the distribution function says, also on the very edge of a step."""
    rng, steps = np.random.default_rng(0), tables().steps[kind]
    assert (tables().guide[40_000 + 65536] >= -_REACH).all()
    near = [steps[k + _REACH - 1] + shift for k in (-3500, -2000, -5, 0, 1, 700, 3300) for shift in (-1, 0, 1)]
    anywhere = [int.from_bytes(rng.bytes(18), "big") for _ in range(2000)]
    tails = [uniform >> int(rng.integers(0, 100)) for uniform in anywhere]
    for uniform in [0, 2**144 - 1, *near, *anywhere, *tails]:
        assert digit_of(uniform, kind) == bisect_right(steps, uniform) - _REACH


def test_few_cells_are_open():
    law = tables()
    assert 0.02 < np.mean(law.guide < -_REACH) < 0.03
    assert np.mean(law.fine < -_REACH) < 0.006
    assert law.crowded.mean() < 0.05


@pytest.mark.parametrize("levels", [2, 3])
def test_upper_digits_add_up_to_a_discrete_gaussian(levels):
    """Lemma 2 on the integers: the law of 128·A + B over the discrete Gaussian's is constant to 2^−112."""
    upper = DIGIT_DEVIATION**2 * sum(RADIX ** (2 * k) for k in range(levels - 1))
    variance = RADIX**2 * upper + DIGIT_DEVIATION**2
    ratios = []
    for z in (0, 1, 63, 64, -77, 5 * int(math.sqrt(variance)) + 31):
        centre = round(z / RADIX)
        found = mp.fsum(
            discrete_gaussian(x, upper) * discrete_gaussian(z - RADIX * x, DIGIT_DEVIATION**2)
            for x in range(centre - 60, centre + 61)
        )
        ratios.append(found / discrete_gaussian(z, variance))
    assert max(abs(r - 1) for r in ratios) < mp.mpf(2) ** -112
    # and the bound is not idle: with steps as wide as a digit's deviation it would fail
    coarse = [
        mp.fsum(discrete_gaussian(x, 256**2) * discrete_gaussian(z - 256 * x, 256**2) for x in range(-60, 61))
        for z in (0, 128)
    ]
    assert abs(coarse[0] / coarse[1] * weight(128, 256**4 + 256**2) - 1) > 1e-9


def test_with_the_lowest_digit_the_sum_is_a_rounded_gaussian():
    """Lemma 2 on the line: 128·A + round(G) has the probabilities of a rounded Gaussian of deviation 2^15."""
    half, upper = mp.mpf(1) / 2, DIGIT_DEVIATION**2
    whole = mp.sqrt(RADIX**2 * upper + DIGIT_DEVIATION**2)
    assert float(whole) == pytest.approx(integer_noise.deviation(2), rel=1e-15)
    for z in (0, 1, 77, -30_000, 150_001):
        centre = round(z / RADIX)
        found = mp.fsum(
            discrete_gaussian(x, upper)
            * (
                mp.ncdf((z - RADIX * x + half) / DIGIT_DEVIATION)
                - mp.ncdf((z - RADIX * x - half) / DIGIT_DEVIATION)
            )
            for x in range(centre - 60, centre + 61)
        )
        exact = mp.ncdf((z + half) / whole) - mp.ncdf((z - half) / whole)
        assert abs(found / exact - 1) < mp.mpf(2) ** -112


def test_stated_distance():
    theta = 2.0001 * math.exp(-2 * math.pi**2 * 256**2 / (128**2 + 1))
    levels = integer_noise.MAX_LEVELS
    exact = (levels - 1) * 1.01 * theta + levels * 2 * _REACH * 2.0**-144
    assert exact < integer_noise.DISTANCE < 4 * exact
    with pytest.raises(PrivacyError, match="digits"):
        integer_noise.deviation(9)


def test_draws_are_their_digits_and_repeat_with_the_key():
    count = integer_noise.CHUNK + 77
    first, again = (draw(NoiseSource.from_seed(3), count, 4) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first).max() <= integer_noise.largest(4)
    source = NoiseSource.from_seed(3)
    digits = draw_digits(source.cells(4 * integer_noise.CHUNK), 4, source).astype(np.int64)
    expected = 128**3 * digits[0] + 128**2 * digits[1] + 128 * digits[2] + digits[3]
    np.testing.assert_array_equal(first[: integer_noise.CHUNK], expected)


def test_twenty_million_draws_a_second():
    """The aim on one thread is 20 million of any kind; the limit here leaves room for a busy machine."""
    source, count = NoiseSource.from_seed(0), integer_noise.CHUNK
    best = math.inf
    for _ in range(50):
        start = time.process_time()
        draw_digits(source.cells(2 * count), 2, source)
        best = min(best, time.process_time() - start)
    assert count / best > 20e6
