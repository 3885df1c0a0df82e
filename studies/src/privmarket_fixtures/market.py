"""A small market for tests: an operator, a buyer with money, sellers with wallets."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from privmarket.broker._answers import BidAnswer, ClaimAnswer, Dispute, PayoutAnswer, Ruled, StepAnswer
from privmarket.broker._bidding import offer_fields
from privmarket.broker._broker import Broker
from privmarket.broker._parties import Actor
from privmarket.broker._schema import awards
from privmarket.broker._sealed import key_digest
from privmarket.broker._signatures import SigningKey, bid_message, commitment, statement_message
from privmarket.rounds import Offer

TASK: dict[str, object] = {
    "title": "digits",
    "mechanism": "proportional-share",
    "settings": {},
    "budget_micro": 1_000_000,
    "rounds": 10,
    "epsilon_max": 5.0,
    "sampling_rate": 1.0,
    "steps": 1,
    "delta": 1e-5,
    "buyer_may_close": True,
    "bid_seconds": 60,
    "delivery_seconds": 60,
    "review_seconds": 60,
    "dispute_seconds": 60,
    "ruling_seconds": 60,
}
BROKER_KEY = SigningKey.from_seed(b"\x06" * 32)
_keys = itertools.count()


def key() -> str:
    """A new idempotency key."""
    return f"test-key-{next(_keys):06d}"


@dataclass
class Clock:
    """A clock that stands still until it is set."""

    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        """The time that was set, in milliseconds since 1970."""
        return self.now_ms


@dataclass
class Market:
    """A market for tests: its broker, operator, buyer, sellers and clock."""

    broker: Broker
    clock: Clock
    operator: Actor
    buyer: Actor
    sellers: list[Actor]
    keys: dict[str, SigningKey] = field(default_factory=dict)  # of parties that sign everything

    def sign(self, actor: Actor, kind: str, about: str, **said: object) -> str | None:
        """The signature of a statement by somebody that signs everything; None for anybody else."""
        key = self.keys.get(actor.party_id)
        return None if key is None else key.sign(statement_message(kind, actor.party_id, about, said))

    def publish(self, **changes: object) -> str:
        """Publishes a task; its id."""
        terms = {**TASK, **changes}
        nonce = secrets.token_hex(16) if self.buyer.party_id in self.keys else None
        signature = self.sign(self.buyer, "task.published", "new", **terms, nonce=nonce)
        made = self.broker.publish_task(self.buyer, terms, key(), nonce=nonce, signature=signature)
        return str(made["id"])

    def open(self, **changes: object) -> str:
        """Publishes a task and opens its first round; the round's id."""
        task_id = self.publish(**changes)
        signature = self.sign(self.buyer, "round.opened", task_id, number=0)
        return str(self.broker.open_round(self.buyer, task_id, key(), signature=signature)["id"])

    def bid(self, seller: Actor, round_id: str, offer: Offer) -> BidAnswer:
        """Places a bid, signed where the seller signs."""
        own = self.keys.get(seller.party_id)
        if own is None:
            return self.broker.bid(seller, round_id, offer, key())
        nonce = secrets.token_hex(16)
        committed = commitment(round_id, seller.party_id, offer_fields(offer), nonce)
        signature = own.sign(bid_message(round_id, seller.party_id, committed))
        return self.broker.bid(seller, round_id, offer, key(), nonce=nonce, signature=signature)

    def bid_all(self, round_id: str, valuations: tuple[float, ...] = (0.2, 0.9, 0.4)) -> None:
        """Places one bid for each seller."""
        for seller, v, e in zip(self.sellers, valuations, (1.0, 2.0, 0.5), strict=False):
            self.bid(seller, round_id, Offer(v, e))

    def winners(self, round_id: str) -> list[str]:
        """The ids of the sellers that were awarded a sale."""
        with self.broker.database.read() as connection:
            return list(
                connection.execute(select(awards.c.seller_id).where(awards.c.round_id == round_id)).scalars()
            )

    def seller(self, party_id: str) -> Actor:
        """The seller of that id."""
        return next(seller for seller in self.sellers if seller.party_id == party_id)

    def close(self, round_id: str) -> StepAnswer:
        """The buyer ends bidding before its deadline."""
        signature = self.sign(self.buyer, "round.closed", round_id)
        return self.broker.close_round(self.buyer, round_id, key(), signature=signature)

    def claim(self, seller: Actor, round_id: str, update_sha256: str, update_key: str | None = None) -> ClaimAnswer:
        """A winner claims its delivery."""
        said = {"update_sha256": update_sha256, "key_sha256": update_key and key_digest(update_key)}
        signature = self.sign(seller, "delivery.claimed", round_id, **said)
        return self.broker.claim_delivery(
            seller, round_id, update_sha256, key(), update_key=update_key, signature=signature
        )

    def deliver(self, round_id: str) -> None:
        """Every winner claims its delivery."""
        for winner in self.winners(round_id):
            self.claim(self.seller(winner), round_id, "ab" * 32)

    def judge(self, round_id: str, receipts: Mapping[str, str | None]) -> StepAnswer:
        """The buyer gives receipts."""
        signed = {
            seller: self.sign(self.buyer, "delivery.judged", round_id, seller_id=seller, fault=fault) or ""
            for seller, fault in receipts.items()
        }
        return self.broker.give_receipts(self.buyer, round_id, receipts, key(), signatures=signed)

    def dispute(self, seller: Actor, round_id: str, reason: str) -> Dispute:
        """A seller objects to a rejection."""
        signature = self.sign(seller, "dispute.opened", round_id, reason=reason)
        return self.broker.dispute(seller, round_id, reason, key(), signature=signature)

    def rule(self, arbiter: Actor, round_id: str, seller_id: str, pays: bool, reason: str) -> Ruled:
        """The arbiter decides a dispute."""
        said = {"seller_id": seller_id, "pays": pays, "reason": reason}
        signature = self.sign(arbiter, "dispute.ruled", round_id, **said)
        return self.broker.rule(arbiter, round_id, seller_id, pays, reason, key(), signature=signature)

    def request_payout(self, party: Actor, amount_micro: int) -> PayoutAnswer:
        """A party asks for money of its account."""
        nonce = secrets.token_hex(16) if party.party_id in self.keys else None
        said = {"amount_micro": amount_micro, "nonce": nonce}
        signature = self.sign(party, "money.requested", party.party_id, **said)
        return self.broker.request_payout(party, amount_micro, key(), nonce=nonce, signature=signature)

    def finish(self, round_id: str) -> StepAnswer:
        """Closes a round, has every winner deliver, and settles."""
        self.close(round_id)
        self.deliver(round_id)
        self.judge(round_id, dict.fromkeys(self.winners(round_id)))
        return self.broker.settle_round(self.buyer, round_id, key())


