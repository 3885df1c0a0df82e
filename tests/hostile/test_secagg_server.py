"""A malicious server of `privmarket.secagg`: it wants one seller's vector, or a sum of fewer than was promised.

Subjects kept broken on purpose are sellers without one of the product's checks. Against each of them the attack
computes the victim's vector, or opens too small a sum; the product's sellers refuse, and nothing is opened.
"""

import copy
import math

import numpy as np
import pytest

from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._noise import NoiseSource
from privmarket.secagg import (
    AdvertisedKeys,
    Client,
    FileJournal,
    InputRequest,
    KeyList,
    MaskedInput,
    MemoryJournal,
    Server,
    SumClosed,
    SumRefusal,
    SurvivorList,
    _client,
    _terms,
    answer,
    colluders_allowed,
    honest_sellers,
    survivors_needed,
)
from privmarket.secagg._client import CHANNEL, MASKS, own_mask
from privmarket.secagg._keys import Agreement, label, new_secret, public_of, unseal
from privmarket.secagg._masks import mask, unpack, without_count
from privmarket.secagg._shamir import PIECE_BYTES, restore
from tests.unit.secagg.parties import IDENTITIES, Play, terms_of, total_of, vector_of
from tests.unit.secagg.test_agreement import SMALL

VICTIM, COLLUDER = 3, 5


def bare(terms, masked, seed, pairwise, key_list):
    """The victim's vector, from its masked one, the seed of its own mask and its keys with all partners."""
    total = unpack(masked.vector, terms.length + 1, terms.bits).copy()
    total -= mask(seed, own_mask(key_list, masked.sender), total.size, terms.bits)
    for other, key in pairwise.items():
        drawn = mask(key, label(MASKS), total.size, terms.bits)
        total = total - drawn if masked.sender > other else total + drawn
    return without_count(total, terms.bits, 1)


# ---- a chosen subset, and sybils -------------------------------------------------------------------------------

AWARDED = [one.public_key for one in IDENTITIES[:7]]
CHOSEN = {
    "three of seven, two of them the server's": tuple(AWARDED[2:5]),
    "the server's own in the others' places": tuple(
        sorted([AWARDED[VICTIM], *(one.public_key for one in IDENTITIES[20:26])])
    ),
    "awarded sellers, and sybils beside them": tuple(sorted([*AWARDED, IDENTITIES[20].public_key])),
}


def asks_the_register(identity, journal):
    return Client(identity, journal, consent=lambda roster, _: roster.check_members(AWARDED))


@pytest.mark.parametrize("members", CHOSEN.values(), ids=CHOSEN)
def test_a_chosen_subset_or_sybils_leave_a_gullible_seller_alone(members):
    """The server knows all vectors but one; the sum gives it that one."""
    play = Play(terms_of(members=members, bits=14))
    number = members.index(AWARDED[VICTIM])
    others = sum(play.vector(i) for i in range(len(members)) if i != number)
    np.testing.assert_array_equal(play.run() - others, play.vector(number))


@pytest.mark.parametrize("members", CHOSEN.values(), ids=CHOSEN)
def test_a_sum_has_exactly_the_awarded_sellers_or_is_refused(members):
    play = Play(terms_of(members=members, bits=14), client=asks_the_register)
    assert play.run() is None
    assert play.causes() == {"members"}
    assert {phase for phase, _ in play.answers} == set()


def test_a_register_may_sign_the_order_instead():
    register = IDENTITIES[30]

    def signed_only(identity, journal):
        def consent(roster, signature):
            roster.check_signature(register.public_key, signature)

        return Client(identity, journal, consent=consent)

    for terms in (terms_of(), terms_of(members=CHOSEN["three of seven, two of them the server's"])):
        play = Play(terms, client=signed_only)
        play.server = Server(terms, terms_of().roster.signed_by(register))
        play.waiting = play.server.start()
        assert (play.run() is not None) == (terms == terms_of())


# ---- two lists of survivors, both secrets of one seller --------------------------------------------------------


class CopiedContext(MemoryJournal):
    """State that whoever sends messages can put back, as Flower's context is copied and handed in again."""

    def copied(self):
        return self._state

    def put_back(self, state):
        self._state = state


