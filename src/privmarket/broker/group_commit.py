"""Group commit: bids that arrive while one transaction is being made durable share the next one.

Flushing the disk costs the same for one bid or a hundred. No bid waits for others: alone it is taken at
once, and each bid is answered only after the commit that holds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from privmarket.broker.answers import BidAnswer
from privmarket.broker.bidding import BidRequest
from privmarket.broker.broker import Broker
from privmarket.broker.http_errors import UnavailableError

_Result = BidAnswer | BaseException
GROUP_LIMIT = 200  # bids in one transaction: others that write wait for it, and SQL has a limit on its parameters
_TURNS = 4  # of the event loop, from a request's first byte to its place in the queue
# A lone bid is taken on the event loop itself while that is quicker than this: a thread costs as much again.
# On a slow disk, or behind another writer, the thread waits instead, and everybody else is served.
QUICK_SECONDS = 0.003
_WEIGHT = 0.1  # of the newest transaction in the running average


class GroupCommit:
    """Takes bids from the HTTP routes in groups. Used from one event loop at a time."""

    def __init__(self, broker: Callable[[], Broker]) -> None:
        self._broker = broker
        self._waiting: list[tuple[BidRequest, asyncio.Future[BidAnswer]]] = []
        self._has_leader = False
        self._had_others = False
        self._thread = ThreadPoolExecutor(1, "bids")
        self._usual_seconds = 0.0

    async def take(self, request: BidRequest) -> BidAnswer:
        """The answer to one bid, once it is durable; raises what refused it."""
        answer: asyncio.Future[BidAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if not self._has_leader:  # the first takes its own bid and all that come along
            self._has_leader = True
            await self._take_group()
        return await answer

    async def _take_group(self) -> None:
        """Takes everybody who waits, once; another leader follows if more have come meanwhile."""
        try:
            for _ in range(_TURNS if self._had_others else 1):
                await asyncio.sleep(0)  # requests that have arrived and are being read come along
            group, self._waiting = self._waiting[:GROUP_LIMIT], self._waiting[GROUP_LIMIT:]
            self._had_others = len(group) > 1
            requests = [request for request, _ in group]
            for (_, answer), result in zip(group, await self._results(requests), strict=True):
                _tell(answer, result)
        finally:
            self._has_leader = bool(self._waiting)
            if self._has_leader:
                self._next = asyncio.create_task(self._take_group())

    async def _results(self, requests: Sequence[BidRequest]) -> Sequence[_Result]:
        broker = self._broker()
        if len(requests) == 1 and self._usual_seconds < QUICK_SECONDS and broker.database.is_embedded:
            results = self._timed(broker, requests, patient=False)
            if not isinstance(results[0], UnavailableError):
                return results
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, broker, requests)

    def _timed(self, broker: Broker, requests: Sequence[BidRequest], patient: bool = True) -> Sequence[_Result]:
        begun = time.perf_counter()
        results = _take(broker, requests, patient)
        self._usual_seconds += _WEIGHT * (time.perf_counter() - begun - self._usual_seconds)
        return results


def _take(broker: Broker, requests: Sequence[BidRequest], patient: bool) -> Sequence[_Result]:
    try:
        return broker.take_bids(requests, patient=patient)
    except UnavailableError as fault:  # waiting again for each of them would only make it worse
        return [fault] * len(requests)
    except Exception as fault:
        if len(requests) == 1:
            return [fault]
        # One bid at which the database fails must not fail the others; what was committed is found by its key.
        return [_take(broker, [request], patient)[0] for request in requests]


def _tell(answer: asyncio.Future[BidAnswer], result: _Result) -> None:
    if answer.done():  # the caller hung up
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)
