"""The weights of the sellers' updates, their sum, and the server's step."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from privmarket.errors import UnknownNameError
from privmarket.market._bids import Bids
from privmarket.market._objectives import AggregationError
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds import Award, Offer, Phase, Round, Terms
from privmarket.simulation._server import AGGREGATIONS, aggregate, seller_weights

EPSILON = np.array([1.0, 0.0, 2.0, 0.5])
BIDS = Bids([0.1, 0.9, 0.2, 0.3], [1.0, 2.0, 2.0, 5.0], data_size=[100, 50, 200, 50])
NOISE = np.array([4.0, 1.0, 2.0, 8.0])


def cleared(epsilon=EPSILON):
    """The round in which the clients "0" to "3" offered BIDS and sold `epsilon`."""
    offers = {str(i): Offer(v, e, size) for i, (_, v, e, size, _) in enumerate(BIDS)}
    awards = {str(i): Award(epsilon[i], PrivacyEvent(NOISE[i]), 1) for i in np.flatnonzero(epsilon)}
    return Round(Terms(0, 10, ReleaseFamily(), 5.0), Phase.CLEARED, offers, awards)


def weights(scheme, **settings):
    """(4,) each client's weight, 0 for the one that sells nothing."""
    auction, found = cleared(), np.zeros(4)
    found[EPSILON > 0] = seller_weights(auction, auction.awards, scheme, **settings)
    return found


@pytest.mark.parametrize("scheme", AGGREGATIONS)
def test_weights_are_a_distribution_on_sellers(scheme):
    found = weights(scheme)
    if scheme != "precision":
        assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    assert seller_weights(cleared(), cleared().awards, scheme).shape == (3,)


def test_updates_that_cannot_be_used_have_no_weight():
    np.testing.assert_allclose(seller_weights(cleared(), {"3", "0"}, "epsilon"), [1 / 1.5, 0.5 / 1.5])


def test_proportional_and_inverse_variance():
    np.testing.assert_allclose(weights("epsilon"), EPSILON / 3.5)
    raw = np.array([1 / 16, 0, 1 / 4, 1 / 64])
    np.testing.assert_allclose(weights("epsilon-squared"), raw / raw.sum())


def test_inverse_variance_has_the_least_variance():
    best = float(weights("epsilon-squared") ** 2 @ NOISE**2)
    for scheme in AGGREGATIONS:
        found = weights(scheme)
        assert float((found / found.sum()) ** 2 @ NOISE**2) >= best * (1 - 1e-12)


def noise_of_mean(found):
    """Σ a²σ²/(Σ a n)²: the variance of the noise on Σ a·sum/Σ a·n, for clip norm 1."""
    return float(found**2 @ NOISE**2) / float(found @ BIDS.data_size) ** 2


def test_precision_has_the_least_noise_for_the_records_it_counts():
    """By hand: a ∝ n/σ² has 1/Σ n²/σ², and the sum counts as many records as with a third of weight for each."""
    found = weights("precision")
    raw = np.array([100 / 16, 0, 200 / 4, 50 / 64])
    np.testing.assert_allclose(found / found.sum(), raw / raw.sum())
    assert found @ BIDS.data_size == pytest.approx((100 + 200 + 50) / 3)
    least = 1 / (100**2 / 16 + 200**2 / 4 + 50**2 / 64)
    assert noise_of_mean(found) == pytest.approx(least)
    assert noise_of_mean(weights("epsilon-squared")) > 1.01 * least
    rng = np.random.default_rng(0)
    for other in rng.dirichlet(np.ones(3), 200):
        assert noise_of_mean(np.array([other[0], 0.0, *other[1:]])) >= least


def test_precision_is_inverse_variance_where_sizes_are_equal(monkeypatch):
    equal = Bids(BIDS.valuation, BIDS.epsilon, data_size=[70] * 4)
    monkeypatch.setitem(globals(), "BIDS", equal)
    np.testing.assert_allclose(weights("precision"), weights("epsilon-squared"), rtol=1e-15)


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
    assert seller_weights(cleared(np.zeros(4)), {}, "epsilon").size == 0
    assert seller_weights(cleared(), {}, "optimal").size == 0


def test_unknown_scheme():
    with pytest.raises(UnknownNameError, match="epsilon-squared"):
        weights("median")


def test_aggregate():
    updates = np.array([[1.0, 2.0], [3.0, 6.0]], dtype=np.float32)
    assert aggregate(np.array([0.25, 0.75]), updates).tolist() == [2.5, 5.0]
