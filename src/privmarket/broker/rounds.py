"""A round's life in the database: open → cleared → delivered → settled, or aborted with refunds.

Each function is one step inside one transaction and drives the pure `Round` machine; none decides money itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, Row, bindparam, insert, select, update

from privmarket.broker import chain, ledger, sql, wallets
from privmarket.broker.database import Transaction
from privmarket.broker.errors import ConflictError, NotFoundError
from privmarket.broker.guard import Guarded, version_of
from privmarket.broker.schema import awards, bids, parties, rounds, tasks
from privmarket.errors import PrivmarketError
from privmarket.federated.round import Award, Offer, Phase, Round, Terms
from privmarket.market.mechanism import Mechanism
from privmarket.mechanisms import takes_setting
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import release

MakeMechanism = Callable[..., Mechanism]
LIVE_STATES = ("open", "cleared", "delivered")


class StandingBid(NamedTuple):
    """A bid that counts at closing."""

    seller_id: str
    valuation: float
    epsilon: float
    data_size: float
    accuracy: float | None
    trimmed_epsilon: float | None


_AWARDS = "SELECT id, seller_id, usable FROM awards WHERE round_id = ?"
_STANDING = f"SELECT {', '.join(StandingBid._fields)} FROM bids WHERE round_id = ? AND current = TRUE ORDER BY id"


def terms_of(task: Any, number: int, budget_micro: int) -> Terms:
    """What the pure machine needs to know; `task` has the columns of one."""
    family = ReleaseFamily(task.sampling_rate, task.steps, task.delta)
    return Terms(number, budget_micro, family, task.epsilon_max)


def mechanism_of(task: Row[Any], make: MakeMechanism) -> Mechanism:
    """The task's rule as configured; the public limit on offers goes to rules that want it."""
    settings = json.loads(task.settings)
    if "epsilon_max" not in settings and takes_setting(task.mechanism, "epsilon_max"):
        settings["epsilon_max"] = task.epsilon_max
    return make(task.mechanism, **settings)


def clear(tx: Transaction, round_: Row[Any], task: Row[Any], make: MakeMechanism) -> dict[str, Any]:
    """Runs the auction on the sealed bids and reserves what was sold; a broken promise aborts and refunds."""
    require_state(round_, "open")
    rows = standing_bids(tx.connection, round_.id)
    records = wallets.of_round(tx.connection, round_.id)
    try:
        machine, trimmed, mechanism = auction(round_, task, rows, records, make)
        sold = {
            name: release(a.noise_multiplier, task.sampling_rate, task.steps) for name, a in machine.awards.items()
        }
        measures = wallets.reserve(records, sold)
    # Whatever a mechanism raises, money must not stay locked: the round ends, refunded, with an alert.
    except Exception as error:
        fault = (
            str(error) if isinstance(error, PrivmarketError) else f"{task.mechanism} failed: {type(error).__name__}"
        )
        tx.log("alert", round_.id, fault=fault)
        return abort(tx, round_, task, fault)
    _store_awards(tx, round_, machine.awards, trimmed, measures)
    summary = {
        "bids": len(rows),
        "sellers": len(machine.awards),
        "awarded_micro": sum(a.payment_micro for a in machine.awards.values()),
        "total_epsilon": math.fsum(a.epsilon for a in machine.awards.values()),
    }
    changes = {"state": "cleared", "mechanism_version": version_of(mechanism), **summary}
    deadline = tx.now_ms + 1000 * task.delivery_seconds
    tx.connection.execute(
        update(rounds).where(rounds.c.id == round_.id).values(**changes, delivery_deadline_ms=deadline)
    )
    tx.log("round.cleared", round_.id, **summary, awards=awards_digest(machine.awards))
    if not machine.awards:  # nothing to deliver: the round ends here, refunded in full
        return settle(tx, _again(tx.connection, round_.id), task)
    return {"round_id": round_.id, "state": "cleared", **summary}


def auction(
    round_: Row[Any],
    task: Row[Any],
    rows: Sequence[StandingBid],
    records: Mapping[str, wallets.WalletRecord],
    make: MakeMechanism,
) -> tuple[Round, dict[str, float], Mechanism]:
    """The cleared machine, the offers that wallets cut, and the rule. Pure: a replay calls this same function."""
    terms = terms_of(task, round_.number, round_.budget_micro)
    order = np.random.default_rng(round_.seed).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    fitting = wallets.trim(records, terms.family, {row.seller_id: row.epsilon for row in shuffled})
    offers = {
        row.seller_id: Offer(row.valuation, fitting[row.seller_id], row.data_size, row.accuracy)
        for row in shuffled
        if fitting[row.seller_id] > 0
    }
    mechanism = mechanism_of(task, make)
    machine = Round.publish(terms).bid(offers).clear(Guarded(mechanism))
    trimmed = {row.seller_id: fitting[row.seller_id] for row in rows if fitting[row.seller_id] != row.epsilon}
    return machine, trimmed, mechanism


