"""Group commit: bids that arrive while one transaction is being made durable share the next one.

Flushing the disk takes as long for one bid as for a hundred. No bid waits for others to arrive: a single one is
taken at once, and each bid is answered after the commit that contains it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from privmarket.broker._answers import BidAnswer
from privmarket.broker._bidding import BidRequest
from privmarket.broker._broker import Broker
from privmarket.broker._errors import UnavailableError

_Result = BidAnswer | BaseException
GROUP_LIMIT = 200  # bids in one transaction: others that write wait for it, and SQL has a limit on its parameters


class GroupCommit:
    """Takes bids from the HTTP route in groups, in a thread of its own. Used from one event loop at a time."""

    def __init__(self, broker: Callable[[], Broker]) -> None:
        self._broker = broker
        self._waiting: list[tuple[BidRequest, asyncio.Future[BidAnswer]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "bids")

    async def take(self, request: BidRequest) -> BidAnswer:
        """The answer to one bid, once it is durable; raises the reason if it is refused."""
        answer: asyncio.Future[BidAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._worker is None:
            self._worker = asyncio.create_task(self._take_all())
        return await answer

    async def _take_all(self) -> None:
        """Takes the waiting bids, group after group, until there are none."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group = self._waiting[:GROUP_LIMIT]
                del self._waiting[:GROUP_LIMIT]
                requests = [request for request, _ in group]
                results = await loop.run_in_executor(self._thread, _take, self._broker(), requests)
                for (_, answer), result in zip(group, results, strict=True):
                    _tell(answer, result)
        finally:
            self._worker = None


def _take(broker: Broker, requests: Sequence[BidRequest]) -> Sequence[_Result]:
    try:
        return broker.take_bids(requests)
    except UnavailableError as fault:  # waiting again for each of them would only make it worse
        return [fault] * len(requests)
    except Exception as fault:
        if len(requests) == 1:
            return [fault]
        # If the database fails at one bid, the others must not fail with it: each is taken alone. Those that were
        # committed already get their first answer, by their keys.
        return [_take(broker, [request])[0] for request in requests]


def _tell(answer: asyncio.Future[BidAnswer], result: _Result) -> None:
    if answer.done():  # the caller hung up
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)
