"""Weights of updates: the paper's, inverse variance, and the best for P2 against brute force."""

import numpy as np
import pytest
from scipy.optimize import minimize

from privmarket.errors import UnknownNameError
from privmarket.federated.aggregation import AGGREGATIONS, aggregate, aggregation_weights
from privmarket.market.bids import Bids
from privmarket.market.objectives import AggregationError

EPSILON = np.array([1.0, 0.0, 2.0, 0.5])
BIDS = Bids([0.1, 0.9, 0.2, 0.3], [1.0, 2.0, 2.0, 5.0], data_size=[100, 50, 200, 50])
NOISE = np.array([4.0, 1.0, 2.0, 8.0])


def weights(scheme, **settings):
    return aggregation_weights(scheme, EPSILON, BIDS, noise_multiplier=NOISE, **settings)


@pytest.mark.parametrize("scheme", AGGREGATIONS)
def test_weights_are_a_distribution_on_sellers(scheme):
    found = weights(scheme)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    assert found[1] == 0.0


def test_proportional_and_inverse_variance():
    np.testing.assert_allclose(weights("epsilon"), EPSILON / 3.5)
    raw = np.array([1 / 16, 0, 1 / 4, 1 / 64])
    np.testing.assert_allclose(weights("epsilon-squared"), raw / raw.sum())


def test_inverse_variance_has_the_least_variance():
    best = float(weights("epsilon-squared") ** 2 @ NOISE**2)
    for scheme in AGGREGATIONS:
        assert float(weights(scheme) ** 2 @ NOISE**2) >= best * (1 - 1e-12)


@pytest.mark.parametrize("heterogeneity", [0.01, 0.3, 3.0])
def test_optimal_against_a_general_solver(heterogeneity):
    """The mean-weights behind `optimal`, found again by SLSQP on the definition of P2 from many starts."""
    goal = AggregationError(kappa=1.0, heterogeneity=heterogeneity)
    relative = BIDS.data_size / BIDS.data_size.mean()
    mean_weights = weights("optimal", objective=goal) * relative
    mean_weights /= mean_weights.sum()
    sells = np.flatnonzero(EPSILON)
    share = BIDS.data_size / BIDS.data_size.sum()

    def error(alpha):
        full = np.zeros(4)
        full[sells] = alpha
        noise = sum(full[i] ** 2 / (relative[i] * EPSILON[i]) ** 2 for i in sells)
        return noise + heterogeneity**2 * np.abs(full - share).sum() ** 2

    rng = np.random.default_rng(0)
    found = min(
        minimize(
            error,
            rng.dirichlet(np.ones(3)),
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        ).fun
        for _ in range(10)
    )
    assert error(mean_weights[sells]) <= found * (1 + 1e-4)


def test_nobody_sells():
    assert not aggregation_weights("epsilon", np.zeros(4), BIDS, noise_multiplier=NOISE).any()


def test_unknown_scheme():
    with pytest.raises(UnknownNameError, match="epsilon-squared"):
        weights("median")


def test_aggregate():
    updates = np.array([[1.0, 2.0], [3.0, 6.0]], dtype=np.float32)
    assert aggregate(np.array([0.25, 0.75]), updates).tolist() == [2.5, 5.0]