def standing_bids(connection: Connection, round_id: str) -> list[StandingBid]:
    """The bids that count, oldest first."""
    return [StandingBid(*row) for row in sql.run(connection, _STANDING, round_id)]


def seed_digest(round_id: str, seed: int) -> str:
    """What the log holds of a round's seed."""
    return chain.digest([round_id, seed])


def awards_digest(sold: Mapping[str, Award]) -> str:
    """What the log holds of an auction's result."""
    return chain.digest(sorted((name, a.epsilon, a.noise_multiplier, a.payment_micro) for name, a in sold.items()))


def _store_awards(
    tx: Transaction,
    round_: Row[Any],
    sold: Mapping[str, Award],
    trimmed: Mapping[str, float],
    measures: Mapping[str, str],
) -> None:
    rows = [
        {
            "round_id": round_.id,
            "seller_id": name,
            "epsilon": award.epsilon,
            "noise_multiplier": award.noise_multiplier,
            "payment_micro": award.payment_micro,
            "charge": "reserved",
        }
        for name, award in sold.items()
    ]
    if rows:
        tx.connection.execute(insert(awards), rows)
    if trimmed:
        mine = (bids.c.round_id == round_.id) & bids.c.current.is_(True) & (bids.c.seller_id == bindparam("who"))
        cut = update(bids).where(mine).values(trimmed_epsilon=bindparam("kept"))
        tx.connection.execute(cut, [{"who": name, "kept": kept} for name, kept in trimmed.items()])
    if measures:
        fixed = update(parties).where(parties.c.id == bindparam("who"), parties.c.measure == "open")
        tx.connection.execute(
            fixed.values(measure=bindparam("watched")), [{"who": n, "watched": m} for n, m in measures.items()]
        )


def settle(tx: Transaction, round_: Row[Any], task: Row[Any]) -> dict[str, Any]:
    """Pays what was delivered, refunds the rest, charges the wallets of all who released something."""
    require_state(round_, "cleared", "delivered")
    late = round_.state == "cleared" and round_.sellers and tx.now_ms < round_.delivery_deadline_ms
    if late:
        raise ConflictError(
            f"round {round_.id} still waits for deliveries", "give every receipt, or wait for the deadline"
        )
    rows = tx.connection.execute(select(awards).where(awards.c.round_id == round_.id)).all()
    settlement = settlement_of(round_, task, rows)
    payments = {ledger.party(name): paid for name, paid in settlement.paid_micro.items()}
    payments[ledger.party(task.buyer_id)] = settlement.refunded_micro
    ledger.transfer(tx, "settlement", round_.id, ledger.escrow(round_.id), payments)
    _charge(tx.connection, round_.id)
    usable = (awards.c.round_id == round_.id) & (awards.c.charge == "charged") & _counts_as_usable()
    tx.connection.execute(update(awards).where(usable).values(paid_micro=awards.c.payment_micro))
    return _end(tx, round_, "settled", settlement.spent_micro, None)


def settlement_of(round_: Row[Any], task: Row[Any], rows: Sequence[Row[Any]]) -> Any:
    """What the pure machine says is owed, from stored awards and deliveries."""
    sold = {row.seller_id: Award(row.epsilon, row.noise_multiplier, row.payment_micro) for row in rows}
    machine = Round(terms_of(task, round_.number, round_.budget_micro), Phase.CLEARED, awards=sold)
    _, settlement = machine.deliver(delivery_reports(rows)).settle()
    return settlement


def delivery_reports(rows: Sequence[Row[Any]]) -> dict[str, str | None]:
    """seller → None for usable, else the fault. A claim that the buyer leaves unanswered counts as usable."""
    return {
        row.seller_id: (row.fault or "rejected") if row.usable is False else None
        for row in rows
        if row.usable is not None or row.claim_sha256 is not None
    }


def _counts_as_usable() -> Any:
    return awards.c.usable.is_(True) | (awards.c.usable.is_(None) & awards.c.claim_sha256.is_not(None))


