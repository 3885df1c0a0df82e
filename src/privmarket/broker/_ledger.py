"""Money: double entry in integer micro-units, and the bookings that bring it in and take it out.

The postings of every log entry sum to zero, and so does the ledger. Accounts are names: `world` (money outside; its
negative is what was deposited and not yet paid out), `party:ID`, `escrow:ROUND`. Balances are sums of postings,
never stored beside them.

Operators book what came in and went out, with the reference under which the bank knows it. A wrong booking is never
removed: `undo` books the same amount the other way and names the entry that it undoes. Above a limit that the
broker sets a booking is only proposed, and another operator approves or declines it. Parties ask for payouts; a
withdrawal of the amount that was asked for answers the oldest such request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from privmarket.broker import _parties as parties, _sql as sql
from privmarket.broker._answers import Balance, PayoutAnswer
from privmarket.broker._database import Transaction
from privmarket.broker._errors import (
    BrokerError,
    ConflictError,
    ForbiddenError,
    InsufficientFundsError,
    NotFoundError,
)
from privmarket.broker._parties import Actor
from privmarket.broker._projection import WORLD, escrow, party
from privmarket.broker._schema import find_party
from privmarket.broker._shapes import MONEY_LIMIT_MICRO
from privmarket.broker._statements import countersigned

__all__ = ["WORLD", "balance", "escrow", "party", "require", "totals"]
REFERENCE_LENGTH = 200
BOOKED = ("money.deposit", "money.withdraw")
_OTHER_WAY = {"deposit": "withdraw", "withdraw": "deposit"}
_MONEY = "SELECT seq, at_ms, actor, kind, subject, details FROM log WHERE kind IN (?*) AND seq > ? ORDER BY seq"


def balance(connection: Connection, account: str) -> int:
    """Micro-units on one account."""
    query = "SELECT COALESCE(SUM(amount_micro), 0) FROM postings WHERE account = ?"
    return int(sql.run(connection, query, account)[0][0])


def require(connection: Connection, account: str, amount_micro: int, purpose: str) -> None:
    """Raises `InsufficientFundsError` if an account holds less than is to be taken from it."""
    held = balance(connection, account)
    if held < amount_micro:
        raise InsufficientFundsError(
            f"{account} holds {held} µ, {purpose} needs {amount_micro} µ", "deposit money first"
        )


def totals(connection: Connection) -> dict[str, int]:
    """Micro-units deposited (net of payouts), in escrow, and on the accounts of parties."""
    query = "SELECT substr(account, 1, 5), SUM(amount_micro) FROM postings GROUP BY substr(account, 1, 5)"
    sums = {str(name): int(amount) for name, amount in sql.run(connection, query)}
    return {
        "deposited_micro": -sums.get("world", 0),
        "escrow_micro": sums.get("escro", 0),
        "balances_micro": sums.get("party", 0),
    }


# ---- entries about money --------------------------------------------------------------------------------------


class MoneyEntry(NamedTuple):
    """A log entry about money."""

    seq: int
    at_ms: int
    actor: str
    kind: str
    party_id: str
    fields: dict[str, object]

    @property
    def amount_micro(self) -> int:
        """How much was booked, proposed or asked for."""
        amount = self.fields["amount_micro"]
        assert isinstance(amount, int)
        return amount


def entries(connection: Connection, kinds: tuple[str, ...], after: int = 0) -> list[MoneyEntry]:
    """Entries of these kinds after entry `after`, oldest first."""
    rows = sql.run(connection, _MONEY, list(kinds), after)
    return [read_entry(row) for row in rows]


def _entry(connection: Connection, seq: int, kinds: tuple[str, ...], what: str) -> MoneyEntry:
    query = "SELECT seq, at_ms, actor, kind, subject, details FROM log WHERE seq = ?"
    rows = sql.run(connection, query, seq)
    if not rows or rows[0][3] not in kinds:
        raise NotFoundError(f"entry {seq} is no {what}", "GET /v1/bookings lists what was booked")
    return read_entry(rows[0])


def read_entry(row: Sequence[Any]) -> MoneyEntry:
    """From a row of the log: seq, at_ms, actor, kind, subject, details."""
    seq, at_ms, actor, kind, party_id, details = row
    return MoneyEntry(seq, at_ms, actor, kind, party_id, json.loads(details))


def open_requests(connection: Connection, party_id: str | None) -> list[MoneyEntry]:
    """Requests for payouts that were not paid yet, oldest first; of one party, or of all."""
    requested = entries(connection, ("money.requested",))
    if not requested:
        return []
    paid = {one.fields.get("request") for one in entries(connection, ("money.withdraw",), requested[0].seq)}
    return [one for one in requested if one.seq not in paid and party_id in (None, one.party_id)]


def open_proposals(connection: Connection) -> list[MoneyEntry]:
    """Bookings that wait for a second operator, oldest first."""
    proposed = entries(connection, ("money.proposed",))
    if not proposed:
        return []
    later = entries(connection, (*BOOKED, "money.declined"), proposed[0].seq)
    answered = {one.fields.get("proposal") for one in later}
    return [one for one in proposed if one.seq not in answered]


def undone_by(connection: Connection, after: int) -> dict[object, int]:
    """Entry that was undone → the entry that undid it, among those after entry `after`."""
    return {one.fields["undoes"]: one.seq for one in entries(connection, BOOKED, after) if "undoes" in one.fields}


def _check_not_undone(connection: Connection, seq: int) -> None:
    """Refuses to undo a booking twice: also where two proposals to undo it were open at once."""
    if seq in undone_by(connection, seq):
        raise ConflictError(f"entry {seq} was undone already", "GET /v1/bookings shows by which entry")


def _open_proposal(connection: Connection, seq: int) -> MoneyEntry:
    proposed = _entry(connection, seq, ("money.proposed",), "proposal")
    answers = entries(connection, (*BOOKED, "money.declined"), seq)
    if any(one.fields.get("proposal") == seq for one in answers):
        raise ConflictError(f"entry {seq} was approved or declined already", "GET /v1/bookings shows it")
    return proposed


# ---- bookings -------------------------------------------------------------------------------------------------


def book(
    tx: Transaction,
    way: str,
    party_id: str,
    amount_micro: int,
    notes: Mapping[str, object],
    propose_above_micro: int | None,
) -> Balance:
    """Books money that came in (`way` is "deposit") or went out ("withdraw"); only proposes it above a limit."""
    if propose_above_micro is None or amount_micro <= propose_above_micro:
        return _booked(tx, way, party_id, amount_micro, notes)
    check_amount(amount_micro)
    parties.role_of(tx.connection, party_id)
    if way == "withdraw":
        require(tx.connection, party(party_id), amount_micro, way)
    entry = tx.log("money.proposed", party_id, way=way, amount_micro=amount_micro, **notes)
    return _answer(tx, party_id, entry, "proposed")


def undo(tx: Transaction, seq: int, reference: str, propose_above_micro: int | None) -> Balance:
    """Undoes the booking of entry `seq`, once only, by booking the same amount the other way."""
    wrong = _entry(tx.connection, seq, BOOKED, "booking")
    if "undoes" in wrong.fields:
        raise ConflictError(f"entry {seq} undoes another one itself", "book what is right instead")
    _check_not_undone(tx.connection, seq)
    way = _OTHER_WAY[wrong.kind.removeprefix("money.")]
    notes = {"reference": reference, "undoes": seq}
    return book(tx, way, wrong.party_id, wrong.amount_micro, notes, propose_above_micro)


def approve(tx: Transaction, actor: Actor, seq: int) -> Balance:
    """A second operator agrees: what entry `seq` proposed is booked."""
    proposed = _open_proposal(tx.connection, seq)
    if proposed.actor == actor.party_id:
        raise ForbiddenError("a booking is approved by somebody else", "ask another operator")
    way = str(proposed.fields["way"])
    notes = {"reference": proposed.fields["reference"], "proposal": seq}
    if "undoes" in proposed.fields:
        _check_not_undone(tx.connection, int(str(proposed.fields["undoes"])))
        notes["undoes"] = proposed.fields["undoes"]
    return _booked(tx, way, proposed.party_id, proposed.amount_micro, notes)


def decline(tx: Transaction, seq: int, reference: str) -> Balance:
    """Takes the proposal of entry `seq` off the list."""
    proposed = _open_proposal(tx.connection, seq)
    entry = tx.log("money.declined", proposed.party_id, proposal=seq, reference=reference)
    return _answer(tx, proposed.party_id, entry, "declined")


def _booked(tx: Transaction, way: str, party_id: str, amount_micro: int, notes: Mapping[str, object]) -> Balance:
    entry = move_money(tx, way, party_id, amount_micro, notes)
    return _answer(tx, party_id, entry, "booked")


def _answer(tx: Transaction, party_id: str, entry: int, state: str) -> Balance:
    tx.flush()
    held = balance(tx.connection, party(party_id))
    return {"party_id": party_id, "balance_micro": held, "entry": entry, "state": state}


def checked_reference(text: str) -> str:
    """The reference of a booking, without spaces around it; raises `BrokerError` for what cannot be one."""
    text = text.strip()
    if not is_reference(text):
        raise BrokerError(
            "no reference, or one that does not print",
            f"give 1 to {REFERENCE_LENGTH} characters, as the bank has it",
        )
    return text


def is_reference(text: str) -> bool:
    """Whether this can be the reference of a booking: printable, without spaces around it, and not too long."""
    return 0 < len(text) <= REFERENCE_LENGTH and text.isprintable() and text == text.strip()


def check_amount(amount_micro: int) -> None:
    """Refuses what is no amount of money."""
    if not 0 < amount_micro <= MONEY_LIMIT_MICRO:
        raise BrokerError(f"amount of {amount_micro} µ", f"give 1 to {MONEY_LIMIT_MICRO} micro-units")


def move_money(
    tx: Transaction, kind: str, party_id: str, amount_micro: int, notes: Mapping[str, object] | None = None
) -> int:
    """Logs a deposit or a withdrawal together with its notes, and returns the number of the entry.

    Only operators call it, because they know what arrived at the bank. Money of a party that signs everything is
    withdrawn only for an open request of the same amount that it signed, or where a deposit is undone.
    """
    check_amount(amount_micro)
    owner = find_party(tx.connection, party_id)
    if owner is None:
        raise NotFoundError(f"no party {party_id}", "GET /v1/parties lists them")
    words: dict[str, object] = {"amount_micro": amount_micro, **(notes or {})}
    if kind == "withdraw":
        require(tx.connection, party(party_id), amount_micro, kind)
        request = None if "undoes" in words else _open_request(tx, party_id, amount_micro)
        if request is not None:
            words["request"] = request
        elif owner.signs == "everything" and "undoes" not in words:
            raise ConflictError(
                f"{party_id} signs everything, and has not asked for a payout of {amount_micro} µ",
                "wait for its request: BrokerClient.request_payout, or privmarket seller payout",
            )
    return tx.log(f"money.{kind}", party_id, **words)


def request_payout(
    tx: Transaction, actor: Actor, amount_micro: int, nonce: str | None, signature: str | None
) -> PayoutAnswer:
    """A party asks for money of its account; an operator pays it out with a withdrawal of the same amount."""
    check_amount(amount_micro)
    words = {"amount_micro": amount_micro, "nonce": nonce}
    stated = countersigned(tx.connection, actor.party_id, "money.requested", actor.party_id, words, signature)
    asked = "SELECT COALESCE(SUM(amount_micro), 0) FROM payouts WHERE party_id = ? AND paid_seq IS NULL"
    ((waiting,),) = sql.run(tx.connection, asked, actor.party_id)
    require(tx.connection, party(actor.party_id), int(waiting) + amount_micro, "a payout")
    if nonce is not None:
        known = "SELECT 1 FROM payouts WHERE party_id = ? AND nonce = ?"
        if sql.run(tx.connection, known, actor.party_id, nonce):
            raise ConflictError("this request was made before", "sign another one with a fresh nonce")
    seq = tx.log("money.requested", actor.party_id, **stated)
    return {"party_id": actor.party_id, "entry": seq, "amount_micro": amount_micro}


def _open_request(tx: Transaction, party_id: str, amount_micro: int) -> int | None:
    """The oldest request of this amount that was not paid yet."""
    query = (
        "SELECT seq FROM payouts WHERE party_id = ? AND amount_micro = ? AND paid_seq IS NULL ORDER BY seq LIMIT 1"
    )
    rows = sql.run(tx.connection, query, party_id, amount_micro)
    return int(rows[0][0]) if rows else None
