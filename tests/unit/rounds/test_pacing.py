"""The one pacing rule and the one record, against sums done by hand."""

import pytest
from hypothesis import given, settings, strategies as st

from privmarket._settings import MarketPlan
from privmarket.errors import WalletError
from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet_store import ReleaseBook
from privmarket.rounds import (
    MICRO,
    Award,
    LocalAuctioneer,
    Offer,
    Pacing,
    Phase,
    Round,
    RoundError,
    RoundRecord,
    Terms,
    hold_auction,
    micro_units,
    offered_micro,
)


def after(*spent_micro):
    return [RoundRecord(number, spent_micro=spent) for number, spent in enumerate(spent_micro)]


def test_a_budget_per_round_does_not_depend_on_what_was_spent():
    pacing = Pacing(MarketPlan(rounds=4, budget=2.5), ReleaseFamily(), 5.0)
    assert [pacing.terms(after(*[10**6] * n)).budget_micro for n in range(4)] == [2_500_000] * 4
    assert pacing.total_micro == 10_000_000


def test_a_total_is_shared_evenly_and_what_is_not_spent_comes_back():
    pacing = Pacing(MarketPlan(rounds=4, budget=99.0, total_budget=10.0), ReleaseFamily(), 5.0)
    assert pacing.total_micro == 10_000_000
    assert pacing.terms(after()).budget_micro == 2_500_000
    assert pacing.terms(after(2_500_000)).budget_micro == 2_500_000
    assert pacing.terms(after(2_500_000, 0)).budget_micro == 3_750_000  # round 1 paid nothing
    assert pacing.terms(after(2_500_000, 0, 1)).budget_micro == 7_499_999
    assert [pacing.terms(after(*[0] * n)).number for n in range(4)] == [0, 1, 2, 3]


def test_less_than_a_micro_unit_per_round_is_refused_instead_of_overspent():
    with pytest.raises(RoundError, match="budget of 0 µ"):
        Pacing(MarketPlan(rounds=10, total_budget=9e-6), ReleaseFamily(), 5.0).terms(after())
    with pytest.raises(RoundError, match="budget of 0 µ"):
        Pacing(MarketPlan(rounds=10, budget=9e-7), ReleaseFamily(), 5.0).terms(after())


def test_money_is_counted_as_it_is_written():
    assert int(4.146558 * MICRO) == 4_146_557  # the float lies below the number
    assert micro_units(4.146558) == 4_146_558
    pacing = Pacing(MarketPlan(rounds=3, budget=4.146558), ReleaseFamily(), 5.0)
    assert pacing.terms(after()).budget_micro == 4_146_558
    assert pacing.total_micro == 3 * 4_146_558
    assert Pacing(MarketPlan(rounds=1, total_budget=8.227063), ReleaseFamily(), 5.0).total_micro == 8_227_063


def test_money_that_was_offered_counts_every_unit_once():
    rounds = [RoundRecord(0, spent_micro=1, refunded_micro=9), RoundRecord(1, spent_micro=2, refunded_micro=17)]
    assert offered_micro(MarketPlan(rounds=2, budget=99.0), rounds) == 29
    # Of a total, what round 0 did not pay is part of round 1's escrow.
    assert offered_micro(MarketPlan(rounds=2, total_budget=20e-6), rounds) == 20
    assert offered_micro(MarketPlan(rounds=2, total_budget=20e-6), rounds[:1]) == 10


@settings(deadline=None)
@given(st.integers(1, 30), st.floats(3e-5, 1e6), st.randoms(use_true_random=False))
def test_no_run_spends_more_than_its_total(rounds, total, random):
    pacing = Pacing(MarketPlan(rounds=rounds, total_budget=total), ReleaseFamily(), 5.0)
    past = []
    for number in range(rounds):
        escrow = pacing.terms(past).budget_micro
        past.append(RoundRecord(number, spent_micro=random.choice([0, escrow, random.randint(0, escrow)])))
    assert sum(record.spent_micro for record in past) <= pacing.total_micro <= total * MICRO * (1 + 1e-12)


@pytest.mark.parametrize("family", [ReleaseFamily(), ReleaseFamily(0.25, 4), ReleaseFamily(0.25, 1, 1e-6)])
def test_an_award_is_the_release_of_its_family(family):
    """Reserved under the round's name is what the auction decided, as the family releases it."""

    class Bidders:
        def offers(self, terms):
            return {"a": Offer(0.1, 2.0)}

    book, auctioneer = ReleaseBook(), LocalAuctioneer(mechanism("proportional-share"))
    auction = hold_auction(Terms(5, 10**6, family, 5.0, run="run"), Bidders(), auctioneer, book)
    assert auction.awards["a"].event == family.event(auction.awards["a"].epsilon)
    assert book.releases() == {"a": (auction.awards["a"].event,)}
    with pytest.raises(WalletError, match="run/5"):
        book.reserve("run/5", {})


def test_a_record_counts_the_paid_and_keeps_the_released():
    terms = Terms(5, 100, ReleaseFamily(), 5.0)
    awards = {
        "a": Award(1.0, PrivacyEvent(3.0), 40),
        "b": Award(2.0, PrivacyEvent(2.0), 50),
        "c": Award(3.0, PrivacyEvent(1.0), 10),
    }
    offers = {name: Offer(0.1, 5.0) for name in "abcd"}
    auction = Round(terms, Phase.CLEARED, offers, awards)
    record = auction.settle({"a": None, "b": "update is not finite"}, {"c": "refused"}).record
    assert (record.number, record.bidders, record.sellers, record.accuracy) == (5, 4, 1, None)
    assert (record.total_epsilon, record.spent_micro, record.refunded_micro) == (1.0, 40, 60)
    assert record.sold_epsilon == {"a": 1.0, "b": 2.0}
    assert record.dropped == {"b": "update is not finite", "c": "refused"}
