"""Checks that every entry of a log followed the market's rules when it was made.

`EntryRules` goes through the log entry by entry. Each kind of entry has a method that compares the entry with the
market so far and reports what is wrong; then the entry changes the market. An entry that names something that does
not exist, or has other fields than its kind, is also a difference. An auction is checked twice: against what no
auction may do, whatever its rule and version (`clearing.broken_terms`), and against the result of running its rule
again.

Some findings may have an innocent cause that the log cannot show: a seller that lost its key, a rule of an older
version. They are differences as well, each with a name by which an auditor who has looked into it can accept it.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from privmarket._settings import TOLERANCE
from privmarket.broker import (
    _bidding as bidding,
    _clearing as clearing,
    _deliveries as deliveries,
    _ledger as ledger,
    _lifecycle as lifecycle,
    _parties as parties,
    _rules as rules,
    _sealed as sealed,
    _signatures as signatures,
    _wallets as wallets,
)
from privmarket.broker._clearing import StandingBids
from privmarket.broker._database import ARRIVAL_LIMIT_MS
from privmarket.broker._deliveries import Deadlines, Standing
from privmarket.broker._errors import BrokerError
from privmarket.broker._events import is_webhook_url
from privmarket.broker._log import Entry, canonical
from privmarket.broker._projection import changes
from privmarket.broker._rebuilt import RebuiltMarket
from privmarket.broker._schema import find_payout
from privmarket.broker._shapes import (
    MONEY_LIMIT_MICRO,
    YEAR_SECONDS,
    AwardRow,
    PartyRow,
    RoundRow,
    TaskForm,
    TaskRow,
    WalletForm,
    checked,
)
from privmarket.broker._statements import SIGNS, is_stated
from privmarket.errors import PrivmarketError
from privmarket.market._mechanism import Mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds import Award, Offer

Fields = dict[str, Any]  # of an entry: JSON that anybody may have written
REASONS = (PrivmarketError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
DIFFERENCES_LIMIT = 10_000  # the most differences that are kept, so that a forger cannot make the check itself grow
SYSTEM = "system"
ANONYMOUS = "anonymous"
_OFFER_FIELDS = frozenset({"valuation", "epsilon", "data_size", "accuracy", "nonce"})
_NONE: frozenset[str] = frozenset()
_SIGNED = frozenset({"signature"})
_TIMELY = frozenset({"signature", "arrived_ms"})
_BOOKED = frozenset({"amount_micro", "reference"})
_BOOKED_HOW = frozenset({"undoes", "proposal"})
_ENDED = frozenset({"buyer_id", "paid_micro", "refunded_micro", "fault"})
_CLEARED = frozenset(
    {
        "trimmed", "mechanism_version", "sellers", "awarded_micro", "total_epsilon", "top_price", "seed",
        "delivery_deadline_ms", "review_deadline_ms", "dispute_deadline_ms", "ruling_deadline_ms",
    }
)  # fmt: skip
_TASK = frozenset(TaskRow.columns()) - {"id", "nonce", "created_ms"}
_PARTY = frozenset({"role", "name_hash", "cap_epsilon", "delta", "public_key", "signs"})
_OPENED = frozenset({"buyer_id", "task_id", "number", "budget_micro", "mechanism_version", "bid_deadline_ms"})
# Kind → the fields that an entry must have, and those that it may have. Any other could set a column of a table.
FORMS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "log.key": (frozenset({"public_key"}), frozenset({"signature", "own_signature"})),
    "alert": (frozenset({"fault"}), _NONE),
    "party.registered": (_PARTY, _NONE),
    "party.key": (frozenset({"public_key", "signs"}), _SIGNED),
    "party.dataset": (frozenset({"dataset_sha256", "signature"}), _NONE),
    "party.suspended": (frozenset({"suspended"}), _NONE),
    "party.restored": (frozenset({"suspended"}), _NONE),
    "party.erased": (_NONE, _NONE),
    "token.minted": (frozenset({"id", "token_hash", "scope", "expires_ms"}), _NONE),
    "token.revoked": (frozenset({"id"}), _NONE),
    "money.deposit": (_BOOKED, _BOOKED_HOW),
    "money.proposed": (_BOOKED | {"way"}, frozenset({"undoes"})),
    "money.declined": (frozenset({"proposal", "reference"}), _NONE),
    "session.ended": (frozenset({"session"}), _NONE),
    "webhook.set": (frozenset({"url"}), _NONE),
    "money.requested": (frozenset({"amount_micro", "nonce"}), _SIGNED),
    "money.withdraw": (_BOOKED, _BOOKED_HOW | {"request"}),
    "task.published": (_TASK, frozenset({"said", "signature"})),
    "round.opened": (_OPENED, _SIGNED),
    "bid.placed": (frozenset({"commitment", "replaces"}), _OFFER_FIELDS | _TIMELY),
    "bid.revealed": (_OFFER_FIELDS, frozenset({"arrived_ms"})),
    "round.closed": (frozenset({"state", "reveal_deadline_ms"}), _SIGNED),
    "award.made": (frozenset({"seller_id", "epsilon", "noise_multiplier", "payment_micro"}), _NONE),
    "round.cleared": (_CLEARED, _NONE),
    "delivery.claimed": (frozenset({"update_sha256"}), frozenset({"key_sha256"}) | _TIMELY),
    "delivery.shown": (frozenset({"seller_id"}), _NONE),
    "delivery.judged": (frozenset({"seller_id", "usable", "fault"}), _TIMELY),
    "dispute.opened": (frozenset({"seller_id", "dispute"}), _TIMELY),
    "dispute.ruled": (frozenset({"seller_id", "ruling", "reason"}), _TIMELY),
    "round.delivered": (_NONE, _NONE),
    "award.settled": (frozenset({"seller_id", "paid_micro", "charge"}), frozenset({"key"})),
    "round.progress": (frozenset({"model_accuracy"}), _SIGNED),
    "round.settled": (_ENDED, _NONE),
    "round.aborted": (_ENDED, _SIGNED),
}
_OFFER = ("valuation", "epsilon", "data_size", "accuracy")
_STILL_WAITED = "an award still waited for a claim, receipt, dispute or ruling"
# What the bidders of a round have sold in other rounds, and their wallets.
_SOLD = (
    "SELECT a.seller_id, a.noise_multiplier, t.sampling_rate, t.steps, t.delta FROM awards a "
    "JOIN rounds r ON r.id = a.round_id JOIN tasks t ON t.id = r.task_id "
    "WHERE a.seller_id IN (SELECT seller_id FROM bids WHERE round_id = ?) AND a.round_id <> ? "
    f"AND {wallets.COUNTS_AS_SPENT} ORDER BY a.seq"
)
_CAPS = "SELECT p.id, p.cap_epsilon, p.delta FROM bids b JOIN parties p ON p.id = b.seller_id WHERE b.round_id = ?"


@dataclass
class EntryRules:
    """The market as the log gives it so far, and what is wrong with it.

    Attributes:
        accept: names of findings that the auditor has looked into, such as "other-key@412".
        public_key: the key that the log announces at this point; `keys` are all that it announced.
    """

    make_mechanism: rules.MakeMechanism
    market: RebuiltMarket
    accept: Collection[str] = ()
    differences: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    auctions: int = 0
    log_id: str = ""
    public_key: str = ""
    keys: list[str] = field(default_factory=list)
    previous: Entry | None = None
    # name, settings, limit on offers, recorded version → the rule and its version, found once for all its rounds
    rules_made: dict[tuple[str, str, float, str], tuple[Mechanism, str]] = field(default_factory=dict)

    def say(self, difference: str) -> None:
        """Adds a difference."""
        if len(self.differences) < DIFFERENCES_LIMIT:
            self.differences.append(difference)
        elif len(self.differences) == DIFFERENCES_LIMIT:
            self.differences.append("and more differences, which are not shown")

    def finding(self, name: str, place: object, text: str) -> None:
        """A difference that an auditor may accept under the name NAME@PLACE."""
        code = f"{name}@{place}"
        if code in self.accept:
            self.used.add(code)
            self.accepted.append(text)
        else:
            self.say(f"{text} (if you have looked into it: --accept {code})")

    def follow(self, entry: Entry, where: str) -> None:
        """Checks one entry against the market so far, then lets it change the tables."""
        try:
            fields = entry.fields()
            for problem in _odd_form(entry, fields):
                self.say(f"{where}: {problem}")
            required, allowed = FORMS.get(entry.kind, (_NONE, frozenset(fields)))
            if not required <= fields.keys() <= required | allowed:
                odd = sorted((required - fields.keys()) | (fields.keys() - required - allowed))
                self.say(f"{where}: fields of this kind are missing or too many: {', '.join(odd)}")
            rule = getattr(self, "_" + entry.kind.replace(".", "_"), None)
            if rule is not None:
                for problem in rule(entry, fields) or ():
                    self.say(f"{where}: {problem}")
        except REASONS as error:
            self.say(f"{where} cannot be checked: {type(error).__name__}: {error}")
        try:
            self.market.apply(changes(entry))
        except REASONS as error:
            self.say(f"{where} cannot be applied: {type(error).__name__}: {error}")
        self.previous = entry

    # ---- who may do what --------------------------------------------------------------------------------

    def _is_operator(self, actor: str) -> bool:
        """Whether a registered operator acted, and not the broker by itself."""
        if actor in (SYSTEM, ANONYMOUS):
            return False
        party = self.market.party(actor)
        return party.role == "operator" and party.suspended is None

    def _signed(self, entry: Entry, fields: Fields, party: PartyRow) -> Iterator[str]:
        """Checks the signature under a statement of a party that signs everything."""
        if party.signs == "everything" and not is_stated(party, entry.kind, entry.subject, fields):
            yield f"it is not signed by {party.id}, who signs everything"

    def _is_signed_again(self, signature: str) -> bool:
        """Whether the log had this signature before, which shows that an old statement was put back; records it."""
        known = self.market.one("SELECT 1 FROM signed WHERE signature = ?", signature) is not None
        self.market.run("INSERT OR IGNORE INTO signed VALUES (?)", signature)
        return known

    def _operators_only(self, entry: Entry, fields: Fields) -> Iterator[str]:
        self.market.party(entry.subject)
        if not self._is_operator(entry.actor):
            yield f"{entry.actor} is not an operator"

    # ---- accounts and money, one method per kind of entry -----------------------------------------------------

    def _log_key(self, entry: Entry, fields: Fields) -> Iterator[str]:
        new = str(fields["public_key"])
        if entry.actor != SYSTEM:
            yield f"{entry.actor} announced a key"
        if not signatures.is_public_key(new):
            yield "that is not a public key"
        if not self.public_key:
            self.log_id = entry.subject
            if entry.seq != 1:
                yield "the key is announced after other entries, which nobody signed for"
        else:
            message = signatures.log_key_message(self.log_id, self.public_key, new)
            by_old = signatures.is_signed(self.public_key, message, fields.get("signature") or "")
            by_new = signatures.is_signed(new, message, fields.get("own_signature") or "")
            if not (by_old and by_new):
                text = f"log entry {entry.seq}: another key signs from here, and the old one did not agree to it"
                self.finding("log-key", entry.seq, text)
            if entry.subject != self.log_id:
                yield "the key of another log is announced"
        self.public_key = new
        self.keys.append(new)

    def _party_registered(self, entry: Entry, fields: Fields) -> Iterator[str]:
        role, key, signs = fields["role"], fields["public_key"], fields["signs"]
        if role not in parties.ROLES or not entry.subject.startswith(f"{role}-"):
            yield f"{entry.subject} has the role {role}"
        first = entry.actor == SYSTEM and not self.market.one("SELECT 1 FROM parties WHERE role = 'operator'")
        if role in ("operator", "arbiter", "auditor") and not first and not self._is_operator(entry.actor):
            yield f"an {role} was made by {entry.actor}"
        if entry.actor == SYSTEM and not (first and role == "operator"):
            yield "the broker registered somebody by itself"
        if entry.actor not in (SYSTEM, ANONYMOUS) and not self._is_operator(entry.actor):
            yield f"registered by {entry.actor}"
        if role == "seller":
            if type(fields["cap_epsilon"]) is not float or type(fields["delta"]) is not float:
                yield "a seller without a wallet"
            checked(WalletForm, {"cap_epsilon": fields["cap_epsilon"], "delta": fields["delta"]})
        elif (fields["cap_epsilon"], fields["delta"]) != (None, None):
            yield f"a {role} has no wallet"
        if signs not in SIGNS or (signs == "nothing") != (key is None):
            yield f"signs {signs}, with the key {key}"
        if key is not None and not signatures.is_public_key(key):
            yield "that is not a public key"

    def _token_minted(self, entry: Entry, fields: Fields) -> Iterator[str]:
        role = self.market.party(entry.subject).role
        before = self.previous
        at_registration = (
            before is not None
            and before.kind == "party.registered"
            and (before.subject, before.actor, before.at_ms) == (entry.subject, entry.actor, entry.at_ms)
        )
        by_itself = entry.actor == entry.subject
        by_system = entry.actor == SYSTEM and role == "operator"
        if not (at_registration or by_itself or by_system or self._is_operator(entry.actor)):
            yield f"a token of {entry.subject} was made by {entry.actor}"
        if fields["scope"] not in parties.SCOPES:
            yield f"unknown scope {fields['scope']}"
        ends = fields["expires_ms"]
        latest = entry.at_ms + 1000 * YEAR_SECONDS
        if ends is not None and (type(ends) is not int or not entry.at_ms < ends <= latest):
            yield f"it ends at {ends}, which no token of that time does"

    def _token_revoked(self, entry: Entry, fields: Fields) -> Iterator[str]:
        owner = self.market.one("SELECT party_id FROM tokens WHERE id = ?", fields["id"])
        if owner is None or owner != entry.subject:
            yield f"there is no token {fields['id']} of {entry.subject}"
            return
        by_system = entry.actor == SYSTEM and self.market.party(owner).role == "operator"
        if entry.actor != owner and not by_system and not self._is_operator(entry.actor):
            yield f"a token of {owner} was ended by {entry.actor}"

    def _party_key(self, entry: Entry, fields: Fields) -> Iterator[str]:
        party = self.market.party(entry.subject)
        old, new, signs = party.public_key, fields["public_key"], fields["signs"]
        if entry.actor != entry.subject:
            yield f"the key of {entry.subject} was changed by {entry.actor}"
        if not signatures.is_public_key(new) or signs not in ("bids", "everything"):
            yield f"signs {signs}, with the key {new}"
        if old is not None and fields.get("signature") is None:
            text = (
                f"log entry {entry.seq}: {entry.subject} has another key, and the old one did not sign the change"
            )
            self.finding("other-key", entry.seq, f"{text}; ask that party about it")
        elif old is not None:
            message = signatures.key_message(entry.subject, new, signs)
            if not signatures.is_signed(old, message, fields["signature"]):
                yield "the change is not signed by the party's old key"
            if self._is_signed_again(fields["signature"]):
                text = f"log entry {entry.seq}: {entry.subject} signed this change of keys once, and it came twice"
                self.finding("key-again", entry.seq, f"{text}; ask that party about it")

    def _party_dataset(self, entry: Entry, fields: Fields) -> Iterator[str]:
        seller = self.market.party(entry.subject)
        digest = fields["dataset_sha256"]
        message = signatures.dataset_message(entry.subject, digest)
        if entry.actor != entry.subject or not signatures.is_signed(
            seller.public_key or "", message, fields["signature"]
        ):
            yield "the attestation is not signed by the seller's key"
        taken = self.market.one("SELECT 1 FROM parties WHERE dataset_sha256 = ?", digest)
        if seller.dataset_sha256 is not None or taken:
            yield "one account per data set, and one data set per account"

    def _party_suspended(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from self._operators_only(entry, fields)
        if (fields["suspended"] is None) != (entry.kind == "party.restored"):
            yield "a suspension has a reason, and its end has none"

    _party_restored = _party_suspended

    def _party_erased(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if entry.actor != SYSTEM:
            yield from self._operators_only(entry, fields)
        elif self.market.balance(ledger.party(entry.subject)):
            yield "the broker forgets only parties that hold no money"

    def _money_deposit(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from self._operators_only(entry, fields)
        yield from _amount(fields["amount_micro"])
        yield from _reference(fields["reference"])
        way = entry.kind.removeprefix("money.")
        if fields.get("proposal") is not None:
            yield from self._approved(entry, fields, way)
        if fields.get("undoes") is not None:
            yield from self._undoes(entry, fields, way)
            self.market.run("INSERT OR IGNORE INTO undone VALUES (?), (?)", fields["undoes"], entry.seq)

    def _undoes(self, entry: Entry, fields: Fields, way: str) -> Iterator[str]:
        """Checks that the undone entry moved the same money the other way and was not undone before."""
        seq = fields["undoes"]
        amount = fields["amount_micro"] if way == "withdraw" else -fields["amount_micro"]
        query = "SELECT amount_micro FROM postings WHERE seq = ? AND account = ?"
        moved = [self.market.one(query, seq, account) for account in (ledger.party(entry.subject), ledger.WORLD)]
        if moved != [amount, -amount]:
            yield f"entry {seq}, which it undoes, did not book that money"
        elif self.market.one("SELECT 1 FROM undone WHERE seq = ?", seq) is not None:
            yield f"entry {seq} was undone before"

    def _money_proposed(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from self._operators_only(entry, fields)
        yield from _amount(fields["amount_micro"])
        if fields["way"] not in ("deposit", "withdraw"):
            yield f"{fields['way']} is no way for money"
        yield from _reference(fields["reference"])
        if fields.get("undoes") is not None:
            yield from self._undoes(entry, fields, fields["way"])
        booking = canonical(_booking(entry.subject, str(fields["way"]), fields))
        self.market.run("INSERT OR IGNORE INTO proposals VALUES (?, ?, ?)", entry.seq, entry.actor, booking)

    def _approved(self, entry: Entry, fields: Fields, way: str) -> Iterator[str]:
        """Checks that a second operator booked exactly what was proposed, and that the proposal was still open."""
        rows = self.market.run("SELECT actor, booking FROM proposals WHERE seq = ?", fields["proposal"])
        if not rows:
            yield f"proposal {fields['proposal']} is not there, or was answered before"
            return
        ((proposer, booking),) = rows
        if proposer == entry.actor:
            yield f"{entry.actor} approved its own proposal"
        if booking != canonical(_booking(entry.subject, way, fields)):
            yield f"proposal {fields['proposal']} was about another booking"
        self.market.run("DELETE FROM proposals WHERE seq = ?", fields["proposal"])

    def _money_declined(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from self._operators_only(entry, fields)
        yield from _reference(fields["reference"])
        rows = self.market.run("SELECT booking FROM proposals WHERE seq = ?", fields["proposal"])
        if not rows or json.loads(rows[0][0])["party_id"] != entry.subject:
            yield f"proposal {fields['proposal']} is not there, or was answered before"
        self.market.run("DELETE FROM proposals WHERE seq = ?", fields["proposal"])

    def _session_ended(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if entry.actor != entry.subject:
            yield f"a session of {entry.subject} was ended by {entry.actor}"
        self.market.party(entry.subject)
        if type(fields["session"]) is not str:
            yield f"{fields['session']} is no session"

    def _webhook_set(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if entry.actor != entry.subject:
            yield f"events of {entry.subject} were redirected by {entry.actor}"
        self.market.party(entry.subject)
        url = fields["url"]
        if url is not None and (type(url) is not str or not is_webhook_url(url)):
            yield f"{url} is no address for events"

    def _money_requested(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from _amount(fields["amount_micro"])
        if entry.actor != entry.subject:
            yield f"money of {entry.subject} was asked for by {entry.actor}"
        party = self.market.party(entry.subject)
        yield from self._signed(entry, fields, party)
        if party.signs == "everything" and fields["nonce"] is None:
            yield "a signed request has a nonce"
        asked = "SELECT COALESCE(SUM(amount_micro), 0) FROM payouts WHERE party_id = ? AND paid_seq IS NULL"
        waiting = int(self.market.one(asked, entry.subject))
        yield from self._holds(ledger.party(entry.subject), waiting + fields["amount_micro"])

    def _money_withdraw(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from self._money_deposit(entry, fields)
        yield from self._holds(ledger.party(entry.subject), fields["amount_micro"])
        seq = fields.get("request")
        if seq is None:
            if self.market.party(entry.subject).signs == "everything" and fields.get("undoes") is None:
                yield f"{entry.subject} signs everything, and did not ask for this money"
            return
        request = find_payout(self.market.connection, seq)
        if request is None or request.paid_seq is not None:
            yield f"request {seq} is not there, or was paid before"
        elif (request.party_id, request.amount_micro) != (entry.subject, fields["amount_micro"]):
            yield f"request {seq} asks for other money"

    def _holds(self, account: str, amount_micro: int) -> Iterator[str]:
        held = self.market.balance(account)
        if held < amount_micro:
            yield f"{account} holds {held} µ, not {amount_micro} µ"

    # ---- tasks and rounds, one method per kind of entry -------------------------------------------------------

    def _runs_rounds(self, actor: str, task: TaskRow) -> bool:
        """Whether the actor may close, clear and settle: the buyer, an operator, or the broker at a deadline."""
        return actor in (SYSTEM, task.buyer_id) or self._is_operator(actor)

    def _alert(self, entry: Entry, fields: Fields) -> Iterator[str]:
        _, task = self.market.round_of(entry.subject)
        if not self._runs_rounds(entry.actor, task):
            yield f"by {entry.actor}, whose round it is not"

    def _task_published(self, entry: Entry, fields: Fields) -> Iterator[str]:
        buyer = self.market.party(entry.actor)
        if entry.actor != fields["buyer_id"] or buyer.role != "buyer" or buyer.suspended is not None:
            yield f"published by {entry.actor} for {fields['buyer_id']}"
        names = list(TaskForm.model_fields)
        stated = {name: fields[name] for name in names if name != "settings"}
        plan = TaskForm.checked({**stated, "settings": json.loads(fields["settings"])})
        if plan.arbiter_id is not None and self.market.party(plan.arbiter_id).role != "arbiter":
            yield f"{plan.arbiter_id} is not an arbiter"
        yield from self._signed(entry, fields, buyer)
        said = fields.get("said")
        if said is not None:
            whole = TaskForm.checked({name: value for name, value in said.items() if name != "nonce"})
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
        """A task's rule, in the recorded version if that is installed here, and the version that it really has."""
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
        """Checks what every rule must keep: each winner has bid, sells no more than its offer and wallet allow and
        is paid what it asks, and all payments are within the budget."""
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
        """Checks that the rule gives the recorded result again. A version that is not installed is a finding."""
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
        """Checks that the rule of a round aborted at its auction fails here too, or has another version than
        at the opening."""
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


