"""`broker verify` finds every edit of every column of every table; each case is a broken subject."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from privmarket.broker import projection, rules
from privmarket.broker.broker import Broker
from privmarket.broker.database import Database
from privmarket.broker.http_errors import DatabaseError
from privmarket.broker.log import Entry
from privmarket.broker.merkle import Frontier
from privmarket.broker.schema import PROJECTIONS, metadata
from privmarket.broker.signatures import canonical
from privmarket.broker.verify import Verdict, verify
from privmarket.mechanisms import mechanism
from privmarket.privacy import gaussian, wallet_measures
from privmarket.rounds import Offer
from privmarket_studies.torture.market import Market, key, make_market
from tests.postgres import new_database
from tests.unit.broker.eventful import eventful_market


def another(column: str) -> str:
    """SQL for the column with another first character (to replace a letter changes nothing where there is none)."""
    return f"CASE substr({column}, 1, 1) WHEN 'a' THEN 'b' ELSE 'a' END || substr({column}, 2)"


# Beyond one change of every column (below): the edits of the issue that passed, and others.
EDITS = {
    "a receipt flipped": "UPDATE awards SET usable = NOT usable, fault = NULL WHERE usable",
    "a claim erased": "UPDATE awards SET claim_sha256 = NULL, claimed_ms = NULL",
    "a claim invented": "UPDATE awards SET claim_sha256 = '00', claimed_ms = 5 WHERE claim_sha256 IS NULL",
    "reserved becomes void": "UPDATE awards SET charge = 'void' WHERE charge = 'reserved'",
    "charged becomes void": "UPDATE awards SET charge = 'void' WHERE charge = 'charged'",
    "a ruling reversed": "UPDATE awards SET ruling = NOT ruling WHERE ruling IS NOT NULL",
    "a dispute erased": "UPDATE awards SET dispute = NULL, ruling = NULL WHERE dispute IS NOT NULL",
    "a deadline extended": "UPDATE rounds SET bid_deadline_ms = bid_deadline_ms + 86400000 WHERE state = 'open'",
    "a review extended": "UPDATE rounds SET review_deadline_ms = review_deadline_ms + 1 WHERE state = 'cleared'",
    "a settled round reopened": "UPDATE rounds SET state = 'cleared' WHERE state = 'settled'",
    "a buyer made an operator": "UPDATE parties SET role = 'operator' WHERE role = 'buyer'",
    "a token handed to somebody else": "UPDATE tokens SET party_id = (SELECT MIN(party_id) FROM tokens)",
    "a token's hash swapped": "UPDATE tokens SET token_hash = 'x' WHERE id = (SELECT MIN(id) FROM tokens)",
    "a revocation undone": "UPDATE tokens SET revoked_ms = NULL WHERE revoked_ms IS NOT NULL",
    "a read token made full": "UPDATE tokens SET scope = 'full' WHERE scope = 'read'",
    "an expiry removed": "UPDATE tokens SET expires_ms = NULL WHERE expires_ms IS NOT NULL",
    "a back-door operator": "INSERT INTO parties (id, role, name_hash, created_ms) "
    "VALUES ('operator-x', 'operator', 'h', 1)",
    "a back-door token": "INSERT INTO tokens (id, party_id, token_hash, scope, created_ms) "
    "SELECT 'token-x', id, 'h', 'full', 1 FROM parties WHERE role = 'operator'",
    "a forged deposit": "INSERT INTO postings (seq, account, amount_micro) "
    "SELECT 1, 'party:' || id, 5 FROM parties WHERE role = 'buyer'",
    "a balanced forged deposit": "INSERT INTO postings (seq, account, amount_micro) "
    "SELECT 1, 'party:' || id, 5 FROM parties WHERE role = 'buyer' UNION ALL SELECT 1, 'world', -5",
    "a forged bid": "INSERT INTO bids (round_id, seller_id, seq, commitment, created_ms) "
    "SELECT round_id, 'seller-x', 1, 'c', 1 FROM bids LIMIT 1",
    "a forged award": "INSERT INTO awards (round_id, seller_id, seq, epsilon, noise_multiplier, payment_micro, "
    "charge, paid_micro) SELECT round_id, 'seller-x', 1, 1, 1, 1, 'reserved', 0 FROM awards LIMIT 1",
    "an answer rewritten": "UPDATE log SET answer = replace(answer, '1', '2') WHERE answer IS NOT NULL",
    "an answer's key changed": "UPDATE log SET key_hash = 'k' WHERE seq = (SELECT MIN(seq) FROM log "
    "WHERE key_hash IS NOT NULL)",
    "a log entry rewritten": "UPDATE log SET details = replace(details, '50000000', '50000001')",
    "a log entry removed": "DELETE FROM log WHERE seq = 3",
    "the last log entry removed": "DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)",
    "two entries swapped": "UPDATE log SET kind = CASE kind WHEN 'bid.placed' THEN 'bid.revealed' ELSE kind END",
    "money moved between sellers": "UPDATE postings SET account = (SELECT MIN(p.account) FROM postings p WHERE "
    "p.account LIKE 'party:seller%' AND p.account <> postings.account) "
    "WHERE seq = (SELECT MAX(seq) FROM postings WHERE account LIKE 'party:seller%') "
    "AND account LIKE 'party:seller%'",
    "a name swapped": "UPDATE names SET name = 'somebody'",
    "a name removed": "DELETE FROM names",
    "an erased name put back": "INSERT INTO names (party_id, name, salt) SELECT id, 'back', 's' FROM parties "
    "WHERE erased_ms IS NOT NULL",
    "a key of a sealed update taken": "DELETE FROM sealed_keys",
    "a key kept after settlement": "INSERT INTO sealed_keys (round_id, seller_id, wrapped) "
    "SELECT round_id, seller_id, 'ab' FROM awards WHERE key IS NOT NULL",
    "a head set back": "UPDATE head SET size = size - 1",
    "another root": f"UPDATE head SET root = {another('root')}",
    "another signature": f"UPDATE head SET signature = {another('signature')}",
    "no signature": "UPDATE head SET signature = ''",
    "an old log invented": "INSERT INTO old_log (seq, at_ms, actor, kind, subject, details, previous, hash) "
    "VALUES (1, 1, 'a', 'k', 's', '{}', 'p', 'h')",
    "a table added": "CREATE TABLE extra (x INTEGER)",
}


def _column_edits() -> dict[str, str]:
    """One edit per column of every table, and one row removed from each."""
    edits = {}
    for table in PROJECTIONS:
        chosen = " AND ".join(
            f"{c.name} = (SELECT {c.name} FROM {table.name} ORDER BY "
            f"{', '.join(k.name for k in table.primary_key)} LIMIT 1)"
            for c in table.primary_key
        )
        edits[f"{table.name}: a row removed"] = f"DELETE FROM {table.name} WHERE {chosen}"
        for column in table.c:
            kind = column.type.python_type
            edits[f"{table.name}.{column.name} made empty"] = (
                f"UPDATE {table.name} SET {column.name} = NULL WHERE {column.name} IS NOT NULL"
            )
            if kind is bool:
                change = f"CASE WHEN {column.name} THEN FALSE ELSE TRUE END"
            elif kind in (int, float):
                change = f"COALESCE({column.name}, 0) + 1"
            else:
                change = f"COALESCE({column.name}, '') || 'x'"
            edits[f"{table.name}.{column.name} changed"] = f"UPDATE {table.name} SET {column.name} = {change}"
    return edits


@pytest.fixture(scope="session")
def eventful_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of an eventful market, closed in order, and its head."""
    file = tmp_path_factory.mktemp("eventful") / "market.db"
    market = eventful_market(f"sqlite:///{file}")
    verdict = verify(market.broker)
    assert verdict.differences == ()
    assert verdict.auctions == 4
    market.broker.database.close()
    return file, verdict.head


