"""Load, kill -9 at a random moment, restart, compare with what was acknowledged. Again and again.

The long form: `python -m privmarket_studies.torture.broker_kill --kills 50 [--postgres] [--seed 1] [--out FILE]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from privmarket.broker import ledger
from privmarket.broker.broker import Broker
from privmarket.broker.schema import log, rounds
from privmarket.broker.verify import verify
from privmarket_studies.torture.broker_process import BrokerProcess
from privmarket_studies.torture.postgres import postgres

SELLERS = 8
TERMS = {"mechanism": "proportional-share", "rounds": 100_000, "bid_seconds": 3600, "delivery_seconds": 3600}
TERMS |= {"buyer_may_close": True}


class Caller:
    """One connection; a request whose answer was lost is sent again under its key until it is answered."""

    def __init__(self, server: BrokerProcess, token: str, failures: list[str]) -> None:
        self.server, self.failures, self.lost = server, failures, 0
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(timeout=30)

    def must(self, method: str, path: str, form: Any = None) -> dict[str, Any]:
        """The answer to a request, however often the server dies meanwhile."""
        headers = {**self.headers, "Idempotency-Key": str(uuid.uuid4())}
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            try:
                reply = self.http.request(method, self.server.url + path, json=form, headers=headers)
            except httpx.TransportError:
                self.lost += 1
                time.sleep(0.1)
                continue
            if reply.status_code >= 500:
                self.failures.append(f"{method} {path}: {reply.status_code} {reply.text}")
            answer: dict[str, Any] = reply.json()
            return answer
        raise TimeoutError(path)


class Load:
    """Sellers that bid all at once and a buyer that drives rounds, through every crash."""

    def __init__(self, server: BrokerProcess, seed: int) -> None:
        self.server, self.rng = server, random.Random(seed)
        self.stop = threading.Event()
        self.sealed: dict[str, list[str]] = {}
        self.deposited, self.cycles, self.round_id = 0, 0, ""
        self.failures: list[str] = []
        self.operator = self._caller(server.operator_token)
        stranger = self._caller("")
        made = stranger.must("POST", "/v1/register", {"role": "buyer", "name": "lab"})
        self.buyer, self.buyer_id = self._caller(made["token"]), made["id"]
        wallet = {"cap_epsilon": 9_000.0, "delta": 1e-5}
        self.sellers: dict[str, Caller] = {}
        for i in range(SELLERS):
            made = stranger.must("POST", "/v1/register", {"role": "seller", "name": f"s{i}", **wallet})
            self.sellers[made["id"]] = self._caller(made["token"])
        self.deposit(50_000_000)
        assert not self.failures, self.failures
        task = self.buyer.must("POST", "/v1/tasks", {"title": "t", "budget_micro": 1_000_003, **TERMS})
        self.task_id = task["id"]

    def _caller(self, token: str) -> Caller:
        return Caller(self.server, token, self.failures)

    def deposit(self, amount: int) -> None:
        """Gives the buyer money and remembers that it was acknowledged."""
        answer = self.operator.must("POST", f"/v1/parties/{self.buyer_id}/deposits", {"amount_micro": amount})
        if "balance_micro" in answer:
            self.deposited += amount
        else:
            self.failures.append(f"a deposit was refused: {answer}")

    def sell(self, seller: str) -> None:
        """A seller bids as often as it can."""
        rng, mine = random.Random(seller), self.sealed.setdefault(seller, [])
        while not self.stop.is_set():
            form = {"valuation": rng.random(), "epsilon": rng.choice([0.1, 0.5])}
            answer = self.sellers[seller].must("POST", f"/v1/rounds/{self.round_id}/bids", form)
            if "commitment" in answer:
                mine.append(answer["commitment"])

    def buy(self) -> None:
        """The buyer drives rounds from opening to settlement."""
        while not self.stop.is_set():
            opened = self.buyer.must("POST", f"/v1/tasks/{self.task_id}/rounds")
            self.round_id = opened.get("id", self.round_id)
            time.sleep(0.25)
            path = f"/v1/rounds/{self.round_id}"
            self.buyer.must("POST", f"{path}/close")
            for seller, caller in self.sellers.items():
                claim = {"update_sha256": "ab" * 32}
                if "update_sha256" in caller.must("POST", f"{path}/delivery", claim):
                    self.buyer.must("POST", f"{path}/receipts", {"receipts": {seller: None}})
            self.buyer.must("POST", f"{path}/settle")
            self.deposit(1_000)
            self.cycles += 1

    def run(self, kills: int) -> None:
        """Trades while the server is killed and restarted `kills` times."""
        threads = [threading.Thread(target=self.buy)]
        threads += [threading.Thread(target=self.sell, args=(seller,)) for seller in self.sellers]
        opened = self.buyer.must("POST", f"/v1/tasks/{self.task_id}/rounds")
        assert "id" in opened, opened
        self.round_id = opened["id"]
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
    acknowledged = [sealed for mine in load.sealed.values() for sealed in mine]
    assert len(acknowledged) == len(set(acknowledged)), "two bids were answered as one"
    broker = Broker(database)
    with broker.database.read() as connection:
        placed = connection.execute(select(log.c.details).where(log.c.kind == "bid.placed")).scalars()
        stored = [json.loads(details)["commitment"] for details in placed]
        totals = ledger.totals(connection)
        ended = connection.execute(select(rounds.c.id).where(rounds.c.state == "settled")).all()
        ends = log.c.kind.in_(["round.settled", "round.aborted"])
        twice = select(log.c.subject).where(ends).group_by(log.c.subject).having(func.count() > 1)
        assert connection.execute(twice).first() is None, "a round was paid out twice"
    assert len(stored) == len(set(stored)), "a bid was taken twice"
    assert set(acknowledged) <= set(stored), "an acknowledged bid is lost"
    assert totals["deposited_micro"] == load.deposited == totals["escrow_micro"] + totals["balances_micro"]
    verdict = verify(broker)
    broker.database.close()
    assert verdict.difference is None, verdict.difference
    return {
        "acknowledged bids": len(acknowledged),
        "settled rounds": len(ended),
        "broken or refused connections": sum(caller.lost for caller in [load.buyer, *load.sellers.values()]),
        "log entries": verdict.entries,
    }


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


def append(path: Path, result: dict[str, Any]) -> None:
    """Adds one run to a JSON list of runs, so that a long test can be done in pieces."""
    runs = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*runs, result], indent=1) + "\n")


def main() -> None:
    """The long form, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        database = stack.enter_context(postgres()) if options.postgres else f"sqlite:///{folder}/market.db"
        figures = run(database, folder, options.kills, options.seed)
    kind = "PostgreSQL" if options.postgres else "SQLite"
    print(f"{kind}: {options.kills} kills, seed {options.seed}, {figures}: nothing lost, nothing twice")
    if options.out:
        command = f"python -m privmarket_studies.torture.broker_kill --kills {options.kills} --seed {options.seed}"
        command += " --postgres" if options.postgres else ""
        result = {"command": command, "database": kind, "kills": options.kills, "sellers": SELLERS, **figures}
        append(options.out, {**result, "verdict": "nothing lost, nothing twice"})


if __name__ == "__main__":
    main()
