"""The dashboard: tasks, a round as it happens, money, privacy, the log. Each role sees what its API shows.

Pages are made on the server and escaped by Jinja; a small script fetches the live part again every second, so they
work without it too.
"""

from __future__ import annotations

import math
import re
import uuid
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from pydantic import ValidationError

from privmarket import mechanisms
from privmarket.broker import plots, sessions, views
from privmarket.broker.broker import Broker
from privmarket.broker.errors import BrokerError, UnauthenticatedError
from privmarket.broker.forms import TaskForm
from privmarket.broker.people import ANONYMOUS, MONEY_LIMIT_MICRO, Actor
from privmarket.broker.rounds import LIVE_STATES
from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer

pages = APIRouter(include_in_schema=False)
_templates = Jinja2Templates(Path(__file__).parent / "templates")
_templates.env.filters["money"] = views.exact
_templates.env.filters["moment"] = lambda ms: (
    datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "–"
)
_ROWS = 50
Field = Annotated[str, Form(max_length=300)]


def _show(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    # The live part alone, when the script asks for it.
    partial = request.query_params.get("part") == "live"
    context = {"mark": sessions.form_mark(request), "partial": partial, "path": request.url.path, **values}
    response = _templates.TemplateResponse(request, name, context, status_code=status)
    return response


def _actor_and_broker(request: Request) -> tuple[Actor, Broker]:
    return sessions.signed_in(request), request.app.state.broker


def is_page(request: Request) -> bool:
    """Whether an error here is shown to a person."""
    path = request.url.path
    return not path.startswith(("/v1", "/static", "/health", "/openapi"))


def error_page(request: Request, status: int, error: PrivmarketError) -> Response:
    """The error state of every page; somebody who is not signed in is sent to do so."""
    if isinstance(error, UnauthenticatedError) and request.query_params.get("part") != "live":
        response: Response = RedirectResponse("/sign-in", 303)
        sessions.end(response)
        return response
    return _show(request, "error.html", status, error=error, actor=None)


@pages.get("/sign-in", response_class=HTMLResponse)
def sign_in_form(request: Request) -> Response:
    """Where one signs in or registers."""
    if not request.cookies.get("privmarket_visitor") and not request.cookies.get("privmarket_session"):
        response: Response = RedirectResponse("/sign-in", 303)  # the form needs the secret that this sets
        sessions.greet(request, response)
        return response
    return _show(request, "sign-in.html", actor=None, is_open=request.app.state.settings.open_registration)


@pages.post("/sign-in")
def sign_in(request: Request, token: Field, mark: Field) -> Response:
    """Takes a token."""
    sessions.require_mark(request, mark)
    request.app.state.broker.authenticate(token.strip())
    response = RedirectResponse("/", 303)
    sessions.start(request, response, token.strip())
    return response


@pages.post("/sign-out")
def sign_out(request: Request, mark: Field) -> Response:
    """Forgets the token."""
    sessions.require_mark(request, mark)
    response = RedirectResponse("/sign-in", 303)
    sessions.end(response)
    return response


@pages.post("/register")
def register(
    request: Request, role: Field, name: Field, mark: Field, cap_epsilon: Field = "", delta: Field = "1e-5"
) -> Response:
    """A new buyer or seller; shows the token once."""
    sessions.require_mark(request, mark)
    if not request.app.state.settings.open_registration or role not in ("buyer", "seller"):
        raise BrokerError("registration is closed", "ask the operator for an account")
    wallet = {"cap_epsilon": _number("lifetime cap", cap_epsilon), "delta": _number("δ", delta)}
    form = {"role": role, "name": name, **(wallet if role == "seller" else {})}
    made = request.app.state.broker.register(form, str(uuid.uuid4()), ANONYMOUS)
    response = _show(request, "welcome.html", actor=None, made=made)
    sessions.start(request, response, made["token"])
    return response


@pages.get("/", response_class=HTMLResponse)
def home(request: Request) -> Response:
    """Tasks."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        found = views.task_list(connection, actor, request.query_params.get("after"), _ROWS)
        for item in found["items"]:
            item["round"] = next(iter(views.round_list(connection, actor, item["id"], None, 1)["items"]), None)
        me = views.me(connection, actor.party_id)
        totals = views.totals(connection, actor) if actor.role == "operator" else None
    plot = None if totals is None else plots.all_the_money(totals)
    rules = mechanisms() if actor.role == "buyer" else ()
    return _show(request, "tasks.html", actor=actor, me=me, tasks=found, totals=totals, plot=plot, rules=rules)


@pages.post("/tasks")
def publish_task(
    request: Request,
    title: Field,
    mechanism: Field,
    budget: Field,
    rounds: Field,
    epsilon_max: Field,
    bid_minutes: Field,
    delivery_minutes: Field,
    mark: Field,
) -> Response:
    """Publishes a task (buyers); everything else keeps the API's defaults."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    try:
        form = TaskForm(
            title=title.strip(),
            mechanism=mechanism,
            budget_micro=_money("budget", budget),
            rounds=int(_number("rounds", rounds)),
            epsilon_max=_number("largest offer", epsilon_max),
            bid_seconds=round(60 * _number("minutes for bids", bid_minutes)),
            delivery_seconds=round(60 * _number("minutes for updates", delivery_minutes)),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BrokerError(f"{first['loc'][0]}: {first['msg']}", "mend the form and send it again") from None
    made = broker.publish_task(actor, form.model_dump(), str(uuid.uuid4()))
    return RedirectResponse(f"/tasks/{made['id']}", 303)


@pages.get("/tasks/{task_id}", response_class=HTMLResponse)
def one_task(request: Request, task_id: str) -> Response:
    """One task and its rounds."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        task = views.task(connection, actor, task_id)
        rounds = views.round_list(connection, actor, task_id, request.query_params.get("after"), _ROWS)
        newest = views.round_list(connection, actor, task_id, None, 1)["items"]
        balance = views.me(connection, actor.party_id)["balance_micro"] if actor.role == "buyer" else 0
    held = _what_keeps_it_shut(task, newest, balance)
    plot = [plots.paid_per_round(actor, rounds["items"]), plots.price_per_round(actor, rounds["items"])]
    return _show(request, "task.html", actor=actor, task=task, rounds=rounds, plots=plot, held=held)


def _what_keeps_it_shut(task: dict[str, Any], newest: list[dict[str, Any]], balance_micro: int) -> str | None:
    """Why the buyer cannot open the next round now; None where it can."""
    if newest and newest[0]["state"] in LIVE_STATES:
        return f"Round {newest[0]['number'] + 1} is under way; it ends before the next one opens."
    if newest and newest[0]["number"] + 1 >= task["rounds"]:
        return "This task has had all its rounds."
    if balance_micro < task["budget_micro"]:
        short = views.exact(task["budget_micro"] - balance_micro)
        return f"The next round needs {short} more on your account. An operator books deposits."
    return None


@pages.post("/tasks/{task_id}/open")
def open_round(request: Request, task_id: str, mark: Field) -> Response:
    """Opens the next round."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    opened = broker.open_round(actor, task_id, str(uuid.uuid4()))
    return RedirectResponse(f"/rounds/{opened['id']}", 303)


@pages.get("/rounds/{round_id}", response_class=HTMLResponse)
def one_round(request: Request, round_id: str) -> Response:
    """A round as it happens."""
    actor, broker = _actor_and_broker(request)
    now = broker.database.now_ms()
    with broker.database.read() as connection:
        round_ = views.one_round(connection, actor, round_id)
        task = views.task(connection, actor, round_["task_id"])
        awards = views.award_list(connection, actor, round_id, request.query_params.get("after"), _ROWS)
        own = views.bid_list(connection, actor, round_id, None, _ROWS)["items"] if actor.role == "seller" else []
        claims = views.unanswered_claims(connection, actor, round_id) if actor.role == "buyer" else 0
        drawn = plots.of_round(connection, actor, round_, now)
        if actor.role == "operator":
            views.add_names(connection, awards["items"])
    values: dict[str, Any] = {"round": round_, "task": task, "awards": awards, "plots": drawn}
    current = next((bid for bid in own if bid["current"]), None)
    can = _what_applies(actor, round_, awards["items"], claims, now)
    return _show(request, "round.html", actor=actor, bid=current, claims=claims, can=can, **values)


def _what_applies(
    actor: Actor, round_: dict[str, Any], awards: list[dict[str, Any]], claims: int, now_ms: int
) -> set[str]:
    """The steps that this role can take now; the page shows no other."""
    state, role, can = round_["state"], actor.role, set()
    taking = state == "open" and now_ms < round_["bid_deadline_ms"]
    if role == "seller":
        sold = [award for award in awards if award["claim_sha256"] is None and award["usable"] is None]
        can |= {"bid"} if taking else set()
        can |= {"deliver"} if sold and state == "cleared" and now_ms < round_["delivery_deadline_ms"] else set()
        return can
    can |= {"close"} if state == "open" else set()
    can |= {"accept"} if claims and state == "cleared" else set()
    overdue = state == "cleared" and now_ms >= round_["delivery_deadline_ms"]
    can |= {"settle"} if state == "delivered" or overdue else set()
    can |= {"abort"} if state == "open" or (role == "operator" and state in LIVE_STATES) else set()
    return can


@pages.post("/rounds/{round_id}/bid")
def place_bid(request: Request, round_id: str, valuation: Field, epsilon: Field, mark: Field) -> Response:
    """A sealed bid."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    offer = Offer(_number("price", valuation), _number("ε", epsilon))
    broker.bid(actor, round_id, offer, str(uuid.uuid4()))
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/deliver")
def deliver(request: Request, round_id: str, update_sha256: Field, mark: Field) -> Response:
    """A seller's word that its update is on the way."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    digest = update_sha256.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise BrokerError("that is not a SHA-256 digest", "paste the 64 hexadecimal digits of your update's digest")
    broker.claim_delivery(actor, round_id, digest, str(uuid.uuid4()))
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/abort")
def abort(request: Request, round_id: str, reason: Field, mark: Field) -> Response:
    """Ends a round with refunds."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    if not 0 < len(reason.strip()) <= 200 or not reason.isprintable():
        raise BrokerError("an abort without a reason", "say why, in at most 200 characters")
    broker.abort_round(actor, round_id, reason.strip(), str(uuid.uuid4()))
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/{step}")
def move_round(request: Request, round_id: str, step: str, mark: Field) -> Response:
    """Closes a round, confirms every update that was claimed, or settles."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    key = str(uuid.uuid4())
    if step == "close":
        broker.close_round(actor, round_id, key)
    elif step == "settle":
        broker.settle_round(actor, round_id, key)
    elif step == "accept":
        with broker.database.read() as connection:
            claimed = views.claimed_sellers(connection, actor, round_id)
        if not claimed:
            raise BrokerError("no update has arrived yet", "wait for the sellers")
        broker.give_receipts(actor, round_id, dict.fromkeys(claimed), key)
    else:
        raise BrokerError(f"a round cannot {step}", "choose close, accept or settle")
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.get("/people", response_class=HTMLResponse)
def people(request: Request) -> Response:
    """Everybody, with what they hold (operators)."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        found = views.party_list(connection, actor, request.query_params.get("after"), _ROWS)
        views.add_balances(connection, found["items"])
    return _show(request, "people.html", actor=actor, people=found)


@pages.post("/people/{party_id}/money")
def move_money(request: Request, party_id: str, direction: Field, amount: Field, mark: Field) -> Response:
    """Books money that came in or went out (operators)."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    book = {"deposit": broker.deposit, "withdraw": broker.withdraw}.get(direction)
    if book is None:
        raise BrokerError(f"money cannot {direction}", "choose deposit or withdraw")
    book(actor, party_id, _money("amount", amount), str(uuid.uuid4()))
    return RedirectResponse("/people", 303)


@pages.get("/money", response_class=HTMLResponse)
def money(request: Request) -> Response:
    """One's statement; all the money there is, for operators."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        me = views.me(connection, actor.party_id)
        lines = views.statement(connection, actor.party_id, request.query_params.get("after"), _ROWS)
        totals = views.totals(connection, actor) if actor.role == "operator" else None
    drawn = [None if totals is None else plots.all_the_money(totals)]
    if request.query_params.get("after") is None:  # the line ends at today's balance
        drawn.append(plots.balance_over_time(me["balance_micro"], lines["items"]))
    return _show(request, "money.html", actor=actor, me=me, lines=lines, totals=totals, plots=drawn)


@pages.get("/privacy", response_class=HTMLResponse)
def privacy(request: Request) -> Response:
    """Wallets: one's own, or everybody's for operators."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        if actor.role == "operator":
            found = views.party_list(connection, actor, request.query_params.get("after"), _ROWS)
            sellers = [item for item in found["items"] if item["role"] == "seller"]
        else:
            found = {"next": None}
            sellers = [views.me(connection, actor.party_id)] if actor.role == "seller" else []
        kept = views.wallets_of(connection, [seller["id"] for seller in sellers]) if sellers else {}
        for seller in sellers:
            seller["wallet"] = kept[seller["id"]]
        own = plots.own_spending(connection, sellers[0]) if actor.role == "seller" else None
    drawn = [own if actor.role == "seller" else plots.wallets_left(sellers)]
    return _show(request, "privacy.html", actor=actor, sellers=sellers, next=found["next"], plots=drawn)


@pages.get("/audit", response_class=HTMLResponse)
def audit(request: Request) -> Response:
    """The log (operators)."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        entries = views.log(connection, actor, None, request.query_params.get("after"), _ROWS)
    return _show(request, "audit.html", actor=actor, entries=entries)


def _money(name: str, text: str) -> int:
    """Micro-units of an amount typed in units, exactly."""
    try:
        micro = Decimal(text.strip()) * 1_000_000
    except InvalidOperation:
        raise BrokerError(f"{name}: {text!r} is not an amount", "write digits, e.g. 12.50") from None
    if not micro.is_finite() or micro != micro.to_integral_value() or not 0 < micro <= MONEY_LIMIT_MICRO:
        raise BrokerError(f"{name}: {text!r} cannot be booked", "give more than 0, at most six decimals") from None
    return int(micro)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BrokerError(f"{name}: {text!r} is not a number", "write digits, e.g. 0.5")
    return value
