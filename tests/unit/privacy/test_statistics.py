"""Single statistics: what one record moves, that the wallet pays first, and that the noise is what is stated."""

from fractions import Fraction

import numpy as np
import pytest

from privmarket.errors import PrivacyError, WalletError
from privmarket.privacy._laplace import DiscreteLaplaceRelease
from privmarket.privacy._noise import NoiseSource, draw_discrete_laplace
from privmarket.privacy._statistics import Count, Histogram, Mean, release_statistic
from privmarket.privacy._wallet import Wallet

RNG = np.random.default_rng(0)
CASES = {
    "count": (Count(), RNG.random(300) < 0.3, False),
    "mean": (Mean(-3.0, 5.0, 300), RNG.normal(1.0, 4.0, 300), np.nan),
    "coarse mean": (Mean(0.1, 0.30000000000000004, 300, steps=3), RNG.uniform(0, 0.4, 300), np.nan),
    "histogram": (Histogram("abc"), RNG.choice(list("abcd"), 300), "?"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_one_number_by_at_most_the_sensitivity(name):
    statistic, records, blank = CASES[name]
    before = statistic.whole_numbers(records)
    for at in range(records.size):
        without = records.copy()
        without[at] = blank
        moved = np.abs(statistic.whole_numbers(without) - before)
        assert np.count_nonzero(moved) <= 1
        assert moved.max() <= statistic.sensitivity


def test_extreme_records_move_a_mean_by_the_sensitivity_and_no_more():
    statistic = Mean(-1.0, 3.0, 4)
    for value in (np.inf, -np.inf, 1e308, -1e308, 3.0, -1.0):
        assert abs(int(statistic.whole_numbers([value, np.nan, np.nan, np.nan])[0])) == statistic.sensitivity

    class Unclipped(Mean):
        """Broken on purpose: a value outside of the range counts as it is."""

        def whole_numbers(self, records):
            return np.array([np.rint(np.asarray(records) * self.steps).sum()])

    assert abs(Unclipped(-1.0, 3.0, 4).whole_numbers([1e6])[0]) > statistic.sensitivity


@pytest.mark.parametrize("name", CASES)
def test_released_values_are_the_statistic_with_noise_of_the_stated_deviation(name):
    statistic, records, _ = CASES[name]
    exact = statistic.in_units(statistic.whole_numbers(records))
    source = NoiseSource.from_seed(3, name)
    releases = [release_statistic(statistic, records, 0.8, source=source) for _ in range(600)]
    errors = np.stack([one.values for one in releases]) - exact
    deviation = releases[0].deviation
    # Of 600 or more draws; five deviations of the mean and of the standard deviation (kurtosis 6).
    assert np.abs(errors.mean(axis=0)).max() < 5 * deviation / np.sqrt(600)
    assert errors.std() == pytest.approx(deviation, rel=5 * np.sqrt(5 / 4 / errors.size))
    assert releases[0].event == DiscreteLaplaceRelease(0.8, statistic.sensitivity)


def test_the_mean_is_near_that_of_the_clipped_records():
    values = RNG.uniform(0.0, 10.0, 5000)
    found = release_statistic(Mean(0.0, 10.0, 5000), values, 1.0, source=NoiseSource.from_seed(1))
    assert abs(found.values[0] - values.mean()) < 6 * found.deviation + 10 / 4096
    assert found.deviation == pytest.approx(5.0 / 5000 * np.sqrt(2), rel=1e-3)


class Unreadable:
    """Records that must not be looked at."""

    def __array__(self, *_, **__):
        raise AssertionError("the records were looked at")


def test_the_wallet_pays_before_the_records_are_looked_at():
    wallet = Wallet(1.0)
    with pytest.raises(AssertionError, match="looked at"):
        release_statistic(Count(), Unreadable(), 0.4, wallet=wallet)
    assert wallet.history == (DiscreteLaplaceRelease(0.4),)
    with pytest.raises(WalletError):
        release_statistic(Count(), Unreadable(), 0.9, wallet=wallet)
    assert len(wallet.history) == 1


def test_without_a_seed_no_two_releases_are_alike():
    released = {tuple(release_statistic(Histogram(range(40)), [1, 2, 3], 0.5).values) for _ in range(3)}
    assert len(released) == 3


class FewBits:
    """A source of 16 random bits, which then has no more."""

    def __init__(self, bits):
        self.bits = bits

    def more_bytes(self, count):
        if self.bits is None:
            raise EOFError
        found = np.frombuffer(self.bits.to_bytes(2, "little"), dtype=np.uint8)
        self.bits = None
        return found


def decided_by_sixteen_bits(draw, rate):
    """number → the share of all 2^16 bit strings that decide for it; the rest is undecided."""
    shares = {}
    for bits in range(2**16):
        try:
            number = draw(FewBits(bits), 1, rate)[0]
        except EOFError:
            continue
        shares[number] = shares.get(number, 0) + 2.0**-16
    return shares


@pytest.mark.parametrize(("rate", "left_open"), [(Fraction(1), 0.12), (Fraction(3, 2), 0.34)])
def test_sixteen_bits_decide_for_no_number_more_often_than_its_probability(rate, left_open):
    """Exact, by brute force: decided ≤ probability ≤ decided + undecided, for every number."""
    shares = decided_by_sixteen_bits(draw_discrete_laplace, rate)
    undecided = 1 - sum(shares.values())
    assert undecided < left_open
    p = np.exp(-float(rate))
    for number in range(-6, 7):
        exact = (1 - p) / (1 + p) * p ** abs(number)
        assert shares.get(number, 0.0) <= exact + 1e-12
        assert exact <= shares.get(number, 0.0) + undecided + 1e-12


def test_a_sampler_that_keeps_negative_zeros_is_noticed():
    """The broken subject: zero is drawn too often, and every other number too seldom."""

    def with_negative_zeros(source, count, rate):
        from privmarket.privacy._noise import _Bits

        bits = _Bits(source)
        whole = 0
        while bits.exp_minus(1, 1):
            whole += 1
        return [-whole if bits.below(2) else whole]

    shares = decided_by_sixteen_bits(with_negative_zeros, Fraction(1))
    assert shares[0] > (1 - np.exp(-1)) / (1 + np.exp(-1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mean(1.0, 1.0, 3),
        lambda: Mean(0.0, np.inf, 3),
        lambda: Mean(-1e308, 1e308, 3),
        lambda: Mean(0.0, 1.0, 0),
        lambda: Histogram([]),
        lambda: Histogram("aa"),
        lambda: release_statistic(Count(), [True], 0.0),
        lambda: release_statistic(Count(), [True], 1e-13),
        lambda: draw_discrete_laplace(NoiseSource.from_seed(0), 1, Fraction(0)),
    ],
)
def test_what_cannot_be_released_is_refused_with_a_remedy(make):
    with pytest.raises(PrivacyError) as caught:
        make()
    assert caught.value.hint
