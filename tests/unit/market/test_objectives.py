"""What the buyer wants: known answers and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import privmarket as pm
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._bids import Bids
from privmarket.market._distributions import scenario
from privmarket.market._objectives import OBJECTIVES, TOTAL_EPSILON, AggregateError, AggregationError, objective
from privmarket.market._outcome import Outcome
from privmarket.privacy._gaussian import delta_of, mu_of


def by_general_solver(goal, epsilon, bids):
    """The same problem through SLSQP, with |·| split into two non-negative parts."""
    n = epsilon.size
    share, sellers = bids.data_share, epsilon > 0
    unit = np.where(sellers, goal.kappa / (share * n * np.where(sellers, epsilon, 1)) ** 2, 0)

    def error(x):
        alpha, up, down = x[:n], x[n : 2 * n], x[2 * n :]
        return (unit * alpha**2).sum() + goal.heterogeneity**2 * (up + down).sum() ** 2

    bounds = [(0, 1) if s else (0, 0) for s in sellers] + [(0, None)] * (2 * n)
    start = np.where(sellers, 1 / sellers.sum(), 0)
    gap = start - share
    equal = [
        {"type": "eq", "fun": lambda x: x[:n].sum() - 1},
        {"type": "eq", "fun": lambda x: x[:n] - share - x[n : 2 * n] + x[2 * n :]},
    ]
    x0 = np.concatenate([start, np.maximum(gap, 0), np.maximum(-gap, 0)])
    found = minimize(
        error, x0, bounds=bounds, constraints=equal, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500}
    )
    return found.fun


@pytest.mark.parametrize("heterogeneity", [0.0, 0.05, 0.2, 1.0])
def test_optimal_weights_match_a_general_solver(heterogeneity, rng):
    goal = AggregationError(kappa=0.7, heterogeneity=heterogeneity)
    for _ in range(4):
        bids = pm.Bids(rng.random(7), np.ones(7), data_size=rng.uniform(50, 500, 7))
        epsilon = np.where(rng.random(7) < 0.7, rng.uniform(0.1, 5, 7), 0.0)
        epsilon[0] = 1.0
        weights = goal.optimal_weights(epsilon, bids)
        assert weights.sum() == pytest.approx(1.0)
        assert np.all(weights[epsilon == 0] == 0)
        ours, theirs = goal.error(epsilon, weights, bids), by_general_solver(goal, epsilon, bids)
        assert ours <= theirs * (1 + 1e-6) + 1e-12
        assert ours >= theirs * (1 - 1e-4) - 1e-9


def test_without_heterogeneity_weights_are_inverse_variances(rng):
    bids = pm.Bids(rng.random(5), np.ones(5))
    epsilon = rng.uniform(0.2, 5, 5)
    weights = AggregationError(1.0, 0.0).optimal_weights(epsilon, bids)
    np.testing.assert_allclose(weights, epsilon**2 / (epsilon**2).sum(), rtol=1e-6)


def test_with_strong_heterogeneity_weights_are_data_shares(rng):
    bids = pm.Bids(rng.random(5), np.ones(5), data_size=[1, 2, 3, 4, 5])
    weights = AggregationError(1.0, 1e4).optimal_weights(rng.uniform(0.2, 5, 5), bids)
    np.testing.assert_allclose(weights, bids.data_share, rtol=1e-6)


def test_terms_by_hand():
    # Two of four equal clients sell ε = 1 and 2; weights 1/4 and 3/4; κ = 2, H = 0.5.
    bids = pm.Bids(np.ones(4), np.full(4, 5.0))
    epsilon, weights = np.array([1.0, 2.0, 0, 0]), np.array([0.25, 0.75, 0, 0])
    variance, bias = AggregationError(2.0, 0.5).terms(epsilon, weights, bids)
    assert variance == pytest.approx(2 * (0.25**2 + 0.75**2 / 4))
    assert bias == pytest.approx(0.25 * (0 + 0.5 + 0.25 + 0.25) ** 2)


def test_nobody_sells_is_an_infinite_error():
    bids = pm.Bids(np.ones((2, 3)), np.ones((2, 3)))
    epsilon = np.array([[0.0, 0, 0], [1, 0, 0]])
    value = AggregationError().value(pm.Outcome(epsilon, np.zeros((2, 3))), bids)
    assert np.isinf(value[0])
    assert np.isfinite(value[1])


def test_objectives_by_name():
    assert objective("aggregation-error") == AggregationError()
    with pytest.raises(pm.PrivmarketError, match="unknown objective"):
        objective("profit")


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


def test_nobody_sells_is_an_infinite_error_of_aggregate_error():
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
