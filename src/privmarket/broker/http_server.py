"""The HTTP server: uvicorn with limits on connections and on how long one may take to send its request."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

STOP_SECONDS = 10  # how long requests under way may take after SIGTERM
# How long a thread may run before it lets others in. Python's own 5 ms would make a reader wait 5 ms for a running
# auction at every statement and every row of a page.
THREAD_TURN_SECONDS = 0.0002


class OneSend:
    """A transport that sends an answer's headers and body together.

    uvicorn writes them one after the other, and each costs a system call and wakes the caller.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends with what follows, at the latest in the next turn of the event loop."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Sends what is waiting."""
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        """Sends what is waiting and ends the connection."""
        self.flush()
        self._transport.close()


class PatientProtocol(HttpToolsProtocol):
    """Closes a connection whose headers do not arrive; uvicorn itself waits for ever.

    `header_seconds` run from connecting, or from the last answer, to the end of a request's headers. How long its
    body may take is for `limits.Gate`, which answers 408.
    """

    header_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection has some seconds to send its first headers."""
        self._sending = OneSend(transport, self.loop)
        super().connection_made(self._sending)  # type: ignore[arg-type]
        self._wait()

    def on_headers_complete(self) -> None:
        """A request has begun: from here its body and its answer have limits of their own."""
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The answer leaves; the next request may take as long again."""
        self._sending.flush()
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_waiting()
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
        connections: how many at once; beyond them requests are answered 503.
        header_seconds: how long the headers of a request may take to arrive.
        behind_proxy: the address of the proxy whose X-Forwarded-For is believed; nobody's if None.
    """

    connections: int = 1000
    header_seconds: float = 10.0
    behind_proxy: str | None = None


def run_server(app: ASGIApp, listening: socket.socket, settings: ServerSettings) -> None:
    """Serves until SIGTERM or SIGINT; requests under way get some seconds to finish."""
    sys.setswitchinterval(THREAD_TURN_SECONDS)
    gc.freeze()  # what was imported stays: the garbage collector need not look at it again and again

    class Protocol(PatientProtocol):
        header_seconds = settings.header_seconds

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
    # uvicorn raises the signal again once it is done: as an exit, so that the caller can close its database.
    signal.signal(signal.SIGTERM, _exit)
    uvicorn.Server(config).run(sockets=[listening])


def _exit(number: int, frame: object) -> None:
    raise SystemExit(0)
