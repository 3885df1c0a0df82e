"""What each role may see. Somebody else's things are absent, not forbidden: both look like 404.

Sellers see tasks, rounds and themselves; buyers see their own tasks, totals and winners, never a losing bid;
arbiters see rounds with a dispute that is theirs; operators see everything, but bids only once the auction is over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, or_, select

from privmarket.broker import deliveries, ledger, lifecycle, merkle, sql, wallets
from privmarket.broker import log as the_log
from privmarket.broker.deliveries import Deadlines
from privmarket.broker.http_errors import BrokerError, NotFoundError
from privmarket.broker.parties import Actor, require
from privmarket.broker.schema import awards, bids, log, names, parties, postings, rounds, tasks, tokens

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
    """A party: balance, a seller's wallet, and how reliable it has been."""
    row = connection.execute(select(parties).where(parties.c.id == party_id)).first()
    if row is None:
        raise NotFoundError(f"no party {party_id}", "GET /v1/me shows yourself")
    about = {"id": row.id, "role": row.role, "name": names_of(connection, [party_id]).get(party_id)}
    about |= {"created_ms": row.created_ms, "public_key": row.public_key, "suspended": row.suspended}
    about["dataset_sha256"] = row.dataset_sha256
    about["balance_micro"] = ledger.balance(connection, ledger.party(party_id))
    about["reliability"] = reliability(connection, party_id, row.role)
    return {**about, "wallet": wallet(connection, party_id) if row.role == "seller" else None}


def names_of(connection: Connection, party_ids: Sequence[str]) -> dict[str, str]:
    """Names by id; erased ones are missing."""
    found = connection.execute(select(names.c.party_id, names.c.name).where(names.c.party_id.in_(party_ids)))
    return {row[0]: row[1] for row in found}


_COUNTS = (
    "COUNT(*), SUM(CASE WHEN claim_sha256 IS NOT NULL THEN 1 ELSE 0 END), "
    "SUM(CASE WHEN usable = FALSE AND COALESCE(ruling, FALSE) = FALSE THEN 1 ELSE 0 END) "
)
_OF_SELLER = f"SELECT {_COUNTS} FROM awards WHERE seller_id = ? AND charge <> 'reserved'"
_OF_SELLERS = f"SELECT seller_id, {_COUNTS} FROM awards WHERE seller_id IN (?*) AND charge <> 'reserved'"
_OF_BUYER = (
    "SELECT COUNT(*), SUM(CASE WHEN a.usable = FALSE THEN 1 ELSE 0 END), "
    "SUM(CASE WHEN a.ruling = TRUE THEN 1 ELSE 0 END) FROM awards a JOIN rounds r ON r.id = a.round_id "
    "JOIN tasks t ON t.id = r.task_id WHERE t.buyer_id = ? AND a.charge <> 'reserved'"
)


def reliability(connection: Connection, party_id: str, role: str) -> Answer | None:
    """A seller's sales, deliveries and rejections, or a buyer's purchases, rejections and overruled ones, counted.

    None for other roles.
    """
    if role not in ("seller", "buyer"):
        return None
    row = sql.run(connection, _OF_SELLER if role == "seller" else _OF_BUYER, party_id)[0]
    keys = ("sales", "delivered", "rejected") if role == "seller" else ("bought", "rejected", "overruled")
    return {key: int(value or 0) for key, value in zip(keys, row, strict=True)}


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
    """Every movement on a party's account, newest first; `seq` is its entry in the log."""
    query = (
        select(postings.c.seq, log.c.kind, log.c.subject, log.c.at_ms.label("created_ms"), postings.c.amount_micro)
        .select_from(postings.join(log, postings.c.seq == log.c.seq))
        .where(postings.c.account == ledger.party(party_id))
    )
    return page(connection, query, postings.c.seq, None, after, limit)


def own_tokens(connection: Connection, actor: Actor, after: str | None, limit: int) -> Answer:
    """The caller's tokens, by id; never their text."""
    query = select(tokens.c.id, tokens.c.scope, tokens.c.created_ms, tokens.c.expires_ms, tokens.c.revoked_ms)
    query = query.where(tokens.c.party_id == actor.party_id)
    return page(connection, query, tokens.c.created_ms, tokens.c.id, after, limit)


