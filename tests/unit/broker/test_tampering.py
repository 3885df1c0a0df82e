"""Kinds of tampering that nobody reported, against `broker verify` with a head that a witness saw.

Somebody edits the database; somebody without the broker's key rewrites the log and everything that follows from it;
the operator itself does, with the key. Each case is a broken subject.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from privmarket.broker.broker import Broker
from privmarket.broker.http_errors import DatabaseError
from privmarket.broker.log import Entry
from privmarket.broker.signatures import Head, SigningKey, canonical
from privmarket.broker.verify import verify
from privmarket.rounds import Offer
from privmarket_studies.torture.market import key, make_market
from tests.postgres import new_database
from tests.unit.broker.eventful import eventful_market
from tests.unit.broker.test_verify import appended, checked, edited, known_names, rewritten

SIGNING = SigningKey.from_seed(b"\x08" * 32)


@pytest.fixture(scope="session")
def signed_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of an eventful market whose broker signs with a key that these tests have, and its head."""
    file = tmp_path_factory.mktemp("signed") / "market.db"
    market = eventful_market(f"sqlite:///{file}", SIGNING)
    verdict = verify(market.broker)
    assert verdict.differences == verdict.notes == ()
    market.broker.database.close()
    return file, verdict.head


INVENTED = {
    "a bid takes another's nonce": "UPDATE bids SET nonce = (SELECT MAX(nonce) FROM bids) WHERE nonce = "
    "(SELECT MIN(nonce) FROM bids)",
    "two bids swap their places": "UPDATE bids SET seq = (SELECT MIN(b.seq) + MAX(b.seq) FROM bids b WHERE "
    "b.round_id = bids.round_id) - seq",
    "both sides of a transfer turned round": "UPDATE postings SET amount_micro = -amount_micro",
    "a name in other letters": "UPDATE names SET name = upper(name)",
    "another salt": "UPDATE names SET salt = salt || '0'",
    "a name for nobody": "INSERT INTO names (party_id, name, salt) VALUES ('seller-x', 'x', 'x')",
    "a sealed key moved to another seller": "UPDATE sealed_keys SET seller_id = 'seller-x' "
    "WHERE seller_id = (SELECT MIN(seller_id) FROM sealed_keys)",
    "a second head": "INSERT INTO head SELECT 2, log_id, size, root, at_ms, frontier, signature, clean FROM head",
    "a head of another log": "UPDATE head SET log_id = 'f' || substr(log_id, 2) || 'f'",
    "a head of another time": "UPDATE head SET at_ms = at_ms + 1",
    "another edge of the tree": "UPDATE head SET frontier = substr(frontier, 65) || substr(frontier, 1, 64)",
    "a tile that no log gives": "INSERT INTO tiles (level, place, hash) VALUES (1, 0, 'ab')",
    "only a hash of an entry": "UPDATE log SET hash = (SELECT hash FROM log WHERE seq = 1) WHERE seq = 2",
    "an entry spelt differently": "UPDATE log SET details = replace(details, ':', ': ')",
    "an entry a millisecond later": "UPDATE log SET at_ms = at_ms + 1 WHERE seq = (SELECT MAX(seq) FROM log)",
    "an entry of somebody else": "UPDATE log SET actor = 'system' WHERE kind = 'bid.placed'",
    "an entry numbered beyond the end": "INSERT INTO log SELECT seq + 1000, at_ms, actor, kind, subject, details, "
    "NULL, NULL, NULL, hash FROM log WHERE kind = 'money.deposit' LIMIT 1",
    "a trigger for later": "CREATE TRIGGER later AFTER INSERT ON postings BEGIN SELECT 1; END",
    "a view in the way": "CREATE VIEW richer AS SELECT * FROM parties",
    "a column more": "ALTER TABLE parties ADD COLUMN note TEXT",
    "keys that may repeat": "DROP INDEX log_of_key",
    "numbers as text": "UPDATE rounds SET number = 'zero' WHERE number = 0",
    "a true that is a two": "UPDATE awards SET usable = 2 WHERE usable",
}  # fmt: skip


