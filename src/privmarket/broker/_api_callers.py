"""Who calls the API: tokens, accounts and their allowances, and the parameters that every route shares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from privmarket.broker import _events as events
from privmarket.broker import _views as views
from privmarket.broker._broker import Broker
from privmarket.broker._forms import ErrorShape, Identifier
from privmarket.broker._http_errors import TooManyRequestsError
from privmarket.broker._limits import Places, RateLimit, notes_of
from privmarket.broker._parties import ANONYMOUS, Actor, bearer_token


async def _broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


Authorization = Annotated[str | None, Header(max_length=300)]


async def token_of(authorization: Authorization = None) -> str:
    """The bearer token as it was sent."""
    return bearer_token(authorization)


async def actor_of(request: Request, token: Annotated[str, Depends(token_of)]) -> Actor:
    """The caller, by its bearer token, if it has not asked too often."""
    broker: Broker = request.app.state.broker
    actor = await run_in_threadpool(broker.authenticate, token)
    take_allowance(request, actor.party_id)
    return actor


def take_allowance(request: Request, party_id: str) -> None:
    """Counts a request against its caller's account: how often it asks, and how much it asks at once."""
    rate: RateLimit = request.app.state.allowance
    places: Places = request.app.state.account_places
    notes = notes_of(request.scope)
    notes.allowance = rate.take(party_id)
    if not notes.allowance.allowed:
        raise TooManyRequestsError("slow down", "wait as many seconds as Retry-After says and try again")
    if places.refusal(party_id) is not None:
        raise TooManyRequestsError(
            f"{places.most_each} requests of this account are under way", "wait for some of them"
        )
    places.take(party_id)
    notes.at_the_end.append(lambda: places.give_back(party_id))


def take_stream(request: Request, party_id: str) -> None:
    """Counts a stream of events against its caller's account until it ends; it is no request under way any more."""
    streams: Places = request.app.state.streams
    notes = notes_of(request.scope)
    if streams.refusal(party_id) is not None:
        raise TooManyRequestsError(
            f"{streams.most_each} streams of this account are open, or too many in all", "close some of them"
        )
    for last in notes.at_the_end:
        last()
    streams.take(party_id)
    notes.at_the_end[:] = [lambda: streams.give_back(party_id)]


def event_stream(
    request: Request, told: Callable[[int], Awaitable[tuple[str, int]]], after: int
) -> StreamingResponse:
    """A stream of server-sent events that ends when the broker stops; see `events.stream`."""
    state = request.app.state

    async def size() -> int:
        growth: LogGrowth = state.log_growth
        return await growth.size()

    text = events.stream(size, told, after, lambda: bool(state.is_stopping))
    return StreamingResponse(text, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


class LogGrowth:
    """How long the log is, read once for all streams that ask within `events.POLL_SECONDS`."""

    def __init__(self, broker: Callable[[], Broker], clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._read_at = float("-inf")
        self._size = 0
        self._lock: asyncio.Lock | None = None

    async def size(self) -> int:
        """The number of entries, at most half a second old."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._clock() - self._read_at >= events.POLL_SECONDS / 2:
                self._size = await run_in_threadpool(events.log_size, self._broker())
                self._read_at = self._clock()
        return self._size


def operation_id(route: APIRoute) -> str:
    """The name of a route's function, which generated clients use: it stays when paths and tags change."""
    return route.name


async def perhaps_actor(request: Request, authorization: Authorization = None) -> Actor:
    """The caller, where it sent a token; else `ANONYMOUS`."""
    if authorization is None:
        return ANONYMOUS
    return await actor_of(request, await token_of(authorization))


async def arrived_ms(request: Request) -> int:
    """When a request had arrived in full: whatever it waits for from here on makes nobody late."""
    broker: Broker = request.app.state.broker
    return broker.database.now_ms()


TheBroker = Annotated[Broker, Depends(_broker)]
Caller = Annotated[Actor, Depends(actor_of)]
Arrived = Annotated[int, Depends(arrived_ms)]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=8, max_length=200)]
Id = Annotated[Identifier, Path()]
After = Annotated[str | None, Query(max_length=80)]
Limit = Annotated[int, Query(ge=1, le=views.PAGE_LIMIT)]
ERRORS: dict[int | str, dict[str, type[ErrorShape]]] = {
    status: {"model": ErrorShape} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
