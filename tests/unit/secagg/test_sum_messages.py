"""Messages as bytes: one writing each, and nothing else is read."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from privmarket.secagg import (
    AdvertisedKeys,
    CheckedShares,
    Confirmation,
    Confirmations,
    DeliveredShares,
    InputRequest,
    Invitation,
    KeyList,
    MaskedInput,
    OpenedShares,
    Parcel,
    SealedShares,
    SumRefusal,
    SurvivorList,
    from_bytes,
    to_bytes,
)
from tests.unit.secagg.parties import Play, terms_of

WHOLE = st.integers(0, 2**64 - 1)
TEXT = st.binary(max_size=40)
NUMBERS = st.lists(WHOLE, max_size=5).map(tuple)
PARCELS = st.lists(st.builds(Parcel, WHOLE, TEXT), max_size=4).map(tuple)
KEYS = st.builds(AdvertisedKeys, TEXT, WHOLE, TEXT, TEXT, TEXT, TEXT)
MESSAGES = st.one_of(
    st.builds(Invitation, st.builds(lambda task, round: terms_of(task=task, round=round), st.text(), WHOLE), TEXT),
    KEYS,
    st.builds(KeyList, TEXT, st.lists(KEYS, max_size=3).map(tuple)),
    st.builds(SealedShares, TEXT, WHOLE, PARCELS),
    st.builds(DeliveredShares, TEXT, PARCELS),
    st.builds(CheckedShares, TEXT, WHOLE, NUMBERS),
    st.builds(InputRequest, TEXT, NUMBERS),
    st.builds(MaskedInput, TEXT, WHOLE, TEXT),
    st.builds(SurvivorList, TEXT, NUMBERS),
    st.builds(Confirmation, TEXT, WHOLE, TEXT),
    st.builds(Confirmations, TEXT, PARCELS),
    st.builds(OpenedShares, TEXT, WHOLE, PARCELS),
)


@settings(max_examples=200, deadline=None)
@given(MESSAGES)
def test_a_message_is_what_was_written(message):
    data = to_bytes(message)
    assert from_bytes(data) == message
    assert to_bytes(from_bytes(data)) == data


@settings(max_examples=100, deadline=None)
@given(MESSAGES, st.integers(0, 2**32))
def test_cut_and_longer_bytes_are_refused(message, seed):
    data = to_bytes(message)
    rng = random.Random(seed)
    with pytest.raises(SumRefusal):
        from_bytes(data[: rng.randrange(len(data))])
    with pytest.raises(SumRefusal):
        from_bytes(data + b"\x00")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        message = from_bytes(data)
    except SumRefusal:
        return
    assert to_bytes(message) == data  # one writing each


def test_long_lists_that_are_not_there_are_refused_at_once():
    with pytest.raises(SumRefusal, match="list of"):
        from_bytes(bytes([8]) + bytes(4) + b"\xff\xff\xff\x7f" + bytes(100))


def test_every_message_of_a_sum_travels():
    play = Play(gone={"INPUTS": {2}})
    play.run()
    everything = [*play.sent.values(), *play.answers.values()]
    assert {type(message) for message in everything} == {
        Invitation,
        AdvertisedKeys,
        KeyList,
        SealedShares,
        DeliveredShares,
        CheckedShares,
        InputRequest,
        MaskedInput,
        SurvivorList,
        Confirmation,
        Confirmations,
        OpenedShares,
    }
    for message in everything:
        assert from_bytes(to_bytes(message)) == message
