"""Statements that a party signs, and how a log entry gives back what was signed.

A party that registered a key and signs *everything* puts its signature under each of these: a task, the opening,
early closing or abort of a round, a claim, a receipt, a dispute, a ruling, a report of progress, a request for a
payout. The broker refuses such an entry without the signature, and a check of the log does too, so an operator
cannot invent one. A party that signs nothing, or only bids, chose so when it registered: its entries carry no
signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field
from sqlalchemy import Connection

from privmarket.broker._errors import BrokerError, ForbiddenError, NotFoundError
from privmarket.broker._forms import Ruling
from privmarket.broker._schema import find_party
from privmarket.broker._shapes import Digest, Form, Identifier, Nonce, PartyRow, PayoutForm, Sentence
from privmarket.broker._signatures import is_signed, statement_message

SIGNS = ("nothing", "bids", "everything")
Fields = Mapping[str, Any]  # of a log entry, by name
Said = dict[str, Any]  # the fields that are signed, by name


class TaskSaid(BaseModel):
    """A task: the fields of a `TaskForm` that its buyer gave, and a nonce."""

    nonce: Nonce


class OpenedSaid(Form):
    """The opening of a task's next round, by its number from 0."""

    number: Annotated[int, Field(ge=0)]


class ClosedSaid(Form):
    """The end of bidding; it has no fields."""


class ReasonSaid(Form):
    """Why a round is aborted, or a rejection disputed."""

    reason: Sentence


class ClaimSaid(Form):
    """A delivery, by the digest of the update and, where it is sealed, of its key."""

    update_sha256: Digest
    key_sha256: Digest | None


class ReceiptSaid(Form):
    """A receipt: None for usable, else what was wrong."""

    seller_id: Identifier
    fault: Sentence | None


class ProgressSaid(Form):
    """How good the buyer's model is after a round."""

    accuracy: Annotated[float, Field(ge=0, le=1)]


class PayoutSaid(PayoutForm):
    """A request for a payout. Its nonce is used once, so that one signed request gives one payout only."""

    nonce: Nonce


class Statement(NamedTuple):
    """A kind of statement.

    Attributes:
        form: the fields that are signed.
        of_entry: from an entry's subject and fields, what the statement is about and the fields that were signed.
    """

    form: type[BaseModel]
    of_entry: Callable[[str, Fields], tuple[str, Said]]


def _fields(form: type[BaseModel], **stored_as: str) -> Statement:
    """A kind of statement about its entry's subject, whose fields are in the entry, some under another name.

    `stored_as` maps such a field to its name in the entry.
    """
    names = {name: stored_as.get(name, name) for name in form.model_fields}
    return Statement(form, lambda subject, fields: (subject, {said: fields.get(at) for said, at in names.items()}))


# Kind of entry → what the party signs.
STATEMENTS: dict[str, Statement] = {
    "task.published": Statement(TaskSaid, lambda subject, fields: ("new", fields.get("said") or {})),
    "round.opened": Statement(
        OpenedSaid, lambda subject, fields: (fields["task_id"], {"number": fields["number"]})
    ),
    "round.closed": _fields(ClosedSaid),
    "round.aborted": _fields(ReasonSaid, reason="fault"),
    "delivery.claimed": _fields(ClaimSaid),
    "delivery.judged": _fields(ReceiptSaid),
    "dispute.opened": _fields(ReasonSaid, reason="dispute"),
    "dispute.ruled": _fields(Ruling, pays="ruling"),
    "round.progress": _fields(ProgressSaid, accuracy="model_accuracy"),
    "money.requested": _fields(PayoutSaid),
}
Kind = Literal[
    "task.published",
    "round.opened",
    "round.closed",
    "round.aborted",
    "delivery.claimed",
    "delivery.judged",
    "dispute.opened",
    "dispute.ruled",
    "round.progress",
    "money.requested",
]
assert tuple(STATEMENTS) == get_args(Kind)


def read_said(kind: str, said: Fields) -> Any:
    """The fields of a statement, validated by the form of its kind; raises `BrokerError` where they do not fit."""
    form = STATEMENTS[kind].form
    try:
        return form.model_validate(dict(said), strict=True)
    except ValueError as error:
        raise BrokerError(
            f"said: {type(error).__name__} in {form.__name__}", "see POST /v1/statements in /docs"
        ) from None


def is_stated(party: PartyRow, kind: str, subject: str, fields: Fields) -> bool:
    """Whether an entry carries the party's signature over what it says."""
    about, said = STATEMENTS[kind].of_entry(subject, fields)
    message = statement_message(kind, party.id, about, said)
    return is_signed(party.public_key or "", message, fields.get("signature") or "")


def countersigned(
    connection: Connection, party_id: str, kind: str, subject: str, fields: Fields, signature: str | None
) -> Said:
    """The fields of an entry, with the party's signature added if that party signs everything.

    Raises:
        ForbiddenError: the party signs everything, and the signature is missing or not over these fields.
        NotFoundError: there is no such party.
    """
    party = find_party(connection, party_id)
    if party is None:
        raise NotFoundError(f"no party {party_id}", "GET /v1/parties lists them")
    if party.signs != "everything":
        return dict(fields)
    signed = {**fields, "signature": signature}
    if signature is None or not is_stated(party, kind, subject, signed):
        error = ForbiddenError(
            f"this account signs everything, and {kind} is not signed by its key",
            "send it with BrokerClient(key=…), or send it signed: POST /v1/statements",
        )
        error.code = "bad-signature"
        raise error
    return signed
