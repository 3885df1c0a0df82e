"""Money in a round, for any offers, any budget and any deliveries: nothing appears and nothing is lost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import MICRO, Offer, Round, Terms

offers = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(Offer, st.floats(0.0, 3.0), st.floats(0.05, 5.0), st.floats(1.0, 1000.0)),
    max_size=12,
)


def check_books(record, auction):
    """Everything paid or refunded, nobody paid who was dropped, everybody paid what was awarded."""
    assert record.spent_micro + record.refunded_micro == auction.terms.budget_micro
    assert 0 <= record.spent_micro <= auction.terms.budget_micro
    assert set(record.paid_micro) | set(record.dropped) == set(auction.awards)
    assert not set(record.paid_micro) & set(record.dropped)
    assert all(micro == auction.awards[c].payment_micro for c, micro in record.paid_micro.items())


@settings(max_examples=150, deadline=None)
@given(
    offers,
    st.integers(1, 20 * MICRO),
    st.randoms(use_true_random=False),
    st.sampled_from(["mean-field-menu", "proportional-share", "csra"]),
)
def test_paid_plus_refunded_is_the_budget(given_offers, budget_micro, random, rule):
    auction = Round.publish(Terms(0, budget_micro, ReleaseFamily(), 5.0)).bid(given_offers).clear(mechanism(rule))
    reports = {c: random.choice([None, "update is not finite"]) for c in auction.awards if random.random() < 0.8}
    refused = {c: "refused" for c in auction.awards if c not in reports and random.random() < 0.5}
    record = auction.settle(reports, refused).record
    check_books(record, auction)
    # Spent is whatever was not refused; paid is what was delivered and can be used.
    assert set(record.sold_epsilon) == set(auction.awards) - set(refused)
    assert set(record.paid_micro) == {c for c, fault in reports.items() if fault is None}
    for client, award in auction.awards.items():
        assert award.epsilon <= given_offers[client].epsilon * (1 + 1e-9)
        assert award.event.noise_multiplier > 0


def test_books_that_lose_a_micro_unit_are_caught():
    terms = Terms(0, 5 * MICRO, ReleaseFamily(), 5.0)
    auction = (
        Round.publish(terms).bid({"a": Offer(0.1, 1.0), "b": Offer(0.2, 2.0)}).clear(mechanism("mean-field-menu"))
    )
    record = auction.settle(dict.fromkeys(auction.awards)).record
    check_books(record, auction)
    first = next(iter(record.paid_micro))
    short = replace(record, paid_micro={**record.paid_micro, first: record.paid_micro[first] - 1})
    twice = replace(record, dropped={first: "update is not finite"})
    for broken in (short, twice):
        with pytest.raises(AssertionError):
            check_books(broken, auction)
