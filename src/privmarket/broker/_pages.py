"""The pages of the dashboard: the market and its rounds; accounts, money, privacy, the log."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Form as FormField, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from privmarket._settings import DELTA
from privmarket.broker import (
    _answers as answers,
    _callers as callers,
    _charts as charts,
    _events as events,
    _log_views as log_views,
    _noise_tables as noise_tables,
    _rules as rules,
    _views as views,
    _wallets as wallets,
)
from privmarket.broker._answers import AwardAnswer, RoundAnswer, TaskAnswer
from privmarket.broker._callers import LogGrowth, event_stream, take_stream
from privmarket.broker._charts import Chart
from privmarket.broker._errors import BrokerError
from privmarket.broker._lifecycle import TAKING_BIDS
from privmarket.broker._page_frame import (
    ROWS,
    Field,
    Key,
    actor_and_broker,
    exact_money,
    money_typed,
    number_typed,
    reason_typed,
    show,
)
from privmarket.broker._parties import ANONYMOUS, ROLES, Actor, require
from privmarket.broker._projection import KINDS
from privmarket.broker._shapes import SignatureText, TaskForm
from privmarket.broker._statements import STATEMENTS
from privmarket.mechanisms import mechanism_names
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Offer

pages = APIRouter(include_in_schema=False)
_SIGNED_AT_ONCE = 1000  # receipts that one form carries
Signed = Annotated[str, FormField(max_length=400_000)]
_STATED = TypeAdapter(list[dict[str, Any]])
_SIGNATURES = TypeAdapter(list[SignatureText])


@pages.get("/", response_class=HTMLResponse)
def home(request: Request) -> Response:
    """Tasks."""
    actor, broker = actor_and_broker(request)
    with broker.database.read() as connection:
        found = views.task_list(connection, actor, request.query_params.get("after"), ROWS)
        newest = {one["id"]: views.round_list(connection, actor, one["id"], None, 1) for one in found["items"]}
        me = views.me(connection, actor.party_id)
        totals = views.totals(connection, actor) if actor.role == "operator" else None
        now = broker.database.now_ms()
        waiting = views.waiting(connection, actor, now)
        more: dict[str, object] = {"health": None, "earned_micro": 0, "sales_left": None, "spent": {}}
        if actor.role == "operator":
            more["health"] = views.health(connection, now)
            more["witnesses"] = log_views.witnesses(connection)
            more["proposals"] = len(views.open_proposals(connection, actor))
            more["payouts"] = len(views.open_payouts(connection))
        elif actor.role == "seller":
            more["earned_micro"] = views.earned(connection, actor.party_id)
            record = wallets.of_sellers(connection, [actor.party_id])[actor.party_id]
            more["sales_left"] = wallets.sales_like_last(record)
        elif actor.role == "buyer":
            more["spent"] = views.spending(connection, [one["id"] for one in found["items"]])
    names = [name for name in mechanism_names() if ":" not in name] if actor.role == "buyer" else []
    offered = [rules.describe(name) for name in names]
    latest = {task_id: next(iter(one["items"]), None) for task_id, one in newest.items()}
    shown = {"tasks": found, "latest": latest, "totals": totals, "rules": offered, "waiting": waiting}
    return show(request, "tasks.html", actor=actor, me=me, **shown, **more)


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
    arbiter_id: Field = "",
    may_close: Field = "",
) -> Response:
    """Publishes a task (buyers); everything else keeps the API's defaults."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    try:
        form = TaskForm.model_validate(
            {
                "title": title.strip(),
                "mechanism": mechanism,
                "budget_micro": money_typed("budget", budget),
                "rounds": int(number_typed("rounds", rounds)),
                "epsilon_max": number_typed("largest offer", epsilon_max),
                "bid_seconds": round(60 * number_typed("minutes for bids", bid_minutes)),
                "delivery_seconds": round(60 * number_typed("minutes for updates", delivery_minutes)),
                "review_seconds": round(60 * number_typed("minutes for your review", review_minutes)),
                "sealing": "bidder" if sealing == "bidder" else "broker",
                "buyer_may_close": bool(may_close),
                "arbiter_id": arbiter_id.strip() or None,
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BrokerError(f"{first['loc'][0]}: {first['msg']}", "correct the form and send it again") from None
    made = broker.publish_task(actor, form.model_dump(), key)
    return RedirectResponse(f"/tasks/{made['id']}", 303)


@pages.get("/tasks/{task_id}", response_class=HTMLResponse)
def one_task(request: Request, task_id: str) -> Response:
    """One task and its rounds."""
    actor, broker = actor_and_broker(request)
    with broker.database.read() as connection:
        task = views.task(connection, actor, task_id)
        rounds = views.round_list(connection, actor, task_id, request.query_params.get("after"), ROWS)
        newest = views.round_list(connection, actor, task_id, None, 1)["items"]
        balance = views.me(connection, actor.party_id)["balance_micro"] if actor.role == "buyer" else 0
        buyer = views.buyer_words(connection, task["buyer_id"]) if actor.role == "seller" else None
    held = _what_keeps_it_shut(task, newest, balance)
    rule = rules.describe(task["mechanism"]) if task["mechanism"] in mechanism_names() else None
    drawn = (charts.score_against_spending, charts.paid_per_round, charts.price_per_round)
    shown = {
        "next_number": newest[0]["number"] + 1 if newest else 0,
        "plots": [draw(actor, rounds["items"]) for draw in drawn],
        "rule": rule,
        "buyer": buyer,
    }
    return show(request, "task.html", actor=actor, task=task, rounds=rounds, held=held, **shown)


def _what_keeps_it_shut(task: TaskAnswer, newest: list[RoundAnswer], balance_micro: int) -> str | None:
    """Why the buyer cannot open the next round now; None where it can."""
    if newest and newest[0]["state"] in TAKING_BIDS:
        return f"Round {newest[0]['number'] + 1} takes bids; the next one opens after its auction."
    if newest and newest[0]["number"] + 1 >= task["rounds"]:
        return "This task has had all its rounds."
    if balance_micro < task["budget_micro"]:
        short = exact_money(task["budget_micro"] - balance_micro)
        return f"The next round needs {short} more on your account. An operator books deposits."
    return None


@pages.post("/signed")
def make_statements(
    request: Request, kind: Field, about: Field, said: Signed, signatures: Signed, mark: Field, key: Key
) -> Response:
    """What a party with a key states, signed by its browser: the forms below, for accounts that sign everything."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    try:
        statements = list(zip(_STATED.validate_json(said), _SIGNATURES.validate_json(signatures), strict=True))
    except ValueError:
        raise BrokerError("that is not what a page signs", "reload the page and try again") from None
    answer = broker.state(actor, kind, about, statements, key)
    if kind == "task.published":
        return RedirectResponse(f"/tasks/{answer['id']}", 303)
    if kind == "round.opened":
        return RedirectResponse(f"/rounds/{answer['id']}", 303)
    return RedirectResponse("/money" if kind == "money.requested" else f"/rounds/{about}", 303)


@pages.post("/tasks/{task_id}/open")
def open_round(request: Request, task_id: str, mark: Field, key: Key) -> Response:
    """Opens the next round."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    opened = broker.open_round(actor, task_id, key)
    return RedirectResponse(f"/rounds/{opened['id']}", 303)


@pages.get("/rounds/{round_id}", response_class=HTMLResponse)
def one_round(request: Request, round_id: str) -> Response:
    """A round as it happens."""
    actor, broker = actor_and_broker(request)
    now = broker.database.now_ms()
    with broker.database.read() as connection:
        round_ = views.one_round(connection, actor, round_id)
        task = views.task(connection, actor, round_["task_id"])
        awards = views.award_list(connection, actor, round_id, request.query_params.get("after"), ROWS)
        own = views.bid_list(connection, actor, round_id, None, ROWS)["items"] if actor.role == "seller" else []
        claims = views.unanswered_claims(connection, actor, round_id) if actor.role == "buyer" else 0
        outcome = views.outcome(connection, actor, round_id)["why"] if own else None
        wallet = views.wallet(connection, actor.party_id) if actor.role == "seller" else None
        claimed = views.claimed_sellers(connection, actor, round_id) if claims else []
        drawn = charts.of_round(connection, actor, round_, now)
        sellers = views.seller_words(connection, [one["seller_id"] for one in awards["items"]])
    values: dict[str, object] = {
        "round": round_,
        "sellers": sellers,
        "task": task,
        "awards": awards,
        "plots": drawn,
        "wallet": wallet,
        "claimed": claimed[:_SIGNED_AT_ONCE],
    }
    values |= {"outcome": outcome, "pays": wallets.pays_what_is_asked(task["mechanism"])}
    current = next(iter(own), None)
    values["deadlines"] = _deadlines_of(actor, round_, has_bid=current is not None, has_sold=bool(awards["items"]))
    can = _what_applies(actor, round_, task, awards["items"], claims, now)
    return show(request, "round.html", actor=actor, bid=current, claims=claims, can=can, **values)


def _deadlines_of(actor: Actor, round_: RoundAnswer, *, has_bid: bool, has_sold: bool) -> list[tuple[str, int]]:
    """The deadlines that concern the reader: a seller that sold nothing has nothing to deliver or to dispute."""
    closed_ms = round_.get("closed_ms")
    bids = ("Bids until", round_["bid_deadline_ms"]) if closed_ms is None else ("Bidding ended", closed_ms)
    named = [
        bids,
        ("Reveal until", round_.get("reveal_deadline_ms")),
        ("Deliver until", round_.get("delivery_deadline_ms")),
        ("Review until", round_.get("review_deadline_ms")),
        ("Dispute until", round_.get("dispute_deadline_ms")),
        ("Rule until", round_.get("ruling_deadline_ms")),
    ]
    if actor.role == "seller" and not has_sold:
        named = named[: 2 if has_bid else 1]
    return [(name, at_ms) for name, at_ms in named if at_ms]


def _what_applies(
    actor: Actor,
    round_: RoundAnswer,
    task: TaskAnswer,
    awards: list[AwardAnswer],
    claims: int,
    now_ms: int,
) -> set[str]:
    """The steps that this role can take now; the page shows no other."""
    state = round_["state"]
    role = actor.role
    bidding = state == "open" and now_ms < round_["bid_deadline_ms"]
    if role == "seller":
        can = {"bid"} if bidding and task["sealing"] == "broker" else set()
        own = awards[0] if awards and state == "cleared" else None
        if own and own["claim_sha256"] is None and now_ms < (round_["delivery_deadline_ms"] or 0):
            can.add("deliver")
        rejected = own is not None and own["usable"] is False and own["dispute"] is None
        if rejected and now_ms < (round_["dispute_deadline_ms"] or 0):
            can.add("dispute")
        return can
    if role == "arbiter" or (role == "operator" and task["arbiter_id"] is None):
        can = {"rule"} if state == "cleared" and any(_disputed(award) for award in awards) else set()
    else:
        can = set()
    if role in ("arbiter", "auditor"):
        return can
    early = role == "buyer" and task["buyer_may_close"]
    over = state in ("open", "revealing") and not bidding  # a closed one is being cleared
    can |= {"close"} if over or (bidding and early) else set()
    can |= {"accept"} if claims and state == "cleared" and role == "buyer" else set()
    waits = state == "cleared" and now_ms < (round_["ruling_deadline_ms"] or 0)
    can |= {"report"} if role == "buyer" and state in ("cleared", "delivered", "settled") else set()
    can |= {"settle"} if state == "delivered" or (state == "cleared" and not waits) else set()
    can |= {"abort"} if state == "open" else set()
    return can


def _disputed(award: AwardAnswer) -> bool:
    return award["dispute"] is not None and award["ruling"] is None


@pages.get("/rounds/{round_id}/preview", response_class=HTMLResponse)
def preview(request: Request, round_id: str, valuation: str = "", epsilon: str = "") -> Response:
    """What a bid would earn at least and cost at most, before it is sent (sellers)."""
    actor, broker = actor_and_broker(request)
    price, offered = number_typed("price", valuation[:300]), number_typed("ε", epsilon[:300])
    with broker.database.read() as connection:
        task = views.task(connection, actor, views.one_round(connection, actor, round_id)["task_id"])
        record = wallets.of_sellers(connection, [actor.party_id]).get(actor.party_id)
    family = ReleaseFamily(task["sampling_rate"], task["steps"], task["delta"])
    offers_something = price >= 0 and 0 < offered <= task["epsilon_max"]
    if record is None or not offers_something or not noise_tables.is_ready(family):
        raise BrokerError("nothing to say about this bid", f"offer at most ε = {task['epsilon_max']:g}")
    currency = request.app.state.settings.currency
    return HTMLResponse(html.escape(wallets.at_worst(record, family, task["mechanism"], price, offered, currency)))


@pages.post("/rounds/{round_id}/progress")
def report_progress(request: Request, round_id: str, accuracy: Field, mark: Field, key: Key) -> Response:
    """The buyer notes how good its model is after the round."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.report_progress(actor, round_id, number_typed("accuracy", accuracy) / 100, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/bid")
def place_bid(
    request: Request,
    round_id: str,
    valuation: Field,
    epsilon: Field,
    mark: Field,
    key: Key,
    data_size: Field = "1",
    nonce: Field = "",
    signature: Field = "",
) -> Response:
    """A sealed bid; a seller with a key signs it in the browser."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    offer = Offer(number_typed("price", valuation), number_typed("ε", epsilon), number_typed("records", data_size))
    broker.bid(actor, round_id, offer, key, nonce=nonce or None, signature=signature or None)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/deliver")
def deliver(request: Request, round_id: str, update_sha256: Field, mark: Field, key: Key) -> Response:
    """A seller declares that its update is on the way."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    digest = update_sha256.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise BrokerError("that is not a SHA-256 digest", "paste the 64 hexadecimal digits of your update's digest")
    broker.claim_delivery(actor, round_id, digest, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/abort")
def abort(request: Request, round_id: str, reason: Field, mark: Field, key: Key) -> Response:
    """Ends a round with refunds."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.abort_round(actor, round_id, reason_typed(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/judge")
def judge(
    request: Request, round_id: str, seller_id: Field, verdict: Field, mark: Field, key: Key, reason: Field = ""
) -> Response:
    """The buyer accepts or rejects one update."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    fault = None if verdict == "accept" else reason_typed(reason)
    broker.give_receipts(actor, round_id, {seller_id: fault}, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/dispute")
def dispute(request: Request, round_id: str, reason: Field, mark: Field, key: Key) -> Response:
    """A seller objects to a rejection."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.dispute(actor, round_id, reason_typed(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/rule")
