"""Events: each reader hears of what concerns it, once, in order; streams end when the broker does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi.testclient import TestClient
from starlette.types import Message

from privmarket.broker import _events as events
from privmarket.broker._api import create_app
from privmarket.broker._parties import Actor
from privmarket_studies.torture.market import Market, key
from tests.unit.broker.test_api import SETTINGS


def heard(market: Market, actor: Actor, limit: int = 50) -> list[Any]:
    """Everything from the beginning, page after page."""
    found: list[Any] = []
    after = 0
    while True:
        with market.broker.database.read() as connection:
            page = events.events_after(connection, actor, after, limit)
        found += page["items"]
        assert page["next"] > after or page["next"] == page["head"]
        after = page["next"]
        if after == page["head"]:
            return found


def test_everybody_hears_what_concerns_it_and_no_more(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    winners = set(market.winners(round_id))
    other = market.broker.authenticate(market.broker.register({"role": "buyer", "name": "o"}, key())["token"])
    for seller in market.sellers:
        own = heard(market, seller)
        kinds = [one["kind"] for one in own]
        assert {one["party_id"] for one in own} <= {None, seller.party_id}
        assert ("award.made" in kinds) == ("award.settled" in kinds) == (seller.party_id in winners)
        assert [kind for kind in kinds if kind.startswith("round.")] == [
            "round.opened", "round.closed", "round.cleared", "round.delivered", "round.settled",
        ]  # fmt: skip
    buyer = [one["kind"] for one in heard(market, market.buyer)]
    assert (buyer.count("award.made"), buyer.count("delivery.claimed")) == (2, 2)
    assert {one["kind"] for one in heard(market, other)} == {"token.minted"}
    assert not any(one["kind"].startswith("bid.") for one in heard(market, market.operator))
    text = json.dumps(heard(market, market.operator))
    assert "valuation" not in text
    assert "amount" not in text


def test_a_cursor_misses_nothing_and_repeats_nothing(market: Market, monkeypatch: Any) -> None:
    for _ in range(2):
        round_id = market.open()
        market.bid_all(round_id)
        market.finish(round_id)
    everything = heard(market, market.sellers[0])
    assert [one["seq"] for one in everything] == sorted({one["seq"] for one in everything})
    assert heard(market, market.sellers[0], limit=1) == everything
    monkeypatch.setattr(events, "_SCANNED", 3)  # pages may be empty, and yet others follow
    assert heard(market, market.sellers[0]) == everything


def test_rounds_by_state(market: Market) -> None:

    first, second = market.open(), market.open()
    market.broker.abort_round(market.buyer, first, "no", key())
    http = TestClient(create_app(market.broker, SETTINGS))
    stranger = market.broker.register({"role": "buyer", "name": "o"}, key())["token"]
    seller = market.broker.mint_token(market.sellers[0], "read", key())["token"]

    def rounds(token: str, query: str = "") -> list[str]:
        reply = http.get(f"/v1/rounds{query}", headers={"Authorization": f"Bearer {token}"})
        return [one["id"] for one in reply.json()["items"]]

    assert rounds(seller, "?state=open") == [second]
    assert rounds(seller, "?state=aborted") == [first]
    assert set(rounds(seller)) == {first, second}
    assert rounds(stranger) == []
    bad = http.get("/v1/rounds?state=gone", headers={"Authorization": f"Bearer {seller}"})
    assert (bad.status_code, bad.json()["field"]) == (422, "query.state")


def test_a_stream_tells_what_is_new_and_that_it_lives() -> None:
    sizes = iter([5, 5, 7, 7, 7, 7, 7])

    async def size() -> int:
        return next(sizes, 7)

    async def told(after: int) -> tuple[str, int]:
        return f"data: {after}-7\n\n", 7

    turns = iter([False] * 6 + [True])

    async def collect() -> list[str]:
        streamed = events.stream(size, told, 5, lambda: next(turns), poll_seconds=0.001, keep_alive_seconds=0.003)
        return [part async for part in streamed]

    assert asyncio.run(collect()) == ["retry: 2000\n\n", "data: 5-7\n\n", ": still here\n\n"]


def test_the_stream_of_the_api_begins_where_the_reader_stopped(market: Market) -> None:
    market.open()
    app = create_app(market.broker, SETTINGS)
    token = market.broker.mint_token(market.sellers[0], "read", key())["token"]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if b"event: " in message.get("body", b""):
            assert app.state.streams.total == 1
            assert app.state.account_places.total == 0
            app.state.is_stopping = True

    async def receive() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError("never")

    headers = [(b"authorization", f"Bearer {token}".encode()), (b"last-event-id", b"0")]
    scope = {
        "type": "http", "method": "GET", "path": "/v1/events/stream", "headers": headers, "query_string": b"",
        "client": ("a", 1), "http_version": "1.1", "scheme": "http", "server": ("broker", 80), "root_path": "",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
    text = b"".join(one.get("body", b"") for one in sent).decode()
    assert "event: task.published\n" in text
    assert "event: round.opened\n" in text
    assert app.state.streams.total == 0
