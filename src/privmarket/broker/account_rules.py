"""The market so far, as a log gives it, and the rules of what parties do outside rounds: keys, tokens, money.

`AccountRules` walks entry by entry: each kind has a method that compares the entry with the market so far and says
what is wrong, and only then does the entry change the market. An entry that names something that is not there, or
lacks fields, is a difference too. The rules of tasks and rounds stand in `entry_rules`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from privmarket.broker import clearing, ledger, parties, rules, signatures, wallets
from privmarket.broker.http_errors import BrokerError
from privmarket.broker.log import Entry
from privmarket.broker.projection import Change, Rebuilt, changes
from privmarket.broker.stored_rows import AwardRow, BidRow, PartyRow, RoundRow, TaskRow
from privmarket.errors import PrivmarketError
from privmarket.market.mechanism import Mechanism
from privmarket.privacy.events import PrivacyEvent

Fields = dict[str, Any]  # of an entry: JSON that anybody may have written
REASONS = (PrivmarketError, KeyError, TypeError, ValueError, AttributeError)


@dataclass
class AccountRules:
    """The market as the log gives it so far, and what is wrong with it."""

    make_mechanism: rules.MakeMechanism
    tables: Rebuilt = field(default_factory=Rebuilt)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    balances: Counter[str] = field(default_factory=Counter)
    auctions: int = 0
    public_key: str = ""
    imported: Fields = field(default_factory=dict)
    sold: dict[str, dict[str, PrivacyEvent]] = field(default_factory=lambda: defaultdict(dict))
    # table → round → its sellers, in their order
    in_round: dict[str, dict[str, dict[str, None]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    rounds_of: Counter[str] = field(default_factory=Counter)
    datasets: set[str] = field(default_factory=set)
    # (round, seller) → commitments of bids that others have replaced
    replaced: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    # name, settings, limit on offers, recorded version → the rule and its version, found once for all its rounds
    rules_made: dict[tuple[str, str, float, str], tuple[Mechanism, str]] = field(default_factory=dict)
    is_importing: bool = True  # so far every entry was brought over from an older database

    def follow(self, entry: Entry, where: str) -> None:
        """Checks one entry against the market so far, then lets it change the tables."""
        try:
            if entry.kind.startswith("imported.") or entry.kind == "log.imported":
                if not self.is_importing:
                    self.differences.append(f"{where}: rows are imported before anything else, never later")
            else:
                self.is_importing = False
            fields = entry.fields()
            rule = getattr(self, "_" + entry.kind.replace(".", "_").replace("-", "_"), None)
            if rule is not None:
                for problem in rule(entry, fields) or ():
                    self.differences.append(f"{where}: {problem}")
        except REASONS as error:
            self.differences.append(f"{where} cannot be checked: {type(error).__name__}: {error}")
        try:
            made = changes(entry)
            self.tables.apply(made)
            self._index(made)
        except REASONS as error:
            self.differences.append(f"{where} cannot be applied: {type(error).__name__}: {error}")

    def _index(self, made: list[Change]) -> None:
        for verb, table, key, values in made:
            if table == "postings":
                self.balances[values["account"]] += values["amount_micro"]
            elif table in ("bids", "awards") and verb in ("insert", "put"):
                self.in_round[table][key[0]][key[1]] = None
            elif table == "rounds" and verb == "insert":
                self.rounds_of[values["task_id"]] += 1

    def _row(self, table: str, *key: str) -> Fields:
        row = self.tables.tables[table].get(key)
        if row is None:
            raise BrokerError(f"no such row in {table}: {' '.join(key)}", "the entry is forged")
        return row

    def _party(self, party_id: str) -> PartyRow:
        return PartyRow(**self._row("parties", party_id))

    def _task(self, task_id: str) -> TaskRow:
        return TaskRow(**self._row("tasks", task_id))

    def _bid(self, round_id: str, seller_id: str) -> BidRow:
        return BidRow(**self._row("bids", round_id, seller_id))

    def _award(self, round_id: str, seller_id: str) -> AwardRow:
        return AwardRow(**self._row("awards", round_id, seller_id))

    def _round_of(self, round_id: str) -> tuple[RoundRow, TaskRow]:
        round_ = RoundRow(**self._row("rounds", round_id))
        return round_, self._task(round_.task_id)

    def _is_operator(self, actor: str) -> bool:
        return actor == "system" or self._party(actor).role == "operator"

    # ---- one method per kind of entry -------------------------------------------------------------------

    def _log_key(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if entry.actor != "system":
            yield f"{entry.actor} announced a key"
        if self.public_key:
            self.notes.append(f"log entry {entry.seq}: another key signs from here; ask the operator about it")
        self.public_key = fields["public_key"]

    def _log_imported(self, entry: Entry, fields: Fields) -> None:
        self.imported = fields
        self.notes.append(fields["note"])

    def _imported_row(self, entry: Entry, fields: Fields) -> None:
        if entry.subject == "awards" and fields["charge"] != wallets.VOID:
            _, task = self._round_of(fields["round_id"])
            event = clearing.family_of(task).release(fields["noise_multiplier"])
            self.sold[fields["seller_id"]][fields["round_id"]] = event

    def _party_registered(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if fields["role"] not in parties.ROLES:
            yield f"unknown role {fields['role']}"
        if fields["role"] in ("operator", "arbiter") and not self._is_operator(entry.actor):
            yield f"an {fields['role']} was made by {entry.actor}"

    def _token_minted(self, entry: Entry, fields: Fields) -> Iterator[str]:
        role = self._party(entry.subject).role
        known = entry.actor == entry.subject or (entry.actor == "anonymous" and role in ("buyer", "seller"))
        if not known and not self._is_operator(entry.actor):
            yield f"a token of {entry.subject} was made by {entry.actor}"

    def _token_revoked(self, entry: Entry, fields: Fields) -> Iterator[str]:
        owner = self._row("tokens", fields["id"])["party_id"]
        if owner != entry.subject or (entry.actor != owner and not self._is_operator(entry.actor)):
            yield f"a token of {owner} was ended by {entry.actor}"

    def _party_key(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if entry.actor != entry.subject or self._party(entry.subject).role != "seller":
            yield f"the key of {entry.subject} was changed by {entry.actor}"
        old, message = (
            self._party(entry.subject).public_key,
            signatures.key_message(entry.subject, fields["public_key"]),
        )
        if old is not None and fields.get("signature") is None:
            self.notes.append(
                f"log entry {entry.seq}: {entry.subject} has another key, and the old one did not sign the change; "
                "ask that seller about it"
            )
        elif old is not None and not signatures.is_signed(old, message, fields["signature"]):
            yield "the change is not signed by the seller's old key"

    def _party_dataset(self, entry: Entry, fields: Fields) -> Iterator[str]:
        seller, digest = self._party(entry.subject), fields["dataset_sha256"]
        message = signatures.dataset_message(entry.subject, digest)
        if entry.actor != entry.subject or not signatures.is_signed(
            seller.public_key or "", message, fields["signature"]
        ):
            yield "the attestation is not signed by the seller's key"
        if seller.dataset_sha256 is not None or digest in self.datasets:
            yield "one account per data set, and one data set per account"
        self.datasets.add(digest)

    def _operators_only(self, entry: Entry, fields: Fields) -> Iterator[str]:
        if not self._is_operator(entry.actor):
            yield f"{entry.actor} is not an operator"

    _party_suspended = _party_restored = _party_erased = _operators_only

    def _money_deposit(self, entry: Entry, fields: Fields) -> Iterator[str]:
        self._party(entry.subject)
        yield from self._operators_only(entry, fields)
        if fields["amount_micro"] <= 0:
            yield "not an amount"

    def _money_withdraw(self, entry: Entry, fields: Fields) -> Iterator[str]:
        yield from self._money_deposit(entry, fields)
        yield from self._holds(ledger.party(entry.subject), fields["amount_micro"])

    def _holds(self, account: str, amount_micro: int) -> Iterator[str]:
        if self.balances[account] < amount_micro:
            yield f"{account} holds {self.balances[account]} µ, not {amount_micro} µ"