@pytest.mark.parametrize("edit", INVENTED)
def test_tampering_of_another_kind_is_found(signed_file: tuple[Path, str], tmp_path: Path, edit: str) -> None:
    file, head = signed_file
    schema_only = INVENTED[edit].startswith(("CREATE", "ALTER", "DROP"))
    assert edited(file, tmp_path / "edited.db", INVENTED[edit]) > 0 or schema_only
    assert checked(tmp_path / "edited.db", head).differences


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP INDEX log_of_key", "table log has other columns"),
        ("ALTER TABLE tokens DROP CONSTRAINT tokens_token_hash_key", "table tokens has other columns"),
        ("ALTER TABLE names ADD COLUMN note TEXT", "table names has other columns"),
        ("CREATE VIEW richer AS SELECT * FROM parties", "richer does not belong here"),
        ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
         "CREATE TRIGGER later BEFORE INSERT ON postings EXECUTE FUNCTION f()", "later does not belong here"),
    ],
)  # fmt: skip
def test_another_schema_is_found_on_postgresql(postgres_server: str, statement: str, said: str) -> None:
    url = new_database(postgres_server)
    broker = Broker(url)
    assert verify(broker).differences == ()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement)
    assert [said in one for one in verify(broker).differences] == [True]
    broker.database.close()


def _resigned(file: Path, key: SigningKey) -> None:
    """Signs the head of a copy again."""
    with sqlite3.connect(file) as connection:
        row = connection.execute("SELECT log_id, size, root, at_ms FROM head").fetchone()
        connection.execute("UPDATE head SET signature = ?", (Head(*row).signed(key).signature,))
    connection.close()


def test_a_log_signed_again_with_ones_own_key_does_not_pass_unnoticed(
    signed_file: tuple[Path, str], tmp_path: Path
) -> None:
    """Without the broker's key: announced after the witnessed head, it is a note; put in the old one's place, it
    is another log."""
    file, head = signed_file
    own = SigningKey.generate()
    announced = appended("log.key", "log", "system", {"public_key": own.public})
    rewritten(file, tmp_path / "announced.db", announced)
    _resigned(tmp_path / "announced.db", own)
    assert any("another key signs from here" in note for note in checked(tmp_path / "announced.db", head).notes)

    def replaced(entries: list[Entry]) -> list[Entry]:
        details = canonical({"public_key": own.public})
        return [one._replace(details=details) if one.kind == "log.key" else one for one in entries]

    rewritten(file, tmp_path / "replaced.db", replaced)
    _resigned(tmp_path / "replaced.db", own)
    assert ["noted earlier" in one for one in checked(tmp_path / "replaced.db", head).differences] == [True]


@pytest.mark.parametrize("change", ["swapped", "cut", "invented", "redated"])
def test_a_broker_that_rewrites_what_a_witness_saw_is_found(
    signed_file: tuple[Path, str], tmp_path: Path, change: str
) -> None:
    """The operator itself, with the key, rewrites the log, its hashes, its tables and the signature."""
    file, head = signed_file

    def rewrite(entries: list[Entry]) -> list[Entry]:
        bids = [i for i, one in enumerate(entries) if one.kind == "bid.placed"]
        if change == "swapped":
            entries[bids[0]], entries[bids[1]] = entries[bids[1]], entries[bids[0]]
        if change == "cut":
            entries = entries[:-1]
        if change == "invented":
            entries.insert(
                len(entries) - 1, Entry(0, entries[-1].at_ms, "system", "alert", "x", canonical({"fault": "x"}))
            )
        if change == "redated":
            entries[-1] = entries[-1]._replace(at_ms=entries[-1].at_ms + 1)
        return entries

    rewritten(file, tmp_path / "rewritten.db", rewrite)
    _resigned(tmp_path / "rewritten.db", SIGNING)
    assert any("noted earlier" in one for one in checked(tmp_path / "rewritten.db", head).differences)


