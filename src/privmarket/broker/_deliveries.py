"""Who is paid: the rule about claims, reviews, disputes and rulings, without I/O.

A seller claims its delivery before its update leaves. The buyer accepts it or says what is wrong; a seller that
disagrees disputes, and an arbiter rules. Each step has a deadline that was published with the task, and what
happens when a deadline passes is fixed. Without a claim the seller is not paid, and the award is void by the rule
in `privacy._wallet_store`. A claim that the buyer does not answer is paid. A rejection that nobody disputes stands.
A dispute that nobody rules on is decided for the seller, because the buyer chose the arbiter.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from privmarket.broker._errors import ConflictError
from privmarket.broker._shapes import AwardRow, RoundRow, TaskRow
from privmarket.rounds import Award, Phase, Round, RoundRecord, Terms


class Standing(StrEnum):
    """The state of an award at some moment: waiting, paid, unpaid or void."""

    WAITING = "waiting"  # a step may still be taken
    USABLE = "usable"
    FAULTY = "faulty"  # released, and not paid
    LAPSED = "lapsed"  # nothing was released


class Deadlines(NamedTuple):
    """The deadlines of a round after its auction, in milliseconds."""

    delivery_ms: int
    review_ms: int
    dispute_ms: int
    ruling_ms: int

    @classmethod
    def after(cls, cleared_ms: int, task: TaskRow) -> Deadlines:
        """The deadlines of a round that was cleared at `cleared_ms`."""
        delivery = cleared_ms + 1000 * task.delivery_seconds
        review = delivery + 1000 * task.review_seconds
        dispute = review + 1000 * task.dispute_seconds
        return cls(delivery, review, dispute, dispute + 1000 * task.ruling_seconds)

    @classmethod
    def of(cls, round_: RoundRow) -> Deadlines:
        """The deadlines of a round that has been cleared; raises `ConflictError` if it has not."""
        found = (
            round_.delivery_deadline_ms,
            round_.review_deadline_ms,
            round_.dispute_deadline_ms,
            round_.ruling_deadline_ms,
        )
        delivery, review, dispute, ruling = (_known(one, round_) for one in found)
        return cls(delivery, review, dispute, ruling)

    def columns(self) -> dict[str, int]:
        """As the columns of a round."""
        return {
            "delivery_deadline_ms": self.delivery_ms,
            "review_deadline_ms": self.review_ms,
            "dispute_deadline_ms": self.dispute_ms,
            "ruling_deadline_ms": self.ruling_ms,
        }


def _known(deadline_ms: int | None, round_: RoundRow) -> int:
    if deadline_ms is None:
        raise ConflictError(f"round {round_.id} has not been cleared", "wait for its auction")
    return deadline_ms


def standing(award: AwardRow, until: Deadlines, now_ms: int) -> Standing:
    """The state of an award at `now_ms`."""
    if award.claim_sha256 is None:
        return Standing.LAPSED if now_ms >= until.delivery_ms else Standing.WAITING
    if award.usable is None:
        return Standing.USABLE if now_ms >= until.review_ms else Standing.WAITING
    if award.usable:
        return Standing.USABLE
    if award.dispute is None:
        return Standing.FAULTY if now_ms >= until.dispute_ms else Standing.WAITING
    if award.ruling is None:
        return Standing.USABLE if now_ms >= until.ruling_ms else Standing.WAITING
    return Standing.USABLE if award.ruling else Standing.FAULTY


# The same in SQL: which step of an award is awaited, by a condition and the round's column with the deadline.
AWAITED = {
    "claim": ("claim_sha256 IS NULL", "delivery_deadline_ms"),
    "receipt": ("claim_sha256 IS NOT NULL AND usable IS NULL", "review_deadline_ms"),
    "dispute": ("usable = FALSE AND dispute IS NULL", "dispute_deadline_ms"),
    "ruling": ("dispute IS NOT NULL AND ruling IS NULL", "ruling_deadline_ms"),
}
# A settled award that was faulty. A dispute that nobody ruled on was paid.
WAS_FAULTY = "usable = FALSE AND (dispute IS NULL OR ruling = FALSE)"


def decided_at(claimed: bool, judged: bool, disputed: bool, until: Deadlines) -> int:
    """The deadline of the step for which an award waits: its claim, its receipt, a dispute or a ruling."""
    if not claimed:
        return until.delivery_ms
    if not judged:
        return until.review_ms
    return until.ruling_ms if disputed else until.dispute_ms


def settlement(terms: Terms, awards: Iterable[AwardRow], until: Deadlines, now_ms: int) -> RoundRecord:
    """Who is paid in a round, computed by `rounds.Round` as in every engine. No award may still be waiting."""
    rows = list(awards)
    worth = {row.seller_id: standing(row, until, now_ms) for row in rows}
    sold = {
        row.seller_id: Award.stored(terms, row.epsilon, row.noise_multiplier, row.payment_micro) for row in rows
    }
    reports = {
        row.seller_id: None if worth[row.seller_id] is Standing.USABLE else row.fault or "rejected"
        for row in rows
        if worth[row.seller_id] is not Standing.LAPSED
    }
    # Without a claim nothing was released, so these awards are void: see the rule in `privacy._wallet_store`.
    silent = {seller: "claimed nothing" for seller in sold if seller not in reports}
    settled = Round(terms, Phase.CLEARED, awards=sold).settle(reports, silent)
    assert settled.record is not None
    return settled.record
