"""The dashboard's pages about the market: tasks, and a round as it happens."""

from __future__ import annotations

import html
import re

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError

from privmarket.broker import (
    _bid_preview as bid_preview,
)
from privmarket.broker import (
    _bookings as bookings,
)
from privmarket.broker import (
    _noise_tables as noise_tables,
)
from privmarket.broker import (
    _plots as plots,
)
from privmarket.broker import (
    _rules as rules,
)
from privmarket.broker import (
    _sessions as sessions,
)
from privmarket.broker import (
    _to_do as to_do,
)
from privmarket.broker import (
    _views as views,
)
from privmarket.broker import (
    _wallets as wallets,
)
from privmarket.broker._answers import AwardAnswer, RoundAnswer, TaskAnswer
from privmarket.broker._forms import TaskForm
from privmarket.broker._http_errors import BrokerError
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
from privmarket.broker._parties import Actor
from privmarket.mechanisms import mechanism_names
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Offer

pages = APIRouter(include_in_schema=False)


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
        waiting = to_do.waiting(connection, actor, now)
        more: dict[str, object] = {"health": None, "earned_micro": 0, "sales_left": None, "spent": {}}
        if actor.role == "operator":
            more["health"] = to_do.health(connection, now)
            more["proposals"] = len(bookings.open_proposals(connection, actor))
            more["payouts"] = len(bookings.open_payouts(connection))
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
    may_close: Field = "",
) -> Response:
    """Publishes a task (buyers); everything else keeps the API's defaults."""
    sessions.require_mark(request, mark)
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
    drawn = (plots.score_against_spending, plots.paid_per_round, plots.price_per_round)
    shown = {
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


@pages.post("/tasks/{task_id}/open")
def open_round(request: Request, task_id: str, mark: Field, key: Key) -> Response:
    """Opens the next round."""
    sessions.require_mark(request, mark)
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
        public_key = views.me(connection, actor.party_id)["public_key"] if actor.role == "seller" else None
        drawn = plots.of_round(connection, actor, round_, now)
        sellers = views.seller_words(connection, [one["seller_id"] for one in awards["items"]])
    values: dict[str, object] = {
        "round": round_,
        "sellers": sellers,
        "task": task,
        "awards": awards,
        "plots": drawn,
        "wallet": wallet,
        "public_key": public_key,
    }
    values |= {"outcome": outcome, "pays": bid_preview.pays_what_is_asked(task["mechanism"])}
    current = next(iter(own), None)
    values["deadlines"] = _deadlines_of(actor, round_, has_bid=current is not None, has_sold=bool(awards["items"]))
    can = _what_applies(actor, round_, task, awards["items"], claims, now)
    return show(request, "round.html", actor=actor, bid=current, claims=claims, can=can, **values)


def _deadlines_of(actor: Actor, round_: RoundAnswer, *, has_bid: bool, has_sold: bool) -> list[tuple[str, int]]:
    """The deadlines that concern whoever looks: a seller that sold nothing has nothing to deliver or to dispute."""
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
    state, role = round_["state"], actor.role
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
    if role == "arbiter":
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
    return HTMLResponse(
        html.escape(bid_preview.at_worst(record, family, task["mechanism"], price, offered, currency))
    )


@pages.post("/rounds/{round_id}/progress")
def report_progress(request: Request, round_id: str, accuracy: Field, mark: Field, key: Key) -> Response:
    """The buyer notes how good its model is after the round."""
    sessions.require_mark(request, mark)
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
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    offer = Offer(number_typed("price", valuation), number_typed("ε", epsilon), number_typed("records", data_size))
    broker.bid(actor, round_id, offer, key, nonce=nonce or None, signature=signature or None)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/deliver")
def deliver(request: Request, round_id: str, update_sha256: Field, mark: Field, key: Key) -> Response:
    """A seller declares that its update is on the way."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    digest = update_sha256.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise BrokerError("that is not a SHA-256 digest", "paste the 64 hexadecimal digits of your update's digest")
    broker.claim_delivery(actor, round_id, digest, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/abort")
def abort(request: Request, round_id: str, reason: Field, mark: Field, key: Key) -> Response:
    """Ends a round with refunds."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.abort_round(actor, round_id, reason_typed(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/judge")
def judge(
    request: Request, round_id: str, seller_id: Field, verdict: Field, mark: Field, key: Key, reason: Field = ""
) -> Response:
    """The buyer accepts or rejects one update."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    fault = None if verdict == "accept" else reason_typed(reason)
    broker.give_receipts(actor, round_id, {seller_id: fault}, key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/dispute")
def dispute(request: Request, round_id: str, reason: Field, mark: Field, key: Key) -> Response:
    """A seller objects to a rejection."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.dispute(actor, round_id, reason_typed(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/rule")
def rule(
    request: Request, round_id: str, seller_id: Field, verdict: Field, reason: Field, mark: Field, key: Key
) -> Response:
    """The arbiter decides a dispute."""
    sessions.require_mark(request, mark)
    actor, broker = actor_and_broker(request)
    broker.rule(actor, round_id, seller_id, verdict == "pay", reason_typed(reason), key)
    return RedirectResponse(f"/rounds/{round_id}", 303)


@pages.post("/rounds/{round_id}/{step}")
def move_round(request: Request, round_id: str, step: str, mark: Field, key: Key) -> Response:
    """Closes a round, confirms every update that was claimed, or settles."""
    sessions.require_mark(request, mark)
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
