"""What is said over the wire arrives to the last bit, through Flower's own serialisation."""

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given, strategies as st

from privmarket.flower import _wire as wire
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Offer, Terms

numbers = st.floats(min_value=1e-300, max_value=1e300)
trusts = st.sampled_from(["local", "aggregate"])
names = st.text(max_size=20)
counts = st.integers(min_value=0, max_value=2**62)
families = st.builds(
    ReleaseFamily, st.floats(min_value=1e-9, max_value=1.0), st.integers(1, 10**6), st.floats(1e-12, 0.5)
)
calls = st.builds(
    Terms,
    counts,
    st.integers(min_value=1, max_value=10**18),
    families,
    numbers,
    counts,
    names,
    names,
    trusts,
    st.floats(min_value=1e-9, max_value=1.0),
)
sales = st.builds(wire.Sale, names, counts, numbers, counts, families, *(4 * [numbers]), names, trusts)
receipts = st.builds(wire.Receipt, names, counts, counts, names, trusts)
offers = st.builds(Offer, numbers, numbers, numbers, st.none() | numbers)


def sent(content):
    return recorddict_from_proto(recorddict_to_proto(content))


@given(calls, sales, receipts)
def test_calls_sales_and_receipts(call, sale, receipt):
    content = wire.put(RecordDict(), call)
    wire.put(content, sale)
    wire.put(content, receipt)
    arrived = sent(content)
    assert wire.take(arrived, Terms) == call
    assert wire.take(arrived, wire.Sale) == sale
    assert wire.take(arrived, wire.Receipt) == receipt


@given(names, offers)
def test_offers(client, offer):
    answer = wire.Answer(client, True, None, offer.valuation, offer.epsilon, offer.data_size, offer.accuracy)
    assert wire.take(sent(wire.put(RecordDict(), answer)), wire.Answer) == answer


@given(names, st.none() | names)
def test_answers_without_an_offer_and_refusals(client, reason):
    answer = wire.Answer(client, bids=False, reason=reason)
    arrived = sent(wire.put(RecordDict(), answer))
    fields = {"client", "bids", "version"} | (set() if reason is None else {"reason"})
    assert set(arrived[wire.NAMES[wire.Answer]]) == fields
    assert wire.take(arrived, wire.Answer) == answer
    assert wire.take(arrived, wire.Refusal, None) is None
    assert wire.take(sent(wire.put(RecordDict(), wire.Refusal(client))), wire.Refusal).reason == client
