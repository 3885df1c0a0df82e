"""Who calls the API: tokens, accounts and their allowances, and the parameters that every route shares."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from privmarket.broker import views
from privmarket.broker.broker import Broker
from privmarket.broker.forms import ErrorShape, Identifier
from privmarket.broker.http_errors import TooManyRequestsError
from privmarket.broker.parties import ANONYMOUS, Actor, actors_of, bearer_token, unknown_token

_BIDDERS = 10_000


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


async def bidder_of(request: Request, token_hash: str) -> str:
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
