"""Matched runs are matched: the same mean ε for every rule, never more than was offered."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import scenario
from privmarket_studies.reproduce.matched import MatchedEpsilon


@pytest.mark.parametrize("name", ["pac", "csra", "jsam", "mean-field-menu"])
@pytest.mark.parametrize("mean_epsilon", [0.05, 0.4])
def test_every_market_sells_the_stated_mean(name, mean_epsilon, rng):
    bids = scenario("uniform").sample(rng, 60, (5,))
    plain, rule = pm.mechanism(name), MatchedEpsilon(pm.mechanism(name), mean_epsilon)
    before, after = plain.run(bids, 30.0), rule.run(bids, 30.0)
    np.testing.assert_allclose(after.epsilon.mean(axis=-1), mean_epsilon, rtol=1e-12)
    assert np.all(after.epsilon <= bids.epsilon)
    np.testing.assert_array_equal(after.payment, before.payment)
    np.testing.assert_array_equal(after.epsilon > 0, before.epsilon > 0)


def test_what_cannot_be_matched_is_refused(rng):
    bids = scenario("uniform").sample(rng, 20)
    with pytest.raises(ConfigurationError, match="are to be sold"):
        MatchedEpsilon(pm.mechanism("mean-field-menu"), 4.0).run(bids, 1.0)
