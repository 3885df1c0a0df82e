"""The dashboard: tasks, a round as it happens, money, privacy, the log. Each role sees what its API shows.

Pages are made on the server and escaped by Jinja; a small script fetches the live part again every second, so they
work without it too.
"""

from __future__ import annotations

import html
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

from privmarket.broker import bid_preview, noise_tables, plots, rules, sessions, views, wallets
from privmarket.broker.broker import Broker
from privmarket.broker.forms import TaskForm
from privmarket.broker.http_errors import BrokerError, UnauthenticatedError
from privmarket.broker.lifecycle import TAKING_BIDS
from privmarket.broker.parties import ANONYMOUS, MONEY_LIMIT_MICRO, Actor
from privmarket.broker.projection import KINDS
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism_names
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.rounds import Offer

pages = APIRouter(include_in_schema=False)
_templates = Jinja2Templates(Path(__file__).parent / "templates")
_templates.env.filters["money"] = lambda micro: shown_money(micro)
_templates.env.filters["until"] = lambda ms, now: until(ms - now)
_templates.env.filters["moment"] = lambda ms: (
    datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "–"
)
_ROWS = 50
Field = Annotated[str, Form(max_length=300)]
# Drawn with the form: the same form posted twice acts once.
Key = Annotated[str, Form(min_length=8, max_length=200)]


class _Html(str):
    """Text that is HTML already: Jinja leaves it as it is."""

    def __html__(self) -> str:
        return str(self)


def shown_money(micro: int) -> str:
    """Two decimals; the exact amount, where it has more, when one points at it."""
    exact, short = views.exact(micro), views.rounded(micro)
    return short if exact == short else _Html(f'<span title="{exact}">{short}</span>')


def until(ms: int) -> str:
    """How far away a moment is, in words: "in 42 min", "3 h ago"."""
    seconds = abs(ms) / 1000
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or size == 1:
            text = f"{seconds / size:.0f} {unit}"
            break
    return f"in {text}" if ms >= 0 else f"{text} ago"


