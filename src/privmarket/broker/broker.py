"""The broker: every write as one idempotent command in one transaction.

The HTTP API, the demo, the simulation and the tests all call these methods; nothing else changes the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, func, insert, select, update

from privmarket.broker import bidding, chain, idempotency, ledger, people, rounds
from privmarket.broker.bidding import BidRequest
from privmarket.broker.database import Clock, Database, Transaction, wall_clock_ms
from privmarket.broker.entropy import Entropy, identifier
from privmarket.broker.errors import BrokerError, ConflictError, ForbiddenError, NotFoundError
from privmarket.broker.fairness import no_collection
from privmarket.broker.guard import version_of
from privmarket.broker.people import ANONYMOUS, MONEY_LIMIT_MICRO, SYSTEM, Actor, require
from privmarket.broker.schema import parties, tasks, tokens
from privmarket.broker.schema import rounds as rounds_table
from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer
from privmarket.mechanisms import mechanism
from privmarket.privacy.calibration import ReleaseFamily

Answer = dict[str, Any]
_YEAR_SECONDS = 366 * 24 * 3600


class Broker:
    """The market's rules over one database."""

    def __init__(
        self,
        database: Database | str,
        *,
        clock: Clock = wall_clock_ms,
        entropy: Entropy = secrets.token_bytes,
        make_mechanism: rounds.MakeMechanism = mechanism,
    ) -> None:
        """`clock`, `entropy` and `make_mechanism` are replaced in simulations only."""
        self.database = Database(database, clock) if isinstance(database, str) else database
        self.entropy = entropy
        self.make_mechanism = make_mechanism

    # ---- people and money -------------------------------------------------------------------------------

    def authenticate(self, token: str) -> Actor:
        """The party behind a token."""
        with self.database.read() as connection:
            return people.authenticate(connection, token)

    def register(self, fields: Mapping[str, Any], key: str, actor: Actor = ANONYMOUS) -> Answer:
        """A new buyer or seller, with its first token. Only an operator may make an operator."""
        if fields.get("role") == "operator" and actor.role != "operator":
            raise ForbiddenError("operators are made by operators", "ask one of them")

        def command(tx: Transaction) -> Answer:
            return people.register(tx, self.entropy, dict(fields))

        return self._with_token(actor, key, ("register", dict(fields)), command, "full")

    def mint_token(self, actor: Actor, scope: str, key: str) -> Answer:
        """Another token for the caller itself."""
        return self._with_token(actor, key, ("mint", scope), lambda tx: {"id": actor.party_id}, scope)

    def revoke_token(self, actor: Actor, token_id: str, key: str) -> Answer:
        """Ends a token at once."""
        return self._write(actor, key, ("revoke", token_id), lambda tx: people.revoke(tx, actor, token_id))

    def deposit(self, actor: Actor, party_id: str, amount_micro: int, key: str) -> Answer:
        """Money comes in from outside."""
        require(actor, "operator")
        request = ("deposit", party_id, amount_micro)
        return self._write(actor, key, request, lambda tx: people.move_money(tx, "deposit", party_id, amount_micro))

    def withdraw(self, actor: Actor, party_id: str, amount_micro: int, key: str) -> Answer:
        """Money goes out."""
        require(actor, "operator")
        request = ("withdraw", party_id, amount_micro)
        return self._write(
            actor, key, request, lambda tx: people.move_money(tx, "withdraw", party_id, amount_micro)
        )

    # ---- tasks and rounds -------------------------------------------------------------------------------

    def publish_task(self, actor: Actor, fields: Mapping[str, Any], key: str) -> Answer:
        """What the buyer wants trained: budget per round, number of rounds, rule, release, deadlines."""
        require(actor, "buyer")
        fields = {**fields, **{name: float(fields[name]) for name in ("epsilon_max", "sampling_rate", "delta")}}
        _check_task(fields)
        self.make_mechanism(fields["mechanism"], **fields["settings"])

        def command(tx: Transaction) -> Answer:
            task_id = identifier(self.entropy, "task")
            row = {**fields, "settings": chain.canonical(fields["settings"])}
            tx.connection.execute(
                insert(tasks).values(id=task_id, buyer_id=actor.party_id, created_ms=tx.now_ms, **row)
            )
            tx.log("task.published", task_id, buyer=actor.party_id, terms=chain.digest(row))
            return {"id": task_id, "buyer_id": actor.party_id, **fields}

        return self._write(actor, key, ("publish", dict(fields)), command)

    def open_round(self, actor: Actor, task_id: str, key: str) -> Answer:
        """Puts the round's budget in escrow and opens it for bids."""
        require(actor, "buyer")

        def command(tx: Transaction) -> Answer:
            task = _own_task(tx, actor, task_id)
            mine = rounds_table.c.task_id == task_id
            past = tx.connection.execute(select(rounds_table.c.state).where(mine)).scalars().all()
            if any(state in rounds.LIVE_STATES for state in past):
                raise ConflictError(f"task {task_id} has a round under way", "settle or abort it first")
            if len(past) >= task.rounds:
                raise ConflictError(f"task {task_id} has had its {task.rounds} rounds", "publish another task")
            return self._open(tx, task, len(past))

        return self._write(actor, key, ("open", task_id), command)

    def _open(self, tx: Transaction, task: Row[Any], number: int) -> Answer:
        round_id = identifier(self.entropy, "round")
        held = {ledger.escrow(round_id): task.budget_micro}
        ledger.transfer(tx, "escrow", round_id, ledger.party(task.buyer_id), held)
        row = {
            "task_id": task.id,
            "number": number,
            "state": "open",
            "seed": int.from_bytes(self.entropy(7), "big"),
            "budget_micro": task.budget_micro,
            "mechanism_version": version_of(rounds.mechanism_of(task, self.make_mechanism)),
            "opened_ms": tx.now_ms,
            "bid_deadline_ms": tx.now_ms + 1000 * task.bid_seconds,
        }
        tx.connection.execute(insert(rounds_table).values(id=round_id, **row))
        # The seed orders ties: it stays with the broker until the auction is over, and the log holds its digest.
        sealed = rounds.seed_digest(round_id, row["seed"])
        terms = {"task": task.id, "number": number, "budget_micro": task.budget_micro}
        tx.log("round.opened", round_id, **terms, seed_sha256=sealed)
        return {"id": round_id, **{name: value for name, value in row.items() if name != "seed"}}

    def bid(self, actor: Actor, round_id: str, offer: Offer, key: str) -> Answer:
        """A sealed bid."""
        (result,) = self.take_bids([BidRequest(round_id, offer, key, actor)])
        if isinstance(result, PrivmarketError):
            raise result
        return result

    def take_bids(self, requests: Sequence[BidRequest], *, patient: bool = True) -> list[Answer | PrivmarketError]:
        """Sealed bids of many sellers in one durable transaction; one answer or refusal each."""
        with self.database.write(SYSTEM.party_id, patient=patient) as tx:
            return bidding.take_bids(tx, requests, self.entropy)

    def close_round(self, actor: Actor, round_id: str, key: str) -> Answer:
        """Ends bidding and runs the auction."""
        require(actor, "buyer", "operator")
        return self._write(actor, key, ("close", round_id), lambda tx: self._clear(tx, actor, round_id))

    def _clear(self, tx: Transaction, actor: Actor, round_id: str) -> Answer:
        round_, task = _own_round(tx, actor, round_id)
        with no_collection():
            return rounds.clear(tx, round_, task, self.make_mechanism)

    def claim_delivery(self, actor: Actor, round_id: str, update_sha256: str, key: str) -> Answer:
        """A seller says that its update is delivered."""
        require(actor, "seller")

        def command(tx: Transaction) -> Answer:
            round_, _ = _round(tx, round_id)
            return rounds.claim_delivery(tx, actor.party_id, round_, update_sha256)

        return self._write(actor, key, ("claim", round_id, update_sha256), command)

    def give_receipts(self, actor: Actor, round_id: str, receipts: Mapping[str, str | None], key: str) -> Answer:
        """The buyer says which updates it could use."""
        require(actor, "buyer")

        def command(tx: Transaction) -> Answer:
            round_, _ = _own_round(tx, actor, round_id)
            return rounds.give_receipts(tx, round_, receipts)

        return self._write(actor, key, ("receipts", round_id, dict(receipts)), command)

    def settle_round(self, actor: Actor, round_id: str, key: str) -> Answer:
        """Pays and refunds."""
        require(actor, "buyer", "operator")
        return self._write(
            actor, key, ("settle", round_id), lambda tx: rounds.settle(tx, *_own_round(tx, actor, round_id))
        )

    def abort_round(self, actor: Actor, round_id: str, reason: str, key: str) -> Answer:
        """Ends a round with refunds. A buyer may do so only before the auction: later, sellers have a claim."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> Answer:
            round_, task = _own_round(tx, actor, round_id)
            if actor.role == "buyer":
                rounds.require_state(round_, "open")
            return rounds.abort(tx, round_, task, reason)

        return self._write(actor, key, ("abort", round_id, reason), command)

    def party_balance(self, party_id: str) -> int:
        """Micro-units on a party's account."""
        with self.database.read() as connection:
            return ledger.balance(connection, ledger.party(party_id))

    def round_state(self, round_id: str) -> str:
        """Where a round stands."""
        with self.database.read() as connection:
            state = select(rounds_table.c.state).where(rounds_table.c.id == round_id)
            return str(connection.execute(state).scalar_one())

    def tick(self) -> list[Answer]:
        """Does what deadlines demand: clears rounds that stopped taking bids, settles those past delivery."""
        now, t = self.database.now_ms(), rounds_table
        over = (t.c.state == "open") & (t.c.bid_deadline_ms <= now)
        due = t.c.state.in_(["cleared", "delivered"]) & (t.c.delivery_deadline_ms <= now)
        with self.database.read() as connection:
            waiting = connection.execute(select(t.c.id, t.c.state).where(over | due)).all()
        done = []
        for round_id, state in waiting:
            step = self.close_round if state == "open" else self.settle_round
            try:
                done.append(step(SYSTEM, round_id, f"deadline:{state}:{round_id}"))
            except ConflictError:  # another broker, or the buyer, was faster
                continue
        return done

    # ---- every write ------------------------------------------------------------------------------------

    def _write(
        self, actor: Actor, key: str, request: tuple[Any, ...], command: Callable[[Transaction], Answer]
    ) -> Answer:
        """Runs a command once per (actor, key): a repeat gets the first answer, and changes nothing."""
        people.require_full_scope(actor)
        entry = idempotency.entry(actor.party_id, key, request)
        with self.database.write(actor.party_id) as tx:
            first = idempotency.first_answer(entry, idempotency.find(tx, [entry]))
            if first is not None:
                return first
            answer = command(tx)
            idempotency.remember(tx, [(entry, chain.canonical(answer))])
            return answer

    def _with_token(
        self, actor: Actor, key: str, request: tuple[Any, ...], command: Callable[[Transaction], Answer], scope: str
    ) -> Answer:
        """Like `_write`, for answers that carry a new token: a repeat gets another one for the same party.

        The token itself is stored nowhere, so it cannot be repeated. The first stays good: a request that its own
        repeat overtook would otherwise end the token that the caller was given.
        """
        people.require_full_scope(actor)
        entry = idempotency.entry(actor.party_id, key, request)
        with self.database.write(actor.party_id) as tx:
            answer = idempotency.first_answer(entry, idempotency.find(tx, [entry]))
            if answer is None:
                answer = command(tx)
                idempotency.remember(tx, [(entry, chain.canonical(answer))])
            return {**answer, **people.mint(tx, self.entropy, answer["id"], scope)}

    def first_operator(self) -> str | None:
        """Makes the first operator and returns its token; None where one exists already."""
        with self.database.write(SYSTEM.party_id) as tx:
            if tx.connection.execute(select(func.count()).where(parties.c.role == "operator")).scalar_one():
                return None
            made = people.register(tx, self.entropy, {"role": "operator", "name": "operator"})
            return str(people.mint(tx, self.entropy, made["id"], "full")["token"])

    def new_operator_token(self) -> str:
        """A fresh token for the first operator, for someone who holds the database but lost the token."""
        with self.database.write(SYSTEM.party_id) as tx:
            party = select(parties.c.id).where(parties.c.role == "operator").order_by(parties.c.created_ms).limit(1)
            operator = tx.connection.execute(party).scalar_one()
            old = (tokens.c.party_id == operator) & tokens.c.revoked_ms.is_(None)
            tx.connection.execute(update(tokens).where(old).values(revoked_ms=tx.now_ms))
            return str(people.mint(tx, self.entropy, operator, "full")["token"])


