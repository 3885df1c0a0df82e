"""The rules of what parties do outside rounds: keys, tokens, money. A check walks the log with them.

`AccountRules` goes entry by entry: each kind has a method that compares the entry with the market so far and says
what is wrong, and only then does the entry change the market. An entry that names something that is not there, or
has other fields than its kind has, is a difference too. The rules of tasks and rounds stand in `entry_rules`.

Some findings may have an innocent cause that the log cannot show: a seller that lost its key, a rule of an older
version. They are differences as well, each with a name under which an auditor who has asked can accept it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from privmarket.broker import (
    _ledger as ledger,
)
from privmarket.broker import (
    _parties as parties,
)
from privmarket.broker import (
    _rules as rules,
)
from privmarket.broker import (
    _signatures as signatures,
)
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._log import Entry, canonical
from privmarket.broker._projection import changes
from privmarket.broker._rebuilt import RebuiltMarket
from privmarket.broker._statements import SIGNS, is_stated
from privmarket.broker._stored_rows import PartyRow, TaskRow, find_payout
from privmarket.broker._task_plan import MONEY_LIMIT_MICRO, YEAR_SECONDS, WalletPlan, checked
from privmarket.broker._webhook_url import is_webhook_url
from privmarket.errors import PrivmarketError
from privmarket.market._mechanism import Mechanism

Fields = dict[str, Any]  # of an entry: JSON that anybody may have written
REASONS = (PrivmarketError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
DIFFERENCES_LIMIT = 10_000  # that are kept; a forger could else make the check itself grow
SYSTEM = "system"
ANONYMOUS = "anonymous"
_OFFER = frozenset({"valuation", "epsilon", "data_size", "accuracy", "nonce"})
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
_TASK = frozenset(TaskRow._fields) - {"id", "nonce", "created_ms"}
_PARTY = frozenset({"role", "name_hash", "cap_epsilon", "delta", "public_key", "signs"})
_OPENED = frozenset({"buyer_id", "task_id", "number", "budget_micro", "mechanism_version", "bid_deadline_ms"})
# Kind → the fields that an entry has, and those that it may have. A field more could set another column.
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
    "bid.placed": (frozenset({"commitment", "replaces"}), _OFFER | _TIMELY),
    "bid.revealed": (_OFFER, frozenset({"arrived_ms"})),
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


@dataclass
class AccountRules:
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
        """Whether a registered operator acted; not the broker by itself, whose entries nobody answers for."""
        if actor in (SYSTEM, ANONYMOUS):
            return False
        party = self.market.party(actor)
        return party.role == "operator" and party.suspended is None

    def _signed(self, entry: Entry, fields: Fields, party: PartyRow) -> Iterator[str]:
        """A statement of a party that signs everything carries its signature."""
        if party.signs == "everything" and not is_stated(party, entry.kind, entry.subject, fields):
            yield f"it is not signed by {party.id}, who signs everything"

    def _is_signed_again(self, signature: str) -> bool:
        """Whether the log had this signature before; notes it. Somebody may have put an old statement back."""
        known = self.market.one("SELECT 1 FROM signed WHERE signature = ?", signature) is not None
        self.market.run("INSERT OR IGNORE INTO signed VALUES (?)", signature)
        return known

    def _operators_only(self, entry: Entry, fields: Fields) -> Iterator[str]:
        self.market.party(entry.subject)
        if not self._is_operator(entry.actor):
            yield f"{entry.actor} is not an operator"

    # ---- one method per kind of entry -------------------------------------------------------------------

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
            checked(WalletPlan, {"cap_epsilon": fields["cap_epsilon"], "delta": fields["delta"]})
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
        """The entry that is undone moved the same money the other way, and nothing undid it before."""
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
        """A second operator booked exactly what was proposed, and the proposal was still open."""
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


def _booking(party_id: str, way: str, fields: Fields) -> Fields:
    """What a proposal and the booking that answers it must agree on."""
    said = {name: fields.get(name) for name in ("amount_micro", "reference", "undoes")}
    return {"party_id": party_id, "way": way, **said}


def _amount(amount_micro: object) -> Iterator[str]:
    if type(amount_micro) is not int or not 0 < amount_micro <= MONEY_LIMIT_MICRO:
        yield f"{amount_micro} is not an amount"


def _reference(text: object) -> Iterator[str]:
    if type(text) is not str or not parties.is_reference(text):
        yield f"{str(text)[:40]!r} is no reference"


def _odd_form(entry: Entry, fields: Fields) -> Iterator[str]:
    """An entry has one spelling, and an answer belongs to a request: readers must not differ on what it says."""
    if canonical(fields) != entry.details:
        yield "its details are not spelled as a broker spells them"
    if (entry.key_hash is None) != (entry.request_hash is None) or (entry.answer and entry.key_hash is None):
        yield "an idempotency key, its request and its answer go together"
    if entry.answer is not None and canonical(json.loads(entry.answer)) != entry.answer:
        yield "its answer is not spelled as a broker spells it"


def forged(what: str) -> BrokerError:
    """The error for an entry that names something that cannot be."""
    return BrokerError(what, "the entry is forged")