def rule(
    request: Request, round_id: str, seller_id: Field, verdict: Field, reason: Field, mark: Field, key: Key
) -> Response:
    """The arbiter decides a dispute."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.rule(actor, round_id, seller_id, verdict == "pay", reason_typed(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/{step}")
def move_round(request: Request, round_id: str, step: str, mark: Field, key: Key) -> Response:
    """Closes a round, confirms every update that was claimed, or settles."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
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


# ---- accounts, money, privacy, the log ------------------------------------------------------------------------


PARTY = re.compile(rf"(?:{'|'.join(ROLES)})-[0-9a-f]{{16}}")


@pages.get("/sign-in", response_class=HTMLResponse)
def sign_in_form(request: Request) -> Response:
    """Where one signs in or registers."""
    if not callers.has_cookie(request):
        response: Response = RedirectResponse("/sign-in", 303)  # the form needs the secret that this sets
        callers.greet(request, response)
        return response
    return show(request, "sign-in.html", actor=None, is_open=request.app.state.settings.open_registration)


@pages.post("/sign-in")
def sign_in(request: Request, token: Field, mark: Field) -> Response:
    """Signs in with a token."""
    callers.require_mark(request, mark)
    actor = request.app.state.broker.authenticate(token.strip())
    response = RedirectResponse("/", 303)
    callers.start_session(request, response, actor.token_id)
    return response


