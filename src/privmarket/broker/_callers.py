"""Callers: bearer tokens at the API, sessions of the pages, and limits per account.

A session is a cookie that scripts cannot read. It names the token that signed in, without containing it, and is
signed by itsdangerous with a secret of the broker. Signing out ends it for every broker on the database: the log
says which session ended, so a copy of the cookie is no longer valid. Forms carry a mark that another site cannot
know.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from itsdangerous import BadSignature, URLSafeSerializer
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from privmarket.broker import _events as events, _parties as parties, _sql as sql, _views as views
from privmarket.broker._broker import Broker
from privmarket.broker._errors import ForbiddenError, TooManyRequestsError, UnauthenticatedError
from privmarket.broker._forms import ErrorShape
from privmarket.broker._limits import Places, RateLimit, notes_of
from privmarket.broker._parties import ANONYMOUS, Actor, bearer_token
from privmarket.broker._shapes import Identifier


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
    """Counts a request against the limits of its caller's account, on rate and on simultaneous requests."""
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
    """Counts a stream of events against its caller's account until it ends, instead of as a request."""
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
    """The length of the log, read once for all streams that ask within `events.POLL_SECONDS`."""

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
    """The caller if it sent a token, else `ANONYMOUS`."""
    if authorization is None:
        return ANONYMOUS
    return await actor_of(request, await token_of(authorization))


async def arrived_ms(request: Request) -> int:
    """When a request had arrived in full; deadlines count from then, whatever it waits for afterwards."""
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


# ---- sessions of the pages ------------------------------------------------------------------------------------


SESSION_SECONDS = 12 * 3600
_SESSION = "privmarket_session"
_VISITOR = "privmarket_visitor"
_ENDED = "SELECT seq, at_ms, details FROM log WHERE kind = 'session.ended' AND seq > ? AND at_ms > ? ORDER BY seq"


class _Session(NamedTuple):
    """The content of a cookie: the token that signed in, the session's name for ending it, and its end."""

    token_id: str
    session_id: str
    ends_ms: int


class EndedSessions:
    """Sessions that were signed out before they expired; each call reads only new entries of the log."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._seen = 0

    def includes(self, connection: Connection, session_id: str, now_ms: int) -> bool:
        """Whether this session was signed out, here or at another broker."""
        oldest = now_ms - 1000 * SESSION_SECONDS
        for seq, at_ms, details in sql.run(connection, _ENDED, self._seen, oldest):
            self._ended[str(json.loads(details)["session"])] = at_ms
            self._seen = max(self._seen, seq)
        for name in [name for name, at_ms in self._ended.items() if at_ms < oldest]:
            del self._ended[name]
        return session_id in self._ended


def signed_in(request: Request) -> Actor:
    """The signed-in reader of a page; counts against its account like a call of the API."""
    broker: Broker = request.app.state.broker
    ended: EndedSessions = request.app.state.ended_sessions
    session = _session(request)
    now = broker.database.now_ms()
    if session is None or session.ends_ms < now:
        raise UnauthenticatedError("not signed in, or the session has ended", "sign in with your token")
    with broker.database.read() as connection:
        if ended.includes(connection, session.session_id, now):
            raise UnauthenticatedError("this session was signed out", "sign in with your token")
        actor = parties.by_token_id(connection, session.token_id, now)
    take_allowance(request, actor.party_id)
    return actor


def start_session(request: Request, response: Response, token_id: str) -> None:
    """Starts a session.

    It ends after `SESSION_SECONDS`, or earlier when the browser closes, its owner signs out or the token ends.
    """
    ends = request.app.state.broker.database.now_ms() + 1000 * SESSION_SECONDS
    text = _signer(request).dumps([token_id, secrets.token_hex(16), ends])
    secure = _is_secure(request)
    response.set_cookie(_SESSION, str(text), httponly=True, samesite="strict", secure=secure, path="/")


def end_session(request: Request, response: Response) -> None:
    """Signs out: the session ends here and at every other broker on the database."""
    broker: Broker = request.app.state.broker
    session = _session(request)
    if session is not None:
        with broker.database.read() as connection:
            actor = parties.by_token_id(connection, session.token_id, broker.database.now_ms())
        broker.end_session(actor, session.session_id)
    forget_session(response)


def forget_session(response: Response) -> None:
    """Removes the cookie from the browser."""
    response.delete_cookie(_SESSION, path="/")


def has_cookie(request: Request) -> bool:
    """Whether this browser has a secret already."""
    return bool(request.cookies.get(_SESSION) or request.cookies.get(_VISITOR))


def form_mark(request: Request) -> str:
    """The mark that a form of this browser must carry; another site cannot know it."""
    own = request.cookies.get(_SESSION) or request.cookies.get(_VISITOR) or ""
    secret: bytes = request.app.state.session_secret
    return hmac.new(secret, b"form\x00" + own.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def greet(request: Request, response: Response) -> None:
    """Gives a new browser a secret, so that even signing in cannot be forged by another site."""
    if not has_cookie(request):
        text = secrets.token_urlsafe(24)
        response.set_cookie(_VISITOR, text, httponly=True, samesite="strict", secure=_is_secure(request))


def require_mark(request: Request, mark: str) -> None:
    """Refuses a form that this browser was not given."""
    expected = form_mark(request).encode()
    if not has_cookie(request) or not hmac.compare_digest(mark.encode("utf-8", "surrogatepass"), expected):
        error = ForbiddenError("this form has expired or came from elsewhere", "go back, reload and try again")
        error.code = "bad-form"
        raise error


def _signer(request: Request) -> URLSafeSerializer:
    return URLSafeSerializer(request.app.state.session_secret, salt="privmarket session")


def _session(request: Request) -> _Session | None:
    """The session of a cookie that this broker signed; None for any other."""
    try:
        token_id, session_id, ends_ms = _signer(request).loads(request.cookies.get(_SESSION, ""))
    except (BadSignature, ValueError, TypeError):
        return None
    return _Session(token_id, session_id, ends_ms)


def _is_secure(request: Request) -> bool:
    """Whether browsers send the cookie over HTTPS only: as the operator set it, or if the page came by HTTPS."""
    return bool(request.app.state.settings.secure_cookies) or request.url.scheme == "https"
