import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import LEVELS, GridAttack
from privmarket.market._audit import audit
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import ApproximatelyTruthful, Truthful, WithinOffer
from privmarket.market._objectives import AggregationError
from tests.laws.broken import BROKEN, ClaimsCollusionProof, FirstPrice, OwnRation

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
    broken = getattr(cls, "breaks", tuple(promise.label for promise in cls.guarantees))
    assert report.broken == broken
    if cls is not ClaimsCollusionProof:
        assert set(report.witnesses) == set(broken)
        assert all(str(witness) in str(report) for witness in report.witnesses.values())


def test_a_witness_can_be_run_again():
    report = audit(FirstPrice(), LAW, 8, 4.0, profiles=3, attack=QUICK)
    witness = report.witnesses["truthful in v"]
    types = LAW.sample(np.random.default_rng(0), 8, (report.markets,))[witness.market]
    assert types.valuation[witness.client] == witness.valuation
    assert types.epsilon[witness.client] == witness.epsilon
    reports = types.valuation.copy()
    reports[witness.client] = witness.reported_valuation
    lied = FirstPrice().run(types.replace(valuation=reports), 4.0)
    truth = FirstPrice().run(types, 4.0).utility(types)[witness.client]
    assert witness.reported_epsilon == witness.epsilon
    assert lied.payment[witness.client] == witness.paid
    assert lied.utility(types)[witness.client] - truth == pytest.approx(witness.gain)


def test_a_lie_about_v_does_not_convict_the_promise_about_epsilon():
    report = audit(OwnRation(), LAW, 8, 4.0, profiles=3, attack=QUICK)
    assert report.broken == ("truthful in v",)
    assert report.regret_in_epsilon.maximum <= 1e-9 < report.regret_in_valuation.maximum


class _OnlyTogether(pm.Mechanism):
    """Lies about v alone or ε alone gain nothing: only who asks more *and* withholds is paid better."""

    name = "only together"
    guarantees = (Truthful("valuation"), Truthful("epsilon"))

    def clear(self, bids, budget):
        price = np.where((bids.valuation > 0.3) & (bids.epsilon < 1.0), 5.0, 0.25)
        sold = np.where(bids.valuation <= price, bids.epsilon, 0.0) * 0.01
        return pm.Outcome(sold, sold * price)


def test_two_lies_that_gain_only_together_break_the_promise_that_follows_from_both():
    types = pm.Bids(np.full(400, 0.2), np.full(400, 2.0))
    report = audit(_OnlyTogether(), scenario(types), 3, 4.0, profiles=2, attack=LEVELS["quick"])
    assert report.broken == ("truthful in v and ε together",)
    witness = report.witnesses["truthful in v and ε together"]
    assert witness.reported_valuation > 0.3
    assert witness.reported_epsilon < 1.0


class _PaysForCapacity(pm.Mechanism):
    """Buys one unit from everybody at a price that rises with the offer, so that an empty boast pays."""

    name = "pays for capacity"
    guarantees = (Truthful("valuation"), Truthful("epsilon"))

    def clear(self, bids, budget):
        sold = np.minimum(bids.epsilon, 0.1)
        return pm.Outcome(sold, sold * (1 + bids.epsilon))


def test_offers_above_the_own_are_a_direction_of_their_own():
    report = audit(_PaysForCapacity(), LAW, 4, 50.0, profiles=2, attack=QUICK)
    assert report.broken == ()
    assert report.regret_in_epsilon.maximum == 0.0
    # A client of offer 0.1 boasts 5, the market's limit, and still delivers 0.1.
    assert 0.2 < report.regret_in_epsilon_up.maximum <= 0.1 * 4.9 + 1e-12
    honest = audit(pm.mechanism("mean-field-menu"), LAW, 10, 5.0, profiles=2, attack=QUICK)
    assert honest.regret_in_epsilon_up.maximum >= 0.0


def test_the_interval_of_the_mean_regret_is_students():
    report = audit(FirstPrice(), LAW, 8, 4.0, profiles=5, attack=QUICK)
    regret = report.regret
    assert regret.mean_share_low < regret.mean_share < regret.mean_share_high
    one = audit(FirstPrice(), LAW, 8, 4.0, profiles=1, attack=QUICK).regret
    assert one.mean_share_low == one.mean_share == one.mean_share_high
    middle = 0.5 * (regret.mean_share_low + regret.mean_share_high)
    assert middle == pytest.approx(regret.mean_share) or regret.mean_share_low == 0.0


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
