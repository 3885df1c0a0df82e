"""The audit: figures, verdicts, witnesses, and how outcomes are judged."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from xml.etree import ElementTree

import numpy as np
import pytest

import privmarket as pm
from privmarket._settings import TOLERANCE
from privmarket.errors import ConfigurationError, PrivmarketError, UnknownNameError
from privmarket.market._attacks import LEVELS, GridAttack, Regret
from privmarket.market._audit import audit, beyond_rounding, gain_shares, judge, underpaid_share
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import ApproximatelyTruthful, Truthful, WithinOffer
from privmarket.market._objectives import AggregationError
from privmarket.market._outcome import is_beyond
from tests.laws.broken import BROKEN, ClaimsCollusionProof, FirstPrice, OwnRation

QUICK = GridAttack(valuations=15, shares=5, neighbours=4)
UNIFORM = scenario("uniform")


def test_figures_fit_together():
    report = audit(pm.mechanism("proportional-share"), UNIFORM, 30, 15.0, profiles=3, attack=QUICK)
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
        pm.mechanism("mean-field-menu"), UNIFORM, 30, 15.0, profiles=2, attack=QUICK, objective=AggregationError()
    )
    assert report.fluid_ratio == pytest.approx(report.fluid_bound / report.objective_value)


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.name)
def test_broken_promises_are_reported(cls):
    report = audit(cls(), UNIFORM, 8, 4.0, profiles=3, attack=QUICK)
    broken = getattr(cls, "breaks", tuple(promise.label for promise in cls.guarantees))
    assert report.broken == broken
    assert set(report.witnesses) == set(broken)
    for witness in report.witnesses.values():
        assert str(witness) in str(report)
        assert escape(str(witness)) in report._repr_html_()


def test_a_witness_can_be_run_again():
    report = audit(FirstPrice(), UNIFORM, 8, 4.0, profiles=3, attack=QUICK)
    witness = report.witnesses["truthful in v"]
    types = UNIFORM.sample(np.random.default_rng(0), 8, (report.markets,))[witness.market]
    assert types.valuation[witness.client] == witness.valuation
    assert types.epsilon[witness.client] == witness.epsilon
    reports = types.valuation.copy()
    reports[witness.client] = witness.reported_valuation
    lied = FirstPrice().run(types.replace(valuation=reports), 4.0)
    truth = FirstPrice().run(types, 4.0).utility(types)[witness.client]
    assert witness.reported_epsilon == witness.epsilon
    assert lied.payment[witness.client] == witness.paid
    assert lied.utility(types)[witness.client] - truth == pytest.approx(witness.gain)


@pytest.mark.parametrize("cls", [*BROKEN, ClaimsCollusionProof], ids=lambda cls: cls.name)
def test_the_lines_of_a_replay_print_the_gain(cls, capsys):
    report = pm.audit(cls, scenario="uniform", clients=6, budget=3.0, profiles=2, attack="quick")
    assert report.broken
    for promise, finding in zip(
        report.witnesses, [one for one in report.to_dict()["findings"] if one["witness"]], strict=True
    ):
        lines = report.replay(promise)
        assert finding["replay"] == lines
        assert escape(lines) in report.to_html()
        exec(compile(lines, "replay", "exec"), {})
        gain = report.witnesses[promise].gain
        assert float(capsys.readouterr().out) == pytest.approx(gain, rel=1e-6)
        assert gain > 0


def test_a_rule_that_throws_coins_is_replayed_with_its_coins(capsys):
    report = pm.audit(lottery, scenario="uniform", clients=5, budget=2.0, profiles=2, attack="quick", coins=3)
    witness = report.witnesses["truthful in v"]
    assert witness.types.coins is not None
    # A function without text that makes it: the reader puts it in.
    local = replace(report, rule_code="")
    assert "rule = ...  # put the audited rule here: lottery" in local.replay()
    exec(compile(report.replay(), "replay", "exec"), {})
    assert float(capsys.readouterr().out) == pytest.approx(witness.gain, rel=1e-6)


def lottery(bids, budget, rng):
    """Pays one client by lot what it asks."""
    sold = np.zeros(bids.clients)
    winner = rng.integers(bids.clients)
    sold[winner] = min(bids.epsilon[winner], budget / max(bids.valuation[winner], 1e-9))
    return sold, sold * bids.valuation


lottery.guarantees = (Truthful("valuation"),)


def test_an_unbroken_rule_has_nothing_to_replay():
    report = pm.audit("mean-field-menu", clients=6, budget=3.0, profiles=1, attack="quick")
    with pytest.raises(UnknownNameError, match="broken promise"):
        report.replay("truthful in v")
    with pytest.raises(UnknownNameError, match="broken promise"):
        report.replay()


def test_an_audit_says_which_attacks_ran():
    report = pm.audit("pac", clients=6, budget=3.0, profiles=1, attack="quick", coalition=2)
    assert [words.partition(":")[0] for words in report.attacks] == [
        "v and ε", "v alone", "ε alone", "ε upwards", "pay and budget",
        "joint misreports of coalitions of 2",
    ]  # fmt: skip
    assert "21 valuations × 6 offers" in report.attacks[0]
    assert report.attacks[0] in str(report)
    assert escape(report.attacks[0]) in report.to_html()


class Boastful:
    """Doubles every price, and claims a gain that the rule does not pay."""

    def __call__(self, mechanism, types, budget, rng):
        return Regret(np.full(types.shape, 1e6), 2 * types.valuation, types.epsilon)


def test_the_gains_of_an_own_attack_are_measured_again():
    report = pm.audit("mean-field-menu", clients=6, budget=3.0, profiles=1, attack=Boastful)
    assert report.attacks[0] == "v and ε: Boastful"
    assert report.regret.maximum <= 1e-9
    found = pm.audit(FirstPrice, clients=6, budget=3.0, profiles=1, attack=Boastful())
    assert 0 < found.regret.maximum < 10


def wrong_shape(mechanism, types, budget, rng):
    return Regret(np.zeros(3), np.zeros(3), np.zeros(3))


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (wrong_shape, "wrong_shape returned Regret"),
        (lambda rule, types: None, "no attack"),
        ("fierce", "file.py:Attack"),
        ("nowhere.py:Attack", "cannot be imported"),
    ],
)
def test_what_is_no_attack_is_refused(attack, words):
    with pytest.raises(PrivmarketError) as refused:
        pm.audit("pac", clients=6, budget=3.0, profiles=1, attack=attack)
    assert words in str(refused.value)


def test_a_lie_about_v_does_not_convict_the_promise_about_epsilon():
    report = audit(OwnRation(), UNIFORM, 8, 4.0, profiles=3, attack=QUICK)
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
    report = audit(_PaysForCapacity(), UNIFORM, 4, 50.0, profiles=2, attack=QUICK)
    assert report.broken == ()
    assert report.regret_in_epsilon.maximum == 0.0
    # A client of offer 0.1 boasts 5, the market's limit, and still delivers 0.1.
    assert 0.2 < report.regret_in_epsilon_up.maximum <= 0.1 * 4.9 + 1e-12
    honest = audit(pm.mechanism("mean-field-menu"), UNIFORM, 10, 5.0, profiles=2, attack=QUICK)
    assert honest.regret_in_epsilon_up.maximum >= 0.0


def test_the_interval_of_the_mean_regret_is_students():
    report = audit(FirstPrice(), UNIFORM, 8, 4.0, profiles=5, attack=QUICK)
    regret = report.regret
    assert regret.mean_share_low < regret.mean_share < regret.mean_share_high
    one = audit(FirstPrice(), UNIFORM, 8, 4.0, profiles=1, attack=QUICK).regret
    assert one.mean_share_low == one.mean_share == one.mean_share_high
    middle = 0.5 * (regret.mean_share_low + regret.mean_share_high)
    assert middle == pytest.approx(regret.mean_share) or regret.mean_share_low == 0.0


class LuckyMarkets(pm.Mechanism):
    """Pays as bid in markets with a cheap client, so that gains differ much from market to market."""

    name = "lucky markets"
    guarantees = (ApproximatelyTruthful(0.3),)

    def clear(self, bids, budget):
        honest = pm.mechanism("mean-field-menu").clear(bids, budget)
        as_bid = FirstPrice().clear(bids, budget)
        lucky = bids.valuation.min(axis=-1, keepdims=True) < 0.05
        return pm.Outcome(
            np.where(lucky, as_bid.epsilon, honest.epsilon), np.where(lucky, as_bid.payment, honest.payment)
        )


def test_a_promise_about_a_mean_breaks_beyond_the_error_of_the_mean():
    few = audit(LuckyMarkets(), UNIFORM, 8, 4.0, profiles=3, attack=QUICK)
    assert few.regret.mean_share_low < 0.3 < few.regret.mean_share
    assert few.broken == ()

    class Claims(FirstPrice):
        guarantees = LuckyMarkets.guarantees

    clear = audit(Claims(), UNIFORM, 8, 4.0, profiles=5, attack=QUICK)
    assert clear.regret.mean_share_low > 0.3
    assert clear.broken == ("regret ≤ 30.00% of pay",)


def test_no_clients_or_profiles_is_refused():
    with pytest.raises(ConfigurationError):
        audit(pm.mechanism("pac"), UNIFORM, 0, 1.0)
    with pytest.raises(ConfigurationError):
        audit(pm.mechanism("pac"), UNIFORM, 5, 1.0, profiles=0)


def test_a_rule_that_is_truthful_in_v_alone_breaks_nothing():
    report = audit(pm.mechanism("proportional-share"), UNIFORM, 2, 1.0, profiles=1, attack=LEVELS["quick"])
    assert report.broken == ()
    assert len(report.quintiles) == 5


class SellsNothing(pm.Mechanism):
    name = "sells nothing"
    guarantees = (ApproximatelyTruthful(0.0),)

    def clear(self, bids, budget):
        return pm.Outcome(np.zeros(bids.shape), np.zeros(bids.shape))


def test_where_nobody_is_paid_regret_is_no_share_of_pay(rng):
    report = audit(SellsNothing(), UNIFORM, 3, 1.0, profiles=1, attack=QUICK)
    assert (report.regret.mean_share, report.broken) == (0.0, ())
    types = UNIFORM.sample(rng, 3, (2,))
    assert ApproximatelyTruthful(0.0).check(SellsNothing(), types, 1.0, rng).held


def test_one_payment_that_is_no_number_breaks_a_promise():
    types = pm.Bids([[0.5, 0.5]], [[1.0, 1.0]])
    assert WithinOffer().holds(types, pm.Outcome([[1.0, 1.0]], [[0.5, 0.5]]), 1.0).held
    assert not WithinOffer().holds(types, pm.Outcome([[1.0, 1.0]], [[0.5, np.inf]]), 1.0).held


TYPES = pm.Bids([[0.5, 1.0], [0.5, 1.0]], [[2.0, 1.0], [2.0, 1.0]])


def test_figures_by_hand():
    outcome = pm.Outcome([[2.0, 0.0], [2.0, 1.5]], [[1.5, 0.0], [0.9, 2.5]])
    merit = judge(TYPES, outcome, budget=3.0)
    assert merit.underpaid == 1 / 4  # 0.9 for a cost of 1
    assert merit.over_budget == 1 / 2
    assert merit.worst_overspend == pytest.approx(0.4 / 3.0)
    assert merit.over_offer == 1 / 4
    assert merit.epsilon == pytest.approx(2.75)
    assert merit.spend == pytest.approx(2.45)
    assert merit.welfare == pytest.approx((0.5 + (-0.1 + 1.0)) / 2)
    assert merit.participation == 3 / 4
    assert merit.mean_payment == pytest.approx(4.9 / 4)
    assert merit.epsilon_per_money == pytest.approx(2.75 / 2.45)


def test_rounding_is_no_violation_and_more_is():
    for off, counted in ((1e-12, 0.0), (1e-7, 1.0)):
        outcome = pm.Outcome(np.array([[2.0, 0.0]]), np.array([[1.0 - off, 0.0]]))
        assert judge(TYPES[:1], outcome, 5.0).underpaid == counted / 2
        outcome = pm.Outcome(np.array([[2.0, 0.0]]), np.array([[5.0 * (1 + off), 0.0]]))
        assert judge(TYPES[:1], outcome, 5.0).over_budget == counted


def test_a_figure_is_beyond_its_limit_by_more_than_rounding():
    for scale in (1e-6, 1.0, 1e9):
        assert not is_beyond(scale * (1 + TOLERANCE / 2), scale)
        assert is_beyond(scale * (1 + 2 * TOLERANCE), scale)
    sold, offered = np.array([1.0, 1.0 + 1e-12, 1.1]), np.ones(3)
    assert is_beyond(sold, offered).tolist() == [False, False, True]


def test_sales_paid_in_coins_count_as_underpaid_as_other_sales_do():
    cost = np.array([1.0, 1.0, 1.0, 0.0])
    assert underpaid_share(cost, np.array([1.0, 1.0 - 1e-12, 1.0 - 1e-7, 0.0])) == 1 / 4
    # Rounded down to cents: up to two are not the rule's.
    paid = np.array([0.995, 0.981, 0.979, 0.0])
    assert underpaid_share(cost, paid, coin=0.01) == 1 / 4
    assert underpaid_share(cost, paid) == 3 / 4
    assert underpaid_share(np.zeros(0), np.zeros(0)) == 0.0


def test_nothing_sold():
    merit = judge(TYPES, pm.Outcome(np.zeros((2, 2)), np.zeros((2, 2))), 1.0)
    assert (merit.epsilon_per_money, merit.participation, merit.worst_overspend) == (0.0, 0.0, 0.0)


def test_gains():
    assert not beyond_rounding(1e-9, 1.0)
    assert not beyond_rounding(9e-8, 100.0)
    assert beyond_rounding(2e-9, 1.0)
    assert gain_shares(np.array([1e-12, 0.5]), 2.0, 1.0).tolist() == [0.0, 0.25]
    assert gain_shares(np.array([0.5]), 0.0, 1.0).tolist() == [0.5]


@pytest.mark.parametrize("markets", [(), (4,), (2, 2)])
def test_any_number_of_markets_is_judged_alike(markets):
    """Three clients, one of which sells less than a unit; money is compared market by market."""
    types = pm.Bids(np.full((*markets, 3), 0.5), np.full((*markets, 3), 1.0))
    sold, paid = np.broadcast_to([0.5, 1.0, 0.0], types.shape), np.broadcast_to([0.25, 1.0, 0.0], types.shape)
    merit = judge(types, pm.Outcome(sold, paid), budget=1.0)
    assert merit.participation == pytest.approx(2 / 3)
    assert (merit.over_budget, merit.worst_overspend) == (1.0, pytest.approx(0.25))
    assert judge(types, pm.Outcome(sold, paid), budget=1.25).over_budget == 0.0


def test_gains_are_shares_of_small_payments_too():
    assert gain_shares(np.array([0.25]), 0.5, 1.0).tolist() == [0.5]


def test_a_coalition_that_gains_can_be_run_again():
    rule = ClaimsCollusionProof()
    report = audit(rule, UNIFORM, 8, 4.0, profiles=1, attack=QUICK)
    witness = report.witnesses["collusion-proof"]
    types = UNIFORM.sample(np.random.default_rng(0), 8, (report.markets,))[witness.market]
    members = list(witness.clients)
    assert tuple(types.valuation[members]) == witness.valuation
    reports = types.valuation.copy()
    offers = types.epsilon.copy()
    reports[members] = witness.reported_valuation
    offers[members] = witness.reported_epsilon
    truth = rule.run(types, 4.0).utility(types)
    found = rule.run(types.replace(valuation=reports, epsilon=offers), 4.0).utility(types)
    assert found[members].sum() - truth[members].sum() == pytest.approx(witness.gain)


def test_a_mean_regret_above_its_promise_names_the_largest_gain():
    class Claims(FirstPrice):
        guarantees = (ApproximatelyTruthful(0.01),)

    report = audit(Claims(), UNIFORM, 8, 4.0, profiles=5, attack=QUICK)
    assert report.broken == ("regret ≤ 1.00% of pay",)
    (witness,) = report.witnesses.values()
    assert witness.gain == report.regret.maximum
    checked = ApproximatelyTruthful(0.01).check(
        Claims(), UNIFORM.sample(np.random.default_rng(0), 5, (1,)), 2.0, np.random.default_rng(0)
    )
    assert not checked.held
    assert checked.witness is not None
    held = ApproximatelyTruthful(1e9).check(
        Claims(), UNIFORM.sample(np.random.default_rng(0), 3, (1,)), 2.0, np.random.default_rng(0)
    )
    assert (held.held, held.witness) == (True, None)


def test_a_report_is_short_to_read_and_easy_to_pass_on(tmp_path):
    report = audit(FirstPrice(), UNIFORM, 6, 3.0, profiles=2, attack=QUICK)
    assert len(repr(report)) < 200
    assert "broken: truthful in v" in repr(report)
    frame = report.to_frame()
    assert list(frame.index) == ["broken:first-price"]
    assert frame["regret.maximum"].item() == report.regret.maximum
    for width in (7.0, 3.4):
        figure = report.plot(tmp_path / "audit.pdf", width=width)
        assert figure.get_size_inches()[0] == width
    assert (tmp_path / "audit.pdf").stat().st_size > 1000
    with pytest.raises(ConfigurationError, match=r"audit\.docx"):
        report.plot(tmp_path / "audit.docx")
    ElementTree.fromstring(f"<div>{report._repr_html_()}</div>")
    assert report.to_html().startswith("<!doctype html>")