def checked(file: Path, head: str | None = None) -> Verdict:
    database = Database(f"sqlite:///{file}", read_only=True)
    try:
        return verify(Broker(database), head)
    finally:
        database.close()


def edited(file: Path, to: Path, *edits: str) -> int:
    """A copy with edits; how many rows they changed. Constraints are lifted, as whoever holds the file can."""
    shutil.copy(file, to)
    with sqlite3.connect(to) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for name, text in connection.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE '%NOT NULL%'"):
            loose = re.sub(r" NOT NULL", "", text) if "WITHOUT ROWID" not in text else text
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (loose, name))
    connection.close()
    connection = sqlite3.connect(to)
    changed = sum(connection.execute(edit).rowcount for edit in edits)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return changed


def test_a_head_noted_earlier_is_found_again_and_another_is_not(eventful_file: tuple[Path, str]) -> None:
    file, head = eventful_file
    size, _, root = head.rpartition(":")
    assert checked(file, head).differences == ()
    assert checked(file, root).differences == (), "without its size"
    other = f"{size}:{root[::-1]}" if size else root[::-1]
    assert ["noted earlier" in one for one in checked(file, other).differences] == [True]


def test_the_eventful_market_fills_every_column(eventful_file: tuple[Path, str]) -> None:
    file, _ = eventful_file
    with sqlite3.connect(file) as connection:
        empty = [
            f"{table.name}.{column.name}"
            for table in PROJECTIONS
            for column in table.c
            if not connection.execute(f"SELECT COUNT({column.name}) FROM {table.name}").fetchone()[0]
        ]
    assert empty == ["bids.trimmed_epsilon"]  # wallets are tried elsewhere
    assert checked(file).differences == ()


