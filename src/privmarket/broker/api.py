"""The HTTP face of the broker: FastAPI, bearer tokens, one error shape, paginated lists, idempotent writes."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from privmarket.broker import answers, bid_route, metrics, rules, views
from privmarket.broker.answers import Page
from privmarket.broker.api_page import reference_page
from privmarket.broker.broker import Broker
from privmarket.broker.deadline_thread import Scheduler
from privmarket.broker.forms import (
    Amount,
    Attestation,
    Claim,
    ErrorShape,
    Identifier,
    KeyForm,
    Progress,
    Reason,
    Receipts,
    Registration,
    RevealForm,
    Ruling,
    Suspension,
    TaskForm,
    TokenForm,
)
from privmarket.broker.group_commit import GroupCommit
from privmarket.broker.http_errors import BrokerError, ForbiddenError, NotFoundError, TooManyRequestsError
from privmarket.broker.limits import Counters, Gate, Limits, RateLimit, error_body
from privmarket.broker.log import read_head
from privmarket.broker.pages import error_page, is_page, pages
from privmarket.broker.parties import ANONYMOUS, Actor, actors_of, bearer_token, require, unknown_token
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism_names
from privmarket.rounds import Offer
from privmarket.version import __version__

Answer = dict[str, Any]
_BIDDERS = 10_000
_STATIC = pathlib.Path(__file__).parent / "static"


@dataclass(frozen=True)
class ServiceSettings:
    """What an operator may set.

    Attributes:
        open_registration: whether anybody may register as buyer or seller, or operators only.
        requests_per_second: how many requests one account may make, on average; `burst` at once.
        address_factor: how many accounts' worth of requests one address may make.
        tick_seconds: how often deadlines are looked at; 0 never, for tests that do it themselves.
        secure_cookies: whether browsers send the dashboard's cookies over HTTPS only.
        access_log: one JSON line per request on standard error.
        currency: what the dashboard calls a unit of money.
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


async def _broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


Authorization = Annotated[str | None, Header(max_length=300)]


async def token_of(authorization: Authorization = None) -> str:
    """The bearer token as it was sent."""
    return bearer_token(authorization)


def actor_of(request: Request, token: Annotated[str, Depends(token_of)]) -> Actor:
    """The caller, by its bearer token, if it has not asked too often."""
    broker: Broker = request.app.state.broker
    actor = broker.authenticate(token)
    take_allowance(request, actor.party_id)
    return actor


async def _bidder(request: Request, token_hash: str) -> str:
    """The party behind a token, from memory where it bid before: the bid's own transaction looks whether the token
    still holds. A token that nobody has is refused here, and limits nobody."""
    known: dict[str, str] = request.app.state.bidders
    if token_hash not in known:
        if len(known) >= _BIDDERS:
            known.clear()
        known[token_hash] = await run_in_threadpool(_party_of, request.app.state.broker, token_hash)
    return known[token_hash]


def _party_of(broker: Broker, token_hash: str) -> str:
    with broker.database.read() as connection:
        found = actors_of(connection, [token_hash], broker.database.now_ms()).get(token_hash)
    if found is None:
        raise unknown_token()
    return found.party_id


def take_allowance(request: Request, party_id: str) -> None:
    """Counts a request against its caller's account."""
    if not request.app.state.allowance.allows(party_id):
        raise TooManyRequestsError("slow down", "wait a second and try again")


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
@v1.post(
    "/rounds/{round_id}/bids", status_code=201, response_model=answers.Bid, openapi_extra=bid_route.DESCRIPTION
)
async def place_bid(request: Request) -> Response:
    """A sealed bid (sellers); a later one replaces it until bidding ends."""
    bids: GroupCommit = request.app.state.bids
    arrived_ms = request.app.state.broker.database.now_ms()
    bid = bid_route.read(request, await request.body(), arrived_ms)
    take_allowance(request, await _bidder(request, bid.token_hash))
    return JSONResponse(await bids.take(bid), 201)


