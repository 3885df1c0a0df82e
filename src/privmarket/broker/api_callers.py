"""Who calls the API: tokens, accounts and their allowances, and the parameters that every route shares."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from privmarket.broker import views
from privmarket.broker.broker import Broker
from privmarket.broker.forms import ErrorShape, Identifier
from privmarket.broker.http_errors import TooManyRequestsError
from privmarket.broker.parties import ANONYMOUS, Actor, bearer_token


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


def take_allowance(request: Request, party_id: str) -> None:
    """Counts a request against its caller's account."""
    if not request.app.state.allowance.allows(party_id):
        raise TooManyRequestsError("slow down", "wait a second and try again")


async def perhaps_actor(request: Request, authorization: Authorization = None) -> Actor:
    """The caller, where it sent a token; else `ANONYMOUS`."""
    if authorization is None:
        return ANONYMOUS
    return await run_in_threadpool(actor_of, request, await token_of(authorization))


TheBroker = Annotated[Broker, Depends(_broker)]
Caller = Annotated[Actor, Depends(actor_of)]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=8, max_length=200)]
Id = Annotated[Identifier, Path()]
After = Annotated[str | None, Query(max_length=80)]
Limit = Annotated[int, Query(ge=1, le=views.PAGE_LIMIT)]
ERRORS: dict[int | str, dict[str, type[ErrorShape]]] = {
    status: {"model": ErrorShape} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
