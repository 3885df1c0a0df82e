"""What each role may see. Somebody else's things are absent, not forbidden: both look like 404.

Sellers see tasks, rounds and themselves; buyers see their own tasks, totals and winners, never a losing bid;
operators see everything, but sealed bids only once the auction is over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, or_, select

from privmarket.broker import ledger, wallets
from privmarket.broker.errors import BrokerError, NotFoundError
from privmarket.broker.people import Actor, require
from privmarket.broker.schema import audit, awards, bids, parties, postings, rounds, tasks, tokens, transfers

PAGE_LIMIT = 200
Answer = dict[str, Any]


def page(
    connection: Connection,
    query: Select[Any],
    number: Any,
    name: Any,
    after: str | None,
    limit: int,
    *,
    rising: bool = False,
) -> Answer:
    """One page, newest first unless `rising`, and the cursor of the next. Keys: an integer, then perhaps an id."""
    if not 1 <= limit <= PAGE_LIMIT:
        raise BrokerError(f"limit is {limit}", f"ask for 1 to {PAGE_LIMIT} items")
    if after is not None:
        at, _, last = after.partition("~")
        if not (at.isascii() and at.isdigit() and len(at) < 19) or "\x00" in last:
            raise BrokerError("unknown cursor", "send `next` of the page before as `after`")
        beyond = number > int(at) if rising else number < int(at)
        if name is not None:
            beyond = or_(beyond, and_(number == int(at), name > last if rising else name < last))
        query = query.where(beyond)
    keys = [number] if name is None else [number, name]
    order = keys if rising else [key.desc() for key in keys]
    rows = connection.execute(query.order_by(*order).limit(limit + 1)).mappings().all()
    items = [dict(row) for row in rows[:limit]]
    more = len(rows) > limit
    cursor = "~".join(str(items[-1][key.name]) for key in keys) if more else None
    return {"items": items, "next": cursor}


def me(connection: Connection, party_id: str) -> Answer:
    """A party: balance, and a seller's wallet."""
    row = connection.execute(select(parties).where(parties.c.id == party_id)).first()
    if row is None:
        raise NotFoundError(f"no party {party_id}", "GET /v1/me shows yourself")
    about = {"id": row.id, "role": row.role, "name": row.name, "created_ms": row.created_ms}
    about["balance_micro"] = ledger.balance(connection, ledger.party(party_id))
    return {**about, "wallet": wallet(connection, party_id) if row.role == "seller" else None}


def wallet(connection: Connection, seller_id: str) -> Answer:
    """Cap, δ, what was spent by the accountant, and the share that the filter has left."""
    return wallets_of(connection, [seller_id])[seller_id]


def wallets_of(connection: Connection, seller_ids: Sequence[str]) -> dict[str, Answer]:
    """The same for several sellers, read together."""
    records = wallets.of_sellers(connection, seller_ids)
    return {
        name: {
            "cap_epsilon": records[name].cap_epsilon,
            "delta": records[name].delta,
            "spent_epsilon": spent,
            "remaining_share": share,
            "measure": records[name].measure,
            "sales": len(records[name].events),
        }
        for name, (spent, share) in wallets.standing(records).items()
    }


def statement(connection: Connection, party_id: str, after: str | None, limit: int) -> Answer:
    """Every movement on a party's account, newest first."""
    query = (
        select(
            postings.c.id, transfers.c.kind, transfers.c.subject, transfers.c.created_ms, postings.c.amount_micro
        )
        .select_from(postings.join(transfers, postings.c.transfer_id == transfers.c.id))
        .where(postings.c.account == ledger.party(party_id))
    )
    return page(connection, query, postings.c.id, None, after, limit)


def own_tokens(connection: Connection, actor: Actor, after: str | None, limit: int) -> Answer:
    """The caller's tokens, by id; never their text."""
    query = select(tokens.c.id, tokens.c.scope, tokens.c.created_ms, tokens.c.revoked_ms)
    query = query.where(tokens.c.party_id == actor.party_id)
    return page(connection, query, tokens.c.created_ms, tokens.c.id, after, limit)


def task_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Answer:
    """Tasks: a buyer's own, everybody's for sellers and operators."""
    query = select(tasks) if actor.role != "buyer" else select(tasks).where(tasks.c.buyer_id == actor.party_id)
    found = page(connection, query, tasks.c.created_ms, tasks.c.id, after, limit)
    return {**found, "items": [_task(item) for item in found["items"]]}


def task(connection: Connection, actor: Actor, task_id: str) -> Answer:
    """One task."""
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None or (actor.role == "buyer" and row.buyer_id != actor.party_id):
        raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists what you may see")
    return _task(dict(row._mapping))


def _task(fields: Answer) -> Answer:
    return {**fields, "settings": json.loads(fields["settings"])}


def round_list(connection: Connection, actor: Actor, task_id: str, after: str | None, limit: int) -> Answer:
    """The rounds of one task, newest first."""
    task(connection, actor, task_id)
    query = select(rounds).where(rounds.c.task_id == task_id)
    found = page(connection, query, rounds.c.number, None, after, limit)
    return {**found, "items": [_round(actor, item) for item in found["items"]]}