@v1.post("/register", status_code=201, response_model=answers.Registered, response_model_exclude_unset=True)
def register(
    request: Request, broker: TheBroker, caller: Annotated[Actor, Depends(_perhaps)], form: Registration, key: Key
) -> Answer:
    """Register as buyer or seller; the answer holds the first token, shown once."""
    if caller.role != "operator" and not request.app.state.settings.open_registration:
        raise ForbiddenError("registration is closed", "ask the operator for an account")
    fields = form.model_dump(exclude_none=True)
    return broker.register(fields, key, caller if caller.role == "operator" else ANONYMOUS)


@v1.get("/mechanisms", response_model=Page[str])
def list_mechanisms(caller: Caller) -> Answer:
    """The auction rules that a task may name; /v1/mechanisms/NAME says what each promises and takes."""
    return {"items": list(mechanism_names()), "next": None}


@v1.get("/mechanisms/{name}", response_model=answers.Rule)
def one_mechanism(caller: Caller, name: Annotated[str, Path(max_length=60)]) -> Answer:
    """One auction rule: what it promises, what to beware of, which settings it takes."""
    if name not in mechanism_names():
        raise NotFoundError(f"no rule {name!r}", "GET /v1/mechanisms lists them")
    return rules.describe(name)


@v1.get("/me", response_model=answers.Party, response_model_exclude_unset=True)
def me(broker: TheBroker, caller: Caller) -> Answer:
    """The caller's own account: balance, and a seller's wallet."""
    with broker.database.read() as connection:
        return views.me(connection, caller.party_id)


