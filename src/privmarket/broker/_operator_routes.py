"""The API's routes for operators and witnesses: parties, money, the log, health."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from privmarket import __version__
from privmarket.broker import (
    _answers as answers,
)
from privmarket.broker import (
    _bookings as bookings,
)
from privmarket.broker import (
    _log_views as log_views,
)
from privmarket.broker import (
    _metrics as metrics,
)
from privmarket.broker import (
    _views as views,
)
from privmarket.broker._answers import Page
from privmarket.broker._api_callers import ERRORS, After, Caller, Id, Key, Limit, TheBroker, operation_id
from privmarket.broker._api_page import reference_page
from privmarket.broker._forms import Booking, Identifier, ReasonForm, Suspension, TokenForm
from privmarket.broker._parties import require

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
        return bookings.booking_list(connection, caller, after, limit)


Entry = Annotated[int, Path(ge=1, le=10**15)]


@operators.post("/bookings/{entry}/undo", status_code=201)
def undo_booking(broker: TheBroker, caller: Caller, entry: Entry, form: ReasonForm, key: Key) -> answers.Balance:
    """Book the same amount the other way (operators); a booking is undone once."""
    return broker.undo_booking(caller, entry, form.reason, key)


@operators.get("/proposals")
def list_proposals(broker: TheBroker, caller: Caller) -> Page[answers.ProposalLine]:
    """Bookings that wait for a second operator (operators)."""
    with broker.database.read() as connection:
        return {"items": bookings.open_proposals(connection, caller), "next": None}


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
        return {"items": bookings.open_payouts(connection, whose), "next": None}


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
    """The log, newest first (operators)."""
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
