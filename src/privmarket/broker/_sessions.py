"""Signing in to the pages: a session that expires, in a cookie that scripts cannot read, and a mark against forged
forms.

The cookie names the token that signed in, never holds it, and is signed by itsdangerous with a secret of the
broker's. Signing out ends the session for every broker on the database: the log says which session ended, so a copy
of the cookie is worth nothing afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import NamedTuple

from fastapi import Request, Response
from itsdangerous import BadSignature, URLSafeSerializer
from sqlalchemy import Connection

from privmarket.broker import _parties as parties
from privmarket.broker import _sql as sql
from privmarket.broker._api_callers import take_allowance
from privmarket.broker._broker import Broker
from privmarket.broker._http_errors import ForbiddenError, UnauthenticatedError
from privmarket.broker._parties import Actor

SESSION_SECONDS = 12 * 3600
_SESSION = "privmarket_session"
_VISITOR = "privmarket_visitor"
_ENDED = "SELECT seq, at_ms, details FROM log WHERE kind = 'session.ended' AND seq > ? AND at_ms > ? ORDER BY seq"


class _Session(NamedTuple):
    """What a cookie says: which token signed in, under which name the session can be ended, and until when."""

    token_id: str
    session_id: str
    ends_ms: int


class EndedSessions:
    """Sessions that were signed out and would not have expired yet, read from the log as far as it is new."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._seen = 0

    def includes(self, connection: Connection, session_id: str, now_ms: int) -> bool:
        """Whether somebody signed this session out, here or at another broker."""
        oldest = now_ms - 1000 * SESSION_SECONDS
        for seq, at_ms, details in sql.run(connection, _ENDED, self._seen, oldest):
            self._ended[str(json.loads(details)["session"])] = at_ms
            self._seen = max(self._seen, seq)
        for name in [name for name, at_ms in self._ended.items() if at_ms < oldest]:
            del self._ended[name]
        return session_id in self._ended


def signed_in(request: Request) -> Actor:
    """Who is looking at the page; counts against its account as a call of the API does."""
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


def start(request: Request, response: Response, token_id: str) -> None:
    """A session of some hours, or until the browser closes, its owner signs out, or the token ends."""
    ends = request.app.state.broker.database.now_ms() + 1000 * SESSION_SECONDS
    text = _signer(request).dumps([token_id, secrets.token_hex(16), ends])
    secure = _is_secure(request)
    response.set_cookie(_SESSION, str(text), httponly=True, samesite="strict", secure=secure, path="/")


def end(request: Request, response: Response) -> None:
    """Signs out: the session ends here and at every other broker on the database."""
    broker: Broker = request.app.state.broker
    session = _session(request)
    if session is not None:
        with broker.database.read() as connection:
            actor = parties.by_token_id(connection, session.token_id, broker.database.now_ms())
        broker.end_session(actor, session.session_id)
    forget(response)


def forget(response: Response) -> None:
    """Takes the cookie out of the browser."""
    response.delete_cookie(_SESSION, path="/")


def has_cookie(request: Request) -> bool:
    """Whether this browser has a secret of its own already."""
    return bool(request.cookies.get(_SESSION) or request.cookies.get(_VISITOR))


def form_mark(request: Request) -> str:
    """What a form of this browser must carry; another site cannot know it."""
    own = request.cookies.get(_SESSION) or request.cookies.get(_VISITOR) or ""
    secret: bytes = request.app.state.session_secret
    return hmac.new(secret, b"form\x00" + own.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def greet(request: Request, response: Response) -> None:
    """Gives a browser that never came here a secret of its own, so that even signing in cannot be forged."""
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
    """Whether browsers send the cookie over HTTPS only: as the operator says, or where the page came by it."""
    return bool(request.app.state.settings.secure_cookies) or request.url.scheme == "https"