@pages.post("/sign-out")
def sign_out(request: Request, mark: Field) -> Response:
    """Signs out: the session ends on the server, and its cookie is removed."""
    callers.require_mark(request, mark)
    response = RedirectResponse("/sign-in", 303)
    callers.end_session(request, response)
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
    own_key: Field = "",
    public_key: Field = "",
) -> Response:
    """A new buyer or seller, perhaps with a key that its browser made; shows the token once."""
    callers.require_mark(request, mark)
    if not request.app.state.settings.open_registration or role not in ("buyer", "seller"):
        raise BrokerError("registration is closed", "ask the operator for an account")
    if own_key and not public_key:
        raise BrokerError(
            "keys are made by JavaScript in your browser", "register without a key, or with BrokerClient and a key"
        )
    form: dict[str, object] = {"role": role, "name": name}
    if role == "seller":
        form["cap_epsilon"] = number_typed("lifetime cap", cap_epsilon)
        form["delta"] = number_typed("δ", delta)
    if public_key:
        form |= {"public_key": public_key, "signs": "everything"}
    made = request.app.state.broker.register(form, key, ANONYMOUS)
    response = show(request, "welcome.html", actor=None, made=made)
    callers.start_session(request, response, made["token_id"])
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
    callers.require_mark(request, mark)
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
    callers.require_mark(request, mark)
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
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.undo_booking(actor, entry, reason_typed(reason), key)
    return RedirectResponse("/money", 303)


