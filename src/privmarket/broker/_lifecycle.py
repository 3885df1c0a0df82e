"""What happens to a task and its rounds, step by step.

A round is open → closed (or revealing) → cleared → delivered → settled, or aborted with refunds.

Each function is one step inside one transaction: it checks, logs what happened, and leaves the tables to the
projection. What an auction decides is computed in `clearing`; who is paid, in `deliveries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sqlalchemy import Connection

from privmarket.broker import (
    _clearing as clearing,
    _deliveries as deliveries,
    _ledger as ledger,
    _parties as parties,
    _rules as rules,
    _sealed as sealed,
    _sql as sql,
    _wallets as wallets,
)
from privmarket.broker._answers import (
    ClaimAnswer,
    Dispute,
    ProgressAnswer,
    RoundAnswer,
    Ruled,
    StepAnswer,
    TaskAnswer,
    UpdateKey,
)
from privmarket.broker._clearing import Prepared
from privmarket.broker._database import Transaction
from privmarket.broker._deliveries import Deadlines, Standing
from privmarket.broker._errors import BrokerError, ConflictError, ForbiddenError
from privmarket.broker._log import canonical
from privmarket.broker._parties import Entropy, identifier
from privmarket.broker._schema import award_of, awards_of, no_award, require_state, round_and_task
from privmarket.broker._shapes import RoundRow, TaskForm, TaskRow
from privmarket.broker._statements import countersigned
from privmarket.errors import PrivmarketError

TAKING_BIDS = ("open", "revealing", "closed")
LIVE_STATES = (*TAKING_BIDS, "cleared", "delivered")
_PROMISED = (
    "SELECT SUM(t.budget_micro) FROM tasks t WHERE t.buyer_id = ? "
    "AND NOT EXISTS (SELECT 1 FROM rounds r WHERE r.task_id = t.id)"
)
_STATES = "SELECT state FROM rounds WHERE task_id = ?"


# ---- publishing and opening -----------------------------------------------------------------------------------


def rule_version(name: str, settings: str, epsilon_max: float, make: rules.MakeMechanism) -> str:
    """The version of the rule that a task names; raises where the rule does not take its settings (JSON text)."""
    try:
        return rules.version_of(clearing.mechanism_of(name, settings, epsilon_max, make))
    except PrivmarketError:
        raise
    except Exception as error:
        raise BrokerError(
            f"{name} does not take these settings: {type(error).__name__}",
            "GET /v1/mechanisms shows what each rule takes",
        ) from None


def require_first_escrow(connection: Connection, buyer_id: str, budget_micro: int) -> None:
    """Refuses a task if its buyer cannot pay the first rounds of this task and of all its tasks without a round.

    Otherwise a buyer could fill the list with tasks that never open, and have noise tables computed for them.
    """
    ((promised,),) = sql.run(connection, _PROMISED, buyer_id)
    needed = budget_micro + int(promised or 0)
    ledger.require(connection, ledger.party(buyer_id), needed, "the first round of each task without one")


def publish(
    tx: Transaction, entropy: Entropy, terms: TaskForm, said: Mapping[str, object] | None, signature: str | None
) -> TaskAnswer:
    """A new task of the acting buyer; if that signs everything, `said` is what it signed, with a nonce."""
    buyer_id = tx.actor
    if terms.arbiter_id is not None and parties.role_of(tx.connection, terms.arbiter_id) != "arbiter":
        raise BrokerError(f"{terms.arbiter_id} is not an arbiter", "name a party of that role, or nobody")
    require_first_escrow(tx.connection, buyer_id, terms.budget_micro)
    task_id = identifier(entropy, "task")
    stored = {"buyer_id": buyer_id, **terms.model_dump(), "settings": canonical(terms.settings)}
    words = stored if said is None else {**stored, "said": said}
    stated = countersigned(tx.connection, buyer_id, "task.published", task_id, words, signature)
    known = "SELECT 1 FROM tasks WHERE buyer_id = ? AND nonce = ?"
    if said is not None and sql.run(tx.connection, known, buyer_id, said["nonce"]):
        raise ConflictError("this task was published before", "sign another one with a fresh nonce")
    tx.log("task.published", task_id, **stated)
    return cast(TaskAnswer, {"id": task_id, **stored, "settings": dict(terms.settings)})


def open_round(
    tx: Transaction, entropy: Entropy, task: TaskRow, version: str, signature: str | None
) -> RoundAnswer:
    """Opens the next round of a task and puts its budget in escrow; `version` is that of the rule."""
    past = [str(state) for (state,) in sql.run(tx.connection, _STATES, task.id)]
    if any(state in TAKING_BIDS for state in past):
        raise ConflictError(f"task {task.id} has a round that takes bids", "let it clear, or abort it")
    if len(past) >= task.rounds:
        raise ConflictError(f"task {task.id} has had its {task.rounds} rounds", "publish another task")
    ledger.require(tx.connection, ledger.party(task.buyer_id), task.budget_micro, "the escrow of a round")
    round_id = identifier(entropy, "round")
    row = {
        "task_id": task.id,
        "number": len(past),
        "budget_micro": task.budget_micro,
        "mechanism_version": version,
        "bid_deadline_ms": tx.now_ms + 1000 * task.bid_seconds,
    }
    words = {"buyer_id": task.buyer_id, **row}
    stated = countersigned(tx.connection, task.buyer_id, "round.opened", round_id, words, signature)
    tx.log("round.opened", round_id, **stated)
    return cast(RoundAnswer, {"id": round_id, **row, "state": "open", "opened_ms": tx.now_ms})


# ---- closing and clearing -------------------------------------------------------------------------------------


def close(tx: Transaction, round_: RoundRow, task: TaskRow, by_buyer: bool, signature: str | None) -> None:
    """Ends bidding: after the deadline that was published, or when the buyer says so where the task allows it."""
    require_state(round_, "open")
    early = tx.over_ms < round_.bid_deadline_ms
    if early and not (by_buyer and task.buyer_may_close):
        raise ConflictError(
            f"round {round_.id} takes bids until its deadline", "only a task with buyer_may_close may close earlier"
        )
    words: dict[str, object] = {"state": "closed", "reveal_deadline_ms": None}
    if task.sealing == "bidder" and round_.bids:
        words = {"state": "revealing", "reveal_deadline_ms": tx.now_ms + 1000 * task.reveal_seconds}
    if early:
        words = countersigned(tx.connection, tx.actor, "round.closed", round_.id, words, signature)
    tx.log("round.closed", round_.id, **words)
    tx.flush()


def may_clear(round_: RoundRow, now_ms: int) -> bool:
    """Whether the auction can be held: bidding is over, and everybody has revealed or had the time to."""
    if round_.state == "revealing":
        return round_.revealed == round_.bids or now_ms >= (round_.reveal_deadline_ms or 0)
    return round_.state == "closed"


def clear(tx: Transaction, round_id: str, prepared: Prepared) -> StepAnswer | None:
    """Logs a prepared auction; None where wallets have changed it since, so that it must be prepared again."""
    round_, task = round_and_task(tx.connection, round_id)
    require_state(round_, "revealing", "closed")
    if not may_clear(round_, tx.over_ms):
        raise ConflictError(f"round {round_id} waits for bids to be revealed", "wait for the reveal deadline")
    valid = clearing.still_valid(tx.connection, round_id, prepared)
    if valid is None:
        return None
    found = valid.auction
    if found is None:
        tx.log("alert", round_id, fault=prepared.fault)
        return end(tx, round_, task, "aborted", 0, prepared.fault)
    wallets.reserve(tx, round_id, found.awards)
    until = Deadlines.after(tx.now_ms, task)
    summary = found.summary()
    tx.log("round.cleared", round_id, trimmed=dict(found.trimmed), **summary, **until.columns())
    if not found.awards:  # nothing to deliver: the round ends here, refunded in full
        return end(tx, round_, task, "settled", 0, None)
    return {
        "round_id": round_id,
        "state": "cleared",
        "bids": round_.bids,
        "sellers": summary["sellers"],
        "awarded_micro": summary["awarded_micro"],
        "total_epsilon": summary["total_epsilon"],
    }


def abort(tx: Transaction, round_: RoundRow, task: TaskRow, fault: str, signature: str | None) -> StepAnswer:
    """Ends a round that still takes bids; the escrow goes back to the buyer. Later that is refused."""
    require_state(round_, "open")
    signed = {}
    if tx.actor == task.buyer_id:
        stated = countersigned(tx.connection, tx.actor, "round.aborted", round_.id, {"fault": fault}, signature)
        signed = {name: value for name, value in stated.items() if name == "signature"}
    return end(tx, round_, task, "aborted", 0, fault, signed)


# ---- deliveries -----------------------------------------------------------------------------------------------


def claim(
    tx: Transaction,
    seller_id: str,
    round_: RoundRow,
    task: TaskRow,
    update_sha256: str,
    key: str | None,
    signature: str | None,
) -> ClaimAnswer:
    """A seller declares, before its update leaves, the digest of what it delivers. It cannot be changed later.

    `key` opens a sealed update; it stays with the broker until the round is settled. If the broker can no longer
    unwrap it, settlement waits until the seller repeats its claim with the same key.
    """
    award = award_of(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared", "delivered")
    if (task.delivery == "sealed") != (key is not None):
        raise BrokerError(
            f"updates of this task are sent {task.delivery}",
            "send key, the 64 hexadecimal digits that open the update" if key is None else "send no key",
        )
    same = key is not None and (update_sha256, sealed.key_digest(key)) == (award.claim_sha256, award.key_sha256)
    if key is not None and same and seller_id not in tx.vault.of_round(round_.id):
        tx.vault.replace(round_.id, seller_id, key)
        query = "SELECT MAX(seq) FROM log WHERE kind = 'delivery.claimed' AND subject = ? AND actor = ?"
        ((seq,),) = sql.run(tx.connection, query, round_.id, seller_id)
        return _claim_answer(round_.id, int(seq), update_sha256, award.key_sha256)
    came = tx.in_time(Deadlines.of(round_).delivery_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id} stopped taking deliveries", "deliver before delivery_deadline_ms in the next round"
        )
    if award.claim_sha256 is not None:
        raise ConflictError(f"{seller_id} delivered already", "send one update per round")
    words = {"update_sha256": update_sha256}
    if key is not None:
        words["key_sha256"] = sealed.key_digest(key)
    stated = countersigned(tx.connection, seller_id, "delivery.claimed", round_.id, words, signature)
    if key is not None:
        tx.vault.put(round_.id, seller_id, key)
    seq = tx.log("delivery.claimed", round_.id, **stated, **came)
    return _claim_answer(round_.id, seq, update_sha256, words.get("key_sha256"))


def _claim_answer(round_id: str, seq: int, update_sha256: str, key_sha256: str | None) -> ClaimAnswer:
    answer: ClaimAnswer = {"round_id": round_id, "entry": seq, "update_sha256": update_sha256}
    if key_sha256 is not None:
        answer["key_sha256"] = key_sha256
    return answer


def show_key(tx: Transaction, round_: RoundRow, seller_id: str) -> UpdateKey:
    """The key of a sealed update that is disputed, for whoever decides; the log shows that it was asked for."""
    award = award_of(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if award.dispute is None or award.ruling is not None or award.key_sha256 is None or award.claim_sha256 is None:
        raise ConflictError(
            f"{seller_id} has no open dispute about a sealed update",
            "wait until the seller disputes a rejection; its key is shown then",
        )
    key = tx.vault.of_round(round_.id).get(seller_id)
    if key is None:
        raise ConflictError(f"the key of {seller_id} is lost", "ask the seller for it")
    tx.log("delivery.shown", round_.id, seller_id=seller_id)
    return {"round_id": round_.id, "seller_id": seller_id, "update_sha256": award.claim_sha256, "key": key}


def judge(
    tx: Transaction, round_: RoundRow, receipts: Mapping[str, str | None], signatures: Mapping[str, str]
) -> StepAnswer:
    """The buyer's receipts for claimed updates: None for usable, else the fault. A receipt cannot be changed."""
    require_state(round_, "cleared")
    came = tx.in_time(Deadlines.of(round_).review_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time for reviews is over",
            "nothing to do: claims that were not answered count as usable",
        )
    known = {row.seller_id: row for row in awards_of(tx.connection, round_.id)}
    for seller in receipts:
        if seller not in known:
            raise no_award(round_.id, seller)
        if known[seller].claim_sha256 is None:
            raise ConflictError(f"{seller} has not claimed a delivery", "wait for its claim: no claim, no pay")
        if known[seller].usable is not None:
            raise ConflictError(
                f"{seller} has its receipt already", "leave this seller out: its receipt cannot be changed"
            )
    for seller, fault in receipts.items():
        words = {"seller_id": seller, "usable": fault is None, "fault": fault}
        signature = signatures.get(seller)
        stated = countersigned(tx.connection, tx.actor, "delivery.judged", round_.id, words, signature)
        tx.log("delivery.judged", round_.id, **stated, **came)
    missing = sum(row.usable is None for row in known.values()) - len(receipts)
    return {"round_id": round_.id, "state": _perhaps_delivered(tx, round_), "missing": missing}


