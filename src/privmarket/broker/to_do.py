"""What waits for somebody: the words that a party may still say before a deadline, soonest first."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from privmarket.broker import sql
from privmarket.broker.parties import Actor


class Waiting(NamedTuple):
    """One thing to do: in which round, of which task, what, and until when."""

    round_id: str
    title: str
    text: str
    until_ms: int


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


def waiting(connection: Connection, actor: Actor, now_ms: int) -> list[Waiting]:
    """What somebody must do before a deadline, soonest first."""
    found: list[Waiting] = []
    for name, (query, text) in _WAITING.items():
        if name.partition(",")[0] == actor.role:
            for round_id, title, count, until in sql.run(connection, query, actor.party_id, now_ms):
                found.append(Waiting(round_id, title, text.format(count=count), until))
    return sorted(found, key=lambda one: one.until_ms)
