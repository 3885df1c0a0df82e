"""The routes of the API: for parties, for operators, and for whoever checks the log."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import Field, JsonValue
from starlette.concurrency import run_in_threadpool

from privmarket import __version__
from privmarket.broker import (
    _answers as answers,
    _events as events,
    _log_views as log_views,
    _metrics as metrics,
    _rules as rules,
    _views as views,
)
from privmarket.broker._answers import Page
from privmarket.broker._api_page import reference_page
from privmarket.broker._bidding import BidRequest
from privmarket.broker._callers import (
    ERRORS,
    After,
    Arrived,
    Caller,
    Id,
    Key,
    Limit,
    TheBroker,
    event_stream,
    operation_id,
    perhaps_actor,
    take_stream,
)
from privmarket.broker._errors import ForbiddenError, NotFoundError
from privmarket.broker._forms import (
    Attestation,
    Booking,
    KeyForm,
    Progress,
    ReasonForm,
    Receipts,
    Ruling,
    Suspension,
    WebhookForm,
)
from privmarket.broker._group_commit import GroupCommit
from privmarket.broker._parties import ANONYMOUS, Actor, require
from privmarket.broker._shapes import (
    BidForm,
    Claim,
    Digest,
    Form,
    Identifier,
    PayoutForm,
    Registration,
    RevealForm,
    SignatureText,
    TaskForm,
    TokenForm,
    example,
)
from privmarket.broker._statements import Kind
from privmarket.mechanisms import mechanism_names

market = APIRouter(prefix="/v1", responses=ERRORS, generate_unique_id_function=operation_id)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@market.post("/rounds/{round_id}/bids", status_code=201)
async def place_bid(
    request: Request, arrived: Arrived, caller: Caller, round_id: Id, form: BidForm, key: Key
) -> answers.BidAnswer:
    """A sealed bid (sellers); a later one replaces it until bidding ends.

    Bids that arrive together share a transaction, and each is answered once it is durable.
    """
    bids: GroupCommit = request.app.state.bids
    bid = BidRequest(
        round_id,
        form.offer(),
        key,
        caller,
        nonce=form.nonce,
        commitment=form.commitment,
        signature=form.signature,
        arrived_ms=arrived,
    )
    return await bids.take(bid)


@market.post("/register", status_code=201)
def register(
    request: Request,
    broker: TheBroker,
    caller: Annotated[Actor, Depends(perhaps_actor)],
    form: Registration,
    key: Key,
) -> answers.Registered:
    """Register as buyer or seller; the answer holds the first token, shown once."""
    if caller.role != "operator" and not request.app.state.settings.open_registration:
        raise ForbiddenError("registration is closed", "ask the operator for an account")
    fields = form.model_dump(exclude_none=True)
    return broker.register(fields, key, caller if caller.role == "operator" else ANONYMOUS)


@market.get("/mechanisms")
def list_mechanisms(caller: Caller) -> Page[str]:
    """The auction rules that a task may name; /v1/mechanisms/NAME says what each promises and takes."""
    return {"items": list(mechanism_names()), "next": None}


@market.get("/mechanisms/{name}")
def one_mechanism(caller: Caller, name: Annotated[str, Path(max_length=60)]) -> answers.RuleAnswer:
    """One auction rule: what it promises, what to beware of, which settings it takes."""
    if name not in mechanism_names():
        raise NotFoundError(f"no rule {name!r}", "GET /v1/mechanisms lists them")
    return rules.describe(name)


@market.get("/me")
def me(broker: TheBroker, caller: Caller) -> answers.Party:
    """The caller's own account: balance, and a seller's wallet."""
    with broker.database.read() as connection:
        return views.me(connection, caller.party_id)


@market.get("/me/statement")
def statement(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Page[answers.Movement]:
    """Every movement on one's account, newest first."""
    with broker.database.read() as connection:
        return views.statement(connection, caller.party_id, after, limit)


