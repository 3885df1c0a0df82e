"""Statements that a party signs, and how a log entry gives back what was signed.

A party that registered a key and signs *everything* puts its signature under each of these: a task, the opening,
early closing or abort of a round, a claim, a receipt, a dispute, a ruling, a report of progress, a request for a
payout. The broker refuses such an entry without the signature, and a check of the log does too, so an operator
cannot invent one. A party that signs nothing, or only bids, chose so when it registered: its entries carry no
signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from privmarket.broker._http_errors import ForbiddenError, NotFoundError
from privmarket.broker._signatures import is_signed, statement_message
from privmarket.broker._stored_rows import PartyRow, find_party

SIGNS = ("nothing", "bids", "everything")
Fields = Mapping[str, Any]  # of an entry
Said = dict[str, Any]


def _task(subject: str, fields: Fields) -> tuple[str, Said]:
    return "new", fields.get("said") or {}


def _opened(subject: str, fields: Fields) -> tuple[str, Said]:
    return fields["task_id"], {"number": fields["number"]}


def _closed(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {}


def _aborted(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"reason": fields["fault"]}


def _claimed(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"update_sha256": fields["update_sha256"], "key_sha256": fields.get("key_sha256")}


def _judged(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"seller_id": fields["seller_id"], "fault": fields["fault"]}


def _disputed(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"reason": fields["dispute"]}


def _ruled(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"seller_id": fields["seller_id"], "pays": fields["ruling"], "reason": fields["reason"]}


def _progress(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"accuracy": fields["model_accuracy"]}


def _requested(subject: str, fields: Fields) -> tuple[str, Said]:
    return subject, {"amount_micro": fields["amount_micro"], "nonce": fields.get("nonce")}


# Kind of entry → what it is about and what was said, from its subject and fields.
STATEMENTS: dict[str, Callable[[str, Fields], tuple[str, Said]]] = {
    "task.published": _task,
    "round.opened": _opened,
    "round.closed": _closed,
    "round.aborted": _aborted,
    "delivery.claimed": _claimed,
    "delivery.judged": _judged,
    "dispute.opened": _disputed,
    "dispute.ruled": _ruled,
    "round.progress": _progress,
    "money.requested": _requested,
}


def is_stated(party: PartyRow, kind: str, subject: str, fields: Fields) -> bool:
    """Whether an entry carries the party's signature over what it says."""
    about, said = STATEMENTS[kind](subject, fields)
    message = statement_message(kind, party.id, about, said)
    return is_signed(party.public_key or "", message, fields.get("signature") or "")


def countersigned(
    connection: Connection, party_id: str, kind: str, subject: str, fields: Fields, signature: str | None
) -> Said:
    """The fields of an entry with its party's signature, where that party signs everything.

    Raises:
        ForbiddenError: the signature is missing, or not over these fields.
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
