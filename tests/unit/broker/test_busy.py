"""A database that is busy or away: a clear refusal that can be repeated, and nobody else has to wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from privmarket.broker import _database as stored
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker, Scheduler
from privmarket.broker._errors import UnavailableError
from privmarket.broker._verify import verify
from privmarket.rounds import Offer
from privmarket_fixtures.market import BROKER_KEY, Market, key, make_market
from tests.postgres import new_database

FORM = {"valuation": 0.2, "epsilon": 1.0}


@contextmanager
def somebody_writes(broker: Broker) -> Iterator[None]:
    """Another thread holds a write transaction open until the block ends."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with broker.database.write("x"):
            begun.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_write_that_waits_too_long_is_refused_and_can_be_repeated(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PATIENCE_SECONDS", 0.2)
    market = make_market(database)
    elsewhere, round_id, same = Broker(database, key=BROKER_KEY), market.open(), key()  # as in another process
    with somebody_writes(elsewhere), pytest.raises(UnavailableError):
        market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), same)
    first = market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), same)
    assert market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), same) == first
    assert verify(market.broker).difference is None
    for broker in (elsewhere, market.broker):
        broker.database.close()


def test_an_interrupted_write_leaves_no_lock_behind(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between taking the lock and the first statement, on the connection that is kept between writes."""

    def interrupt(connection: Any) -> None:
        raise KeyboardInterrupt

    market.open()
    monkeypatch.setattr(stored.log, "lock", interrupt)
    with pytest.raises(KeyboardInterrupt):
        market.open()
    monkeypatch.undo()
    monkeypatch.setattr(stored, "PATIENCE_SECONDS", 0.2)
    elsewhere = Broker(str(market.broker.database.engine.url.render_as_string(hide_password=False)), key=BROKER_KEY)
    elsewhere.mint_token(market.operator, "read", key())
    elsewhere.database.close()
    market.open()


def test_over_http_it_is_503_in_the_one_shape(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "PATIENCE_SECONDS", 0.2)
    market = make_market(database)
    elsewhere, round_id, token = Broker(database, key=BROKER_KEY), market.open(), _token(market)
    with somebody_writes(elsewhere):
        refused = _post_bid(market, round_id, token)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (set(refused.json()), refused.json()["code"]) == (
        {"code", "message", "hint", "field", "request_id"},
        "unavailable",
    )
    assert _post_bid(market, round_id).status_code == 201
    for broker in (elsewhere, market.broker):
        broker.database.close()


def test_connections_that_the_server_closed_are_replaced(postgres_server: str) -> None:
    url = new_database(postgres_server)
    market = make_market(url)
    round_id = market.open()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    market.bid_all(round_id)  # as after a restart of PostgreSQL
    assert market.finish(round_id)["state"] == "settled"
    market.broker.database.close()


def test_deadlines_outlive_a_database_that_was_away() -> None:
    class Away:
        ticks = 0

        def tick(self) -> None:
            self.ticks += 1
            raise (UnavailableError("away", "wait"), RuntimeError("worse"))[self.ticks % 2]

    broker: Any = Away()
    with Scheduler(broker, 0.005):
        deadline = time.monotonic() + 20
        while broker.ticks < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert broker.ticks >= 3


@pytest.fixture
def seen(market: Market, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In which thread each transaction of bids was tried."""
    threads: list[str] = []
    honest = Broker.take_bids

    def watched(self: Broker, requests: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return honest(self, requests)

    monkeypatch.setattr(Broker, "take_bids", watched)
    return threads


def test_behind_another_writer_a_bid_waits_and_readers_do_not(market: Market, seen: list[str]) -> None:
    round_id, token = market.open(), _token(market)
    written = threading.Event()

    async def both() -> httpx.Response:
        async with _client(market) as http:
            bid = asyncio.create_task(_bid(http, token, round_id))
            assert (await http.get("/health")).status_code == 200  # while the bid waits
            while not seen:  # until the bid has tried, and found the writer busy
                await asyncio.sleep(0.01)
            assert not bid.done()
            written.set()
            return await bid

    with market.broker.database._writer:
        answers: list[httpx.Response] = []
        worker = threading.Thread(target=lambda: answers.append(asyncio.run(both())))
        worker.start()
        assert written.wait(20), "the event loop stood still"
    worker.join()
    assert answers[0].status_code == 201
    assert seen[-1] == "bids"


def _token(market: Market) -> str:
    return str(market.broker.mint_token(market.sellers[0], "full", key())["token"])


def _client(market: Market) -> httpx.AsyncClient:
    app = create_app(market.broker, ServiceSettings(tick_seconds=0))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker")


async def _bid(http: httpx.AsyncClient, token: str, round_id: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key()}
    return await http.post(f"/v1/rounds/{round_id}/bids", json=FORM, headers=headers)


def _post_bid(market: Market, round_id: str, token: str | None = None) -> httpx.Response:
    async def post() -> httpx.Response:
        async with _client(market) as http:
            return await _bid(http, token or _token(market), round_id)

    return asyncio.run(post())
