"""What happens in a round: bids and reveals, the auction, deliveries, receipts, disputes, rulings, settlement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import cast

from privmarket.broker import (
    _auction_process as auction_process,
)
from privmarket.broker import (
    _bidding as bidding,
)
from privmarket.broker import (
    _clearing as clearing,
)
from privmarket.broker import (
    _idempotency as idempotency,
)
from privmarket.broker import (
    _lifecycle as lifecycle,
)
from privmarket.broker import (
    _parties as parties,
)
from privmarket.broker import (
    _sealed as sealed,
)
from privmarket.broker._answers import BidAnswer, ClaimAnswer, Dispute, ProgressAnswer, Ruled, StepAnswer, UpdateKey
from privmarket.broker._bidding import BidRequest
from privmarket.broker._clearing import Prepared
from privmarket.broker._database import Transaction
from privmarket.broker._http_errors import BrokerError, NotFoundError
from privmarket.broker._log import canonical
from privmarket.broker._parties import SYSTEM, Actor, require
from privmarket.broker._statements import countersigned
from privmarket.broker._stored_rows import RoundRow, TaskRow, require_state, round_and_task
from privmarket.broker._write_path import WritePath
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism
from privmarket.rounds import Offer

_TRIES = 3  # to log an auction that was computed on a snapshot, before it is computed inside the write


class RoundCommands(WritePath):
    """Every write in a round."""

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
        """A sealed bid; one that is signed brings its own nonce."""
        return self._one_bid(BidRequest(round_id, offer, key, actor, nonce=nonce, signature=signature))

    def commit_bid(self, actor: Actor, round_id: str, commitment: str, signature: str, key: str) -> BidAnswer:
        """A bid that its bidder seals; `reveal` opens it."""
        return self._one_bid(BidRequest(round_id, None, key, actor, commitment=commitment, signature=signature))

    def _one_bid(self, request: BidRequest) -> BidAnswer:
        (result,) = self.take_bids([request])
        if isinstance(result, PrivmarketError):
            raise result
        return result

    def take_bids(self, requests: Sequence[BidRequest]) -> list[BidAnswer | PrivmarketError]:
        """Sealed bids of many sellers in one durable transaction; one answer or refusal each."""
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
        """Ends bidding where it may end now, and runs the auction as soon as all bids are open.

        Who ends the bidding of a very large round is answered at once: the next `tick` begins its auction, or
        whoever calls this again.
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
            large = actor is not SYSTEM and round_.bids >= auction_process.WORTH_A_PROCESS
            if waits or (tx.entries and large):
                answer: StepAnswer = {"round_id": round_id, "state": round_.state, "bids": round_.bids}
                answer["reveal_deadline_ms"] = round_.reveal_deadline_ms
                if tx.entries:
                    tx.answer(0, asked.key_hash, asked.request_hash, canonical(answer))
                return answer
        return self._clear(actor, round_id, asked)

    def _clear(self, actor: Actor, round_id: str, asked: idempotency.Request) -> StepAnswer:
        """Computes the auction on a snapshot and logs it.

        Where wallets have changed it meanwhile it is computed again, and then other auctions of this broker wait to
        be logged: they are what moves wallets. Bids and everything else go on. After the last try it is computed
        inside the write.
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
        """Logs an auction, if it is still what it would be now; computes it here and now for those who `insist`."""
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
        """A round's auction on a snapshot: here, or in a process of its own where there are very many bids."""
        with self.database.read() as connection:
            round_, _ = round_and_task(connection, round_id)
        prepared = None
        if round_.bids >= auction_process.WORTH_A_PROCESS and self.make_mechanism is mechanism:
            prepared = auction_process.prepare_in_a_process(self.database, round_id)
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
        """A seller says, before its update leaves, what it delivers; `update_key` opens a sealed one."""
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
            require_state(round_, "cleared", "delivered", "settled")
            words = {"model_accuracy": float(accuracy) + 0.0}
            tx.log(
                "round.progress",
                round_id,
                **countersigned(tx.connection, actor.party_id, "round.progress", round_id, words, signature),
            )
            return {"round_id": round_id, "state": round_.state, "model_accuracy": accuracy}

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

    def settle_round(self, actor: Actor, round_id: str, key: str) -> StepAnswer:
        """Settles a round: pays the sellers and refunds the rest to the buyer."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> StepAnswer:
            return lifecycle.settle(tx, *self._own_round(tx, actor, round_id))

        return self._write(actor, key, ("settle", round_id), command)

    def abort_round(
        self, actor: Actor, round_id: str, reason: str, key: str, *, signature: str | None = None
    ) -> StepAnswer:
        """Ends a round with refunds, before its bidding has ended: later, sellers have a claim."""
        require(actor, "buyer", "operator")

        def command(tx: Transaction) -> StepAnswer:
            return lifecycle.abort(tx, *self._own_round(tx, actor, round_id), reason, signature)

        return self._write(actor, key, ("abort", round_id, reason), command)

    def _own_round(self, tx: Transaction, actor: Actor, round_id: str) -> tuple[RoundRow, TaskRow]:
        round_, task = round_and_task(tx.connection, round_id)
        if actor.role != "operator" and task.buyer_id != actor.party_id:
            raise NotFoundError(f"no round {round_id}", "GET /v1/tasks lists yours")
        return round_, task
