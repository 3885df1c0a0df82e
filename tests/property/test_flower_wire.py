"""What is said over the wire arrives to the last bit, through Flower's own serialisation."""

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st

from privmarket.federated.round import Offer
from privmarket.flower import wire
from privmarket.privacy.calibration import ReleaseFamily

numbers = st.floats(min_value=1e-300, max_value=1e300)
names = st.text(max_size=20)
counts = st.integers(min_value=0, max_value=2**62)
families = st.builds(
    ReleaseFamily, st.floats(min_value=1e-9, max_value=1.0), st.integers(1, 10**6), st.floats(1e-12, 0.5)
)
calls = st.builds(wire.Call, names, counts, counts, counts, families, numbers, names)
sales = st.builds(
    wire.Sale, names, counts, numbers, counts, families, *(3 * [numbers]), share=numbers, broker_round=names
)
receipts = st.builds(wire.Receipt, names, counts, counts, names)
offers = st.none() | st.builds(Offer, numbers, numbers, numbers, st.none() | numbers)


def sent(content):
    return recorddict_from_proto(recorddict_to_proto(content))


@given(calls, sales, receipts)
def test_calls_sales_and_receipts(call, sale, receipt):
    content = wire.write_call(call)
    wire.add_sale(content, sale)
    wire.add_receipt(content, receipt)
    arrived = sent(content)
    assert wire.read_call(arrived) == call
    assert wire.read_sale(arrived) == sale
    assert wire.read_receipt(arrived) == receipt


@given(names, offers)
def test_offers(client, offer):
    assert wire.read_offer(sent(wire.write_offer(client, offer))) == (client, offer)
