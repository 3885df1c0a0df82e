"""A round's life: open → closed (or revealing) → cleared → delivered → settled, or aborted with refunds.

Each function is one step inside one transaction: it checks, logs what happened, and leaves the tables to the
projection. Auctions are computed on a snapshot outside any transaction (`prepare`) and logged if no wallet has
moved since (`clear`), so that nobody waits for them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sqlalchemy import Connection, Row, select

from privmarket.broker import deliveries, log, sealed, sql, wallets
from privmarket.broker.database import Transaction
from privmarket.broker.deliveries import Deadlines, Standing
from privmarket.broker.http_errors import BrokerError, ConflictError, ForbiddenError, NotFoundError
from privmarket.broker.log import canonical
from privmarket.broker.rules import Guarded, MakeMechanism, version_of
from privmarket.broker.schema import awards, rounds, tasks
from privmarket.errors import PrivmarketError
from privmarket.market.bids import Array
from privmarket.market.facts import MarketFacts
from privmarket.market.mechanism import Mechanism
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.rounds import MICRO, Award, Offer, Round, Terms

Answer = dict[str, Any]
TAKING_BIDS = ("open", "revealing", "closed")
LIVE_STATES = (*TAKING_BIDS, "cleared", "delivered")
# Whether a bidder of this round has sold, or got back what it had reserved, since the log had so many entries.
_MOVED = (
    "SELECT 1 FROM awards a WHERE a.round_id IN "
    "(SELECT subject FROM log WHERE seq > ? AND kind IN ('award.made', 'award.settled')) "
    "AND (a.seq > ? OR (a.settled_seq > ? AND a.charge = 'void')) "
    "AND EXISTS (SELECT 1 FROM bids b WHERE b.round_id = ? AND b.seller_id = a.seller_id) LIMIT 1"
)


@dataclass(frozen=True)
class StandingBids:
    """The bids that count in an auction, oldest first: placed in time and, where the bidder seals, revealed.

    Columns rather than rows, because there may be a million. `numbers` is (bids, 4): valuation, epsilon, data size,
    accuracy (NaN where none was given).
    """

    COLUMNS: ClassVar = ("seller_id", "valuation", "epsilon", "data_size", "accuracy", "nonce")
    sellers: list[str]
    nonces: list[str]
    numbers: Array

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, ...]]) -> StandingBids:
        """From rows of `COLUMNS`."""
        sellers, nonces, numbers = [], [], array("d")
        for seller, valuation, epsilon, data_size, accuracy, nonce in rows:
            sellers.append(seller)
            nonces.append(nonce)
            numbers.extend((valuation, epsilon, data_size, math.nan if accuracy is None else accuracy))
        return cls(sellers, nonces, np.array(numbers).reshape(-1, 4))

    def offer(self, i: int, epsilon: float) -> Offer:
        """Bid number `i`, of as much ε as the wallet allows."""
        valuation, _, data_size, accuracy = self.numbers[i].tolist()
        return Offer(valuation, epsilon, data_size, None if math.isnan(accuracy) else accuracy)


_STANDING = (
    f"SELECT {', '.join(StandingBids.COLUMNS)} FROM bids WHERE round_id = ? AND valuation IS NOT NULL ORDER BY seq"
)


def terms_of(task: Any, number: int, budget_micro: int) -> Terms:
    """What the pure machine needs to know; `task` has the columns of one."""
    family = ReleaseFamily(task.sampling_rate, task.steps, task.delta)
    return Terms(number, budget_micro, family, task.epsilon_max)


def mechanism_of(task: Any, make: MakeMechanism) -> Mechanism:
    """The task's rule as configured, told what the task makes public."""
    return make(task.mechanism, market=MarketFacts(epsilon_max=task.epsilon_max), **json.loads(task.settings))


