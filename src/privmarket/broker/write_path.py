"""How every write goes: checked, run once per (caller, key) in one transaction, answered; a repeat gets the answer.

`AccountCommands`, `TaskCommands` and `RoundCommands` build on this; nothing else changes the database.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from privmarket.broker import idempotency, parties, rules, sql
from privmarket.broker.database import Clock, Database, Transaction
from privmarket.broker.http_errors import ConflictError
from privmarket.broker.log import canonical
from privmarket.broker.parties import ANONYMOUS, SYSTEM, Actor, Entropy
from privmarket.broker.signatures import SigningKey
from privmarket.mechanisms import mechanism

Told = TypeVar("Told", bound=Mapping[str, object])  # what a command answers, one of `answers`


class WritePath:
    """A database and the one way to write to it."""

    def __init__(
        self,
        database: Database | str,
        *,
        clock: Clock | None = None,
        entropy: Entropy = secrets.token_bytes,
        make_mechanism: rules.MakeMechanism = mechanism,
        key: SigningKey | None = None,
        closing_grace_ms: int = 0,
    ) -> None:
        """Opens the database and, with a key, announces it in the log.

        Args:
            clock, entropy, make_mechanism: replaced in simulations only.
            key: signs the heads of the log.
            closing_grace_ms: how long after a deadline its round moves on, so that bids, claims and other requests
                that arrived in time and wait for others' writes are taken first.
        """
        self.database = Database(database, clock, key=key) if isinstance(database, str) else database
        self.entropy = entropy
        self.make_mechanism = make_mechanism
        self.database.grace_ms = closing_grace_ms
        self._clearing: set[str] = set()  # rounds whose auction is being computed: nobody need do it again
        self._auctions = threading.RLock()  # held while an auction is logged, and while one is computed again
        self._looked: dict[str, int] = {}  # round → how many of its deadlines have been dealt with
        if self.database.key is not None and not self.database.read_only:
            self._announce_key(self.database.key)

    def _announce_key(self, key: SigningKey) -> None:
        """The log itself says which key signs its heads."""
        with self.database.read() as connection:
            query = "SELECT details FROM log WHERE kind = 'log.key' ORDER BY seq DESC LIMIT 1"
            known = sql.run(connection, query)
        details = {"public_key": key.public}
        if not known or known[0][0] != canonical(details):
            with self.database.write(SYSTEM.party_id) as tx:
                tx.log("log.key", "log", **details)

    def _write(
        self,
        actor: Actor,
        key: str,
        asked: tuple[object, ...],
        command: Callable[[Transaction], Told],
        *,
        secret: Sequence[str] = (),
        even_suspended: bool = False,
    ) -> Told:
        """Runs a command once per (actor, key): a repeat gets the first answer, and changes nothing.

        Fields of the answer that are `secret` are not stored with it, so a repeat runs the command again for them.
        """
        parties.require_full_scope(actor, even_suspended=even_suspended)
        request = idempotency.request(actor.party_id, key, asked)
        with self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(request, idempotency.find(tx, [request]))
            if first is not None and not secret:
                return cast(Told, first)
            answer = command(tx)
            if first is not None:
                tx.entries.clear()
            if tx.entries:
                kept = {name: value for name, value in answer.items() if name not in secret}
                tx.answer(0, request.key_hash, request.request_hash, canonical(kept))
            return answer

    def _with_token(
        self,
        actor: Actor,
        key: str,
        asked: tuple[object, ...],
        command: Callable[[Transaction], Told],
        own_token_hash: str | None,
    ) -> Told:
        """Like `_write`, for answers that may carry a new token, which is stored nowhere and so shown only once.

        Strangers share no keys: the key of somebody without an account is its own by the hash of its token.
        """
        parties.require_full_scope(actor)
        private_to = own_token_hash or "" if actor is ANONYMOUS else ""
        request = idempotency.request(actor.party_id, key, asked, private_to)
        with self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(request, idempotency.find(tx, [request]))
            if first is not None:
                if own_token_hash is None:
                    error = ConflictError(
                        "the token made under this key was shown once", "use a fresh key, or send token_sha256"
                    )
                    error.code = "token-shown-once"
                    raise error
                return cast(Told, first)
            answer = command(tx)
            kept = {name: value for name, value in answer.items() if name not in ("token", "name")}
            tx.answer(0, request.key_hash, request.request_hash, canonical(kept))
            return answer
