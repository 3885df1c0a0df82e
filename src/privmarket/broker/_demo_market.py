"""A small live market for trying a broker out."""

from __future__ import annotations

import random
import threading
from typing import Any

from privmarket.broker import _sql as sql
from privmarket.broker._broker import Broker
from privmarket.broker._parties import Actor
from privmarket.errors import PrivmarketError
from privmarket.rounds import Offer

_SELLERS = (
    "North clinic", "River hospital", "Lake practice", "Harbour lab", "Hill clinic", "Garden practice",
    "Mill hospital", "Forest lab", "Bridge clinic", "Market practice", "Castle hospital", "Meadow lab",
)  # fmt: skip
_ROUNDS = 10_000
_BUDGET_MICRO = 5_000_000


def _operator(broker: Broker) -> Actor:
    """The first operator, in whose name the demo books its money; made where there is none."""
    broker.first_operator()
    with broker.database.read() as connection:
        query = "SELECT id FROM parties WHERE role = 'operator' ORDER BY created_ms, id LIMIT 1"
        ((party_id,),) = sql.run(connection, query)
    return Actor(party_id, "operator")


class DemoMarket:
    """One buyer and a dozen sellers that trade while the broker runs; a seed draws their prices and wallets."""

    def __init__(self, broker: Broker, seed: int = 0, pace_seconds: float = 0.6) -> None:
        self._broker = broker
        self._rng = random.Random(seed)
        self._pace = pace_seconds
        self._stop = threading.Event()
        self._keys = 0
        self.tokens: dict[str, str] = {}
        self._buyer, token = self._enter("buyer", "Imaging study")
        self.tokens["buyer"] = token
        self._sellers: list[tuple[Actor, float]] = []
        for name in _SELLERS:
            cap = self._rng.choice([6.0, 12.0, 25.0, 50.0])
            actor, token = self._enter("seller", name, cap_epsilon=cap, delta=1e-5)
            self._sellers.append((actor, self._rng.uniform(0.1, 1.0)))
            self.tokens.setdefault("seller", token)
        budget = _ROUNDS * _BUDGET_MICRO
        broker.deposit(_operator(broker), self._buyer.party_id, budget, self._key(), "money of the demo")
        fields: dict[str, Any] = {
            "title": "Find the fracture",
            "budget_micro": _BUDGET_MICRO,
            "rounds": _ROUNDS,
            "epsilon_max": 2.0,
            "buyer_may_close": True,
            "dispute_seconds": 600,
        }
        self.task_id = str(broker.publish_task(self._buyer, fields, self._key())["id"])

    def _key(self) -> str:
        self._keys += 1
        return f"demo-{self._rng.getrandbits(64):016x}-{self._keys:06d}"

    def _enter(self, role: str, name: str, **wallet: float) -> tuple[Actor, str]:
        made = self._broker.register({"role": role, "name": name, **wallet}, self._key())
        return self._broker.authenticate(made["token"]), str(made["token"])

    def start(self) -> threading.Thread:
        """Trades in the background until `stop`."""
        thread = threading.Thread(target=self._run, name="demo market", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Ends after the step under way."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.trade_one_round()
            except PrivmarketError:  # somebody at the dashboard closed the round first, as the demo invites them to
                self._wait(5)

    def trade_one_round(self) -> str:
        """Opens a round, lets everybody bid, deliver and be paid."""
        broker = self._broker
        rng = self._rng
        round_id = str(broker.open_round(self._buyer, self.task_id, self._key())["id"])
        for seller, taste in rng.sample(self._sellers, len(self._sellers)):
            self._wait(1)
            offer = Offer(taste * rng.uniform(0.8, 1.25), rng.choice([0.25, 0.5, 1.0]), rng.randrange(100, 900))
            try:
                broker.bid(seller, round_id, offer, self._key())
            except PrivmarketError:
                continue  # this wallet is empty
        self._wait(2)
        broker.close_round(self._buyer, round_id, self._key())
        for seller, _ in self._sellers:
            try:
                broker.claim_delivery(seller, round_id, f"{rng.getrandbits(256):064x}", self._key())
            except PrivmarketError:
                continue  # sold nothing
            self._wait(1)
            broker.give_receipts(self._buyer, round_id, {seller.party_id: None}, self._key())
        if broker.round_state(round_id) == "delivered":
            broker.settle_round(self._buyer, round_id, self._key())
        self._wait(4)
        return round_id

    def _wait(self, beats: float) -> None:
        self._stop.wait(self._pace * beats * self._rng.uniform(0.5, 1.5))
