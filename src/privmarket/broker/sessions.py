"""Signing in to the pages: the token in a cookie that scripts cannot read, and a mark against forged forms."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from fastapi import Request, Response

from privmarket.broker.broker import Broker
from privmarket.broker.errors import ForbiddenError, UnauthenticatedError
from privmarket.broker.people import Actor

_SESSION, _VISITOR = "privmarket_session", "privmarket_visitor"


def signed_in(request: Request) -> Actor:
    """Who is looking at the page."""
    broker: Broker = request.app.state.broker
    token = request.cookies.get(_SESSION, "")
    if not token:
        raise UnauthenticatedError("not signed in", "sign in with your token")
    return broker.authenticate(token)


def start(request: Request, response: Response, token: str) -> None:
    """Remembers the token until the browser closes."""
    secure = request.app.state.settings.secure_cookies
    response.set_cookie(_SESSION, token, httponly=True, samesite="strict", secure=secure, path="/")


def end(response: Response) -> None:
    """Forgets it."""
    response.delete_cookie(_SESSION, path="/")


def form_mark(request: Request) -> str:
    """What a form of this browser must carry; another site cannot know it."""
    secret = request.cookies.get(_SESSION) or request.cookies.get(_VISITOR) or ""
    return hmac.new(secret.encode(), b"privmarket form", hashlib.sha256).hexdigest()


def greet(request: Request, response: Response) -> None:
    """Gives a browser that never came here a secret of its own, so that even signing in cannot be forged."""
    if not request.cookies.get(_VISITOR) and not request.cookies.get(_SESSION):
        secure = request.app.state.settings.secure_cookies
        response.set_cookie(_VISITOR, secrets.token_urlsafe(24), httponly=True, samesite="strict", secure=secure)


def require_mark(request: Request, mark: str) -> None:
    """Refuses a form that this browser was not given."""
    has_secret = bool(request.cookies.get(_SESSION) or request.cookies.get(_VISITOR))
    if not has_secret or not hmac.compare_digest(mark.encode(), form_mark(request).encode()):
        error = ForbiddenError("this form has expired or came from elsewhere", "go back, reload and try again")
        error.code = "bad-form"
        raise error
