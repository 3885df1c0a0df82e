"""The route of bids, read off the wire by hand, with the same refusals and description as FastAPI would give.

It is the one route that everybody calls at once. Starlette's and FastAPI's steps between the socket and a function
cost about as much as a bid does in the database, so `BidRoute` stands before them and answers bids itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from privmarket.broker.answers import BidAnswer
from privmarket.broker.bidding import BidRequest
from privmarket.broker.broker import Broker
from privmarket.broker.forms import IDENTIFIER, BidForm
from privmarket.broker.group_commit import GroupCommit
from privmarket.broker.http_errors import TooManyRequestsError, UnauthenticatedError
from privmarket.broker.limits import RateLimit
from privmarket.broker.parties import actors_of, bearer_token, hash_token, unknown_token
from privmarket.errors import PrivmarketError
from privmarket.rounds import Offer

KEY_LENGTH = (8, 200)
_PATH = re.compile("/v1/rounds/([^/]+)/bids")
_ROUND = re.compile(IDENTIFIER)
_BIDDERS = 10_000  # whose tokens are remembered
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
DESCRIPTION: dict[str, Any] = {
    "parameters": [
        {
            "name": "round_id",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 40, "pattern": IDENTIFIER},
        },
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": True,
            "schema": {"type": "string", "minLength": KEY_LENGTH[0], "maxLength": KEY_LENGTH[1]},
        },
        {
            "name": "authorization",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "maxLength": 300},
        },
    ],
    "requestBody": {"required": True, "content": {"application/json": {"schema": BidForm.model_json_schema()}}},
}


class BidRoute:
    """ASGI middleware: answers `POST /v1/rounds/ID/bids`, passes everything else on. The body is here already."""

    def __init__(
        self,
        app: ASGIApp,
        broker: Callable[[], Broker],
        allowance: RateLimit,
        refuse: Callable[[Request, Exception], Response],
    ) -> None:
        """`allowance`: of each account; `refuse`: the answer to a bid that is not taken."""
        self.app, self._broker, self._allowance, self._refuse = app, broker, allowance, refuse
        self._bids = GroupCommit(broker)
        self._known: dict[str, str] = {}  # hash of a token → the party that it is of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes a bid once it is durable, or says why not."""
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        try:
            arrived_ms = self._broker().database.now_ms()
            bid = read(found[1], dict(scope["headers"]), (await receive())["body"], arrived_ms)
            if not self._allowance.allows(await self._bidder(bid.token_hash)):
                raise TooManyRequestsError("slow down", "wait a second and try again")
            told = _to_json(await self._taken(bid)).encode()
        except (PrivmarketError, RequestValidationError) as refusal:
            await self._refuse(Request(scope), refusal)(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(told))]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": told})

    async def _taken(self, bid: BidRequest) -> BidAnswer:
        try:
            return await self._bids.take(bid)
        except UnauthenticatedError:  # revoked since: from now on it does not use up its owner's allowance
            self._known.pop(bid.token_hash, None)
            raise

    async def _bidder(self, token_hash: str) -> str:
        """The party behind a token, from memory where it bid before: the bid's own transaction looks whether the
        token still holds. A token that nobody has is refused here, and limits nobody."""
        party_id = self._known.get(token_hash)
        if party_id is None:
            if len(self._known) >= _BIDDERS:
                self._known.clear()
            party_id = self._known[token_hash] = await run_in_threadpool(_party_of, self._broker(), token_hash)
        return party_id


def _party_of(broker: Broker, token_hash: str) -> str:
    with broker.database.read() as connection:
        found = actors_of(connection, [token_hash], broker.database.now_ms()).get(token_hash)
    if found is None:
        raise unknown_token()
    return found.party_id


def read(round_id: str, headers: Mapping[bytes, bytes], body: bytes, arrived_ms: int) -> BidRequest:
    """The bid that a request carries; its token is looked up later, in the transaction that takes the bid."""
    token = bearer_token(headers.get(b"authorization", b"").decode("latin-1"))
    key = headers.get(b"idempotency-key", b"").decode("latin-1")
    if not _ROUND.fullmatch(round_id) or len(round_id) > 40:
        raise _refused("path", "round_id", "must be lower-case letters, digits and hyphens, at most 40")
    if not KEY_LENGTH[0] <= len(key) <= KEY_LENGTH[1]:
        raise _refused("header", "Idempotency-Key", "Field required, 8 to 200 characters")
    try:
        form = BidForm.model_validate_json(body)
    except ValidationError as error:
        places = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors(include_url=False)]
        raise RequestValidationError(places) from None
    offer = None
    if form.commitment is None:
        if form.valuation is None or form.epsilon is None:
            raise _refused("body", "valuation", "a bid has valuation and epsilon, or a commitment")
        offer = Offer(form.valuation, form.epsilon, form.data_size, form.accuracy)
    elif form.valuation is not None or form.epsilon is not None:
        raise _refused("body", "commitment", "a commitment stands for the bid: send no numbers with it")
    return BidRequest(
        round_id,
        offer,
        key,
        token_hash=hash_token(token),
        nonce=form.nonce,
        commitment=form.commitment,
        signature=form.signature,
        arrived_ms=arrived_ms,
    )


def _refused(place: str, name: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": (place, name), "msg": message}])
