"""Joint lies: known answers, limits, and rules that resist them or do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import privmarket as pm
from privmarket._settings import TOLERANCE
from privmarket.errors import ConfigurationError
from privmarket.market import _guarantees as guarantees
from privmarket.market._attacks import CoalitionAttack, Collusion
from privmarket.market._distributions import scenario


def test_two_sellers_lift_a_price_by_hand():
    """vcg with one winner: the loser asks more, and the winner is paid that."""
    bids = pm.Bids([0.1, 0.2, 0.9], [1.0, 1.0, 1.0])
    found = CoalitionAttack(2, coalitions=1, steps=0)(
        pm.mechanism("vcg", winners=1), bids, 1.0, np.random.default_rng(0)
    )
    # The two cheapest collude: paid 0.9 (the third client's price) instead of 0.2.
    np.testing.assert_array_equal(found.members[0, 0], [0, 1])
    assert found.gain[0, 0] == pytest.approx(0.7)
    assert found.truthful_pay[0, 0] == pytest.approx(0.2)


def test_the_search_comes_close_to_brute_force(rng):
    """Against every pair of reports on a fine grid, for a pair of clients under proportional share."""
    bids = pm.Bids([0.15, 0.3, 0.35, 0.6], [1.0, 1.0, 1.0, 1.0])
    rule, budget = pm.mechanism("proportional-share"), 0.8
    honest = rule.run(bids, budget).utility(bids)
    found = CoalitionAttack(2, coalitions=20)(rule, bids, budget, rng)
    grid = np.linspace(0.0, 1.2, 61)
    for at, (a, b) in enumerate(found.members[0]):
        lies = np.array(list(itertools.product(grid, grid)))
        valuation = np.repeat(bids.valuation[None], len(lies), axis=0)
        valuation[:, [a, b]] = lies
        reports = pm.Bids(valuation, np.ones_like(valuation))
        joint = rule.run(reports, budget).utility(bids)[:, [a, b]].sum(axis=1).max() - honest[[a, b]].sum()
        assert found.gain[0, at] >= 0.8 * joint - 1e-9


def test_a_coalition_of_one_gains_nothing_against_a_truthful_rule(rng):
    types = scenario("uniform").sample(rng, 20, (3,))
    assert CoalitionAttack(1)(pm.mechanism("mean-field-menu"), types, 10.0, rng).gain.max() <= 1e-9


def test_large_coalitions_gain_much_against_pac_and_little_against_the_menu():
    types = scenario("uniform").sample(np.random.default_rng(0), 100, (3,))
    attack = CoalitionAttack(20, coalitions=3, steps=30)
    pac = attack(pm.mechanism("pac"), types, 50.0, np.random.default_rng(1)).share
    menu = attack(pm.mechanism("mean-field-menu"), types, 50.0, np.random.default_rng(1)).share
    posted = attack(pm.mechanism("mfg-pricing"), types, 50.0, np.random.default_rng(1)).share
    assert pac > 0.2
    assert menu < 0.05
    assert posted == 0.0


def test_a_coalition_that_is_larger_than_the_market_is_everybody(rng):
    found = CoalitionAttack(9, coalitions=2)(pm.mechanism("pac"), scenario("uniform").sample(rng, 4), 2.0, rng)
    assert found.members.shape == (1, 2, 4)


def test_no_coalition_is_refused():
    with pytest.raises(ConfigurationError, match="coalitions of 0"):
        CoalitionAttack(0)


@pytest.mark.parametrize(("gain", "held"), [(TOLERANCE, True), (1.01 * TOLERANCE, False)])
def test_a_gain_counts_as_soon_as_it_passes_what_rounding_may_do(monkeypatch, gain, held):
    """The best of two coalitions in two markets decides, as a share of the smallest budget."""
    members = np.zeros((2, 2, 1), dtype=np.intp)
    found = Collusion(members, 2.0 * np.array([[0.0, gain], [gain / 2, 0.0]]), np.ones((2, 2)))
    monkeypatch.setattr(guarantees.attacks, "CoalitionAttack", lambda size: lambda *_: found)
    types = scenario("uniform").sample(np.random.default_rng(0), 3, (2,))
    finding = guarantees.CollusionProof().check(pm.mechanism("pac"), types, [2.0, 7.0], np.random.default_rng(0))
    assert (finding.held, finding.worst) == (held, gain)
