"""A database that somebody tampered with: keys that are lost, doubled or rotated, single bits, a checkpoint.

tests/studies/torture/test_broker_tampering.py runs a sample of the campaign.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from privmarket.broker import _database as _database
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._errors import BrokerError, ConflictError, DatabaseError
from privmarket.broker._log import Entry
from privmarket.broker._signatures import SigningKey, canonical
from privmarket.broker._verify import verify
from privmarket.rounds import Offer
from privmarket_fixtures.market import BROKER_KEY, Market, key, make_market
from privmarket_fixtures.tampering import (
    SIGNING,
    STRANGER,
    Target,
    appended,
    checked,
    edited,
    entry,
    head_of,
    resigned,
    rewritten,
)


def test_what_an_auditor_accepts_is_only_what_was_named(target: Target, tmp_path: Path) -> None:
    at = target.seen.last_ms + 1000
    words = {"public_key": STRANGER.public, "signs": "everything"}
    seller = target.sellers[0]
    rewritten(target.file, tmp_path / "key.db", appended(entry(at, seller, "party.key", seller, words)))
    resigned(tmp_path / "key.db", SIGNING)
    (difference,) = checked(tmp_path / "key.db", now_ms=target.now_ms).differences
    assert "--accept other-key@130" in difference
    verdict = checked(tmp_path / "key.db", now_ms=target.now_ms, accept=["other-key@130"])
    assert verdict.differences == ()
    assert "did not sign the change" in verdict.accepted[0]
    wrong = checked(tmp_path / "key.db", now_ms=target.now_ms, accept=["other-key@129"])
    assert wrong.unused == ("other-key@129",)
    assert len(wrong.differences) == 1


def test_a_signed_bid_that_comes_back_is_a_finding(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/bids.db", key=SIGNING)
    round_id, who = market.open(), market.sellers[0].party_id
    for valuation in (0.2, 0.3):
        market.broker.bid(market.sellers[0], round_id, Offer(valuation, 1.0), key())
    market.broker.database.close()
    assert checked(tmp_path / "bids.db").differences == ()

    def replayed(entries: list[Entry]) -> list[Entry]:
        """The bid that its seller replaced comes back before bidding ends."""
        first, second = (i for i, one in enumerate(entries) if (one.kind, one.actor) == ("bid.placed", who))
        again = canonical({**entries[first].fields(), "replaces": True})
        return [*entries[: second + 1], entries[second]._replace(details=again, key_hash=None, request_hash=None)]

    rewritten(tmp_path / "bids.db", tmp_path / "replayed.db", replayed)
    resigned(tmp_path / "replayed.db", SIGNING)
    (difference,) = checked(tmp_path / "replayed.db").differences
    assert "came back" in difference


# ---- keys -----------------------------------------------------------------------------------------------------


def test_lost_key_no_new_one_goes_on_with_an_old_log(tmp_path: Path) -> None:
    """A broker started in another folder, or on a restored database, does not make a key without a word."""
    file = tmp_path / "market.db.key"
    stored = Database(f"sqlite:///{tmp_path}/market.db")
    stored.key = _database.read_or_make_key(stored, file)
    broker = Broker(stored)
    broker.first_operator()
    broker.database.close()
    file.rename(tmp_path / "elsewhere.key")
    again = Database(f"sqlite:///{tmp_path}/market.db")
    with pytest.raises(BrokerError, match=r"no key at .*market\.db\.key; the log of 3 entries is signed with"):
        _database.read_or_make_key(again, file)
    assert not file.exists()
    with pytest.raises(DatabaseError, match="this log is signed"):
        Broker(again).first_operator()
    again.key = _database.read_or_make_key(again, tmp_path / "elsewhere.key")
    assert Broker(again).first_operator() is None
    again.close()
    with pytest.raises(BrokerError, match="has no default place"):
        _database.key_file("postgresql+psycopg://market@host/market", None)
    assert _database.key_file("sqlite:///a/m.db", None) == Path("a/m.db.key")


def test_two_keys_never_sign_one_log(database: str) -> None:
    """A second broker with another key does not start; after a rotation the first does not write."""
    market = make_market(database)
    other = SigningKey.from_seed(b"\x33" * 32)
    with pytest.raises(DatabaseError, match="announces the key"):
        Broker(database, key=other)
    beside = Broker(database, clock=market.clock, key=BROKER_KEY)
    beside.deposit(market.operator, market.buyer.party_id, 5, key())
    market.broker.rotate_key(other)
    market.broker.deposit(market.operator, market.buyer.party_id, 6, key())
    with pytest.raises(DatabaseError, match="this log is signed with the key"):
        beside.deposit(market.operator, market.buyer.party_id, 7, key())
    beside.database.close()
    with pytest.raises(DatabaseError, match="announces the key"):
        Broker(database, key=BROKER_KEY)
    assert verify(market.broker, public_key=BROKER_KEY.public).differences == ()
    assert verify(market.broker, public_key=other.public).differences == ()
    unknown = verify(market.broker, public_key=STRANGER.public).differences
    assert ["never announced" in one for one in unknown] == [True]
    market.broker.database.close()


def test_a_key_that_is_not_the_logs_is_a_difference(target: Target) -> None:
    for own, found in ((SIGNING, False), (STRANGER, True)):
        database = Database(f"sqlite:///{target.file}", lambda: target.now_ms, key=own, read_only=True)
        differences = verify(Broker(database)).differences
        assert any("it announces the key" in one for one in differences) is found
        database.close()


def test_a_log_without_key_or_signature_is_a_difference(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=None)
    assert "log: it announces no key, so nobody signed for it" in verify(market.broker).differences
    market.broker.database.close()


def _sealed_round(market: Market) -> str:
    round_id = market.open(delivery="sealed")
    market.bid_all(round_id)
    market.close(round_id)
    for winner in market.winners(round_id):
        market.claim(market.seller(winner), round_id, "cd" * 32, "5e" * 32)
    market.judge(round_id, dict.fromkeys(market.winners(round_id)))
    return round_id


def test_payment_waits_while_a_key_cannot_be_unwrapped(market: Market) -> None:
    round_id = _sealed_round(market)
    _spoil(market)
    with pytest.raises(ConflictError, match="waits: the key of the update of"):
        market.broker.settle_round(market.buyer, round_id, key())
    assert market.broker.round_state(round_id) == "delivered"
    for seller in market.winners(round_id):  # each seller leaves the same key again
        market.claim(market.seller(seller), round_id, "cd" * 32, "5e" * 32)
    assert market.broker.settle_round(market.buyer, round_id, key())["state"] == "settled"
    assert verify(market.broker).differences == ()


def _spoil(market: Market) -> None:
    with market.broker.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sealed_keys SET wrapped = 'ab'")


def test_a_rotated_key_still_opens_sealed_updates(market: Market) -> None:
    round_id = _sealed_round(market)
    market.broker.rotate_key(SigningKey.from_seed(b"\x34" * 32))
    assert verify(market.broker).differences == ()
    assert market.broker.settle_round(market.buyer, round_id, key())["state"] == "settled"
    assert verify(market.broker).differences == ()


def test_a_rotation_that_the_old_key_did_not_sign_is_a_finding(target: Target, tmp_path: Path) -> None:
    at = target.seen.last_ms + 1000
    made = entry(at, "system", "log.key", target.log_id, {"public_key": STRANGER.public})
    rewritten(target.file, tmp_path / "taken.db", appended(made))
    resigned(tmp_path / "taken.db", STRANGER)
    (difference,) = checked(tmp_path / "taken.db", now_ms=target.now_ms).differences
    assert "--accept log-key@130" in difference


# ---- the file -------------------------------------------------------------------------------------------------


def test_a_database_without_a_head_is_refused(target: Target, tmp_path: Path) -> None:
    edited(target.file, tmp_path / "edited.db", "DELETE FROM head")
    with pytest.raises(DatabaseError):
        checked(tmp_path / "edited.db")


def test_single_bits_all_over_the_log_are_found(target: Target, tmp_path: Path) -> None:
    """One bit of one text of the log at a time: what the log says is never another thing."""
    whole = target.file.read_bytes()
    with sqlite3.connect(target.file) as connection:
        texts = [str(text).encode() for (text,) in connection.execute("SELECT details FROM log ORDER BY seq")]
    places = [whole.find(text) for text in texts if len(text) > 40 and whole.count(text) == 1]
    assert len(places) > 30
    for number, place in enumerate(places[::4]):
        flipped = bytearray(whole)
        flipped[place + 5 + number % 30] ^= 1 << number % 8
        (tmp_path / "flipped.db").write_bytes(flipped)
        assert checked(tmp_path / "flipped.db", now_ms=target.now_ms, witnessed=[target.seen]).differences


def test_an_auditor_goes_on_from_a_checkpoint(target: Target, tmp_path: Path) -> None:
    """Only what came after a clean check is read again; the state is the auditor's own, and signed."""
    auditor = SigningKey.from_seed(b"\x44" * 32)
    copy, kept = tmp_path / "market.db", tmp_path / "audit.db"
    shutil.copy(target.file, copy)

    def audit(file: Path, own: SigningKey = auditor) -> object:
        database = Database(f"sqlite:///{file}", lambda: target.now_ms, read_only=True)
        try:
            return verify(Broker(database), witnessed=[target.seen], checkpoint=kept, auditor=own)
        finally:
            database.close()

    first = audit(copy)
    assert (first.differences, first.since) == ((), 0)
    size = head_of(copy).size
    broker = Broker(f"sqlite:///{copy}", clock=lambda: target.now_ms, key=SIGNING)
    operator = broker.authenticate(broker.new_operator_token())
    broker.deposit(operator, target.buyer, 5, key())
    broker.database.close()
    second = audit(copy)
    assert (second.differences, second.since, second.auctions) == ((), size, first.auctions)
    assert second.entries == head_of(copy).size > size
    everything = checked(copy, now_ms=target.now_ms, witnessed=[target.seen])
    assert (everything.head, everything.auctions) == (second.head, second.auctions)
    # Tables are compared in full; a log that was cut behind the checkpoint, or forged after it, is found.
    edited(copy, tmp_path / "edited.db", "UPDATE awards SET paid_micro = paid_micro + 1")
    assert audit(tmp_path / "edited.db").differences
    rewritten(copy, tmp_path / "cut.db", lambda entries: entries[:-1])
    resigned(tmp_path / "cut.db", SIGNING)
    assert audit(tmp_path / "cut.db").differences
    assert audit(copy).since == second.entries, "a check that found something leaves the checkpoint alone"
    with pytest.raises(BrokerError, match="not the checkpoint that this key signed"):
        audit(copy, STRANGER)
    with sqlite3.connect(kept) as connection:
        connection.execute("UPDATE balances SET amount_micro = amount_micro + 1")
    connection.close()
    with pytest.raises(BrokerError, match="not the checkpoint that this key signed"):
        audit(copy)
