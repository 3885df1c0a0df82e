"""The round's rules, and what it refuses."""

import numpy as np
import pytest

from privmarket.errors import OutcomeError
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily, noise_multiplier
from privmarket.rounds import MICRO, Offer, Phase, Round, RoundError, RoundRecord, Terms


class Fixed(Mechanism):
    """Sells and pays what it is told."""

    name = "fixed"

    def __init__(self, epsilon, payment):
        self.outcome = Outcome(np.array(epsilon, dtype=float), np.array(payment, dtype=float))

    def clear(self, bids, budget):
        return self.outcome


def opened(budget_micro=10 * MICRO):
    return Round.publish(Terms(3, budget_micro, ReleaseFamily(), 5.0))


OFFERS = {"a": Offer(0.2, 1.0), "b": Offer(0.3, 2.0), "c": Offer(0.9, 4.0)}


def test_a_round_from_publication_to_settlement():
    cleared = opened().bid(OFFERS).clear(Fixed([1.0, 2.0, 0.0], [0.5, 1.2345678, 0.0]))
    assert cleared.phase is Phase.CLEARED
    assert cleared.awards["b"].event.noise_multiplier == pytest.approx(noise_multiplier(2.0, 1e-5))
    assert cleared.awards["b"].payment_micro == 1_234_567  # rounded down
    assert "c" not in cleared.awards
    settled = cleared.settle({"a": None, "b": None})
    record = settled.record
    assert cleared.record is None
    assert settled.phase is Phase.SETTLED
    assert record.paid_micro == {"a": 500_000, "b": 1_234_567}
    assert record.spent_micro + record.refunded_micro == 10 * MICRO
    assert record.total_epsilon == 3.0
    assert record.dropped == {}


def test_faulty_updates_and_silence_are_unpaid_but_charged_and_only_a_refusal_is_not():
    cleared = opened().bid(OFFERS).clear(Fixed([1.0, 2.0, 1.0], [1.0, 1.0, 1.0]))
    record = cleared.settle({"a": None, "b": "update is not finite"}).record
    assert set(record.paid_micro) == {"a"}
    assert record.dropped == {"b": "update is not finite", "c": "delivered nothing"}
    assert set(record.sold_epsilon) == {"a", "b", "c"}  # what may have left the client costs privacy, paid or not
    record = cleared.settle({"a": None, "b": "update is not finite"}, {"c": "refused"}).record
    assert record.dropped["c"] == "refused"
    assert set(record.sold_epsilon) == {"a", "b"}
    assert record.spent_micro + record.refunded_micro == 10 * MICRO


def test_nobody_bids_and_nobody_wins():
    record = opened().clear(mechanism("mean-field-menu")).settle().record
    assert record.spent_micro == 0
    dear = {"a": Offer(1e6, 5.0)}
    cleared = opened(budget_micro=1).bid(dear).clear(mechanism("mean-field-menu"))
    assert cleared.awards == {}


def test_the_last_offer_counts():
    assert opened().bid(OFFERS).bid({"a": Offer(0.7, 0.5)}).bids.valuation.tolist() == [0.7, 0.3, 0.9]


@pytest.mark.parametrize(
    "offer",
    [Offer(0.1, 5.1), Offer(0.1, 0.0), Offer(0.1, float("nan")), Offer(-1.0, 1.0), Offer(float("inf"), 1.0)],
)
def test_bad_offers(offer):
    with pytest.raises(RoundError, match="mallory"):
        opened().bid({"mallory": offer})


