"""Searches for misreports of one client and of coalitions: known answers, and rules that resist or do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import privmarket as pm
from privmarket._settings import TOLERANCE
from privmarket.errors import ConfigurationError
from privmarket.market import _attacks as attacks, _guarantees as guarantees
from privmarket.market._attacks import CoalitionAttack, Collusion
from privmarket.market._distributions import scenario
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import nothing
from tests.laws.broken import FirstPrice


@pytest.mark.parametrize(
    "attack", [attacks.GridAttack(shares=1), attacks.AscentAttack(over_epsilon=False)], ids=["grid", "ascent"]
)
def test_each_attack_finds_most_of_a_first_price_gain(attack, rng):
    """With one client the best lie is known: ask for the whole budget."""
    types = pm.Bids([0.3], [2.0])
    found = attack(FirstPrice(), types, 1.0, rng)
    # Asking v = B/ε = 0.5 sells for 1.0 instead of 0.6.
    assert found.gain[0] == pytest.approx(0.4, abs=0.06)
    assert found.gain[0] <= 0.4 + 1e-9


class RoundBonus(Mechanism):
    """Pays a fixed price, and a bonus to whoever offers exactly ε = 1."""

    name = "round-bonus"
    guarantees = (guarantees.Truthful("epsilon"),)

    def clear(self, bids, budget):
        sold = np.where(bids.valuation <= 0.5, 0.01 * np.minimum(bids.epsilon, 1.0), 0.0)
        return pm.Outcome(sold, 0.5 * sold + np.where(bids.epsilon == 1.0, 0.1, 0.0))


@pytest.mark.parametrize("level", attacks.LEVELS)
def test_a_bonus_for_a_round_offer_is_found(level, rng):
    types = pm.Bids([0.2, 0.3, 0.4], [0.6180339887, 1.4142135624, 3.1415926536])
    found = attacks.LEVELS[level].epsilon(RoundBonus(), types, 1.0, rng)
    assert found.gain == pytest.approx([0.0, 0.1, 0.1], abs=0.01)
    assert found.epsilon[1:].tolist() == [1.0, 1.0]
    above = attacks.UpwardAttack(5.0)(RoundBonus(), types, 1.0, rng)
    assert above.epsilon[0] == 1.0
    assert above.gain == pytest.approx([0.1, 0.0, 0.0], abs=0.01)


def test_the_limit_on_offers_itself_is_tried(rng):
    types = pm.Bids([0.2, 0.3], [0.7, 1.1])
    offers = [*attacks.UpwardAttack(4.9).reported_offers(types)]
    assert any((offer == 4.9).all() for offer in offers)
    assert all(((types.epsilon <= offer) & (offer <= 4.9)).all() for offer in offers)


def test_undeliverable_epsilon_is_no_gain(rng):
    """PAC as printed sells 1/(n − k) whatever was offered: a client that cannot deliver gains nothing."""
    types = pm.Bids([0.1, 0.2, 0.3], [0.05, 5.0, 5.0])
    utility = attacks.utility_of(pm.mechanism("pac:literal"), types, types, 100.0)
    assert utility[0] == -np.inf


def test_withheld_epsilon_is_found_under_vcg(rng):
    types = scenario("uniform").sample(rng, 10)
    rule = pm.mechanism("vcg")
    assert attacks.EPSILON_ONLY(rule, types, 5.0, rng).gain.max() > 0.1
    assert attacks.VALUATION_ONLY(rule, types, 5.0, rng).gain.max() <= 1e-9


def test_worst_of_keeps_the_better_lie_of_each_client():
    a = attacks.Regret(np.array([0.1, 0.5]), np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    b = attacks.Regret(np.array([0.2, 0.1]), np.array([3.0, 4.0]), np.array([2.0, 2.0]))
    both = a.worst_of(b)
    assert both.gain.tolist() == [0.2, 0.5]
    assert both.valuation.tolist() == [3.0, 2.0]
    assert both.epsilon.tolist() == [2.0, 1.0]


def test_an_attack_on_valuations_leaves_epsilon_alone(rng):
    """Under proportional share withholding ε pays and lies about v do not: the levels keep the two apart."""
    types = scenario("uniform").sample(rng, 6, (4,))
    rule, level = pm.mechanism("proportional-share"), attacks.LEVELS["quick"]
    assert level.valuation(rule, types, 2.0, rng).gain.max() <= 1e-9
    assert level.epsilon(rule, types, 2.0, rng).gain.max() > 1e-3
    # Who is paid its cost gains nothing by withholding, and a lot by asking for more.
    assert level.epsilon(FirstPrice(), types, 2.0, rng).gain.max() <= 1e-9
    assert level.valuation(FirstPrice(), types, 2.0, rng).gain.max() > 1e-3


class Listener(Mechanism):
    """Buys nothing and remembers every report that it is asked about."""

    name = "listener"

    def __init__(self):
        self.heard = []

    def clear(self, bids, budget):
        return nothing(bids.shape)

    def unilateral(self, bids, reports, budget):
        self.heard.append(reports)
        return nothing(reports.shape)


def test_an_ascent_starts_beside_the_truth_and_then_anywhere(rng):
    types = pm.Bids(np.full(4000, 0.5), np.full(4000, 2.0))
    rule = Listener()
    attacks.AscentAttack(starts=2, steps=1)(rule, types, 1.0, rng)
    # Asked about at each start: the report itself, then a step in v, then one in ε.
    near, far = rule.heard[0], rule.heard[3]
    assert len(rule.heard) == 6
    # Coordinates v/(2·max v) = 1/2 and ε/cap = 1, moved by normals of width 0.1; ε only downwards.
    assert np.mean(near.valuation) == pytest.approx(0.5, abs=0.01)
    assert np.std(near.valuation) == pytest.approx(0.1, abs=0.01)
    assert np.mean(near.epsilon / 2) == pytest.approx(1 - 0.1 * np.sqrt(2 / np.pi), abs=0.01)
    assert np.mean(near.epsilon < 2) > 0.99
    # Uniform on [0, 2·max v] and on [0, cap].
    for coordinate in (far.valuation, far.epsilon / 2):
        assert np.quantile(coordinate, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


def test_an_ascent_over_one_coordinate_leaves_the_other_truthful(rng):
    types = scenario("uniform").sample(rng, 50)
    for over in ("valuation", "epsilon"):
        rule = Listener()
        other = "epsilon" if over == "valuation" else "valuation"
        attacks.AscentAttack(starts=2, steps=3, **{f"over_{other}": False})(rule, types, 1.0, rng)
        moved = [not np.allclose(getattr(report, over), getattr(types, over)) for report in rule.heard]
        assert all(moved)
        for report in rule.heard:
            np.testing.assert_allclose(getattr(report, other), getattr(types, other))


def test_a_grid_tries_every_pair_and_both_sides_of_other_bids(rng):
    types = pm.Bids([0.2, 0.4, 0.8], [1.0, 2.0, 4.0])
    rule = Listener()
    attacks.GridAttack()(rule, types, 1.0, rng)
    valuations = np.array([report.valuation for report in rule.heard])
    shares = np.array([report.epsilon for report in rule.heard]) / types.epsilon
    # The truth, 41 points and one far above; each of three bids from below, exactly, and from above.
    assert len(rule.heard) == (1 + 41 + 1 + 3 * 3) * 20
    assert np.unique(shares.round(12)) == pytest.approx(np.arange(1, 21) / 20)
    assert valuations.max() == pytest.approx(100 * 0.8)
    assert np.sort(np.unique(valuations))[-2] == pytest.approx(2 * 0.8)
    for bid in types.valuation:
        beside = np.unique(valuations[np.isclose(valuations, bid, rtol=1e-6)])
        assert beside.min() < bid < beside.max()


def test_where_everybody_asks_nothing_lies_are_on_the_scale_of_one(rng):
    rule = Listener()
    attacks.GridAttack(shares=1)(rule, pm.Bids([0.0, 0.0], [1.0, 1.0]), 1.0, rng)
    tried = np.unique([report.valuation for report in rule.heard])
    assert tried[-2:].tolist() == [2.0, 100.0]


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
    found = Collusion(
        members, 2.0 * np.array([[0.0, gain], [gain / 2, 0.0]]), np.ones((2, 2)), *(np.ones((2, 2, 1)),) * 2
    )
    monkeypatch.setattr(guarantees.attacks, "CoalitionAttack", lambda size: lambda *_: found)
    types = scenario("uniform").sample(np.random.default_rng(0), 3, (2,))
    finding = guarantees.CollusionProof().check(pm.mechanism("pac"), types, [2.0, 7.0], np.random.default_rng(0))
    assert (finding.held, finding.worst) == (held, gain)
