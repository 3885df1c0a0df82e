"""The dashboard: tasks, a round as it happens, money, privacy, the log. Each role sees what its API shows.

Pages are made on the server and escaped by Jinja; a small script fetches the live part again every second, so they
work without it too.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates

from privmarket.broker import sessions, views
from privmarket.broker.broker import Broker
from privmarket.broker.errors import BrokerError, UnauthenticatedError
from privmarket.broker.people import ANONYMOUS, Actor
from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer

pages = APIRouter(include_in_schema=False)
_templates = Jinja2Templates(Path(__file__).parent / "templates")
_templates.env.filters["money"] = lambda micro: _exact(micro)
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
    return _show(request, "tasks.html", actor=actor, me=me, tasks=found)


@pages.get("/tasks/{task_id}", response_class=HTMLResponse)
def one_task(request: Request, task_id: str) -> Response:
    """One task and its rounds."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        task = views.task(connection, actor, task_id)
        rounds = views.round_list(connection, actor, task_id, request.query_params.get("after"), _ROWS)
    return _show(request, "task.html", actor=actor, task=task, rounds=rounds)


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
    with broker.database.read() as connection:
        round_ = views.one_round(connection, actor, round_id)
        task = views.task(connection, actor, round_["task_id"])
        awards = views.award_list(connection, actor, round_id, request.query_params.get("after"), _ROWS)
        own = views.bid_list(connection, actor, round_id, None, _ROWS)["items"] if actor.role == "seller" else []
    current = next((bid for bid in own if bid["current"]), None)
    return _show(request, "round.html", actor=actor, round=round_, task=task, awards=awards, bid=current)


@pages.post("/rounds/{round_id}/bid")
def place_bid(request: Request, round_id: str, valuation: Field, epsilon: Field, mark: Field) -> Response:
    """A sealed bid."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    offer = Offer(_number("price", valuation), _number("ε", epsilon))
    broker.bid(actor, round_id, offer, str(uuid.uuid4()))
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
            awards = views.award_list(connection, actor, round_id, None, views.PAGE_LIMIT)["items"]
        claimed = {a["seller_id"]: None for a in awards if a["usable"] is None and a["claim_sha256"] is not None}
        if not claimed:
            raise BrokerError("no update has arrived yet", "wait for the sellers")
        broker.give_receipts(actor, round_id, claimed, key)
    else:
        raise BrokerError(f"a round cannot {step}", "choose close, accept or settle")
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.get("/money", response_class=HTMLResponse)
def money(request: Request) -> Response:
    """One's statement; all the money there is, for operators."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        me = views.me(connection, actor.party_id)
        lines = views.statement(connection, actor.party_id, request.query_params.get("after"), _ROWS)
        totals = views.totals(connection, actor) if actor.role == "operator" else None
    return _show(request, "money.html", actor=actor, me=me, lines=lines, totals=totals)


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
        for seller in sellers:
            seller["wallet"] = views.wallet(connection, seller["id"])
    return _show(request, "privacy.html", actor=actor, sellers=sellers, next=found["next"])


@pages.get("/audit", response_class=HTMLResponse)
def audit(request: Request) -> Response:
    """The log (operators)."""
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        entries = views.log(connection, actor, None, request.query_params.get("after"), _ROWS)
    return _show(request, "audit.html", actor=actor, entries=entries)


def _exact(micro: int) -> str:
    """Money to the last micro-unit, with at least two decimals."""
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'−' if micro < 0 else ''}{whole:,}.{decimals}"


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BrokerError(f"{name}: {text!r} is not a number", "write digits, e.g. 0.5") from None