def test_steps_out_of_turn():
    cleared = opened().bid(OFFERS).clear(Fixed([1, 0, 0], [1, 0, 0]))
    with pytest.raises(RoundError, match="is cleared: cannot take bids"):
        cleared.bid(OFFERS)
    with pytest.raises(RoundError, match="is open: cannot settle"):
        opened().settle()
    with pytest.raises(RoundError, match="sold nothing"):
        cleared.settle({"c": None})
    with pytest.raises(RoundError, match="sold nothing"):
        cleared.settle({}, {"c": "refused"})
    with pytest.raises(RoundError, match="a is both reported and void"):
        cleared.settle({"a": None}, {"a": "refused"})
    with pytest.raises(RoundError, match="is cleared: cannot clear"):
        cleared.clear(Fixed([1, 0, 0], [1, 0, 0]))
    settled = cleared.settle({"a": None})
    with pytest.raises(RoundError, match="is settled: cannot settle"):
        settled.settle()


@pytest.mark.parametrize(
    ("epsilon", "payment", "message"),
    [
        ([1.5, 0, 0], [1, 0, 0], "epsilon of client 0 is 1.5"),
        ([1, 0, 0], [-0.1, 0, 0], "payment of client 0 is -0.1"),
        ([float("nan"), 0, 0], [0, 0, 0], "nan"),
        ([1, 2, 4], [4, 4, 4], "not budget feasible"),
        ([1, 2, 4], [1e13, 1e13, 0], "not budget feasible"),  # 10¹⁹ µ: more than 64 bits hold
        ([1, 2, 4], [9e12, 9e12, 9e12], "not budget feasible"),  # each fits, their sum does not
    ],
)
def test_a_broken_mechanism_is_stopped(epsilon, payment, message):
    with pytest.raises((RoundError, OutcomeError), match=message):
        opened().bid(OFFERS).clear(Fixed(epsilon, payment))


def test_no_budget():
    with pytest.raises(RoundError, match="above 0"):
        opened(budget_micro=0)


def test_a_budget_that_64_bits_cannot_count():
    opened(budget_micro=10**18)
    with pytest.raises(RoundError, match="at most 1,000,000,000,000 units"):
        opened(budget_micro=10**18 + 1)


@pytest.mark.parametrize("budget_micro", [10**15 - 14, 10**18])
def test_a_rule_that_rounds_up_by_the_last_digit_spends_the_budget_and_no_more(budget_micro):
    # A thousand times 0.1 adds up to a little less than 100, so a share of the budget is a little too large.
    offers = {str(i): Offer(0.0, 0.1) for i in range(1000)}
    rule = mechanism("proportional-share")
    awards = opened(budget_micro).bid(offers).clear(rule).awards.values()
    paid = [award.payment_micro for award in awards]
    exact = [
        int(p)
        for p in np.floor(rule.run(opened(budget_micro).bid(offers).bids, budget_micro / MICRO).payment * MICRO)
    ]
    assert sum(exact) > budget_micro  # the rule's own figures, rounded down, would spend more
    assert sum(paid) == budget_micro
    assert max(paid) - min(paid) <= 1e-9 * budget_micro


@pytest.mark.parametrize(("trust", "share"), [("blind", 0.5), ("aggregate", 0.0), ("aggregate", 1.5)])
def test_terms_of_an_unknown_trust_or_share_are_refused(trust, share):
    with pytest.raises(RoundError, match="honest share"):
        Terms(3, MICRO, ReleaseFamily(), 5.0, trust=trust, honest_share=share)


def test_everybody_may_be_honest():
    assert Terms(3, MICRO, ReleaseFamily(), 5.0, trust="aggregate", honest_share=1.0).honest_share == 1.0


@pytest.mark.parametrize(("accuracy", "taken"), [(0.0, True), (1.0, True), (-0.1, False), (1.1, False)])
def test_accuracies_from_none_to_all_are_taken(accuracy, taken):
    offer, terms = Offer(0.2, 1.0, 10.0, accuracy), opened().terms
    if taken:
        offer.check("a", terms)
    else:
        with pytest.raises(RoundError, match="accuracy"):
            offer.check("a", terms)


def test_a_round_without_a_market_has_moved_nothing():
    """What training without privacy keeps of a round."""
    assert RoundRecord(3) == RoundRecord(3, 0, 0, 0.0, 0, 0, {}, {}, {}, None)
