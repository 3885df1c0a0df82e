"""What every request passes before the application: size and rate limits, security headers, one error shape."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

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


class Gate:
    """ASGI middleware: refuses what is too big or too frequent, and adds headers to every answer."""

    def __init__(self, app: Any, body_limit_bytes: int, rate: RateLimit) -> None:
        self.app, self.body_limit_bytes, self.rate = app, body_limit_bytes, rate

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        headers = dict(scope["headers"])
        if not self.rate.allows(_caller(scope, headers)):
            await _refuse(send_with_headers, 429, "too-many-requests", "slow down", "wait a second and try again")
            return
        declared = headers.get(b"content-length", b"0")
        too_long = not declared.isdigit() or int(declared) > self.body_limit_bytes
        body = None if too_long else await _whole_body(scope, headers, receive, self.body_limit_bytes)
        if body is None:
            hint = f"send at most {self.body_limit_bytes} bytes"
            await _refuse(send_with_headers, 413, "body-too-large", "the request is too large", hint)
            return
        await self.app(scope, _replay(body, receive), send_with_headers)


async def _whole_body(scope: Any, headers: dict[bytes, bytes], receive: Any, limit: int) -> bytes | None:
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


def _replay(body: bytes, receive: Any) -> Any:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again


def _caller(scope: Any, headers: dict[bytes, bytes]) -> str:
    """By token where there is one (hashed: it stays out of memory dumps and logs), else by address."""
    token = headers.get(b"authorization")
    if token:
        return sha256(token).hexdigest()
    return str(scope["client"][0]) if scope.get("client") else "local"


def error_body(code: str, message: str, hint: str) -> dict[str, str]:
    """The one shape of an error."""
    return {"code": code, "message": message, "hint": hint}


async def _refuse(send: Any, status: int, code: str, message: str, hint: str) -> None:
    content = json.dumps(error_body(code, message, hint)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
