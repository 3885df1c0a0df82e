"""Sellers of `privmarket.secagg` that lie, and parcels that are spoilt on the way, before and after training.

What must come out: nobody trains for a sum that cannot be opened because of what was wrong before, and the total is
the exact sum over the survivors, or there is none.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from privmarket.secagg import (
    AdvertisedKeys,
    CheckedShares,
    Client,
    Confirmation,
    DeliveredShares,
    MaskedInput,
    OpenedShares,
    Parcel,
    SealedShares,
    SumRefusal,
    _client,
    _server,
    _shamir,
    answer,
)
from privmarket.secagg._keys import NONCE_BYTES
from privmarket.secagg._server import without_complaints
from tests.unit.secagg.parties import IDENTITIES, Play, terms_of, total_of, vector_of

LIAR = 5


def flipped(content):
    """The same bytes with the last one changed."""
    return content[:-1] + bytes([content[-1] ^ 1])


def trained(play):
    """The sellers that were asked for their vectors, and so have trained."""
    return {number for phase, number in play.answers if phase == "INPUTS"}


# ---- before training -------------------------------------------------------------------------------------------


def spoils(receivers):
    """A seller whose parcels for some others cannot be opened."""

    def after(number, reply):
        if number == LIAR and isinstance(reply, SealedShares):
            parcels = [
                replace(p, content=flipped(p.content)) if p.seller in receivers else p for p in reply.parcels
            ]
            return replace(reply, parcels=tuple(parcels))
        return reply

    return after


class OpensLate(Client):
    """The order of the paper: a seller looks into the parcels when the sum is opened, after it has trained."""

    def check(self, delivered):
        self.parcels = delivered
        with self._journal.open() as journal:
            state = journal.named(delivered.sum)
            whole = [Parcel(parcel.seller, bytes(76)) for parcel in delivered.parcels]
            journal.write(replace(state, step=3, shares=(*state.shares, *whole)))
        number = delivered_to(self, state)
        return CheckedShares(delivered.sum, number, ())

    def open(self, confirmed):
        with self._journal.open() as journal:
            state = journal.named(confirmed.sum)
            journal.write(replace(state, step=2, shares=state.shares[:1]))
        if super().check(self.parcels).spoilt:
            raise SumRefusal("shares", "spoilt")
        with self._journal.open() as journal:
            held = journal.named(confirmed.sum).shares
            journal.write(replace(state, shares=held))
        return super().open(confirmed)


def delivered_to(client, state):
    return _client.decode(_client.SumTerms, state.terms).number_of(client._identity.public_key)


@pytest.mark.parametrize("receivers", [range(5), {0, 1}])
def test_spoilt_parcels_cost_everybody_a_training_where_they_are_opened_late(receivers):
    play = Play(client=OpensLate, after=spoils(receivers))
    assert play.run() is None
    assert trained(play) == set(range(7))
    assert Play(client=OpensLate).run() is not None  # without a liar it is the same protocol


@pytest.mark.parametrize("receivers", [range(5), {0, 1}, {0}])
def test_a_seller_that_spoils_parcels_is_left_out_before_anybody_trains(receivers):
    play = Play(after=spoils(receivers))
    np.testing.assert_array_equal(play.run(), total_of(set(range(7)) - {LIAR}))
    assert LIAR not in trained(play)


def test_a_server_that_spoils_parcels_gets_no_training():
    def before(number, message):
        if isinstance(message, DeliveredShares):
            parcels = tuple(replace(parcel, content=flipped(parcel.content)) for parcel in message.parcels)
            return replace(message, parcels=parcels)
        return message

    play = Play(before=before)
    assert play.run() is None
    assert play.causes() == {"shares"}
    assert trained(play) == set()


def test_parcels_of_others_are_no_parcels():
    """What was sealed for one seller is handed to another, and one sender's is called another's."""

    def before(number, message):
        if isinstance(message, DeliveredShares) and number == 0:
            contents = [parcel.content for parcel in message.parcels]
            moved = [*contents[1:], contents[0]]
            parcels = [replace(p, content=c) for p, c in zip(message.parcels, moved, strict=True)]
            return replace(message, parcels=tuple(parcels))
        return message

    play = Play(before=before)
    np.testing.assert_array_equal(play.run(), total_of(range(1, 7)))
    assert play.causes() == {"shares"}


@pytest.mark.parametrize("senders", [(1, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 9)])
def test_parcels_of_strangers_or_twice_of_one_are_refused(senders):
    play = Play().until("CHECKS")
    parcel = play.waiting[0].parcels[0]
    parcels = tuple(replace(parcel, seller=sender) for sender in senders)
    with pytest.raises(SumRefusal) as caught:
        answer(play.clients[0], DeliveredShares(play.terms.digest, parcels))
    assert caught.value.cause == "shares"


@pytest.mark.parametrize(
    ("spoilt", "left"),
    [
        ({0: (), 1: (), 2: ()}, {0, 1, 2}),
        ({0: (3,), 1: (3,), 2: (), 3: ()}, {0, 1, 2}),  # two complain of one
        ({0: (1, 2, 3), 1: (), 2: (), 3: ()}, {1, 2, 3}),  # one complains of everybody
        ({0: (1,), 1: (), 2: ()}, {0, 2}),  # one word against another: who is complained of goes
        ({0: (9,), 1: ()}, {0, 1}),  # of one that is gone already
    ],
)
def test_one_liar_costs_at_most_one_honest_seller(spoilt, left):
    assert without_complaints(spoilt) == left


def test_a_seller_that_complains_of_all_leaves_alone():
    def after(number, reply):
        if number == LIAR and isinstance(reply, CheckedShares):
            return replace(reply, spoilt=tuple(n for n in range(7) if n != LIAR))
        return reply

    play = Play(after=after)
    np.testing.assert_array_equal(play.run(), total_of(set(range(7)) - {LIAR}))


# ---- after training --------------------------------------------------------------------------------------------


def opens_wrongly(liars):
    """Sellers that give out wrong shares when the sum is opened."""

    def after(number, reply):
        if number in liars and isinstance(reply, OpenedShares):
            wrong = [replace(parcel, content=flipped(parcel.content)) for parcel in reply.shares]
            return replace(reply, shares=tuple(wrong))
        return reply

    return after


def off_by_one(number, reply):
    """The first seller's shares, changed so that the first number of each restored secret is one more."""
    if number != 0 or not isinstance(reply, OpenedShares):
        return reply
    factor = int(_shamir._factors_at_zero((1, 2, 3, 4, 5, 6))[0])
    change = pow(factor, -1, _shamir._PRIME)
    wrong = []
    for parcel in reply.shares:
        first = (int.from_bytes(parcel.content[2:4], "little") + change) % _shamir._PRIME
        wrong.append(replace(parcel, content=parcel.content[:2] + first.to_bytes(2, "little") + parcel.content[4:]))
    return replace(reply, shares=tuple(wrong))


