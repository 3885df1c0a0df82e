"""The broker: every write as one idempotent command in one transaction.

The HTTP API, the demo, the simulation and the tests all call these methods; nothing else changes the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row, select

from privmarket.broker import (
    bidding,
    elsewhere,
    idempotency,
    ledger,
    lifecycle,
    noise_tables,
    parties,
    rules,
    sealed,
    sql,
)
from privmarket.broker.bidding import BidRequest
from privmarket.broker.database import Clock, Database, Transaction
from privmarket.broker.http_errors import BrokerError, ConflictError, ForbiddenError, NotFoundError
from privmarket.broker.log import canonical
from privmarket.broker.parties import ANONYMOUS, MONEY_LIMIT_MICRO, SYSTEM, Actor, Entropy, identifier, require
from privmarket.broker.schema import rounds, tasks
from privmarket.broker.signatures import SigningKey
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism
from privmarket.plans import MarketPlan
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.words import TRUSTS
from privmarket.rounds import Offer

Answer = dict[str, Any]
_YEAR_SECONDS = 366 * 24 * 3600
_TRIES = 3  # to clear a round on a snapshot before it is done inside the write itself
TASK_DEFAULTS: dict[str, Any] = {
    "sealing": "broker",
    "buyer_may_close": False,
    "reveal_seconds": 600,
    "review_seconds": 3600,
    "dispute_seconds": 3600,
    "ruling_seconds": 86_400,
    "arbiter_id": None,
    "delivery": "open",
    "attested": False,
    "trust": "local",
    "honest_share": MarketPlan.honest_share,
}


class Broker:
    """The market's rules over one database."""

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
        """Opens the database.

        Args:
            clock, entropy, make_mechanism: replaced in simulations only.
            key: signs the heads of the log.
            closing_grace_ms: how long after a deadline its round moves on, so that bids, claims and other words
                that arrived in time and wait for others' writes are taken first.
        """
        self.database = Database(database, clock, key=key) if isinstance(database, str) else database
        self.entropy = entropy
        self.make_mechanism = make_mechanism
        self.database.grace_ms = closing_grace_ms
        self._clearing: set[str] = set()  # rounds whose auction is being computed: the clock need not do it again
        self._looked: dict[str, int] = {}  # round → the deadline of it that `tick` dealt with
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

    def prepare_schedules(self) -> None:
        """Loads the noise tables of all tasks whose rounds are under way, so that no write waits for one."""
        with self.database.read() as connection:
            live = select(tasks.c.sampling_rate, tasks.c.steps, tasks.c.delta).distinct()
            live = live.join(rounds, rounds.c.task_id == tasks.c.id).where(
                rounds.c.state.in_(lifecycle.LIVE_STATES)
            )
            families = [ReleaseFamily(*row) for row in connection.execute(live)]
        for family in families:
            noise_tables.prepare(family, patience_seconds=0)

    # ---- parties and money ------------------------------------------------------------------------------

    def authenticate(self, token: str) -> Actor:
        """The party behind a token."""
        with self.database.read() as connection:
            return parties.authenticate(connection, token, self.database.now_ms())

    def register(self, fields: Mapping[str, Any], key: str, actor: Actor = ANONYMOUS) -> Answer:
        """A new party with its first token. Only an operator may make an operator or an arbiter.

        With `token_sha256` in the fields the caller made the token itself and a repeat is answered as the first
        time; else the answer shows a token that was made here, once: a repeat is refused.
        """
        fields = dict(fields)
        if fields.get("role") in ("operator", "arbiter") and actor.role != "operator":
            raise ForbiddenError(f"an {fields['role']} is made by operators", "ask an operator of this broker")
        own = fields.pop("token_sha256", None)

        def command(tx: Transaction) -> Answer:
            made = parties.register(tx, self.entropy, fields)
            return {**made, **parties.mint(tx, self.entropy, made["id"], "full", token_hash=own)}

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
    ) -> Answer:
        """Another token for the caller itself; for somebody else who lost theirs, by an operator."""
        who = party_id or actor.party_id
        if who != actor.party_id:
            require(actor, "operator")
        if lifetime_seconds is not None and not 1 <= lifetime_seconds <= _YEAR_SECONDS:
            raise BrokerError(f"lifetime_seconds is {lifetime_seconds}", f"give 1 to {_YEAR_SECONDS}")

        def command(tx: Transaction) -> Answer:
            parties.role_of(tx.connection, who)
            ends = None if lifetime_seconds is None else tx.now_ms + 1000 * lifetime_seconds
            made = parties.mint(tx, self.entropy, who, scope, token_hash=token_sha256, expires_ms=ends)
            return {"id": who, **made}

        asked = ("mint", who, scope, lifetime_seconds, token_sha256)
        return self._with_token(actor, key, asked, command, token_sha256)

    def revoke_token(self, actor: Actor, token_id: str, key: str) -> Answer:
        """Ends a token at once."""
        return self._write(actor, key, ("revoke", token_id), lambda tx: parties.revoke(tx, actor, token_id))

    def change_key(self, actor: Actor, public_key: str, key: str) -> Answer:
        """Another key for the caller's bids."""
        require(actor, "seller")
        return self._write(actor, key, ("key", public_key), lambda tx: parties.change_key(tx, actor, public_key))

    def attest(self, actor: Actor, dataset_sha256: str, signature: str, key: str) -> Answer:
        """Says which data set a seller sells from."""
        require(actor, "seller")
        asked = ("attest", dataset_sha256, signature)
        return self._write(actor, key, asked, lambda tx: parties.attest(tx, actor, dataset_sha256, signature))

    def forget_idle(self, idle_days: float) -> list[str]:
        """Erases the names of those who hold no money and did nothing for so long; who they were."""
        with self.database.write(SYSTEM.party_id) as tx:
            return parties.forget_idle(tx, tx.now_ms - round(86_400_000 * idle_days))

    def suspend(self, actor: Actor, party_id: str, reason: str | None, key: str) -> Answer:
        """Stops a party from writing, or lets it write again (reason None)."""
        require(actor, "operator")
        return self._write(
            actor, key, ("suspend", party_id, reason), lambda tx: parties.suspend(tx, party_id, reason)
        )

    def erase_name(self, actor: Actor, party_id: str, key: str) -> Answer:
        """Removes a party's name from the database."""
        require(actor, "operator")
        return self._write(actor, key, ("erase", party_id), lambda tx: parties.erase(tx, party_id))

    def deposit(self, actor: Actor, party_id: str, amount_micro: int, key: str) -> Answer:
        """Money comes in from outside."""
        return self._move_money(actor, "deposit", party_id, amount_micro, key)

    def withdraw(self, actor: Actor, party_id: str, amount_micro: int, key: str) -> Answer:
        """Pays money of a party out of the market."""
        return self._move_money(actor, "withdraw", party_id, amount_micro, key)

    def _move_money(self, actor: Actor, kind: str, party_id: str, amount_micro: int, key: str) -> Answer:
        require(actor, "operator")
        asked = (kind, party_id, amount_micro)
        return self._write(actor, key, asked, lambda tx: parties.move_money(tx, kind, party_id, amount_micro))

    # ---- tasks and rounds -------------------------------------------------------------------------------

    def publish_task(self, actor: Actor, fields: Mapping[str, Any], key: str) -> Answer:
        """What the buyer wants trained: budget per round, number of rounds, rule, release, deadlines, arbiter."""
        require(actor, "buyer")
        fields = {**TASK_DEFAULTS, **fields}
        fields |= {name: float(fields[name]) for name in ("epsilon_max", "sampling_rate", "delta", "honest_share")}
        _check_task(fields)
        family = ReleaseFamily(fields["sampling_rate"], fields["steps"], fields["delta"])
        if self.make_mechanism is mechanism:
            rules.check(fields["mechanism"], fields["settings"])
        row = {**fields, "settings": canonical(fields["settings"])}
        self._rule_version(row)
        noise_tables.prepare(family)

        def command(tx: Transaction) -> Answer:
            if (
                fields["arbiter_id"] is not None
                and parties.role_of(tx.connection, fields["arbiter_id"]) != "arbiter"
            ):
                raise BrokerError(
                    f"{fields['arbiter_id']} is not an arbiter", "name a party of that role, or nobody"
                )
            task_id = identifier(self.entropy, "task")
            tx.log("task.published", task_id, buyer_id=actor.party_id, **row)
            return {"id": task_id, "buyer_id": actor.party_id, **fields}

        return self._write(actor, key, ("publish", dict(fields)), command)

    def open_round(self, actor: Actor, task_id: str, key: str) -> Answer:
        """Puts the round's budget in escrow and opens it for bids."""
        require(actor, "buyer")
        with self.database.read() as connection:
            task = connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
        if task is None or task.buyer_id != actor.party_id:
            raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists yours")
        version = self._rule_version(dict(task._mapping))
        noise_tables.prepare(ReleaseFamily(task.sampling_rate, task.steps, task.delta))

        def command(tx: Transaction) -> Answer:
            mine = rounds.c.task_id == task_id
            past = tx.connection.execute(select(rounds.c.state).where(mine)).scalars().all()
            if any(state in lifecycle.TAKING_BIDS for state in past):
                raise ConflictError(f"task {task_id} has a round that takes bids", "let it clear, or abort it")
            if len(past) >= task.rounds:
                raise ConflictError(f"task {task_id} has had its {task.rounds} rounds", "publish another task")
            account = ledger.party(actor.party_id)
            ledger.require(tx.connection, account, task.budget_micro, "the escrow of a round")
            round_id = identifier(self.entropy, "round")
            row = {
                "task_id": task_id,
                "number": len(past),
                "budget_micro": task.budget_micro,
                "mechanism_version": version,
                "bid_deadline_ms": tx.now_ms + 1000 * task.bid_seconds,
            }
            tx.log("round.opened", round_id, buyer_id=actor.party_id, **row)
            return {"id": round_id, **row, "state": "open", "opened_ms": tx.now_ms}

        return self._write(actor, key, ("open", task_id), command)

    def _rule_version(self, task: Mapping[str, Any]) -> str:
        try:
            return rules.version_of(lifecycle.mechanism_of(SimpleNamespace(**task), self.make_mechanism))
        except PrivmarketError:
            raise
        except Exception as error:
            raise BrokerError(
                f"{task['mechanism']} does not take these settings: {type(error).__name__}",
                "GET /v1/mechanisms shows what each rule takes",
            ) from None

    def bid(self, actor: Actor, round_id: str, offer: Offer, key: str, **sealing: str) -> Answer:
        """A sealed bid; `sealing` may hold a nonce and a signature."""
        return self._one_bid(BidRequest(round_id, offer, key, actor, **sealing))  # type: ignore[arg-type]

    def commit_bid(self, actor: Actor, round_id: str, commitment: str, signature: str, key: str) -> Answer:
        """A bid that its bidder seals; `reveal` opens it."""
        return self._one_bid(BidRequest(round_id, None, key, actor, commitment=commitment, signature=signature))

    def _one_bid(self, request: BidRequest) -> Answer:
        (result,) = self.take_bids([request])
        if isinstance(result, PrivmarketError):
            raise result
        return result

    def take_bids(self, requests: Sequence[BidRequest], *, patient: bool = True) -> list[Answer | PrivmarketError]:
        """Sealed bids of many sellers in one durable transaction; one answer or refusal each."""
        with self.database.write(SYSTEM.party_id, patient=patient) as tx:
            return bidding.take_bids(tx, requests, self.entropy)

    def reveal(self, actor: Actor, round_id: str, offer: Offer, nonce: str, key: str) -> Answer:
        """Opens a bid that its bidder sealed, once bidding has ended."""
        require(actor, "seller")

        def command(tx: Transaction) -> Answer:
            round_, task = lifecycle.round_and_task(tx.connection, round_id)
            return bidding.reveal(tx, actor.party_id, round_, task, offer, nonce)

        return self._write(actor, key, ("reveal", round_id, bidding.offer_fields(offer), nonce), command)

    def close_round(self, actor: Actor, round_id: str, key: str) -> Answer:
        """Ends bidding where it may end now, and runs the auction as soon as all bids are open."""
        require(actor, "buyer", "operator")
        parties.require_full_scope(actor)
        asked = idempotency.request(actor.party_id, key, ("close", round_id))
        with self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(asked, idempotency.find(tx, [asked]))
            if first is not None:
                return first
            round_, task = self._own_round(tx, actor, round_id)
            lifecycle.require_state(round_, *lifecycle.TAKING_BIDS)
            if round_.state == "open":
                lifecycle.close(tx, round_, task, by_buyer=actor.party_id == task.buyer_id)
                round_, _ = lifecycle.round_and_task(tx.connection, round_id)
            if not lifecycle.may_clear(round_, tx.over_ms):
                waits = {"reveal_deadline_ms": round_.reveal_deadline_ms}
                answer = {"round_id": round_id, "state": "revealing", "bids": round_.bids, **waits}
                if tx.entries:
                    tx.answer(0, asked.key_hash, asked.request_hash, canonical(answer))
                return answer
        return self._clear(actor, round_id, asked)

    def _clear(self, actor: Actor, round_id: str, asked: idempotency.Request) -> Answer:
        """Prepares the auction on a snapshot and logs it; inside the write if wallets keep moving meanwhile."""
        self._clearing.add(round_id)
        try:
            return self._try_to_clear(actor, round_id, asked)
        finally:
            self._clearing.discard(round_id)

    def _try_to_clear(self, actor: Actor, round_id: str, asked: idempotency.Request) -> Answer:
        for attempt in range(_TRIES):
            prepared = self._prepared(round_id)
            with self.database.write(actor.party_id) as tx:
                first = idempotency.first_answer(asked, idempotency.find(tx, [asked]))
                if first is not None:
                    return first
                answer = lifecycle.clear(tx, round_id, prepared)
                if answer is None and attempt == _TRIES - 1:
                    again = lifecycle.prepare(tx.connection, round_id, self.make_mechanism)
                    answer = lifecycle.clear(tx, round_id, again)
                if answer is not None:
                    tx.answer(0, asked.key_hash, asked.request_hash, canonical(answer))
                    return answer
        raise AssertionError("unreachable: the last attempt holds the lock")

    def _prepared(self, round_id: str) -> lifecycle.Prepared:
        """A round's auction on a snapshot: here, or in a process of its own where there are very many bids."""
        with self.database.read() as connection:
            round_, _ = lifecycle.round_and_task(connection, round_id)
        prepared = None
        if round_.bids >= elsewhere.WORTH_A_PROCESS and self.make_mechanism is mechanism:
            prepared = elsewhere.prepare_elsewhere(self.database, round_id)
        if prepared is None:
            with self.database.read() as connection:
                prepared = lifecycle.prepare(connection, round_id, self.make_mechanism)
        return prepared

    def claim_delivery(
        self, actor: Actor, round_id: str, update_sha256: str, key: str, *, update_key: str | None = None
    ) -> Answer:
        """A seller says, before its update leaves, what it delivers; `update_key` opens a sealed one."""
        require(actor, "seller")

        def command(tx: Transaction) -> Answer:
            round_, task = lifecycle.round_and_task(tx.connection, round_id)
            return lifecycle.claim(tx, actor.party_id, round_, task, update_sha256, update_key)

        digest = None if update_key is None else sealed.key_digest(update_key)
        return self._write(actor, key, ("claim", round_id, update_sha256, digest), command)

    def show_key(self, actor: Actor, round_id: str, seller_id: str, key: str) -> Answer:
        """The key of a sealed update that is disputed, for the task's arbiter."""
        require(actor, "arbiter", "operator")

        def command(tx: Transaction) -> Answer:
            round_, task = lifecycle.round_and_task(tx.connection, round_id)
            lifecycle.may_rule(actor.party_id, actor.role, task)
            return lifecycle.show_key(tx, round_, seller_id)

        return self._write(actor, key, ("show key", round_id, seller_id), command, secret=("key",))

    def report_progress(self, actor: Actor, round_id: str, accuracy: float, key: str) -> Answer:
        """The buyer notes how good its model is after a round."""
        require(actor, "buyer")

        def command(tx: Transaction) -> Answer:
            round_, _ = self._own_round(tx, actor, round_id)
            lifecycle.require_state(round_, "cleared", "delivered", "settled")
            tx.log("round.progress", round_id, model_accuracy=float(accuracy) + 0.0)
            return {"round_id": round_id, "state": round_.state, "model_accuracy": accuracy}

        if not 0 <= accuracy <= 1:
            raise BrokerError(f"accuracy is {accuracy}", "give a share between 0 and 1")
        return self._write(actor, key, ("progress", round_id, accuracy), command)

    def give_receipts(self, actor: Actor, round_id: str, receipts: Mapping[str, str | None], key: str) -> Answer:
        """The buyer says which of the claimed updates it can use."""
        require(actor, "buyer")

        def command(tx: Transaction) -> Answer:
            round_, _ = self._own_round(tx, actor, round_id)
            return lifecycle.judge(tx, round_, receipts)

        return self._write(actor, key, ("receipts", round_id, dict(receipts)), command)

    def dispute(self, actor: Actor, round_id: str, reason: str, key: str) -> Answer:
        """A seller objects to a rejection."""
        require(actor, "seller")

        def command(tx: Transaction) -> Answer:
            round_, _ = lifecycle.round_and_task(tx.connection, round_id)
            return lifecycle.dispute(tx, actor.party_id, round_, reason)

        return self._write(actor, key, ("dispute", round_id, reason), command)

    def rule(self, actor: Actor, round_id: str, seller_id: str, pays: bool, reason: str, key: str) -> Answer:
        """The task's arbiter decides a dispute."""
        require(actor, "arbiter", "operator")

        def command(tx: Transaction) -> Answer:
            round_, task = lifecycle.round_and_task(tx.connection, round_id)
            lifecycle.may_rule(actor.party_id, actor.role, task)
            return lifecycle.rule(tx, round_, task, seller_id, pays, reason)

        return self._write(actor, key, ("rule", round_id, seller_id, pays, reason), command)

    def settle_round(self, actor: Actor, round_id: str, key: str) -> Answer:
        """Settles a round: pays the sellers and refunds the rest to the buyer."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> Answer:
            return lifecycle.settle(tx, *self._own_round(tx, actor, round_id))

        return self._write(actor, key, ("settle", round_id), command)

    def abort_round(self, actor: Actor, round_id: str, reason: str, key: str) -> Answer:
        """Ends a round with refunds, before its bidding has ended: later, sellers have a claim."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> Answer:
            return lifecycle.abort(tx, *self._own_round(tx, actor, round_id), reason)

        return self._write(actor, key, ("abort", round_id, reason), command)

    def _own_round(self, tx: Transaction, actor: Actor, round_id: str) -> tuple[Row[Any], Row[Any]]:
        round_, task = lifecycle.round_and_task(tx.connection, round_id)
        if actor.role != "operator" and task.buyer_id != actor.party_id:
            raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists yours")
        return round_, task

    def party_balance(self, party_id: str) -> int:
        """Micro-units on a party's account."""
        with self.database.read() as connection:
            return ledger.balance(connection, ledger.party(party_id))

    def round_state(self, round_id: str) -> str:
        """A round's state, such as open or cleared."""
        with self.database.read() as connection:
            state = select(rounds.c.state).where(rounds.c.id == round_id)
            return str(connection.execute(state).scalar_one())

    def tick(self) -> list[Answer]:
        """Does what deadlines demand: closes rounds, holds auctions, settles where nobody may speak any more."""
        now, t = self.database.now_ms() - self.database.grace_ms, rounds
        over = (t.c.state == "open") & (t.c.bid_deadline_ms <= now)
        due = t.c.state.in_(["closed", "revealing", "delivered"])
        late = (t.c.state == "cleared") & (t.c.delivery_deadline_ms <= now)
        with self.database.read() as connection:
            waiting = connection.execute(select(t).where(over | due | late)).all()
        done = []
        for round_ in waiting:
            # Awards are looked at once per deadline, not with every tick: there may be a hundred thousand.
            passed = sum((at or now + 1) <= now for at in _deadlines(round_))
            if round_.state == "cleared" and self._looked.get(round_.id) == passed:
                continue
            if round_.id in self._clearing:
                continue
            if round_.state == "revealing" and not lifecycle.may_clear(round_, now):
                continue
            step = self.settle_round if round_.state in ("cleared", "delivered") else self.close_round
            try:
                done.append(step(SYSTEM, round_.id, f"deadline:{round_.state}:{passed}:{round_.id}"))
                self._looked.pop(round_.id, None)
            except ConflictError:  # another broker, or the buyer, was faster; or somebody may still speak
                self._looked[round_.id] = passed
        return done

    # ---- every write ------------------------------------------------------------------------------------

    def _write(
        self,
        actor: Actor,
        key: str,
        asked: tuple[Any, ...],
        command: Callable[[Transaction], Answer],
        *,
        secret: Sequence[str] = (),
    ) -> Answer:
        """Runs a command once per (actor, key): a repeat gets the first answer, and changes nothing.

        Fields of the answer that are `secret` are not stored with it, so a repeat runs the command again for them.
        """
        parties.require_full_scope(actor)
        request = idempotency.request(actor.party_id, key, asked)
        with self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(request, idempotency.find(tx, [request]))
            if first is not None and not secret:
                return first
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
        asked: tuple[Any, ...],
        command: Callable[[Transaction], Answer],
        own_token_hash: str | None,
    ) -> Answer:
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
                return first
            answer = command(tx)
            kept = {name: value for name, value in answer.items() if name not in ("token", "name")}
            tx.answer(0, request.key_hash, request.request_hash, canonical(kept))
            return answer

    def first_operator(self) -> str | None:
        """Makes the first operator and returns its token; None where one exists already."""
        with self.database.write(SYSTEM.party_id) as tx:
            if sql.run(tx.connection, "SELECT 1 FROM parties WHERE role = 'operator' LIMIT 1"):
                return None
            made = parties.register(tx, self.entropy, {"role": "operator", "name": "operator"})
            return str(parties.mint(tx, self.entropy, made["id"], "full")["token"])

    def new_operator_token(self) -> str:
        """A fresh token for the first operator, for someone who holds the database but lost the token."""
        with self.database.write(SYSTEM.party_id) as tx:
            query = "SELECT id FROM parties WHERE role = 'operator' ORDER BY created_ms, id LIMIT 1"
            ((operator,),) = sql.run(tx.connection, query)
            parties.revoke_all(tx, operator)
            return str(parties.mint(tx, self.entropy, operator, "full")["token"])