def task_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Answer:
    """Tasks: a buyer's or arbiter's own, everybody's for sellers and operators."""
    query = select(tasks)
    if actor.role in ("buyer", "arbiter"):
        query = query.where((tasks.c.buyer_id if actor.role == "buyer" else tasks.c.arbiter_id) == actor.party_id)
    found = page(connection, query, tasks.c.created_ms, tasks.c.id, after, limit)
    return {**found, "items": [_task(item) for item in found["items"]]}


def task(connection: Connection, actor: Actor, task_id: str) -> Answer:
    """One task."""
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
    others = {"buyer": "buyer_id", "arbiter": "arbiter_id"}.get(actor.role)
    if row is None or (others is not None and row._mapping[others] != actor.party_id):
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
    hidden = set() if actor.role == "operator" else {"seed"}
    if actor.role == "seller":
        hidden |= {"bids", "revealed", "sellers", "awarded_micro", "paid_micro", "total_epsilon", "fault"}
        hidden.add("model_accuracy")
    return {name: value for name, value in fields.items() if name not in hidden}


def bid_list(connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int) -> Answer:
    """A seller's own bid; all of them for an operator once the auction is over. Replaced bids are in the log."""
    require(actor, "seller", "operator")
    row = visible_round(connection, actor, round_id)
    query = select(bids).where(bids.c.round_id == round_id)
    if actor.role == "seller":
        query = query.where(bids.c.seller_id == actor.party_id)
    elif row.state in lifecycle.TAKING_BIDS:
        return {"items": [], "next": None}  # sealed, from everybody
    return page(connection, query, bids.c.seq, None, after, limit, rising=True)


def outcome(connection: Connection, actor: Actor, round_id: str) -> Answer:
    """What became of a seller's bid, and why."""
    require(actor, "seller")
    round_ = visible_round(connection, actor, round_id)
    mine = (bids.c.round_id == round_id) & (bids.c.seller_id == actor.party_id)
    bid = connection.execute(select(bids).where(mine)).first()
    if bid is None:
        raise NotFoundError(f"no bid of yours in round {round_id}", "GET /v1/tasks lists what is offered")
    sold = connection.execute(
        select(awards.c.epsilon).where((awards.c.round_id == round_id) & (awards.c.seller_id == actor.party_id))
    ).scalar()
    answer = {"round_id": round_id, "state": round_.state, "asked": bid.valuation, "sold_epsilon": sold or 0.0}
    return {**answer, "top_price": round_.top_price, "why": _why(round_, bid, sold)}


def _why(round_: Any, bid: Any, sold: float | None) -> str:
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


def award_list(connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int) -> Answer:
    """Who sells what: a seller sees itself, the buyer, the arbiter and operators see all winners."""
    round_ = visible_round(connection, actor, round_id)
    offered = (bids.c.round_id == awards.c.round_id) & (bids.c.seller_id == awards.c.seller_id)
    query = select(awards, bids.c.data_size).join(bids, offered).where(awards.c.round_id == round_id)
    if actor.role == "seller":
        query = query.where(awards.c.seller_id == actor.party_id)
    found = page(connection, query, awards.c.seq, None, after, limit, rising=True)
    if round_.delivery_deadline_ms is not None:
        until = Deadlines.of(round_)
        for item in found["items"]:
            item["decided_ms"] = deliveries.decided_at(SimpleNamespace(**item), until)
    return found


def cohort(connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int) -> Answer:
    """The registered keys of a round's sellers, for themselves, the buyer and operators: who may be in its sum."""
    visible_round(connection, actor, round_id)
    mine = (awards.c.round_id == round_id) & (awards.c.seller_id == actor.party_id)
    if actor.role == "seller" and connection.execute(select(awards.c.seq).where(mine)).first() is None:
        raise NotFoundError(f"no sale of yours in round {round_id}", "GET /v1/rounds/{id}/outcome says why")
    query = (
        select(awards.c.seller_id, parties.c.public_key, awards.c.seq)
        .join(parties, parties.c.id == awards.c.seller_id)
        .where((awards.c.round_id == round_id) & parties.c.public_key.is_not(None))
    )
    return page(connection, query, awards.c.seq, None, after, limit, rising=True)


