"""Rows of the tables, typed, and the few lookups that every step of a round begins with.

One class per table, its fields the columns in their order. Whoever reads a row here knows its types; whoever
rebuilds one from the log (`entry_rules`) gets the same class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._http_errors import ConflictError, NotFoundError


class PartyRow(NamedTuple):
    """A party; `cap_epsilon` and `delta` are a seller's wallet."""

    id: str
    role: str
    name_hash: str
    created_ms: int
    cap_epsilon: float | None
    delta: float | None
    public_key: str | None
    signs: str
    dataset_sha256: str | None
    suspended: str | None
    erased_ms: int | None


class TaskRow(NamedTuple):
    """A published task; `settings` is JSON text."""

    id: str
    buyer_id: str
    title: str
    mechanism: str
    settings: str
    budget_micro: int
    rounds: int
    epsilon_max: float
    sampling_rate: float
    steps: int
    delta: float
    sealing: str
    buyer_may_close: bool
    bid_seconds: int
    reveal_seconds: int
    delivery_seconds: int
    review_seconds: int
    dispute_seconds: int
    ruling_seconds: int
    arbiter_id: str | None
    delivery: str
    attested: bool
    trust: str
    honest_share: float
    nonce: str | None
    created_ms: int


class RoundRow(NamedTuple):
    """A round; deadlines are None until its state sets them."""

    id: str
    task_id: str
    number: int
    state: str
    budget_micro: int
    mechanism_version: str
    opened_ms: int
    bid_deadline_ms: int
    closed_ms: int | None
    reveal_deadline_ms: int | None
    delivery_deadline_ms: int | None
    review_deadline_ms: int | None
    dispute_deadline_ms: int | None
    ruling_deadline_ms: int | None
    ended_ms: int | None
    bids: int
    revealed: int
    sellers: int
    awarded_micro: int
    paid_micro: int
    total_epsilon: float
    top_price: float | None
    model_accuracy: float | None
    seed: int | None
    fault: str | None


class BidRow(NamedTuple):
    """A bid; its numbers and nonce are None until it is revealed where the bidder seals."""

    round_id: str
    seller_id: str
    seq: int
    commitment: str
    signature: str | None
    nonce: str | None
    valuation: float | None
    epsilon: float | None
    data_size: float | None
    accuracy: float | None
    trimmed_epsilon: float | None
    created_ms: int


class AwardRow(NamedTuple):
    """What a seller sold, and what became of it."""

    round_id: str
    seller_id: str
    seq: int
    epsilon: float
    noise_multiplier: float
    payment_micro: int
    claim_sha256: str | None
    claimed_ms: int | None
    key_sha256: str | None
    key: str | None
    usable: bool | None
    fault: str | None
    dispute: str | None
    ruling: bool | None
    charge: str
    settled_seq: int | None
    paid_micro: int


class PayoutRow(NamedTuple):
    """What a party asked to be paid out; `paid_seq` is the entry that paid it."""

    seq: int
    party_id: str
    amount_micro: int
    nonce: str | None
    paid_seq: int | None


_PARTY = f"SELECT {', '.join(PartyRow._fields)} FROM parties WHERE id = ?"
_BID = f"SELECT {', '.join(BidRow._fields)} FROM bids WHERE round_id = ? AND seller_id = ?"
_PAYOUT = f"SELECT {', '.join(PayoutRow._fields)} FROM payouts WHERE seq = ?"
_TASK = f"SELECT {', '.join(TaskRow._fields)} FROM tasks WHERE id = ?"
_ROUND = f"SELECT {', '.join(RoundRow._fields)} FROM rounds WHERE id = ?"
_AWARDS = f"SELECT {', '.join(AwardRow._fields)} FROM awards WHERE round_id = ?"
_TRUTH = {0: False, 1: True, None: None}  # SQLite has no Booleans of its own


def find_party(connection: Connection, party_id: str) -> PartyRow | None:
    """The party of that id; None where there is none."""
    rows = sql.run(connection, _PARTY, party_id)
    return PartyRow(*rows[0]) if rows else None


def find_bid(connection: Connection, round_id: str, seller_id: str) -> BidRow | None:
    """A seller's bid in a round; None where there is none."""
    rows = sql.run(connection, _BID, round_id, seller_id)
    return BidRow(*rows[0]) if rows else None


def find_payout(connection: Connection, seq: int) -> PayoutRow | None:
    """The request for a payout in log entry `seq`; None where there is none."""
    rows = sql.run(connection, _PAYOUT, seq)
    return PayoutRow(*rows[0]) if rows else None


def find_task(connection: Connection, task_id: str) -> TaskRow | None:
    """The task of that id; None where there is none."""
    rows = sql.run(connection, _TASK, task_id)
    if not rows:
        return None
    row = TaskRow(*rows[0])
    return row._replace(buyer_may_close=bool(row.buyer_may_close), attested=bool(row.attested))


def find_round(connection: Connection, round_id: str) -> RoundRow | None:
    """The round of that id; None where there is none."""
    rows = sql.run(connection, _ROUND, round_id)
    return RoundRow(*rows[0]) if rows else None


def round_and_task(connection: Connection, round_id: str) -> tuple[RoundRow, TaskRow]:
    """A round and its task; raises `NotFoundError`."""
    found = find_round(connection, round_id)
    task = None if found is None else find_task(connection, found.task_id)
    if found is None or task is None:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists what is offered")
    return found, task


def awards_of(connection: Connection, round_id: str) -> list[AwardRow]:
    """All awards of a round, oldest first."""
    return _awards(sql.run(connection, f"{_AWARDS} ORDER BY seq", round_id))


def award_of(connection: Connection, round_id: str, seller_id: str) -> AwardRow:
    """A seller's award in a round; raises `NotFoundError`."""
    found = _awards(sql.run(connection, f"{_AWARDS} AND seller_id = ?", round_id, seller_id))
    if not found:
        raise no_award(round_id, seller_id)
    return found[0]


def no_award(round_id: str, seller_id: str) -> NotFoundError:
    """The error for somebody who sold nothing."""
    return NotFoundError(f"{seller_id} sold nothing in round {round_id}", "only sellers with an award deliver")


class InState(Protocol):
    """A round, as far as its state goes."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def state(self) -> str:
        """Its state."""


def require_state(round_: InState, *states: str) -> None:
    """Refuses a step that the round's state does not allow."""
    if round_.state not in states:
        raise ConflictError(f"round {round_.id} is {round_.state}", f"it must be {' or '.join(states)} for that")


def _awards(rows: Sequence[tuple[object, ...]]) -> list[AwardRow]:
    made = (AwardRow(*row) for row in rows)  # type: ignore[arg-type]
    return [one._replace(usable=_TRUTH[one.usable], ruling=_TRUTH[one.ruling]) for one in made]
