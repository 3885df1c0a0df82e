import numpy as np
import pytest
from scipy.optimize import minimize

import privmarket as pm
from privmarket.market._objectives import AggregationError, objective


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