def fixed_secrets(identity, journal):
    """A seller whose seeds are the same in every run."""
    return Client(identity, journal, random_bytes=random.Random(identity.public_key).randbytes)


def test_wrong_shares_give_a_wrong_total_to_a_gullible_server(monkeypatch):
    """One that compares no restored secret with what was committed to, and does not look whether masks cancel."""
    monkeypatch.setattr(_server.Server, "_is_seed", lambda self, owner: lambda seed: True)
    cancel = _server.without_count
    monkeypatch.setattr(
        _server, "without_count", lambda total, bits, sellers: cancel(total, bits, int(total[-1]) % 2**bits)
    )
    total = Play(after=off_by_one, client=fixed_secrets).run()
    assert total is not None
    assert not np.array_equal(total, total_of(range(7)))


def test_wrong_shares_that_look_right_are_noticed_by_the_commitment():
    play = Play(after=off_by_one, client=fixed_secrets)
    np.testing.assert_array_equal(play.run(), total_of(range(7)))


def test_one_liar_of_seven_changes_nothing():
    play = Play(after=opens_wrongly({0}))
    np.testing.assert_array_equal(play.run(), total_of(range(7)))


def test_more_liars_than_may_be_missing_close_the_sum():
    play = Play(after=opens_wrongly({0, 1}))
    assert play.run() is None
    assert "cannot be restored" in play.closed


