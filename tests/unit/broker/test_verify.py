"""`broker verify` rebuilds everything, and finds what is not as the log says; each case is a broken subject."""

from __future__ import annotations

import re
import shutil
import sqlite3
import tracemalloc
from pathlib import Path

import psycopg
import pytest

from privmarket.broker import _projection as projection, _rules as rules
from privmarket.broker._database import Database
from privmarket.broker._errors import BrokerError, DatabaseError
from privmarket.broker._schema import PROJECTIONS, metadata
from privmarket.broker._verify import SeenHead, verify
from privmarket.mechanisms import mechanism
from privmarket.privacy import _gaussian as gaussian, _wallet as wallet_measures
from privmarket.rounds import Offer
from privmarket_fixtures.eventful import eventful_market
from privmarket_fixtures.market import Market, key, make_market
from privmarket_fixtures.tampering import appended, checked, edited, entries_of, entry, rewritten
from tests.postgres import new_database


def another(column: str) -> str:
    """SQL for the column with another first character (to replace a letter changes nothing where there is none)."""
    return f"CASE substr({column}, 1, 1) WHEN 'a' THEN 'b' ELSE 'a' END || substr({column}, 2)"


@pytest.fixture(scope="session")
def eventful_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of an eventful market, closed in order, and its head."""
    file = tmp_path_factory.mktemp("eventful") / "market.db"
    market = eventful_market(f"sqlite:///{file}")
    verdict = verify(market.broker)
    assert verdict.differences == ()
    assert verdict.auctions == 5
    market.broker.database.close()
    return file, verdict.head


def test_a_head_noted_earlier_is_found_again_and_another_is_not(eventful_file: tuple[Path, str]) -> None:
    file, head = eventful_file
    size, _, root = head.partition(":")
    assert checked(file, head).differences == ()
    assert ["noted earlier" in one for one in checked(file, f"{size}:{root[::-1]}").differences] == [True]
    with pytest.raises(BrokerError, match="is not a head"):
        checked(file, root)


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


def test_a_rewritten_log_is_not_signed(eventful_file: tuple[Path, str], tmp_path: Path) -> None:
    file, head = eventful_file
    rewritten(file, tmp_path / "same.db", list)
    assert checked(tmp_path / "same.db").differences == ()  # the rewriting itself is faithful
    operator = next(e.subject for e in entries_of(file) if e.kind == "party.registered" and "operator" in e.subject)
    buyer = next(e.subject for e in entries_of(file) if e.kind == "party.registered" and "buyer" in e.subject)
    last = entries_of(file)[-1].at_ms
    deposit = appended(entry(last, operator, "money.deposit", buyer, {"amount_micro": 5, "reference": "test"}))
    rewritten(file, tmp_path / "deposit.db", deposit)
    assert checked(tmp_path / "deposit.db").differences == (
        "head: it is not signed by the key that the log announces",
    )
    without = lambda entries: [e for e in entries if not (e.kind == "alert" or e.kind == "money.withdraw")]  # noqa: E731
    rewritten(file, tmp_path / "without.db", without)
    assert any("noted earlier" in one for one in checked(tmp_path / "without.db", head).differences)


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


def test_a_rule_that_changed_is_a_finding_that_an_auditor_may_accept(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    honest = market.broker.make_mechanism

    class Other(type(mechanism("proportional-share"))):
        def clear(self, bids, budget):
            return super().clear(bids, budget / 2)

    market.broker.make_mechanism = lambda name, **_: Other()
    verdict = verify(market.broker)
    (difference,) = verdict.differences
    name = re.search(r"--accept (rule@\d+)", difference)
    assert round_id in difference
    assert name is not None
    accepted = verify(market.broker, accept=[name[1], "rule@1"])
    assert accepted.differences == ()
    assert round_id in accepted.accepted[0]
    assert accepted.unused == ("rule@1",)
    market.broker.make_mechanism = honest
    assert verify(market.broker).auctions == 1


def test_a_round_is_cleared_by_the_rule_that_it_was_opened_with(market: Market) -> None:
    """An upgrade between opening and auction: the round ends refunded, with an alert, and the log is clean."""
    round_id = market.open()
    market.bid_all(round_id)
    honest = market.broker.make_mechanism

    class Newer(type(mechanism("proportional-share"))):
        version = "2.0.0"

    market.broker.make_mechanism = lambda name, **_: Newer()
    assert market.close(round_id)["state"] == "aborted"
    market.broker.make_mechanism = honest
    assert [
        "--accept rule@" not in one and "does not have" in one for one in verify(market.broker).differences
    ] == [True], "the old rule is here, so the abort needs an explanation"
    market.broker.make_mechanism = lambda name, **_: Newer()
    (difference,) = verify(market.broker).differences
    assert "--accept rule@" in difference


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
    assert len(verify(market.broker).differences) == 1  # nobody kept the old rule
    monkeypatch.setitem(rules.RETIRED, ("proportional-share", "1.0.0"), old)
    verdict = verify(market.broker)
    assert (verdict.differences, verdict.accepted, verdict.auctions) == ((), (), 2)


def test_a_rewritten_log_is_found_by_an_older_head(market: Market) -> None:
    noted = verify(market.broker).head
    market.broker.deposit(market.operator, market.buyer.party_id, 5, key())
    assert verify(market.broker, noted).difference is None
    assert "noted earlier" in (verify(market.broker, f"3:{'f' * 64}").difference or "")
    assert "noted earlier" in (verify(market.broker, f"999:{'f' * 64}").difference or "")
    with pytest.raises(BrokerError, match="proves nothing"):
        verify(market.broker, f"0:{noted.partition(':')[2]}")


def test_witnesses_that_saw_two_logs_are_told_so(market: Market) -> None:
    """In whichever order their files are given, the head that this log never had is named."""
    ours = market.broker.database.newest_head()
    at_ms = market.clock.now_ms
    seen, other, empty = (
        SeenHead(head, at_ms, at_ms) for head in (ours, ours._replace(root="f" * 64), ours._replace(size=0))
    )
    assert verify(market.broker, witnessed=[seen, seen]).differences == ()
    for both in ([seen, other], [other, seen]):
        found = verify(market.broker, witnessed=both).differences
        assert any("witnesses saw two logs" in one and "f" * 64 in one for one in found)
    assert "proves nothing" in (verify(market.broker, witnessed=[empty]).difference or "")


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


ON_POSTGRESQL = {
    "a receipt flipped": "UPDATE awards SET usable = NOT usable, fault = NULL WHERE usable",
    "a back-door operator": "INSERT INTO parties (id, role, name_hash, created_ms, signs) "
    "VALUES ('operator-x', 'operator', 'h', 1, 'nothing')",
    "a balanced forged deposit": "INSERT INTO postings (seq, account, amount_micro) "
    "SELECT 1, 'party:' || id, 5 FROM parties WHERE role = 'buyer' UNION ALL SELECT 1, 'world', -5",
    "an answer rewritten": "UPDATE log SET answer = replace(answer, '1', '2') WHERE answer IS NOT NULL",
    "the last log entry removed": "DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)",
    "a name removed": "DELETE FROM names",
}


@pytest.mark.parametrize("edit", ON_POSTGRESQL)
def test_an_edit_is_found_on_postgresql(postgres_server: str, edit: str) -> None:
    url = new_database(postgres_server)
    market = eventful_market(url)
    assert verify(market.broker).differences == ()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        assert connection.execute(ON_POSTGRESQL[edit]).rowcount > 0
    assert verify(market.broker).differences
    market.broker.database.close()


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Four times as many entries, and as many rows, need no more of Python's memory."""
    peaks = []
    for entries in (2_000, 8_000):
        market = make_market(f"sqlite:///{tmp_path}/{entries}.db")
        for _ in range(entries // 1000):
            with market.broker.database.write(market.operator.party_id) as tx:
                for _ in range(1000):
                    tx.log("money.deposit", market.buyer.party_id, amount_micro=1, reference="test")
        verify(market.broker)  # whatever is made once is made
        tracemalloc.start()
        assert verify(market.broker).differences == ()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        market.broker.database.close()
    assert peaks[1] < 1.25 * peaks[0], peaks
