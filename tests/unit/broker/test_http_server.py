"""The server's own connection: an answer leaves at once and whole, and nothing that was written is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from privmarket.broker.http_server import OneSend


class Wire:
    """A transport that notes what was sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent.append(data)

    def close(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def _with_transport(use: Any) -> list[bytes]:
    """What leaves when `use` writes to a transport, in how many pieces."""

    async def turns() -> list[bytes]:
        wire = Wire()
        use(OneSend(cast(asyncio.Transport, wire), asyncio.get_running_loop()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return wire.sent

    return asyncio.run(turns())


def test_headers_and_body_leave_together() -> None:
    def answer(transport: OneSend) -> None:
        transport.write(b"HTTP/1.1 201 Created\r\n\r\n")
        transport.write(b"{}")
        transport.flush()
        transport.write(b"HTTP/1.1 200 OK\r\n\r\n")

    assert _with_transport(answer) == [b"HTTP/1.1 201 Created\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n"]


def test_what_nobody_flushes_leaves_in_the_next_turn() -> None:
    assert _with_transport(lambda transport: transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")) == [
        b"HTTP/1.1 100 Continue\r\n\r\n"
    ]


def test_a_connection_that_ends_sends_what_it_has() -> None:
    def last(transport: OneSend) -> None:
        transport.write(b"good")
        transport.write(b"bye")
        transport.close()

    assert _with_transport(last) == [b"goodbye"]


def test_everything_else_is_the_transport_s() -> None:
    seen: list[str] = []
    _with_transport(lambda transport: seen.append(transport.get_extra_info("peer")))
    assert seen == ["the peer"]
