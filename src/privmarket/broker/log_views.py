"""What each role may see of the log: its lines, and proofs about them."""

from __future__ import annotations

from sqlalchemy import Connection, or_, select

from privmarket.broker import answers, lifecycle, merkle
from privmarket.broker import log as the_log
from privmarket.broker.answers import Page
from privmarket.broker.http_errors import BrokerError, NotFoundError
from privmarket.broker.parties import Actor, require
from privmarket.broker.schema import log, rounds
from privmarket.broker.views import page, visible_round

_LOG = (log.c.seq, log.c.at_ms, log.c.actor, log.c.kind, log.c.subject, log.c.details, log.c.hash)


def log_list(
    connection: Connection, actor: Actor, kind: str | None, about: str | None, after: str | None, limit: int
) -> Page[answers.LogLine]:
    """The log, for operators, newest first: of one kind, or about one party, task or round."""
    require(actor, "operator")
    query = select(*_LOG)
    if kind is not None:
        query = query.where(log.c.kind == kind)
    if about is not None:
        query = query.where(or_(log.c.subject == about, log.c.actor == about))
    found = page(answers.LogLine, connection, query, log.c.seq, None, after, limit)
    bid_on = {item["subject"] for item in found["items"] if item["kind"].startswith("bid.")}
    sealed = select(rounds.c.id).where(rounds.c.id.in_(bid_on), rounds.c.state.in_(lifecycle.TAKING_BIDS))
    hidden = set(connection.execute(sealed).scalars()) if bid_on else set()
    for item in found["items"]:
        if item["kind"].startswith("bid.") and item["subject"] in hidden:
            item["details"] = "sealed until the auction"
    return found


def proof(connection: Connection, actor: Actor, seq: int, size: int | None) -> answers.Inclusion:
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


def consistency(connection: Connection, old: int, new: int | None) -> answers.Consistency:
    """The hashes that show that the log of `new` entries begins with the log of `old`. For anybody."""
    head = the_log.read_head(connection)
    new = new or head.size
    if not 1 <= old <= new <= head.size:
        raise BrokerError(f"from {old} to {new} entries", f"the log has {head.size}")
    path = merkle.consistency_proof(the_log.Stored(connection), old, new)
    return {"old": old, "new": new, "path": [one.hex() for one in path]}
