"""Every write acts once per (caller, key): a repeat gets the first answer and changes nothing.

The key, the request's digest and the answer are stored in the command's first log entry, so a crash cannot separate
them. Keys are stored hashed. A command that changed nothing leaves no entry, and repeating it changes nothing
either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from privmarket.broker import _answers as answers, _sql as sql
from privmarket.broker._database import Transaction
from privmarket.broker._errors import BrokerError, IdempotencyError
from privmarket.broker._log import digest
from privmarket.broker._parties import hash_token

Answer = Mapping[str, object]  # as it was noted, whatever its kind
Place = tuple[str, str]
_KEY_LENGTHS = range(8, 201)
_KNOWN = "SELECT actor, key_hash, request_hash, seq, subject, details, answer FROM log WHERE key_hash IN (?*)"


class Request(NamedTuple):
    """One write of one caller: its key and a digest of what it asks for."""

    actor: str
    key_hash: str
    request_hash: str

    @property
    def place(self) -> Place:
        """The caller and the key's hash, under which its answer is found."""
        return self.actor, self.key_hash


def request(actor: str, key: str, asked: tuple[object, ...], private_to: str = "") -> Request:
    """The key and digest of a request; refuses a key that is too short to be unique or too long, and NaN.

    `private_to` is hashed with the key, so that callers without an account do not share keys.
    """
    if len(key) not in _KEY_LENGTHS:
        raise BrokerError(
            f"an idempotency key of {len(key)} characters", "send a fresh UUID in Idempotency-Key with every write"
        )
    try:
        return Request(actor, hash_token(private_to + key), digest(asked))
    except ValueError:  # NaN, infinities and lone surrogates have no JSON
        raise BrokerError(
            f"{asked[0]}: a value that JSON cannot carry", "give finite numbers and plain text"
        ) from None


def find(tx: Transaction, requests: Iterable[Request]) -> dict[Place, tuple[str, Answer]]:
    """(actor, key hash) → (request hash, answer), for those that were answered before."""
    hashes = list(dict.fromkeys(one.key_hash for one in requests))
    # Different callers may use the same key. Answers to others are found here too, but never looked up.
    return {(row[0], row[1]): (row[2], answer_of(*row[3:])) for row in sql.run(tx.connection, _KNOWN, hashes)}


def answer_of(seq: int, subject: str, details: str, answer: str | None) -> Answer:
    """What the caller was told: as noted, or for a bid, as it follows from the entry."""
    if answer is not None:
        noted: Answer = json.loads(answer)
        return noted
    return bid_answer(seq, subject, json.loads(details))


def bid_answer(seq: int, round_id: str, fields: Mapping[str, object]) -> answers.BidAnswer:
    """What a bidder is told: where its bid stands in the log, and the bid."""
    shown = {name: value for name, value in fields.items() if name not in ("replaces", "arrived_ms", "signature")}
    told = {"round_id": round_id, "entry": seq, "replaced": fields["replaces"], **shown}
    return cast(answers.BidAnswer, told)


def first_answer(one: Request, known: Mapping[Place, tuple[str, Answer]]) -> Answer | None:
    """What was answered under this key, None if it is new; a key of another request is refused."""
    found = known.get(one.place)
    if found is None:
        return None
    if found[0] != one.request_hash:
        raise IdempotencyError("this idempotency key was used for another request", "use a fresh key")
    return found[1]