def _booking(party_id: str, way: str, fields: Fields) -> Fields:
    """What a proposal and the booking that answers it must agree on."""
    said = {name: fields.get(name) for name in ("amount_micro", "reference", "undoes")}
    return {"party_id": party_id, "way": way, **said}


def _amount(amount_micro: object) -> Iterator[str]:
    if type(amount_micro) is not int or not 0 < amount_micro <= MONEY_LIMIT_MICRO:
        yield f"{amount_micro} is not an amount"


def _reference(text: object) -> Iterator[str]:
    if type(text) is not str or not ledger.is_reference(text):
        yield f"{str(text)[:40]!r} is no reference"


def _odd_form(entry: Entry, fields: Fields) -> Iterator[str]:
    """Differences in form: JSON that is not canonical, or a key, request and answer that do not match."""
    if canonical(fields) != entry.details:
        yield "its details are not spelled as a broker spells them"
    if (entry.key_hash is None) != (entry.request_hash is None) or (entry.answer and entry.key_hash is None):
        yield "an idempotency key, its request and its answer go together"
    if entry.answer is not None and canonical(json.loads(entry.answer)) != entry.answer:
        yield "its answer is not spelled as a broker spells it"


def forged(what: str) -> BrokerError:
    """The error for an entry that names something which cannot exist."""
    return BrokerError(what, "the entry is forged")


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
