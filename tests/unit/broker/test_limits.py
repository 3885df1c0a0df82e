"""The gate before the application: slow senders keep nobody out, and one caller has one caller's share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from privmarket.broker._limits import Counters, Gate, Limits, Places, RateLimit

SMALL = Limits(
    body_bytes=100,
    body_seconds=600.0,
    bodies_per_address=3,
    requests=5,
    requests_per_address=4,
    answer_seconds=600.0,
)


class Answer:
    """What one request was told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]


def gate(app: ASGIApp, limits: Limits = SMALL, kind: type[Gate] = Gate) -> Gate:
    return kind(app, limits, RateLimit(1e6, 1e6), Counters())


async def ok(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def scope_of(address: str, length: int | None = None, **headers: str) -> Scope:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    if length is not None:
        sent.append((b"content-length", str(length).encode()))
    return {"type": "http", "method": "POST", "path": "/", "headers": sent, "client": (address, 1)}


async def call(app: ASGIApp, address: str, body: bytes = b"{}", **headers: str) -> Answer:
    answer = Answer()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    await app(scope_of(address, len(body), **headers), receive, answer.send)
    return answer


async def begin_slowly(app: ASGIApp, address: str) -> tuple[asyncio.Task[None], Answer]:
    """A request that says how long it is, and then nothing."""
    answer = Answer()

    async def receive() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError("never")

    task = asyncio.ensure_future(_run(app, scope_of(address, 50), receive, answer.send))
    for _ in range(5):
        await asyncio.sleep(0)
    return task, answer


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        found = await test()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return found

    return asyncio.run(within())


async def _others_during_slow_bodies(app: ASGIApp) -> tuple[list[int], list[int], Answer]:
    """400 slow bodies of one address: what they are told at once, what others are, and what that address is."""
    slow = [await begin_slowly(app, "attacker") for _ in range(400)]
    others = [(await call(app, f"seller-{number}")).status for number in range(20)]
    return [answer.status for _, answer in slow], others, await call(app, "attacker", b"")


class OldGate(Gate):
    """Broken on purpose: a request holds its place while its body arrives, as it once did."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.places.total >= self.limits.requests:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        self.places.take("all")
        await super().__call__(scope, receive, send)
        self.places.give_back("all")


def test_slow_bodies_of_one_address_keep_nobody_out() -> None:
    slow, others, itself = run(lambda: _others_during_slow_bodies(gate(ok)))
    assert slow == [0] * 3 + [429] * 397  # three are waited for, the others are told at once
    assert others == [200] * 20
    assert itself.status == 200  # what has no body waits for nothing
    old = gate(ok, Limits(requests=5, bodies_per_address=1000), OldGate)
    assert run(lambda: _others_during_slow_bodies(old))[1] == [503] * 20


def test_a_refusal_says_when_to_come_back_and_carries_the_request_id() -> None:
    async def told() -> Answer:
        app = gate(ok)
        for _ in range(3):
            await begin_slowly(app, "attacker")
        return await call(app, "attacker", x_request_id="my-request-17")

    answer = run(told)
    assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (429, "1", "close")
    body = json.loads(answer.body)
    assert set(body) == {"code", "message", "hint", "field", "request_id"}
    assert body["request_id"] == answer.headers["x-request-id"] == "my-request-17"


def test_a_body_that_ends_gives_its_place_to_the_next() -> None:
    async def again() -> list[int]:
        app = gate(ok)
        slow = [await begin_slowly(app, "a") for _ in range(3)]
        before = (await call(app, "a")).status
        slow[0][0].cancel()  # it hung up
        await asyncio.gather(slow[0][0], return_exceptions=True)
        return [before, (await call(app, "a")).status, app.bodies.total]

    assert run(again) == [429, 200, 2]


def test_half_a_body_reaches_nobody() -> None:
    """A caller that hangs up in the middle: what came so far might even be valid."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    async def half() -> int:
        messages = [{"type": "http.request", "body": b"{}", "more_body": True}, {"type": "http.disconnect"}]
        answer = Answer()

        async def receive() -> Message:
            return messages.pop(0)

        await gate(app)(scope_of("a", 50), receive, answer.send)
        return answer.status

    assert (run(half), seen) == (400, [])


def test_a_body_that_never_comes_is_answered_408() -> None:
    async def late() -> int:
        app = gate(ok, Limits(body_seconds=0.01))
        task, answer = await begin_slowly(app, "a")
        await task
        return answer.status

    assert run(late) == 408


def test_places_are_shared_among_addresses_and_given_back() -> None:
    async def taken() -> tuple[list[int], int, int]:
        go = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            await go.wait()
            await ok(scope, receive, send)

        app = gate(waits)
        answers = [asyncio.ensure_future(call(app, "a")) for _ in range(5)]
        answers += [asyncio.ensure_future(call(app, "b")) for _ in range(2)]
        for _ in range(20):
            await asyncio.sleep(0)
        busy = app.places.total
        go.set()
        return [(await one).status for one in answers], busy, app.places.total

    statuses, busy, after = run(taken)
    assert statuses == [200, 200, 200, 200, 429, 200, 503]  # four of `a`; five in all
    assert (busy, after) == (5, 0)


def test_a_stream_holds_no_place_and_has_no_deadline() -> None:
    async def streams() -> tuple[int, int]:
        async def events(scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await asyncio.sleep(0.05)  # longer than an answer may take
            await send({"type": "http.response.body", "body": b"data: 1\n\n"})

        app = gate(events, Limits(answer_seconds=0.01))
        task = asyncio.ensure_future(call(app, "a"))
        await asyncio.sleep(0.005)
        held = app.places.total
        return held, len((await task).body)

    assert run(streams) == (0, 9)


def test_an_unknown_version_is_refused() -> None:
    async def asked() -> list[int]:
        return [(await call(gate(ok), "a", privmarket_version=version)).status for version in ("1", "2", "")]

    assert run(asked) == [200, 400, 400]


def test_a_bucket_says_what_is_left_and_how_long_to_wait() -> None:
    now = [0.0]
    rate = RateLimit(0.5, 2, clock=lambda: now[0])
    assert [tuple(rate.take("a")) for _ in range(3)] == [(True, 2, 1, 0), (True, 2, 0, 2), (False, 2, 0, 2)]
    now[0] = 2.0
    assert rate.take("a").allowed
    assert rate.take("b").remaining == 1  # each caller has its own


def test_places_count_each_caller_and_all() -> None:
    places = Places(3, 2)
    for caller in ("a", "a", "b"):
        assert places.refusal(caller) is None
        places.take(caller)
    assert (places.refusal("a"), places.refusal("b"), places.refusal("c")) == ("caller", "all", "all")
    places.give_back("a")
    assert places.refusal("c") is None


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 13, "101"])
def test_a_length_that_is_none_or_too_much(length: str) -> None:
    async def told() -> int:
        answer = Answer()
        scope = scope_of("a", content_length=length)
        await gate(ok)(scope, Receiver(), answer.send)
        return answer.status

    assert run(told) == 413


class Receiver:
    async def __call__(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}