@v1.get("/me/statement", response_model=Page[answers.Movement], response_model_exclude_unset=True)
def statement(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """Every movement on one's account, newest first."""
    with broker.database.read() as connection:
        return views.statement(connection, caller.party_id, after, limit)


@v1.get("/me/tokens", response_model=Page[answers.TokenLine], response_model_exclude_unset=True)
def my_tokens(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """One's tokens by id; their text is not stored."""
    with broker.database.read() as connection:
        return views.own_tokens(connection, caller, after, limit)


@v1.post("/me/tokens", status_code=201, response_model=answers.Token, response_model_exclude_unset=True)
def mint_token(broker: TheBroker, caller: Caller, form: TokenForm, key: Key) -> Answer:
    """Another token, perhaps one that may only read, or only for a time."""
    return broker.mint_token(
        caller, form.scope, key, token_sha256=form.token_sha256, lifetime_seconds=form.lifetime_seconds
    )


@v1.put("/me/key", response_model=answers.Key, response_model_exclude_unset=True)
def change_key(broker: TheBroker, caller: Caller, form: KeyForm, key: Key) -> Answer:
    """Another key that one's bids must be signed with (sellers)."""
    return broker.change_key(caller, form.public_key, key)


@v1.put("/me/dataset", response_model=answers.Dataset)
def attest(broker: TheBroker, caller: Caller, form: Attestation, key: Key) -> Answer:
    """Say which data set one sells from (sellers): one account, and so one lifetime wallet, per data set."""
    return broker.attest(caller, form.dataset_sha256, form.signature, key)


@v1.delete("/tokens/{token_id}", response_model=answers.Revoked)
def revoke_token(broker: TheBroker, caller: Caller, token_id: Id, key: Key) -> Answer:
    """Ends a token at once: one's own, or anybody's for an operator."""
    return broker.revoke_token(caller, token_id, key)


@v1.get("/tasks", response_model=Page[answers.Task], response_model_exclude_unset=True)
def list_tasks(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """Tasks, newest first."""
    with broker.database.read() as connection:
        return views.task_list(connection, caller, after, limit)


@v1.post("/tasks", status_code=201, response_model=answers.Task, response_model_exclude_unset=True)
def publish_task(broker: TheBroker, caller: Caller, form: TaskForm, key: Key) -> Answer:
    """Publish a task (buyers)."""
    return broker.publish_task(caller, form.model_dump(), key)


@v1.get("/tasks/{task_id}", response_model=answers.Task, response_model_exclude_unset=True)
def one_task(broker: TheBroker, caller: Caller, task_id: Id) -> Answer:
    """One task."""
    with broker.database.read() as connection:
        return views.task(connection, caller, task_id)


@v1.get("/tasks/{task_id}/rounds", response_model=Page[answers.Round], response_model_exclude_unset=True)
def list_rounds(broker: TheBroker, caller: Caller, task_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """A task's rounds, newest first."""
    with broker.database.read() as connection:
        return views.round_list(connection, caller, task_id, after, limit)


@v1.post(
    "/tasks/{task_id}/rounds", status_code=201, response_model=answers.Round, response_model_exclude_unset=True
)
def open_round(broker: TheBroker, caller: Caller, task_id: Id, key: Key) -> Answer:
    """Put the budget in escrow and open the next round (its buyer)."""
    return broker.open_round(caller, task_id, key)


@v1.get("/rounds/{round_id}", response_model=answers.Round, response_model_exclude_unset=True)
def one_round(broker: TheBroker, caller: Caller, round_id: Id) -> Answer:
    """One round."""
    with broker.database.read() as connection:
        return views.one_round(connection, caller, round_id)


@v1.get("/rounds/{round_id}/bids", response_model=Page[answers.StandingBid], response_model_exclude_unset=True)
def list_bids(broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """One's own bids; all of them for operators, once the auction is over."""
    with broker.database.read() as connection:
        return views.bid_list(connection, caller, round_id, after, limit)


@v1.post(
    "/rounds/{round_id}/reveals", status_code=201, response_model=answers.Bid, response_model_exclude_unset=True
)
def reveal(broker: TheBroker, caller: Caller, round_id: Id, form: RevealForm, key: Key) -> Answer:
    """Open a bid that its bidder sealed, after bidding has ended (sellers)."""
    offer = Offer(form.valuation, form.epsilon, form.data_size, form.accuracy)
    return broker.reveal(caller, round_id, offer, form.nonce, key)


@v1.get("/rounds/{round_id}/outcome", response_model=answers.Outcome)
def outcome(broker: TheBroker, caller: Caller, round_id: Id) -> Answer:
    """What became of one's bid, and why (sellers)."""
    with broker.database.read() as connection:
        return views.outcome(connection, caller, round_id)


@v1.post("/rounds/{round_id}/close", response_model=answers.Step, response_model_exclude_unset=True)
def close_round(broker: TheBroker, caller: Caller, round_id: Id, key: Key) -> Answer:
    """End bidding where it may end, and run the auction (its buyer, operators)."""
    return broker.close_round(caller, round_id, key)


@v1.get("/rounds/{round_id}/awards", response_model=Page[answers.Award], response_model_exclude_unset=True)
def list_awards(broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """Who sells what: oneself for a seller, all winners for the buyer and operators."""
    with broker.database.read() as connection:
        return views.award_list(connection, caller, round_id, after, limit)


@v1.get("/rounds/{round_id}/cohort", response_model=Page[answers.CohortKey], response_model_exclude_unset=True)
def list_cohort(broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50) -> Answer:
    """The registered keys of the round's sellers: whom a secure sum may consist of (those sellers, its buyer)."""
    with broker.database.read() as connection:
        return views.cohort(connection, caller, round_id, after, limit)


@v1.post("/rounds/{round_id}/delivery", response_model=answers.Claim, response_model_exclude_unset=True)
def claim_delivery(broker: TheBroker, caller: Caller, round_id: Id, form: Claim, key: Key) -> Answer:
    """Say what one delivers, before it leaves (sellers with an award): without a claim there is no pay."""
    return broker.claim_delivery(caller, round_id, form.update_sha256, key, update_key=form.key)


@v1.post("/rounds/{round_id}/receipts", response_model=answers.Step, response_model_exclude_unset=True)
def give_receipts(broker: TheBroker, caller: Caller, round_id: Id, form: Receipts, key: Key) -> Answer:
    """Say which claimed updates are usable (its buyer); the others count as usable after the review."""
    return broker.give_receipts(caller, round_id, form.receipts, key)


@v1.post("/rounds/{round_id}/disputes", status_code=201, response_model=answers.Dispute)
def dispute(broker: TheBroker, caller: Caller, round_id: Id, form: Reason, key: Key) -> Answer:
    """Object to the rejection of one's update (sellers)."""
    return broker.dispute(caller, round_id, form.reason, key)


@v1.post("/rounds/{round_id}/disputes/{seller_id}/key", status_code=201, response_model=answers.UpdateKey)
def show_key(broker: TheBroker, caller: Caller, round_id: Id, seller_id: Id, key: Key) -> Answer:
    """The key of a disputed sealed update (the task's arbiter); the log shows that it was asked for."""
    return broker.show_key(caller, round_id, seller_id, key)


@v1.post("/rounds/{round_id}/rulings", status_code=201, response_model=answers.Ruled)
def rule(broker: TheBroker, caller: Caller, round_id: Id, form: Ruling, key: Key) -> Answer:
    """Decide a dispute (the task's arbiter; operators where it names none)."""
    return broker.rule(caller, round_id, form.seller_id, form.pays, form.reason, key)


@v1.post("/rounds/{round_id}/settle", response_model=answers.Step, response_model_exclude_unset=True)
def settle_round(broker: TheBroker, caller: Caller, round_id: Id, key: Key) -> Answer:
    """Pay what was delivered and refund the rest (its buyer, operators)."""
    return broker.settle_round(caller, round_id, key)


@v1.post("/rounds/{round_id}/progress", status_code=201, response_model=answers.Progress)
def report_progress(broker: TheBroker, caller: Caller, round_id: Id, form: Progress, key: Key) -> Answer:
    """Note how good the model is after the round (its buyer)."""
    return broker.report_progress(caller, round_id, form.accuracy, key)


@v1.post("/rounds/{round_id}/abort", response_model=answers.Step, response_model_exclude_unset=True)
def abort_round(broker: TheBroker, caller: Caller, round_id: Id, form: Reason, key: Key) -> Answer:
    """End a round with refunds while it takes bids (its buyer, operators)."""
    return broker.abort_round(caller, round_id, form.reason, key)


@v1.get("/parties", response_model=Page[answers.PartyLine], response_model_exclude_unset=True)
def list_parties(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Answer:
    """All parties (operators only)."""
    with broker.database.read() as connection:
        return views.party_list(connection, caller, after, limit)


@v1.get("/parties/{party_id}", response_model=answers.Party, response_model_exclude_unset=True)
def one_party(broker: TheBroker, caller: Caller, party_id: Id) -> Answer:
    """One party: operators, and oneself."""
    with broker.database.read() as connection:
        return views.party(connection, caller, party_id)


@v1.post("/parties/{party_id}/deposits", status_code=201, response_model=answers.Balance)
def deposit(broker: TheBroker, caller: Caller, party_id: Id, form: Amount, key: Key) -> Answer:
    """Book money that came in (operators)."""
    return broker.deposit(caller, party_id, form.amount_micro, key)


@v1.post("/parties/{party_id}/withdrawals", status_code=201, response_model=answers.Balance)
def withdraw(broker: TheBroker, caller: Caller, party_id: Id, form: Amount, key: Key) -> Answer:
    """Book money that went out (operators)."""
    return broker.withdraw(caller, party_id, form.amount_micro, key)


@v1.post(
    "/parties/{party_id}/tokens", status_code=201, response_model=answers.Token, response_model_exclude_unset=True
)
def recover(broker: TheBroker, caller: Caller, party_id: Id, form: TokenForm, key: Key) -> Answer:
    """A token for somebody who lost theirs (operators); the log shows it."""
    return broker.mint_token(
        caller,
        form.scope,
        key,
        token_sha256=form.token_sha256,
        lifetime_seconds=form.lifetime_seconds,
        party_id=party_id,
    )


@v1.put("/parties/{party_id}/suspension", response_model=answers.Named)
def suspend(broker: TheBroker, caller: Caller, party_id: Id, form: Suspension, key: Key) -> Answer:
    """Stop a party from writing, or let it write again (operators)."""
    return broker.suspend(caller, party_id, form.reason, key)


@v1.delete("/parties/{party_id}/name", response_model=answers.Named)
def erase(broker: TheBroker, caller: Caller, party_id: Id, key: Key) -> Answer:
    """Forget a party's name (operators); its pseudonym, money and wallet stay."""
    return broker.erase_name(caller, party_id, key)


@v1.get("/totals", response_model=answers.Totals)
def totals(broker: TheBroker, caller: Caller) -> Answer:
    """All the money there is, and where it stands (operators)."""
    with broker.database.read() as connection:
        return views.totals(connection, caller)


@v1.get("/audit", response_model=Page[answers.LogLine], response_model_exclude_unset=True)
def audit_log(
    broker: TheBroker,
    caller: Caller,
    kind: Annotated[str | None, Query(max_length=40, pattern=r"^[a-z.-]+$")] = None,
    about: Annotated[Identifier | None, Query()] = None,
    after: After = None,
    limit: Limit = 50,
) -> Answer:
    """The log, newest first (operators)."""
    with broker.database.read() as connection:
        return views.log_list(connection, caller, kind, about, after, limit)


Number = Annotated[int, Query(ge=1, le=10**15)]


@v1.get("/log/head", response_model=answers.LogHead)
def log_head(broker: TheBroker) -> Answer:
    """The newest head of the log, signed, and the key that signs it. For anybody: witnesses keep these."""
    with broker.database.read() as connection:
        head = read_head(connection)
    key = broker.database.key
    return {**asdict(head), "public_key": key.public if key else ""}


@v1.get("/log/consistency", response_model=answers.Consistency)
def log_consistency(broker: TheBroker, old: Number, new: Number | None = None) -> Answer:
    """Hashes that show that the log still begins with its first `old` entries. For anybody."""
    with broker.database.read() as connection:
        return views.consistency(connection, old, new)


@v1.get("/log/entries/{seq}/proof", response_model=answers.Inclusion)
def log_proof(
    broker: TheBroker, caller: Caller, seq: Annotated[int, Path(ge=1, le=10**15)], size: Number | None = None
) -> Answer:
    """An entry that concerns the caller, and the hashes that show that it is in the log."""
    with broker.database.read() as connection:
        return views.proof(connection, caller, seq, size)


health = APIRouter()


@health.get("/health", response_model=answers.Status)
def healthy(broker: TheBroker) -> Answer:
    """Whether the database answers."""
    with broker.database.read() as connection:
        connection.exec_driver_sql("SELECT 1")
    return {"status": "ok", "version": __version__}


@health.get("/readyz", response_model=answers.Status)
def ready(broker: TheBroker) -> Answer:
    """Whether a write would be taken now: the database answers and can be locked, and the clock is sane."""
    with broker.database.write("system", patient=True):
        pass
    return {"status": "ready", "version": __version__}


@health.get("/metrics", include_in_schema=False)
def show_metrics(request: Request, caller: Caller) -> Response:
    """Counters and gauges for Prometheus (operators; a token that may only read will do)."""
    require(caller, "operator")
    text = metrics.render(request.app.state.broker, request.app.state.counters)
    return Response(text, media_type="text/plain; version=0.0.4")


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
    app.state.broker, app.state.settings, app.state.counters = broker, chosen, Counters()
    broker.database.newest_head()  # every answer carries a head, from the first one on
    key = broker.database.key
    app.state.session_secret = secrets.token_bytes(32) if key is None else key.secret("sessions")
    app.state.allowance = RateLimit(chosen.requests_per_second, chosen.burst)
    app.state.bidders = {}
    app.state.bids = GroupCommit(lambda: app.state.broker)
    # As they are: `include_router` would analyse every route again, a quarter of a second at the first request.
    app.router.routes += [*v1.routes, *health.routes, *pages.routes]
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
    """The description, with how one says who one is."""
    document = FastAPI.openapi(app)
    bearer = {"type": "http", "scheme": "bearer", "description": "Your token."}
    document["components"]["securitySchemes"] = {"token": bearer}
    for path, verbs in document["paths"].items():
        if path.startswith("/v1") and not path.startswith(("/v1/register", "/v1/log/head", "/v1/log/consistency")):
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
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}.get(
        status
    )
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
