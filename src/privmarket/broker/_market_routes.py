"""The API's routes for buyers, sellers and arbiters: accounts, tasks, rounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from privmarket.broker import (
    _answers as answers,
)
from privmarket.broker import (
    _events as events,
)
from privmarket.broker import (
    _rules as rules,
)
from privmarket.broker import (
    _views as views,
)
from privmarket.broker import (
    _webhooks as webhooks,
)
from privmarket.broker._answers import Page
from privmarket.broker._api_callers import (
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
from privmarket.broker._bidding import BidRequest
from privmarket.broker._forms import (
    Attestation,
    BidForm,
    Claim,
    KeyForm,
    PayoutForm,
    Progress,
    ReasonForm,
    Receipts,
    Registration,
    RevealForm,
    Ruling,
    TaskForm,
    TokenForm,
    WebhookForm,
)
from privmarket.broker._group_commit import GroupCommit
from privmarket.broker._http_errors import ForbiddenError, NotFoundError
from privmarket.broker._parties import ANONYMOUS, Actor
from privmarket.mechanisms import mechanism_names
from privmarket.rounds import Offer

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
        webhooks.checked_address(form.url)
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
    offer = Offer(form.valuation, form.epsilon, form.data_size, form.accuracy)
    return broker.reveal(caller, round_id, offer, form.nonce, key)


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
    """Who sells what: oneself for a seller, all winners for the buyer and operators."""
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