def _deadlines(round_: Any) -> tuple[int | None, ...]:
    return (
        round_.delivery_deadline_ms,
        round_.review_deadline_ms,
        round_.dispute_deadline_ms,
        round_.ruling_deadline_ms,
    )


def _check_task(fields: Mapping[str, Any]) -> None:
    limits = {
        "budget_micro": (1, MONEY_LIMIT_MICRO),
        "rounds": (1, 100_000),
        "bid_seconds": (1, _YEAR_SECONDS),
        "reveal_seconds": (1, _YEAR_SECONDS),
        "delivery_seconds": (1, _YEAR_SECONDS),
        "review_seconds": (0, _YEAR_SECONDS),
        "dispute_seconds": (0, _YEAR_SECONDS),
        "ruling_seconds": (0, _YEAR_SECONDS),
        "steps": (1, 1_000_000),
    }
    for name, (low, high) in limits.items():
        if not low <= fields[name] <= high:
            raise BrokerError(f"{name} is {fields[name]}", f"give {low} to {high}")
    if not 0 < fields["epsilon_max"] <= 100:
        raise BrokerError(f"epsilon_max is {fields['epsilon_max']}", "give a limit on offers above 0, at most 100")
    if not 0 < len(str(fields["title"]).strip()) <= 120 or not str(fields["title"]).isprintable():
        raise BrokerError("a title of the wrong length, or that does not print", "give 1 to 120 characters")
    if not 0 < fields["honest_share"] <= 1:
        raise BrokerError(f"honest_share is {fields['honest_share']}", "give a share of the sellers, above 0")
    if fields["trust"] == "aggregate" and fields["steps"] != 1:
        raise BrokerError(
            f"trust 'aggregate' with {fields['steps']} steps a round", "the buyer must not see steps: use steps = 1"
        )
    words = {"sealing": ("broker", "bidder"), "delivery": ("open", "sealed"), "trust": tuple(TRUSTS)}
    for name, choices in words.items():
        if fields[name] not in choices:
            raise BrokerError(f"{name} is {fields[name]!r}", f"choose {' or '.join(choices)}")
