"""Middleware for every request: limits on size, time, rate and number, headers, one error shape.

A caller is limited by its address before anything is read, and by its account once its token is checked
(`_callers.take_allowance`). A request takes one of the broker's places only when it has arrived in full, so a slow
sender does not block others: it can only use up its own address's share of unfinished bodies. Every answer carries
the signed head of the log and a request id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_VERSION = "1"
"""The value of `Privmarket-Version`, if a caller sends it; raised with each change that breaks callers."""

_access = logging.getLogger("privmarket.access")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (b"privmarket-version", API_VERSION.encode()),
)
_NOTES = "privmarket.notes"
_STREAM = b"text/event-stream"


class Allowance(NamedTuple):
    """A caller's bucket: whether this request is allowed, how many more are now, and how long until the next is."""

    allowed: bool
    limit: int
    remaining: int
    wait_seconds: int


@dataclass
class RateLimit:
    """Token buckets, one per caller; the least recently seen are forgotten."""

    per_second: float
    burst: float
    callers: int = 10_000
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, caller: str) -> Allowance:
        """Takes one from the caller's bucket, if there is one."""
        now = self.clock()
        left, since = self._buckets.pop(caller, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.per_second)
        allowed = left >= 1
        if allowed:
            left -= 1
        self._buckets[caller] = (left, now)
        if len(self._buckets) > self.callers:
            self._buckets.popitem(last=False)
        wait = 0 if left >= 1 else math.ceil((1 - left) / self.per_second)
        return Allowance(allowed, int(self.burst), int(left), wait)

    def allows(self, caller: str) -> bool:
        """Takes one from the caller's bucket, and returns only whether there was one."""
        return self.take(caller).allowed


@dataclass
class Places:
    """Places that callers hold for a while: at most `most` in all, and `most_each` for each caller."""

    most: int
    most_each: int
    held: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def refusal(self, caller: str) -> str | None:
        """Why a caller gets no place now: "caller" (it has its maximum), "all" (all are taken), or None."""
        if self.held[caller] >= self.most_each:
            return "caller"
        return "all" if self.total >= self.most else None

    def take(self, caller: str) -> None:
        """Gives the caller a place, which it must give back."""
        self.held[caller] += 1
        self.total += 1

    def give_back(self, caller: str) -> None:
        """Ends one of the caller's places."""
        self.total -= 1
        self.held[caller] -= 1
        if self.held[caller] <= 0:
            del self.held[caller]


@dataclass
class Counters:
    """What /metrics shows of requests."""

    answers: dict[tuple[str, int], int] = field(default_factory=dict)
    seconds: float = 0.0
    under_way: int = 0

    def add(self, method: str, status: int, seconds: float) -> None:
        """Counts an answer by method and status."""
        self.answers[method, status] = self.answers.get((method, status), 0) + 1
        self.seconds += seconds


@dataclass(frozen=True)
class Limits:
    """The limits on requests.

    Attributes:
        body_bytes: the largest body.
        body_seconds: how long a body may take to arrive.
        bodies_per_address: bodies that may be on their way at once from one address; more are answered 429.
        requests: requests that have arrived and are being answered at once; more are answered 503.
        requests_per_address: how many of them may be of one address; more are answered 429.
        requests_per_account: how many of them may be of one account; more are answered 429.
        answer_seconds: how long an answer may take; streams of events may take for ever.
        streams: streams of events at once, and `streams_per_account` of one account.
    """

    body_bytes: int = 1_000_000
    body_seconds: float = 10.0
    bodies_per_address: int = 32
    requests: int = 400
    requests_per_address: int = 100
    requests_per_account: int = 20
    answer_seconds: float = 120.0
    streams: int = 400
    streams_per_account: int = 8


@dataclass
class RequestNotes:
    """Notes about one request.

    Attributes:
        request_id: the caller's, or a random one; answers and errors carry it.
        allowance: of the caller's account, once it is known; answers say how much is left.
        at_the_end: what to do when the answer has been sent, such as giving a place back.
    """

    request_id: str
    allowance: Allowance | None = None
    at_the_end: list[Callable[[], None]] = field(default_factory=list)


def notes_of(scope: Scope) -> RequestNotes:
    """The notes of a request that went through the gate."""
    notes = scope.get(_NOTES)
    return notes if isinstance(notes, RequestNotes) else RequestNotes("")


@dataclass
class _Refusal(Exception):
    """A request that ends at the gate."""

    status: int
    code: str
    message: str
    hint: str
    wait_seconds: int = 1