def one_round(connection: Connection, actor: Actor, round_id: str) -> Answer:
    """One round, as the caller's role may see it."""
    row = visible_round(connection, actor, round_id)
    return _round(actor, dict(row._mapping))


def visible_round(connection: Connection, actor: Actor, round_id: str) -> Row[Any]:
    """The stored round, or 404 for somebody whose round it is not."""
    row = connection.execute(select(rounds).where(rounds.c.id == round_id)).first()
    if row is None:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists what is offered")
    task(connection, actor, row.task_id)
    return row


def _round(actor: Actor, fields: Answer) -> Answer:
    hidden = {"seed"} if fields["state"] == "open" or actor.role != "operator" else set()
    if actor.role == "seller":
        hidden |= {"bids", "sellers", "awarded_micro", "paid_micro", "total_epsilon", "fault"}
    return {name: value for name, value in fields.items() if name not in hidden}


def bid_list(connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int) -> Answer:
    """A seller's own bids; all of them for an operator once the auction is over."""
    require(actor, "seller", "operator")
    row = visible_round(connection, actor, round_id)
    query = select(bids).where(bids.c.round_id == round_id)
    if actor.role == "seller":
        query = query.where(bids.c.seller_id == actor.party_id)
    elif row.state == "open":
        return {"items": [], "next": None}  # sealed, from everybody
    return page(connection, query, bids.c.id, None, after, limit, rising=True)


def award_list(connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int) -> Answer:
    """Who sells what: a seller sees itself, the buyer and operators see all winners."""
    visible_round(connection, actor, round_id)
    query = select(awards).where(awards.c.round_id == round_id)
    if actor.role == "seller":
        query = query.where(awards.c.seller_id == actor.party_id)
    return page(connection, query, awards.c.id, None, after, limit, rising=True)


def _waiting_claims(connection: Connection, actor: Actor, round_id: str) -> Any:
    visible_round(connection, actor, round_id)
    return (awards.c.round_id == round_id) & awards.c.usable.is_(None) & awards.c.claim_sha256.is_not(None)


def unanswered_claims(connection: Connection, actor: Actor, round_id: str) -> int:
    """How many sellers say that they delivered and wait for the buyer's word."""
    count = select(func.count()).select_from(awards).where(_waiting_claims(connection, actor, round_id))
    return int(connection.execute(count).scalar_one())


def claimed_sellers(connection: Connection, actor: Actor, round_id: str) -> list[str]:
    """Who they are, for the round's buyer."""
    require(actor, "buyer")
    waiting = select(awards.c.seller_id).where(_waiting_claims(connection, actor, round_id))
    return [str(name) for name in connection.execute(waiting).scalars()]


def add_names(connection: Connection, items: list[Answer]) -> None:
    """Each item's seller by name; for operators' pages."""
    wanted = [item["seller_id"] for item in items]
    found = connection.execute(select(parties.c.id, parties.c.name).where(parties.c.id.in_(wanted)))
    names = {row[0]: row[1] for row in found}
    for item in items:
        item["seller_name"] = names.get(item["seller_id"])


def add_balances(connection: Connection, items: list[Answer]) -> None:
    """What each party holds; for operators' pages."""
    accounts = [ledger.party(item["id"]) for item in items]
    held = select(postings.c.account, func.sum(postings.c.amount_micro)).where(postings.c.account.in_(accounts))
    sums = {row[0]: row[1] for row in connection.execute(held.group_by(postings.c.account))}
    for item in items:
        item["balance_micro"] = int(sums.get(ledger.party(item["id"]), 0))


def party_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Answer:
    """Everybody, for operators."""
    require(actor, "operator")
    query = select(
        parties.c.id, parties.c.role, parties.c.name, parties.c.created_ms, parties.c.cap_epsilon, parties.c.delta
    )
    return page(connection, query, parties.c.created_ms, parties.c.id, after, limit)


def party(connection: Connection, actor: Actor, party_id: str) -> Answer:
    """One party, for operators and itself."""
    if actor.role != "operator" and actor.party_id != party_id:
        raise NotFoundError(f"no party {party_id}", "GET /v1/me shows yourself")
    return me(connection, party_id)


def log(connection: Connection, actor: Actor, kind: str | None, after: str | None, limit: int) -> Answer:
    """The audit log, for operators, newest first."""
    require(actor, "operator")
    query = select(audit) if kind is None else select(audit).where(audit.c.kind == kind)
    return page(connection, query, audit.c.seq, None, after, limit)


def exact(micro: int) -> str:
    """Money to the last micro-unit, with at least two decimals."""
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'−' if micro < 0 else ''}{whole:,}.{decimals}"


def totals(connection: Connection, actor: Actor) -> Answer:
    """All the money there is, and where it stands."""
    require(actor, "operator")
    paid = select(func.coalesce(func.sum(rounds.c.paid_micro), 0))
    return {**ledger.totals(connection), "paid_micro": int(connection.execute(paid).scalar_one())}