def _check_task(fields: Mapping[str, Any]) -> None:
    limits = {
        "budget_micro": (1, MONEY_LIMIT_MICRO),
        "rounds": (1, 100_000),
        "bid_seconds": (1, _YEAR_SECONDS),
        "delivery_seconds": (1, _YEAR_SECONDS),
        "steps": (1, 1_000_000),
    }
    for name, (low, high) in limits.items():
        if not low <= fields[name] <= high:
            raise BrokerError(f"{name} is {fields[name]}", f"give {low} to {high}")
    if not 0 < fields["epsilon_max"] <= 100:
        raise BrokerError(f"epsilon_max is {fields['epsilon_max']}", "give a limit on offers above 0, at most 100")
    if not 0 < len(str(fields["title"]).strip()) <= 120 or "\x00" in fields["title"]:
        raise BrokerError("a title of the wrong length", "give 1 to 120 characters")
    ReleaseFamily(fields["sampling_rate"], fields["steps"], fields["delta"])


def _round(tx: Transaction, round_id: str) -> tuple[Row[Any], Row[Any]]:
    row = tx.connection.execute(select(rounds_table).where(rounds_table.c.id == round_id)).first()
    if row is None:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists what is offered")
    return row, rounds.task_of(tx.connection, row.task_id)


def _own_round(tx: Transaction, actor: Actor, round_id: str) -> tuple[Row[Any], Row[Any]]:
    round_, task = _round(tx, round_id)
    if actor.role != "operator" and task.buyer_id != actor.party_id:
        raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists yours")
    return round_, task


def _own_task(tx: Transaction, actor: Actor, task_id: str) -> Row[Any]:
    row = tx.connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None or row.buyer_id != actor.party_id:
        raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists yours")
    return row
