import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market.attacks import LEVELS, GridAttack
from privmarket.market.audit_report import audit
from privmarket.market.guarantees import ApproximatelyTruthful, WithinOffer
from privmarket.market.objectives import AggregationError
from privmarket.market.scenarios import scenario
from tests.laws.broken import BROKEN

QUICK = GridAttack(valuations=15, shares=5, neighbours=4)
LAW = scenario("uniform")


def test_figures_fit_together():
    report = audit(pm.mechanism("proportional-share"), LAW, 30, 15.0, profiles=3, attack=QUICK)
    assert report.regret_in_valuation.maximum <= 1e-9
    assert report.regret.maximum >= report.regret_in_epsilon.maximum > 0
    assert report.spend_over_budget == pytest.approx(report.spend / 15.0)
    assert report.welfare_over_budget == pytest.approx(report.welfare / 15.0)
    assert report.fluid_ratio == pytest.approx(report.epsilon_bought / report.fluid_bound)
    assert report.first_best_bound > report.fluid_bound
    assert report.broken == ()
    assert sum(row.mean_epsilon for row in report.quintiles) / 5 * 30 == pytest.approx(report.epsilon_bought)
    assert report.quintiles[0].participation > report.quintiles[-1].participation


def test_errors_are_compared_the_other_way_round():
    report = audit(
        pm.mechanism("mean-field-menu"), LAW, 30, 15.0, profiles=2, attack=QUICK, objective=AggregationError()
    )
    assert report.fluid_ratio == pytest.approx(report.fluid_bound / report.objective_value)


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.name)
def test_broken_promises_are_reported(cls):
    report = audit(cls(), LAW, 8, 4.0, profiles=3, attack=QUICK)
    assert report.broken == tuple(promise.label for promise in cls.guarantees)


def test_no_clients_or_profiles_is_refused():
    with pytest.raises(ConfigurationError):
        audit(pm.mechanism("pac"), LAW, 0, 1.0)
    with pytest.raises(ConfigurationError):
        audit(pm.mechanism("pac"), LAW, 5, 1.0, profiles=0)


def test_a_rule_that_is_truthful_in_v_alone_breaks_nothing():
    report = audit(pm.mechanism("proportional-share"), LAW, 2, 1.0, profiles=1, attack=LEVELS["quick"])
    assert report.broken == ()
    assert len(report.quintiles) == 5


class SellsNothing(pm.Mechanism):
    name = "sells nothing"
    guarantees = (ApproximatelyTruthful(0.0),)

    def clear(self, bids, budget):
        return pm.Outcome(np.zeros(bids.shape), np.zeros(bids.shape))


def test_where_nobody_is_paid_regret_is_no_share_of_pay(rng):
    report = audit(SellsNothing(), LAW, 3, 1.0, profiles=1, attack=QUICK)
    assert (report.regret.mean_share, report.broken) == (0.0, ())
    types = LAW.sample(rng, 3, (2,))
    assert ApproximatelyTruthful(0.0).check(SellsNothing(), types, 1.0, rng).held


def test_one_payment_that_is_no_number_breaks_a_promise():
    types = pm.Bids([[0.5, 0.5]], [[1.0, 1.0]])
    assert WithinOffer().holds(types, pm.Outcome([[1.0, 1.0]], [[0.5, 0.5]]), 1.0).held
    assert not WithinOffer().holds(types, pm.Outcome([[1.0, 1.0]], [[0.5, np.inf]]), 1.0).held
