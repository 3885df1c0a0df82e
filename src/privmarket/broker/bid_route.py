"""Reading a bid off a request by hand, with the same refusals and description as FastAPI would give.

FastAPI resolves parameters one by one in Python; for the one route that everybody calls at once that cost more than
the bid itself.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from privmarket.broker.bidding import BidRequest
from privmarket.broker.forms import IDENTIFIER, BidForm
from privmarket.broker.parties import bearer_token, hash_token
from privmarket.rounds import Offer

KEY_LENGTH = (8, 200)
_ROUND = re.compile(IDENTIFIER)
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


def read(request: Request, body: bytes, arrived_ms: int) -> BidRequest:
    """The bid that a request carries; its token is looked up later, in the transaction that takes the bid."""
    token = bearer_token(request.headers.get("authorization"))
    round_id, key = request.path_params["round_id"], request.headers.get("idempotency-key")
    if not _ROUND.fullmatch(round_id) or len(round_id) > 40:
        raise _refused("path", "round_id", "must be lower-case letters, digits and hyphens, at most 40")
    if key is None or not KEY_LENGTH[0] <= len(key) <= KEY_LENGTH[1]:
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