def dispute(tx: Transaction, seller_id: str, round_: RoundRow, reason: str, signature: str | None) -> Dispute:
    """A seller's objection to a rejection."""
    award = award_of(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if award.usable is not False:
        raise ConflictError(
            f"the update of {seller_id} was not rejected", "dispute only an update that was rejected"
        )
    if award.dispute is not None:
        raise ConflictError(f"{seller_id} disputes already", "wait for the ruling: a dispute cannot be changed")
    came = tx.in_time(Deadlines.of(round_).dispute_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time for disputes is over", "nothing to do: the rejection stands"
        )
    words = {"seller_id": seller_id, "dispute": reason}
    stated = countersigned(tx.connection, seller_id, "dispute.opened", round_.id, words, signature)
    tx.log("dispute.opened", round_.id, **stated, **came)
    return {"round_id": round_.id, "seller_id": seller_id, "ruling_deadline_ms": Deadlines.of(round_).ruling_ms}


def rule(
    tx: Transaction, round_: RoundRow, seller_id: str, pays: bool, reason: str, signature: str | None
) -> Ruled:
    """The arbiter's decision on a dispute."""
    award = award_of(tx.connection, round_.id, seller_id)
    require_state(round_, "cleared")
    if award.dispute is None or award.ruling is not None:
        raise ConflictError(
            f"{seller_id} has no open dispute in round {round_.id}",
            "GET /v1/rounds/{id}/awards shows disputes and rulings; a ruling cannot be changed",
        )
    came = tx.in_time(Deadlines.of(round_).ruling_ms)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time for rulings is over",
            "nothing to do: a dispute without a ruling is decided for the seller, who is paid",
        )
    words = {"seller_id": seller_id, "ruling": pays, "reason": reason}
    stated = countersigned(tx.connection, tx.actor, "dispute.ruled", round_.id, words, signature)
    tx.log("dispute.ruled", round_.id, **stated, **came)
    return {"round_id": round_.id, "seller_id": seller_id, "pays": pays, "state": _perhaps_delivered(tx, round_)}


