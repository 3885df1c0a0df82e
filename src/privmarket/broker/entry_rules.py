"""Checks that every entry of a log followed the market's rules when it was made.

`EntryRules` adds the rules of tasks and rounds to those of accounts (`account_rules`, which walks the log).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from privmarket.broker import (
    bidding,
    clearing,
    deliveries,
    ledger,
    lifecycle,
    rules,
    sealed,
    signatures,
    wallets,
)
from privmarket.broker.account_rules import REASONS, AccountRules, Fields
from privmarket.broker.clearing import StandingBids
from privmarket.broker.database import ARRIVAL_LIMIT_MS
from privmarket.broker.deliveries import Deadlines, Standing
from privmarket.broker.http_errors import BrokerError
from privmarket.broker.log import Entry
from privmarket.broker.stored_rows import AwardRow, RoundRow, TaskRow
from privmarket.market.mechanism import Mechanism
from privmarket.plans import TOLERANCE
from privmarket.rounds import Offer

_OFFER = ("valuation", "epsilon", "data_size", "accuracy")
_STILL_WAITED = "an award still waited for a claim, receipt, dispute or ruling"


def _arrived(entry: Entry, fields: Fields) -> int:
    """When a request arrived: as its entry says, which may be a little before the entry was written."""
    arrived = int(fields.get("arrived_ms", entry.at_ms))
    if not entry.at_ms - ARRIVAL_LIMIT_MS <= arrived <= entry.at_ms:
        raise BrokerError(f"said to have arrived at {arrived}", "the entry is dated back")
    return arrived


def _alike(one: object, other: object) -> bool:
    """Whether a replay gives what was recorded: money exactly, ε and noise up to rounding.

    Exponentials differ in their last bits between processors.
    """
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other


class EntryRules(AccountRules):
    """Every rule of the market, checked entry by entry."""

    def _task_published(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if entry.actor != fields["buyer_id"] or self._party(entry.actor).role != "buyer":
            yield f"published by {entry.actor} for {fields['buyer_id']}"

    def _round_opened(self, entry: Entry, fields: Fields) -> Iterator[str]:
        task = self._task(fields["task_id"])
        if not entry.actor == fields["buyer_id"] == task.buyer_id:
            yield f"opened by {entry.actor}, whose task it is not"
        if fields["number"] != self.rounds_of[fields["task_id"]] or fields["number"] >= task.rounds:
            yield f"number {fields['number']} is out of turn"
        due = (task.budget_micro, entry.at_ms + 1000 * task.bid_seconds)
        if (fields["budget_micro"], fields["bid_deadline_ms"]) != due:
            yield "budget or deadline are not those of the task"
        yield from self._holds(ledger.party(task.buyer_id), fields["budget_micro"])

    def _bid_placed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        seller = self._party(entry.actor)
        arrived = _arrived(entry, fields)
        if seller.role != "seller" or seller.suspended is not None:
            yield f"{entry.actor} may not bid"
        if round_.state != "open" or not arrived < round_.bid_deadline_ms:
            yield "the round took no bids then"
        place = (entry.subject, entry.actor)
        if fields["replaces"] != (place in self.tables.tables["bids"]):
            yield "whether it replaces a bid is not what the log says"
        if fields["replaces"] and (before := self._bid(*place).commitment) != fields["commitment"]:
            self.replaced[place].add(before)
            if fields["commitment"] in self.replaced[place]:
                self.notes.append(
                    f"log entry {entry.seq}: a bid of {entry.actor} came back after another had replaced it; "
                    "ask that seller whether it sent it twice"
                )
        if (task.sealing == "bidder") == ("valuation" in fields):
            yield f"the task's bids are sealed by the {task.sealing}"
        if task.trust == "aggregate" and seller.public_key is None:
            yield "a seller without a registered key bids for a secure sum"
        if task.attested and seller.dataset_sha256 is None:
            yield f"{entry.actor} attests no data set"
        if "valuation" in fields:
            yield from self._offer(entry, fields, fields["commitment"], round_, task)
        if seller.public_key is not None:
            message = signatures.bid_message(entry.subject, entry.actor, fields["commitment"])
            if not signatures.is_signed(seller.public_key, message, fields.get("signature") or ""):
                yield "it is not signed by the seller's key"
        elif task.sealing == "bidder":
            yield "it is not signed"

    def _offer(
        self, entry: Entry, fields: Fields, committed: str, round_: RoundRow, task: TaskRow
    ) -> Iterator[str]:
        numbers = {name: fields[name] for name in _OFFER}
        if signatures.commitment(entry.subject, entry.actor, numbers, fields["nonce"]) != committed:
            yield "the bid is not the one that was committed to"
        bidding.check_offer(Offer(**numbers), entry.actor, clearing.terms_of(round_, task))

    def _bid_revealed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        bid = self._bid(entry.subject, entry.actor)
        late = _arrived(entry, fields) >= (round_.reveal_deadline_ms or 0)
        if round_.state != "revealing" or late or bid.valuation is not None:
            yield "a bid was revealed after the deadline, in another state than revealing, or a second time"
        yield from self._offer(entry, fields, bid.commitment, round_, task)

    def _round_closed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        early = entry.at_ms < round_.bid_deadline_ms
        if round_.state != "open" or (early and not (task.buyer_may_close and entry.actor == task.buyer_id)):
            yield f"bidding was closed by {entry.actor} before its deadline"
        waits = task.sealing == "bidder" and round_.bids > 0
        until = entry.at_ms + 1000 * task.reveal_seconds if waits else None
        if fields != {"state": "revealing" if waits else "closed", "reveal_deadline_ms": until}:
            yield "the time to reveal is not that of the task"

    def _award_made(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if self._round_of(entry.subject)[0].state not in ("closed", "revealing"):
            yield "no auction was due"

    def _replayed(self, round_: RoundRow, task: TaskRow, version: str) -> clearing.Auction:
        """The auction again, with wallets as they stood and the rule in the version that was recorded."""
        sellers = self.in_round["bids"][round_.id]
        rows = sorted((self._bid(round_.id, seller) for seller in sellers), key=lambda row: row.seq)
        bids = StandingBids.of(
            (row.seller_id, row.valuation, row.epsilon or 0.0, row.data_size or 0.0, row.accuracy, row.nonce or "")
            for row in rows
            if row.valuation is not None
        )
        records = wallets.ReplayedWallets({seller: self._wallet(seller) for seller in bids.sellers})
        rule, found = self._rule(task, version)
        return clearing.auction(round_.id, clearing.terms_of(round_, task), bids, records, rule, found)

    def _rule(self, task: TaskRow, recorded: str) -> tuple[Mechanism, str]:
        """A task's rule in the version that was recorded, as far as there is one, and the version that it has."""
        key = (task.mechanism, task.settings, task.epsilon_max, recorded)
        if key not in self.rules_made:
            make = rules.as_recorded(self.make_mechanism, task.mechanism, recorded)
            rule = clearing.mechanism_of(task.mechanism, task.settings, task.epsilon_max, make)
            self.rules_made[key] = rule, rules.version_of(rule)
        return self.rules_made[key]

    def _wallet(self, seller: str) -> wallets.WalletRecord:
        row = self._party(seller)
        if row.cap_epsilon is None or row.delta is None:
            raise BrokerError(f"{seller} has no wallet", "the entry is forged")
        events = tuple(self.sold[seller].values())
        return wallets.WalletRecord(row.cap_epsilon, row.delta, events)

    def _round_cleared(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        if not lifecycle.may_clear(round_, entry.at_ms):
            yield "no auction was due"
        made = self._awards(round_)
        due = Deadlines.after(entry.at_ms, task).columns()
        if {name: fields[name] for name in due} != due:
            yield "its deadlines are not those of the task"
        yield from self._same_auction(entry, fields, round_, task, made)
        family = clearing.family_of(task)
        for award in made:
            self.sold[award.seller_id][entry.subject] = family.release(award.noise_multiplier)

    def _same_auction(
        self, entry: Entry, fields: Fields, round_: RoundRow, task: TaskRow, made: list[AwardRow]
    ) -> Iterator[str]:
        stored = {a.seller_id: (a.epsilon, a.noise_multiplier, a.payment_micro) for a in made}
        recorded = {name: fields[name] for name in ("trimmed", "sellers", "awarded_micro", "total_epsilon", "seed")}
        try:
            found = self._replayed(round_, task, fields["mechanism_version"])
        except REASONS as error:
            self._cannot_replay(round_, f"{task.mechanism} fails here: {error}")
            return
        again = {n: (a.epsilon, a.event.noise_multiplier, a.payment_micro) for n, a in found.awards.items()}
        summary = {"trimmed": dict(found.trimmed), **found.summary()}
        if _alike(stored, again) and all(_alike(value, summary[name]) for name, value in recorded.items()):
            self.auctions += 1
        elif found.version != fields["mechanism_version"]:
            self._cannot_replay(round_, f"it was cleared by {fields['mechanism_version']}, this is {found.version}")
        else:
            yield "the auction gives another result than recorded"

    def _cannot_replay(self, round_: RoundRow, reason: str) -> None:
        self.notes.append(f"round {round_.id} is taken as recorded: {reason}")

    def _round_aborted(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        if round_.state == "open":
            if entry.actor != task.buyer_id and not self._is_operator(entry.actor):
                yield f"aborted by {entry.actor}, whose round it is not"
        elif lifecycle.may_clear(round_, entry.at_ms):
            try:
                found = self._replayed(round_, task, round_.mechanism_version)
            except REASONS:
                pass  # it fails here too: that is why it was aborted
            else:
                if found.version == round_.mechanism_version:
                    yield "aborted for a fault that the rule does not have"
                else:
                    self._cannot_replay(round_, f"aborted by {round_.mechanism_version}, this is {found.version}")
        else:
            yield f"aborted while it was {round_.state}"
        yield from self._ends(entry, fields, round_, task, 0)

    def _ends(
        self, entry: Entry, fields: Fields, round_: RoundRow, task: TaskRow, paid_micro: int
    ) -> Iterator[str]:
        due = (task.buyer_id, paid_micro, round_.budget_micro - paid_micro)
        if (fields["buyer_id"], fields["paid_micro"], fields["refunded_micro"]) != due:
            yield f"paid {fields['paid_micro']} µ, refunded {fields['refunded_micro']} µ; owed: {due[1]}, {due[2]}"

    def _delivery_claimed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        award = self._award(entry.subject, entry.actor)
        if (task.delivery == "sealed") != ("key_sha256" in fields):
            yield f"updates of this task are sent {task.delivery}"
        late = _arrived(entry, fields) >= Deadlines.of(round_).delivery_ms
        if round_.state != "cleared" or late or award.claim_sha256 is not None:
            yield "a claim after the deadline, in another state than cleared, or a second one"

    def _delivery_judged(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        award = self._award(entry.subject, fields["seller_id"])
        if entry.actor != task.buyer_id:
            yield f"judged by {entry.actor}, who is not the buyer"
        late = _arrived(entry, fields) >= Deadlines.of(round_).review_ms
        waits = round_.state == "cleared" and award.claim_sha256 is not None and award.usable is None
        if late or not waits or fields["usable"] == (fields["fault"] is not None):
            yield (
                "a receipt was logged where none was due: too late, before a claim, in another state than cleared, "
                "given already, or its fault does not fit"
            )

    def _dispute_opened(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, _ = self._round_of(entry.subject)
        award = self._award(entry.subject, fields["seller_id"])
        late = _arrived(entry, fields) >= Deadlines.of(round_).dispute_ms
        if entry.actor != fields["seller_id"] or late or award.usable is not False or award.dispute is not None:
            yield "a dispute by somebody else than the seller, too late, not of a rejection, or a second one"

    def _dispute_ruled(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        award = self._award(entry.subject, fields["seller_id"])
        lifecycle.may_rule(entry.actor, "operator" if self._is_operator(entry.actor) else "", task)
        late = _arrived(entry, fields) >= Deadlines.of(round_).ruling_ms
        if award.dispute is None or award.ruling is not None or late:
            yield "a ruling after its deadline, without a dispute, or a second one"

    def _delivery_shown(self, entry: Entry, fields: Fields) -> Iterator[str]:
        _, task = self._round_of(entry.subject)
        award = self._award(entry.subject, fields["seller_id"])
        lifecycle.may_rule(entry.actor, "operator" if self._is_operator(entry.actor) else "", task)
        if award.dispute is None or award.ruling is not None or award.key_sha256 is None:
            yield "a key was shown without an open dispute, or of an update that is not sealed"

    def _round_progress(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        if entry.actor != task.buyer_id or round_.state not in ("cleared", "delivered", "settled"):
            yield "reported by somebody else than the buyer, or of a round that was not cleared"

    def _round_delivered(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, _ = self._round_of(entry.subject)
        if round_.state != "cleared" or self._waits(round_, entry.at_ms):
            yield f"the round was not cleared, or {_STILL_WAITED}"

    def _awards(self, round_: RoundRow) -> list[AwardRow]:
        return [self._award(round_.id, seller) for seller in self.in_round["awards"][round_.id]]

    def _waits(self, round_: RoundRow, at_ms: int) -> bool:
        until = Deadlines.of(round_)
        return any(deliveries.standing(row, until, at_ms) is Standing.WAITING for row in self._awards(round_))

    def _award_settled(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, _ = self._round_of(entry.subject)
        award = self._award(entry.subject, fields["seller_id"])
        if round_.state not in ("cleared", "delivered") or award.charge != "reserved":
            yield "the award was settled before, or its round was neither cleared nor delivered"
        if award.key_sha256 is not None and fields["paid_micro"] and fields.get("key") is None:
            self.notes.append(f"round {entry.subject}: the key of the update of {fields['seller_id']} is lost")
        if fields.get("key") is not None:
            matches = sealed.key_digest(fields["key"]) == award.key_sha256
            if not matches or not fields["paid_micro"]:
                yield "the key is not the one that was claimed, or of an update that was not paid"
        if fields["charge"] == wallets.VOID:
            self.sold[fields["seller_id"]].pop(entry.subject, None)

    def _round_settled(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self._round_of(entry.subject)
        rows = self._awards(round_)
        if round_.state not in ("cleared", "delivered") or self._waits(round_, entry.at_ms):
            yield f"it was settled while the round was neither cleared nor delivered, or {_STILL_WAITED}"
        owed = deliveries.settlement(clearing.terms_of(round_, task), rows, Deadlines.of(round_), entry.at_ms)
        for row in rows:
            charge = "charged" if row.seller_id in owed.sold_epsilon else wallets.VOID
            due = owed.paid_micro.get(row.seller_id, 0)
            if (row.charge, row.paid_micro) != (charge, due):
                yield f"{row.seller_id} is {row.charge} and paid {row.paid_micro} µ; owed: {charge}, {due} µ"
        yield from self._ends(entry, fields, round_, task, owed.spent_micro)