@pages.post("/proposals/{entry}/{verdict}")
def answer_proposal(
    request: Request, entry: int, verdict: str, mark: Field, key: Key, reason: Field = ""
) -> Response:
    """Approves or declines a booking that another operator proposed (operators)."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    if verdict == "approve":
        broker.approve_booking(actor, entry, key)
    else:
        broker.decline_booking(actor, entry, reason.strip() or "declined", key)
    return RedirectResponse("/money", 303)


@pages.post("/payouts")
def request_payout(request: Request, amount: Field, mark: Field, key: Key) -> Response:
    """Asks for money of one's account."""
    callers.require_mark(request, mark)
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
            shown["bookings"] = views.booking_list(connection, actor, after, ROWS)
            shown["proposals"] = views.open_proposals(connection, actor)
            shown["payouts"] = views.open_payouts(connection)
            drawn.append(charts.all_the_money(totals))
        else:
            lines = views.statement(connection, actor.party_id, after, ROWS)
            shown["lines"] = lines
            shown["payouts"] = views.open_payouts(connection, actor.party_id)
            if actor.role == "seller":
                drawn.append(charts.earnings_over_time(connection, actor.party_id))
            if after is None:  # the line ends at today's balance
                drawn.append(charts.balance_over_time(me["balance_micro"], lines["items"]))
    return show(request, "money.html", actor=actor, me=me, plots=drawn, **shown)


