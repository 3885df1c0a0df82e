"""A small market for tests: an operator, a buyer with money, sellers with wallets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from privmarket.broker.answers import StepAnswer
from privmarket.broker.broker import Broker
from privmarket.broker.parties import Actor
from privmarket.broker.schema import awards
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
    names: dict[str, Actor] = field(default_factory=dict)

    def open(self, **changes: object) -> str:
        """Publishes a task and opens its first round; the round's id."""
        task = self.broker.publish_task(self.buyer, {**TASK, **changes}, key())
        return str(self.broker.open_round(self.buyer, task["id"], key())["id"])

    def bid_all(self, round_id: str, valuations: tuple[float, ...] = (0.2, 0.9, 0.4)) -> None:
        """Places one bid for each seller."""
        for seller, v, e in zip(self.sellers, valuations, (1.0, 2.0, 0.5), strict=False):
            self.broker.bid(seller, round_id, Offer(v, e), key())

    def winners(self, round_id: str) -> list[str]:
        """The ids of the sellers that were awarded a sale."""
        with self.broker.database.read() as connection:
            return list(
                connection.execute(select(awards.c.seller_id).where(awards.c.round_id == round_id)).scalars()
            )

    def seller(self, party_id: str) -> Actor:
        """The seller of that id."""
        return next(seller for seller in self.sellers if seller.party_id == party_id)

    def deliver(self, round_id: str) -> None:
        """Every winner claims its delivery."""
        for winner in self.winners(round_id):
            self.broker.claim_delivery(self.seller(winner), round_id, "ab" * 32, key())

    def finish(self, round_id: str) -> StepAnswer:
        """Closes a round, has every winner deliver, and settles."""
        self.broker.close_round(self.buyer, round_id, key())
        self.deliver(round_id)
        self.broker.give_receipts(self.buyer, round_id, dict.fromkeys(self.winners(round_id)), key())
        return self.broker.settle_round(self.buyer, round_id, key())


def make_market(url: str, sellers: int = 3, caps: tuple[float, ...] = (10.0,), **settings: Any) -> Market:
    """Makes a market on an empty database: an operator, a buyer with money, and sellers with wallets."""
    clock = Clock()
    broker = Broker(url, clock=clock, **settings)
    operator = broker.authenticate(broker.first_operator() or "")

    def enter(role: str, name: str, **wallet: float) -> Actor:
        return broker.authenticate(broker.register({"role": role, "name": name, **wallet}, key())["token"])

    buyer = enter("buyer", "lab")
    broker.deposit(operator, buyer.party_id, 50_000_000, key())
    people = [enter("seller", f"clinic {i}", cap_epsilon=caps[i % len(caps)], delta=1e-5) for i in range(sellers)]
    return Market(broker, clock, operator, buyer, people)
