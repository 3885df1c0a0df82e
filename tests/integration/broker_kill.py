"""Load, kill -9 at a random moment, restart, compare with what was acknowledged. Again and again.

The long form: `python -m tests.integration.broker_kill --kills 50 [--postgres] [--seed 1]`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from privmarket.broker import ledger
from privmarket.broker.broker import Broker
from privmarket.broker.schema import bids, rounds
from privmarket.broker.verify import verify
from tests.integration.broker_process import BrokerProcess, postgres

SELLERS = 4
TERMS = {"mechanism": "proportional-share", "rounds": 100_000, "bid_seconds": 3600, "delivery_seconds": 3600}


class Load:
    """Sellers and a buyer that keep trading; a request whose answer was lost is sent again under its key."""

    def __init__(self, server: BrokerProcess, seed: int) -> None:
        self.server, self.rng = server, random.Random(seed)
        self.stop = threading.Event()
        self.sealed: set[str] = set()
        self.deposited = 0
        self.round_id = ""
        self.cycles = 0
        self.failures: list[str] = []
        self.operator = server.operator_token
        made = self.must("", "POST", "/v1/register", {"role": "buyer", "name": "lab"})
        self.buyer, self.buyer_id = made["token"], made["id"]
        wallet = {"cap_epsilon": 9_000.0, "delta": 1e-5}
        self.sellers = {
            answer["id"]: answer["token"]
            for i in range(SELLERS)
            for answer in [self.must("", "POST", "/v1/register", {"role": "seller", "name": f"s{i}", **wallet})]
        }
        self.deposit(50_000_000)
        task = self.must(self.buyer, "POST", "/v1/tasks", {"title": "t", "budget_micro": 1_000_003, **TERMS})
        self.task_id = task["id"]

    def must(self, token: str, method: str, path: str, form: Any = None) -> dict[str, Any]:
        """One write under one key, repeated through crashes until it is answered."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                reply = httpx.request(method, self.server.url + path, json=form, headers=headers, timeout=30)
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            if reply.status_code >= 500:
                self.failures.append(f"{method} {path}: {reply.status_code} {reply.text}")
            answer: dict[str, Any] = reply.json()
            return answer
        raise TimeoutError(path)

    def deposit(self, amount: int) -> None:
        path = f"/v1/parties/{self.buyer_id}/deposits"
        if "balance_micro" in self.must(self.operator, "POST", path, {"amount_micro": amount}):
            self.deposited += amount

    def sell(self, seller: str) -> None:
        """A seller bids as often as it can."""
        rng = random.Random(seller)
        while not self.stop.is_set():
            form = {"valuation": rng.random(), "epsilon": rng.choice([0.1, 0.5])}
            answer = self.must(self.sellers[seller], "POST", f"/v1/rounds/{self.round_id}/bids", form)
            if "commitment" in answer:
                self.sealed.add(answer["commitment"])

    def buy(self) -> None:
        """The buyer drives rounds from opening to settlement."""
        while not self.stop.is_set():
            opened = self.must(self.buyer, "POST", f"/v1/tasks/{self.task_id}/rounds")
            self.round_id = opened.get("id", self.round_id)
            time.sleep(0.05)
            path = f"/v1/rounds/{self.round_id}"
            self.must(self.buyer, "POST", f"{path}/close")
            for seller in self.sellers:
                self.must(self.buyer, "POST", f"{path}/receipts", {"receipts": {seller: None}})
            self.must(self.buyer, "POST", f"{path}/settle")
            self.deposit(1_000)
            self.cycles += 1

    def run(self, kills: int) -> None:
        """Trades while the server is killed and restarted `kills` times."""
        threads = [threading.Thread(target=self.buy)]
        threads += [threading.Thread(target=self.sell, args=(seller,)) for seller in self.sellers]
        self.round_id = self.must(self.buyer, "POST", f"/v1/tasks/{self.task_id}/rounds")["id"]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                time.sleep(self.rng.uniform(0.05, 1.5))
                self.server.kill()
                self.server.start()
        finally:
            time.sleep(0.5)
            self.stop.set()
            for thread in threads:
                thread.join()


def check(load: Load, database: str) -> dict[str, int]:
    """Nothing lost, nothing twice."""
    assert load.failures == [], load.failures[:3]
    broker = Broker(database)
    with broker.database.read() as connection:
        stored = set(connection.execute(select(bids.c.commitment)).scalars())
        totals = ledger.totals(connection)
        ended = connection.execute(select(rounds.c.id).where(rounds.c.state == "settled")).all()
    assert load.sealed <= stored, "an acknowledged bid is lost"
    assert totals["deposited_micro"] == load.deposited == totals["escrow_micro"] + totals["balances_micro"]
    verdict = verify(broker)
    broker.database.close()
    assert verdict.difference is None, verdict.difference
    return {"bids": len(load.sealed), "settled rounds": len(ended), "log entries": verdict.entries}


def run(database: str, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """The whole test on one database."""
    server = BrokerProcess(database, folder / "server.log")
    try:
        server.start()
        load = Load(server, seed)
        load.run(kills)
    finally:
        server.kill()
    return check(load, database)


def main() -> None:
    """The long form, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        database = stack.enter_context(postgres(folder)) if options.postgres else f"sqlite:///{folder}/market.db"
        figures = run(database, folder, options.kills, options.seed)
    kind = "PostgreSQL" if options.postgres else "SQLite"
    print(f"{kind}: {options.kills} kills, seed {options.seed}, {figures}: nothing lost, nothing twice")


if __name__ == "__main__":
    main()