def _show(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    # The live part alone, when the script asks for it.
    partial = request.query_params.get("part") == "live"
    context = {"mark": sessions.form_mark(request), "partial": partial, "path": request.url.path, **values}
    context |= {"key": str(uuid.uuid4()), "currency": request.app.state.settings.currency}
    context["now"] = request.app.state.broker.database.now_ms()
    response = _templates.TemplateResponse(request, name, context, status_code=status)
    return response


def _actor_and_broker(request: Request) -> tuple[Actor, Broker]:
    return sessions.signed_in(request), request.app.state.broker


def is_page(request: Request) -> bool:
    """Whether an error here is shown to a person."""
    path = request.url.path
    return not path.startswith(("/v1", "/static", "/health", "/readyz", "/metrics", "/openapi"))


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
    """Signs in with a token."""
    sessions.require_mark(request, mark)
    actor = request.app.state.broker.authenticate(token.strip())
    response = RedirectResponse("/", 303)
    sessions.start(request, response, actor.token_id)
    return response


@pages.post("/sign-out")
def sign_out(request: Request, mark: Field) -> Response:
    """Signs out: the session ends and its cookie is removed."""
    sessions.require_mark(request, mark)
    response = RedirectResponse("/sign-in", 303)
    sessions.end(response)
    return response


@pages.post("/register")
def register(
    request: Request,
    role: Field,
    name: Field,
    mark: Field,
    key: Key,
    cap_epsilon: Field = "",
    delta: Field = "1e-5",
) -> Response:
    """A new buyer or seller; shows the token once."""
    sessions.require_mark(request, mark)
    if not request.app.state.settings.open_registration or role not in ("buyer", "seller"):
        raise BrokerError("registration is closed", "ask the operator for an account")
    wallet = {"cap_epsilon": _number("lifetime cap", cap_epsilon), "delta": _number("δ", delta)}
    form = {"role": role, "name": name, **(wallet if role == "seller" else {})}
    made = request.app.state.broker.register(form, key, ANONYMOUS)
    response = _show(request, "welcome.html", actor=None, made=made)
    sessions.start(request, response, made["token_id"])
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
        waiting = views.waiting(connection, actor, broker.database.now_ms())
    names = [name for name in mechanism_names() if ":" not in name] if actor.role == "buyer" else []
    offered = [rules.describe(name) for name in names]
    shown: dict[str, Any] = {"tasks": found, "totals": totals, "rules": offered, "waiting": waiting}
    return _show(request, "tasks.html", actor=actor, me=me, **shown)


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
    key: Key,
    review_minutes: Field = "60",
    sealing: Field = "broker",
    may_close: Field = "",
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
            review_seconds=round(60 * _number("minutes for your review", review_minutes)),
            sealing="bidder" if sealing == "bidder" else "broker",
            buyer_may_close=bool(may_close),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BrokerError(f"{first['loc'][0]}: {first['msg']}", "mend the form and send it again") from None
    made = broker.publish_task(actor, form.model_dump(), key)
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
        buyer = views.buyer_words(connection, task["buyer_id"]) if actor.role == "seller" else None
    held = _what_keeps_it_shut(task, newest, balance)
    rule = rules.describe(task["mechanism"]) if task["mechanism"] in mechanism_names() else None
    drawn = (plots.accuracy_per_round, plots.paid_per_round, plots.price_per_round)
    shown: dict[str, Any] = {
        "plots": [draw(actor, rounds["items"]) for draw in drawn],
        "rule": rule,
        "buyer": buyer,
    }
    return _show(request, "task.html", actor=actor, task=task, rounds=rounds, held=held, **shown)


def _what_keeps_it_shut(task: dict[str, Any], newest: list[dict[str, Any]], balance_micro: int) -> str | None:
    """Why the buyer cannot open the next round now; None where it can."""
    if newest and newest[0]["state"] in TAKING_BIDS:
        return f"Round {newest[0]['number'] + 1} takes bids; the next one opens after its auction."
    if newest and newest[0]["number"] + 1 >= task["rounds"]:
        return "This task has had all its rounds."
    if balance_micro < task["budget_micro"]:
        short = views.exact(task["budget_micro"] - balance_micro)
        return f"The next round needs {short} more on your account. An operator books deposits."
    return None


@pages.post("/tasks/{task_id}/open")
def open_round(request: Request, task_id: str, mark: Field, key: Key) -> Response:
    """Opens the next round."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    opened = broker.open_round(actor, task_id, key)
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
        outcome = views.outcome(connection, actor, round_id)["why"] if own else None
        wallet = views.wallet(connection, actor.party_id) if actor.role == "seller" else None
        drawn = plots.of_round(connection, actor, round_, now)
        if actor.role != "seller":
            views.add_names(connection, awards["items"])
    values: dict[str, Any] = {"round": round_, "task": task, "awards": awards, "plots": drawn, "wallet": wallet}
    values |= {"outcome": outcome, "pays": bid_preview.pays_what_is_asked(task["mechanism"])}
    current = next(iter(own), None)
    can = _what_applies(actor, round_, task, awards["items"], claims, now)
    return _show(request, "round.html", actor=actor, bid=current, claims=claims, can=can, **values)


def _what_applies(
    actor: Actor,
    round_: dict[str, Any],
    task: dict[str, Any],
    awards: list[dict[str, Any]],
    claims: int,
    now_ms: int,
) -> set[str]:
    """The steps that this role can take now; the page shows no other."""
    state, role = round_["state"], actor.role
    bidding = state == "open" and now_ms < round_["bid_deadline_ms"]
    if role == "seller":
        can = {"bid"} if bidding and task["sealing"] == "broker" else set()
        own = awards[0] if awards and state == "cleared" else None
        if own and own["claim_sha256"] is None and now_ms < round_["delivery_deadline_ms"]:
            can.add("deliver")
        if own and own["usable"] is False and own["dispute"] is None and now_ms < round_["dispute_deadline_ms"]:
            can.add("dispute")
        return can
    if role == "arbiter" or (role == "operator" and task["arbiter_id"] is None):
        can = {"rule"} if state == "cleared" and any(_disputed(award) for award in awards) else set()
    else:
        can = set()
    if role == "arbiter":
        return can
    early = role == "buyer" and task["buyer_may_close"]
    over = state in ("open", "closed", "revealing") and not bidding
    can |= {"close"} if over or (bidding and early) else set()
    can |= {"accept"} if claims and state == "cleared" and role == "buyer" else set()
    waits = state == "cleared" and now_ms < round_["ruling_deadline_ms"]
    can |= {"report"} if role == "buyer" and state in ("cleared", "delivered", "settled") else set()
    can |= {"settle"} if state == "delivered" or (state == "cleared" and not waits) else set()
    can |= {"abort"} if state == "open" else set()
    return can


def _disputed(award: dict[str, Any]) -> bool:
    return award["dispute"] is not None and award["ruling"] is None


@pages.get("/rounds/{round_id}/preview", response_class=HTMLResponse)
def preview(request: Request, round_id: str, valuation: str = "", epsilon: str = "") -> Response:
    """What a bid would earn at least and cost at most, before it is sent (sellers)."""
    actor, broker = _actor_and_broker(request)
    price, offered = _number("price", valuation[:300]), _number("ε", epsilon[:300])
    with broker.database.read() as connection:
        task = views.task(connection, actor, views.one_round(connection, actor, round_id)["task_id"])
        record = wallets.of_sellers(connection, [actor.party_id]).get(actor.party_id)
    family = ReleaseFamily(task["sampling_rate"], task["steps"], task["delta"])
    offers_something = price >= 0 and 0 < offered <= task["epsilon_max"]
    if record is None or not offers_something or not noise_tables.is_ready(family):
        raise BrokerError("nothing to say about this bid", f"offer at most ε = {task['epsilon_max']:g}")
    currency = request.app.state.settings.currency
    return HTMLResponse(
        html.escape(bid_preview.at_worst(record, family, task["mechanism"], price, offered, currency))
    )


@pages.post("/rounds/{round_id}/progress")
def report_progress(request: Request, round_id: str, accuracy: Field, mark: Field, key: Key) -> Response:
    """The buyer notes how good its model is after the round."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    broker.report_progress(actor, round_id, _number("accuracy", accuracy) / 100, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/bid")
