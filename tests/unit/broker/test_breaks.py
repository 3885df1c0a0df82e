"""What once broke the broker, each as it was reported of the tree before the log became the only truth.

Claims, receipts, wallets, closing times and registration keys are in test_broker.py, edits of the database in
test_verify.py, sealing and proofs in test_trust.py, a real server under slow callers in test_broker_service.py.
"""

from __future__ import annotations

import contextlib
import json
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient

from privmarket.broker import (
    _clearing as clearing,
    _database as stored,
    _noise_tables as noise_tables,
    _rules as rules,
    _sql as sql,
    _wallets as wallets,
)
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker
from privmarket.broker._errors import BrokerError, ConflictError, UnavailableError
from privmarket.broker._verify import verify
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import learned_names, mechanism, mechanism_names
from privmarket.privacy import _calibration as tables
from privmarket.privacy._accountant import composed_epsilon
from privmarket.rounds import Offer
from privmarket_fixtures.market import BROKER_KEY, TASK, Market, key, make_market
from tests.postgres import new_database
from tests.unit.broker.test_noise_tables import QUICK


def test_a_new_schedule_holds_nobody_up(market: Market, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """1: noise calibration ran inside the write transaction, for minutes."""
    monkeypatch.setenv("PRIVMARKET_CACHE", str(tmp_path))
    monkeypatch.setattr(noise_tables, "PATIENCE_SECONDS", 0.05)
    slow = noise_tables.TableBuilder([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(noise_tables, "builder", slow)
    round_id = market.open()
    new, same = {**TASK, "sampling_rate": 0.5, "steps": 2, "delta": 1.7e-5}, key()
    try:
        with pytest.raises(UnavailableError) as refused:
            market.broker.publish_task(market.buyer, new, same)
        assert refused.value.code == "preparing"
        market.bid_all(round_id)  # while the table is being built
    finally:
        slow.stop()
    monkeypatch.setattr(noise_tables, "builder", noise_tables.TableBuilder(QUICK))
    monkeypatch.setattr(noise_tables, "PATIENCE_SECONDS", 250.0)
    assert market.broker.publish_task(market.buyer, new, same)["steps"] == 2
    tables.noise_table.cache_clear()  # what QUICK makes is no real table


def test_auctions_leave_the_write_lock_alone(market: Market) -> None:
    """1: a large round blocked every bid while it cleared."""
    slow_round, other_round = market.open(), market.open()
    market.bid_all(slow_round)
    begun, done = threading.Event(), threading.Event()
    rule = mechanism("proportional-share")

    class Slow(type(rule)):  # type: ignore[misc]
        def clear(self, bids: Any, budget: Any) -> Any:
            if bids.clients == 3:
                begun.set()
                done.wait(20)
            return super().clear(bids, budget)

    market.broker.make_mechanism = lambda name, **_: Slow()
    closing = threading.Thread(target=market.broker.close_round, args=(market.buyer, slow_round, key()))
    closing.start()
    try:
        assert begun.wait(20)
        market.bid_all(other_round)
        assert market.broker.tick() == []  # the clock does not compute the same auction beside it
    finally:
        done.set()
        closing.join()
    assert market.broker.round_state(slow_round) == "cleared"
    assert verify(market.broker).differences == ()


def test_a_wallet_that_moved_while_an_auction_was_computed_is_looked_at_again(database: str) -> None:
    market = make_market(database, sellers=2, caps=(1.0,))
    first, second = market.open(), market.open()
    for round_id in (first, second):
        market.bid_all(round_id, (0.2, 0.3))
    rule, raced = mechanism("proportional-share"), []

    class Racing(type(rule)):  # type: ignore[misc]
        def clear(self, bids: Any, budget: Any) -> Any:
            if bids.clients == 2 and not raced:  # another round takes the same wallets meanwhile
                raced.append(True)
                market.broker.close_round(market.buyer, second, key())
            return super().clear(bids, budget)

    market.broker.make_mechanism = lambda name, **_: Racing()
    market.broker.close_round(market.buyer, first, key())
    market.broker.make_mechanism = mechanism
    assert raced
    seller = market.sellers[0].party_id
    with market.broker.database.read() as connection:
        record = wallets.of_sellers(connection, [seller])[seller]
    assert composed_epsilon(record.events, record.delta) <= 1.0  # two sales of what both had seen would be 1.5
    assert verify(market.broker).differences == ()


def selling_elsewhere(market: Market, others: list[str]) -> type:
    """A rule that closes another round of the same sellers whenever it is run."""
    rule = mechanism("proportional-share")

    class Racing(type(rule)):  # type: ignore[misc]
        runs = 0

        def clear(self, bids: Any, budget: Any) -> Any:
            if bids.clients == 2:
                Racing.runs += 1
                if others:
                    market.broker.close_round(market.buyer, others.pop(), key())
            return super().clear(bids, budget)

    market.broker.make_mechanism = lambda name, **_: Racing()
    return Racing


def test_sales_elsewhere_that_leave_room_do_not_change_an_auction(database: str) -> None:
    """1: a large round whose bidders kept selling was computed again and again, at last under the write lock."""
    market = make_market(database, sellers=2, caps=(1000.0,))
    first, *others = [market.open() for _ in range(3)]
    for round_id in (first, *others):
        market.bid_all(round_id, (0.2, 0.3))
    racing = selling_elsewhere(market, others)
    market.broker.close_round(market.buyer, first, key())
    market.broker.make_mechanism = mechanism
    assert others == []
    assert racing.runs == 3  # once for each round: nobody's offer was cut, so nothing was computed twice
    assert verify(market.broker).differences == ()


def test_an_auction_that_is_computed_again_lets_no_other_sell_meanwhile(database: str) -> None:
    market = make_market(database, sellers=2, caps=(1.0,))
    first, second, third = (market.open() for _ in range(3))
    for round_id in (first, second, third):
        market.bid_all(round_id, (0.2, 0.3))
    rule, tries, others = mechanism("proportional-share"), [], []

    class Racing(type(rule)):  # type: ignore[misc]
        def clear(self, bids: Any, budget: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and bids.clients <= 2:
                tries.append(bids.clients)
                closing = [second, third][len(tries) - 1]
                others.append(
                    threading.Thread(target=market.broker.close_round, args=(market.buyer, closing, key()))
                )
                others[-1].start()
                others[-1].join(timeout=60 if len(tries) == 1 else 0.3)
            return super().clear(bids, budget)

    market.broker.make_mechanism = lambda name, **_: Racing()
    market.broker.close_round(market.buyer, first, key())
    for other in others:
        other.join()
    market.broker.make_mechanism = mechanism
    assert len(tries) == 2  # the second round's sales changed the first try; the third round waited for the next
    assert {market.broker.round_state(one) for one in (first, second, third)} <= {"cleared", "settled"}
    assert verify(market.broker).differences == ()


def test_words_that_arrived_in_time_count_though_others_were_written_first(market: Market) -> None:
    """1: claims that were sent in time were refused, because somebody else held the lock until the deadline."""
    round_id = market.open()
    market.bid_all(round_id)
    market.broker.close_round(market.buyer, round_id, key())
    first, *others = market.winners(round_id)
    market.clock.now_ms += 59_000
    database, waited = market.broker.database, threading.Event()
    honest = database._begin

    def held_up(patient: bool) -> Any:
        if not waited.is_set():
            waited.set()
            market.clock.now_ms += 5_000  # the deadline passes while others write
        return honest(patient)

    database._begin = held_up  # type: ignore[method-assign]
    assert market.broker.claim_delivery(market.seller(first), round_id, "ab" * 32, key())["update_sha256"]
    with pytest.raises(ConflictError, match="stopped taking deliveries"):
        market.broker.claim_delivery(market.seller(others[0]), round_id, "ab" * 32, key())
    assert verify(market.broker).differences == ()
    with database.read() as connection:
        query = "SELECT details FROM log WHERE kind = 'delivery.claimed'"
        assert "arrived_ms" in str(connection.exec_driver_sql(query).scalar())


def test_a_large_auction_is_computed_in_a_process_of_its_own(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1: pages and bids keep their speed; the process gives what this one would."""
    round_id = market.open()
    market.bid_all(round_id)
    here = market.broker._prepared(round_id)
    monkeypatch.setattr(clearing, "WORTH_A_PROCESS", 1)
    assert clearing.prepare_in_a_process(market.broker.database, round_id) == here
    monkeypatch.setattr(clearing.sys, "executable", "/bin/false")
    assert market.broker._prepared(round_id) == here  # where it cannot be started, it is done here


@pytest.fixture
def large_from_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bids make a large auction. Computed here: the test above starts the process, on both databases."""
    monkeypatch.setattr(clearing, "WORTH_A_PROCESS", 3)
    monkeypatch.setattr(clearing, "prepare_in_a_process", lambda *_: None)


@pytest.mark.usefixtures("large_from_three")
def test_a_large_auction_at_its_deadline_holds_up_no_other_deadline(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1: the thread that looks after deadlines computed auctions itself, one after the other."""
    large, small = market.open(), market.open()
    market.bid_all(large)
    market.broker.bid(market.sellers[0], small, Offer(0.2, 1.0), key())
    begun, done = threading.Event(), threading.Event()
    honest = market.broker._prepared

    def slow(round_id: str) -> Any:
        if round_id == large:
            begun.set()
            done.wait(20)
        return honest(round_id)

    monkeypatch.setattr(market.broker, "_prepared", slow)
    market.clock.now_ms += 61_000
    try:
        assert [one["round_id"] for one in market.broker.tick()] == [small]
        assert begun.wait(20)
        assert market.broker.tick() == []  # it is not begun twice
    finally:
        done.set()
    deadline = time.monotonic() + 20
    while market.broker.round_state(large) != "cleared" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert market.broker.round_state(large) == "cleared"
    while market.broker._clearing and time.monotonic() < deadline:
        time.sleep(0.01)
    assert verify(market.broker).differences == ()


@pytest.mark.usefixtures("large_from_three")
def test_closing_a_large_round_is_answered_before_its_auction(market: Market) -> None:
    """1: a million bids took longer to clear than a server may take to answer."""
    round_id, again = market.open(), key()
    market.bid_all(round_id)
    answer = market.broker.close_round(market.buyer, round_id, again)
    assert answer["state"] == market.broker.round_state(round_id) == "closed"
    assert market.broker.close_round(market.buyer, round_id, again) == answer
    market.broker.tick()
    deadline = time.monotonic() + 20
    while market.broker._clearing and time.monotonic() < deadline:
        time.sleep(0.01)
    assert market.broker.round_state(round_id) == "cleared"
    assert verify(market.broker).differences == ()


@pytest.mark.usefixtures("large_from_three")
def test_whoever_asks_again_runs_a_large_auction_itself(market: Market) -> None:
    """1: without a clock that ticks, a second call holds the auction."""
    round_id = market.open()
    market.bid_all(round_id)
    assert market.broker.close_round(market.buyer, round_id, key())["state"] == "closed"
    assert market.broker.close_round(market.buyer, round_id, key())["state"] == "cleared"


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    """7: the database was 0644, with open bids in clear."""
    file = tmp_path / "m.db"
    file.touch(0o644)
    market = make_market(f"sqlite:///{file}")
    market.bid_all(market.open())
    for name in ("m.db", "m.db-wal", "m.db-shm"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name


def test_a_clock_that_leaps_freezes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """7: a clock 30 days ahead for a moment stopped bidding for 30 days."""
    broker = Broker(f"sqlite:///{tmp_path}/m.db")
    operator = broker.authenticate(broker.first_operator() or "")
    buyer = broker.register({"role": "buyer", "name": "b"}, key())["id"]
    honest = time.time_ns
    with monkeypatch.context() as leap:
        leap.setattr(stored.time, "time_ns", lambda: honest() + 30 * 86_400 * 10**9)
        with pytest.raises(UnavailableError, match="clock jumped"):
            broker.deposit(operator, buyer, 5, key())
    assert broker.deposit(operator, buyer, 5, key())["balance_micro"] == 5
    with broker.database.read() as connection:
        newest = connection.exec_driver_sql("SELECT max(at_ms) FROM log").scalar_one()
    assert newest < honest() // 10**6 + 60_000


def test_a_paused_broker_does_not_stop_the_others(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """7: a broker that was paused in the middle of a write held the lock for ever."""
    url = new_database(postgres_server)
    market = make_market(url)
    monkeypatch.setattr(stored, "IDLE_SECONDS", 0.5)  # of this one alone: others stand still for longer by chance
    paused, same = Broker(url, clock=market.clock, key=BROKER_KEY), key()

    def deposit(broker: Broker, again: str) -> int:
        return broker.deposit(market.operator, market.buyer.party_id, 5, again)["balance_micro"]

    def write() -> None:
        with paused.database.write("x") as tx:
            tx.log("alert", "x", fault="never written")
            assert deposit(market.broker, key()) == 50_000_005

    with pytest.raises(UnavailableError):  # an answer that says to send the same again
        write()
    for _ in range(5):
        with contextlib.suppress(UnavailableError):  # where the machine stood still for half a second just now
            assert deposit(paused, same) == 50_000_010
            break
    else:
        raise AssertionError("a broker that was paused once never writes again")
    assert verify(market.broker).differences == ()
    for broker in (paused, market.broker):
        broker.database.close()


def test_rows_reach_postgresql_without_a_pipeline(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """7: PostgreSQL does not count a transaction as idle between two messages of a pipeline, which psycopg's
    `executemany` opens: a broker paused there held the lock for as long as it stood still."""

    def pipeline(*_: object, **__: object) -> None:
        raise AssertionError("a pipeline was opened")

    url = new_database(postgres_server)
    broker = Broker(url)
    monkeypatch.setattr(psycopg.Pipeline, "__init__", pipeline)
    insert = "INSERT INTO few (number) VALUES (?)"
    with broker.database.engine.connect() as connection, connection.begin():
        sql.run(connection, "CREATE TEMPORARY TABLE few (number INTEGER)")
        for rows in (3, 60):  # one by one, and as a COPY
            sql.run_many(connection, insert, [(number,) for number in range(rows)])
        assert sql.run(connection, "SELECT count(*), sum(number) FROM few") == [(63, 3 + 1770)]
        with pytest.raises(AssertionError, match="pipeline"):
            connection.connection.cursor().executemany("INSERT INTO few (number) VALUES (%s)", [(1,), (2,)])
    broker.database.close()


def test_settings_of_rules_are_typed_and_name_no_files(market: Market) -> None:
    """7: settings.weights told whether a file exists."""
    for settings in (
        {"weights": "/etc/passwd"},
        {"weights": "/no/such/file"},
        {"no_such": 1},
        {"levels": "many"},
    ):
        with pytest.raises(PrivmarketError) as refused:
            market.broker.publish_task(
                market.buyer, {**TASK, "mechanism": "mfg-menunet", "settings": settings}, key()
            )
        assert "passwd" not in str(refused.value)
    with pytest.raises(PrivmarketError, match="unknown mechanism"):
        market.broker.publish_task(market.buyer, {**TASK, "mechanism": "os:system"}, key())


def test_rules_say_what_they_do_not_promise() -> None:
    """7: rules that cannot keep a budget were offered without a warning."""
    known = {name: rules.describe(name) for name in mechanism_names() if name not in learned_names()}
    assert known["mean-field-menu"]["warnings"] == []
    assert any("within the budget" in one for one in known["vcg"]["warnings"])


def test_versions_follow_what_a_rule_does() -> None:
    rule = mechanism("proportional-share")

    class Commented(type(rule)):  # type: ignore[misc]
        """The same in other words."""

    class Changed(type(rule)):  # type: ignore[misc]
        def clear(self, bids: Any, budget: Any) -> Any:
            return super().clear(bids, 0.999 * budget)

    class Raised(type(rule)):  # type: ignore[misc]
        version = "1.1.0"

    assert rules.version_of(rule) == rules.version_of(Commented())
    assert rules.version_of(rule).startswith("proportional-share/1.0.0+")
    assert rules.version_of(Raised()).startswith("proportional-share/1.1.0+")
    assert rules.version_of(rule) != rules.version_of(Changed())
    assert rules.version_of(mechanism("pac")) != rules.version_of(rule)


SELLER = {"role": "seller", "name": "x", "cap_epsilon": 1, "delta": 1e-5}
ODD: list[tuple[str, str, Any]] = [
    ("POST", "/v1/register", {"role": "buyer", "name": "\ud800"}),
    ("POST", "/v1/register", {"role": "buyer", "name": "a\u0000b"}),
    ("POST", "/v1/register", {"role": "seller", "name": "x", "cap_epsilon": 1e308, "delta": 1e-5}),
    ("POST", "/v1/register", {"role": "seller", "name": "x", "cap_epsilon": 1, "delta": 0.0}),
    ("POST", "/v1/register", {**SELLER, "public_key": "f" * 64}),
    ("POST", "/v1/tasks", {**TASK, "title": "\udfff"}),
    ("POST", "/v1/tasks", {**TASK, "steps": 10**30}),
    ("POST", "/v1/tasks", {**TASK, "budget_micro": 10**30}),
    ("POST", "/v1/tasks", {**TASK, "settings": {"epsilon_max": 1e300}, "mechanism": "mean-field-menu"}),
    ("POST", "/v1/tasks", {**TASK, "settings": {"\ud800": 1}}),
    ("POST", "/v1/tasks", {**TASK, "arbiter_id": "nobody"}),
    ("GET", "/v1/tasks?after=99999999999999999999~x", None),
    ("GET", "/v1/tasks?after=1~%00", None),
    ("GET", "/v1/audit?about=x%00", None),
    ("GET", "/v1/log/entries/999999/proof", None),
    ("GET", "/v1/log/consistency?old=5&new=4", None),
    ("GET", "/v1/rounds/%00", None),
    ("PUT", "/v1/me/key", {"public_key": "0" * 64}),
    ("POST", "/people/x/money", None),
    ("POST", "/sign-in", None),
]


@pytest.mark.parametrize("at", range(len(ODD)))
def test_odd_inputs_are_refused_and_never_break(market: Market, at: int) -> None:
    """7: ten inputs gave 500."""
    method, path, form = ODD[at]
    http = TestClient(create_app(market.broker, ServiceSettings(tick_seconds=0)), raise_server_exceptions=False)
    for actor in (market.buyer, market.sellers[0], market.operator):
        token = market.broker.mint_token(actor, "full", key())["token"]
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key(), "Content-Type": "application/json"}
        content = None if form is None else json.dumps(form).encode()
        reply = http.request(method, path, content=content, headers=headers)
        assert 400 <= reply.status_code < 500, (actor.role, reply.status_code, reply.text)


def test_an_odd_key_is_refused(market: Market) -> None:
    with pytest.raises(BrokerError):
        market.broker.bid(market.sellers[0], market.open(), Offer(0.1, 1.0), "k" * 201)