# ---- the auction ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Auction:
    """What an auction decides.

    Attributes:
        awards: seller → what it sold.
        trimmed: seller → the ε that its wallet left of its offer, where that is less.
        measures: seller → the measure that its wallet watches from now on, where that is new.
        seed: orders equal bids; drawn from everybody's nonces, so that nobody chooses it.
    """

    awards: Mapping[str, Award]
    trimmed: Mapping[str, float]
    measures: Mapping[str, str]
    seed: int
    version: str

    def summary(self) -> Answer:
        """The columns of a round that it fills."""
        return {
            "mechanism_version": self.version,
            "sellers": len(self.awards),
            "awarded_micro": sum(a.payment_micro for a in self.awards.values()),
            "total_epsilon": math.fsum(a.epsilon for a in self.awards.values()),
            "top_price": max((a.payment_micro / MICRO / a.epsilon for a in self.awards.values()), default=None),
            "seed": self.seed,
        }


def seed_of(round_id: str, nonces: Sequence[str]) -> int:
    """56 bits from all nonces of a round."""
    drawn = hashlib.sha256(canonical([round_id, sorted(nonces)]).encode()).digest()
    return int.from_bytes(drawn[:7], "big")


def auction(
    round_id: str,
    terms: Terms,
    bids: StandingBids,
    purses: wallets.Purses,
    mechanism: Mechanism,
) -> Auction:
    """Runs the rule on what wallets allow of the bids. A replay of the log calls this same function."""
    seed, sellers = seed_of(round_id, bids.nonces), bids.sellers
    fitting = purses.trim(terms.family, sellers, bids.numbers[:, 1])
    kept = fitting.tolist()
    order = np.random.default_rng(seed).permutation(len(sellers)).tolist()
    offers = {sellers[i]: bids.offer(i, kept[i]) for i in order if kept[i] > 0}
    machine = Round.publish(terms).bid(offers).clear(Guarded(mechanism))
    sold = {seller: award.event(terms.family) for seller, award in machine.awards.items()}
    cut = np.flatnonzero(fitting != bids.numbers[:, 1]).tolist()
    return Auction(
        machine.awards, {sellers[i]: kept[i] for i in cut}, purses.reserve(sold), seed, version_of(mechanism)
    )


@dataclass(frozen=True)
class Prepared:
    """An auction computed on a snapshot: `size` is the length of the log then."""

    size: int
    auction: Auction | None
    fault: str = ""


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector out of an auction, which makes no cycles but would pause for up to 60 ms."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@no_collection()
def prepare(connection: Connection, round_id: str, make: MakeMechanism) -> Prepared:
    """Computes a round's auction as of this connection's snapshot. Whatever a rule raises becomes a fault."""
    size = log.read_head(connection).size
    round_, task = round_and_task(connection, round_id)
    try:
        found = auction(
            round_id,
            terms_of(task, round_.number, round_.budget_micro),
            standing_bids(connection, round_id),
            wallets.Stored(connection, round_id),
            mechanism_of(task, make),
        )
    # Whatever a mechanism raises, money must not stay locked: the round ends, refunded, with an alert.
    except Exception as error:
        known = isinstance(error, PrivmarketError)
        return Prepared(size, None, str(error) if known else f"{task.mechanism} failed: {type(error).__name__}")
    return Prepared(size, found)


def standing_bids(connection: Connection, round_id: str) -> StandingBids:
    """The bids that count, oldest first."""
    return StandingBids.of(sql.stream(connection, _STANDING, round_id))


# ---- closing and clearing -------------------------------------------------------------------------------------


def close(tx: Transaction, round_: Row[Any], task: Row[Any], by_buyer: bool) -> None:
    """Ends bidding: after the deadline that was published, or when the buyer says so where the task allows it."""
    require_state(round_, "open")
    early = tx.over_ms < round_.bid_deadline_ms
    if early and not (by_buyer and task.buyer_may_close):
        raise ConflictError(
            f"round {round_.id} takes bids until its deadline", "only a task with buyer_may_close may close earlier"
        )
    if task.sealing == "bidder" and round_.bids:
        tx.log(
            "round.closed", round_.id, state="revealing", reveal_deadline_ms=tx.now_ms + 1000 * task.reveal_seconds
        )
    else:
        tx.log("round.closed", round_.id, state="closed", reveal_deadline_ms=None)
    tx.flush()