@pytest.mark.parametrize(
    ("kind", "actor", "subject", "details", "found"),
    [
        ("party.key", "OPERATOR", "SELLER", {"public_key": "ab" * 32}, "was changed by"),
        ("party.dataset", "SELLER", "SELLER", {"dataset_sha256": "ff" * 32, "signature": "00" * 64},
         "not signed by"),
        ("party.suspended", "BUYER", "SELLER", {"suspended": "x"}, "is not an operator"),
        ("token.revoked", "BUYER", "OPERATOR", {"id": "TOKEN"}, "was ended by"),
        ("log.key", "BUYER", "log", {"public_key": "ab" * 32}, "announced a key"),
        ("party.registered", "BUYER", "operator-x", {"role": "operator", "name_hash": "h"}, "was made by"),
        ("money.deposit", "OPERATOR", "BUYER", {"amount_micro": -5}, "not an amount"),
        ("delivery.claimed", "SELLER", "CLEARED", {"update_sha256": "ab" * 32}, "a claim after the deadline"),
        ("dispute.ruled", "BUYER", "CLEARED", {"seller_id": "SELLER", "ruling": True, "reason": "x"}, "not yours"),
        ("delivery.shown", "OPERATOR", "CLEARED", {"seller_id": "SELLER"}, "without an open dispute"),
        ("round.progress", "SELLER", "CLEARED", {"model_accuracy": 0.5}, "somebody else than the buyer"),
        ("bid.revealed", "SELLER", "CLEARED", {"valuation": 0.1, "epsilon": 1.0, "data_size": 1.0, "accuracy": None,
         "nonce": "00" * 16}, "not the one that was committed to"),
        ("round.delivered", "system", "OPEN", {}, "the round was not cleared"),
        ("party.key", "SELLER", "SELLER", {"public_key": "ab" * 32, "signature": "00" * 64}, "seller's old key"),
        ("imported.row", "system", "tokens", {"id": "token-x", "party_id": "OPERATOR", "token_hash": "ab" * 32,
         "scope": "full", "created_ms": 1}, "never later"),
        ("imported.postings", "system", "x", {"postings": {"world": -5, "party:x": 5}}, "never later"),
        ("log.imported", "system", "log", {"note": "all is well", "entries": 0, "head": "0" * 64}, "never later"),
    ],
)  # fmt: skip
def test_an_entry_that_nobody_could_have_made_is_found(
    signed_file: tuple[Path, str], tmp_path: Path, kind: str, actor: str, subject: str, details: Any, found: str
) -> None:
    """Entries after the witnessed head, hashed, projected and signed by the operator itself."""
    file, head = signed_file
    known = known_names(file)
    named = {name: known.get(value, value) if isinstance(value, str) else value for name, value in details.items()}
    forged = appended(kind, known.get(subject, subject), known.get(actor, actor), named)
    rewritten(file, tmp_path / "forged.db", forged)
    _resigned(tmp_path / "forged.db", SIGNING)
    differences = checked(tmp_path / "forged.db", head).differences
    assert any(found in one for one in differences), differences


def test_what_an_operator_can_forge_about_a_seller_is_noted(signed_file: tuple[Path, str], tmp_path: Path) -> None:
    """A key of the operator's own in a seller's name, and an older signed bid again: allowed words, so a note."""
    file, head = signed_file
    seller = known_names(file)["SELLER"]
    rewritten(file, tmp_path / "key.db", appended("party.key", seller, seller, {"public_key": "ab" * 32}))
    _resigned(tmp_path / "key.db", SIGNING)
    verdict = checked(tmp_path / "key.db", head)
    assert verdict.differences == ()
    assert ["old one did not sign" in one for one in verdict.notes] == [True]

    def replayed(entries: list[Entry]) -> list[Entry]:
        """The bid that its seller replaced comes back before bidding ends."""
        first, second = (i for i, one in enumerate(entries) if (one.kind, one.actor) == ("bid.placed", who))
        assert entries[first].subject == entries[second].subject
        again = canonical({**entries[first].fields(), "replaces": True})
        return [
            *entries[: second + 1],
            entries[second]._replace(details=again, key_hash=None),
            *entries[second + 1 :],
        ]

    market = make_market(f"sqlite:///{tmp_path}/bids.db", key=SIGNING)
    round_id, who = market.open(), market.sellers[0].party_id
    for valuation in (0.2, 0.3):
        market.broker.bid(market.sellers[0], round_id, Offer(valuation, 1.0), key())
    market.broker.database.close()
    assert checked(tmp_path / "bids.db", None).notes == ()
    rewritten(tmp_path / "bids.db", tmp_path / "replayed.db", replayed)
    _resigned(tmp_path / "replayed.db", SIGNING)
    verdict = checked(tmp_path / "replayed.db", None)
    assert verdict.differences == ()
    assert ["came back" in one for one in verdict.notes] == [True]


def test_a_database_without_a_head_is_refused(signed_file: tuple[Path, str], tmp_path: Path) -> None:
    file, head = signed_file
    edited(file, tmp_path / "edited.db", "DELETE FROM head")
    with pytest.raises(DatabaseError):
        checked(tmp_path / "edited.db", head)


def test_single_bits_all_over_the_log_are_found(signed_file: tuple[Path, str], tmp_path: Path) -> None:
    """One bit of one text of the log at a time: what the log says is never another thing."""
    file, head = signed_file
    whole = file.read_bytes()
    with sqlite3.connect(file) as connection:
        texts = [str(text).encode() for (text,) in connection.execute("SELECT details FROM log ORDER BY seq")]
    places = [whole.find(text) for text in texts if len(text) > 40 and whole.count(text) == 1]
    assert len(places) > 30
    for number, place in enumerate(places[::2]):
        flipped = bytearray(whole)
        flipped[place + 5 + number % 30] ^= 1 << number % 8
        (tmp_path / "flipped.db").write_bytes(flipped)
        assert checked(tmp_path / "flipped.db", head).differences