def place_bid(
    request: Request, round_id: str, valuation: Field, epsilon: Field, mark: Field, key: Key, data_size: Field = "1"
) -> Response:
    """A sealed bid."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    offer = Offer(_number("price", valuation), _number("ε", epsilon), _number("records", data_size))
    broker.bid(actor, round_id, offer, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/deliver")
def deliver(request: Request, round_id: str, update_sha256: Field, mark: Field, key: Key) -> Response:
    """A seller declares that its update is on the way."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    digest = update_sha256.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise BrokerError("that is not a SHA-256 digest", "paste the 64 hexadecimal digits of your update's digest")
    broker.claim_delivery(actor, round_id, digest, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/abort")
def abort(request: Request, round_id: str, reason: Field, mark: Field, key: Key) -> Response:
    """Ends a round with refunds."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    broker.abort_round(actor, round_id, _reason(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/judge")
def judge(
    request: Request, round_id: str, seller_id: Field, verdict: Field, mark: Field, key: Key, reason: Field = ""
) -> Response:
    """The buyer accepts or rejects one update."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    fault = None if verdict == "accept" else _reason(reason)
    broker.give_receipts(actor, round_id, {seller_id: fault}, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/dispute")
def dispute(request: Request, round_id: str, reason: Field, mark: Field, key: Key) -> Response:
    """A seller objects to a rejection."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    broker.dispute(actor, round_id, _reason(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/rule")
def rule(
    request: Request, round_id: str, seller_id: Field, verdict: Field, reason: Field, mark: Field, key: Key
) -> Response:
    """The arbiter decides a dispute."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    broker.rule(actor, round_id, seller_id, verdict == "pay", _reason(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


def _reason(text: str) -> str:
    if not 0 < len(text.strip()) <= 200 or not text.strip().isprintable():
        raise BrokerError("no reason, or one that does not print", "say why, in at most 200 characters")
    return text.strip()


@pages.post("/rounds/{round_id}/{step}")
def move_round(request: Request, round_id: str, step: str, mark: Field, key: Key) -> Response:
    """Closes a round, confirms every update that was claimed, or settles."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
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
def move_money(request: Request, party_id: str, direction: Field, amount: Field, mark: Field, key: Key) -> Response:
    """Books money that came in or went out (operators)."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    book = {"deposit": broker.deposit, "withdraw": broker.withdraw}.get(direction)
    if book is None:
        raise BrokerError(f"money cannot {direction}", "choose deposit or withdraw")
    book(actor, party_id, _money("amount", amount), key)
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
    """The log, searched by kind and by whom or what it is about (operators)."""
    actor, broker = _actor_and_broker(request)
    asked = {name: request.query_params.get(name, "").strip() for name in ("kind", "about")}
    if any(len(text) > 80 or not text.isprintable() for text in asked.values()):
        raise BrokerError("that cannot be searched for", "give a name or an id, and one of the kinds in the list")
    with broker.database.read() as connection:
        kind, about, after = asked["kind"] or None, asked["about"] or None, request.query_params.get("after")
        about = about and (views.party_named(connection, about) or about)
        entries = views.log_list(connection, actor, kind, about, after, _ROWS)
        known = {name for item in entries["items"] for name in (item["actor"], item["subject"])}
        names = views.names_of(connection, sorted(known))
    return _show(request, "audit.html", actor=actor, entries=entries, asked=asked, kinds=KINDS, names=names)


@pages.get("/tokens", response_class=HTMLResponse)
def tokens(request: Request) -> Response:
    """One's tokens."""
    return _tokens(request)


def _tokens(request: Request, made: dict[str, Any] | None = None) -> Response:
    actor, broker = _actor_and_broker(request)
    with broker.database.read() as connection:
        found = views.own_tokens(connection, actor, request.query_params.get("after"), _ROWS)
    return _show(request, "tokens.html", actor=actor, tokens=found, made=made, current=actor.token_id)


@pages.post("/tokens")
def mint(request: Request, scope: Field, days: Field, mark: Field, key: Key) -> Response:
    """Another token; shows it once."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    seconds = round(86_400 * _number("days", days)) if days.strip() else None
    return _tokens(request, broker.mint_token(actor, scope, key, lifetime_seconds=seconds))


@pages.post("/tokens/{token_id}/revoke")
def revoke(request: Request, token_id: str, mark: Field, key: Key) -> Response:
    """Ends one of one's tokens."""
    sessions.require_mark(request, mark)
    actor, broker = _actor_and_broker(request)
    broker.revoke_token(actor, token_id, key)
    return RedirectResponse("/tokens", 303)


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
