"""The HTTP API of the broker: FastAPI, bearer tokens, one error shape, paginated lists, idempotent writes."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from privmarket import __version__
from privmarket.broker._broker import Broker, Scheduler
from privmarket.broker._callers import EndedSessions, LogGrowth
from privmarket.broker._errors import BrokerError
from privmarket.broker._events import Webhooks
from privmarket.broker._group_commit import GroupCommit
from privmarket.broker._limits import Counters, Gate, Limits, Places, RateLimit, error_body, notes_of
from privmarket.broker._page_frame import error_page, is_page
from privmarket.broker._pages import pages
from privmarket.broker._routes import audits, health, market, operators
from privmarket.errors import PrivmarketError

_FOR_ANYBODY = ("/v1/register", "/v1/log/head", "/v1/log/checkpoint", "/v1/log/consistency")
_STATIC = pathlib.Path(__file__).parent / "static"


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of an operator.

    Attributes:
        open_registration: whether anybody may register as buyer or seller, or operators only.
        requests_per_second: how many requests one account may make, on average; `burst` at once.
        address_factor: how many accounts' worth of requests one address may make.
        tick_seconds: how often deadlines are checked; 0 never, for tests that do it themselves.
        secure_cookies: whether browsers send the dashboard's cookies over HTTPS only.
        access_log: one JSON line per request on standard error.
        currency: the dashboard's name for a unit of money.
        webhooks: whether parties may have their events posted to addresses in the public internet.
    """

    open_registration: bool = True
    limits: Limits = field(default_factory=Limits)
    requests_per_second: float = 100.0
    burst: float = 400.0
    address_factor: float = 10.0
    tick_seconds: float = 1.0
    secure_cookies: bool = False
    access_log: bool = False
    currency: str = "credits"
    webhooks: bool = False


def create_app(broker: Broker, settings: ServiceSettings | None = None) -> FastAPI:
    """The application that serves one broker: its API and pages, its deadlines and its webhooks."""
    chosen = settings or ServiceSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Scheduler(broker, chosen.tick_seconds), Webhooks(broker) if chosen.webhooks else nullcontext():
            yield

    app = FastAPI(title="privmarket broker", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.broker = broker
    app.state.settings = chosen
    app.state.counters = Counters()
    app.state.streams = Places(chosen.limits.streams, chosen.limits.streams_per_account)
    app.state.log_growth = LogGrowth(lambda: app.state.broker)
    app.state.ended_sessions = EndedSessions()
    app.state.is_stopping = False
    app.state.bids = GroupCommit(lambda: app.state.broker)
    broker.database.newest_head()  # every answer carries a head, from the first one on
    key = broker.database.key
    app.state.session_secret = secrets.token_bytes(32) if key is None else key.secret("sessions")
    app.state.allowance = RateLimit(chosen.requests_per_second, chosen.burst)
    limits = chosen.limits
    app.state.account_places = Places(limits.requests, limits.requests_per_account)
    # Added directly: `include_router` would analyse every route again, a quarter of a second at the first request.
    app.router.routes += [*market.routes, *operators.routes, *audits.routes, *health.routes, *pages.routes]
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_exception_handler(PrivmarketError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)
    app.add_middleware(
        Gate,
        limits=chosen.limits,
        rate=RateLimit(chosen.address_factor * chosen.requests_per_second, chosen.address_factor * chosen.burst),
        counters=app.state.counters,
        head_line=lambda: _head_line(app.state.broker),
        access_log=chosen.access_log,
    )
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the bearer-token authentication that FastAPI does not add by itself."""
    document = FastAPI.openapi(app)
    bearer = {"type": "http", "scheme": "bearer", "description": "Your token."}
    document["components"]["securitySchemes"] = {"token": bearer}
    for path, verbs in document["paths"].items():
        if path.startswith("/v1") and not path.startswith(_FOR_ANYBODY):
            for operation in verbs.values():
                operation["security"] = [{"token": []}]
    return document


def _head_line(broker: Broker) -> str:
    """The newest signed head that this process knows; empty before the first, or without a key."""
    head = broker.database.head
    return head.header() if head is not None and head.signature else ""


def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, PrivmarketError)
    status = error.status if isinstance(error, BrokerError) else 400
    if is_page(request):
        return error_page(request, status, error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        allowance = notes_of(request.scope).allowance
        headers["Retry-After"] = str(max(1, allowance.wait_seconds if allowance else 1))
    return _json(request, status, error.code, error.message, error.hint, headers=headers)


def _json(
    request: Request,
    status: int,
    code: str,
    message: str,
    hint: str,
    *,
    field: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    request_id = notes_of(request.scope).request_id
    return JSONResponse(error_body(code, message, hint, field=field, request_id=request_id), status, headers)


def _answer(
    request: Request, status: int, code: str, message: str, hint: str, field: str | None = None
) -> Response:
    """The answer to an error: a page for a browser, JSON for everybody else."""
    if is_page(request) and "text/html" in request.headers.get("accept", ""):
        return error_page(request, status, PrivmarketError(message, hint))
    return _json(request, status, code, message, hint, field=field)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return _answer(
        request, 422, "bad-request", f"{field}: {first['msg']}", "see /docs for the expected form", field
    )


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not-found", 405: "method-not-allowed"}
    code = codes.get(error.status_code, "bad-request")
    response = _answer(request, error.status_code, code, str(error.detail), "see /docs for what exists")
    response.headers.update(error.headers or {})
    return response


def _unknown(request: Request, error: Exception) -> Response:
    return _answer(
        request, 500, "internal", "something broke here", "tell the operator what you sent, and the request id"
    )