def two_worlds(put_back):
    """The server of a sum in which the victim survived, and of the same sum in which it is said to be gone."""
    journals = {number: CopiedContext() for number in range(7)}
    play = Play(journals=journals).until("INPUTS")
    without = copy.deepcopy(play.server)
    play.step()
    for number in range(7):
        if number != VICTIM:
            without.receive(play.answers["INPUTS", number])
    signed = {}
    worlds = {"with": (play.server, play.waiting), "without": (without, without.advance())}
    for _ in range(2):
        states = {number: journal.copied() for number, journal in journals.items()}
        for name, (server, messages) in worlds.items():
            for number, message in messages.items():
                if put_back:
                    journals[number].put_back(signed.get((name, number), states[number]))
                try:
                    server.receive(answer(play.clients[number], message))
                except SumRefusal as error:
                    play.refusals[number] = error
                signed[name, number] = journals[number].copied()
            try:
                worlds[name] = (server, server.advance())
            except SumClosed:
                worlds[name] = (server, {})
    return play, worlds["with"][0], worlds["without"][0]


def test_two_lists_give_a_vector_away_where_state_can_be_put_back():
    """Without a colluder: every seller is honest, and only forgets."""
    _, one, other = two_worlds(put_back=True)
    np.testing.assert_array_equal(one.result.total - other.result.total, vector_of(VICTIM))


def test_both_secrets_of_one_seller_give_its_vector_away():
    play, one, other = two_worlds(put_back=True)
    pieces = {
        name: [
            parcel.content for message in server._opened.values() for parcel in message.shares if parcel.seller == 3
        ]
        for name, server in (("seed", one), ("key", other))
    }
    seed = restore(pieces["seed"][: play.terms.threshold])
    secret = restore(pieces["key"][: play.terms.threshold])
    key_list = one._key_list.digest
    keys = Agreement(secret, MASKS, key_list)
    pairwise = {n: keys.key_with(one._keys[n].mask_key) for n in range(7) if n != VICTIM}
    found = bare(play.terms, play.answers["INPUTS", VICTIM], seed, pairwise, key_list)
    np.testing.assert_array_equal(found, vector_of(VICTIM))


def test_a_seller_signs_one_list_and_opens_each_secret_one_way():
    play, one, other = two_worlds(put_back=False)
    np.testing.assert_array_equal(one.result.total, total_of(range(7)))
    assert other.result is None
    assert other._opened == {}
    assert play.causes() == {"repeated"}


@pytest.mark.parametrize("half", [range(4), range(3, 7)])
def test_two_lists_for_two_halves_open_nothing(half):
    """Each seller signs once, but not all the same list: neither list has enough signatures."""

    def before(number, message):
        if isinstance(message, SurvivorList) and number in half and number != VICTIM:
            return SurvivorList(message.sum, tuple(n for n in message.survivors if n != VICTIM))
        return message

    play = Play(before=before)
    assert play.run() is None


def test_signatures_that_a_server_makes_up_open_nothing():
    def before(number, message):
        if hasattr(message, "signatures"):
            forged = [type(p)(p.seller, IDENTITIES[20].sign(b"list")) for p in message.signatures]
            return type(message)(message.sum, tuple(forged))
        return message

    play = Play(before=before)
    assert play.run() is None
    assert play.causes() == {"survivors"}


# ---- replays, across rounds and restarts -----------------------------------------------------------------------


class StartsAgain(Client):
    """A seller that begins a round's sum anew whenever it is asked to."""

    def advertise(self, invitation):
        self._journal = MemoryJournal()
        return super().advertise(invitation)


def replayed(client, journals=None):
    """A round's sum is opened; then the server asks for it once more, and pretends that the victim is gone."""
    first = Play(client=client, journals=journals)
    one = first.run()
    second = Play(client=client, journals=first.journals, gone={"INPUTS": {VICTIM}})
    second.clients = first.clients
    return one, second.run(), second


def test_a_round_played_twice_gives_a_vector_away():
    one, other, _ = replayed(StartsAgain)
    np.testing.assert_array_equal(one - other, vector_of(VICTIM))


@pytest.mark.parametrize("restart", [False, True])
def test_a_round_is_played_once_also_after_a_restart(restart, tmp_path):
    journals = {number: FileJournal(tmp_path / str(number)) for number in range(7)}
    one, other, second = replayed(Client, journals)
    if restart:
        again = {number: FileJournal(tmp_path / str(number)) for number in range(7)}
        second = Play(journals=again, gone={"INPUTS": {VICTIM}})
        other = second.run()
    np.testing.assert_array_equal(one, total_of(range(7)))
    assert other is None
    assert second.causes() == {"repeated"}