def may_rule(actor_id: str, role: str, task: TaskRow) -> None:
    """Refuses somebody who is not the task's arbiter: the one it names, else an operator."""
    if actor_id != task.arbiter_id if task.arbiter_id is not None else role != "operator":
        raise ForbiddenError(
            "disputes of this task are not yours to decide",
            "ask the arbiter that the task names, or an operator where it names none",
        )


def report_progress(tx: Transaction, round_: RoundRow, accuracy: float, signature: str | None) -> ProgressAnswer:
    """The buyer notes how good its model is after a round."""
    require_state(round_, "cleared", "delivered", "settled")
    words = {"model_accuracy": float(accuracy) + 0.0}
    stated = countersigned(tx.connection, tx.actor, "round.progress", round_.id, words, signature)
    tx.log("round.progress", round_.id, **stated)
    return {"round_id": round_.id, "state": round_.state, "model_accuracy": accuracy}


def _perhaps_delivered(tx: Transaction, round_: RoundRow) -> str:
    """The state after a receipt, dispute or ruling: delivered once no further one is possible."""
    tx.flush()
    until = Deadlines.of(round_)
    rows = awards_of(tx.connection, round_.id)
    if any(deliveries.standing(row, until, tx.over_ms) is Standing.WAITING for row in rows):
        return "cleared"
    tx.log("round.delivered", round_.id)
    return "delivered"


