"""The error of a sum under aggregate trust: values by hand, limits, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._bids import Bids
from privmarket.market._distributions import scenario
from privmarket.market._objectives import OBJECTIVES, TOTAL_EPSILON, AggregateError, objective
from privmarket.market._outcome import Outcome
from privmarket.privacy._gaussian import delta_of, mu_of


def outcome(epsilon) -> Outcome:
    sold = np.asarray(epsilon, dtype=float)
    return Outcome(sold, np.zeros_like(sold))


def test_by_hand_with_linear_strength():
    # Two of four equal clients sell 1 and 3: α = (1/4, 3/4, 0, 0), Σ|α − 1/4| = 0 + 1/2 + 1/4 + 1/4 = 1.
    bids = Bids([1, 1, 1, 1], [5, 5, 5, 5])
    goal = AggregateError(kappa=2.0, heterogeneity=0.5, honest_share=0.5, delta=None)
    assert goal.value(outcome([1, 3, 0, 0]), bids) == pytest.approx(2 / 0.5 / 4**2 + 0.25 * 1.0)


def test_equal_sales_have_no_bias_whatever_the_data_sizes():
    # Updates are sums over records, so equal μ weigh every record alike.
    bids = Bids([1, 1, 1], [5, 5, 5], data_size=[10, 200, 7])
    variance, bias = AggregateError(heterogeneity=3.0).terms(np.array([0.3, 0.3, 0.3]), bids)
    assert bias == pytest.approx(0.0, abs=1e-24)
    assert variance == pytest.approx(1.5 / (3 * mu_of(0.3, 1e-5)) ** 2)


def test_against_plain_loops(rng):
    bids = Bids(rng.random(7), rng.uniform(0.1, 5, 7), data_size=rng.uniform(1, 9, 7))
    sold = bids.epsilon * (rng.random(7) < 0.6) * 0.7
    sold[0] = bids.epsilon[0]
    goal = AggregateError(0.7, 0.3, 0.8, 1e-6)
    records = bids.data_size / bids.data_size.mean()
    strength = [float(mu_of(e, 1e-6)) * r if e > 0 else 0.0 for e, r in zip(sold, records, strict=True)]
    share = bids.data_size / bids.data_size.sum()
    distance = sum(abs(s / sum(strength) - w) for s, w in zip(strength, share, strict=True))
    expected = 0.7 / 0.8 / sum(strength) ** 2 + 0.3**2 * distance**2
    assert goal.value(outcome(sold), bids) == pytest.approx(expected)


def test_strength_is_the_exact_gaussian_one():
    mu = AggregateError(delta=1e-5).mu(np.array([0.0, 0.01, 0.5, 5.0]))
    assert mu[0] == 0
    np.testing.assert_allclose(delta_of(np.array([0.01, 0.5, 5.0]), mu[1:]), 1e-5, rtol=1e-6)


def test_strength_is_concave_in_epsilon():
    # The bound relies on it: a second unit of ε adds less than the first.
    epsilon = np.linspace(1e-3, 8, 4000)
    slope = np.diff(AggregateError().mu(epsilon))
    assert np.all(np.diff(slope) < 1e-12)


def test_without_bias_it_ranks_like_total_epsilon(rng):
    bids = scenario("uniform").sample(rng, 12)
    goal = AggregateError(heterogeneity=0.0, delta=None)
    some = [outcome(bids.epsilon * rng.random(12)) for _ in range(50)]
    by_error = sorted(range(50), key=lambda k: float(goal.value(some[k], bids)))
    by_total = sorted(range(50), key=lambda k: -float(TOTAL_EPSILON.value(some[k], bids)))
    assert by_error == by_total
    assert goal.value(some[0], bids) == pytest.approx(1.5 / some[0].total_epsilon ** 2)


def test_nobody_sells_is_an_infinite_error():
    bids = Bids(np.ones((2, 3)), np.ones((2, 3)))
    values = AggregateError().value(outcome([[0, 0, 0], [1, 1, 1]]), bids)
    assert values[0] == np.inf
    assert np.isfinite(values[1])


@pytest.mark.parametrize(
    "wrong",
    [{"kappa": 0}, {"heterogeneity": -1}, {"honest_share": 0}, {"honest_share": 1.1}, {"delta": 0}, {"delta": 0.6}],
)
def test_refusals(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        AggregateError(**wrong)


def test_by_name_with_parameters():
    assert "aggregate-error" in OBJECTIVES
    assert objective("aggregate-error", heterogeneity=0.3) == AggregateError(heterogeneity=0.3)
    written = objective("aggregate-error:heterogeneity=0.3,honest-share=0.5", kappa=2.0)
    assert written == AggregateError(2.0, 0.3, 0.5)
    with pytest.raises(ConfigurationError, match="unknown parameter 'honesty'"):
        objective("aggregate-error", honesty=0.3)
    with pytest.raises(ConfigurationError, match="heterogeneity=much"):
        objective("aggregate-error:heterogeneity=much")
    with pytest.raises(UnknownNameError):
        objective("agregate-error:heterogeneity=1")
