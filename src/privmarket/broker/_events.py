"""What happened, for programs and pages that wait for it: events of the log by cursor, and as a stream.

An event says that something concerns its reader: a round opened, an award was made, money moved. It holds no bid
and no amount; whoever wants more asks for the round, the award or the statement. The cursor is the number of the
last log entry that was looked at, so nothing is missed or told twice, whatever happens in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._answers import Event, Events
from privmarket.broker._broker import Broker
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._parties import Actor

POLL_SECONDS = 0.5  # how often a stream looks whether the log has grown
KEEP_ALIVE_SECONDS = 15.0  # after which a silent stream says so, or proxies would close it
_SCANNED = 2000  # entries that one call looks through at most
# Everybody who may see a task hears of these.
_PUBLIC = (
    "task.published", "round.opened", "round.closed", "round.cleared", "round.delivered", "round.settled",
    "round.aborted",
)  # fmt: skip
# These are about one seller, and its buyer and arbiter hear of them, too.
_ABOUT_SELLER = (
    "award.made", "delivery.claimed", "delivery.judged", "dispute.opened", "dispute.ruled", "award.settled",
)  # fmt: skip
_ABOUT_PARTY = (
    "money.deposit", "money.withdraw", "money.requested", "party.suspended", "party.restored", "token.minted",
    "token.revoked",
)  # fmt: skip
KINDS = (*_PUBLIC, *_ABOUT_SELLER, *_ABOUT_PARTY)
_NEW = (
    "SELECT l.seq, l.at_ms, l.actor, l.kind, l.subject, l.details, "
    "COALESCE(t.id, u.id), COALESCE(t.buyer_id, u.buyer_id), COALESCE(t.arbiter_id, u.arbiter_id) FROM log l "
    "LEFT JOIN rounds r ON r.id = l.subject LEFT JOIN tasks t ON t.id = r.task_id "
    "LEFT JOIN tasks u ON u.id = l.subject "
    "WHERE l.kind IN (?*) AND l.seq > ? AND l.seq <= ? ORDER BY l.seq LIMIT ?"
)


def events_after(connection: Connection, actor: Actor, after: int, limit: int) -> Events:
    """Events that concern the caller and came after entry `after`, oldest first, and the next cursor.

    A page may be empty while more follow: go on until `next` equals `head`.
    """
    if after < 0:
        raise BrokerError(f"after is {after}", "send `next` of the answer before, or 0")
    ((head,),) = sql.run(connection, "SELECT size FROM head")
    rows = sql.run(connection, _NEW, list(KINDS), after, head, _SCANNED)
    items: list[Event] = []
    for row in rows:
        event = _event(actor, row)
        if event is not None:
            items.append(event)
            if len(items) == limit:
                return {"items": items, "next": event["seq"], "head": head}
    reached = rows[-1][0] if len(rows) == _SCANNED else head
    return {"items": items, "next": max(reached, after), "head": head}


def _event(actor: Actor, row: tuple[Any, ...]) -> Event | None:
    """An entry as the caller may see it; None where it does not concern it."""
    seq, at_ms, by, kind, subject, details, task_id, buyer_id, arbiter_id = row
    seller_id = None
    if kind in _ABOUT_SELLER:
        seller_id = json.loads(details).get("seller_id", by)
    party_id = subject if kind in _ABOUT_PARTY else seller_id
    concerned = actor.role == "operator" or actor.party_id in (party_id, buyer_id, arbiter_id)
    if not concerned and not (kind in _PUBLIC and actor.role == "seller"):
        return None
    is_round = subject.startswith("round-")
    return {
        "seq": seq,
        "at_ms": at_ms,
        "kind": kind,
        "task_id": task_id,
        "round_id": subject if is_round else None,
        "party_id": party_id,
    }


def log_size(broker: Broker) -> int:
    """How many entries the log has, by whichever broker they were written."""
    with broker.database.read() as connection:
        ((size,),) = sql.run(connection, "SELECT size FROM head")
    return int(size)


async def stream(
    size: Callable[[], Awaitable[int]],
    told: Callable[[int], Awaitable[tuple[str, int]]],
    after: int,
    is_over: Callable[[], bool],
    *,
    poll_seconds: float = POLL_SECONDS,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> AsyncIterator[str]:
    """Server-sent events: whatever `told` says when the log has grown beyond `after`, until `is_over`.

    Args:
        size: how long the log is now.
        told: the text of the events after an entry, and the entry up to which they go.
        after: the cursor from which to begin.
    """
    yield "retry: 2000\n\n"
    silent = 0.0
    while not is_over():
        if await size() > after:
            text, after = await told(after)
            if text:
                yield text
                silent = 0.0
                continue
        silent += poll_seconds
        if silent >= keep_alive_seconds:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(poll_seconds)


def as_text(found: Events) -> str:
    """Events in the format of server-sent events; each carries its cursor as its id."""
    lines = []
    for event in found["items"]:
        lines.append(f"id: {event['seq']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n")
    return "".join(lines)
