"""Every write acts once per (caller, key): a repeat gets the first answer and changes nothing.

Answers are kept in the transaction that they answer for, so a crash cannot part the two. Keys are stored hashed:
the key of a registration stands for its token until that arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from privmarket.broker import chain, sql
from privmarket.broker.database import Transaction
from privmarket.broker.errors import BrokerError, IdempotencyError
from privmarket.broker.people import hash_token

Answer = dict[str, Any]
_KEY_LENGTHS = range(8, 201)
_KNOWN = "SELECT actor, key_hash, request_hash, response FROM idempotency WHERE key_hash IN (?*)"
_INSERT = "INSERT INTO idempotency (actor, key_hash, request_hash, response, created_ms) VALUES (?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class Entry:
    """One write of one caller: its key and a digest of what it asks for."""

    actor: str
    key_hash: str
    request_hash: str

    @property
    def place(self) -> tuple[str, str]:
        """Where its answer is kept."""
        return self.actor, self.key_hash


def entry(actor: str, key: str, request: tuple[Any, ...]) -> Entry:
    """The entry of a request; refuses a key that is too short to be unique or too long to keep, and NaN."""
    if len(key) not in _KEY_LENGTHS:
        raise BrokerError(
            f"an idempotency key of {len(key)} characters", "send a fresh UUID in Idempotency-Key with every write"
        )
    try:
        return Entry(actor, hash_token(key), chain.digest(request))
    except ValueError:  # NaN and infinities have no JSON, and no place in a market
        raise BrokerError(f"{request[0]}: a number that is not finite", "give finite numbers") from None


def find(tx: Transaction, entries: Iterable[Entry]) -> dict[tuple[str, str], tuple[str, str]]:
    """(actor, key hash) → (request hash, answer as JSON), for those that were answered before."""
    hashes = list(dict.fromkeys(one.key_hash for one in entries))
    # Keys of different callers may be equal; those of others are looked up here and never asked for.
    return {(row[0], row[1]): (row[2], row[3]) for row in sql.run(tx.connection, _KNOWN, hashes)}


def first_answer(one: Entry, known: Mapping[tuple[str, str], tuple[str, str]]) -> Answer | None:
    """What was answered under this key, None if it is new; a key of another request is refused."""
    found = known.get(one.place)
    if found is None:
        return None
    if found[0] != one.request_hash:
        raise IdempotencyError("this idempotency key was used for another request", "use a fresh key")
    answer: Answer = json.loads(found[1])
    return answer


def remember(tx: Transaction, answers: Iterable[tuple[Entry, str]]) -> None:
    """Keeps answers, as JSON, for repeats."""
    rows = [(one.actor, one.key_hash, one.request_hash, answer, tx.now_ms) for one, answer in answers]
    sql.run_many(tx.connection, _INSERT, rows)
