"""The HTTP face of the broker: FastAPI, bearer tokens, one error shape, paginated lists, idempotent writes."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from privmarket import __version__, mechanisms
from privmarket.broker import bid_route, views
from privmarket.broker.broker import Broker
from privmarket.broker.desk import BidDesk
from privmarket.broker.errors import BrokerError, ForbiddenError
from privmarket.broker.forms import (
    Amount,
    Claim,
    ErrorShape,
    Identifier,
    Page,
    Reason,
    Receipts,
    Registration,
    TaskForm,
    TokenForm,
)
from privmarket.broker.limits import Gate, RateLimit, error_body
from privmarket.broker.pages import error_page, is_page, pages
from privmarket.broker.people import ANONYMOUS, Actor, bearer_token
from privmarket.broker.reference import reference_page
from privmarket.broker.scheduler import Scheduler
from privmarket.errors import PrivmarketError

Answer = dict[str, Any]
_STATIC = pathlib.Path(__file__).parent / "static"


@dataclass(frozen=True)
class ServiceSettings:
    """What an operator may turn.

    Attributes:
        open_registration: whether anybody may register as buyer or seller, or operators only.
        body_limit_bytes: the largest request.
        requests_per_second: how many requests one caller may make, on average; `burst` at once.
        tick_seconds: how often deadlines are looked at; 0 never, for tests that do it themselves.
    """

    open_registration: bool = True
    body_limit_bytes: int = 1_000_000
    requests_per_second: float = 100.0
    burst: float = 400.0
    tick_seconds: float = 1.0
    secure_cookies: bool = False


async def _broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


Authorization = Annotated[str | None, Header(max_length=300)]


async def token_of(authorization: Authorization = None) -> str:
    """The bearer token as it was sent."""
    return bearer_token(authorization)


def actor_of(request: Request, token: Annotated[str, Depends(token_of)]) -> Actor:
    """The caller, by its bearer token."""
    broker: Broker = request.app.state.broker
    return broker.authenticate(token)


async def _perhaps(request: Request, authorization: Authorization = None) -> Actor:
    if authorization is None:
        return ANONYMOUS
    return await run_in_threadpool(actor_of, request, await token_of(authorization))


TheBroker = Annotated[Broker, Depends(_broker)]
Caller = Annotated[Actor, Depends(actor_of)]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=8, max_length=200)]
Id = Annotated[Identifier, Path()]
After = Annotated[str | None, Query(max_length=80)]
Limit = Annotated[int, Query(ge=1, le=views.PAGE_LIMIT)]

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorShape} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
v1 = APIRouter(prefix="/v1", responses=_ERRORS)


# First, because routes are tried in order and this one is asked for most; and read by hand, because that halves
# what a bid costs outside the database.
@v1.post("/rounds/{round_id}/bids", status_code=201, response_model=Answer, openapi_extra=bid_route.DESCRIPTION)
async def place_bid(request: Request) -> Response:
    """A sealed bid (sellers); a later one replaces it until bidding ends."""
    desk: BidDesk = request.app.state.desk
    return JSONResponse(await desk.take(bid_route.read(request, await request.body())), 201)


@v1.post("/register", status_code=201)
def register(
    request: Request, broker: TheBroker, caller: Annotated[Actor, Depends(_perhaps)], form: Registration, key: Key
) -> Answer:
    """Register as buyer or seller; the answer holds the first token, shown once."""
    if caller.role != "operator" and not request.app.state.settings.open_registration:
        raise ForbiddenError("registration is closed", "ask the operator for an account")
    return broker.register(form.model_dump(), key, caller if caller.role == "operator" else ANONYMOUS)


@v1.get("/mechanisms")
def list_mechanisms(caller: Caller) -> Answer:
    """The auction rules that a task may name."""
    return {"items": list(mechanisms()), "next": None}


@v1.get("/me")
def me(broker: TheBroker, caller: Caller) -> Answer:
    """Oneself: balance, and a seller's wallet."""
    with broker.database.read() as connection:
        return views.me(connection, caller.party_id)


