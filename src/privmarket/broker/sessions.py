"""Signing in to the pages: a session that expires, in a cookie that scripts cannot read, and a mark against forged
forms.

The cookie names the token that signed in, never holds it, and is authenticated by a secret of the broker's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from fastapi import Request, Response

from privmarket.broker import parties
from privmarket.broker.broker import Broker
from privmarket.broker.http_errors import ForbiddenError, UnauthenticatedError
from privmarket.broker.parties import Actor

SESSION_SECONDS = 12 * 3600
_SESSION, _VISITOR = "privmarket_session", "privmarket_visitor"


def _mac(request: Request, purpose: str, text: str) -> str:
    secret: bytes = request.app.state.session_secret
    return hmac.new(secret, f"{purpose}\x00{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def signed_in(request: Request) -> Actor:
    """Who is looking at the page."""
    broker: Broker = request.app.state.broker
    token_id, _, rest = request.cookies.get(_SESSION, "").partition(".")
    ends, _, mac = rest.partition(".")
    signed = hmac.compare_digest(mac.encode(), _mac(request, "session", f"{token_id}.{ends}").encode())
    now = broker.database.now_ms()
    if not signed or not ends.isdigit() or int(ends) < now:
        raise UnauthenticatedError("not signed in, or the session has ended", "sign in with your token")
    with broker.database.read() as connection:
        return parties.by_token_id(connection, token_id, now)


def start(request: Request, response: Response, token_id: str) -> None:
    """A session of some hours, or until the browser closes or the token ends."""
    ends = request.app.state.broker.database.now_ms() + 1000 * SESSION_SECONDS
    text = f"{token_id}.{ends}"
    secure = request.app.state.settings.secure_cookies
    response.set_cookie(
        _SESSION,
        f"{text}.{_mac(request, 'session', text)}",
        httponly=True,
        samesite="strict",
        secure=secure,
        path="/",
    )


def end(response: Response) -> None:
    """Signs out."""
    response.delete_cookie(_SESSION, path="/")


def form_mark(request: Request) -> str:
    """What a form of this browser must carry; another site cannot know it."""
    own = request.cookies.get(_SESSION) or request.cookies.get(_VISITOR) or ""
    return _mac(request, "form", own)


def greet(request: Request, response: Response) -> None:
    """Gives a browser that never came here a secret of its own, so that even signing in cannot be forged."""
    if not request.cookies.get(_VISITOR) and not request.cookies.get(_SESSION):
        secure = request.app.state.settings.secure_cookies
        response.set_cookie(_VISITOR, secrets.token_urlsafe(24), httponly=True, samesite="strict", secure=secure)


def require_mark(request: Request, mark: str) -> None:
    """Refuses a form that this browser was not given."""
    has_secret = bool(request.cookies.get(_SESSION) or request.cookies.get(_VISITOR))
    expected = form_mark(request).encode()
    if not has_secret or not hmac.compare_digest(mark.encode("utf-8", "surrogatepass"), expected):
        error = ForbiddenError("this form has expired or came from elsewhere", "go back, reload and try again")
        error.code = "bad-form"
        raise error
