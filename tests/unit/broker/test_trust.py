"""What users need not trust the broker for: signed and sealed bids, proofs, witnesses, backups."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi.testclient import TestClient

from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._backup import backup, restore
from privmarket.broker._broker import Broker
from privmarket.broker._client import BrokerCallError, BrokerClient, LogForkedError
from privmarket.broker._database import Database
from privmarket.broker._errors import BrokerError, ConflictError, DatabaseError, ForbiddenError
from privmarket.broker._sealed import unseal
from privmarket.broker._signatures import Head, SigningKey, key_message, read_checkpoint
from privmarket.broker._verify import verify
from privmarket.broker._witness import Witness, forks, read_heads
from privmarket.rounds import Offer
from privmarket_fixtures import market as markets
from privmarket_fixtures.eventful import NONCE, eventful_market, sealed_bid
from privmarket_fixtures.market import TASK, Clock, Market, key, make_market
from tests.postgres import new_database

SETTINGS = ServiceSettings(tick_seconds=0, requests_per_second=1e6, burst=1e6)
BROKER_KEY = SigningKey.from_seed(b"\x01" * 32)


def connect(market: Market, token: str | None = None, **more: Any) -> BrokerClient:
    http = TestClient(create_app(market.broker, SETTINGS), base_url="http://broker")
    return BrokerClient("http://broker", token, http=http, **more)


@pytest.fixture
def signed(database: str) -> Market:
    """A market whose log is signed, and whose first two sellers have keys."""
    market = make_market(database, key=BROKER_KEY)
    for i, seller in enumerate(market.sellers[:2]):
        market.broker.change_key(seller, signing(i).public, key(), signs="bids")
    return market


def signing(number: int) -> SigningKey:
    return SigningKey.from_seed(bytes([number + 10]) * 32)


def test_a_key_is_a_private_file_that_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "seller.pem"
    made = SigningKey.generate()
    made.write(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SigningKey.read(file).public == made.public
    with pytest.raises(BrokerError, match="exists"):
        made.write(file)
    file.write_text("no key")
    with pytest.raises(BrokerError, match="cannot read"):
        SigningKey.read(file)


def test_a_seller_with_a_key_must_sign(signed: Market) -> None:
    round_id = signed.open()
    with pytest.raises(BrokerError, match="nonce"):
        signed.broker.bid(signed.sellers[0], round_id, Offer(0.2, 1.0), key())
    with pytest.raises(ForbiddenError) as refused:
        signed.broker.bid(signed.sellers[0], round_id, Offer(0.2, 1.0), key(), nonce=NONCE, signature="00" * 64)
    assert refused.value.code == "bad-signature"
    client = connect(signed, signed.broker.mint_token(signed.sellers[0], "full", key())["token"], key=signing(0))
    assert client.bid(round_id, 0.2, 1.0)["valuation"] == 0.2
    stolen = connect(signed, client.token, key=signing(1))  # the token without the key is no bid
    with pytest.raises(BrokerCallError, match="not signed by the seller's key"):
        stolen.bid(round_id, 0.1, 1.0)
    assert verify(signed.broker).differences == ()


def test_bids_that_their_bidder_seals(signed: Market) -> None:
    round_id = signed.open(sealing="bidder", buyer_may_close=False)
    with pytest.raises(BrokerError, match="their bidder seals"):
        signed.broker.bid(signed.sellers[0], round_id, Offer(0.2, 1.0), key())
    with pytest.raises(ForbiddenError, match="signed bids only"):
        signed.broker.commit_bid(signed.sellers[2], round_id, "ab" * 32, "00" * 64, key())
    sealed_bid(signed, 0, signing(0), round_id, Offer(0.2, 1.0))
    sealed_bid(signed, 1, signing(1), round_id, Offer(0.3, 1.0))
    with signed.broker.database.read() as connection:  # nothing in the whole database tells the price
        for table in ("log", "bids"):
            rows = [str(row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}").all()]
            assert not any("0.3" in row.replace("50.3", "") and "valuation" in row for row in rows)
    with pytest.raises(ConflictError):
        signed.broker.reveal(signed.sellers[0], round_id, Offer(0.2, 1.0), NONCE, key())  # bidding goes on
    signed.clock.now_ms += 60_000
    assert [done["state"] for done in signed.broker.tick()] == ["revealing"]
    with pytest.raises(BrokerError, match="not the bid that was committed"):
        signed.broker.reveal(signed.sellers[0], round_id, Offer(0.1, 1.0), NONCE, key())
    signed.broker.reveal(signed.sellers[0], round_id, Offer(0.2, 1.0), NONCE, key())
    assert signed.broker.tick() == []  # the other has time
    signed.clock.now_ms += 600_000
    with pytest.raises(ConflictError, match="time to reveal is over"):
        signed.broker.reveal(signed.sellers[1], round_id, Offer(0.3, 1.0), NONCE, key())
    assert [done["state"] for done in signed.broker.tick()] == ["cleared"]
    assert signed.winners(round_id) == [signed.sellers[0].party_id]
    why = connect(signed, signed.broker.mint_token(signed.sellers[1], "full", key())["token"]).outcome(round_id)
    assert "not revealed in time" in why["why"]
    assert verify(signed.broker).differences == ()


def test_the_client_seals_and_reveals(signed: Market, tmp_path: Path) -> None:
    round_id = signed.open(sealing="bidder")
    token = signed.broker.mint_token(signed.sellers[0], "full", key())["token"]
    openings = tmp_path / "openings.json"
    connect(signed, token, key=signing(0), openings=openings).bid(round_id, 0.2, 1.0)
    assert stat.S_IMODE(openings.stat().st_mode) == 0o600
    signed.broker.close_round(signed.buyer, round_id, key())
    again = connect(signed, token, key=signing(0), openings=openings)  # another process, another day
    assert again.reveal(round_id)["valuation"] == 0.2
    assert signed.broker.tick()[0]["state"] == "cleared"  # everybody has revealed


def test_what_opens_a_sealed_bid_is_on_disk_before_the_bid_leaves(
    signed: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = signed.open(sealing="bidder")
    token = signed.broker.mint_token(signed.sellers[0], "full", key())["token"]
    client = connect(signed, token, key=signing(0), openings=tmp_path / "openings.json")
    client.me()  # the client knows its name, so that the bid is the next thing that it writes
    steps: list[str] = []
    synced, sent = os.fsync, client.write
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("disk"), synced(handle))[1])
    monkeypatch.setattr(
        client, "write", lambda *given: (steps.append(given[1].rpartition("/")[2]), sent(*given))[1]
    )
    client.bid(round_id, 0.2, 1.0)
    assert steps[: steps.index("bids")] == ["disk", "disk"]  # the file, and its name in the folder


def test_answers_carry_signed_heads_and_entries_are_proven(signed: Market) -> None:
    round_id = signed.open()
    token = signed.broker.mint_token(signed.sellers[2], "full", key())["token"]
    client = connect(signed, token)
    entry = client.bid(round_id, 0.4, 0.5)["entry"]
    assert client.heads[-1].is_signed_by(BROKER_KEY.public)
    assert client.heads[-1].size == entry
    for _ in range(5):
        signed.broker.deposit(signed.operator, signed.buyer.party_id, 5, key())
    proven = client.prove(entry)
    assert (proven["entry"][0], proven["entry"][3], proven["size"]) == (entry, "bid.placed", entry + 5)
    with pytest.raises(BrokerCallError, match="no entry"):
        client.prove(entry + 5)  # somebody else's deposit
    signed.finish(round_id)
    paid = [line for line in client.statement() if line["kind"] == "award.settled"]
    assert client.prove(paid[0]["seq"])["entry"][3] == "award.settled"


def fork(market: Market, tmp_path: Path) -> Market:
    """The same broker, with the same key, that went another way after a common beginning."""
    file = tmp_path / f"{key()}.gz"
    backup(market.broker.database, file)
    stored = Database(f"sqlite:///{tmp_path}/{key()}.db", market.clock, key=BROKER_KEY)
    restore(stored, file)
    return Market(Broker(stored), market.clock, market.operator, market.buyer, market.sellers)


def test_a_witness_raises_an_alarm_when_the_log_forks(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    other = fork(market, tmp_path)
    file = tmp_path / "heads.txt"
    witness = Witness(connect(market), file, clock=market.clock)
    first = witness.look()
    assert witness.look() == first
    market.broker.deposit(market.operator, market.buyer.party_id, 5, key())
    grown = witness.look()
    assert (grown.size, len(read_heads(file)[1])) == (first.size + 1, 2)
    for amount in (6, 7):
        other.broker.deposit(other.operator, other.buyer.party_id, amount, key())
    shown_the_other = Witness(connect(other), file, clock=market.clock)  # the same file, after a restart
    with pytest.raises(LogForkedError, match="does not begin with"):
        shown_the_other.look()
    theirs = Witness(connect(other), tmp_path / "theirs.txt", clock=market.clock)
    theirs.look()
    assert forks(connect(market), witness.heads, witness.heads) == []
    market.broker.deposit(market.operator, market.buyer.party_id, 8, key())
    market.broker.deposit(market.operator, market.buyer.party_id, 9, key())
    witness.look()
    assert len(forks(connect(market), witness.heads, theirs.heads)) == 1


def test_a_witness_notices_another_key_and_a_shorter_log(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    file = tmp_path / "heads.txt"
    Witness(connect(market), file, BROKER_KEY.public, clock=market.clock).look()
    with pytest.raises(BrokerError):
        Witness(connect(market), file, SigningKey.generate().public)
    younger = make_market(f"sqlite:///{tmp_path}/n.db", sellers=1, key=BROKER_KEY)
    with pytest.raises(LogForkedError):
        Witness(connect(younger), file, clock=market.clock).look()
    forged = make_market(f"sqlite:///{tmp_path}/o.db", key=SigningKey.generate())
    with pytest.raises(LogForkedError, match="not signed"):
        Witness(connect(forged), file, clock=market.clock).look()


def test_a_witness_checks_time_and_freshness(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    own = Clock(market.clock.now_ms)
    witness = Witness(connect(market), tmp_path / "heads.txt", clock=own)
    first = witness.look()
    own.now_ms += 120_000
    with pytest.raises(LogForkedError, match="clock is -120 s away"):
        witness.look()  # the broker stands still, or shows an answer of two minutes ago
    market.clock.now_ms += 40 * 86_400_000
    market.broker.deposit(market.operator, market.buyer.party_id, 5, key())
    with pytest.raises(LogForkedError, match="clock is 34558"):
        witness.look()  # 40 days ahead
    market.clock.now_ms = own.now_ms
    with pytest.raises(LogForkedError, match="newest entry is dated"):
        witness.look()  # the clock is right again, the entry stays
    assert read_heads(tmp_path / "heads.txt").heads[-1].head == first


def test_entries_that_are_dated_back_are_found_with_what_a_witness_saw(tmp_path: Path) -> None:
    """The operator holds a round open, its clock still, until somebody has made up its mind."""
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    round_id = market.open()
    own = Clock(market.clock.now_ms)
    witness = Witness(connect(market), tmp_path / "heads.txt", clock=own)
    witness.look()
    held = market.clock.now_ms
    for _ in range(3):
        own.now_ms += 50_000
        market.clock.now_ms = own.now_ms
        witness.look()  # the log does not grow; the witness notes how long
    market.clock.now_ms = held + 1000
    market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), key())
    market.clock.now_ms = own.now_ms
    with pytest.raises(LogForkedError, match="dated back by 149 s"):
        witness.look()
    seen = read_heads(tmp_path / "heads.txt").heads
    assert [one.last_ms - one.first_ms for one in seen] == [150_000]
    assert verify(market.broker).differences == (), "the log alone cannot tell"
    (difference,) = verify(market.broker, witnessed=seen).differences
    assert "it is dated back: a witness saw the log without it 149 s after that time" in difference


def test_a_witness_follows_a_rotated_key_that_the_old_one_signed(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    witness = Witness(connect(market), tmp_path / "heads.txt", clock=market.clock)
    witness.look()
    market.broker.rotate_key(signing(7))
    assert witness.look().is_signed_by(signing(7).public)
    assert read_heads(tmp_path / "heads.txt").key == signing(7).public
    assert len(read_heads(tmp_path / "heads.txt").heads) == 2


def test_checkpoints_are_signed_notes_with_cosignatures(tmp_path: Path) -> None:
    """Taken apart here by hand, as another program would."""
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    made = market.broker.register({"role": "auditor", "name": "w"}, key(), market.operator)
    client = connect(market, made["token"])
    witness = Witness(client, tmp_path / "heads.txt", name="w.example", own_key=signing(1), clock=market.clock)
    head = witness.look()
    note = client._http.get("/v1/log/checkpoint").text
    text, _, below = note.partition("\n\n")
    origin, size, root, _ = text.split("\n")
    assert (int(size), base64.b64decode(root).hex()) == (head.size, head.root)
    log_line, witness_line = below.splitlines()
    raw = base64.b64decode(log_line.removeprefix(f"\u2014 {origin} "))
    log_key = bytes.fromhex(BROKER_KEY.public)
    assert raw[:4] == hashlib.sha256(origin.encode() + b"\n\x01" + log_key).digest()[:4]
    Ed25519PublicKey.from_public_bytes(log_key).verify(raw[4:], f"{text}\n".encode())
    raw = base64.b64decode(witness_line.removeprefix("\u2014 w.example "))
    own_key = bytes.fromhex(signing(1).public)
    assert raw[:4] == hashlib.sha256(b"w.example\n\x04" + own_key).digest()[:4]
    seconds = int.from_bytes(raw[4:12], "big")
    assert seconds == market.clock.now_ms // 1000
    signed_text = f"cosignature/v1\ntime {seconds}\n{text}\n".encode()
    Ed25519PublicKey.from_public_bytes(own_key).verify(raw[12:], signed_text)
    assert read_checkpoint(note)[0] == head
    (shown,) = client.read("/v1/log/head")["witnesses"]
    assert (shown["witness"], shown["size"]) == ("w.example", head.size)
    with pytest.raises(BrokerError, match="not a checkpoint"):
        read_checkpoint(note.replace("at_ms", "time"))
    with pytest.raises(BrokerCallError, match="signs with another key"):
        Witness(client, tmp_path / "o.txt", name="w.example", own_key=signing(2), clock=market.clock).look()


def test_a_signed_log_is_written_by_whoever_has_its_key_only(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=BROKER_KEY)
    with pytest.raises(DatabaseError, match="is signed"):
        Broker(f"sqlite:///{tmp_path}/m.db").deposit(market.operator, market.buyer.party_id, 5, key())
    assert Head.parse(market.broker.database.newest_head().header()).is_signed_by(BROKER_KEY.public)


def test_a_sealed_update_opens_when_it_is_paid(signed: Market) -> None:
    round_id = signed.open(delivery="sealed", sealing="broker")
    tokens = {who.party_id: signed.broker.mint_token(who, "full", key())["token"] for who in signed.sellers}
    clients = {i: connect(signed, tokens[signed.sellers[i].party_id], key=signing(i)) for i in (0, 1)}
    for i, client in clients.items():
        client.bid(round_id, 0.2 + 0.1 * i, 0.5)
    signed.broker.bid(signed.sellers[2], round_id, Offer(0.3, 0.5), key())
    signed.broker.close_round(signed.buyer, round_id, key())
    paid, refused = signed.winners(round_id)[:2]
    with pytest.raises(BrokerError, match="are sent sealed"):
        signed.broker.claim_delivery(signed.seller(paid), round_id, "ab" * 32, key())
    sent = {who: connect(signed, tokens[who]).claim_sealed(round_id, b"weights of " + who.encode())
            for who in signed.winners(round_id)}  # fmt: skip
    buyer = connect(signed, signed.broker.mint_token(signed.buyer, "full", key())["token"])
    with pytest.raises(BrokerError, match="no key"):
        buyer.open_update(round_id, paid, sent[paid])
    with signed.broker.database.read() as connection:  # nor can somebody who holds the database open it
        shown = str(connection.exec_driver_sql("SELECT * FROM sealed_keys").all())
        shown += str(connection.exec_driver_sql("SELECT details, answer FROM log").all())
    with signed.broker.database.write("x") as tx:
        keys = tx.vault.of_round(round_id)
    assert set(keys) == set(sent)
    assert not any(one in shown for one in keys.values())
    buyer.give_receipts(round_id, {who: None if who != refused else "too small" for who in sent})
    signed.clock.now_ms += 200_000
    signed.broker.tick()
    assert signed.broker.round_state(round_id) == "settled"
    assert buyer.open_update(round_id, paid, sent[paid]) == b"weights of " + paid.encode()
    with pytest.raises(BrokerError, match="not the update that was claimed"):
        buyer.open_update(round_id, paid, sent[refused])
    with pytest.raises(BrokerError, match="no key"):
        buyer.open_update(round_id, refused, sent[refused])  # not paid, so never opened
    assert verify(signed.broker).differences == ()


def test_the_arbiter_opens_a_disputed_update_and_the_log_shows_it(signed: Market) -> None:
    round_id = signed.open(delivery="sealed")
    signed.broker.bid(signed.sellers[2], round_id, Offer(0.3, 0.5), key())
    for i in (0, 1):
        token = signed.broker.mint_token(signed.sellers[i], "full", key())["token"]
        connect(signed, token, key=signing(i)).bid(round_id, 0.2, 0.5)
    signed.broker.close_round(signed.buyer, round_id, key())
    winner = signed.winners(round_id)[0]
    seller = connect(signed, signed.broker.mint_token(signed.seller(winner), "full", key())["token"])
    ciphertext = seller.claim_sealed(round_id, b"weights")
    operator = connect(signed, signed.broker.mint_token(signed.operator, "full", key())["token"])
    with pytest.raises(BrokerCallError, match="no open dispute"):
        operator.show_key(round_id, winner)
    signed.broker.give_receipts(signed.buyer, round_id, {winner: "cannot tell"}, key())
    seller.dispute(round_id, "open it")
    shown = operator.show_key(round_id, winner)
    assert unseal(ciphertext, shown["key"]) == b"weights"
    assert shown["key"] not in str(list(operator.audit("delivery.shown")))
    assert len(list(operator.audit("delivery.shown"))) == 1
    with pytest.raises(BrokerCallError):  # others may not
        seller.show_key(round_id, winner)
    assert verify(signed.broker).differences == ()


def test_one_wallet_per_data_set(signed: Market) -> None:
    round_id = signed.open(attested=True)
    clients = [
        connect(signed, signed.broker.mint_token(signed.sellers[i], "full", key())["token"], key=signing(i))
        for i in (0, 1)
    ]
    with pytest.raises(BrokerCallError, match="attest their data set"):
        clients[0].bid(round_id, 0.2, 1.0)
    assert clients[0].attest("ab" * 32)["dataset_sha256"] == "ab" * 32
    assert clients[0].bid(round_id, 0.2, 1.0)["epsilon"] == 1.0
    with pytest.raises(BrokerCallError) as refused:
        clients[1].attest("ab" * 32)  # the same records under another name
    assert refused.value.code == "dataset-in-use"
    with pytest.raises(BrokerCallError, match="attests another"):
        clients[0].attest("cd" * 32)
    with pytest.raises(ForbiddenError, match="not signed"):
        signed.broker.attest(signed.sellers[1], "cd" * 32, "00" * 64, key())
    with pytest.raises(ForbiddenError, match="is signed"):
        signed.broker.attest(signed.sellers[2], "cd" * 32, "00" * 64, key())
    assert verify(signed.broker).differences == ()


def test_everything_that_concerns_a_seller_is_proven(signed: Market) -> None:
    """A bid, an award, a payment, and what each did to the wallet: each names its entry in the log."""
    round_id = signed.open()
    seller = connect(signed, signed.broker.mint_token(signed.sellers[2], "full", key())["token"])
    bid = seller.bid(round_id, 0.2, 0.5)["entry"]
    for i in (0, 1):
        token = signed.broker.mint_token(signed.sellers[i], "full", key())["token"]
        connect(signed, token, key=signing(i)).bid(round_id, 0.25, 0.5)
    signed.broker.close_round(signed.buyer, round_id, key())
    claim = seller.claim_delivery(round_id, "ab" * 32)["entry"]
    signed.broker.give_receipts(signed.buyer, round_id, {signed.sellers[2].party_id: None}, key())
    signed.clock.now_ms += 200_000
    signed.broker.tick()
    (award,) = seller.awards(round_id)
    (payment,) = seller.statement()
    places = {"bid.placed": bid, "delivery.claimed": claim, "award.made": award["seq"]}
    places["award.settled"] = award["settled_seq"]
    assert payment["seq"] == award["settled_seq"]  # the payment and the wallet's charge are one entry
    for kind, entry in places.items():
        assert seller.prove(entry)["entry"][3] == kind


def test_names_of_the_idle_are_forgotten(market: Market) -> None:
    market.bid_all(market.open())
    market.clock.now_ms += 400 * 86_400_000
    round_id = market.open(buyer_may_close=True)
    market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), key())
    erased = market.broker.forget_idle(365)
    assert set(erased) == {seller.party_id for seller in market.sellers[1:]}  # not the buyer, nor who bid today
    assert market.broker.forget_idle(365) == []
    assert verify(market.broker).differences == ()


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
def test_a_backup_drill(tmp_path: Path, to: str, request: pytest.FixtureRequest) -> None:
    market = eventful_market(f"sqlite:///{tmp_path}/m.db")
    file = tmp_path / "market.jsonl.gz"
    head = backup(Database(f"sqlite:///{tmp_path}/m.db", read_only=True), file)  # beside the running broker
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(BrokerError, match="exists"):
        backup(market.broker.database, file)
    url = (
        f"sqlite:///{tmp_path}/new.db"
        if to == "sqlite"
        else new_database(request.getfixturevalue("postgres_server"))
    )
    fresh = Database(url, market.clock, key=market.broker.database.key)
    assert restore(fresh, file) == head
    broker = Broker(fresh)
    verdict = verify(broker, f"{head.size}:{head.root}")
    assert verdict.differences == ()
    assert verdict.head == verify(market.broker).head
    # Life goes on where it stopped: keys are remembered, the open round takes bids.
    with pytest.raises(BrokerError, match="holds a market already"):
        restore(fresh, file)
    Market(broker, market.clock, market.operator, market.buyer, market.sellers, market.keys).open()
    assert verify(broker, f"{head.size}:{head.root}").differences == ()
    fresh.close()


def test_a_damaged_backup_is_refused(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db")
    file = tmp_path / "b.gz"
    backup(market.broker.database, file)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    damaged = {
        "cut": file.read_bytes()[:-20],
        "a line missing": gzip.compress(b"".join(lines[:-1])),
        "a line changed": gzip.compress(b"".join(lines).replace(b"50000000", b"50000001")),
        "something else": gzip.compress(b"{}\n"),
    }
    for name, content in damaged.items():
        bad = tmp_path / "bad.gz"
        bad.write_bytes(content)
        fresh = Database(f"sqlite:///{tmp_path}/{name}.db")
        with pytest.raises(BrokerError):
            restore(fresh, bad)
        with fresh.read() as connection:  # and nothing of it stays
            assert connection.exec_driver_sql("SELECT COUNT(*) FROM log").scalar() == 0
        fresh.close()


def test_a_role_that_cannot_rewrite_the_log_is_enough(postgres_server: str) -> None:
    url = new_database(postgres_server)
    make_market(url).broker.database.close()
    role = f"plain_{url.rpartition('/')[2]}"
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        connection.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON log FROM {role}")
    plain = url.replace("//market@", f"//{role}@")
    broker = Broker(plain, clock=Clock(), key=markets.BROKER_KEY)
    operator = broker.authenticate(broker.new_operator_token())
    made = broker.register({"role": "buyer", "name": "b"}, key())
    broker.deposit(operator, made["id"], 5_000_000, key())
    task = broker.publish_task(broker.authenticate(made["token"]), TASK, key())
    broker.open_round(broker.authenticate(made["token"]), task["id"], key())
    assert verify(broker).differences == ()
    with (
        psycopg.connect(plain.replace("+psycopg", ""), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("UPDATE log SET details = '{}'")
    broker.database.close()


def test_a_change_of_key_is_signed_by_the_old_one(signed: Market) -> None:
    seller = signed.sellers[0]
    client = connect(signed, signed.broker.mint_token(seller, "full", key())["token"], key=signing(0))
    client.change_key(signing(5))
    assert client.me()["public_key"] == signing(5).public
    assert verify(signed.broker).differences == ()
    message = key_message(seller.party_id, signing(6).public, "bids")
    with pytest.raises(ForbiddenError, match="present key"):
        signed.broker.change_key(seller, signing(6).public, key(), signature=signing(0).sign(message))
    signed.broker.change_key(seller, signing(6).public, key())  # a key that was lost cannot sign
    (difference,) = verify(signed.broker).differences
    assert "the old one did not sign the change" in difference
    assert seller.party_id in difference


def test_a_suspended_party_keeps_its_word_in_rounds_under_way(market: Market) -> None:
    """An operator that sides with the buyer could else silence a seller between a rejection and its dispute."""
    broker, round_id = market.broker, market.open()
    for seller in market.sellers:
        broker.bid(seller, round_id, Offer(0.2, 1.0), key())
    broker.close_round(market.buyer, round_id, key())
    seller = market.seller(market.winners(round_id)[0])
    for actor in (seller, market.buyer):
        broker.suspend(market.operator, actor.party_id, "under suspicion", key())
    seller, buyer = seller._replace(suspended=True), market.buyer._replace(suspended=True)
    broker.claim_delivery(seller, round_id, "ab" * 32, key())
    broker.give_receipts(buyer, round_id, {seller.party_id: "too small"}, key())
    broker.dispute(seller, round_id, "it is as large as asked", key())
    for new in (
        lambda: broker.bid(seller, round_id, Offer(0.2, 1.0), key()),
        lambda: broker.publish_task(buyer, TASK, key()),
        lambda: broker.change_key(seller, signing(0).public, key()),
    ):
        with pytest.raises(ForbiddenError, match="suspended"):
            new()
    assert verify(broker).differences == ()