_WAITING = {
    "buyer": (
        "SELECT r.id, t.title, COUNT(*), r.review_deadline_ms FROM awards a JOIN rounds r ON r.id = a.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE t.buyer_id = ? AND r.state = 'cleared' AND a.usable IS NULL "
        "AND a.claim_sha256 IS NOT NULL AND r.review_deadline_ms > ? GROUP BY r.id, t.title, r.review_deadline_ms",
        "updates that wait for your word: {count}; silence accepts them",
    ),
    "seller": (
        "SELECT r.id, t.title, 1, r.delivery_deadline_ms FROM awards a JOIN rounds r ON r.id = a.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE a.seller_id = ? AND r.state = 'cleared' "
        "AND a.claim_sha256 IS NULL AND r.delivery_deadline_ms > ?",
        "you sold: claim your delivery, then send the update",
    ),
    "seller, rejected": (
        "SELECT r.id, t.title, 1, r.dispute_deadline_ms FROM awards a JOIN rounds r ON r.id = a.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE a.seller_id = ? AND r.state = 'cleared' AND a.usable = FALSE "
        "AND a.dispute IS NULL AND r.dispute_deadline_ms > ?",
        "your update was rejected: dispute it, or let it stand",
    ),
    "seller, sealed": (
        "SELECT r.id, t.title, 1, r.reveal_deadline_ms FROM bids b JOIN rounds r ON r.id = b.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE b.seller_id = ? AND r.state = 'revealing' "
        "AND b.valuation IS NULL AND r.reveal_deadline_ms > ?",
        "bidding has ended: reveal your bid, or it does not count",
    ),
    "arbiter": (
        "SELECT r.id, t.title, COUNT(*), r.ruling_deadline_ms FROM awards a JOIN rounds r ON r.id = a.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE t.arbiter_id = ? AND r.state = 'cleared' AND a.dispute IS NOT NULL "
        "AND a.ruling IS NULL AND r.ruling_deadline_ms > ? GROUP BY r.id, t.title, r.ruling_deadline_ms",
        "disputes that wait for your ruling: {count}; silence pays the seller",
    ),
    "operator": (
        "SELECT r.id, t.title, COUNT(*), r.ruling_deadline_ms FROM awards a JOIN rounds r ON r.id = a.round_id "
        "JOIN tasks t ON t.id = r.task_id WHERE COALESCE(t.arbiter_id, '') <> ? AND t.arbiter_id IS NULL "
        "AND r.state = 'cleared' AND a.dispute IS NOT NULL AND a.ruling IS NULL AND r.ruling_deadline_ms > ? "
        "GROUP BY r.id, t.title, r.ruling_deadline_ms",
        "disputes that wait for an operator's ruling: {count}; silence pays the seller",
    ),
}


def waiting(connection: Connection, actor: Actor, now_ms: int) -> list[Answer]:
    """What somebody must do before a deadline, soonest first."""
    found = []
    for name, (query, text) in _WAITING.items():
        if name.partition(",")[0] == actor.role:
            for round_id, title, count, until in sql.run(connection, query, actor.party_id, now_ms):
                words = text.format(count=count)
                found.append({"round_id": round_id, "title": title, "text": words, "until_ms": until})
    return sorted(found, key=lambda one: one["until_ms"])


def _waiting_claims(connection: Connection, actor: Actor, round_id: str) -> Any:
    visible_round(connection, actor, round_id)
    return (awards.c.round_id == round_id) & awards.c.usable.is_(None) & awards.c.claim_sha256.is_not(None)


def unanswered_claims(connection: Connection, actor: Actor, round_id: str) -> int:
    """How many sellers say that they delivered and wait for the buyer's receipt."""
    count = select(func.count()).select_from(awards).where(_waiting_claims(connection, actor, round_id))
    return int(connection.execute(count).scalar_one())


def claimed_sellers(connection: Connection, actor: Actor, round_id: str) -> list[str]:
    """Who they are, for the round's buyer."""
    require(actor, "buyer")
    waiting = select(awards.c.seller_id).where(_waiting_claims(connection, actor, round_id))
    return [str(name) for name in connection.execute(waiting).scalars()]


