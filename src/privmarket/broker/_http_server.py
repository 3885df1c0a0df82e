"""The HTTP server: uvicorn with limits on connections and on how long one may take to send its request."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from privmarket.broker import _noise_tables as noise_tables

STOP_SECONDS = 6  # how long requests under way may take after SIGTERM
EXIT_SECONDS = 13.0  # after which the process ends whatever it does
_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
# How long a thread may run before it lets others in. Python's own 5 ms would make a reader wait 5 ms for a running
# auction at every statement and every row of a page.
THREAD_TURN_SECONDS = 0.0002


class GuardedProtocol(HttpToolsProtocol):
    """Limits the connections of one address, and closes those whose headers do not arrive.

    uvicorn itself limits connections in all, so that one address could keep out everybody else, and waits for ever
    for the headers of a request. `header_seconds` run from connecting, or from the last answer, to the end of a
    request's headers. How long its body may take is for `limits.Gate`, which answers 408.
    """

    header_seconds = 10.0
    per_address = 250
    unlimited_address: str | None = None
    counted: ClassVar[Counter[str]] = Counter()
    _address: str | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts a new connection, and gives it some seconds to send its first headers."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "local"
        self.counted[self._address] += 1
        if self._address != self.unlimited_address and self.counted[self._address] > self.per_address:
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
            return
        self._wait()

    def on_headers_complete(self) -> None:
        """A request has begun: from here its body and its answer have limits of their own."""
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Gives the next request as many seconds for its headers."""
        super().on_response_complete()
        self._wait()

    def shutdown(self) -> None:
        """Ends the connection when the server stops; a request whose body is still arriving is not waited for."""
        if self.cycle is not None and self.cycle.more_body:
            self.transport.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer and no longer counts the connection."""
        self._stop_waiting()
        if self._address is not None:
            self.counted[self._address] -= 1
            if self.counted[self._address] <= 0:
                del self.counted[self._address]
            self._address = None
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(self.header_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


@dataclass(frozen=True)
class ServerSettings:
    """How connections are treated.

    Attributes:
        connections: how many at once; beyond them requests are answered 503. One address, other than the proxy's,
            may have a quarter of them; more are answered 429.
        header_seconds: how long the headers of a request may take to arrive.
        behind_proxy: the address of the proxy whose X-Forwarded-For is believed; nobody's if None.
    """

    connections: int = 1000
    header_seconds: float = 10.0
    behind_proxy: str | None = None


class Server(uvicorn.Server):
    """uvicorn's server, in which a signal also calls `on_stop`, and ends the process in any case.

    Requests under way get `STOP_SECONDS`. A thread that waits for a disk or a computation cannot be ended from
    outside, so `EXIT_SECONDS` after the signal the process ends without it: what was acknowledged is on disk.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to stop."""
        last = threading.Timer(EXIT_SECONDS, os._exit, (0,))
        last.daemon = True
        last.start()
        self._on_stop()
        super().handle_exit(sig, frame)


def run_server(app: FastAPI, listening: socket.socket, settings: ServerSettings) -> None:
    """Serves until SIGTERM or SIGINT; requests under way get some seconds to finish."""
    sys.setswitchinterval(THREAD_TURN_SECONDS)
    gc.freeze()  # modules are never freed, so the garbage collector need not scan them each time

    class Protocol(GuardedProtocol):
        header_seconds = settings.header_seconds
        per_address = max(1, settings.connections // 4)
        unlimited_address = settings.behind_proxy
        counted: ClassVar[Counter[str]] = Counter()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # `limits.Gate` writes one
        server_header=False,
        http=Protocol,
        limit_concurrency=settings.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=STOP_SECONDS,
        proxy_headers=settings.behind_proxy is not None,
        forwarded_allow_ips=settings.behind_proxy or "",
    )

    def stop() -> None:
        app.state.is_stopping = True
        # Not in the signal's handler itself: it may have interrupted a thread that holds the lock which this takes.
        threading.Thread(target=noise_tables.builder.stop, daemon=True).start()

    # uvicorn raises the signal again once it is done: as an exit, so that the caller can close its database.
    signal.signal(signal.SIGTERM, _exit)
    Server(config, stop).run(sockets=[listening])


def _exit(number: int, frame: object) -> None:
    raise SystemExit(0)
