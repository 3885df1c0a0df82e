"""The broker: every write is an idempotent command in one transaction; a thread takes the steps due at deadlines.

The HTTP API, the pages, the demo, the simulation and the tests all call these methods; nothing else changes the
database. A command checks the caller and calls the module of its subject: `_parties` for accounts, `_ledger` for
money, `_lifecycle` for tasks and rounds, `_bidding` for bids, `_clearing` for auctions. A command acts once per
(caller, key) and in one transaction, mostly through `_write`; a repeat gets the first answer.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, TypeVar, cast

from privmarket._counted import counted
from privmarket.broker import (
    _bidding as bidding,
    _clearing as clearing,
    _idempotency as idempotency,
    _ledger as ledger,
    _lifecycle as lifecycle,
    _log as log,
    _noise_tables as noise_tables,
    _parties as parties,
    _rules as rules,
    _sealed as sealed,
    _sql as sql,
)
from privmarket.broker._answers import (
    Balance,
    BidAnswer,
    ClaimAnswer,
    DatasetAnswer,
    Dispute,
    Erased,
    KeyAnswer,
    PayoutAnswer,
    ProgressAnswer,
    Registered,
    Revoked,
    RoundAnswer,
    Ruled,
    StepAnswer,
    Suspended,
    TaskAnswer,
    TokenAnswer,
    UpdateKey,
    WebhookAnswer,
)
from privmarket.broker._bidding import BidRequest
from privmarket.broker._clearing import Prepared
from privmarket.broker._database import Clock, Database, Transaction
from privmarket.broker._errors import BrokerError, ConflictError, DatabaseError, ForbiddenError, NotFoundError
from privmarket.broker._forms import NO_REFERENCE
from privmarket.broker._log import canonical
from privmarket.broker._parties import ANONYMOUS, SYSTEM, Actor, Entropy, require
from privmarket.broker._schema import find_task, require_state, round_and_task
from privmarket.broker._shapes import YEAR_SECONDS, RoundRow, TaskForm, TaskRow
from privmarket.broker._signatures import SigningKey, log_key_message
from privmarket.broker._statements import STATEMENTS, read_said
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Offer

_logger = logging.getLogger(__name__)
_DUE = (
    f"SELECT {', '.join(RoundRow.columns())} FROM rounds WHERE (state = 'open' AND bid_deadline_ms <= ?) "
    "OR state IN ('closed', 'revealing', 'delivered') OR (state = 'cleared' AND delivery_deadline_ms <= ?)"
)
_LIVE = (
    "SELECT DISTINCT t.sampling_rate, t.steps, t.delta FROM tasks t JOIN rounds r ON r.task_id = t.id "
    "WHERE r.state IN (?*)"
)
Told = TypeVar("Told", bound=Mapping[str, object])  # what a command answers, one of `_answers`
_TRIES = 3  # to log an auction computed on a snapshot; if the last one fails, it is computed inside the write


class Broker:
    """The market's rules over one database.

    Attributes:
        second_approver_above_micro: larger bookings need a second operator; None if no bookings do.
    """

    second_approver_above_micro: int | None = None

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
            database: an open one, or its address such as sqlite:///FILE.
            clock, entropy, make_mechanism: replaced in simulations only.
            key: signs the heads of the log.
            closing_grace_ms: a round's next step is taken this long after its deadline, so that requests which
                arrived in time and wait for other writes come first.
        """
        self.database = Database(database, clock, key=key) if isinstance(database, str) else database
        self.entropy = entropy
        self.make_mechanism = make_mechanism
        self.database.grace_ms = closing_grace_ms
        self._clearing: set[str] = set()  # rounds whose auction is being computed at present
        self._auctions = threading.RLock()  # held while an auction is logged, and while one is computed again
        self._looked: dict[str, int] = {}  # round → how many of its deadlines have been dealt with
        if self.database.key is not None and not self.database.read_only:
            try:
                self._announce_key(self.database.key)
            except DatabaseError:
                self.database.close()  # so that a SQLite file is complete without a WAL
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
                if tx.size == 0:  # no other broker was faster
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
                self.database.key = new  # signs the head of this write already
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

        Callers without an account do not share keys: theirs are made distinct by the hash of the token.
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

    # ---- accounts ---------------------------------------------------------------------------------------------

    def authenticate(self, token: str) -> Actor:
        """The party behind a token."""
        with self.database.read() as connection:
            return parties.authenticate(connection, token, self.database.now_ms())

    def end_session(self, actor: Actor, session_id: str) -> None:
        """Records that a session of the dashboard was signed out, so that its cookie is no longer valid."""
        with self.database.write(actor.party_id) as tx:
            tx.log("session.ended", actor.party_id, session=session_id)

    def set_webhook(self, actor: Actor, url: str | None, key: str) -> WebhookAnswer:
        """Sets the address to which the caller's events are posted from now on; None ends it."""

        def command(tx: Transaction) -> WebhookAnswer:
            tx.log("webhook.set", actor.party_id, url=url)
            return {"id": actor.party_id, "url": url}

        return self._write(actor, key, ("webhook", url), command)

    def register(self, fields: Mapping[str, object], key: str, actor: Actor = ANONYMOUS) -> Registered:
        """A new party with its first token. Only an operator may make an operator, an arbiter or an auditor.

        An auditor's token reads every task, round and winner, the registered keys of every round's sellers, and the
        whole log, with all bids of auctions that are over. It changes nothing of the market.

        With `token_sha256` in the fields, the caller has made the token itself, and a repeat gets the first answer.
        Without it, the broker makes a token and shows it in the answer only once, so a repeat is refused.
        """
        fields = dict(fields)
        if fields.get("role") in ("operator", "arbiter", "auditor") and actor.role != "operator":
            raise ForbiddenError(f"an {fields['role']} is made by operators", "ask an operator of this broker")
        given = fields.pop("token_sha256", None)
        own = None if given is None else str(given)

        def command(tx: Transaction) -> Registered:
            return parties.register(tx, self.entropy, fields, own)

        asked = {name: value for name, value in fields.items() if name != "name"}  # no trace of it in the log
        return self._with_token(actor, key, ("register", asked, own), command, own)

    def mint_token(
        self,
        actor: Actor,
        scope: str,
        key: str,
        *,
        token_sha256: str | None = None,
        lifetime_seconds: int | None = None,
        party_id: str | None = None,
    ) -> TokenAnswer:
        """Another token for the caller. An operator may make one for another party that lost its own."""
        who = party_id or actor.party_id
        if who != actor.party_id:
            require(actor, "operator")
        if lifetime_seconds is not None and not 1 <= lifetime_seconds <= YEAR_SECONDS:
            raise BrokerError(f"lifetime_seconds is {lifetime_seconds}", f"give 1 to {YEAR_SECONDS}")

        def command(tx: Transaction) -> TokenAnswer:
            parties.role_of(tx.connection, who)
            ends = None if lifetime_seconds is None else tx.now_ms + 1000 * lifetime_seconds
            return parties.mint(tx, self.entropy, who, scope, token_hash=token_sha256, expires_ms=ends)

        asked = ("mint", who, scope, lifetime_seconds, token_sha256)
        return self._with_token(actor, key, asked, command, token_sha256)

    def revoke_token(self, actor: Actor, token_id: str, key: str) -> Revoked:
        """Ends a token at once."""
        return self._write(actor, key, ("revoke", token_id), lambda tx: parties.revoke(tx, actor, token_id))

    def change_key(
        self, actor: Actor, public_key: str, key: str, *, signature: str | None = None, signs: str | None = None
    ) -> KeyAnswer:
        """Replaces the caller's key and what it signs; `signature` is over the change, made with the old key."""
        asked = ("key", public_key, signature, signs)
        return self._write(
            actor, key, asked, lambda tx: parties.change_key(tx, actor, public_key, signature, signs)
        )

    def attest(self, actor: Actor, dataset_sha256: str, signature: str, key: str) -> DatasetAnswer:
        """Records which data set a seller sells from."""
        require(actor, "seller")
        asked = ("attest", dataset_sha256, signature)
        return self._write(actor, key, asked, lambda tx: parties.attest(tx, actor, dataset_sha256, signature))

    def forget_idle(self, idle_days: float) -> list[str]:
        """Erases the names of those who hold no money and did nothing for so many days; returns their ids."""
        with self.database.write(SYSTEM.party_id) as tx:
            return parties.forget_idle(tx, tx.now_ms - round(86_400_000 * idle_days))

    def suspend(self, actor: Actor, party_id: str, reason: str | None, key: str) -> Suspended:
        """Stops a party from writing, or lets it write again (reason None)."""
        require(actor, "operator")
        return self._write(
            actor, key, ("suspend", party_id, reason), lambda tx: parties.suspend(tx, party_id, reason)
        )

    def erase_name(self, actor: Actor, party_id: str, key: str) -> Erased:
        """Removes a party's name from the database."""
        require(actor, "operator")
        return self._write(actor, key, ("erase", party_id), lambda tx: parties.erase(tx, party_id))

    def first_operator(self) -> str | None:
        """Makes the first operator and returns its token; None where one exists already."""
        with self.database.write(SYSTEM.party_id) as tx:
            if sql.run(tx.connection, "SELECT 1 FROM parties WHERE role = 'operator' LIMIT 1"):
                return None
            return str(parties.register(tx, self.entropy, {"role": "operator", "name": "operator"})["token"])

    def new_operator_token(self) -> str:
        """A new token for the first operator, for somebody who has the database but lost the token."""
        with self.database.write(SYSTEM.party_id) as tx:
            query = "SELECT id FROM parties WHERE role = 'operator' ORDER BY created_ms, id LIMIT 1"
            ((operator,),) = sql.run(tx.connection, query)
            parties.revoke_all(tx, operator)
            return str(parties.mint(tx, self.entropy, operator, "full")["token"])

    # ---- money ------------------------------------------------------------------------------------------------

    def deposit(
        self, actor: Actor, party_id: str, amount_micro: int, key: str, reference: str = NO_REFERENCE
    ) -> Balance:
        """Books money of a party that came in from outside."""
        return self._book(actor, "deposit", party_id, amount_micro, key, reference)

    def withdraw(
        self, actor: Actor, party_id: str, amount_micro: int, key: str, reference: str = NO_REFERENCE
    ) -> Balance:
        """Pays money of a party out of the market."""
        return self._book(actor, "withdraw", party_id, amount_micro, key, reference)

    def _book(self, actor: Actor, way: str, party_id: str, amount_micro: int, key: str, reference: str) -> Balance:
        require(actor, "operator")
        reference = ledger.checked_reference(reference)
        limit = self.second_approver_above_micro

        def command(tx: Transaction) -> Balance:
            return ledger.book(tx, way, party_id, amount_micro, {"reference": reference}, limit)

        return self._write(actor, key, (way, party_id, amount_micro, reference), command)

    def undo_booking(self, actor: Actor, seq: int, reason: str, key: str) -> Balance:
        """Undoes the booking of entry `seq`, once only, by booking the same amount the other way."""
        require(actor, "operator")
        reference = ledger.checked_reference(reason)
        limit = self.second_approver_above_micro
        return self._write(actor, key, ("undo", seq, reference), lambda tx: ledger.undo(tx, seq, reference, limit))

    def approve_booking(self, actor: Actor, seq: int, key: str) -> Balance:
        """A second operator agrees: what entry `seq` proposed is booked."""
        require(actor, "operator")
        return self._write(actor, key, ("approve", seq), lambda tx: ledger.approve(tx, actor, seq))

    def decline_booking(self, actor: Actor, seq: int, reason: str, key: str) -> Balance:
        """An operator, perhaps the one who proposed it, takes the proposal of entry `seq` off the list."""
        require(actor, "operator")
        reference = ledger.checked_reference(reason)
        return self._write(actor, key, ("decline", seq, reference), lambda tx: ledger.decline(tx, seq, reference))

    def request_payout(
        self,
        actor: Actor,
        amount_micro: int,
        key: str,
        *,
        nonce: str | None = None,
        signature: str | None = None,
    ) -> PayoutAnswer:
        """The caller asks for a payout from its account.

        A caller that signs everything signs the request too, with a fresh nonce.
        """

        def command(tx: Transaction) -> PayoutAnswer:
            return ledger.request_payout(tx, actor, amount_micro, nonce, signature)

        return self._write(actor, key, ("payout", amount_micro, nonce), command, even_suspended=True)

    # ---- tasks and rounds -------------------------------------------------------------------------------------

    def publish_task(
        self,
        actor: Actor,
        given: Mapping[str, object],
        key: str,
        *,
        nonce: str | None = None,
        signature: str | None = None,
    ) -> TaskAnswer:
        """Publishes a task of the buyer; `given` has the fields of a `TaskForm`.

        Args:
            nonce, signature: from a buyer that signs everything; the signature is over `given` and the nonce.
        """
        require(actor, "buyer")
        terms = TaskForm.checked(given)
        if self.make_mechanism is mechanism:
            rules.check(terms.mechanism, dict(terms.settings))
        lifecycle.rule_version(terms.mechanism, canonical(terms.settings), terms.epsilon_max, self.make_mechanism)
        with self.database.read() as connection:
            lifecycle.require_first_escrow(connection, actor.party_id, terms.budget_micro)
        noise_tables.prepare(ReleaseFamily(terms.sampling_rate, terms.steps, terms.delta), actor.party_id)
        said = None if nonce is None else {**given, "nonce": nonce}

        def command(tx: Transaction) -> TaskAnswer:
            return lifecycle.publish(tx, self.entropy, terms, said, signature)

        return self._write(actor, key, ("publish", terms.model_dump()), command)

    def open_round(self, actor: Actor, task_id: str, key: str, *, signature: str | None = None) -> RoundAnswer:
        """Puts the round's budget in escrow and opens it for bids."""
        require(actor, "buyer")
        with self.database.read() as connection:
            task = find_task(connection, task_id)
        if task is None or task.buyer_id != actor.party_id:
            raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists yours")
        version = lifecycle.rule_version(task.mechanism, task.settings, task.epsilon_max, self.make_mechanism)
        noise_tables.prepare(clearing.family_of(task), actor.party_id)

        def command(tx: Transaction) -> RoundAnswer:
            return lifecycle.open_round(tx, self.entropy, task, version, signature)

        return self._write(actor, key, ("open", task_id), command)

    def bid(
        self,
        actor: Actor,
        round_id: str,
        offer: Offer,
        key: str,
        *,
        nonce: str | None = None,
        signature: str | None = None,
    ) -> BidAnswer:
        """Takes a sealed bid. If it is signed, its bidder has chosen the nonce."""
        return self._one_bid(BidRequest(round_id, offer, key, actor, nonce=nonce, signature=signature))

    def commit_bid(self, actor: Actor, round_id: str, commitment: str, signature: str, key: str) -> BidAnswer:
        """Takes the commitment to a bid that its bidder seals; `reveal` opens it once bidding has ended."""
        return self._one_bid(BidRequest(round_id, None, key, actor, commitment=commitment, signature=signature))

    def _one_bid(self, request: BidRequest) -> BidAnswer:
        (result,) = self.take_bids([request])
        if isinstance(result, PrivmarketError):
            raise result
        return result

    def take_bids(self, requests: Sequence[BidRequest]) -> list[BidAnswer | PrivmarketError]:
        """Takes sealed bids of many sellers in one durable transaction; returns one answer or refusal for each."""
        with self.database.write(SYSTEM.party_id) as tx:
            return bidding.take_bids(tx, requests, self.entropy)

    def reveal(self, actor: Actor, round_id: str, offer: Offer, nonce: str, key: str) -> BidAnswer:
        """Opens a bid that its bidder sealed, once bidding has ended."""
        require(actor, "seller")

        def command(tx: Transaction) -> BidAnswer:
            round_, task = round_and_task(tx.connection, round_id)
            return bidding.reveal(tx, actor.party_id, round_, task, offer, nonce)

        return self._write(
            actor, key, ("reveal", round_id, bidding.offer_fields(offer), nonce), command, even_suspended=True
        )

    def close_round(self, actor: Actor, round_id: str, key: str, *, signature: str | None = None) -> StepAnswer:
        """Ends bidding if it may end now, and runs the auction unless bids must still be revealed.

        In a very large round, the call by which a party ends bidding returns at once. The auction begins with the
        next `tick`, or when this is called again under another key.
        """
        require(actor, "buyer", "operator")
        parties.require_full_scope(actor)
        asked = idempotency.request(actor.party_id, key, ("close", round_id))
        with self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(asked, idempotency.find(tx, [asked]))
            if first is not None:
                return cast(StepAnswer, first)
            round_, task = self._own_round(tx, actor, round_id)
            require_state(round_, *lifecycle.TAKING_BIDS)
            if round_.state == "open":
                lifecycle.close(tx, round_, task, actor.party_id == task.buyer_id, signature)
                round_, _ = round_and_task(tx.connection, round_id)
            waits = not lifecycle.may_clear(round_, tx.over_ms)
            large = actor is not SYSTEM and round_.bids >= clearing.WORTH_A_PROCESS
            if waits or (tx.entries and large):
                answer: StepAnswer = {"round_id": round_id, "state": round_.state, "bids": round_.bids}
                answer["reveal_deadline_ms"] = round_.reveal_deadline_ms
                if tx.entries:
                    tx.answer(0, asked.key_hash, asked.request_hash, canonical(answer))
                return answer
        return self._clear(actor, round_id, asked)

    def _clear(self, actor: Actor, round_id: str, asked: idempotency.Request) -> StepAnswer:
        """Computes the auction on a snapshot and logs it.

        If wallets have changed in the meantime so that the result no longer holds, it is computed again; meanwhile
        no other auction of this broker is logged, since auctions change wallets. Bids and everything else continue.
        In the last try it is computed inside the write.
        """
        self._clearing.add(round_id)
        try:
            for attempt in range(_TRIES):
                with self._auctions if attempt else nullcontext():
                    prepared = self._prepared(round_id)
                    answer = self._log_auction(actor, asked, round_id, prepared, insist=attempt == _TRIES - 1)
                if answer is not None:
                    return answer
            raise AssertionError("unreachable: the last try holds the lock")
        finally:
            self._clearing.discard(round_id)

    def _log_auction(
        self, actor: Actor, asked: idempotency.Request, round_id: str, prepared: Prepared, insist: bool
    ) -> StepAnswer | None:
        """Logs an auction if its result still holds; else returns None, or with `insist` computes it again here."""
        with self._auctions, self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(asked, idempotency.find(tx, [asked]))
            if first is not None:
                return cast(StepAnswer, first)
            answer = lifecycle.clear(tx, round_id, prepared)
            if answer is None and insist:
                again = clearing.prepare(tx.connection, round_id, self.make_mechanism)
                answer = lifecycle.clear(tx, round_id, again)
            if answer is not None:
                tx.answer(0, asked.key_hash, asked.request_hash, canonical(answer))
            return answer

    def _prepared(self, round_id: str) -> Prepared:
        """A round's auction on a snapshot: in this process, or in a separate one if there are very many bids."""
        with self.database.read() as connection:
            round_, _ = round_and_task(connection, round_id)
        prepared = None
        if round_.bids >= clearing.WORTH_A_PROCESS and self.make_mechanism is mechanism:
            prepared = clearing.prepare_in_a_process(self.database, round_id)
        if prepared is None:
            with self.database.read() as connection:
                prepared = clearing.prepare(connection, round_id, self.make_mechanism)
        return prepared

    def claim_delivery(
        self,
        actor: Actor,
        round_id: str,
        update_sha256: str,
        key: str,
        *,
        update_key: str | None = None,
        signature: str | None = None,
    ) -> ClaimAnswer:
        """A seller gives the digest of its update before it sends it; `update_key` opens a sealed update."""
        require(actor, "seller")

        def command(tx: Transaction) -> ClaimAnswer:
            round_, task = round_and_task(tx.connection, round_id)
            return lifecycle.claim(tx, actor.party_id, round_, task, update_sha256, update_key, signature)

        digest = None if update_key is None else sealed.key_digest(update_key)
        return self._write(actor, key, ("claim", round_id, update_sha256, digest), command, even_suspended=True)

    def show_key(self, actor: Actor, round_id: str, seller_id: str, key: str) -> UpdateKey:
        """The key of a sealed update that is disputed, for the task's arbiter."""
        require(actor, "arbiter", "operator")

        def command(tx: Transaction) -> UpdateKey:
            round_, task = round_and_task(tx.connection, round_id)
            lifecycle.may_rule(actor.party_id, actor.role, task)
            return lifecycle.show_key(tx, round_, seller_id)

        return self._write(actor, key, ("show key", round_id, seller_id), command, secret=("key",))

    def report_progress(
        self, actor: Actor, round_id: str, accuracy: float, key: str, *, signature: str | None = None
    ) -> ProgressAnswer:
        """The buyer notes how good its model is after a round."""
        require(actor, "buyer")

        def command(tx: Transaction) -> ProgressAnswer:
            round_, _ = self._own_round(tx, actor, round_id)
            return lifecycle.report_progress(tx, round_, accuracy, signature)

        if not 0 <= accuracy <= 1:
            raise BrokerError(f"accuracy is {accuracy}", "give a share between 0 and 1")
        return self._write(actor, key, ("progress", round_id, accuracy), command)

    def give_receipts(
        self,
        actor: Actor,
        round_id: str,
        receipts: Mapping[str, str | None],
        key: str,
        *,
        signatures: Mapping[str, str] | None = None,
    ) -> StepAnswer:
        """The buyer says which of the claimed updates it can use; `signatures`: of each receipt, by seller."""
        require(actor, "buyer")

        def command(tx: Transaction) -> StepAnswer:
            round_, _ = self._own_round(tx, actor, round_id)
            return lifecycle.judge(tx, round_, receipts, signatures or {})

        return self._write(actor, key, ("receipts", round_id, dict(receipts)), command, even_suspended=True)

    def dispute(
        self, actor: Actor, round_id: str, reason: str, key: str, *, signature: str | None = None
    ) -> Dispute:
        """A seller objects to a rejection."""
        require(actor, "seller")

        def command(tx: Transaction) -> Dispute:
            round_, _ = round_and_task(tx.connection, round_id)
            return lifecycle.dispute(tx, actor.party_id, round_, reason, signature)

        return self._write(actor, key, ("dispute", round_id, reason), command, even_suspended=True)

    def rule(
        self,
        actor: Actor,
        round_id: str,
        seller_id: str,
        pays: bool,
        reason: str,
        key: str,
        *,
        signature: str | None = None,
    ) -> Ruled:
        """The task's arbiter decides a dispute."""
        require(actor, "arbiter", "operator")

        def command(tx: Transaction) -> Ruled:
            round_, task = round_and_task(tx.connection, round_id)
            lifecycle.may_rule(actor.party_id, actor.role, task)
            return lifecycle.rule(tx, round_, seller_id, pays, reason, signature)

        return self._write(actor, key, ("rule", round_id, seller_id, pays, reason), command, even_suspended=True)

    def state(
        self,
        actor: Actor,
        kind: str,
        about: str,
        statements: Sequence[tuple[Mapping[str, Any], str]],
        key: str,
        *,
        update_key: str | None = None,
    ) -> Mapping[str, object]:
        """Runs the command above that signed statements ask for, of a party that signs everything.

        Args:
            kind: of the log entry that a statement becomes, one of `_statements.STATEMENTS`.
            about: the round; "new" for a task; the task for the opening of a round; one's own id for a payout.
            statements: what is said, and the signature over it; exactly one, except for the receipts of a round.
            update_key: opens the sealed update whose claim is stated.
        """
        if kind not in STATEMENTS:
            raise BrokerError(f"nobody states {kind!r}", f"one of: {', '.join(STATEMENTS)}")
        if not statements or (kind != "delivery.judged" and len(statements) != 1):
            raise BrokerError(f"{len(statements)} statements of {kind}", "send one; receipts may be many")
        said = [read_said(kind, one) for one, _ in statements]
        signature = statements[0][1]
        if kind == "task.published":
            given = {name: value for name, value in statements[0][0].items() if name != "nonce"}
            return self.publish_task(actor, given, key, nonce=said[0].nonce, signature=signature)
        if kind == "round.opened":
            return self.open_round(actor, about, key, signature=signature)
        if kind == "round.closed":
            return self.close_round(actor, about, key, signature=signature)
        if kind == "round.aborted":
            return self.abort_round(actor, about, said[0].reason, key, signature=signature)
        if kind == "delivery.claimed":
            digest = said[0].update_sha256
            return self.claim_delivery(actor, about, digest, key, update_key=update_key, signature=signature)
        if kind == "delivery.judged":
            receipts = {one.seller_id: one.fault for one in said}
            signed = {one.seller_id: by for one, (_, by) in zip(said, statements, strict=True)}
            return self.give_receipts(actor, about, receipts, key, signatures=signed)
        if kind == "dispute.opened":
            return self.dispute(actor, about, said[0].reason, key, signature=signature)
        if kind == "dispute.ruled":
            ruled = said[0]
            return self.rule(actor, about, ruled.seller_id, ruled.pays, ruled.reason, key, signature=signature)
        if kind == "round.progress":
            return self.report_progress(actor, about, said[0].accuracy, key, signature=signature)
        return self.request_payout(actor, said[0].amount_micro, key, nonce=said[0].nonce, signature=signature)

    def settle_round(self, actor: Actor, round_id: str, key: str) -> StepAnswer:
        """Settles a round: pays the sellers and refunds the rest to the buyer."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> StepAnswer:
            return lifecycle.settle(tx, *self._own_round(tx, actor, round_id))

        return self._write(actor, key, ("settle", round_id), command)

    def abort_round(
        self, actor: Actor, round_id: str, reason: str, key: str, *, signature: str | None = None
    ) -> StepAnswer:
        """Ends a round with refunds while it takes bids. Later that is refused, since sellers then have a claim."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> StepAnswer:
            return lifecycle.abort(tx, *self._own_round(tx, actor, round_id), reason, signature)

        return self._write(actor, key, ("abort", round_id, reason), command)

    def _own_round(self, tx: Transaction, actor: Actor, round_id: str) -> tuple[RoundRow, TaskRow]:
        round_, task = round_and_task(tx.connection, round_id)
        if actor.role != "operator" and task.buyer_id != actor.party_id:
            raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists yours")
        return round_, task

    # ---- deadlines --------------------------------------------------------------------------------------------

    def prepare_schedules(self) -> None:
        """Loads the noise tables of all tasks whose rounds are under way, so that no write waits for one."""
        with self.database.read() as connection:
            families = [ReleaseFamily(*row) for row in sql.run(connection, _LIVE, list(lifecycle.LIVE_STATES))]
        for family in families:
            noise_tables.prepare(family, patience_seconds=0)

    def round_state(self, round_id: str) -> str:
        """A round's state, such as open or cleared."""
        with self.database.read() as connection:
            return round_and_task(connection, round_id)[0].state

    def tick(self) -> list[StepAnswer]:
        """Takes the steps that are due at deadlines: closes rounds, holds auctions, settles where no award waits.

        Very large auctions run in a separate thread, so that other rounds keep their deadlines.
        """
        now = self.database.now_ms() - self.database.grace_ms
        with self.database.read() as connection:
            waiting = [RoundRow.of(row) for row in sql.run(connection, _DUE, now, now)]
        done: list[StepAnswer] = []
        for round_ in waiting:
            # Awards are checked once per deadline, not with every tick: there may be a hundred thousand.
            passed = sum((at or now + 1) <= now for at in _deadlines(round_))
            if round_.state == "cleared" and self._looked.get(round_.id) == passed:
                continue
            if round_.id in self._clearing:
                continue
            if round_.state == "revealing" and not lifecycle.may_clear(round_, now):
                continue
            if round_.state in lifecycle.TAKING_BIDS and round_.bids >= clearing.WORTH_A_PROCESS:
                self._clearing.add(round_.id)
                threading.Thread(target=self._move_on_alone, args=(round_, passed), daemon=True).start()
            else:
                done += self._move_on(round_, passed)
        return done

    def _move_on(self, round_: RoundRow, passed: int) -> list[StepAnswer]:
        """The next step of a round whose deadlines have `passed`, if there is one."""
        step = self.settle_round if round_.state in ("cleared", "delivered") else self.close_round
        try:
            made = step(SYSTEM, round_.id, f"deadline:{round_.state}:{passed}:{round_.id}")
            self._looked.pop(round_.id, None)
        except ConflictError:  # another broker or the buyer was faster, or an award is still pending
            self._looked[round_.id] = passed
            return []
        return [made]

    def _move_on_alone(self, round_: RoundRow, passed: int) -> None:
        try:
            self._move_on(round_, passed)
        except Exception as error:  # the database is not reachable; the next tick tries again
            _logger.warning("auction of %s: %s", round_.id, type(error).__name__)
        finally:
            self._clearing.discard(round_.id)


def _deadlines(round_: RoundRow) -> tuple[int | None, ...]:
    return (
        round_.delivery_deadline_ms,
        round_.review_deadline_ms,
        round_.dispute_deadline_ms,
        round_.ruling_deadline_ms,
    )


class Scheduler:
    """A context manager that calls `broker.tick()` in a thread every so many seconds; with 0 it does nothing."""

    def __init__(self, broker: Broker, seconds: float) -> None:
        self._broker, self._seconds = broker, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def __enter__(self) -> Scheduler:
        if self._seconds > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._seconds > 0:
            self._thread.join(timeout=3)  # an auction that takes longer is held after the next start

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._broker.tick()
            # A database that cannot be reached for a moment, or one bad round, must not end the thread.
            except Exception as error:
                _logger.warning("deadlines: %s", type(error).__name__)
