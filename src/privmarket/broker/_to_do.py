"""The steps that a party may still take before a deadline, soonest first."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._deliveries import AWAITED
from privmarket.broker._parties import Actor


class Waiting(NamedTuple):
    """One thing to do: in which round, of which task, what, and until when."""

    round_id: str
    title: str
    text: str
    until_ms: int


def _awards_that_wait(whose: str, step: str) -> str:
    """A query for rounds that wait for a step of `deliveries.AWAITED`, and for how many awards."""
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
    for name, (query, text) in _WAITING.items():
        if name.partition(",")[0] == actor.role:
            for round_id, title, count, until in sql.run(connection, query, actor.party_id, now_ms):
                found.append(Waiting(round_id, title, text.format(count=count), until))
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
_OVERDUE_MS = 60_000  # a deadline is met within seconds; a minute late, something is wrong


def health(connection: Connection, now_ms: int) -> Health:
    """How the market is, for operators."""
    ((disputes,),) = sql.run(connection, _DISPUTES)
    ((open_rounds,),) = sql.run(connection, "SELECT COUNT(*) FROM rounds WHERE state = 'open'")
    late = "SELECT COUNT(*) FROM rounds WHERE state = 'open' AND bid_deadline_ms < ?"
    ((overdue,),) = sql.run(connection, late, now_ms - _OVERDUE_MS)
    ((size, at_ms),) = sql.run(connection, "SELECT size, at_ms FROM head")
    return Health(int(disputes), int(open_rounds), int(overdue), int(size), int(at_ms))