def test_messages_of_an_earlier_round_get_nothing():
    old = Play()
    old.run()
    new = Play(terms_of(round=1), journals=old.journals).until("INPUTS")
    for phase in ("KEYS", "SHARES", "CHECKS", "INPUTS", "CONFIRMATIONS", "OPENINGS"):
        with pytest.raises(SumRefusal) as caught:
            answer(new.clients[VICTIM], old.sent[phase, VICTIM], vector_of(VICTIM))
        assert caught.value.cause in ("repeated", "message")
    np.testing.assert_array_equal(new.run(), total_of(range(7)))


@pytest.mark.parametrize("phase", ["KEYS", "SHARES", "CHECKS", "INPUTS", "CONFIRMATIONS", "OPENINGS"])
def test_the_same_message_again_gets_nothing(phase):
    play = Play().until(phase)
    play.step()
    with pytest.raises(SumRefusal) as caught:
        answer(play.clients[VICTIM], play.sent[phase, VICTIM], vector_of(VICTIM))
    assert caught.value.cause in ("repeated", "message")


# ---- keys that are not the others' -----------------------------------------------------------------------------


class ShowsItsOwnKeys:
    """A server that shows the victim keys of its own making in place of all others'."""

    def __init__(self, small_order=False):
        self.small = small_order
        self.secrets = {}
        self.key_list = None

    def before(self, number, message):
        if isinstance(message, KeyList) and number == VICTIM:
            keys = []
            for one in message.keys:
                if one.sender == VICTIM:
                    keys.append(one)
                    continue
                secret = (new_secret(), new_secret())
                self.secrets[one.sender] = secret
                public = [public_of(secret[0]), public_of(secret[1])]
                if self.small:
                    public = [SMALL[2 * len(keys)], SMALL[2 * len(keys) + 1]]
                keys.append(AdvertisedKeys(one.sum, one.sender, *public, one.seed_commitment, one.signature))
            self.key_list = KeyList(message.sum, tuple(keys))
            return self.key_list
        return message

    def channel(self, other, mine):
        return Agreement(self.secrets[other][0], CHANNEL, self.key_list.digest).key_with(mine.channel_key)

    def pairwise(self, other, mine):
        return Agreement(self.secrets[other][1], MASKS, self.key_list.digest).key_with(mine.mask_key)

    def uncovered(self, play):
        """The victim's vector, from the shares that it sealed for the server and what it sent then."""
        mine = play.answers["KEYS", VICTIM]
        pieces = []
        for parcel in play.answers["SHARES", VICTIM].parcels:
            text = unseal(
                self.channel(parcel.seller, mine), parcel.content, _client._direction(VICTIM, parcel.seller)
            )
            pieces.append(text[PIECE_BYTES:])
        seed = restore(pieces[: play.terms.threshold])
        pairwise = {other: self.pairwise(other, mine) for other in range(7) if other != VICTIM}
        return bare(play.terms, play.answers["INPUTS", VICTIM], seed, pairwise, self.key_list.digest)


def deliver_forged(server, play):
    """Parcels for the victim that open under the keys it was shown; then it is asked for its vector."""
    play.until("CHECKS")
    mine = play.answers["KEYS", VICTIM]
    parcels = []
    for other in range(7):
        if other != VICTIM:
            piece = (VICTIM + 1).to_bytes(2, "little") + bytes(PIECE_BYTES - 2)
            key = server.channel(other, mine)
            sealed = _client.seal(key, bytes(12), piece + piece, _client._direction(other, VICTIM))
            parcels.append(type(play.waiting[0].parcels[0])(other, sealed))
    victim = play.clients[VICTIM]
    answer(victim, type(play.waiting[0])(play.terms.digest, tuple(parcels)))
    request = InputRequest(play.terms.digest, tuple(range(7)))
    play.answers["INPUTS", VICTIM] = answer(victim, request, vector_of(VICTIM))


def known_to_all(self, other):
    """An agreement that takes points of small order: every secret comes out as zeros."""
    return _client.label("zeros")[:16] * 2


