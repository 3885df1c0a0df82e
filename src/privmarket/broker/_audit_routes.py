"""The API's routes for checking: statements that parties sign, entries of the log, checkpoints, cosignatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from pydantic import ConfigDict, Field, JsonValue

from privmarket.broker import _answers as answers
from privmarket.broker import _log_views as log_views
from privmarket.broker._answers import Page
from privmarket.broker._api_callers import ERRORS, After, Caller, Id, Key, Limit, TheBroker, operation_id
from privmarket.broker._forms import Digest, Form, Identifier, Money, Nonce, Sentence
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._parties import Actor
from privmarket.broker._statements import STATEMENTS

audits = APIRouter(prefix="/v1", responses=ERRORS, generate_unique_id_function=operation_id)

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
SignatureText = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


class Stated(Form):
    """One thing that is said, and the signature over it."""

    said: dict[Annotated[str, Field(max_length=40)], Any] = Field(max_length=40)
    signature: SignatureText


class StatementForm(Form):
    """Signed statements of one kind about one thing: many receipts of a round, else one statement.

    `signature`: Ed25519 over the five lines "privmarket statement v1", kind, one's own id, `about`, and the
    SHA-256 of `said` as JSON with sorted keys and no spaces, each ended by a line feed. `about` is the round;
    "new" for a task; the task for the opening of a round; one's own id for a payout. `key` opens a sealed update
    whose claim is stated.
    """

    model_config = _example(
        kind="dispute.opened",
        about="round-0123456789abcdef",
        statements=[{"said": {"reason": "the shape is as asked"}, "signature": "5a" * 64}],
    )

    kind: Kind
    about: Identifier
    statements: list[Stated] = Field(min_length=1, max_length=10_000)
    key: Digest | None = None


class _Judged(Form):
    seller_id: Identifier
    fault: Sentence | None


class _Ruled(Form):
    seller_id: Identifier
    pays: bool
    reason: Sentence


class _Reason(Form):
    reason: Sentence


class _Claimed(Form):
    update_sha256: Digest
    key_sha256: Digest | None


class _Requested(Form):
    amount_micro: Money
    nonce: Nonce


class _Opened(Form):
    number: Annotated[int, Field(ge=0)]


class _Progress(Form):
    accuracy: Annotated[float, Field(ge=0, le=1)]


def _said(form: type[Form], said: Mapping[str, Any]) -> Any:
    """What is said, in the form of its kind; raises `BrokerError` where it has another."""
    try:
        return form.model_validate(said, strict=True)
    except ValueError as error:
        raise BrokerError(
            f"said: {type(error).__name__} in {form.__name__.lstrip('_')}", "see POST /v1/statements in /docs"
        ) from None


@audits.post("/statements", status_code=201)
def state(broker: TheBroker, caller: Caller, form: StatementForm, key: Key) -> answers.StatementAnswer:
    """Make signed statements: publish a task, open, close or abort a round, claim, judge, dispute, rule, ask for
    money.

    For parties that sign everything; the answer is that of the same step's own route.
    """
    assert form.kind in STATEMENTS
    if form.kind != "delivery.judged" and len(form.statements) != 1:
        raise BrokerError(f"{len(form.statements)} statements of {form.kind}", "send one; receipts may be many")
    answer = cast("dict[str, JsonValue]", _dispatch(broker, caller, form, key))
    return {"kind": form.kind, "about": form.about, "answer": answer}


def _dispatch(broker: Any, caller: Actor, form: StatementForm, key: str) -> Mapping[str, object]:
    said, signature, about = form.statements[0].said, form.statements[0].signature, form.about
    answer: Mapping[str, object]
    if form.kind == "task.published":
        terms = {name: value for name, value in said.items() if name != "nonce"}
        nonce = _said(_Nonce, {"nonce": said.get("nonce")}).nonce
        answer = broker.publish_task(caller, terms, key, nonce=nonce, signature=signature)
    elif form.kind == "round.opened":
        _said(_Opened, said)
        answer = broker.open_round(caller, about, key, signature=signature)
    elif form.kind == "round.closed":
        answer = broker.close_round(caller, about, key, signature=signature)
    elif form.kind == "round.aborted":
        answer = broker.abort_round(caller, about, _said(_Reason, said).reason, key, signature=signature)
    elif form.kind == "delivery.claimed":
        claim = _said(_Claimed, said)
        answer = broker.claim_delivery(
            caller, about, claim.update_sha256, key, update_key=form.key, signature=signature
        )
    elif form.kind == "delivery.judged":
        receipts = {one.seller_id: one.fault for one in (_said(_Judged, each.said) for each in form.statements)}
        signed = {each.said["seller_id"]: each.signature for each in form.statements}
        answer = broker.give_receipts(caller, about, receipts, key, signatures=signed)
    elif form.kind == "dispute.opened":
        answer = broker.dispute(caller, about, _said(_Reason, said).reason, key, signature=signature)
    elif form.kind == "dispute.ruled":
        ruled = _said(_Ruled, said)
        answer = broker.rule(caller, about, ruled.seller_id, ruled.pays, ruled.reason, key, signature=signature)
    elif form.kind == "round.progress":
        accuracy = _said(_Progress, said).accuracy
        answer = broker.report_progress(caller, about, accuracy, key, signature=signature)
    else:
        asked = _said(_Requested, said)
        answer = broker.request_payout(caller, asked.amount_micro, key, nonce=asked.nonce, signature=signature)
    return answer


class _Nonce(Form):
    nonce: Nonce


@audits.get("/me/entries")
def my_entries(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Page[answers.LogLine]:
    """All entries of the log that were made in one's name, newest first: one that is not yours is a forgery."""
    with broker.database.read() as connection:
        return log_views.own_entries(connection, caller, after, limit)


@audits.get("/rounds/{round_id}/entries")
def round_entries(
    broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50
) -> answers.RoundEntries:
    """The entries of a round that has ended, each with the proof that it is in the log.

    For its bidders, its buyer and arbiter, operators and auditors: from these its auction can be run again.
    """
    with broker.database.read() as connection:
        return log_views.round_entries(connection, caller, round_id, after, limit)


@audits.get("/log/checkpoint", response_class=PlainTextResponse)
def log_checkpoint(broker: TheBroker) -> str:
    """The newest head as a signed note in the checkpoint format of C2SP, with the witnesses' cosignatures."""
    with broker.database.read() as connection:
        return log_views.checkpoint(connection)


class CosignatureForm(Form):
    """A witness's signature over a head of the log, in the cosignature format of C2SP."""

    model_config = _example(
        witness="w.example",
        public_key="1f" * 32,
        size=1200,
        root="ab" * 32,
        at_ms=1_800_000_000_000,
        seconds=1_800_000_030,
        signature="5a" * 64,
    )

    witness: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[!-*,-~]+$")]
    public_key: Digest
    size: Annotated[int, Field(ge=1)]
    root: Digest
    at_ms: Annotated[int, Field(ge=0)]
    seconds: Annotated[int, Field(ge=0, le=2**40)]
    signature: SignatureText


@audits.post("/log/cosignatures", status_code=201)
def cosign(broker: TheBroker, caller: Caller, form: CosignatureForm, key: Key) -> answers.Witnessed:
    """Leave a cosignature for others to read (auditors)."""
    fields = form.model_dump()
    with broker.database.write(caller.party_id) as tx:
        return log_views.keep_cosignature(tx, caller, fields)