@market.post("/me/payouts", status_code=201)
def request_payout(broker: TheBroker, caller: Caller, form: PayoutForm, key: Key) -> answers.PayoutAnswer:
    """Ask for money of one's account; an operator pays it out."""
    return broker.request_payout(caller, form.amount_micro, key)


@market.put("/me/webhook")
def set_webhook(
    request: Request, broker: TheBroker, caller: Caller, form: WebhookForm, key: Key
) -> answers.WebhookAnswer:
    """Have one's events posted to an address; null ends it.

    The body is {"events", "next"} as `GET /v1/events` gives them. `Privmarket-Signature` is the Ed25519 signature,
    by the key that `/v1/log/head` names, over the four lines "privmarket webhook v1", `Privmarket-Timestamp`, one's
    id, and the SHA-256 of the body, each ended by a line feed.
    """
    if not request.app.state.settings.webhooks:
        raise ForbiddenError("this broker posts no webhooks", "follow GET /v1/events, or ask the operator")
    if form.url is not None:
        events.checked_address(form.url)
    return broker.set_webhook(caller, form.url, key)


@market.get("/me/awards")
def my_awards(
    broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50
) -> Page[answers.AwardAnswer]:
    """All that one sold (sellers), newest first: a seller compares it with its own wallet before it sells."""
    with broker.database.read() as connection:
        return views.own_awards(connection, caller, after, limit)


@market.get("/me/tokens")
def my_tokens(broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50) -> Page[answers.TokenLine]:
    """One's tokens by id; their text is not stored."""
    with broker.database.read() as connection:
        return views.own_tokens(connection, caller, after, limit)


@market.post("/me/tokens", status_code=201)
def mint_token(broker: TheBroker, caller: Caller, form: TokenForm, key: Key) -> answers.TokenAnswer:
    """Another token, perhaps one that may only read, or only for a time."""
    return broker.mint_token(
        caller, form.scope, key, token_sha256=form.token_sha256, lifetime_seconds=form.lifetime_seconds
    )


@market.put("/me/key")
def change_key(broker: TheBroker, caller: Caller, form: KeyForm, key: Key) -> answers.KeyAnswer:
    """Another key, and what must be signed with it."""
    return broker.change_key(caller, form.public_key, key, signature=form.signature, signs=form.signs)


@market.put("/me/dataset")
def attest(broker: TheBroker, caller: Caller, form: Attestation, key: Key) -> answers.DatasetAnswer:
    """Say which data set one sells from (sellers): one account, and so one lifetime wallet, per data set."""
    return broker.attest(caller, form.dataset_sha256, form.signature, key)


@market.delete("/tokens/{token_id}")
def revoke_token(broker: TheBroker, caller: Caller, token_id: Id, key: Key) -> answers.Revoked:
    """Ends a token at once: one's own, or anybody's for an operator."""
    return broker.revoke_token(caller, token_id, key)


@market.get("/tasks")
def list_tasks(
    broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50
) -> Page[answers.TaskAnswer]:
    """Tasks, newest first."""
    with broker.database.read() as connection:
        return views.task_list(connection, caller, after, limit)


@market.post("/tasks", status_code=201)
def publish_task(broker: TheBroker, caller: Caller, form: TaskForm, key: Key) -> answers.TaskAnswer:
    """Publish a task (buyers)."""
    return broker.publish_task(caller, form.model_dump(), key)


@market.get("/tasks/{task_id}")
def one_task(broker: TheBroker, caller: Caller, task_id: Id) -> answers.TaskAnswer:
    """One task."""
    with broker.database.read() as connection:
        return views.task(connection, caller, task_id)


@market.get("/tasks/{task_id}/rounds")
def list_rounds(
    broker: TheBroker, caller: Caller, task_id: Id, after: After = None, limit: Limit = 50
) -> Page[answers.RoundAnswer]:
    """A task's rounds, newest first."""
    with broker.database.read() as connection:
        return views.round_list(connection, caller, task_id, after, limit)


