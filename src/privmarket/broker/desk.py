"""Group commit: bids that arrive while one transaction is being made durable share the next one.

Flushing the disk costs milliseconds and is the same for one bid or a hundred. Nobody waits for company: an idle
desk takes a bid at once, and each bid is answered only after the commit that holds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from privmarket.broker.bidding import BidRequest
from privmarket.broker.broker import Broker

Answer = dict[str, Any]
_Result = Answer | BaseException
GROUP_LIMIT = 256  # bids in one transaction: others that write wait for it, and SQL has a limit on its parameters
_TURNS = 4  # of the event loop, from a request's first byte to its place in the queue


class BidDesk:
    """Where the HTTP face hands in bids. Used from one event loop at a time."""

    def __init__(self, broker: Callable[[], Broker]) -> None:
        self._broker = broker
        self._waiting: list[tuple[BidRequest, asyncio.Future[Answer]]] = []
        self._clerk: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "bids")

    async def take(self, request: BidRequest) -> Answer:
        """The answer to one bid, once it is durable; raises what refused it."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._clerk is None:
            self._clerk = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        """Takes everybody who waits, again and again, until nobody does."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                for _ in range(_TURNS):  # requests that have arrived and are being read come along
                    await asyncio.sleep(0)
                group, self._waiting = self._waiting[:GROUP_LIMIT], self._waiting[GROUP_LIMIT:]
                requests = [request for request, _ in group]
                results = await loop.run_in_executor(self._thread, _take, self._broker(), requests)
                for (_, answer), result in zip(group, results, strict=True):
                    _tell(answer, result)
        finally:
            self._clerk = None


def _take(broker: Broker, requests: Sequence[BidRequest]) -> Sequence[_Result]:
    try:
        return broker.take_bids(requests)
    except SQLAlchemyError as fault:
        if len(requests) == 1:
            return [fault]
        # One that the database chokes on must not take the others down; what was committed is found by its key.
        return [_take(broker, [request])[0] for request in requests]
    except Exception as fault:
        return [fault] * len(requests)


def _tell(answer: asyncio.Future[Answer], result: _Result) -> None:
    if answer.done():  # the caller hung up
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)