def make_market(
    url: str, sellers: int = 3, caps: tuple[float, ...] = (10.0,), *, signing: bool = False, **settings: Any
) -> Market:
    """Makes a market on an empty database: an operator, a buyer with money, and sellers with wallets.

    Its log is signed with `BROKER_KEY`, unless `settings` say otherwise. With `signing`, the buyer and the sellers
    have keys of their own and sign everything.
    """
    clock = Clock()
    broker = Broker(url, clock=clock, **{"key": BROKER_KEY, **settings})
    operator = broker.authenticate(broker.first_operator() or "")

    keys: dict[str, SigningKey] = {}

    def enter(role: str, name: str, **wallet: float) -> Actor:
        own = SigningKey.from_seed(hashlib.sha256(name.encode()).digest()) if signing else None
        fields = {"role": role, "name": name, **wallet} | ({"public_key": own.public} if own else {})
        actor = broker.authenticate(broker.register(fields, key())["token"])
        if own is not None:
            keys[actor.party_id] = own
        return actor

    buyer = enter("buyer", "lab")
    broker.deposit(operator, buyer.party_id, 50_000_000, key())
    people = [enter("seller", f"clinic {i}", cap_epsilon=caps[i % len(caps)], delta=1e-5) for i in range(sellers)]
    return Market(broker, clock, operator, buyer, people, keys)
