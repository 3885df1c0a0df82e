"""Shares of a common noise: known answers, the modulus, what is refused."""

import math

import numpy as np
import pytest

from privmarket.errors import PrivacyError
from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._release import release_distance
from privmarket.secagg import (
    MOST_DRAWS,
    SharedSum,
    alone_noise_multiplier,
    bits_at_most,
    colluders_allowed,
    honest_sellers,
    modular_sum,
    survivors_needed,
)

SIGMA = np.array([5.0, 10.0, 20.0, 40.0, 10.0, 5.0])


def _plan(sigma=SIGMA, records=50, **changes) -> SharedSum:
    public = {"clip_norm": 2.0, "parameters": 1000, "honest_share": 2 / 3}
    return SharedSum.plan(sigma, records, **{**public, **changes})


@pytest.mark.parametrize(("sellers", "share", "honest"), [(3, 2 / 3, 2), (100, 2 / 3, 67), (1, 0.1, 1), (7, 1, 7)])
def test_honest_sellers_are_counted_upwards(sellers, share, honest):
    assert honest_sellers(sellers, share) == honest


@pytest.mark.parametrize(
    ("sellers", "share", "colluders", "needed"),
    [(1, 2 / 3, 0, 1), (3, 2 / 3, 1, 3), (7, 2 / 3, 1, 6), (100, 2 / 3, 17, 84), (7, 1.0, 0, 7), (10, 0.1, 5, 8)],
)
def test_of_those_that_need_not_be_honest_half_may_collude_and_half_drop_out(sellers, share, colluders, needed):
    assert colluders_allowed(sellers, share) == colluders
    assert survivors_needed(sellers, share) == needed
    assert needed - colluders >= honest_sellers(sellers, share)


def test_a_record_moves_the_sum_by_no_more_than_the_honest_noise_allows():
    plan = _plan()
    noise = math.sqrt(plan.honest) * integer_noise.noise_deviation(plan.levels)
    moved = plan.weights * 2.0 + math.sqrt(1000)  # rounding to the grid included
    assert (moved * SIGMA <= noise).all()
    # The margin for finite arithmetic is small: what a buyer loses by it is below 2 % of the noise.
    assert (moved * SIGMA > 0.98 * noise).all()


def test_weights_are_inverse_to_the_noise_multiplier_whatever_the_others_sold():
    plan = _plan(parameters=4)
    np.testing.assert_allclose(plan.weights * SIGMA, (plan.weights * SIGMA)[0], rtol=2e-3)
    others = _plan(np.array([5.0, 40.0, 40.0, 40.0, 40.0, 40.0]), parameters=4)
    assert others.weights[0] == plan.weights[0]


def test_the_noise_on_the_mean_is_what_the_theory_says():
    plan = _plan(parameters=4)
    everybody = range(6)
    expected = 2.0 * math.sqrt(6 / plan.honest) / (1 / SIGMA).sum()
    assert plan.deviation(everybody) == pytest.approx(expected, rel=5e-3)
    assert plan.deviation(everybody) > expected


def test_after_drop_outs_the_noise_is_that_of_those_who_came_through():
    """Each survivor adds its noise and its weight, so every opened sum has the noise of T sellers or more."""
    plan = _plan(parameters=4)
    came = [0, 2, 3, 4, 5]
    assert len(came) == plan.needed
    expected = 2.0 * math.sqrt(len(came) / plan.honest) / (1 / SIGMA[came]).sum()
    assert plan.deviation(came) == pytest.approx(expected, rel=5e-3)
    in_steps = plan.deviation(came) * plan.weights[came].sum()
    assert in_steps == pytest.approx(math.sqrt(len(came)) * integer_noise.noise_deviation(plan.levels))
    # Whoever of them colludes, h are left.
    assert len(came) - colluders_allowed(6, 2 / 3) >= plan.honest


