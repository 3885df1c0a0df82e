"""The grid: what its noise covers, and that what leaves are whole steps."""

import math

import numpy as np
import pytest

from privmarket.errors import PrivacyError
from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import (
    BLOCK_RECORDS,
    BLOCKS_IN_FLOAT32,
    CANCELLATION,
    ReleaseGrid,
    double_sum_inflation,
    rounded_sensitivity,
    sum_inflation,
)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.73, 40.0, 1000.0])
@pytest.mark.parametrize("parameters", [1, 650, 109_386, 10_000_000])
def test_noise_covers_the_widened_sensitivity_and_little_more(sigma, parameters):
    """Deviation ≥ σ times the rounded sensitivity, and the whole charge stays below 0.4 % for a million records."""
    clip, inflation = 0.7, sum_inflation(1_000_000)
    grid = ReleaseGrid.for_release(sigma, clip, parameters, inflation)
    widened = rounded_sensitivity(clip * (1 + inflation) / grid.spacing, parameters) * grid.spacing
    assert grid.deviation >= sigma * widened
    assert grid.deviation == pytest.approx(sigma * widened, rel=1e-10)
    assert 1.0 <= grid.deviation / (sigma * clip) <= 1.0036
    rounded = rounded_sensitivity(clip / grid.spacing, parameters) * grid.spacing
    assert rounded / clip - 1.0 <= 1.01 * 2.0**-10


def test_sum_errors():
    b, k = BLOCK_RECORDS, BLOCKS_IN_FLOAT32
    assert sum_inflation(600) == pytest.approx((2 * b**2 + 2 * (k - 1) * k * b + 6 * k * b) * 2.0**-24, rel=2e-3)
    assert sum_inflation(1_000_000) < 0.0023
    assert double_sum_inflation(1_000_000) < 2e-4


def test_sum_errors_of_so_many_records_that_float64_counts():
    """The part of the bounds that is for float64; with fewer records it is lost among the others."""
    n = 10**10
    assert sum_inflation(n) == pytest.approx(1.01 * (2 * n / BLOCK_RECORDS) * n * 2.0**-52, rel=1e-3)
    in_blocks = 1.01 * (4096 + 2 * n / 4096) * n * 2.0**-52
    assert double_sum_inflation(n) == pytest.approx(CANCELLATION * in_blocks, rel=1e-5)


@pytest.mark.parametrize("parameters", [1, 60, 3000])
def test_rounded_neighbours_stay_as_close_as_stated(parameters):
    """Many neighbours rounded with the same dither: the worst stays below the bound, and the bound is of use."""
    rng, grid, worst = np.random.default_rng(parameters), ReleaseGrid(1.0, 2), 0.0
    for trial in range(300):
        sums = rng.normal(0, 50, parameters)
        difference = rng.standard_normal(parameters)
        difference *= 20.0 / np.linalg.norm(difference)
        near, far = (
            grid.noisy_integers(values, NoiseSource.from_seed(trial)) for values in (sums, sums + difference)
        )
        worst = max(worst, float(np.linalg.norm(near - far)))
    assert worst <= rounded_sensitivity(20.0, parameters)
    if parameters == 3000:  # plain rounding would have to allow for √3000 = 55 steps more
        assert rounded_sensitivity(20.0, parameters) < 45


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("levels", [2, 3, 5])
def test_what_leaves_are_whole_steps_near_the_sum(kind, levels):
    rng, grid = np.random.default_rng(0), ReleaseGrid(1e-5, levels)
    sums = (rng.standard_normal(40_000) * 30).astype(kind)
    integers = grid.noisy_integers(sums, NoiseSource.from_seed(1))
    noise = integers - grid.noisy_integers(np.zeros_like(sums), NoiseSource.from_seed(1))
    # zeros stay zeros under any dither, so the difference is K, next to S/γ
    steps = sums.astype(np.float64) / 1e-5
    off = 1.0 + (3 * 2.0**-24 if kind is np.float32 else 2.0**-50) * np.abs(steps)
    assert (np.abs(noise - steps) <= off).all()
    pure = grid.noisy_integers(np.zeros_like(sums), NoiseSource.from_seed(1))
    assert pure.std() == pytest.approx(integer_noise.noise_deviation(levels), rel=5 / math.sqrt(2 * 40_000))
    out = np.empty(40_000, dtype=np.float32)
    grid.noisy(sums, NoiseSource.from_seed(1), out, scale=0.3)
    # float32 may round to the neighbouring step, as the proof allows; integers are always exact
    np.testing.assert_allclose(out, integers * 0.3e-5, rtol=3e-7, atol=0.3e-5)
    onto = np.ones(40_000, dtype=np.float32)
    grid.noisy(sums, NoiseSource.from_seed(1), onto, scale=-0.3, add=True)
    np.testing.assert_allclose(onto, 1 - 0.3e-5 * integers, rtol=1e-5, atol=1e-5)


def test_bad_input():
    with pytest.raises(PrivacyError, match="noise multiplier"):
        ReleaseGrid.for_release(1e9, 1.0, 10_000_000)
    with pytest.raises(PrivacyError, match="flat"):
        ReleaseGrid(1.0).noisy(np.zeros((2, 2)), NoiseSource.from_seed(0), np.zeros((2, 2), dtype=np.float32))


def test_dividing_and_underflow_are_charged():
    """n·2^−51 for the division of n records by γ, 2^−40 for underflow, beside the sums themselves."""
    n, block = 1_000_000, 4096
    in_sums = 1.01 * (block + 2 * n / block + 2) * n * 2.0**-52
    assert double_sum_inflation(n) - CANCELLATION * in_sums == pytest.approx(n * 2.0**-51 + 2.0**-40, rel=1e-3)
