"""Money that comes in and goes out, booked by operators: with a reference, undone by another entry, seen by two.

A booking moves money between the world outside and a party's account. It carries the reference under which the bank
knows it. A wrong one is never removed: `undo` books the same amount the other way and names the entry that it
undoes. Above `second_approver_above_micro` a booking is only proposed, and another operator approves or declines
it. Parties ask for payouts; a withdrawal of the amount that was asked for answers the oldest such request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from privmarket.broker import _ledger as ledger
from privmarket.broker import _parties as parties
from privmarket.broker import _sql as sql
from privmarket.broker._answers import Balance, BookingLine, Page, PayoutAnswer, PayoutLine, ProposalLine
from privmarket.broker._database import Transaction
from privmarket.broker._forms import NO_REFERENCE
from privmarket.broker._http_errors import BrokerError, ConflictError, ForbiddenError, NotFoundError
from privmarket.broker._parties import Actor, require
from privmarket.broker._schema import log
from privmarket.broker._views import names_of, page
from privmarket.broker._write_path import WritePath

_BOOKED = ("money.deposit", "money.withdraw")
_OTHER_WAY = {"deposit": "withdraw", "withdraw": "deposit"}
_MONEY = "SELECT seq, at_ms, actor, kind, subject, details FROM log WHERE kind IN (?*) AND seq > ? ORDER BY seq"


class _Entry(NamedTuple):
    """A log entry about money."""

    seq: int
    at_ms: int
    actor: str
    kind: str
    party_id: str
    fields: dict[str, object]

    @property
    def amount_micro(self) -> int:
        amount = self.fields["amount_micro"]
        assert isinstance(amount, int)
        return amount


def _entries(connection: Connection, kinds: tuple[str, ...], after: int = 0) -> list[_Entry]:
    rows = sql.run(connection, _MONEY, list(kinds), after)
    return [_read(row) for row in rows]


def _entry(connection: Connection, seq: int, kinds: tuple[str, ...], what: str) -> _Entry:
    query = "SELECT seq, at_ms, actor, kind, subject, details FROM log WHERE seq = ?"
    rows = sql.run(connection, query, seq)
    if not rows or rows[0][3] not in kinds:
        raise NotFoundError(f"entry {seq} is no {what}", "GET /v1/bookings lists what was booked")
    return _read(rows[0])


def _read(row: Sequence[Any]) -> _Entry:
    seq, at_ms, actor, kind, party_id, details = row
    return _Entry(seq, at_ms, actor, kind, party_id, json.loads(details))


class BookingCommands(WritePath):
    """Every write about money that enters or leaves the market.

    Attributes:
        second_approver_above_micro: larger bookings need a second operator; None where none do.
    """

    second_approver_above_micro: int | None = None

    def deposit(
        self, actor: Actor, party_id: str, amount_micro: int, key: str, reference: str = NO_REFERENCE
    ) -> Balance:
        """Money comes in from outside."""
        return self._book(actor, "deposit", party_id, amount_micro, key, reference)

    def withdraw(
        self, actor: Actor, party_id: str, amount_micro: int, key: str, reference: str = NO_REFERENCE
    ) -> Balance:
        """Pays money of a party out of the market."""
        return self._book(actor, "withdraw", party_id, amount_micro, key, reference)

    def _book(self, actor: Actor, way: str, party_id: str, amount_micro: int, key: str, reference: str) -> Balance:
        require(actor, "operator")
        reference = _checked_reference(reference)

        def command(tx: Transaction) -> Balance:
            return self._book_or_propose(tx, way, party_id, amount_micro, {"reference": reference})

        return self._write(actor, key, (way, party_id, amount_micro, reference), command)

    def undo_booking(self, actor: Actor, seq: int, reason: str, key: str) -> Balance:
        """Books what entry `seq` booked the other way; once only."""
        require(actor, "operator")
        reference = _checked_reference(reason)

        def command(tx: Transaction) -> Balance:
            wrong = _entry(tx.connection, seq, _BOOKED, "booking")
            if "undoes" in wrong.fields:
                raise ConflictError(f"entry {seq} undoes another one itself", "book what is right instead")
            _check_not_undone(tx.connection, seq)
            way = _OTHER_WAY[wrong.kind.removeprefix("money.")]
            notes = {"reference": reference, "undoes": seq}
            return self._book_or_propose(tx, way, wrong.party_id, wrong.amount_micro, notes)

        return self._write(actor, key, ("undo", seq, reference), command)

    def approve_booking(self, actor: Actor, seq: int, key: str) -> Balance:
        """A second operator agrees: what entry `seq` proposed is booked."""
        require(actor, "operator")

        def command(tx: Transaction) -> Balance:
            proposed = _open_proposal(tx.connection, seq)
            if proposed.actor == actor.party_id:
                raise ForbiddenError("a booking is approved by somebody else", "ask another operator")
            way = str(proposed.fields["way"])
            notes = {"reference": proposed.fields["reference"], "proposal": seq}
            if "undoes" in proposed.fields:
                _check_not_undone(tx.connection, int(str(proposed.fields["undoes"])))
                notes["undoes"] = proposed.fields["undoes"]
            return _booked(tx, way, proposed.party_id, proposed.amount_micro, notes)

        return self._write(actor, key, ("approve", seq), command)

    def decline_booking(self, actor: Actor, seq: int, reason: str, key: str) -> Balance:
        """An operator, perhaps the one who proposed it, takes the proposal of entry `seq` off the list."""
        require(actor, "operator")
        reference = _checked_reference(reason)

        def command(tx: Transaction) -> Balance:
            proposed = _open_proposal(tx.connection, seq)
            entry = tx.log("money.declined", proposed.party_id, proposal=seq, reference=reference)
            return _answer(tx, proposed.party_id, entry, "declined")

        return self._write(actor, key, ("decline", seq, reference), command)

    def request_payout(
        self,
        actor: Actor,
        amount_micro: int,
        key: str,
        *,
        nonce: str | None = None,
        signature: str | None = None,
    ) -> PayoutAnswer:
        """The caller asks for money of its account; who signs everything signs this too, with a fresh nonce."""
        asked = ("payout", amount_micro, nonce)

        def command(tx: Transaction) -> PayoutAnswer:
            return parties.request_payout(tx, actor, amount_micro, nonce, signature)

        return self._write(actor, key, asked, command, even_suspended=True)

    def _book_or_propose(
        self, tx: Transaction, way: str, party_id: str, amount_micro: int, notes: Mapping[str, object]
    ) -> Balance:
        limit = self.second_approver_above_micro
        if limit is None or amount_micro <= limit:
            return _booked(tx, way, party_id, amount_micro, notes)
        parties.check_amount(amount_micro)
        parties.role_of(tx.connection, party_id)
        if way == "withdraw":
            ledger.require(tx.connection, ledger.party(party_id), amount_micro, way)
        entry = tx.log("money.proposed", party_id, way=way, amount_micro=amount_micro, **notes)
        return _answer(tx, party_id, entry, "proposed")


def _booked(tx: Transaction, way: str, party_id: str, amount_micro: int, notes: Mapping[str, object]) -> Balance:
    entry = parties.move_money(tx, way, party_id, amount_micro, notes)
    return _answer(tx, party_id, entry, "booked")


def _answer(tx: Transaction, party_id: str, entry: int, state: str) -> Balance:
    tx.flush()
    balance = ledger.balance(tx.connection, ledger.party(party_id))
    return {"party_id": party_id, "balance_micro": balance, "entry": entry, "state": state}


def _checked_reference(text: str) -> str:
    text = text.strip()
    if not parties.is_reference(text):
        raise BrokerError(
            "no reference, or one that does not print",
            f"give 1 to {parties.REFERENCE_LENGTH} characters, as the bank has it",
        )
    return text


def _check_not_undone(connection: Connection, seq: int) -> None:
    """Refuses to undo a booking twice: also where two proposals to undo it were open at once."""
    if any(later.fields.get("undoes") == seq for later in _entries(connection, _BOOKED, seq)):
        raise ConflictError(f"entry {seq} was undone already", "GET /v1/bookings shows by which entry")


def _open_proposal(connection: Connection, seq: int) -> _Entry:
    proposed = _entry(connection, seq, ("money.proposed",), "proposal")
    answers = _entries(connection, (*_BOOKED, "money.declined"), seq)
    if any(one.fields.get("proposal") == seq for one in answers):
        raise ConflictError(f"entry {seq} was approved or declined already", "GET /v1/bookings shows it")
    return proposed


# ---- what operators and parties see ---------------------------------------------------------------------------


def booking_list(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[BookingLine]:
    """What was booked, newest first, and by which entry it was undone (operators)."""
    require(actor, "operator")
    query = select(log.c.seq, log.c.at_ms, log.c.actor, log.c.kind, log.c.subject, log.c.details)
    query = query.where(log.c.kind.in_(_BOOKED))
    found = page(dict[str, str], connection, query, log.c.seq, None, after, limit)
    entries = [_read(list(row.values())) for row in found["items"]]
    oldest = min((one.seq for one in entries), default=0)
    undone = {
        one.fields["undoes"]: one.seq for one in _entries(connection, _BOOKED, oldest) if "undoes" in one.fields
    }
    names = names_of(connection, sorted({who for one in entries for who in (one.party_id, one.actor)}))
    items: list[BookingLine] = []
    for one in entries:
        undoes = one.fields.get("undoes")
        items.append(
            {
                "entry": one.seq,
                "created_ms": one.at_ms,
                "by": one.actor,
                "by_name": names.get(one.actor),
                "way": one.kind.removeprefix("money."),
                "party_id": one.party_id,
                "party_name": names.get(one.party_id),
                "amount_micro": one.amount_micro,
                "reference": str(one.fields.get("reference", NO_REFERENCE)),
                "undoes": undoes if isinstance(undoes, int) else None,
                "undone_by": undone.get(one.seq),
            }
        )
    return {"items": items, "next": found["next"]}


def open_proposals(connection: Connection, actor: Actor) -> list[ProposalLine]:
    """Bookings that wait for a second operator."""
    require(actor, "operator")
    proposed = _entries(connection, ("money.proposed",))
    if not proposed:
        return []
    later = _entries(connection, (*_BOOKED, "money.declined"), proposed[0].seq)
    answered = {one.fields.get("proposal") for one in later}
    waiting = [one for one in proposed if one.seq not in answered]
    names = names_of(connection, sorted({who for one in waiting for who in (one.party_id, one.actor)}))
    return [
        {
            "entry": one.seq,
            "created_ms": one.at_ms,
            "by": one.actor,
            "by_name": names.get(one.actor),
            "way": str(one.fields["way"]),
            "party_id": one.party_id,
            "party_name": names.get(one.party_id),
            "amount_micro": one.amount_micro,
            "reference": str(one.fields["reference"]),
        }
        for one in waiting
    ]


def open_payouts(connection: Connection, party_id: str | None = None) -> list[PayoutLine]:
    """Payouts that were asked for and not made yet, oldest first; of one party, or of all."""
    waiting = _open_requests(connection, party_id)
    names = names_of(connection, sorted({one.party_id for one in waiting}))
    return [
        {
            "entry": one.seq,
            "created_ms": one.at_ms,
            "party_id": one.party_id,
            "party_name": names.get(one.party_id),
            "amount_micro": one.amount_micro,
        }
        for one in waiting
    ]


def _open_requests(connection: Connection, party_id: str | None) -> list[_Entry]:
    requested = _entries(connection, ("money.requested",))
    if not requested:
        return []
    paid = {one.fields.get("request") for one in _entries(connection, ("money.withdraw",), requested[0].seq)}
    return [one for one in requested if one.seq not in paid and party_id in (None, one.party_id)]
