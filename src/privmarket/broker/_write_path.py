"""How every write goes: checked, run once per (caller, key) in one transaction, answered; a repeat gets the answer.

`AccountCommands`, `TaskCommands` and `RoundCommands` build on this; nothing else changes the database.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from privmarket._counted import counted
from privmarket.broker import _idempotency as idempotency
from privmarket.broker import _log as log
from privmarket.broker import _parties as parties
from privmarket.broker import _rules as rules
from privmarket.broker._database import Clock, Database, Transaction
from privmarket.broker._http_errors import BrokerError, ConflictError, DatabaseError
from privmarket.broker._log import canonical
from privmarket.broker._parties import ANONYMOUS, SYSTEM, Actor, Entropy
from privmarket.broker._signatures import SigningKey, log_key_message
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
            try:
                self._announce_key(self.database.key)
            except DatabaseError:
                self.database.close()  # a SQLite file that nobody serves is left whole
                raise

    def _announce_key(self, key: SigningKey) -> None:
        """The first entry of a log says which key signs its heads; a broker with another key does not start."""
        with self.database.read() as connection:
            known = log.announced_key(connection)
            head = log.read_head(connection)
        if known == key.public:
            return
        if head.size == 0:
            with self.database.write(SYSTEM.party_id) as tx:
                if tx.size == 0:  # nobody else was faster
                    tx.log("log.key", head.log_id, public_key=key.public)
            return
        said = f"announces the key {known[:16]}…" if known else "announces no key"
        raise DatabaseError(
            f"the log of {counted(head.size, 'entry', 'entries')} {said}, and this key is {key.public[:16]}…",
            "give the file of that key (--key FILE); to change keys: privmarket serve --key OLD --rotate-key NEW",
        )

    def rotate_key(self, new: SigningKey) -> None:
        """Hands the signing of the log over to another key: both sign the entry, and sealed keys are wrapped
        anew."""
        old = self.database.key
        if old is None:
            raise BrokerError("a log without a key", "start the broker with a key first")
        if new.public == old.public:
            return
        try:
            with self.database.write(SYSTEM.party_id) as tx:
                log_id = log.read_head(tx.connection).log_id
                message = log_key_message(log_id, old.public, new.public)
                words = {
                    "public_key": new.public,
                    "signature": old.sign(message),
                    "own_signature": new.sign(message),
                }
                tx.log("log.key", log_id, **words)
                tx.vault.rewrap(new)
                self.database.key = new  # signs the head of this very write
        except BaseException:
            self.database.key = old
            raise

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
