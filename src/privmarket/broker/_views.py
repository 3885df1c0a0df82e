"""What each role may see. What belongs to somebody else is answered with 404, as if it did not exist.

Sellers see tasks, rounds and themselves; buyers see their own tasks, totals and winners, never a losing bid;
arbiters see the tasks that name them, with rounds and winners; auditors see all tasks, rounds, winners and cohort
keys, and the log (`_log_views`); operators see everything. Nobody sees another's bid before the auction is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Column, ColumnElement, Connection, Select, and_, func, or_, select, text

from privmarket.broker import (
    _answers as answers,
    _deliveries as deliveries,
    _ledger as ledger,
    _lifecycle as lifecycle,
    _sql as sql,
    _wallets as wallets,
)
from privmarket.broker._answers import Page
from privmarket.broker._deliveries import AWAITED, WAS_FAULTY, Deadlines
from privmarket.broker._errors import BrokerError, NotFoundError
from privmarket.broker._parties import Actor, require
from privmarket.broker._schema import (
    awards,
    bids,
    find_round,
    find_task,
    log,
    names,
    parties,
    postings,
    rounds,
    tasks,
    tokens,
)
from privmarket.broker._shapes import BidRow, RoundRow, TaskRow

PAGE_LIMIT = 200
Item = TypeVar("Item")


def page(
    item: type[Item],
    connection: Connection,
    query: Select[Any],
    number: Column[int],
    name: Column[str] | None,
    after: str | None,
    limit: int,
    *,
    rising: bool = False,
) -> Page[Item]:
    """One page of a query's rows, each an `item`, newest first unless `rising`, and the cursor of the next page.

    Rows are ordered by `number`, then by `name` if it is given; both are columns of the query.

    Raises:
        BrokerError: `limit` is out of range, or `after` is not a cursor.
    """
    if not 1 <= limit <= PAGE_LIMIT:
        raise BrokerError(f"limit is {limit}", f"ask for 1 to {PAGE_LIMIT} items")
    if after is not None:
        at, _, last = after.partition("~")
        if not (at.isascii() and at.isdigit() and len(at) < 19) or "\x00" in last:
            raise BrokerError("unknown cursor", "send `next` of the page before as `after`")
        beyond: ColumnElement[bool] = number > int(at) if rising else number < int(at)
        if name is not None:
            beyond = or_(beyond, and_(number == int(at), name > last if rising else name < last))
        query = query.where(beyond)
    keys: list[Column[int] | Column[str]] = [number] if name is None else [number, name]
    order = keys if rising else [key.desc() for key in keys]
    rows = connection.execute(query.order_by(*order).limit(limit + 1)).mappings().all()
    items = [dict(row) for row in rows[:limit]]
    more = len(rows) > limit
    cursor = "~".join(str(items[-1][key.name]) for key in keys) if more else None
    return cast(Page[Item], {"items": items, "next": cursor})


def me(connection: Connection, party_id: str) -> answers.Party:
    """A party: balance, a seller's wallet, and how reliable it has been."""
    row = connection.execute(select(parties).where(parties.c.id == party_id)).first()
    if row is None:
        raise NotFoundError(f"no party {party_id}", "GET /v1/me shows yourself")
    return {
        "id": row.id,
        "role": row.role,
        "name": names_of(connection, [party_id]).get(party_id),
        "created_ms": row.created_ms,
        "public_key": row.public_key,
        "signs": row.signs,
        "suspended": row.suspended,
        "dataset_sha256": row.dataset_sha256,
        "balance_micro": ledger.balance(connection, ledger.party(party_id)),
        "reliability": reliability(connection, party_id, row.role),
        "wallet": wallet(connection, party_id) if row.role == "seller" else None,
    }


def names_of(connection: Connection, party_ids: Sequence[str]) -> dict[str, str]:
    """Names by id; erased ones are missing."""
    found = connection.execute(select(names.c.party_id, names.c.name).where(names.c.party_id.in_(party_ids)))
    return {row[0]: row[1] for row in found}