def test_a_seller_that_deals_shares_of_another_secret_closes_the_sum(monkeypatch):
    """Its parcels open well; only when the sum is opened does its seed not come out. Never a wrong total."""
    split = _client.split
    made = []

    def other(secret, threshold, pieces, random):
        made.append(secret)
        return split(b"s" * 32 if len(made) == 2 * LIAR + 1 else secret, threshold, pieces, random)

    monkeypatch.setattr(_client, "split", other)
    play = Play()
    assert play.run() is None
    assert f"seller {LIAR} cannot be restored" in play.closed


def test_a_drop_out_whose_masks_cannot_be_taken_off_closes_the_sum(monkeypatch):
    split = _client.split
    made = []

    def other(secret, threshold, pieces, random):
        made.append(secret)
        return split(b"k" * 32 if len(made) == 2 * LIAR + 2 else secret, threshold, pieces, random)

    monkeypatch.setattr(_client, "split", other)
    play = Play(gone={"INPUTS": {LIAR}})
    assert play.run() is None
    assert f"seller {LIAR} cannot be restored" in play.closed


def test_a_vector_without_masks_closes_the_sum():
    def after(number, reply):
        if number == LIAR and isinstance(reply, MaskedInput):
            return replace(reply, vector=bytes(len(reply.vector)))
        return reply

    play = Play(after=after)
    assert play.run() is None
    assert "do not cancel" in play.closed


# ---- whatever else a seller may send ---------------------------------------------------------------------------

NONSENSE = {
    "keys of another seller": lambda r: isinstance(r, AdvertisedKeys) and replace(r, sender=1),
    "no signature": lambda r: isinstance(r, AdvertisedKeys) and replace(r, signature=b""),
    "one key twice": lambda r: isinstance(r, AdvertisedKeys) and replace(r, mask_key=r.channel_key),
    "no commitment": lambda r: isinstance(r, AdvertisedKeys) and replace(r, seed_commitment=b""),
    "a parcel too few": lambda r: isinstance(r, SealedShares) and replace(r, parcels=r.parcels[1:]),
    "a parcel twice": lambda r: isinstance(r, SealedShares) and replace(r, parcels=(*r.parcels, r.parcels[0])),
    "short parcels": lambda r: (
        isinstance(r, SealedShares)
        and replace(r, parcels=tuple(replace(p, content=p.content[:NONCE_BYTES]) for p in r.parcels))
    ),
    "a complaint of a stranger": lambda r: isinstance(r, CheckedShares) and replace(r, spoilt=(50,)),
    "a short vector": lambda r: isinstance(r, MaskedInput) and replace(r, vector=r.vector[:-1]),
    "integers too large": lambda r: isinstance(r, MaskedInput) and replace(r, vector=b"\xff" * len(r.vector)),
    "a wrong signature": lambda r: isinstance(r, Confirmation) and replace(r, signature=bytes(64)),
    "a share too few": lambda r: isinstance(r, OpenedShares) and replace(r, shares=r.shares[1:]),
    "shares of nothing": lambda r: (
        isinstance(r, OpenedShares) and replace(r, shares=tuple(Parcel(p.seller, b"") for p in r.shares))
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_of_one_seller_is_left_out(name):
    def after(number, reply):
        return (number == LIAR and NONSENSE[name](reply)) or reply

    play = Play(after=after)
    total = play.run()
    np.testing.assert_array_equal(total, total_of(play.server.result.survivors))
    assert set(play.server.result.survivors) >= set(range(7)) - {LIAR}


def test_another_sellers_key_written_otherwise_gives_no_common_mask():
    """A colluder hands in the victim's key with its top bit changed. Every pair still has a mask of its own."""

    def after(number, reply):
        if number == LIAR and isinstance(reply, AdvertisedKeys):
            copied = copies[0][:-1] + bytes([copies[0][-1] ^ 0x80])
            forged = replace(reply, mask_key=copied)
            return replace(forged, signature=IDENTITIES[LIAR].sign(forged.statement))
        if isinstance(reply, AdvertisedKeys) and number == 0:
            copies.append(reply.mask_key)
        return reply

    copies = []
    play = Play(terms_of(), after=after)
    np.testing.assert_array_equal(play.run(), total_of(set(range(7)) - {LIAR}))  # it cannot find its own keys
    assert play.causes() == {"keys"}


def test_each_seller_added_what_it_said():
    assert not np.array_equal(vector_of(0), vector_of(1))
