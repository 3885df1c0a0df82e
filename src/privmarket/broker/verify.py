"""Replays everything that the broker ever decided and reports the first difference.

The hash chain is walked first; then the log is played again over the stored bids: commitments, auctions, wallets,
payments. What the replay owes must be what the ledger holds, account by account, to the micro-unit.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, func, select

from privmarket.broker import bidding, chain, ledger, rounds, wallets
from privmarket.broker.broker import Broker
from privmarket.broker.guard import version_of
from privmarket.broker.schema import audit, awards, bids, chain_head, parties, postings, tasks
from privmarket.broker.schema import rounds as rounds_table
from privmarket.errors import PrivmarketError
from privmarket.privacy.events import PrivacyEvent, release


@dataclass(frozen=True)
class Verdict:
    """What the replay found. `difference` is None where everything agrees."""

    difference: str | None
    entries: int
    auctions: int
    postings: int
    head: str


class _Difference(Exception):
    """Stops the replay where it first disagrees."""


@dataclass
class _Replay:
    """The market as the log tells it."""

    connection: Connection
    broker: Broker
    balances: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sold: dict[str, dict[str, PrivacyEvent]] = field(default_factory=lambda: defaultdict(dict))
    measures: dict[str, str] = field(default_factory=dict)
    caps: dict[str, tuple[float, float]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    auctions: int = 0

    def move(self, source: str, target: str, amount_micro: int) -> None:
        self.balances[source] -= amount_micro
        self.balances[target] += amount_micro


def verify(broker: Broker, expected_head: str | None = None) -> Verdict:
    """The whole check. `expected_head` is a head noted earlier: the log must still contain it."""
    with broker.database.read() as connection:
        head = connection.execute(select(chain_head)).one()
        count = int(connection.execute(select(func.count()).select_from(postings)).scalar_one())
        replay = _Replay(connection, broker)
        difference = _first_difference(replay, head, expected_head)
        return Verdict(difference, int(head.seq), replay.auctions, count, str(head.hash))


def _first_difference(replay: _Replay, head: Row[Any], expected_head: str | None) -> str | None:
    entries = replay.connection.execute(select(audit).order_by(audit.c.seq)).all()
    broken = chain.first_break(entries)
    if broken is not None:
        return broken
    if (len(entries), entries[-1].hash if entries else chain.GENESIS) != (head.seq, head.hash):
        return "audit log: its last entry is not the recorded head"
    if expected_head is not None and expected_head not in {row.hash for row in entries}:
        return f"audit log: the head {expected_head[:16]}… noted earlier is gone; the log was rewritten"
    fault = ledger.first_fault(replay.connection)
    if fault is not None:
        return fault
    try:
        for entry in entries:
            _STEPS.get(entry.kind, _ignore)(replay, entry.subject, json.loads(entry.details))
        _compare_bids(replay, entries)
        _compare_totals(replay)
    except _Difference as found:
        return str(found)
    except (PrivmarketError, KeyError) as error:
        return f"replay: what is stored cannot be played again: {error}"
    return None


def _ignore(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    """Entries that change neither money nor privacy."""


def _registered(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    row = replay.connection.execute(select(parties).where(parties.c.id == subject)).first()
    stored = row and (row.role, row.name, row.cap_epsilon, row.delta)
    if stored != (details["role"], details["name"], details["cap_epsilon"], details["delta"]):
        raise _Difference(f"party {subject}: not as it registered")
    if details["role"] == "seller":
        replay.caps[subject] = (details["cap_epsilon"], details["delta"])


def _deposited(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    replay.move(ledger.WORLD, ledger.party(subject), details["amount_micro"])


def _withdrawn(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    replay.move(ledger.party(subject), ledger.WORLD, details["amount_micro"])


def _published(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    row = replay.connection.execute(select(tasks).where(tasks.c.id == subject)).first()
    names = [c.name for c in tasks.c if c.name not in ("id", "buyer_id", "created_ms")]
    if row is None or chain.digest({name: row._mapping[name] for name in names}) != details["terms"]:
        raise _Difference(f"task {subject}: its terms are not those that were published")


def _opened(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    round_, task = _pair(replay, subject)
    stored = (round_.task_id, round_.number, round_.budget_micro)
    if "seed" in details:  # logs of older brokers show it
        same_seed = round_.seed == details["seed"]
    else:
        same_seed = rounds.seed_digest(subject, round_.seed) == details["seed_sha256"]
    if stored != (details["task"], details["number"], details["budget_micro"]) or not same_seed:
        raise _Difference(f"round {subject}: not as it was opened")
    replay.move(ledger.party(task.buyer_id), ledger.escrow(subject), details["budget_micro"])
    replay.states[subject] = "open"


def _cleared(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    """Runs the auction again on the sealed bids, with wallets as they stood then."""
    round_, task = _pair(replay, subject)
    mechanism_now = version_of(rounds.mechanism_of(task, replay.broker.make_mechanism))
    if mechanism_now != round_.mechanism_version:
        raise _Difference(
            f"round {subject}: cleared by {task.mechanism} {round_.mechanism_version}, this is {mechanism_now}"
        )
    rows = rounds.standing_bids(replay.connection, subject)
    records = {row.seller_id: _record(replay, row.seller_id) for row in rows}
    machine, trimmed, _ = rounds.auction(round_, task, rows, records, replay.broker.make_mechanism)
    if {row.seller_id: row.trimmed_epsilon for row in rows if row.trimmed_epsilon is not None} != trimmed:
        raise _Difference(f"round {subject}: wallets cut other offers than recorded")
    stored = replay.connection.execute(select(awards).where(awards.c.round_id == subject)).all()
    kept = {r.seller_id: (r.epsilon, r.noise_multiplier, r.payment_micro) for r in stored}
    again = {name: (a.epsilon, a.noise_multiplier, a.payment_micro) for name, a in machine.awards.items()}
    if kept != again or rounds.awards_digest(machine.awards) != details["awards"]:
        raise _Difference(f"round {subject}: the auction gives another result than recorded")
    sold = {name: release(a[1], task.sampling_rate, task.steps) for name, a in again.items()}
    for name, watched in wallets.reserve(records, sold).items():
        replay.sold[name][subject] = sold[name]
        if replay.measures.get(name, "open") == "open":
            replay.measures[name] = watched
    replay.auctions += 1
    replay.states[subject] = "cleared"


def _delivered(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    replay.states[subject] = "delivered"


def _settled(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    round_, task = _pair(replay, subject)
    rows = list(replay.connection.execute(select(awards).where(awards.c.round_id == subject)).all())
    settlement = rounds.settlement_of(round_, task, rows)
    if settlement.spent_micro != details["paid_micro"] or settlement.spent_micro != round_.paid_micro:
        raise _Difference(
            f"round {subject}: paid {round_.paid_micro} µ, the replay owes {settlement.spent_micro} µ"
        )
    for row in rows:
        if row.paid_micro != settlement.paid_micro.get(row.seller_id, 0):
            raise _Difference(f"round {subject}: {row.seller_id} was paid {row.paid_micro} µ, not what it is owed")
    for name, amount in settlement.paid_micro.items():
        replay.move(ledger.escrow(subject), ledger.party(name), amount)
    replay.move(ledger.escrow(subject), ledger.party(task.buyer_id), settlement.refunded_micro)
    _give_back(replay, subject, rows, set(settlement.sold))
    replay.states[subject] = "settled"


def _aborted(replay: _Replay, subject: str, details: dict[str, Any]) -> None:
    round_, task = _pair(replay, subject)
    rows = list(replay.connection.execute(select(awards).where(awards.c.round_id == subject)).all())
    replay.move(ledger.escrow(subject), ledger.party(task.buyer_id), round_.budget_micro)
    _give_back(replay, subject, rows, set(rounds.delivery_reports(rows)))
    replay.states[subject] = "aborted"


def _give_back(replay: _Replay, subject: str, rows: Sequence[Row[Any]], released: set[str]) -> None:
    for row in rows:
        expected = "charged" if row.seller_id in released else "void"
        if row.charge != expected:
            raise _Difference(f"wallet of {row.seller_id}: round {subject} is {row.charge}, must be {expected}")
        if expected == "void":
            del replay.sold[row.seller_id][subject]


def _record(replay: _Replay, seller: str) -> wallets.WalletRecord:
    cap, delta = replay.caps[seller]
    events = tuple(replay.sold[seller].values())
    return wallets.WalletRecord(cap, delta, replay.measures.get(seller, "open"), events)


def _pair(replay: _Replay, round_id: str) -> tuple[Row[Any], Row[Any]]:
    row = replay.connection.execute(select(rounds_table).where(rounds_table.c.id == round_id)).first()
    if row is None:
        raise _Difference(f"round {round_id}: in the log but not in the tables")
    return row, rounds.task_of(replay.connection, row.task_id)


def _compare_bids(replay: _Replay, entries: Any) -> None:
    """Every acknowledged bid is there, and says what it said when it was sealed."""
    logged = [
        (entry.subject, details["seller"], details["commitment"])
        for entry in entries
        if entry.kind == "bid.placed"
        for details in [json.loads(entry.details)]
    ]
    rows = replay.connection.execute(select(bids).order_by(bids.c.id)).all()
    stored = []
    for row in rows:
        fields = {name: row._mapping[name] for name in ("valuation", "epsilon", "data_size", "accuracy")}
        opened = bidding.commitment(row.round_id, row.seller_id, fields, row.nonce)
        if opened != row.commitment:
            raise _Difference(f"round {row.round_id}: the bid of {row.seller_id} was changed after it was sealed")
        stored.append((row.round_id, row.seller_id, row.commitment))
    if sorted(logged) != sorted(stored):
        raise _Difference("bids: those stored are not those acknowledged in the log")
    last = {(round_id, seller): sealed for round_id, seller, sealed in logged}
    if {(r.round_id, r.seller_id): r.commitment for r in rows if r.current} != last:
        raise _Difference("bids: one that was replaced counts, or one that counts was withdrawn")
    counts = Counter(round_id for round_id, _ in last)
    for row in replay.connection.execute(select(rounds_table.c.id, rounds_table.c.bids)):
        if row.bids != counts[row.id]:
            raise _Difference(f"round {row.id}: says {row.bids} bids, {counts[row.id]} count")


def _compare_totals(replay: _Replay) -> None:
    held = select(postings.c.account, func.sum(postings.c.amount_micro)).group_by(postings.c.account)
    ledger_now = {account: int(amount) for account, amount in replay.connection.execute(held) if amount}
    owed = {account: amount for account, amount in replay.balances.items() if amount}
    for account in sorted(ledger_now.keys() | owed.keys()):
        if ledger_now.get(account, 0) != owed.get(account, 0):
            raise _Difference(
                f"ledger: {account} holds {ledger_now.get(account, 0)} µ, the replay gives {owed.get(account, 0)} µ"
            )
    for row in replay.connection.execute(select(rounds_table.c.id, rounds_table.c.state)):
        if replay.states.get(row.id) != row.state:
            raise _Difference(f"round {row.id}: is {row.state}, the log says {replay.states.get(row.id)}")
    for row in replay.connection.execute(select(parties.c.id, parties.c.measure)):
        if row.measure != replay.measures.get(row.id, "open"):
            raise _Difference(f"wallet of {row.id}: watches {row.measure}, the replay another measure")


_STEPS = {
    "party.registered": _registered,
    "money.deposit": _deposited,
    "money.withdraw": _withdrawn,
    "task.published": _published,
    "round.opened": _opened,
    "round.cleared": _cleared,
    "round.delivered": _delivered,
    "round.settled": _settled,
    "round.aborted": _aborted,
}