@pytest.mark.parametrize("edit", [*EDITS, *_column_edits()])
def test_an_edit_is_found(eventful_file: tuple[Path, str], tmp_path: Path, edit: str) -> None:
    file, head = eventful_file
    statement = EDITS.get(edit) or _column_edits()[edit]
    try:
        changed = edited(file, tmp_path / "edited.db", statement)
    except sqlite3.IntegrityError:
        pytest.skip("the key itself forbids it")
    if changed == 0:
        pytest.skip("nothing there to change")
    assert checked(tmp_path / "edited.db", head).differences


def test_a_swapped_key_of_an_update_is_found_by_who_has_the_brokers_key(tmp_path: Path) -> None:
    market = eventful_market(f"sqlite:///{tmp_path}/m.db")
    assert verify(market.broker).differences == ()
    with market.broker.database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE sealed_keys SET wrapped = {another('wrapped')}")
    assert all("not the key that was claimed" in one for one in verify(market.broker).differences)
    assert verify(market.broker).differences
    market.broker.database.close()


def test_a_processor_that_rounds_differently_is_no_forgery(
    eventful_file: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy's exponentials differ in their last bits between processors, and so does the noise of a sale."""
    honest = gaussian.mu_of
    for error, found in ((4e-16, False), (1e-6, True)):
        monkeypatch.setattr(gaussian, "mu_of", lambda *asked, error=error: honest(*asked) * (1 + error))
        wallet_measures._standard_row.cache_clear()
        differences = checked(eventful_file[0]).differences
        assert any("another result than recorded" in one for one in differences) == bool(differences) == found
    wallet_measures._standard_row.cache_clear()


def test_all_differences_are_reported(eventful_file: tuple[Path, str], tmp_path: Path) -> None:
    file, _ = eventful_file
    edited(
        file,
        tmp_path / "edited.db",
        "UPDATE awards SET paid_micro = paid_micro + 1 WHERE paid_micro > 0",
        "UPDATE parties SET cap_epsilon = 99 WHERE role = 'seller'",
        "DELETE FROM names",
    )
    found = checked(tmp_path / "edited.db").differences
    assert sum("cap_epsilon is 99.0" in one for one in found) == 4
    assert sum("paid_micro is" in one for one in found) >= 2
    assert sum("nobody erased it" in one for one in found) == 6


def rewritten(file: Path, to: Path, change: Any) -> None:
    """A copy whose log was rewritten by somebody who knows how hashes, tree and tables are made, but has no key."""
    shutil.copy(file, to)
    connection = sqlite3.connect(to)
    entries = [
        Entry(*row)
        for row in connection.execute(
            "SELECT seq, at_ms, actor, kind, subject, details, key_hash, request_hash, answer FROM log ORDER BY seq"
        )
    ]
    entries = [one._replace(seq=i) for i, one in enumerate(change(entries), 1)]
    frontier, rebuilt = Frontier(), projection.Rebuilt()
    connection.execute("DELETE FROM log")
    for entry in entries:
        leaf = entry.leaf()
        frontier.append(leaf)
        connection.execute(f"INSERT INTO log VALUES ({', '.join('?' * 10)})", (*entry, leaf.hex()))
        rebuilt.apply(projection.changes(entry))
    for name, rows in rebuilt.tables.items():
        connection.execute(f"DELETE FROM {name}")
        for row in rows.values():
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {name} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    connection.execute(
        "UPDATE head SET size = ?, root = ?, frontier = ?", (frontier.size, frontier.root().hex(), frontier.dump())
    )
    connection.commit()
    connection.close()


def appended(kind: str, subject: str, actor: str, details: dict[str, Any]) -> Any:
    return lambda entries: [
        *entries,
        Entry(0, entries[-1].at_ms, actor, kind, subject or entries[-1].subject, canonical(details)),
    ]


def test_a_rewritten_log_is_not_signed(eventful_file: tuple[Path, str], tmp_path: Path) -> None:
    file, head = eventful_file
    rewritten(file, tmp_path / "same.db", list)
    assert checked(tmp_path / "same.db").differences == ()  # the rewriting itself is faithful
    buyer = next(e.subject for e in _entries(file) if e.kind == "party.registered" and "buyer" in e.subject)
    deposit = appended("money.deposit", buyer, "system", {"amount_micro": 5})
    rewritten(file, tmp_path / "deposit.db", deposit)
    assert checked(tmp_path / "deposit.db").differences == (
        "head: it is not signed by the key that the log announces",
    )
    without = lambda entries: [e for e in entries if not (e.kind == "alert" or e.kind == "money.withdraw")]  # noqa: E731
    rewritten(file, tmp_path / "without.db", without)
    assert any("noted earlier" in one for one in checked(tmp_path / "without.db", head).differences)


def _entries(file: Path) -> list[Entry]:
    with sqlite3.connect(file) as connection:
        query = "SELECT seq, at_ms, actor, kind, subject, details FROM log ORDER BY seq"
        return [Entry(*row) for row in connection.execute(query)]


def known_names(file: Path) -> dict[str, str]:
    """Who and what there is in an eventful market, under names for tests."""
    with sqlite3.connect(file) as connection:
        rounds = dict(connection.execute("SELECT state, id FROM rounds"))
        (seller,) = connection.execute(
            "SELECT seller_id FROM awards JOIN parties ON id = seller_id "
            "WHERE round_id = ? AND parties.public_key IS NOT NULL",
            (rounds["cleared"],),
        ).fetchone()
        people = {str(role).upper(): one for role, one in connection.execute("SELECT role, id FROM parties")}
        query = "SELECT id FROM tokens WHERE party_id = ? AND revoked_ms IS NULL"
        (token,) = connection.execute(query, (people["OPERATOR"],)).fetchone()
    return {**people, "OPEN": rounds["open"], "CLEARED": rounds["cleared"], "SELLER": seller, "TOKEN": token}


@pytest.mark.parametrize(
    ("kind", "actor", "subject", "details", "found"),
    [
        ("money.deposit", "BUYER", "BUYER", {"amount_micro": 5}, "is not an operator"),
        ("money.withdraw", "system", "BUYER", {"amount_micro": 10**14}, "holds"),
        ("round.closed", "OPERATOR", "OPEN", {"state": "closed", "reveal_deadline_ms": None},
         "before its deadline"),
        ("round.aborted", "OPERATOR", "CLEARED",
         {"buyer_id": "BUYER", "paid_micro": 0, "refunded_micro": 1_000_000, "fault": "x"}, "aborted while"),
        ("bid.placed", "SELLER", "OPEN", {"commitment": "c", "replaces": False, "nonce": "n", "valuation": 0.1,
         "epsilon": 1.0, "data_size": 1.0, "accuracy": None}, "not signed by the seller's key"),
        ("delivery.judged", "OPERATOR", "CLEARED", {"seller_id": "SELLER", "usable": False, "fault": "x"},
         "who is not the buyer"),
        ("award.made", "system", "OPEN", {"seller_id": "SELLER", "epsilon": 1.0, "noise_multiplier": 1.0,
         "payment_micro": 5, "measure": None}, "no auction was due"),
        ("award.settled", "system", "CLEARED", {"seller_id": "SELLER", "charge": "void", "paid_micro": 0},
         "settled, but its round is not"),
        ("round.settled", "system", "CLEARED",
         {"buyer_id": "BUYER", "paid_micro": 0, "refunded_micro": 1_000_000, "fault": None}, "award still waited"),
        ("token.minted", "BUYER", "OPERATOR", {"id": "t", "token_hash": "h", "scope": "full", "expires_ms": None},
         "was made by"),
        ("no.such.kind", "system", "x", {}, "unknown kind"),
    ],
)  # fmt: skip
def test_an_operator_that_forges_entries_is_found_by_the_rules(
    eventful_file: tuple[Path, str], tmp_path: Path, kind: str, actor: str, subject: str, details: Any, found: str
) -> None:
    """Even with the signing key: what no honest broker would have logged shows in the replay."""
    file, _ = eventful_file
    known = known_names(file)
    named = {name: known.get(value, value) if isinstance(value, str) else value for name, value in details.items()}
    forged = appended(kind, known.get(subject, subject), known.get(actor, actor), named)
    database = tmp_path / "forged.db"
    if kind == "no.such.kind":
        edited(file, database, "UPDATE log SET kind = 'no.such.kind' WHERE kind = 'round.aborted'")
    else:
        rewritten(file, database, forged)
    assert any(found in one for one in checked(database).differences), checked(database).differences


def test_flipped_bytes_never_pass_silently(eventful_file: tuple[Path, str], tmp_path: Path) -> None:
    """Bytes all over the file: found, or in a place that holds nothing of the market."""
    file, head = eventful_file
    whole = file.read_bytes()
    before = checked(file)
    passed = 0
    for at in range(100, len(whole), len(whole) // 70):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        copy = tmp_path / "flipped.db"
        copy.write_bytes(flipped)
        try:
            verdict = checked(copy, head)
        except DatabaseError:
            continue
        if not verdict.differences:
            passed += 1
            assert (verdict.entries, verdict.postings) == (before.entries, before.postings)
            with sqlite3.connect(copy) as one, sqlite3.connect(file) as other:
                for table in metadata.sorted_tables:
                    query = f"SELECT * FROM {table.name}"
                    assert one.execute(query).fetchall() == other.execute(query).fetchall()
    assert passed < 70


def test_missing_empty_and_torn_databases_are_refused(eventful_file: tuple[Path, str], tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    with pytest.raises(DatabaseError, match="no database"):
        Database(f"sqlite:///{missing}", read_only=True)
    assert not missing.exists()
    (tmp_path / "empty.db").touch()
    with pytest.raises(DatabaseError):
        Database(f"sqlite:///{tmp_path / 'empty.db'}", read_only=True)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(DatabaseError, match="is empty"):
        Database(f"sqlite:///{tmp_path / 'other.db'}", read_only=True)
    market = make_market(f"sqlite:///{tmp_path / 'live.db'}")
    market.bid_all(market.open())
    shutil.copy(tmp_path / "live.db", tmp_path / "torn.db")
    with pytest.raises(DatabaseError, match="its WAL is missing"):
        Database(f"sqlite:///{tmp_path / 'torn.db'}", read_only=True)
    shutil.copy(tmp_path / "live.db-wal", tmp_path / "torn.db-wal")
    assert checked(tmp_path / "torn.db").differences == ()
    market.broker.database.close()
    assert checked(tmp_path / "live.db").differences == ()


def test_negative_zero_does_no_harm(market: Market) -> None:
    round_id = market.open()
    market.broker.bid(market.sellers[0], round_id, Offer(-0.0, 1.0), key())
    market.bid_all(round_id, (-0.0, 0.5))
    market.finish(round_id)
    assert verify(market.broker).differences == ()


def test_a_rule_that_changed_is_named_and_the_check_goes_on(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    honest = market.broker.make_mechanism

    class Other(type(mechanism("proportional-share"))):
        def clear(self, bids, budget):
            return super().clear(bids, budget / 2)

    market.broker.make_mechanism = lambda name, **_: Other()
    verdict = verify(market.broker)
    assert verdict.differences == ()
    assert "taken as recorded" in verdict.notes[0]
    assert round_id in verdict.notes[0]
    market.broker.make_mechanism = honest
    assert verify(market.broker).auctions == 1


def test_a_retired_rule_stays_replayable(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade that changes what a rule does, old rounds replay with what it did then."""
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)

    class Newer(type(mechanism("proportional-share"))):
        version = "2.0.0"

        def clear(self, bids, budget):
            return super().clear(bids, budget / 2)

    old = market.broker.make_mechanism
    market.broker.make_mechanism = lambda name, **_: Newer()
    second = market.open()
    market.bid_all(second)
    market.finish(second)
    assert len(verify(market.broker).notes) == 1  # nobody kept the old rule
    monkeypatch.setitem(rules.RETIRED, ("proportional-share", "1.0.0"), old)
    verdict = verify(market.broker)
    assert (verdict.differences, verdict.notes, verdict.auctions) == ((), (), 2)


def test_a_rewritten_log_is_found_by_an_older_head(market: Market) -> None:
    noted = verify(market.broker).head
    market.broker.deposit(market.operator, market.buyer.party_id, 5, key())
    assert verify(market.broker, noted).difference is None
    assert verify(market.broker, noted.partition(":")[2]).difference is None
    assert "noted earlier" in (verify(market.broker, f"3:{'f' * 64}").difference or "")
    assert "noted earlier" in (verify(market.broker, f"999:{'f' * 64}").difference or "")


def test_a_broker_that_keeps_a_micro_unit_is_caught(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = projection._transfer
    monkeypatch.setattr(
        projection, "_transfer", lambda e, s, t, m: honest(e, s, t, m - 1 if e.kind == "award.settled" else m)
    )
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    monkeypatch.setattr(projection, "_transfer", honest)
    assert any("amount_micro is" in one for one in verify(market.broker).differences)


ON_POSTGRESQL = ["a receipt flipped", "a back-door operator", "a balanced forged deposit", "an answer rewritten"]


@pytest.mark.parametrize("edit", [*ON_POSTGRESQL, "the last log entry removed", "a name removed"])
def test_an_edit_is_found_on_postgresql(postgres_server: str, edit: str) -> None:
    url = new_database(postgres_server)
    market = eventful_market(url)
    assert verify(market.broker).differences == ()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        assert connection.execute(EDITS[edit]).rowcount > 0
    assert verify(market.broker).differences
    market.broker.database.close()
