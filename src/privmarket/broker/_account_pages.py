"""The dashboard's pages about accounts: signing in, tokens, people, money, privacy, the log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from privmarket._settings import DELTA
from privmarket.broker import (
    _answers as answers,
)
from privmarket.broker import (
    _bookings as bookings,
)
from privmarket.broker import (
    _events as events,
)
from privmarket.broker import (
    _log_views as log_views,
)
from privmarket.broker import (
    _plots as plots,
)
from privmarket.broker import (
    _sessions as sessions,
)
from privmarket.broker import (
    _views as views,
)
from privmarket.broker import (
    _wallets as wallets,
)
from privmarket.broker._api_callers import LogGrowth, event_stream, take_stream
from privmarket.broker._charts import Chart
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._page_frame import (
    ROWS,
    Field,
    Key,
    actor_and_broker,
    money_typed,
    number_typed,
    reason_typed,
    show,
)
from privmarket.broker._parties import ANONYMOUS, require
from privmarket.broker._projection import KINDS

pages = APIRouter(include_in_schema=False)
PARTY = re.compile(r"(?:operator|buyer|seller|arbiter)-[0-9a-f]{16}")


@pages.get("/sign-in", response_class=HTMLResponse)
def sign_in_form(request: Request) -> Response:
    """Where one signs in or registers."""
    if not sessions.has_cookie(request):
        response: Response = RedirectResponse("/sign-in", 303)  # the form needs the secret that this sets
        sessions.greet(request, response)
        return response
    return show(request, "sign-in.html", actor=None, is_open=request.app.state.settings.open_registration)


@pages.post("/sign-in")
def sign_in(request: Request, token: Field, mark: Field) -> Response:
    """Signs in with a token."""
    sessions.require_mark(request, mark)
    actor = request.app.state.broker.authenticate(token.strip())
    response = RedirectResponse("/", 303)
    sessions.start(request, response, actor.token_id)
    return response


@pages.post("/sign-out")
def sign_out(request: Request, mark: Field) -> Response:
    """Signs out: the session ends on the server, and its cookie is removed."""
    sessions.require_mark(request, mark)
    response = RedirectResponse("/sign-in", 303)
    sessions.end(request, response)
    return response


@pages.post("/register")
def register(
    request: Request,
    role: Field,
    name: Field,
    mark: Field,
    key: Key,
    cap_epsilon: Field = "",
    delta: Field = str(DELTA),
) -> Response:
    """A new buyer or seller; shows the token once."""
    sessions.require_mark(request, mark)
    if not request.app.state.settings.open_registration or role not in ("buyer", "seller"):
        raise BrokerError("registration is closed", "ask the operator for an account")
    wallet = {"cap_epsilon": number_typed("lifetime cap", cap_epsilon), "delta": number_typed("δ", delta)}
    form = {"role": role, "name": name, **(wallet if role == "seller" else {})}
    made = request.app.state.broker.register(form, key, ANONYMOUS)
    response = show(request, "welcome.html", actor=None, made=made)
    sessions.start(request, response, made["token_id"])
    return response


@pages.get("/news")
async def news(request: Request) -> Response:
    """Says whenever the log has grown, as server-sent events, so that pages fetch what they show again."""
    actor, broker = await run_in_threadpool(actor_and_broker, request)
    take_stream(request, actor.party_id)

    async def told(since: int) -> tuple[str, int]:
        growth: LogGrowth = request.app.state.log_growth
        size = await growth.size()
        return f"id: {size}\ndata: {size}\n\n", size

    return event_stream(request, told, await run_in_threadpool(events.log_size, broker))


@pages.get("/people", response_class=HTMLResponse)
def people(request: Request) -> Response:
    """Everybody, with what they hold (operators)."""
    actor, broker = actor_and_broker(request)
    with broker.database.read() as connection:
        found = views.party_list(connection, actor, request.query_params.get("after"), ROWS)
        held = views.balances(connection, [one["id"] for one in found["items"]])
    return show(request, "people.html", actor=actor, people=found, balances=held)


@pages.post("/bookings/confirm", response_class=HTMLResponse)
def confirm_booking(
    request: Request, party_id: Field, direction: Field, amount: Field, mark: Field, reference: Field = ""
) -> Response:
    """Shows what would be booked, for whom and how much, before it is booked (operators)."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    require(actor, "operator")
    amount_micro = money_typed("amount", amount)
    with broker.database.read() as connection:
        party = views.party(connection, actor, party_id)
    shown = {"party": party, "direction": _direction(direction), "amount_micro": amount_micro, "live": False}
    return show(request, "booking.html", actor=actor, reference=reason_typed(reference), amount=amount, **shown)


@pages.post("/bookings")
def book(
    request: Request,
    party_id: Field,
    direction: Field,
    amount: Field,
    reference: Field,
    mark: Field,
    key: Key,
) -> Response:
    """Books money that came in or went out (operators)."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    command = broker.deposit if _direction(direction) == "deposit" else broker.withdraw
    command(actor, party_id, money_typed("amount", amount), key, reason_typed(reference))
    return RedirectResponse("/money", 303)


def _direction(text: str) -> str:
    if text not in ("deposit", "withdraw"):
        raise BrokerError(f"money cannot {text}", "choose deposit or withdraw")
    return text


@pages.post("/bookings/{entry}/undo")
def undo_booking(request: Request, entry: int, reason: Field, mark: Field, key: Key) -> Response:
    """Books the same amount the other way (operators)."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.undo_booking(actor, entry, reason_typed(reason), key)
    return RedirectResponse("/money", 303)