def add_names(connection: Connection, items: list[Answer]) -> None:
    """Each item's seller by name, with its record; for the pages of buyers, arbiters and operators."""
    sellers = [item["seller_id"] for item in items]
    known = names_of(connection, sellers)
    query = f"{_OF_SELLERS} GROUP BY seller_id"
    records = {row[0]: row[1:] for row in sql.run(connection, query, sellers)} if sellers else {}
    for item in items:
        item["seller_name"] = known.get(item["seller_id"])
        sales, delivered, rejected = records.get(item["seller_id"], (0, 0, 0))
        item["seller_record"] = _record(sales, delivered, rejected)


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
        parties.c.id,
        parties.c.role,
        names.c.name,
        parties.c.created_ms,
        parties.c.cap_epsilon,
        parties.c.delta,
        parties.c.public_key,
        parties.c.suspended,
    ).select_from(parties.outerjoin(names, names.c.party_id == parties.c.id))
    return page(connection, query, parties.c.created_ms, parties.c.id, after, limit)


def party(connection: Connection, actor: Actor, party_id: str) -> Answer:
    """One party, for operators and itself."""
    if actor.role != "operator" and actor.party_id != party_id:
        raise NotFoundError(f"no party {party_id}", "GET /v1/me shows yourself")
    return me(connection, party_id)


_LOG = (log.c.seq, log.c.at_ms, log.c.actor, log.c.kind, log.c.subject, log.c.details, log.c.hash)


def log_list(
    connection: Connection, actor: Actor, kind: str | None, about: str | None, after: str | None, limit: int
) -> Answer:
    """The log, for operators, newest first: of one kind, or about one party, task or round."""
    require(actor, "operator")
    query = select(*_LOG)
    if kind is not None:
        query = query.where(log.c.kind == kind)
    if about is not None:
        query = query.where(or_(log.c.subject == about, log.c.actor == about))
    found = page(connection, query, log.c.seq, None, after, limit)
    bid_on = {item["subject"] for item in found["items"] if item["kind"].startswith("bid.")}
    sealed = select(rounds.c.id).where(rounds.c.id.in_(bid_on), rounds.c.state.in_(lifecycle.TAKING_BIDS))
    hidden = set(connection.execute(sealed).scalars()) if bid_on else set()
    for item in found["items"]:
        if item["kind"].startswith("bid.") and item["subject"] in hidden:
            item["details"] = "sealed until the auction"
    return found


def proof(connection: Connection, actor: Actor, seq: int, size: int | None) -> Answer:
    """An entry that concerns the caller, and the hashes that lead from it to the root over the first `size`."""
    head = the_log.read_head(connection)
    size = size or head.size
    if not 1 <= seq <= size <= head.size:
        raise BrokerError(f"entry {seq} of the first {size}", f"the log has {head.size} entries")
    entry = the_log.entry(connection, seq)
    if actor.role != "operator" and actor.party_id not in (entry.actor, entry.subject):
        details = entry.fields()
        if actor.party_id not in (details.get("seller_id"), details.get("buyer_id")):
            raise NotFoundError(f"no entry {seq} that concerns you", "your bids and statement name their entries")
    sealed = entry.kind.startswith("bid.") and entry.actor != actor.party_id
    if sealed and visible_round(connection, actor, entry.subject).state in lifecycle.TAKING_BIDS:
        raise NotFoundError(f"entry {seq} is sealed until the auction", "ask again later")
    path = merkle.inclusion_proof(the_log.Stored(connection), seq - 1, size)
    return {"entry": list(entry), "size": size, "path": [one.hex() for one in path]}


def consistency(connection: Connection, old: int, new: int | None) -> Answer:
    """The hashes that show that the log of `new` entries begins with the log of `old`. For anybody."""
    head = the_log.read_head(connection)
    new = new or head.size
    if not 1 <= old <= new <= head.size:
        raise BrokerError(f"from {old} to {new} entries", f"the log has {head.size}")
    path = merkle.consistency_proof(the_log.Stored(connection), old, new)
    return {"old": old, "new": new, "path": [one.hex() for one in path]}


def rounded(micro: int) -> str:
    """Money with two decimals, never more than there is."""
    cents = abs(micro) // 10_000
    return f"{'−' if micro < 0 else ''}{cents // 100:,}.{cents % 100:02d}"


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