def may_clear(round_: Any, now_ms: int) -> bool:
    """Whether the auction can be held: bidding is over, and everybody has revealed or had the time to."""
    if round_.state == "revealing":
        return bool(round_.revealed == round_.bids or now_ms >= round_.reveal_deadline_ms)
    return bool(round_.state == "closed")


def clear(tx: Transaction, round_id: str, prepared: Prepared) -> Answer | None:
    """Logs a prepared auction; None where a wallet has moved since, so that it must be prepared again."""
    round_, task = round_and_task(tx.connection, round_id)
    require_state(round_, "revealing", "closed")
    if not may_clear(round_, tx.over_ms):
        raise ConflictError(f"round {round_id} waits for bids to be revealed", "wait for the reveal deadline")
    if sql.run(tx.connection, _MOVED, prepared.size, prepared.size, prepared.size, round_id):
        return None
    found = prepared.auction
    if found is None:
        tx.log("alert", round_id, fault=prepared.fault)
        return end(tx, round_, task, "aborted", 0, prepared.fault)
    for seller, award in found.awards.items():
        tx.log(
            "award.made",
            round_id,
            seller_id=seller,
            epsilon=award.epsilon,
            noise_multiplier=award.noise_multiplier,
            payment_micro=award.payment_micro,
            measure=found.measures.get(seller),
        )
    until = Deadlines.after(tx.now_ms, task)
    summary = found.summary()
    tx.log("round.cleared", round_id, trimmed=dict(found.trimmed), **summary, **until.columns())
    if not found.awards:  # nothing to deliver: the round ends here, refunded in full
        return end(tx, round_, task, "settled", 0, None)
    shown = {name: summary[name] for name in ("sellers", "awarded_micro", "total_epsilon")}
    return {"round_id": round_id, "state": "cleared", "bids": round_.bids, **shown}


def abort(tx: Transaction, round_: Row[Any], task: Row[Any], fault: str) -> Answer:
    """Ends a round before its auction; the escrow goes back to the buyer. Later, sellers have a claim."""
    require_state(round_, "open")
    return end(tx, round_, task, "aborted", 0, fault)


# ---- deliveries -----------------------------------------------------------------------------------------------


def claim(
    tx: Transaction, seller_id: str, round_: Row[Any], task: Row[Any], update_sha256: str, key: str | None
) -> Answer:
    """A seller declares, before its update leaves, the digest of what it delivers. It cannot be changed later.

    `key` opens a sealed update; it stays with the broker until the round is settled.
    """
    award = _award(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if (task.delivery == "sealed") != (key is not None):
        raise BrokerError(
            f"updates of this task travel {task.delivery}",
            "send key, the 64 hexadecimal digits that open the update" if key is None else "send no key",
        )
    came = tx.in_time(round_.delivery_deadline_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id} stopped taking deliveries", "deliver before delivery_deadline_ms in the next round"
        )
    if award.claim_sha256 is not None:
        raise ConflictError(f"{seller_id} delivered already", "send one update per round")
    words: Answer = {"update_sha256": update_sha256}
    if key is not None:
        words["key_sha256"] = sealed.key_digest(key)
        tx.vault.put(round_.id, seller_id, key)
    seq = tx.log("delivery.claimed", round_.id, **words, **came)
    return {"round_id": round_.id, "entry": seq, **words}