def settle(tx: Transaction, round_: RoundRow, task: TaskRow) -> StepAnswer:
    """Pays what was delivered, refunds the rest, charges the wallets of all who claimed a delivery.

    Keys of sealed updates that are paid go into the log, the others are destroyed.

    If the round was settled already, at a deadline, the answer says how.
    """
    if round_.state == "settled":
        refunded = round_.budget_micro - round_.paid_micro
        return {
            "round_id": round_.id,
            "state": "settled",
            "paid_micro": round_.paid_micro,
            "refunded_micro": refunded,
        }
    require_state(round_, "cleared", "delivered")
    rows, until = awards_of(tx.connection, round_.id), Deadlines.of(round_)
    waiting = [row for row in rows if deliveries.standing(row, until, tx.over_ms) is Standing.WAITING]
    if waiting:
        raise ConflictError(
            f"round {round_.id} still waits for {len(waiting)} of {len(rows)} sellers to deliver or be answered",
            "give every receipt, or wait for the deadlines that the round shows",
        )
    settled = deliveries.settlement(clearing.terms_of(round_, task), rows, until, tx.over_ms)
    keys = tx.vault.of_round(round_.id) if task.delivery == "sealed" else {}
    for row in rows:
        if row.key_sha256 is not None and row.seller_id in settled.paid_micro and row.seller_id not in keys:
            raise ConflictError(
                f"round {round_.id} waits: the key of the update of {row.seller_id} cannot be unwrapped",
                "start the broker with the key that its log announces, or ask the seller to claim again",
            )
    for row in rows:
        if row.seller_id not in settled.sold_epsilon:
            wallets.void(tx, row)
            continue
        words: dict[str, str | None] = {"charge": "charged"}
        if row.key_sha256 is not None and row.seller_id in settled.paid_micro:
            words["key"] = keys[row.seller_id]
        paid = settled.paid_micro.get(row.seller_id, 0)
        tx.log("award.settled", round_.id, seller_id=row.seller_id, paid_micro=paid, **words)
    tx.vault.destroy(round_.id)
    return end(tx, round_, task, "settled", settled.spent_micro, None)


def end(
    tx: Transaction,
    round_: RoundRow,
    task: TaskRow,
    state: str,
    paid_micro: int,
    fault: str | None,
    signed: Mapping[str, object] | None = None,
) -> StepAnswer:
    """Logs the end of a round; what was not paid goes back to the buyer."""
    refunded = round_.budget_micro - paid_micro
    tx.log(
        f"round.{state}",
        round_.id,
        buyer_id=task.buyer_id,
        paid_micro=paid_micro,
        refunded_micro=refunded,
        fault=fault,
        **(signed or {}),
    )
    answer: StepAnswer = {
        "round_id": round_.id,
        "state": state,
        "paid_micro": paid_micro,
        "refunded_micro": refunded,
    }
    if fault is not None:
        answer["fault"] = fault
    return answer