@pages.get("/privacy", response_class=HTMLResponse)
def privacy(request: Request) -> Response:
    """Wallets: one's own, or everybody's for operators."""
    actor, broker = actor_and_broker(request)
    sellers: Sequence[answers.PartyLine | answers.Party] = []
    further = None
    own = None
    sales_left = None
    with broker.database.read() as connection:
        if actor.role == "operator":
            found = views.party_list(connection, actor, request.query_params.get("after"), ROWS)
            sellers = [one for one in found["items"] if one["role"] == "seller"]
            further = found["next"]
        elif actor.role == "seller":
            sellers = [views.me(connection, actor.party_id)]
            own = charts.own_spending(connection, actor.party_id)
            record = wallets.of_sellers(connection, [actor.party_id])[actor.party_id]
            sales_left = wallets.sales_like_last(record)
        held = views.wallets_of(connection, [one["id"] for one in sellers]) if sellers else {}
    named = {one["name"] or one["id"]: held[one["id"]] for one in sellers}
    drawn = [own if actor.role == "seller" else charts.wallets_left(named)]
    shown = {"sellers": sellers, "wallets": held, "next": further, "plots": drawn, "sales_left": sales_left}
    return show(request, "privacy.html", actor=actor, **shown)


# Entries that carry a signature unless their party chose to sign nothing. Operators and deadlines end rounds, too.
_BY_CHOICE = frozenset(STATEMENTS) - {"round.closed", "round.aborted"}


@pages.get("/audit", response_class=HTMLResponse)
def audit(request: Request) -> Response:
    """The log, searched by kind and by whom or what it is about (operators and auditors)."""
    actor, broker = actor_and_broker(request)
    asked = {name: request.query_params.get(name, "").strip() for name in ("kind", "about")}
    if any(len(text) > 80 or not text.isprintable() for text in asked.values()):
        raise BrokerError("that cannot be searched for", "give a name or an id, and one of the kinds in the list")
    with broker.database.read() as connection:
        kind = asked["kind"] or None
        about = asked["about"] or None
        after = request.query_params.get("after")
        about = about and (views.party_named(connection, about) or about)
        entries = log_views.log_list(connection, actor, kind, about, after, ROWS)
        known = {name for item in entries["items"] for name in (item["actor"], item["subject"])}
        known |= {who for item in entries["items"] for who in PARTY.findall(item["details"])}
        names = views.names_of(connection, sorted(known))
    return show(
        request,
        "audit.html",
        actor=actor,
        entries=entries,
        asked=asked,
        kinds=KINDS,
        names=names,
        stated=_BY_CHOICE,
    )


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
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    seconds = round(86_400 * number_typed("days", days)) if days.strip() else None
    return _tokens(request, broker.mint_token(actor, scope, key, lifetime_seconds=seconds))


@pages.post("/key")
def change_key(request: Request, mark: Field, key: Key, public_key: Field = "", signature: Field = "") -> Response:
    """Another key, made by the browser, with which the party signs everything from now on."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    if not public_key:
        raise BrokerError("keys are made by JavaScript in your browser", "use BrokerClient.change_key instead")
    broker.change_key(actor, public_key, key, signature=signature or None, signs="everything")
    return RedirectResponse("/tokens", 303)


@pages.post("/tokens/{token_id}/revoke")
def revoke(request: Request, token_id: str, mark: Field, key: Key) -> Response:
    """Ends one of one's tokens."""
    callers.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.revoke_token(actor, token_id, key)
    return RedirectResponse("/tokens", 303)