@v1.get("/me/statement", response_model=Page)
def statement(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """Every movement on one's account, newest first."""
    with broker.database.read() as connection:
        return views.statement(connection, caller.party_id, after, limit)


@v1.get("/me/tokens", response_model=Page)
def my_tokens(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """One's tokens by id; their text is not stored."""
    with broker.database.read() as connection:
        return views.own_tokens(connection, caller, after, limit)


@v1.post("/me/tokens", status_code=201)
def mint_token(broker: TheBroker, caller: Caller, form: TokenForm, key: Key) -> Answer:
    """Another token, perhaps one that may only read."""
    return broker.mint_token(caller, form.scope, key)


@v1.delete("/tokens/{token_id}")
def revoke_token(broker: TheBroker, caller: Caller, token_id: Id, key: Key) -> Answer:
    """Ends a token at once: one's own, or anybody's for an operator."""
    return broker.revoke_token(caller, token_id, key)


@v1.get("/tasks", response_model=Page)
def list_tasks(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """Tasks, newest first."""
    with broker.database.read() as connection:
        return views.task_list(connection, caller, after, limit)


@v1.post("/tasks", status_code=201)
def publish_task(broker: TheBroker, caller: Caller, form: TaskForm, key: Key) -> Answer:
    """Publish a task (buyers)."""
    return broker.publish_task(caller, form.model_dump(), key)


@v1.get("/tasks/{task_id}")
def one_task(broker: TheBroker, caller: Caller, task_id: Id) -> Answer:
    """One task."""
    with broker.database.read() as connection:
        return views.task(connection, caller, task_id)


@v1.get("/tasks/{task_id}/rounds", response_model=Page)
def list_rounds(broker: TheBroker, caller: Caller, task_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """A task's rounds, newest first."""
    with broker.database.read() as connection:
        return views.round_list(connection, caller, task_id, after, limit)


@v1.post("/tasks/{task_id}/rounds", status_code=201)
def open_round(broker: TheBroker, caller: Caller, task_id: Id, key: Key) -> Answer:
    """Put the budget in escrow and open the next round (its buyer)."""
    return broker.open_round(caller, task_id, key)


@v1.get("/rounds/{round_id}")
def one_round(broker: TheBroker, caller: Caller, round_id: Id) -> Answer:
    """One round."""
    with broker.database.read() as connection:
        return views.one_round(connection, caller, round_id)


@v1.get("/rounds/{round_id}/bids", response_model=Page)
def list_bids(broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """One's own bids; all of them for operators, once the auction is over."""
    with broker.database.read() as connection:
        return views.bid_list(connection, caller, round_id, after, limit)


@v1.post("/rounds/{round_id}/close")
def close_round(broker: TheBroker, caller: Caller, round_id: Id, key: Key) -> Answer:
    """End bidding and run the auction (its buyer, operators)."""
    return broker.close_round(caller, round_id, key)


@v1.get("/rounds/{round_id}/awards", response_model=Page)
def list_awards(broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """Who sells what: oneself for a seller, all winners for the buyer and operators."""
    with broker.database.read() as connection:
        return views.award_list(connection, caller, round_id, after, limit)


@v1.post("/rounds/{round_id}/delivery")
def claim_delivery(broker: TheBroker, caller: Caller, round_id: Id, form: Claim, key: Key) -> Answer:
    """Say that one's update is delivered (sellers with an award)."""
    return broker.claim_delivery(caller, round_id, form.update_sha256, key)


@v1.post("/rounds/{round_id}/receipts")
def give_receipts(broker: TheBroker, caller: Caller, round_id: Id, form: Receipts, key: Key) -> Answer:
    """Say which updates were usable (its buyer)."""
    return broker.give_receipts(caller, round_id, form.receipts, key)


@v1.post("/rounds/{round_id}/settle")
def settle_round(broker: TheBroker, caller: Caller, round_id: Id, key: Key) -> Answer:
    """Pay what was delivered and refund the rest (its buyer, operators)."""
    return broker.settle_round(caller, round_id, key)


@v1.post("/rounds/{round_id}/abort")
def abort_round(broker: TheBroker, caller: Caller, round_id: Id, form: Reason, key: Key) -> Answer:
    """End a round with refunds (its buyer before the auction, operators until it is settled)."""
    return broker.abort_round(caller, round_id, form.reason, key)


@v1.get("/parties", response_model=Page)
def list_parties(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """Everybody (operators)."""
    with broker.database.read() as connection:
        return views.party_list(connection, caller, after, limit)


@v1.get("/parties/{party_id}")
def one_party(broker: TheBroker, caller: Caller, party_id: Id) -> Answer:
    """One party: operators, and oneself."""
    with broker.database.read() as connection:
        return views.party(connection, caller, party_id)


@v1.post("/parties/{party_id}/deposits", status_code=201)
def deposit(broker: TheBroker, caller: Caller, party_id: Id, form: Amount, key: Key) -> Answer:
    """Book money that came in (operators)."""
    return broker.deposit(caller, party_id, form.amount_micro, key)


@v1.post("/parties/{party_id}/withdrawals", status_code=201)
def withdraw(broker: TheBroker, caller: Caller, party_id: Id, form: Amount, key: Key) -> Answer:
    """Book money that went out (operators)."""
    return broker.withdraw(caller, party_id, form.amount_micro, key)


@v1.get("/totals")
def totals(broker: TheBroker, caller: Caller) -> Answer:
    """All the money there is, and where it stands (operators)."""
    with broker.database.read() as connection:
        return views.totals(connection, caller)


@v1.get("/audit", response_model=Page)
def audit_log(
    broker: TheBroker,
    caller: Caller,
    kind: Annotated[str | None, Query(max_length=40, pattern=r"^[a-z.]+$")] = None,
    after: After = None,
    limit: Limit = 50,
) -> Answer:
    """The audit log, newest first (operators)."""
    with broker.database.read() as connection:
        return views.log(connection, caller, kind, after, limit)


health = APIRouter()


@health.get("/health")
def healthy(broker: TheBroker) -> Answer:
    """Whether the database answers."""
    with broker.database.read() as connection:
        connection.exec_driver_sql("SELECT 1")
    return {"status": "ok", "version": __version__}


@health.get("/docs", include_in_schema=False, response_class=HTMLResponse)
def docs(request: Request) -> str:
    """What the API offers, for people."""
    return reference_page(request.app.openapi())


def create_app(broker: Broker, settings: ServiceSettings | None = None) -> FastAPI:
    """The whole service over one broker."""
    chosen = settings or ServiceSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Scheduler(broker, chosen.tick_seconds):
            yield

    app = FastAPI(title="privmarket broker", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.broker, app.state.settings = broker, chosen
    app.state.desk = BidDesk(lambda: app.state.broker)
    app.include_router(v1)
    app.include_router(health)
    app.include_router(pages)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_exception_handler(PrivmarketError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)
    app.add_middleware(
        Gate,
        body_limit_bytes=chosen.body_limit_bytes,
        rate=RateLimit(chosen.requests_per_second, chosen.burst),
    )
    return app


def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, PrivmarketError)
    status = error.status if isinstance(error, BrokerError) else 400
    if is_page(request):
        return error_page(request, status, error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return JSONResponse(error_body(error.code, error.message, error.hint), status, headers)


def _answer(request: Request, status: int, code: str, message: str, hint: str) -> Response:
    """A person's browser gets a page, everybody else the one JSON shape."""
    if is_page(request) and "text/html" in request.headers.get("accept", ""):
        return error_page(request, status, PrivmarketError(message, hint))
    return JSONResponse(error_body(code, message, hint), status)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _answer(request, 422, "bad-request", f"{where}: {first['msg']}", "see /docs for the expected form")


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not-found", 405: "method-not-allowed"}
    code = codes.get(error.status_code, "bad-request")
    response = _answer(request, error.status_code, code, str(error.detail), "see /docs for what exists")
    response.headers.update(error.headers or {})
    return response


def _unknown(request: Request, error: Exception) -> Response:
    return _answer(request, 500, "internal", "something broke here", "tell the operator what you sent")


__all__ = ["ServiceSettings", "actor_of", "create_app"]