def _charge(connection: Connection, round_id: str) -> None:
    """What was released is spent for good; what was not gives its reservation back."""
    mine = awards.c.round_id == round_id
    released = awards.c.usable.is_not(None) | awards.c.claim_sha256.is_not(None)
    connection.execute(update(awards).where(mine, released).values(charge="charged"))
    connection.execute(update(awards).where(mine, ~released).values(charge="void"))


def abort(tx: Transaction, round_: Row[Any], task: Row[Any], fault: str) -> dict[str, Any]:
    """Ends a round without payments; the escrow goes back to the buyer."""
    require_state(round_, *LIVE_STATES)
    back = {ledger.party(task.buyer_id): round_.budget_micro}
    ledger.transfer(tx, "refund", round_.id, ledger.escrow(round_.id), back)
    _charge(tx.connection, round_.id)
    return _end(tx, round_, "aborted", 0, fault)


def _end(tx: Transaction, round_: Row[Any], state: str, paid_micro: int, fault: str | None) -> dict[str, Any]:
    changes = {"state": state, "paid_micro": paid_micro, "fault": fault, "ended_ms": tx.now_ms}
    tx.connection.execute(update(rounds).where(rounds.c.id == round_.id).values(**changes))
    refunded = round_.budget_micro - paid_micro
    tx.log(f"round.{state}", round_.id, paid_micro=paid_micro, refunded_micro=refunded, fault=fault)
    answer = {"round_id": round_.id, "state": state, "paid_micro": paid_micro, "refunded_micro": refunded}
    return answer if fault is None else {**answer, "fault": fault}


def claim_delivery(tx: Transaction, seller_id: str, round_: Row[Any], update_sha256: str) -> dict[str, Any]:
    """A seller's word that its update is on the way, by digest. The first word counts."""
    award = _award(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared", "delivered")
    if tx.now_ms >= round_.delivery_deadline_ms:
        raise ConflictError(
            f"round {round_.id} stopped taking deliveries", "updates after the deadline do not count"
        )
    if award.claim_sha256 is not None:
        raise ConflictError(f"{seller_id} delivered already", "send one update per round")
    tx.connection.execute(update(awards).where(awards.c.id == award.id).values(claim_sha256=update_sha256))
    tx.log("delivery.claimed", round_.id, seller=seller_id, update_sha256=update_sha256)
    return {"round_id": round_.id, "update_sha256": update_sha256}


def give_receipts(tx: Transaction, round_: Row[Any], receipts: Mapping[str, str | None]) -> dict[str, Any]:
    """The buyer's word on updates: None for usable, else the fault. The last receipt makes the round delivered."""
    require_state(round_, "cleared")
    known = {row[1]: row for row in sql.run(tx.connection, _AWARDS, round_.id)}
    for seller in receipts:
        if seller not in known:
            raise _no_award(round_.id, seller)
        if known[seller][2] is not None:
            raise ConflictError(f"{seller} has its receipt already", "the first word counts")
    words = [(fault is None, fault, known[seller][0]) for seller, fault in receipts.items()]
    sql.run_many(tx.connection, "UPDATE awards SET usable = ?, fault = ? WHERE id = ?", words)
    tx.log("delivery.receipts", round_.id, receipts=dict(receipts))
    missing = sum(row[2] is None for row in known.values()) - len(receipts)
    if missing == 0:
        tx.connection.execute(update(rounds).where(rounds.c.id == round_.id).values(state="delivered"))
        tx.log("round.delivered", round_.id)
    return {"round_id": round_.id, "state": "cleared" if missing else "delivered", "missing": missing}


def _award(connection: Connection, round_id: str, seller_id: str) -> Row[Any]:
    mine = (awards.c.round_id == round_id) & (awards.c.seller_id == seller_id)
    row = connection.execute(select(awards).where(mine)).first()
    if row is None:
        raise _no_award(round_id, seller_id)
    return row


def _no_award(round_id: str, seller_id: str) -> NotFoundError:
    return NotFoundError(f"{seller_id} sold nothing in round {round_id}", "only sellers with an award deliver")


def _again(connection: Connection, round_id: str) -> Row[Any]:
    return connection.execute(select(rounds).where(rounds.c.id == round_id)).one()


def task_of(connection: Connection, task_id: str) -> Row[Any]:
    """The task of a round."""
    return connection.execute(select(tasks).where(tasks.c.id == task_id)).one()


def require_state(round_: Any, *states: str) -> None:
    """Refuses a step that the round's state does not allow."""
    if round_.state not in states:
        raise ConflictError(f"round {round_.id} is {round_.state}", f"it must be {' or '.join(states)} for that")