@pages.post("/proposals/{entry}/{verdict}")
def answer_proposal(
    request: Request, entry: int, verdict: str, mark: Field, key: Key, reason: Field = ""
) -> Response:
    """Approves or declines a booking that another operator proposed (operators)."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    if verdict == "approve":
        broker.approve_booking(actor, entry, key)
    else:
        broker.decline_booking(actor, entry, reason.strip() or "declined", key)
    return RedirectResponse("/money", 303)


@pages.post("/payouts")
def request_payout(request: Request, amount: Field, mark: Field, key: Key) -> Response:
    """Asks for money of one's account."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.request_payout(actor, money_typed("amount", amount), key)
    return RedirectResponse("/money", 303)


@pages.get("/money", response_class=HTMLResponse)
def money(request: Request) -> Response:
    """One's statement; all the money there is and what was booked, for operators."""
    actor, broker = actor_and_broker(request)
    after = request.query_params.get("after")
    shown: dict[str, object] = {"totals": None, "bookings": None, "proposals": [], "lines": None}
    drawn: list[Chart | None] = []
    with broker.database.read() as connection:
        me = views.me(connection, actor.party_id)
        if actor.role == "operator":
            totals = views.totals(connection, actor)
            shown["totals"] = totals
            shown["bookings"] = bookings.booking_list(connection, actor, after, ROWS)
            shown["proposals"] = bookings.open_proposals(connection, actor)
            shown["payouts"] = bookings.open_payouts(connection)
            drawn.append(plots.all_the_money(totals))
        else:
            lines = views.statement(connection, actor.party_id, after, ROWS)
            shown["lines"] = lines
            shown["payouts"] = bookings.open_payouts(connection, actor.party_id)
            if actor.role == "seller":
                drawn.append(plots.earnings_over_time(connection, actor.party_id))
            if after is None:  # the line ends at today's balance
                drawn.append(plots.balance_over_time(me["balance_micro"], lines["items"]))
    return show(request, "money.html", actor=actor, me=me, plots=drawn, **shown)


@pages.get("/privacy", response_class=HTMLResponse)
def privacy(request: Request) -> Response:
    """Wallets: one's own, or everybody's for operators."""
    actor, broker = actor_and_broker(request)
    sellers: Sequence[answers.PartyLine | answers.Party] = []
    further, own, sales_left = None, None, None
    with broker.database.read() as connection:
        if actor.role == "operator":
            found = views.party_list(connection, actor, request.query_params.get("after"), ROWS)
            sellers, further = [one for one in found["items"] if one["role"] == "seller"], found["next"]
        elif actor.role == "seller":
            sellers = [views.me(connection, actor.party_id)]
            own = plots.own_spending(connection, actor.party_id)
            record = wallets.of_sellers(connection, [actor.party_id])[actor.party_id]
            sales_left = wallets.sales_like_last(record)
        held = views.wallets_of(connection, [one["id"] for one in sellers]) if sellers else {}
    named = {one["name"] or one["id"]: held[one["id"]] for one in sellers}
    drawn = [own if actor.role == "seller" else plots.wallets_left(named)]
    shown = {"sellers": sellers, "wallets": held, "next": further, "plots": drawn, "sales_left": sales_left}
    return show(request, "privacy.html", actor=actor, **shown)


@pages.get("/audit", response_class=HTMLResponse)
def audit(request: Request) -> Response:
    """The log, searched by kind and by whom or what it is about (operators)."""
    actor, broker = actor_and_broker(request)
    asked = {name: request.query_params.get(name, "").strip() for name in ("kind", "about")}
    if any(len(text) > 80 or not text.isprintable() for text in asked.values()):
        raise BrokerError("that cannot be searched for", "give a name or an id, and one of the kinds in the list")
    with broker.database.read() as connection:
        kind, about, after = asked["kind"] or None, asked["about"] or None, request.query_params.get("after")
        about = about and (views.party_named(connection, about) or about)
        entries = log_views.log_list(connection, actor, kind, about, after, ROWS)
        known = {name for item in entries["items"] for name in (item["actor"], item["subject"])}
        known |= {who for item in entries["items"] for who in PARTY.findall(item["details"])}
        names = views.names_of(connection, sorted(known))
    return show(request, "audit.html", actor=actor, entries=entries, asked=asked, kinds=KINDS, names=names)


@pages.get("/tokens", response_class=HTMLResponse)
def tokens(request: Request) -> Response:
    """One's tokens."""
    return _tokens(request)


def _tokens(request: Request, made: answers.TokenAnswer | None = None) -> Response:
    actor, broker = actor_and_broker(request)
    with broker.database.read() as connection:
        found = views.own_tokens(connection, actor, request.query_params.get("after"), ROWS)
    return show(request, "tokens.html", actor=actor, tokens=found, made=made, current=actor.token_id)


@pages.post("/tokens")
def mint(request: Request, scope: Field, days: Field, mark: Field, key: Key) -> Response:
    """Another token; shows it once."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    seconds = round(86_400 * number_typed("days", days)) if days.strip() else None
    return _tokens(request, broker.mint_token(actor, scope, key, lifetime_seconds=seconds))


@pages.post("/tokens/{token_id}/revoke")
def revoke(request: Request, token_id: str, mark: Field, key: Key) -> Response:
    """Ends one of one's tokens."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.revoke_token(actor, token_id, key)
    return RedirectResponse("/tokens", 303)
