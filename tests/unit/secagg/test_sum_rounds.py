"""The rounds of a secure sum, with honest sellers that may vanish at any step."""

import itertools

import numpy as np
import pytest

from privmarket.secagg import Client, MemoryJournal, OpenedShares, Server, SumClosed, add_up
from tests.unit.secagg.parties import IDENTITIES, PHASES, Play, terms_of, total_of, vector_of


@pytest.mark.parametrize("sellers", [1, 2, 3, 7, 12])
def test_sum_is_exact(sellers):
    play = Play(terms_of(sellers))
    np.testing.assert_array_equal(play.run(), total_of(range(sellers)))
    assert play.server.result.survivors == tuple(range(sellers))
    assert play.refusals == {}


@pytest.mark.parametrize("bits", [31, 32, 33, 48, 62])
def test_sum_is_exact_for_every_width(bits):
    play = Play(terms_of(bits=bits))
    np.testing.assert_array_equal(play.run(), total_of(range(7)))
    sent = play.answers["INPUTS", 0]
    assert len(sent.vector) == (play.terms.length + 1) * -(-bits // 8)


@pytest.mark.parametrize("phase", PHASES[:-1])
@pytest.mark.parametrize("number", [0, 3, 6])
def test_one_of_seven_may_vanish_at_any_step(phase, number):
    play = Play(gone={phase: {number}})
    came = set(range(7))
    if PHASES.index(phase) <= PHASES.index("INPUTS"):
        came -= {number}
    np.testing.assert_array_equal(play.run(), total_of(came))
    assert set(play.server.result.survivors) == came


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_two_of_seven_close_the_sum(phase):
    play = Play(gone={phase: {1, 4}})
    assert play.run() is None
    assert "6 are needed" in play.closed


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(PHASES[:-1], 2)))
def test_of_fourteen_two_may_vanish_at_different_steps(first, second):
    terms = terms_of(14)
    assert terms.threshold == 12
    play = Play(terms, gone={first: {2}, second: {9}})
    total = play.run()
    np.testing.assert_array_equal(total, total_of(play.server.result.survivors))


def test_masks_hide_every_vector():
    """A masked vector of zeros looks like any other: its bits are uniform, and differ in every sum."""
    terms = terms_of(3, length=4000, honest_share=2 / 3, bits=32)
    play = Play(terms)
    play.vector = lambda number: np.zeros(4000, dtype=np.int64)
    play.run()
    words = np.frombuffer(play.answers["INPUTS", 1].vector, dtype="<u4")
    bits = np.unpackbits(words.view(np.uint8))
    # 128,032 bits; 6.5 deviations of a fair coin, passed once in 10^10 runs.
    assert abs(bits.mean() - 0.5) < 6.5 * 0.5 / np.sqrt(bits.size)


def test_without_masks_the_vector_is_plain(monkeypatch):
    """The subject broken on purpose for the test above."""
    monkeypatch.setattr("privmarket.secagg._client.mask", lambda secret, bound, length, bits: np.uint64(0))
    play = Play(terms_of(3, length=4000, bits=32)).until("INPUTS")
    play.vector = lambda number: np.zeros(4000, dtype=np.int64)
    play.step()
    assert not any(play.answers["INPUTS", 1].vector[:-4])


def test_each_secret_is_opened_one_way_only():
    play = Play(gone={"INPUTS": {5}})
    play.run()
    opened = [answer for answer in play.answers.values() if isinstance(answer, OpenedShares)]
    assert len(opened) == 6
    for answer in opened:
        assert [parcel.seller for parcel in answer.shares] == list(range(7))


def test_secrets_are_erased_when_the_sum_is_opened():
    play = Play()
    play.run()
    for journal in play.journals.values():
        with journal.open() as book:
            state = book.latest("run")
        assert (state.seed, state.mask_secret, state.channel_secret, state.shares) == (b"", b"", b"", ())
        assert state.digest == play.terms.digest


def test_next_round_begins_and_an_earlier_one_does_not():
    play = Play()
    play.run()
    later = Play(terms_of(round=1), journals=play.journals)
    assert later.run() is not None
    again = Play(terms_of(round=0, largest=999), journals=play.journals)
    assert again.run() is None
    assert again.causes() == {"repeated"}


def test_add_up_plays_the_same_sum():
    terms = terms_of()
    clients = {one.public_key: Client(one, MemoryJournal()) for one in IDENTITIES[:7]}
    vectors = {key: vector_of(number) for number, key in enumerate(terms.members)}
    np.testing.assert_array_equal(add_up(terms, clients, vectors).total, Play().run())
    few = {key: clients[key] for key in list(clients)[:5]}
    assert add_up(terms_of(round=1), few, vectors) is None


def test_server_ignores_what_is_late_double_or_of_another_sum():
    play = Play()
    play.until("SHARES")
    keys = play.answers["KEYS", 0]
    assert not play.server.receive(keys)  # late
    play.step()
    other = Play(terms_of(round=5)).until("CHECKS")
    assert not play.server.receive(other.answers["SHARES", 0])
    assert play.run() is not None
    assert not play.server.receive(keys)
    with pytest.raises(SumClosed, match="ended"):
        play.server.advance()


def test_first_answer_counts():
    play = Play().until("INPUTS")
    play.step()
    server = Play(terms_of(round=2)).server
    assert server.waiting_for == frozenset(range(7))
    double = Play()
    receive = double.server.receive
    counted = []
    double.server.receive = lambda message: counted.append((receive(message), receive(message)))
    np.testing.assert_array_equal(double.run(), total_of(range(7)))
    assert set(counted) == {(True, False)}


def test_server_starts_only_sound_sums():
    with pytest.raises(Exception, match="do not fit"):
        Server(terms_of(bits=10))
