import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._distributions import SCENARIOS, EmpiricalDistribution, ValuationFunction, scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_offers_stay_within_the_public_limit_and_come_close_to_it(name, rng):
    bids = scenario(name).sample(rng, 500, (3,))
    assert bids.shape == (3, 500)
    assert 0.98 * scenario(name).epsilon_max < bids.epsilon.max() <= scenario(name).epsilon_max


def test_table_one(rng):
    uniform, bimodal, lognormal = (scenario(n).sample(rng, 40_000) for n in ("uniform", "bimodal", "lognormal"))
    assert uniform.valuation.mean() == pytest.approx(0.5, abs=0.01)
    assert uniform.epsilon.mean() == pytest.approx(2.55, abs=0.03)
    relaxed = bimodal.epsilon >= 2
    assert relaxed.mean() == pytest.approx(0.5, abs=0.01)
    assert bimodal.epsilon[~relaxed].max() <= 0.5
    assert np.log(lognormal.valuation).mean() == pytest.approx(0.0, abs=0.01)
    assert np.log(lognormal.valuation).std() == pytest.approx(0.5, abs=0.01)


def test_the_same_seed_draws_the_same_market():
    a, b = (scenario("uniform").sample(np.random.default_rng(3), 5) for _ in range(2))
    np.testing.assert_array_equal(a.valuation, b.valuation)


def test_valuation_function_is_the_weighted_sum():
    value = ValuationFunction(2.0, 0.1, 3.0)(np.array([0.8]), np.array([0.5]), np.array([40.0]), np.array([0.2]))
    assert value[0] == pytest.approx(2 * 0.8 / 0.5 + 0.1 * 40 + 3 * 0.2)


def test_past_bids_are_drawn_whole(rng):
    past = pm.Bids([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], data_size=[10, 20, 30])
    drawn = EmpiricalDistribution("past", past).sample(rng, 50)
    np.testing.assert_allclose(drawn.epsilon, drawn.valuation * 10)
    np.testing.assert_allclose(drawn.data_size, drawn.valuation * 100)


def test_unknown_and_too_small_laws_are_refused():
    with pytest.raises(UnknownNameError, match="unknown scenario 'unifrom'"):
        scenario("unifrom")
    with pytest.raises(ConfigurationError, match="at least 2"):
        EmpiricalDistribution("past", pm.Bids([0.1], [1.0]))