class Gate:
    """ASGI middleware: refuses what is too big, too slow or too frequent, and adds headers to every answer."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        rate: RateLimit,
        counters: Counters,
        head_line: Callable[[], str] = str,
        access_log: bool = False,
    ) -> None:
        self.app = app
        self.limits = limits
        self.rate = rate
        self.counters = counters
        self.bodies = Places(limits.requests * limits.bodies_per_address, limits.bodies_per_address)
        self.places = Places(limits.requests, limits.requests_per_address)
        self._head_line = head_line
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request: checks the limits, then passes it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 0
        headers = dict(scope["headers"])
        notes = RequestNotes(_request_id(headers))
        scope[_NOTES] = notes
        address = str(scope["client"][0]) if scope.get("client") else "local"
        has_place = False
        deadline = asyncio.timeout(None)

        def leave() -> None:
            nonlocal has_place
            if has_place:
                has_place = False
                self.places.give_back(address)
                self.counters.under_way -= 1

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = list(message.get("headers", ()))
                message["headers"] = [*sent, *_HEADERS, *self._own_headers(notes)]
                if any(name == b"content-type" and value.startswith(_STREAM) for name, value in sent):
                    leave()  # streams have a limit of their own
                    deadline.reschedule(None)
            await send(message)

        try:
            body = await self._arrived(scope, headers, receive, address)
            refused = self.places.refusal(address)
            if refused == "caller":
                raise _Refusal(429, "too-many-requests", "too many requests of yours at once", _PATIENCE)
            if refused == "all":
                raise _Refusal(503, "busy", "too many requests at once", _PATIENCE)
            self.places.take(address)
            has_place = True
            self.counters.under_way += 1
            async with deadline:
                deadline.reschedule(asyncio.get_running_loop().time() + self.limits.answer_seconds)
                await self.app(scope, _replay(body, receive), send_with_headers)
        except _Refusal as refusal:
            await _refuse(send_with_headers, notes, refusal)
        except TimeoutError:
            if status == 0:
                late = _Refusal(503, "unavailable", "this took too long", "send the same again", 1)
                await _refuse(send_with_headers, notes, late)
        finally:
            leave()
            for last in notes.at_the_end:
                last()
            seconds = time.perf_counter() - begun
            self.counters.add(scope["method"], status, seconds)
            if self._access_log:
                line = {"request": notes.request_id, "method": scope["method"], "path": scope["path"]}
                line |= {"status": status, "ms": round(1000 * seconds, 1), "from": address}
                _access.info(json.dumps(line))

    async def _arrived(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, address: str) -> bytes:
        """The whole body of a request; raises `_Refusal` if the request breaks a limit."""
        allowance = self.rate.take(address)
        if not allowance.allowed:
            raise _Refusal(429, "too-many-requests", "slow down", _PATIENCE, max(1, allowance.wait_seconds))
        asked = headers.get(b"privmarket-version", API_VERSION.encode()).decode("latin-1")
        if asked != API_VERSION:
            hint = f"send Privmarket-Version: {API_VERSION}, or leave it out"
            raise _Refusal(400, "unknown-version", f"this broker does not speak version {asked[:20]!r}", hint)
        declared = headers.get(b"content-length", b"0")
        largest = self.limits.body_bytes
        too_large = _Refusal(413, "body-too-large", "the request is too large", f"send at most {largest} bytes")
        if not declared.isdigit() or len(declared) > 12 or int(declared) > largest:
            raise too_large
        if b"transfer-encoding" not in headers and int(declared) == 0:
            return b""
        if self.bodies.refusal(address):
            message = "too many unfinished requests from your address"
            raise _Refusal(429, "too-many-requests", message, "finish sending those that you began")
        self.bodies.take(address)
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await _whole_body(receive, largest)
        except TimeoutError:
            hint = f"send the whole request within {self.limits.body_seconds:g} s"
            raise _Refusal(408, "too-slow", "the request took too long to arrive", hint) from None
        finally:
            self.bodies.give_back(address)
        if body is None:
            raise too_large
        return body

    def _own_headers(self, notes: RequestNotes) -> list[tuple[bytes, bytes]]:
        """The headers of this answer: its request id, the head of the log, and what is left of the allowance."""
        own = [(b"x-request-id", notes.request_id.encode())]
        head = self._head_line()
        if head:
            own.append((b"privmarket-head", head.encode()))
        if notes.allowance is not None:
            own.append((b"ratelimit-limit", str(notes.allowance.limit).encode()))
            own.append((b"ratelimit-remaining", str(notes.allowance.remaining).encode()))
            own.append((b"ratelimit-reset", str(notes.allowance.wait_seconds).encode()))
        return own


_PATIENCE = "wait as many seconds as Retry-After says and try again"


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"")
    if 8 <= len(given) <= 64 and given.replace(b"-", b"").isalnum():
        return given.decode("latin-1")
    return secrets.token_hex(8)


async def _whole_body(receive: Receive, limit: int) -> bytes | None:
    """The body, read here so that a stream without a declared length is cut off too; None if it is too long."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _Refusal(400, "bad-request", "the request ended before its body did", "send all of it")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def error_body(
    code: str, message: str, hint: str, *, field: str | None = None, request_id: str = ""
) -> dict[str, str | None]:
    """The one shape of an error; `field`: which field of the request was wrong, where one was."""
    return {"code": code, "message": message, "hint": hint, "field": field, "request_id": request_id}


async def _refuse(send: Send, notes: RequestNotes, refusal: _Refusal) -> None:
    told = error_body(refusal.code, refusal.message, refusal.hint, request_id=notes.request_id)
    content = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if refusal.status in (429, 503):
        headers.append((b"retry-after", str(refusal.wait_seconds).encode()))
    if refusal.status in (408, 413, 429):  # the rest of the body must not be read as the next request
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
