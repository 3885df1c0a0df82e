"""Money in a round, for any offers, any budget and any deliveries: nothing appears and nothing is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from privmarket.federated.round import MICRO, Offer, Round, Terms
from privmarket.mechanisms import mechanism
from privmarket.privacy.calibration import ReleaseFamily

offers = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(Offer, st.floats(0.0, 3.0), st.floats(0.05, 5.0), st.floats(1.0, 1000.0)),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    offers,
    st.integers(1, 20 * MICRO),
    st.randoms(use_true_random=False),
    st.sampled_from(["mean-field-menu", "proportional-share", "csra"]),
)
def test_paid_plus_refunded_is_the_budget(given_offers, budget_micro, random, rule):
    market = Round.publish(Terms(0, budget_micro, ReleaseFamily(), 5.0)).bid(given_offers).clear(mechanism(rule))
    reports = {c: random.choice([None, "update is not finite"]) for c in market.awards if random.random() < 0.8}
    _, record = market.deliver(reports).settle()
    assert record.spent_micro + record.refunded_micro == budget_micro
    assert 0 <= record.spent_micro <= budget_micro
    assert set(record.paid_micro) | set(record.dropped) == set(market.awards)
    assert not set(record.paid_micro) & set(record.dropped)
    assert set(record.paid_micro) <= set(record.sold) == set(reports)
    for client, award in market.awards.items():
        assert award.epsilon <= given_offers[client].epsilon * (1 + 1e-9)
        assert award.noise_multiplier > 0