def show_key(tx: Transaction, round_: Row[Any], seller_id: str) -> Answer:
    """The key of a sealed update that is disputed, for whoever decides; the log shows that it was asked for."""
    award = _award(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if award.dispute is None or award.ruling is not None or award.key_sha256 is None:
        raise ConflictError(
            f"{seller_id} has no open dispute about a sealed update",
            "wait until the seller disputes a rejection; its key is shown then",
        )
    key = tx.vault.of_round(round_.id).get(seller_id)
    if key is None:
        raise ConflictError(f"the key of {seller_id} is lost", "ask the seller for it")
    tx.log("delivery.shown", round_.id, seller_id=seller_id)
    return {"round_id": round_.id, "seller_id": seller_id, "update_sha256": award.claim_sha256, "key": key}


def judge(tx: Transaction, round_: Row[Any], receipts: Mapping[str, str | None]) -> Answer:
    """The buyer's receipts for claimed updates: None for usable, else the fault. A receipt cannot be changed."""
    require_state(round_, "cleared")
    came = tx.in_time(round_.review_deadline_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time for reviews is over",
            "nothing to do: claims that were not answered count as usable",
        )
    known = {row.seller_id: row for row in awards_of(tx.connection, round_.id)}
    for seller in receipts:
        if seller not in known:
            raise _no_award(round_.id, seller)
        if known[seller].claim_sha256 is None:
            raise ConflictError(f"{seller} has not claimed a delivery", "wait for its claim: no claim, no pay")
        if known[seller].usable is not None:
            raise ConflictError(
                f"{seller} has its receipt already", "leave this seller out: its receipt cannot be changed"
            )
    for seller, fault in receipts.items():
        tx.log("delivery.judged", round_.id, seller_id=seller, usable=fault is None, fault=fault, **came)
    missing = sum(row.usable is None for row in known.values()) - len(receipts)
    return {"round_id": round_.id, "state": _perhaps_delivered(tx, round_), "missing": missing}


def dispute(tx: Transaction, seller_id: str, round_: Row[Any], reason: str) -> Answer:
    """A seller's objection to a rejection."""
    award = _award(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if award.usable is not False:
        raise ConflictError(
            f"the update of {seller_id} was not rejected", "dispute only an update that was rejected"
        )
    if award.dispute is not None:
        raise ConflictError(f"{seller_id} disputes already", "wait for the ruling: a dispute cannot be changed")
    came = tx.in_time(round_.dispute_deadline_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time for disputes is over", "nothing to do: the rejection stands"
        )
    tx.log("dispute.opened", round_.id, seller_id=seller_id, dispute=reason, **came)
    return {"round_id": round_.id, "seller_id": seller_id, "ruling_deadline_ms": round_.ruling_deadline_ms}


def rule(tx: Transaction, round_: Row[Any], task: Row[Any], seller_id: str, pays: bool, reason: str) -> Answer:
    """The arbiter's decision on a dispute."""
    award = _award(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if award.dispute is None or award.ruling is not None:
        raise ConflictError(
            f"{seller_id} has no open dispute in round {round_.id}",
            "GET /v1/rounds/{id}/awards shows disputes and rulings; a ruling cannot be changed",
        )
    came = tx.in_time(round_.ruling_deadline_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time for rulings is over",
            "nothing to do: a dispute without a ruling is decided for the seller, who is paid",
        )
    tx.log("dispute.ruled", round_.id, seller_id=seller_id, ruling=pays, reason=reason, **came)
    return {"round_id": round_.id, "seller_id": seller_id, "pays": pays, "state": _perhaps_delivered(tx, round_)}


def may_rule(actor_id: str, role: str, task: Any) -> None:
    """Refuses somebody who is not the task's arbiter: the one it names, else an operator."""
    if actor_id != task.arbiter_id if task.arbiter_id is not None else role != "operator":
        raise ForbiddenError(
            "disputes of this task are not yours to decide",
            "ask the arbiter that the task names, or an operator where it names none",
        )


def _perhaps_delivered(tx: Transaction, round_: Row[Any]) -> str:
    """The state after a receipt, dispute or ruling: delivered once no further one is possible."""
    tx.flush()
    until = Deadlines.of(round_)
    rows = awards_of(tx.connection, round_.id)
    if any(deliveries.standing(row, until, tx.over_ms) is Standing.WAITING for row in rows):
        return "cleared"
    tx.log("round.delivered", round_.id)
    return "delivered"


def settle(tx: Transaction, round_: Row[Any], task: Row[Any]) -> Answer:
    """Pays what was delivered, refunds the rest, charges the wallets of all who claimed a delivery.

    Keys of sealed updates that are paid go into the log, the others are destroyed.

    A round that the broker's clock has settled already is answered as it was settled.
    """
    if round_.state == "settled":
        refunded = round_.budget_micro - round_.paid_micro
        done = {"paid_micro": round_.paid_micro, "refunded_micro": refunded}
        return {"round_id": round_.id, "state": "settled", **done}
    require_state(round_, "cleared", "delivered")
    rows, until = awards_of(tx.connection, round_.id), Deadlines.of(round_)
    waiting = [row for row in rows if deliveries.standing(row, until, tx.over_ms) is Standing.WAITING]
    if waiting:
        raise ConflictError(
            f"round {round_.id} still waits for {len(waiting)} of {len(rows)} sellers to deliver or be answered",
            "give every receipt, or wait for the deadlines that the round shows",
        )
    settled = deliveries.settlement(terms_of(task, round_.number, round_.budget_micro), rows, until, tx.over_ms)
    keys = tx.vault.of_round(round_.id) if task.delivery == "sealed" else {}
    for row in rows:
        words: Answer = {"charge": "charged" if row.seller_id in settled.sold else "void"}
        if row.key_sha256 is not None and row.seller_id in settled.paid_micro:
            words["key"] = keys.get(row.seller_id)
            if words["key"] is None:
                tx.log("alert", round_.id, fault=f"the key of the update of {row.seller_id} is lost")
        paid = settled.paid_micro.get(row.seller_id, 0)
        tx.log("award.settled", round_.id, seller_id=row.seller_id, paid_micro=paid, **words)
    tx.vault.destroy(round_.id)
    return end(tx, round_, task, "settled", settled.spent_micro, None)


def end(tx: Transaction, round_: Any, task: Any, state: str, paid_micro: int, fault: str | None) -> Answer:
    """The last entry of a round: what was not paid goes back to the buyer."""
    refunded = round_.budget_micro - paid_micro
    tx.log(
        f"round.{state}",
        round_.id,
        buyer_id=task.buyer_id,
        paid_micro=paid_micro,
        refunded_micro=refunded,
        fault=fault,
    )
    answer = {"round_id": round_.id, "state": state, "paid_micro": paid_micro, "refunded_micro": refunded}
    return answer if fault is None else {**answer, "fault": fault}


# ---- looking things up ----------------------------------------------------------------------------------------


def awards_of(connection: Connection, round_id: str) -> Sequence[Row[Any]]:
    """All awards of a round, oldest first."""
    return connection.execute(select(awards).where(awards.c.round_id == round_id).order_by(awards.c.seq)).all()


def _award(connection: Connection, round_id: str, seller_id: str) -> Row[Any]:
    mine = (awards.c.round_id == round_id) & (awards.c.seller_id == seller_id)
    row = connection.execute(select(awards).where(mine)).first()
    if row is None:
        raise _no_award(round_id, seller_id)
    return row


def _no_award(round_id: str, seller_id: str) -> NotFoundError:
    return NotFoundError(f"{seller_id} sold nothing in round {round_id}", "only sellers with an award deliver")


def round_and_task(connection: Connection, round_id: str) -> tuple[Row[Any], Row[Any]]:
    """A round and its task, or 404."""
    row = connection.execute(select(rounds).where(rounds.c.id == round_id)).first()
    if row is None:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists what is offered")
    return row, connection.execute(select(tasks).where(tasks.c.id == row.task_id)).one()


def require_state(round_: Any, *states: str) -> None:
    """Refuses a step that the round's state does not allow."""
    if round_.state not in states:
        raise ConflictError(f"round {round_.id} is {round_.state}", f"it must be {' or '.join(states)} for that")
