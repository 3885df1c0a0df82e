"""A light HTTP client for load tests: keep-alive connections, one request at a time on each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from privmarket_fixtures.processes import LoadError


@dataclass(frozen=True)
class Rate:
    """What callers got in a measured time: answers per second, and the median and 99th percentile of waiting."""

    per_second: float
    median_ms: float
    p99_ms: float
    answers: int = 0


@contextlib.contextmanager
def server(arguments: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """A Python process that serves on `port` until the block ends."""
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=out)
    try:
        _wait(process, port, log)
        yield
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            if call(port, "GET", "/health")[0] == 200:
                return
        time.sleep(0.05)
    raise LoadError(f"the server on port {port} did not start", log.read_text()[-400:])


def call(port: int, method: str, path: str, token: str = "", form: object = None) -> tuple[int, bytes]:
    """One request on a connection of its own: (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Idempotency-Key": str(uuid.uuid4()), "Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
        if not path.startswith("/v1"):
            headers["Cookie"] = session(port, token)
    connection.request(method, path, None if form is None else json.dumps(form), headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body


@functools.lru_cache(maxsize=64)
def session(port: int, token: str) -> str:
    """The cookie of somebody who signed in to the pages as a browser does."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True, timeout=120) as browser:
        mark = re.search(r'name="mark" value="([0-9a-f]+)"', browser.get("/sign-in").text)
        if mark is None:
            raise LoadError("the page to sign in has no form", "is this a broker?")
        browser.post("/sign-in", data={"token": token, "key": str(uuid.uuid4()), "mark": mark.group(1)})
        return f"privmarket_session={browser.cookies.get('privmarket_session')}"


def request_bytes(path: str, form: object, headers: dict[str, str]) -> bytes:
    """One POST request, as the bytes that go over the wire."""
    body = json.dumps(form).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def load(port: int, requests: Iterator[bytes], callers: int, seconds: float) -> Rate:
    """So many callers, each sending its next request as soon as the last one was answered with 201."""
    return asyncio.run(_load(port, requests, callers, seconds))


async def _load(port: int, requests: Iterator[bytes], callers: int, seconds: float) -> Rate:
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds
    await asyncio.gather(*(_caller(port, requests, end, latencies) for _ in range(callers)))
    took = time.perf_counter() - start
    ordered = sorted(latencies)
    place = min(len(ordered) - 1, int(0.99 * len(ordered)))
    return Rate(len(ordered) / took, 1e3 * ordered[len(ordered) // 2], 1e3 * ordered[place], len(ordered))


async def _caller(port: int, requests: Iterator[bytes], end: float, latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = 0.0
    while begun == 0.0 or time.perf_counter() < end:  # at least one request, however late the connection was
        begun = time.perf_counter()
        writer.write(next(requests))
        head = await reader.readuntil(b"\r\n\r\n")
        place = head.lower().index(b"content-length:") + 15
        body = await reader.readexactly(int(head[place : head.index(b"\r\n", place)]))
        if not head.startswith(b"HTTP/1.1 201"):
            raise LoadError(f"port {port} answered {head[:40]!r}", body[:200].decode(errors="replace"))
        latencies.append(time.perf_counter() - begun)
    writer.close()
