"""What is measured on trained weights."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._attacks import GridAttack
from privmarket.mechanisms.learned._measure import FirstClients, measure

FEW = GridAttack(valuations=5, shares=2, neighbours=2)
pytestmark = pytest.mark.filterwarnings("ignore::privmarket.mechanisms.learned.OutsideTraining")


@pytest.mark.parametrize("name", ["regretformer", "mfg-regretnet"])
def test_the_first_clients_get_for_their_reports_what_all_would(name):
    rule = pm.mechanism(name)
    types = pm.scenario("uniform").sample(np.random.default_rng(0), 7, (3,))
    reports = types.replace(valuation=1.2 * types.valuation)
    every = rule.unilateral(types, reports, 3.5)
    some = FirstClients(rule, 2).unilateral(types, reports, 3.5)
    truth = rule.run(types, 3.5)
    assert not np.array_equal(every.epsilon, truth.epsilon)
    for field in ("epsilon", "payment"):
        np.testing.assert_allclose(getattr(some, field)[:, :2], getattr(every, field)[:, :2], rtol=1e-9)
        np.testing.assert_array_equal(getattr(some, field)[:, 2:], getattr(truth, field)[:, 2:])


def test_regret_over_some_clients_is_theirs_alone():
    rule = pm.mechanism("regretformer")
    case = [(pm.scenario("uniform"), 6, 3.0, 4)]
    types = case[0][0].sample(np.random.default_rng(12_345), 6, (4,))
    (row,) = measure(rule, case, FEW, attacked=2)["cases"]
    gain = FEW(rule, types, 3.0, np.random.default_rng(0)).gain
    paid = rule.run(types, 3.0).payment.mean()
    assert row["attacked"] == 2
    assert row["regret_share"] == pytest.approx(gain[:, :2].mean() / paid, rel=1e-9)
    (whole,) = measure(rule, case, FEW)["cases"]
    assert "attacked" not in whole
    assert whole["regret_share"] == pytest.approx(gain.mean() / paid, rel=1e-9)
