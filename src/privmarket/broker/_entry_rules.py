"""Checks that every entry of a log followed the market's rules when it was made.

`EntryRules` adds the rules of tasks and rounds to those of accounts (`account_rules`, which walks the log). An
auction is checked twice: against what no auction may do, whatever its rule and version (`clearing.broken_terms`),
and against what its rule gives when it is run again.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields as fields_of

from privmarket._settings import TOLERANCE
from privmarket.broker import (
    _bidding as bidding,
)
from privmarket.broker import (
    _clearing as clearing,
)
from privmarket.broker import (
    _deliveries as deliveries,
)
from privmarket.broker import (
    _ledger as ledger,
)
from privmarket.broker import (
    _lifecycle as lifecycle,
)
from privmarket.broker import (
    _rules as rules,
)
from privmarket.broker import (
    _sealed as sealed,
)
from privmarket.broker import (
    _signatures as signatures,
)
from privmarket.broker import (
    _wallets as wallets,
)
from privmarket.broker._account_rules import REASONS, SYSTEM, AccountRules, Fields, forged
from privmarket.broker._clearing import StandingBids
from privmarket.broker._database import ARRIVAL_LIMIT_MS
from privmarket.broker._deliveries import Deadlines, Standing
from privmarket.broker._log import Entry, canonical
from privmarket.broker._stored_rows import AwardRow, RoundRow, TaskRow
from privmarket.broker._task_plan import TaskPlan, checked
from privmarket.market._mechanism import Mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds import Award, Offer

_OFFER = ("valuation", "epsilon", "data_size", "accuracy")
_STILL_WAITED = "an award still waited for a claim, receipt, dispute or ruling"
# What the bidders of a round had sold elsewhere, and their wallets.
_SOLD = (
    "SELECT a.seller_id, a.noise_multiplier, t.sampling_rate, t.steps, t.delta FROM awards a "
    "JOIN rounds r ON r.id = a.round_id JOIN tasks t ON t.id = r.task_id "
    "WHERE a.seller_id IN (SELECT seller_id FROM bids WHERE round_id = ?) AND a.round_id <> ? "
    f"AND {wallets.COUNTS_AS_SPENT} ORDER BY a.seq"
)
_CAPS = "SELECT p.id, p.cap_epsilon, p.delta FROM bids b JOIN parties p ON p.id = b.seller_id WHERE b.round_id = ?"


def _arrived(entry: Entry, fields: Fields) -> int:
    """When a request arrived: as its entry says, which may be a little before the entry was written."""
    arrived = fields.get("arrived_ms", entry.at_ms)
    if type(arrived) is not int or not entry.at_ms - ARRIVAL_LIMIT_MS <= arrived <= entry.at_ms:
        raise forged(f"said to have arrived at {arrived}, written at {entry.at_ms}")
    return arrived


def alike(one: object, other: object) -> bool:
    """Whether a replay gives what was recorded: money exactly, ε and noise up to rounding.

    Exponentials differ in their last bits between processors.
    """
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


class EntryRules(AccountRules):
    """Every rule of the market, checked entry by entry."""

    def _runs_rounds(self, actor: str, task: TaskRow) -> bool:
        """Who may close, clear and settle: the buyer, an operator, or the broker at a deadline."""
        return actor in (SYSTEM, task.buyer_id) or self._is_operator(actor)

    def _alert(self, entry: Entry, fields: Fields) -> Iterator[str]:
        _, task = self.market.round_of(entry.subject)
        if not self._runs_rounds(entry.actor, task):
            yield f"by {entry.actor}, whose round it is not"

    def _task_published(self, entry: Entry, fields: Fields) -> Iterator[str]:
        buyer = self.market.party(entry.actor)
        if entry.actor != fields["buyer_id"] or buyer.role != "buyer" or buyer.suspended is not None:
            yield f"published by {entry.actor} for {fields['buyer_id']}"
        names = [one.name for one in fields_of(TaskPlan)]
        stated = {name: fields[name] for name in names if name != "settings"}
        plan = checked(TaskPlan, {**stated, "settings": json.loads(fields["settings"])})
        if plan.arbiter_id is not None and self.market.party(plan.arbiter_id).role != "arbiter":
            yield f"{plan.arbiter_id} is not an arbiter"
        yield from self._signed(entry, fields, buyer)
        said = fields.get("said")
        if said is not None:
            whole = checked(TaskPlan, {name: value for name, value in said.items() if name != "nonce"})
            same = {name: getattr(whole, name) for name in names if name != "settings"}
            if same != stated or canonical(whole.settings) != fields["settings"]:
                yield "the task is not the one that its buyer signed"
        if buyer.signs == "everything" and not (said or {}).get("nonce"):
            yield "a signed task has a nonce"

    def _round_opened(self, entry: Entry, fields: Fields) -> Iterator[str]:
        task = self.market.task(fields["task_id"])
        buyer = self.market.party(task.buyer_id)
        if not entry.actor == fields["buyer_id"] == task.buyer_id or buyer.suspended is not None:
            yield f"opened by {entry.actor}, whose task it is not, or who is suspended"
        count = self.market.one("SELECT COUNT(*) FROM rounds WHERE task_id = ?", task.id)
        if fields["number"] != count or count >= task.rounds:
            yield f"number {fields['number']} is out of turn"
        states = ", ".join(f"'{state}'" for state in lifecycle.TAKING_BIDS)
        if self.market.one(f"SELECT 1 FROM rounds WHERE task_id = ? AND state IN ({states})", task.id):
            yield "another round of the task takes bids"
        due = (task.budget_micro, entry.at_ms + 1000 * task.bid_seconds)
        if (fields["budget_micro"], fields["bid_deadline_ms"]) != due:
            yield "budget or deadline are not those of the task"
        if fields["mechanism_version"].rpartition("/")[0] != task.mechanism:
            rule, _ = self._rule(task, fields["mechanism_version"])
            if fields["mechanism_version"].rpartition("/")[0] != rule.name:
                yield f"the rule is {fields['mechanism_version']}, the task says {task.mechanism}"
        yield from self._signed(entry, fields, buyer)
        yield from self._holds(ledger.party(task.buyer_id), fields["budget_micro"])

    def _bid_placed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        seller = self.market.party(entry.actor)
        arrived = _arrived(entry, fields)
        if seller.role != "seller" or seller.suspended is not None:
            yield f"{entry.actor} may not bid"
        if round_.state != "open" or not arrived < round_.bid_deadline_ms:
            yield "the round took no bids then"
        before = self.market.find_bid(entry.subject, entry.actor)
        if fields["replaces"] is not (before is not None):
            yield "whether it replaces a bid is not what the log says"
        if before is not None and before.commitment != fields["commitment"]:
            place = (entry.subject, entry.actor)
            self.market.run("INSERT OR IGNORE INTO replaced VALUES (?, ?, ?)", *place, before.commitment)
            query = "SELECT 1 FROM replaced WHERE round_id = ? AND seller_id = ? AND commitment = ?"
            if self.market.one(query, *place, fields["commitment"]):
                text = f"log entry {entry.seq}: a bid of {entry.actor} came back after another had replaced it"
                self.finding("bid-again", entry.seq, f"{text}; ask that seller whether it sent it twice")
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
        round_, task = self.market.round_of(entry.subject)
        bid = self.market.find_bid(entry.subject, entry.actor)
        if bid is None:
            raise forged(f"{entry.actor} placed no bid")
        late = _arrived(entry, fields) >= (round_.reveal_deadline_ms or 0)
        if round_.state != "revealing" or late or bid.valuation is not None:
            yield "a bid was revealed after the deadline, in another state than revealing, or a second time"
        yield from self._offer(entry, fields, bid.commitment, round_, task)

    def _round_closed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        early = entry.at_ms < round_.bid_deadline_ms
        may_close_early = task.buyer_may_close and entry.actor == task.buyer_id
        if round_.state != "open" or (early and not may_close_early):
            yield f"bidding was closed by {entry.actor} before its deadline"
        if early and may_close_early:
            yield from self._signed(entry, fields, self.market.party(task.buyer_id))
        if not self._runs_rounds(entry.actor, task):
            yield f"closed by {entry.actor}, whose round it is not"
        waits = task.sealing == "bidder" and round_.bids > 0
        until = entry.at_ms + 1000 * task.reveal_seconds if waits else None
        due = ("revealing" if waits else "closed", until)
        if (fields["state"], fields["reveal_deadline_ms"]) != due:
            yield "the time to reveal is not that of the task"

    def _award_made(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        if round_.state not in ("closed", "revealing"):
            yield "no auction was due"
        if not self._runs_rounds(entry.actor, task):
            yield f"made by {entry.actor}, whose round it is not"
        if type(fields["payment_micro"]) is not int or fields["payment_micro"] < 0:
            yield f"{fields['payment_micro']} is not an amount"

    def _standing_bids(self, round_id: str) -> StandingBids:
        return clearing.standing_bids(self.market.connection, round_id)

    def _wallets(self, round_id: str) -> wallets.ReplayedWallets:
        """The wallets of a round's bidders as they stood before it."""
        events: dict[str, list[PrivacyEvent]] = defaultdict(list)
        families: dict[tuple[float, ...], ReleaseFamily] = {}
        for seller, noise, *schedule in self.market.run(_SOLD, round_id, round_id):
            family = families.setdefault(tuple(schedule), ReleaseFamily(*schedule))
            events[seller].append(family.release(noise))
        records = {}
        for seller, cap, delta in self.market.run(_CAPS, round_id):
            if cap is None or delta is None:
                raise forged(f"{seller} has no wallet")
            records[seller] = wallets.WalletRecord(cap, delta, tuple(events[seller]))
        return wallets.ReplayedWallets(records)

    def _replayed(self, round_: RoundRow, task: TaskRow) -> clearing.Auction:
        """The auction again, with wallets as they stood and the rule in the version that the round was opened
        with."""
        bids = self._standing_bids(round_.id)
        rule, found = self._rule(task, round_.mechanism_version)
        terms = clearing.terms_of(round_, task)
        return clearing.auction(round_.id, terms, bids, self._wallets(round_.id), rule, found)

    def _rule(self, task: TaskRow, recorded: str) -> tuple[Mechanism, str]:
        """A task's rule in the version that was recorded, as far as there is one, and the version that it has."""
        key = (task.mechanism, task.settings, task.epsilon_max, recorded)
        if key not in self.rules_made:
            if len(self.rules_made) > 1000:
                self.rules_made.clear()
            make = rules.as_recorded(self.make_mechanism, task.mechanism, recorded)
            rule = clearing.mechanism_of(task.mechanism, task.settings, task.epsilon_max, make)
            self.rules_made[key] = rule, rules.version_of(rule)
        return self.rules_made[key]

    def _round_cleared(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        if not lifecycle.may_clear(round_, entry.at_ms):
            yield "no auction was due"
        if not self._runs_rounds(entry.actor, task):
            yield f"cleared by {entry.actor}, whose round it is not"
        due = Deadlines.after(entry.at_ms, task).columns()
        if {name: fields[name] for name in due} != due:
            yield "its deadlines are not those of the task"
        if fields["mechanism_version"] != round_.mechanism_version:
            yield f"cleared by {fields['mechanism_version']}, opened with {round_.mechanism_version}"
        made = self.market.awards(round_.id)
        yield from self._within_terms(round_, task, made)
        yield from self._same_auction(entry, fields, round_, task, made)

    def _within_terms(self, round_: RoundRow, task: TaskRow, made: list[AwardRow]) -> Iterator[str]:
        """What holds whatever the rule: winners bid, ε within offer and wallet, paid what they ask, within
        budget."""
        terms = clearing.terms_of(round_, task)
        bids = self._standing_bids(round_.id)
        offers = {seller: bids.offer(i, float(bids.numbers[i, 1])) for i, seller in enumerate(bids.sellers)}
        sold = {a.seller_id: Award.stored(terms, a.epsilon, a.noise_multiplier, a.payment_micro) for a in made}
        yield from clearing.broken_terms(terms, offers, sold)
        try:
            self._wallets(round_.id).check({name: one.event for name, one in sold.items() if name in offers})
        except REASONS as error:
            yield f"a sale does not fit its wallet: {error}"

    def _same_auction(
        self, entry: Entry, fields: Fields, round_: RoundRow, task: TaskRow, made: list[AwardRow]
    ) -> Iterator[str]:
        """The rule gives the same again. A version that is not installed here is a finding of its own."""
        try:
            found = self._replayed(round_, task)
        except REASONS as error:
            text = f"round {round_.id}: its auction cannot be run again, {task.mechanism} fails here: {error}"
            self.finding("rule", entry.seq, text)
            return
        if found.version != round_.mechanism_version:
            text = f"round {round_.id}: its auction cannot be run again: it was opened with "
            self.finding("rule", entry.seq, f"{text}{round_.mechanism_version}, this is {found.version}")
            return
        stored = {a.seller_id: (a.epsilon, a.noise_multiplier, a.payment_micro) for a in made}
        again = {n: (a.epsilon, a.event.noise_multiplier, a.payment_micro) for n, a in found.awards.items()}
        summary = {"trimmed": dict(found.trimmed), **found.summary()}
        if alike(stored, again) and all(alike(fields[name], value) for name, value in summary.items()):
            self.auctions += 1
        else:
            yield "the auction gives another result than recorded"

    def _round_aborted(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        if round_.state == "open":
            if entry.actor == task.buyer_id:
                yield from self._signed(entry, fields, self.market.party(task.buyer_id))
            elif not self._is_operator(entry.actor):
                yield f"aborted by {entry.actor}, whose round it is not"
        elif lifecycle.may_clear(round_, entry.at_ms):
            yield from self._had_a_fault(entry, round_, task)
            if not self._runs_rounds(entry.actor, task):
                yield f"aborted by {entry.actor}, whose round it is not"
        else:
            yield f"aborted while it was {round_.state}"
        yield from self._ends(entry, fields, round_, task, 0)

    def _had_a_fault(self, entry: Entry, round_: RoundRow, task: TaskRow) -> Iterator[str]:
        """A round is aborted at its auction only where the rule fails, or is not the one that it was opened
        with."""
        try:
            found = self._replayed(round_, task)
        except REASONS:
            return  # it fails here too: that is why it was aborted
        if found.version == round_.mechanism_version:
            yield "aborted for a fault that the rule does not have"
        else:
            text = f"round {round_.id} was aborted; it was opened with {round_.mechanism_version}, "
            self.finding("rule", entry.seq, f"{text}this is {found.version}")

    def _ends(
        self, entry: Entry, fields: Fields, round_: RoundRow, task: TaskRow, paid_micro: int
    ) -> Iterator[str]:
        due = (task.buyer_id, paid_micro, round_.budget_micro - paid_micro)
        if (fields["buyer_id"], fields["paid_micro"], fields["refunded_micro"]) != due:
            yield f"paid {fields['paid_micro']} µ, refunded {fields['refunded_micro']} µ; owed: {due[1]}, {due[2]}"

    def _delivery_claimed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        award = self.market.award(entry.subject, entry.actor)
        if (task.delivery == "sealed") != ("key_sha256" in fields):
            yield f"updates of this task are sent {task.delivery}"
        late = _arrived(entry, fields) >= Deadlines.of(round_).delivery_ms
        if round_.state != "cleared" or late or award.claim_sha256 is not None:
            yield "a claim after the deadline, in another state than cleared, or a second one"
        yield from self._signed(entry, fields, self.market.party(entry.actor))

    def _delivery_judged(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        award = self.market.award(entry.subject, fields["seller_id"])
        if entry.actor != task.buyer_id:
            yield f"judged by {entry.actor}, who is not the buyer"
        yield from self._signed(entry, fields, self.market.party(entry.actor))
        late = _arrived(entry, fields) >= Deadlines.of(round_).review_ms
        waits = round_.state == "cleared" and award.claim_sha256 is not None and award.usable is None
        if late or not waits or fields["usable"] is not (fields["fault"] is None):
            yield (
                "a receipt was logged where none was due: too late, before a claim, in another state than cleared, "
                "given already, or its fault does not fit"
            )

    def _dispute_opened(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, _ = self.market.round_of(entry.subject)
        award = self.market.award(entry.subject, fields["seller_id"])
        yield from self._signed(entry, fields, self.market.party(entry.actor))
        late = _arrived(entry, fields) >= Deadlines.of(round_).dispute_ms
        if entry.actor != fields["seller_id"] or late or award.usable is not False or award.dispute is not None:
            yield "a dispute by somebody else than the seller, too late, not of a rejection, or a second one"

    def _dispute_ruled(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        award = self.market.award(entry.subject, fields["seller_id"])
        lifecycle.may_rule(entry.actor, "operator" if self._is_operator(entry.actor) else "", task)
        yield from self._signed(entry, fields, self.market.party(entry.actor))
        late = _arrived(entry, fields) >= Deadlines.of(round_).ruling_ms
        waits = round_.state == "cleared" and award.dispute is not None and award.ruling is None
        if not waits or late or type(fields["ruling"]) is not bool:
            yield "a ruling after its deadline, without a dispute, or a second one"

    def _delivery_shown(self, entry: Entry, fields: Fields) -> Iterator[str]:
        _, task = self.market.round_of(entry.subject)
        award = self.market.award(entry.subject, fields["seller_id"])
        lifecycle.may_rule(entry.actor, "operator" if self._is_operator(entry.actor) else "", task)
        if award.dispute is None or award.ruling is not None or award.key_sha256 is None:
            yield "a key was shown without an open dispute, or of an update that is not sealed"

    def _round_progress(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        if entry.actor != task.buyer_id or round_.state not in ("cleared", "delivered", "settled"):
            yield "reported by somebody else than the buyer, or of a round that was not cleared"
        yield from self._signed(entry, fields, self.market.party(task.buyer_id))
        if not 0 <= fields["model_accuracy"] <= 1:
            yield f"{fields['model_accuracy']} is not a share"
        signature = fields.get("signature")
        again = signature is not None and self._is_signed_again(signature)
        if again and round_.model_accuracy != fields["model_accuracy"]:
            text = f"log entry {entry.seq}: a report of {entry.actor} came back after another had replaced it"
            self.finding("report-again", entry.seq, f"{text}; ask that buyer whether it sent it twice")

    def _round_delivered(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        if round_.state != "cleared" or self._waits(round_, entry.at_ms):
            yield f"the round was not cleared, or {_STILL_WAITED}"
        if entry.actor != task.arbiter_id and not self._runs_rounds(entry.actor, task):
            yield f"by {entry.actor}, whose round it is not"

    def _waits(self, round_: RoundRow, at_ms: int) -> bool:
        until = Deadlines.of(round_)
        return any(
            deliveries.standing(row, until, at_ms) is Standing.WAITING for row in self.market.awards(round_.id)
        )

    def _award_settled(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        award = self.market.award(entry.subject, fields["seller_id"])
        if not self._runs_rounds(entry.actor, task):
            yield f"settled by {entry.actor}, whose round it is not"
        if round_.state not in ("cleared", "delivered") or award.charge != "reserved":
            yield "the award was settled before, or its round was neither cleared nor delivered"
        if award.key_sha256 is not None and fields["paid_micro"] and fields.get("key") is None:
            yield f"the update of {fields['seller_id']} was paid, and its key is not in the log"
        if fields.get("key") is not None:
            matches = sealed.key_digest(fields["key"]) == award.key_sha256
            if not matches or not fields["paid_micro"]:
                yield "the key is not the one that was claimed, or of an update that was not paid"

    def _round_settled(self, entry: Entry, fields: Fields) -> Iterator[str]:
        round_, task = self.market.round_of(entry.subject)
        rows = self.market.awards(round_.id)
        if round_.state not in ("cleared", "delivered") or self._waits(round_, entry.at_ms):
            yield f"it was settled while the round was neither cleared nor delivered, or {_STILL_WAITED}"
        if not self._runs_rounds(entry.actor, task):
            yield f"settled by {entry.actor}, whose round it is not"
        owed = deliveries.settlement(clearing.terms_of(round_, task), rows, Deadlines.of(round_), entry.at_ms)
        for row in rows:
            charge = "charged" if row.seller_id in owed.sold_epsilon else wallets.VOID
            due = owed.paid_micro.get(row.seller_id, 0)
            if (row.charge, row.paid_micro) != (charge, due):
                yield f"{row.seller_id} is {row.charge} and paid {row.paid_micro} µ; owed: {charge}, {due} µ"
        if fields["fault"] is not None:
            yield "a settled round has no fault"
        yield from self._ends(entry, fields, round_, task, owed.spent_micro)