_COUNTS = (
    "COUNT(*), SUM(CASE WHEN claim_sha256 IS NOT NULL THEN 1 ELSE 0 END), "
    f"SUM(CASE WHEN {WAS_FAULTY} THEN 1 ELSE 0 END) "
)
_OF_SELLER = f"SELECT {_COUNTS} FROM awards WHERE seller_id = ? AND charge <> 'reserved'"
_OF_SELLERS = f"SELECT seller_id, {_COUNTS} FROM awards WHERE seller_id IN (?*) AND charge <> 'reserved'"
_OF_BUYER = (
    "SELECT COUNT(*), SUM(CASE WHEN a.usable = FALSE THEN 1 ELSE 0 END), "
    "SUM(CASE WHEN a.ruling = TRUE THEN 1 ELSE 0 END) FROM awards a JOIN rounds r ON r.id = a.round_id "
    "JOIN tasks t ON t.id = r.task_id WHERE t.buyer_id = ? AND a.charge <> 'reserved'"
)


def reliability(connection: Connection, party_id: str, role: str) -> dict[str, int] | None:
    """A seller's sales, deliveries and rejections, or a buyer's purchases, rejections and overruled ones, counted.

    None for other roles.
    """
    if role not in ("seller", "buyer"):
        return None
    row = sql.run(connection, _OF_SELLER if role == "seller" else _OF_BUYER, party_id)[0]
    keys = ("sales", "delivered", "rejected") if role == "seller" else ("bought", "rejected", "overruled")
    return {key: int(value or 0) for key, value in zip(keys, row, strict=True)}


def wallet(connection: Connection, seller_id: str) -> answers.WalletAnswer:
    """A seller's wallet: cap, δ, the ε spent according to the accountant, and the share that is left."""
    return wallets_of(connection, [seller_id])[seller_id]


def wallets_of(connection: Connection, seller_ids: Sequence[str]) -> dict[str, answers.WalletAnswer]:
    """The same for several sellers, read together."""
    records = wallets.of_sellers(connection, seller_ids)
    return {
        name: {
            "cap_epsilon": records[name].cap_epsilon,
            "delta": records[name].delta,
            "spent_epsilon": spent,
            "remaining_share": share,
            "measure": measure,
            "sales": len(records[name].events),
        }
        for name, (spent, share, measure) in wallets.standing(records).items()
    }


def statement(connection: Connection, party_id: str, after: str | None, limit: int) -> Page[answers.Movement]:
    """Every movement on a party's account, newest first; `seq` is its entry in the log."""
    query = (
        select(
            postings.c.seq,
            log.c.kind,
            log.c.subject,
            log.c.at_ms.label("created_ms"),
            postings.c.amount_micro,
            log.c.details.label("reference"),
            tasks.c.title,
            rounds.c.number,
        )
        .select_from(
            postings.join(log, postings.c.seq == log.c.seq)
            .outerjoin(rounds, rounds.c.id == log.c.subject)
            .outerjoin(tasks, tasks.c.id == rounds.c.task_id)
        )
        .where(postings.c.account == ledger.party(party_id))
    )
    found = page(answers.Movement, connection, query, postings.c.seq, None, after, limit)
    for item in found["items"]:
        details = str(item["reference"])  # the entry's JSON; in a booking it has the bank's reference
        item["reference"] = json.loads(details).get("reference") if item["kind"].startswith("money.") else None
    return found


def earned(connection: Connection, seller_id: str) -> int:
    """What a seller was paid for its sales in all, in micro-units."""
    query = "SELECT COALESCE(SUM(paid_micro), 0) FROM awards WHERE seller_id = ?"
    return int(sql.run(connection, query, seller_id)[0][0])


class Spending(NamedTuple):
    """What a task has cost so far, and the newest accuracy of its model that the buyer reported."""

    paid_micro: int
    score: float | None


