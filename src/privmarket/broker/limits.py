"""What every request passes before the application: limits on size, time and rate, headers, one error shape.

A caller is limited by its address before anything is read, and by its account once its token is known
(`api_callers.take_allowance`); a token that nobody checked limits nothing. Every answer carries the signed
head of the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
)


@dataclass
class RateLimit:
    """Token buckets, one per caller; the least recently seen are forgotten."""

    per_second: float
    burst: float
    callers: int = 10_000
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def allows(self, caller: str) -> bool:
        """Takes one from the caller's bucket, if there is one."""
        now = self.clock()
        left, since = self._buckets.pop(caller, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.per_second)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, now)
        if len(self._buckets) > self.callers:
            self._buckets.popitem(last=False)
        return allowed


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
    """What one request may take.

    Attributes:
        body_bytes: the largest body.
        body_seconds: how long a body may take to arrive.
        requests: requests that are served at once; more are answered 503.
        answer_seconds: how long an answer may take.
    """

    body_bytes: int = 1_000_000
    body_seconds: float = 10.0
    requests: int = 400
    answer_seconds: float = 120.0


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
        self.app, self.limits, self.rate, self.counters = app, limits, rate, counters
        self._head_line, self._access_log = head_line, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request: checks the limits, then passes it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"")
        if not (8 <= len(request_id) <= 64 and request_id.replace(b"-", b"").isalnum()):
            request_id = secrets.token_hex(8).encode()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = ((b"x-request-id", request_id), (b"privmarket-head", self._head_line().encode()))
                message["headers"] = [*message.get("headers", ()), *_HEADERS, *(own if own[1][1] else own[:1])]
            await send(message)

        self.counters.under_way += 1
        body = None
        try:
            async with asyncio.timeout(self.limits.body_seconds) as limit:
                body = await self._admitted(scope, headers, receive, send_with_headers)
                if body is not None:
                    limit.reschedule(asyncio.get_running_loop().time() + self.limits.answer_seconds)
                    await self.app(scope, _replay(body, receive), send_with_headers)
        except TimeoutError:
            if body is None:
                hint = f"send the whole request within {self.limits.body_seconds:g} s"
                await _refuse(send_with_headers, 408, "too-slow", "the request took too long to arrive", hint)
            elif not status:
                await _refuse(send_with_headers, 503, "timeout", "the answer took too long", "send the same again")
        finally:
            self.counters.under_way -= 1
            seconds = time.perf_counter() - begun
            self.counters.add(scope["method"], status, seconds)
            if self._access_log:
                line = {"request": request_id.decode(), "method": scope["method"], "path": scope["path"]}
                address = scope["client"][0] if scope.get("client") else "local"
                _access.info(
                    json.dumps({**line, "status": status, "ms": round(1000 * seconds, 1), "from": address})
                )

    async def _admitted(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> bytes | None:
        """The body of a request that may go on; None for one that was refused."""
        if self.counters.under_way > self.limits.requests:
            await _refuse(send, 503, "busy", "too many requests at once", "wait a second and try again")
            return None
        if not self.rate.allows(str(scope["client"][0]) if scope.get("client") else "local"):
            await _refuse(send, 429, "too-many-requests", "slow down", "wait a second and try again")
            return None
        declared = headers.get(b"content-length", b"0")
        too_long = not declared.isdigit() or len(declared) > 12 or int(declared) > self.limits.body_bytes
        body = None if too_long else await _whole_body(scope, headers, receive, self.limits.body_bytes)
        if body is None:
            hint = f"send at most {self.limits.body_bytes} bytes"
            await _refuse(send, 413, "body-too-large", "the request is too large", hint)
        return body


async def _whole_body(scope: Scope, headers: dict[bytes, bytes], receive: Receive, limit: int) -> bytes | None:
    """The body, read here so that a stream without a declared length is cut off too; None if it is too long."""
    if (
        scope["method"] in ("GET", "HEAD")
        and b"transfer-encoding" not in headers
        and b"content-length" not in headers
    ):
        return b""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
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


def error_body(code: str, message: str, hint: str) -> dict[str, str]:
    """The one shape of an error."""
    return {"code": code, "message": message, "hint": hint}


async def _refuse(send: Send, status: int, code: str, message: str, hint: str) -> None:
    content = json.dumps(error_body(code, message, hint)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if status == 408:  # the rest of the body must not be read as the next request
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
