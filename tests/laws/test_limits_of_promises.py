"""What the promises do not cover, as docs/mechanisms.md says: offers above one's own limit, and who bids at all."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._distributions import scenario

SHARES = {"objective": "aggregation-error", "heterogeneity": 0.3}
FLOOR = {"service_share": 0.5, "service_valuation": 0.8}


def gain_from_offering_more(rule, types, budget):
    """The most that one client gains by offering more than its limit, where it is asked for no more than that."""
    truth = rule.run(types, budget).utility(types)
    best = 0.0
    for factor in (1.3, 1.7, 2.0):
        outcome = rule.unilateral(types, types.replace(epsilon=types.epsilon * factor), budget)
        can_deliver = outcome.epsilon <= types.epsilon * (1 + 1e-12)
        best = max(best, float(np.where(can_deliver, outcome.utility(types) - truth, 0.0).max()))
    return best


def limited(rng):
    types = scenario("uniform").sample(rng, 30, (5,))
    return types.replace(epsilon=np.minimum(types.epsilon, 2.4))


@pytest.mark.parametrize("settings", [SHARES, FLOOR], ids=["shares", "floor"])
def test_who_sells_a_share_gains_by_offering_more(settings, rng):
    assert gain_from_offering_more(pm.mechanism("mfg-menunet", **settings), limited(rng), 15.0) > 0.1


def test_who_stands_aside_from_pac_gains_by_claiming_the_limit(rng):
    types = scenario("uniform").sample(rng, 30, (5,))
    types = types.replace(epsilon=np.where(rng.random(types.shape) < 0.5, 0.6, 1.0))
    assert gain_from_offering_more(pm.mechanism("pac"), types, 15.0) > 0.1


@pytest.mark.parametrize(
    "name", ["mean-field-menu", "ration", "two-step", "graded-ration", "precision-menu", "mfg-pricing"]
)
def test_under_the_other_exact_rules_it_gains_nothing(name, rng):
    assert gain_from_offering_more(pm.mechanism(name), limited(rng), 15.0) <= 1e-9


@pytest.mark.parametrize("rule", [pm.mechanism("ration", unit_price=1.0), pm.mechanism("mfg-pricing")], ids=str)
def test_a_member_that_would_sell_nothing_helps_its_coalition_by_staying_away(rule):
    everybody = pm.Bids([0.1, 0.2, 0.3, 2.0], [5.0] * 4)
    without = everybody[np.array([0, 1, 2])]
    before, after = rule.run(everybody, 2.0).welfare(everybody), rule.run(without, 2.0).welfare(without)
    assert after > 1.1 * before