def spending(connection: Connection, task_ids: Sequence[str]) -> dict[str, Spending]:
    """Task → what it cost and its newest score; for its buyer."""
    if not task_ids:
        return {}
    sums = "SELECT task_id, SUM(paid_micro) FROM rounds WHERE task_id IN (?*) GROUP BY task_id"
    paid = {row[0]: int(row[1]) for row in sql.run(connection, sums, list(task_ids))}
    told = (
        "SELECT task_id, model_accuracy FROM rounds WHERE task_id IN (?*) AND model_accuracy IS NOT NULL "
        "ORDER BY number"
    )
    scores = {row[0]: float(row[1]) for row in sql.run(connection, told, list(task_ids))}
    return {one: Spending(paid.get(one, 0), scores.get(one)) for one in task_ids}


def own_tokens(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[answers.TokenLine]:
    """The caller's tokens, by id; never their text."""
    query = select(tokens.c.id, tokens.c.scope, tokens.c.created_ms, tokens.c.expires_ms, tokens.c.revoked_ms)
    query = query.where(tokens.c.party_id == actor.party_id)
    return page(answers.TokenLine, connection, query, tokens.c.created_ms, tokens.c.id, after, limit)


def task_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[answers.TaskAnswer]:
    """Tasks: a buyer's or arbiter's own, everybody's for sellers, auditors and operators."""
    query = select(tasks)
    if actor.role in ("buyer", "arbiter"):
        query = query.where((tasks.c.buyer_id if actor.role == "buyer" else tasks.c.arbiter_id) == actor.party_id)
    found = page(answers.TaskAnswer, connection, query, tasks.c.created_ms, tasks.c.id, after, limit)
    return {"items": [TaskRow.of(list(item.values())).answer() for item in found["items"]], "next": found["next"]}


def task(connection: Connection, actor: Actor, task_id: str) -> answers.TaskAnswer:
    """One task."""
    row = find_task(connection, task_id)
    owner = (
        None if row is None else {"buyer": row.buyer_id, "arbiter": row.arbiter_id}.get(actor.role, actor.party_id)
    )
    if row is None or owner != actor.party_id:
        raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists what you may see")
    return row.answer()


def round_list(
    connection: Connection, actor: Actor, task_id: str, after: str | None, limit: int
) -> Page[answers.RoundAnswer]:
    """The rounds of one task, newest first."""
    task(connection, actor, task_id)
    query = select(rounds).where(rounds.c.task_id == task_id)
    found = page(answers.RoundAnswer, connection, query, rounds.c.number, None, after, limit)
    return {"items": [_round(actor, item) for item in found["items"]], "next": found["next"]}


def rounds_in_state(
    connection: Connection, actor: Actor, state: str | None, after: str | None, limit: int
) -> Page[answers.RoundAnswer]:
    """The rounds of all tasks that the caller may see, newest first; in one state, or in any."""
    query = select(rounds)
    if actor.role in ("buyer", "arbiter"):
        owner = tasks.c.buyer_id if actor.role == "buyer" else tasks.c.arbiter_id
        query = query.join(tasks, tasks.c.id == rounds.c.task_id).where(owner == actor.party_id)
    if state is not None:
        query = query.where(rounds.c.state == state)
    found = page(answers.RoundAnswer, connection, query, rounds.c.opened_ms, rounds.c.id, after, limit)
    return {"items": [_round(actor, item) for item in found["items"]], "next": found["next"]}


def one_round(connection: Connection, actor: Actor, round_id: str) -> answers.RoundAnswer:
    """One round, as the caller's role may see it."""
    return _round(actor, visible_round(connection, actor, round_id).model_dump())


def visible_round(connection: Connection, actor: Actor, round_id: str) -> RoundRow:
    """The stored round; raises `NotFoundError` if the caller may not see it."""
    row = find_round(connection, round_id)
    if row is None:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists what is offered")
    task(connection, actor, row.task_id)
    return row


def _round(actor: Actor, fields: Mapping[str, object]) -> answers.RoundAnswer:
    hidden = set() if actor.role == "operator" else {"seed"}
    if actor.role == "seller":
        hidden |= {"bids", "revealed", "sellers", "awarded_micro", "paid_micro", "total_epsilon", "fault"}
        hidden.add("model_accuracy")
    return cast(answers.RoundAnswer, {name: value for name, value in fields.items() if name not in hidden})


def bid_list(
    connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int
) -> Page[answers.StandingBid]:
    """A seller's own bid; all of them for an operator once the auction is over. Replaced bids are in the log."""
    require(actor, "seller", "operator")
    row = visible_round(connection, actor, round_id)
    query = select(bids).where(bids.c.round_id == round_id)
    if actor.role == "seller":
        query = query.where(bids.c.seller_id == actor.party_id)
    elif row.state in lifecycle.TAKING_BIDS:
        return {"items": [], "next": None}  # sealed, from everybody
    return page(answers.StandingBid, connection, query, bids.c.seq, None, after, limit, rising=True)


def outcome(connection: Connection, actor: Actor, round_id: str) -> answers.OutcomeAnswer:
    """What became of a seller's bid, and why."""
    require(actor, "seller")
    round_ = visible_round(connection, actor, round_id)
    mine = (bids.c.round_id == round_id) & (bids.c.seller_id == actor.party_id)
    row = connection.execute(select(bids).where(mine)).first()
    if row is None:
        raise NotFoundError(f"no bid of yours in round {round_id}", "GET /v1/tasks lists what is offered")
    bid = BidRow.of(row)
    sold = connection.execute(
        select(awards.c.epsilon).where((awards.c.round_id == round_id) & (awards.c.seller_id == actor.party_id))
    ).scalar()
    return {
        "round_id": round_id,
        "state": round_.state,
        "asked": bid.valuation,
        "sold_epsilon": sold or 0.0,
        "top_price": round_.top_price,
        "why": _why(round_, bid, sold),
    }


def _why(round_: RoundRow, bid: BidRow, sold: float | None) -> str:
    if round_.state in lifecycle.TAKING_BIDS:
        return "the auction has not been held yet"
    if round_.state == "aborted":
        return "the round was aborted"
    if sold:
        return "sold" if bid.trimmed_epsilon is None else "sold as much as the lifetime wallet still allows"
    if bid.valuation is None:
        return "the bid was not revealed in time, so it did not count"
    if bid.trimmed_epsilon == 0:
        return "the lifetime wallet has nothing left for this kind of release"
    if round_.top_price is None:
        return "nobody sold in this round"
    if bid.valuation > round_.top_price:
        return f"asked {bid.valuation:.6g} per unit of ε; nobody was paid more than {round_.top_price:.6g}"
    return f"the budget went to offers that the rule preferred, at up to {round_.top_price:.6g} per unit of ε"


def award_list(
    connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int
) -> Page[answers.AwardAnswer]:
    """Who sells what: a seller sees itself, the buyer, the arbiter, auditors and operators see all winners."""
    round_ = visible_round(connection, actor, round_id)
    offered = (bids.c.round_id == awards.c.round_id) & (bids.c.seller_id == awards.c.seller_id)
    query = select(awards, bids.c.data_size).join(bids, offered).where(awards.c.round_id == round_id)
    if actor.role == "seller":
        query = query.where(awards.c.seller_id == actor.party_id)
    found = page(answers.AwardAnswer, connection, query, awards.c.seq, None, after, limit, rising=True)
    if round_.delivery_deadline_ms is not None:
        until = Deadlines.of(round_)
        for item in found["items"]:
            claimed, judged, disputed = (item[one] is not None for one in ("claim_sha256", "usable", "dispute"))
            item["decided_ms"] = deliveries.decided_at(claimed, judged, disputed, until)
    return found


def own_awards(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[answers.AwardAnswer]:
    """All that a seller sold, newest first."""
    require(actor, "seller")
    query = select(awards).where(awards.c.seller_id == actor.party_id)
    return page(answers.AwardAnswer, connection, query, awards.c.seq, None, after, limit)


def cohort(
    connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int
) -> Page[answers.CohortKey]:
    """The registered keys of a round's sellers, who may take part in its secure sum.

    Of the sellers, only those that sold in the round may read them; auditors and operators may always.
    """
    visible_round(connection, actor, round_id)
    mine = (awards.c.round_id == round_id) & (awards.c.seller_id == actor.party_id)
    if actor.role == "seller" and connection.execute(select(awards.c.seq).where(mine)).first() is None:
        raise NotFoundError(f"no sale of yours in round {round_id}", "GET /v1/rounds/{id}/outcome says why")
    query = (
        select(awards.c.seller_id, parties.c.public_key, awards.c.seq)
        .join(parties, parties.c.id == awards.c.seller_id)
        .where((awards.c.round_id == round_id) & parties.c.public_key.is_not(None))
    )
    return page(answers.CohortKey, connection, query, awards.c.seq, None, after, limit, rising=True)


def _waiting_claims(connection: Connection, actor: Actor, round_id: str) -> ColumnElement[bool]:
    visible_round(connection, actor, round_id)
    return and_(awards.c.round_id == round_id, text(AWAITED["receipt"][0]))


def unanswered_claims(connection: Connection, actor: Actor, round_id: str) -> int:
    """How many sellers say that they delivered and wait for the buyer's receipt."""
    count = select(func.count()).select_from(awards).where(_waiting_claims(connection, actor, round_id))
    return int(connection.execute(count).scalar_one())


def claimed_sellers(connection: Connection, actor: Actor, round_id: str) -> list[str]:
    """The sellers that claimed a delivery and wait for a receipt; for the round's buyer."""
    require(actor, "buyer")
    waiting = select(awards.c.seller_id).where(_waiting_claims(connection, actor, round_id))
    return [str(name) for name in connection.execute(waiting).scalars()]


class SellerWords(NamedTuple):
    """A seller's name, where it is known, and its record in words."""

    name: str | None
    record: str


def seller_words(connection: Connection, sellers: Sequence[str]) -> dict[str, SellerWords]:
    """Seller → its name and record; for the pages of buyers, arbiters and operators."""
    known = names_of(connection, sellers)
    query = f"{_OF_SELLERS} GROUP BY seller_id"
    records = {row[0]: row[1:] for row in sql.run(connection, query, list(sellers))} if sellers else {}
    return {one: SellerWords(known.get(one), _record(*records.get(one, (0, 0, 0)))) for one in sellers}


def _record(sales: int, delivered: int, rejected: int) -> str:
    if not sales:
        return "first sale"
    good = f"{delivered:,} of {sales:,} delivered"
    return f"{good}, {rejected:,} rejected" if rejected else good


def buyer_words(connection: Connection, buyer_id: str) -> str:
    """Who a buyer is, and how it has dealt with sellers so far."""
    name = names_of(connection, [buyer_id]).get(buyer_id) or "a buyer without a name"
    record = reliability(connection, buyer_id, "buyer") or {}
    if not record.get("bought"):
        return f"{name}, who has bought nothing yet"
    words = f"{name}, who bought {record['bought']:,} updates and rejected {record['rejected']:,}"
    return f"{words}; arbiters overruled {record['overruled']:,}" if record["rejected"] else words


def party_named(connection: Connection, name: str) -> str | None:
    """The id of the party of that name, for operators who search the log; None where there is none, or several."""
    found = connection.execute(select(names.c.party_id).where(names.c.name == name).limit(2)).scalars().all()
    return str(found[0]) if len(found) == 1 else None


def balances(connection: Connection, party_ids: Sequence[str]) -> dict[str, int]:
    """Party → what it holds, in micro-units; for operators' pages."""
    accounts = [ledger.party(one) for one in party_ids]
    held = select(postings.c.account, func.sum(postings.c.amount_micro)).where(postings.c.account.in_(accounts))
    sums = {row[0]: row[1] for row in connection.execute(held.group_by(postings.c.account))}
    return {one: int(sums.get(ledger.party(one), 0)) for one in party_ids}


def party_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[answers.PartyLine]:
    """Everybody, for operators."""
    require(actor, "operator")
    query = select(
        parties.c.id,
        parties.c.role,
        names.c.name,
        parties.c.created_ms,
        parties.c.cap_epsilon,
        parties.c.delta,
        parties.c.public_key,
        parties.c.suspended,
    ).select_from(parties.outerjoin(names, names.c.party_id == parties.c.id))
    return page(answers.PartyLine, connection, query, parties.c.created_ms, parties.c.id, after, limit)


def party(connection: Connection, actor: Actor, party_id: str) -> answers.Party:
    """One party, for operators and itself."""
    if actor.role != "operator" and actor.party_id != party_id:
        raise NotFoundError(f"no party {party_id}", "GET /v1/me shows yourself")
    return me(connection, party_id)


def totals(connection: Connection, actor: Actor) -> answers.Totals:
    """All the money there is, and where it stands."""
    require(actor, "operator")
    paid = select(func.coalesce(func.sum(rounds.c.paid_micro), 0))
    held = ledger.totals(connection)
    return {
        "deposited_micro": held["deposited_micro"],
        "escrow_micro": held["escrow_micro"],
        "balances_micro": held["balances_micro"],
        "paid_micro": int(connection.execute(paid).scalar_one()),
    }


# ---- what waits for whom, and the market's health -------------------------------------------------------------


class Waiting(NamedTuple):
    """One thing to do: in which round, of which task, what, and until when."""

    round_id: str
    title: str
    text: str
    until_ms: int


def _awards_that_wait(whose: str, step: str) -> str:
    """An SQL query for the rounds that wait for a step of `deliveries.AWAITED`, each with how many awards wait."""
    condition, deadline = AWAITED[step]
    return (
        f"SELECT r.id, t.title, COUNT(*), r.{deadline} FROM awards a JOIN rounds r ON r.id = a.round_id "
        f"JOIN tasks t ON t.id = r.task_id WHERE {whose} AND r.state = 'cleared' AND {condition} "
        f"AND r.{deadline} > ? GROUP BY r.id, t.title, r.{deadline}"
    )


_WAITING = {
    "buyer": (
        _awards_that_wait("t.buyer_id = ?", "receipt"),
        "updates to accept or reject: {count}; those not answered in time are accepted",
    ),
    "seller": (
        _awards_that_wait("a.seller_id = ?", "claim"),
        "you sold: claim your delivery, then send the update",
    ),
    "seller, rejected": (
        _awards_that_wait("a.seller_id = ?", "dispute"),
        "your update was rejected: dispute it, or let it stand",
    ),
    "seller, sealed": (
        "SELECT r.id, t.title, 1, r.reveal_deadline_ms FROM bids b JOIN rounds r ON r.id = b.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE b.seller_id = ? AND r.state = 'revealing' "
        "AND b.valuation IS NULL AND r.reveal_deadline_ms > ?",
        "bidding has ended: reveal your bid, or it does not count",
    ),
    "arbiter": (
        _awards_that_wait("t.arbiter_id = ?", "ruling"),
        "disputes that wait for your ruling: {count}; without a ruling in time the seller is paid",
    ),
    "operator": (
        _awards_that_wait("COALESCE(t.arbiter_id, '') <> ? AND t.arbiter_id IS NULL", "ruling"),
        "disputes that wait for an operator's ruling: {count}; without one in time the seller is paid",
    ),
}


def waiting(connection: Connection, actor: Actor, now_ms: int) -> list[Waiting]:
    """What somebody can do before a deadline, soonest first."""
    found: list[Waiting] = []
    for name, (query, words) in _WAITING.items():
        if name.partition(",")[0] == actor.role:
            for round_id, title, count, until in sql.run(connection, query, actor.party_id, now_ms):
                found.append(Waiting(round_id, title, words.format(count=count), until))
    return sorted(found, key=lambda one: one.until_ms)


class Health(NamedTuple):
    """What an operator looks at first: what waits for somebody, and whether the market moves."""

    open_disputes: int
    open_rounds: int
    overdue_rounds: int
    log_entries: int
    newest_entry_ms: int


_DISPUTES = (
    "SELECT COUNT(*) FROM awards a JOIN rounds r ON r.id = a.round_id "
    "WHERE r.state = 'cleared' AND a.dispute IS NOT NULL AND a.ruling IS NULL"
)
_OVERDUE_MS = 60_000  # deadlines are acted on within seconds; after a minute something is wrong


def health(connection: Connection, now_ms: int) -> Health:
    """Counts disputes and rounds and reads the head of the log, for operators."""
    ((disputes,),) = sql.run(connection, _DISPUTES)
    ((open_rounds,),) = sql.run(connection, "SELECT COUNT(*) FROM rounds WHERE state = 'open'")
    late = "SELECT COUNT(*) FROM rounds WHERE state = 'open' AND bid_deadline_ms < ?"
    ((overdue,),) = sql.run(connection, late, now_ms - _OVERDUE_MS)
    ((size, at_ms),) = sql.run(connection, "SELECT size, at_ms FROM head")
    return Health(int(disputes), int(open_rounds), int(overdue), int(size), int(at_ms))


# ---- bookings and payouts -------------------------------------------------------------------------------------


def booking_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[answers.BookingLine]:
    """What was booked, newest first, and by which entry it was undone (operators)."""
    require(actor, "operator")
    query = select(log.c.seq, log.c.at_ms, log.c.actor, log.c.kind, log.c.subject, log.c.details)
    query = query.where(log.c.kind.in_(ledger.BOOKED))
    found = page(dict[str, str], connection, query, log.c.seq, None, after, limit)
    entries = [ledger.read_entry(list(row.values())) for row in found["items"]]
    oldest = min((one.seq for one in entries), default=0)
    undone = ledger.undone_by(connection, oldest)
    known = names_of(connection, sorted({who for one in entries for who in (one.party_id, one.actor)}))
    items: list[answers.BookingLine] = []
    for one in entries:
        undoes = one.fields.get("undoes")
        items.append(
            {
                "entry": one.seq,
                "created_ms": one.at_ms,
                "by": one.actor,
                "by_name": known.get(one.actor),
                "way": one.kind.removeprefix("money."),
                "party_id": one.party_id,
                "party_name": known.get(one.party_id),
                "amount_micro": one.amount_micro,
                "reference": str(one.fields.get("reference", "no reference")),
                "undoes": undoes if isinstance(undoes, int) else None,
                "undone_by": undone.get(one.seq),
            }
        )
    return {"items": items, "next": found["next"]}


def open_proposals(connection: Connection, actor: Actor) -> list[answers.ProposalLine]:
    """Bookings that wait for a second operator."""
    require(actor, "operator")
    waiting = ledger.open_proposals(connection)
    known = names_of(connection, sorted({who for one in waiting for who in (one.party_id, one.actor)}))
    return [
        {
            "entry": one.seq,
            "created_ms": one.at_ms,
            "by": one.actor,
            "by_name": known.get(one.actor),
            "way": str(one.fields["way"]),
            "party_id": one.party_id,
            "party_name": known.get(one.party_id),
            "amount_micro": one.amount_micro,
            "reference": str(one.fields["reference"]),
        }
        for one in waiting
    ]


def open_payouts(connection: Connection, party_id: str | None = None) -> list[answers.PayoutLine]:
    """Payouts that were asked for and not made yet, oldest first; of one party, or of all."""
    waiting = ledger.open_requests(connection, party_id)
    known = names_of(connection, sorted({one.party_id for one in waiting}))
    return [
        {
            "entry": one.seq,
            "created_ms": one.at_ms,
            "party_id": one.party_id,
            "party_name": known.get(one.party_id),
            "amount_micro": one.amount_micro,
        }
        for one in waiting
    ]