def test_below_the_threshold_nothing_is_opened():
    plan = _plan()
    shares = np.ones((6, 1000), dtype=np.int64)
    assert (plan.honest, plan.needed) == (4, 5)  # one may collude, one may drop out
    assert plan.opened(shares[:4], [0, 1, 2, 3]) is None
    opened = plan.opened(shares[:5], [0, 1, 2, 3, 4])
    np.testing.assert_allclose(opened, 5 / plan.weights[:5].sum())


@pytest.mark.parametrize("bits", [8, 32, 63, 64])
def test_a_modular_sum_is_the_sum_while_it_fits_and_wraps_beyond(bits):
    top = 2 ** (bits - 1) - 1
    shares = np.array([[top - 5, -top, 3], [5, -1, -10]], dtype=np.int64)
    np.testing.assert_array_equal(modular_sum(shares, bits), [top, -top - 1, -7])
    wrapped = modular_sum(np.array([[top], [1]], dtype=np.int64), bits)
    np.testing.assert_array_equal(wrapped, [-top - 1])


def test_partial_sums_may_wrap_and_the_total_is_right():
    rng = np.random.default_rng(0)
    shares = rng.integers(-(2**62), 2**62, (9, 50))
    shares[-1] = 17 - shares[:-1].astype(object).sum(axis=0).astype(object) % 2**40
    np.testing.assert_array_equal(modular_sum(shares.astype(np.int64), 40), np.full(50, 17))


def test_no_possible_sum_wraps():
    plan = _plan()
    largest = 50 * plan.weights * 2.0 + 1 + integer_noise.largest_noise(plan.levels)
    assert int(largest.sum()) < 2 ** (plan.bits - 1)
    assert int(largest.sum()) > 2 ** (plan.bits - 3)  # nor are bits wasted


def test_the_bits_before_the_bids_cover_the_bits_after_them():
    before = bits_at_most(6, 50, float(SIGMA.min()), 1000, 2 / 3)
    assert before >= _plan(np.full(6, SIGMA.min())).bits


def test_a_modulus_too_small_is_refused_with_the_number_of_bits():
    needed = _plan().bits
    assert _plan(modulus_bits=needed).bits == needed
    with pytest.raises(PrivacyError, match=f"needs {needed} bits, the modulus has {needed - 1}"):
        _plan(modulus_bits=needed - 1)


def test_shares_that_float64_would_round_are_refused():
    """Integers beyond 2^53 would be rounded after their noise is in: the sum would no longer hide one share."""
    far_apart = np.array([1000.0, 0.2, 1000.0])  # the first needs long noise, the second weighs much
    plan = {"records": 8_000_000, "parameters": 1_000_000}
    with pytest.raises(PrivacyError, match="the modulus has 54"):
        _plan(far_apart, **plan)
    rounded = _plan(far_apart, modulus_bits=64, **plan)  # what was once allowed
    most = 8_000_000 * rounded.weights.max() * 2.0
    assert most > 2**53
    assert float(int(most) | 1) != int(most) | 1
    fits = _plan(np.full(3, 0.2), **plan)
    assert 8_000_000 * fits.weights.max() * 2.0 + integer_noise.largest_noise(fits.levels) < 2**53


def test_the_share_of_delta_covers_as_many_draws_as_a_round_may_have():
    """The page's distance of one draw, times 2^30, against what calibration charges for every release."""
    joined, tables = 4 * 1.01 * 2.0**-112, 5 * 2.0**-131
    assert joined + tables < 4.05 * 2.0**-112 < integer_noise.DISTANCE
    assert release_distance(2**28) > MOST_DRAWS * 4.05 * 2.0**-112
    assert release_distance(2**28) < MOST_DRAWS * integer_noise.DISTANCE  # the rounder figure would not do


@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [1.0, float("nan")], [float("inf")]])
def test_bad_noise_multipliers_are_refused(bad):
    with pytest.raises(PrivacyError, match="noise multipliers"):
        _plan(np.array(bad))


def test_more_noise_than_integers_carry_is_refused():
    with pytest.raises(PrivacyError, match="beyond the integer noise"):
        _plan(np.array([1e12]))


def test_a_share_alone_protects_with_the_root_of_h_less():
    np.testing.assert_allclose(alone_noise_multiplier([10.0], 4), [5.0])