@pytest.mark.parametrize("small_order", [False, True])
def test_forged_keys_uncover_a_gullible_seller(small_order, monkeypatch):
    """Before any survivor has signed anything: all of its masks are known, and so are the shares of its seed."""
    monkeypatch.setattr(_client, "keys_fault", lambda keys, terms: None)
    if small_order:
        monkeypatch.setattr(Agreement, "key_with", known_to_all)
    server = ShowsItsOwnKeys(small_order)
    play = Play(before=server.before)
    deliver_forged(server, play)
    np.testing.assert_array_equal(server.uncovered(play), vector_of(VICTIM))


@pytest.mark.parametrize("small_order", [False, True])
def test_forged_keys_are_refused_before_shares_leave(small_order):
    server = ShowsItsOwnKeys(small_order)
    play = Play(before=server.before)
    np.testing.assert_array_equal(play.run(), total_of(set(range(7)) - {VICTIM}))
    assert play.causes() == {"keys"}
    assert ("SHARES", VICTIM) not in play.answers


@pytest.mark.parametrize("key", SMALL[:5], ids=lambda key: key.hex()[-6:])
def test_a_colluder_with_a_key_of_small_order_is_left_out(key):
    """Else all others would have to refuse the sum."""

    def after(number, reply):
        if number == COLLUDER and isinstance(reply, AdvertisedKeys):
            forged = AdvertisedKeys(reply.sum, number, key, reply.mask_key, reply.seed_commitment, b"")
            signature = IDENTITIES[COLLUDER].sign(forged.statement)
            return AdvertisedKeys(reply.sum, number, key, reply.mask_key, reply.seed_commitment, signature)
        return reply

    play = Play(after=after)
    np.testing.assert_array_equal(play.run(), total_of(set(range(7)) - {COLLUDER}))
    assert "same secret" in play.server.left_out[COLLUDER]


def test_keys_signed_for_another_sum_are_no_keys_of_this_one():
    """The register's key signs once per sum: what was signed for an earlier round does not pass in this one."""
    old = Play().until("SHARES")
    stale = old.answers["KEYS", COLLUDER]

    def before(number, message):
        if isinstance(message, KeyList) and number == VICTIM:
            keys = [stale if one.sender == COLLUDER else one for one in message.keys]
            return KeyList(message.sum, tuple(keys))
        return message

    play = Play(terms_of(round=1), journals=old.journals, before=before)
    play.run()
    assert play.causes() == {"keys"}


# ---- different terms for different sellers, wrapped sums -------------------------------------------------------


def told_otherwise(number, message, terms):
    """Half of the sellers are told of other digits of noise: another binding."""
    if hasattr(message, "terms") and number >= 4:
        return type(message)(terms)
    return message


def test_sellers_that_were_told_different_things_share_no_keys():
    other = terms_of(binding=bytes(32))
    play = Play(before=lambda number, message: told_otherwise(number, message, other))
    assert play.run() is None
    assert "sent keys" in play.closed


def test_a_modulus_in_which_sums_wrap_is_refused(monkeypatch):
    small = terms_of(bits=9)
    with pytest.raises(SumRefusal, match="do not fit"):
        Client(IDENTITIES[0], MemoryJournal()).advertise(_client.Invitation(small))
    monkeypatch.setattr(_terms.SumTerms, "check", lambda self: None)  # the subject broken on purpose
    assert not np.array_equal(Play(small).run(), total_of(range(7)))


def test_a_vector_that_could_wrap_the_sum_is_refused(monkeypatch):
    play = Play().until("INPUTS")
    play.vector = lambda number: np.full(play.terms.length, 2000)
    assert play.run() is None
    assert play.causes() == {"input"}


# ---- too few survivors -----------------------------------------------------------------------------------------

SELLERS, SHARE, SIZE = 30, 2 / 3, 4000
HONEST, ALLOWED = honest_sellers(SELLERS, SHARE), colluders_allowed(SELLERS, SHARE)
OLD = (2 * SELLERS - HONEST) // 2 + 1  # enough against colluders or drop-outs, not against both
WITHIN = 7 / math.sqrt(2 * SIZE)  # deviations of a sample's deviation: passed once in 10^11 runs


def lost(reply, number, gone):
    """Whether a server keeps this masked vector from its own protocol."""
    return isinstance(reply, MaskedInput) and number in gone