@market.post("/tasks/{task_id}/rounds", status_code=201)
def open_round(broker: TheBroker, caller: Caller, task_id: Id, key: Key) -> answers.RoundAnswer:
    """Put the budget in escrow and open the next round (its buyer)."""
    return broker.open_round(caller, task_id, key)


RoundState = Literal["open", "revealing", "closed", "cleared", "delivered", "settled", "aborted"]


@market.get("/rounds")
def list_all_rounds(
    broker: TheBroker,
    caller: Caller,
    state: Annotated[RoundState | None, Query()] = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[answers.RoundAnswer]:
    """The rounds of all tasks that one may see, newest first; `state=open` for those that take bids."""
    with broker.database.read() as connection:
        return views.rounds_in_state(connection, caller, state, after, limit)


@market.get("/events")
def list_events(
    broker: TheBroker,
    caller: Caller,
    after: Annotated[int, Query(ge=0, le=10**15)] = 0,
    limit: Limit = 50,
) -> answers.Events:
    """What happened that concerns one, oldest first; send `next` of the answer as `after` of the following call."""
    with broker.database.read() as connection:
        return events.events_after(connection, caller, after, limit)


@market.get("/events/stream", response_class=StreamingResponse, responses=_STREAM)
async def stream_events(
    request: Request,
    broker: TheBroker,
    caller: Caller,
    after: Annotated[int | None, Query(ge=0, le=10**15)] = None,
    last_event_id: Annotated[str | None, Header(max_length=20, pattern=r"^\d*$")] = None,
) -> StreamingResponse:
    """The same as server-sent events, as they happen; from now on, from `after`, or from `Last-Event-ID`."""
    take_stream(request, caller.party_id)
    begin = int(last_event_id) if last_event_id else after
    if begin is None:
        begin = await run_in_threadpool(events.log_size, broker)

    def find(since: int) -> tuple[str, int]:
        with broker.database.read() as connection:
            found = events.events_after(connection, caller, since, views.PAGE_LIMIT)
        return events.as_text(found), found["next"]

    async def told(since: int) -> tuple[str, int]:
        return await run_in_threadpool(find, since)

    return event_stream(request, told, begin)


@market.get("/rounds/{round_id}")
def one_round(broker: TheBroker, caller: Caller, round_id: Id) -> answers.RoundAnswer:
    """One round."""
    with broker.database.read() as connection:
        return views.one_round(connection, caller, round_id)


@market.get("/rounds/{round_id}/bids")
def list_bids(
    broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50
) -> Page[answers.StandingBid]:
    """One's own bids; all of them for operators, once the auction is over."""
    with broker.database.read() as connection:
        return views.bid_list(connection, caller, round_id, after, limit)


@market.post("/rounds/{round_id}/reveals", status_code=201)
def reveal(broker: TheBroker, caller: Caller, round_id: Id, form: RevealForm, key: Key) -> answers.BidAnswer:
    """Open a bid that its bidder sealed, after bidding has ended (sellers)."""
    return broker.reveal(caller, round_id, form.offer(), form.nonce, key)


@market.get("/rounds/{round_id}/outcome")
def outcome(broker: TheBroker, caller: Caller, round_id: Id) -> answers.OutcomeAnswer:
    """What became of one's bid, and why (sellers)."""
    with broker.database.read() as connection:
        return views.outcome(connection, caller, round_id)


@market.post("/rounds/{round_id}/close")
def close_round(broker: TheBroker, caller: Caller, round_id: Id, key: Key) -> answers.StepAnswer:
    """End bidding where it may end, and run the auction (its buyer, operators).

    A very large round is answered as `closed`; its auction is computed meanwhile, and its state then is `cleared`.
    """
    return broker.close_round(caller, round_id, key)


@market.get("/rounds/{round_id}/awards")
def list_awards(
    broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50
) -> Page[answers.AwardAnswer]:
    """Who sells what: oneself for a seller; all winners for the buyer, the arbiter, auditors and operators."""
    with broker.database.read() as connection:
        return views.award_list(connection, caller, round_id, after, limit)


@market.get("/rounds/{round_id}/cohort")
def list_cohort(
    broker: TheBroker, caller: Caller, round_id: Id, after: After = None, limit: Limit = 50
) -> Page[answers.CohortKey]:
    """The registered keys of the round's sellers: whom a secure sum may consist of (those sellers, its buyer)."""
    with broker.database.read() as connection:
        return views.cohort(connection, caller, round_id, after, limit)


@market.post("/rounds/{round_id}/delivery")
def claim_delivery(broker: TheBroker, caller: Caller, round_id: Id, form: Claim, key: Key) -> answers.ClaimAnswer:
    """Say what one delivers, before it leaves (sellers with an award): without a claim there is no pay."""
    return broker.claim_delivery(caller, round_id, form.update_sha256, key, update_key=form.key)


@market.post("/rounds/{round_id}/receipts")
def give_receipts(broker: TheBroker, caller: Caller, round_id: Id, form: Receipts, key: Key) -> answers.StepAnswer:
    """Say which claimed updates are usable (its buyer); the others count as usable after the review."""
    return broker.give_receipts(caller, round_id, form.receipts, key)


@market.post("/rounds/{round_id}/disputes", status_code=201)
def dispute(broker: TheBroker, caller: Caller, round_id: Id, form: ReasonForm, key: Key) -> answers.Dispute:
    """Object to the rejection of one's update (sellers)."""
    return broker.dispute(caller, round_id, form.reason, key)


@market.post("/rounds/{round_id}/disputes/{seller_id}/key", status_code=201)
def show_key(broker: TheBroker, caller: Caller, round_id: Id, seller_id: Id, key: Key) -> answers.UpdateKey:
    """The key of a disputed sealed update (the task's arbiter); the log shows that it was asked for."""
    return broker.show_key(caller, round_id, seller_id, key)


@market.post("/rounds/{round_id}/rulings", status_code=201)
def rule(broker: TheBroker, caller: Caller, round_id: Id, form: Ruling, key: Key) -> answers.Ruled:
    """Decide a dispute (the task's arbiter; operators where it names none)."""
    return broker.rule(caller, round_id, form.seller_id, form.pays, form.reason, key)


@market.post("/rounds/{round_id}/settle")
def settle_round(broker: TheBroker, caller: Caller, round_id: Id, key: Key) -> answers.StepAnswer:
    """Pay what was delivered and refund the rest (its buyer, operators)."""
    return broker.settle_round(caller, round_id, key)


@market.post("/rounds/{round_id}/progress", status_code=201)
def report_progress(
    broker: TheBroker, caller: Caller, round_id: Id, form: Progress, key: Key
) -> answers.ProgressAnswer:
    """Note how good the model is after the round (its buyer)."""
    return broker.report_progress(caller, round_id, form.accuracy, key)


@market.post("/rounds/{round_id}/abort")
def abort_round(broker: TheBroker, caller: Caller, round_id: Id, form: ReasonForm, key: Key) -> answers.StepAnswer:
    """End a round with refunds while it takes bids (its buyer, operators)."""
    return broker.abort_round(caller, round_id, form.reason, key)


# ---- operators and witnesses ----------------------------------------------------------------------------------


operators = APIRouter(prefix="/v1", responses=ERRORS, generate_unique_id_function=operation_id)


@operators.get("/parties")
def list_parties(
    broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50
) -> Page[answers.PartyLine]:
    """All parties (operators only)."""
    with broker.database.read() as connection:
        return views.party_list(connection, caller, after, limit)


@operators.get("/parties/{party_id}")
def one_party(broker: TheBroker, caller: Caller, party_id: Id) -> answers.Party:
    """One party: operators, and oneself."""
    with broker.database.read() as connection:
        return views.party(connection, caller, party_id)


@operators.post("/parties/{party_id}/deposits", status_code=201)
def deposit(broker: TheBroker, caller: Caller, party_id: Id, form: Booking, key: Key) -> answers.Balance:
    """Book money that came in (operators)."""
    return broker.deposit(caller, party_id, form.amount_micro, key, form.reference)


@operators.post("/parties/{party_id}/withdrawals", status_code=201)
def withdraw(broker: TheBroker, caller: Caller, party_id: Id, form: Booking, key: Key) -> answers.Balance:
    """Book money that went out (operators); it answers the party's oldest request for a payout of that amount."""
    return broker.withdraw(caller, party_id, form.amount_micro, key, form.reference)


@operators.get("/bookings")
def list_bookings(
    broker: TheBroker, caller: Caller, after: After = None, limit: Limit = 50
) -> Page[answers.BookingLine]:
    """What was booked, newest first, and what was undone (operators)."""
    with broker.database.read() as connection:
        return views.booking_list(connection, caller, after, limit)


Entry = Annotated[int, Path(ge=1, le=10**15)]


@operators.post("/bookings/{entry}/undo", status_code=201)
def undo_booking(broker: TheBroker, caller: Caller, entry: Entry, form: ReasonForm, key: Key) -> answers.Balance:
    """Book the same amount the other way (operators); a booking is undone once."""
    return broker.undo_booking(caller, entry, form.reason, key)


@operators.get("/proposals")
def list_proposals(broker: TheBroker, caller: Caller) -> Page[answers.ProposalLine]:
    """Bookings that wait for a second operator (operators)."""
    with broker.database.read() as connection:
        return {"items": views.open_proposals(connection, caller), "next": None}


@operators.post("/proposals/{entry}/approve", status_code=201)
def approve_booking(broker: TheBroker, caller: Caller, entry: Entry, key: Key) -> answers.Balance:
    """Book what another operator proposed (operators)."""
    return broker.approve_booking(caller, entry, key)


@operators.post("/proposals/{entry}/decline", status_code=201)
def decline_booking(broker: TheBroker, caller: Caller, entry: Entry, form: ReasonForm, key: Key) -> answers.Balance:
    """Take a proposal off the list (operators)."""
    return broker.decline_booking(caller, entry, form.reason, key)


@operators.get("/payouts")
def list_payouts(broker: TheBroker, caller: Caller) -> Page[answers.PayoutLine]:
    """Payouts that were asked for and not made yet: all for operators, one's own for others."""
    whose = None if caller.role == "operator" else caller.party_id
    with broker.database.read() as connection:
        return {"items": views.open_payouts(connection, whose), "next": None}


@operators.post("/parties/{party_id}/tokens", status_code=201)
def recover(broker: TheBroker, caller: Caller, party_id: Id, form: TokenForm, key: Key) -> answers.TokenAnswer:
    """A token for somebody who lost theirs (operators); the log shows it."""
    return broker.mint_token(
        caller,
        form.scope,
        key,
        token_sha256=form.token_sha256,
        lifetime_seconds=form.lifetime_seconds,
        party_id=party_id,
    )


@operators.put("/parties/{party_id}/suspension")
def suspend(broker: TheBroker, caller: Caller, party_id: Id, form: Suspension, key: Key) -> answers.Suspended:
    """Stop a party from writing, or let it write again (operators)."""
    return broker.suspend(caller, party_id, form.reason, key)


@operators.delete("/parties/{party_id}/name")
def erase(broker: TheBroker, caller: Caller, party_id: Id, key: Key) -> answers.Erased:
    """Forget a party's name (operators); its pseudonym, money and wallet stay."""
    return broker.erase_name(caller, party_id, key)


@operators.get("/totals")
def totals(broker: TheBroker, caller: Caller) -> answers.Totals:
    """All the money there is, and where it stands (operators)."""
    with broker.database.read() as connection:
        return views.totals(connection, caller)


@operators.get("/audit")
def audit_log(
    broker: TheBroker,
    caller: Caller,
    kind: Annotated[str | None, Query(max_length=40, pattern=r"^[a-z.-]+$")] = None,
    about: Annotated[Identifier | None, Query()] = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[answers.LogLine]:
    """The log, newest first (operators and auditors)."""
    with broker.database.read() as connection:
        return log_views.log_list(connection, caller, kind, about, after, limit)


Number = Annotated[int, Query(ge=1, le=10**15)]


@operators.get("/log/head")
def log_head(broker: TheBroker) -> answers.LogHead:
    """The newest head of the log, signed, and the key that signs it. For anybody: witnesses keep these."""
    with broker.database.read() as connection:
        return log_views.newest(connection, broker.database.key, broker.database.now_ms())


@operators.get("/log/consistency")
def log_consistency(broker: TheBroker, old: Number, new: Number | None = None) -> answers.Consistency:
    """Hashes that show that the log still begins with its first `old` entries. For anybody."""
    with broker.database.read() as connection:
        return log_views.consistency(connection, old, new)


@operators.get("/log/entries/{seq}/proof")
def log_proof(
    broker: TheBroker, caller: Caller, seq: Annotated[int, Path(ge=1, le=10**15)], size: Number | None = None
) -> answers.Inclusion:
    """An entry that concerns the caller, and the hashes that show that it is in the log."""
    with broker.database.read() as connection:
        return log_views.proof(connection, caller, seq, size)


health = APIRouter(generate_unique_id_function=operation_id)


@health.get("/health")
def healthy(broker: TheBroker) -> answers.Status:
    """Whether the database answers."""
    with broker.database.read() as connection:
        connection.exec_driver_sql("SELECT 1")
    return {"status": "ok", "version": __version__}


@health.get("/readyz")
def ready(broker: TheBroker) -> answers.Status:
    """Whether a write would be taken now: the database answers and can be locked, and the clock is sane."""
    with broker.database.write("system", patient=True):
        pass
    return {"status": "ready", "version": __version__}


@health.get("/metrics", include_in_schema=False)
def show_metrics(request: Request, caller: Caller) -> Response:
    """Counters and gauges for Prometheus (operators; a token that may only read will do)."""
    require(caller, "operator")
    text = metrics.render(request.app.state.broker, request.app.state.counters)
    return Response(text, media_type=metrics.CONTENT_TYPE)


@health.get("/docs", include_in_schema=False, response_class=HTMLResponse)
def docs(request: Request) -> str:
    """What the API offers, for people."""
    return reference_page(request.app.openapi())


# ---- signed statements, and checking the log ------------------------------------------------------------------


audits = APIRouter(prefix="/v1", responses=ERRORS, generate_unique_id_function=operation_id)


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

    model_config = example(
        kind="dispute.opened",
        about="round-0123456789abcdef",
        statements=[{"said": {"reason": "the shape is as asked"}, "signature": "5a" * 64}],
    )

    kind: Kind
    about: Identifier
    statements: list[Stated] = Field(min_length=1, max_length=10_000)
    key: Digest | None = None


@audits.post("/statements", status_code=201)
def state(broker: TheBroker, caller: Caller, form: StatementForm, key: Key) -> answers.StatementAnswer:
    """Make signed statements: publish a task, open, close or abort a round, claim, judge, dispute, rule, ask for
    money.

    For parties that sign everything; the answer is that of the same step's own route.
    """
    statements = [(one.said, one.signature) for one in form.statements]
    answer = broker.state(caller, form.kind, form.about, statements, key, update_key=form.key)
    return {"kind": form.kind, "about": form.about, "answer": cast("dict[str, JsonValue]", answer)}


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

    model_config = example(
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