def noise_left(survivors):
    """What hides the honest sellers from who knows the colluders' shares, over what was promised; and the play.

    Sellers send nothing but their noise. The first ones collude, and always come through.
    """
    noise = [integer_noise.draw_integers(NoiseSource.from_seed(5, number), SIZE, 2) for number in range(SELLERS)]
    largest = integer_noise.largest_noise(2)
    terms = terms_of(SELLERS, length=SIZE, largest=largest, bits=_terms.exact_bits(largest, SELLERS))
    gone = set(range(survivors, SELLERS))
    play = Play(terms, after=lambda number, reply: None if lost(reply, number, gone) else reply)
    play.vector = lambda number: noise[number]
    total = play.run()
    if total is None:
        return None, play
    promised = math.sqrt(HONEST) * integer_noise.noise_deviation(2)
    return float(np.std(total - sum(noise[:ALLOWED]))) / promised, play


def test_pretended_drop_outs_leave_too_little_noise_at_a_lower_threshold(monkeypatch):
    monkeypatch.setattr(_terms, "survivors_needed", lambda sellers, share: OLD)
    left, _ = noise_left(OLD)
    expected = math.sqrt((OLD - ALLOWED) / HONEST)
    assert expected < 0.9
    assert left == pytest.approx(expected, rel=WITHIN)


def test_all_promised_noise_is_left_whoever_is_said_to_have_dropped_out():
    left, play = noise_left(survivors_needed(SELLERS, SHARE))
    assert play.terms.threshold - ALLOWED == HONEST
    assert left == pytest.approx(1.0, rel=WITHIN)


@pytest.mark.parametrize("message", [InputRequest, SurvivorList])
def test_sellers_refuse_a_list_that_is_too_short(message):
    """The server's own count plays no part: sellers count themselves."""

    def before(number, sent):
        return type(sent)(sent.sum, tuple(range(5))) if isinstance(sent, message) else sent

    play = Play(before=before)
    assert play.run() is None
    assert play.causes() == {"survivors"}


# ---- survivors that are in no sum ------------------------------------------------------------------------------

PHANTOM, DROPPED = 0, 6


class Unlinked:
    """A server that opens a sum of five sellers where six are needed: the sixth exists in the list only."""

    def before(self, number, message):
        if isinstance(message, InputRequest) and number != PHANTOM:
            return InputRequest(message.sum, tuple(n for n in range(7) if n != PHANTOM))
        return message

    def after(self, number, reply):
        return None if lost(reply, number, (PHANTOM, DROPPED)) else reply

    def play(self):
        play = Play(before=self.before, after=self.after).until("INPUTS")
        # It asks whoever is left, and names the phantom as a survivor.
        listed = tuple(n for n in range(7) if n != DROPPED)
        enough = play.server._enough
        play.server._enough = lambda sellers, what: listed if what == "came through" else enough(sellers, what)
        play.run()
        return play


def test_a_survivor_without_links_lets_a_gullible_seller_open_too_small_a_sum(monkeypatch):
    def counts_only(listed, known, number, terms):
        if len(listed) < terms.threshold or number not in listed:
            raise SumRefusal("survivors", "too few")

    monkeypatch.setattr(_client, "_check_list", counts_only)
    play = Unlinked().play()
    in_sum = range(1, 6)
    keys = {number: play.answers["KEYS", number] for number in range(7)}
    key_list = KeyList(play.terms.digest, tuple(keys.values())).digest
    opened = [reply for (phase, _), reply in play.answers.items() if phase == "OPENINGS"]

    def secret(owner):
        pieces = [parcel.content for reply in opened for parcel in reply.shares if parcel.seller == owner]
        return restore(pieces[: play.terms.threshold])

    dropped = Agreement(secret(DROPPED), MASKS, key_list)
    total = np.zeros(play.terms.length + 1, dtype=np.uint64)
    for number in in_sum:
        total += unpack(play.answers["INPUTS", number].vector, total.size, play.terms.bits)
        total -= mask(secret(number), own_mask(key_list, number), total.size, play.terms.bits)
        total += mask(dropped.key_with(keys[number].mask_key), label(MASKS), total.size, play.terms.bits)
    found = without_count(total, play.terms.bits, len(in_sum))
    assert len(in_sum) < play.terms.threshold
    np.testing.assert_array_equal(found, total_of(in_sum))


def test_a_survivor_without_links_is_not_confirmed():
    play = Unlinked().play()
    assert play.server.result is None
    assert play.causes() == {"survivors"}
    assert not any(phase == "OPENINGS" for phase, _ in play.answers)
