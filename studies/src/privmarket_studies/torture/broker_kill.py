"""Load, kill -9 at a random moment, restart, compare with what was acknowledged; many times over.

Bids are signed, some sealed and revealed; updates are rejected, disputed and ruled on; some travel sealed.

The long form:
`python -m privmarket_studies.torture.broker_kill --kills 50 [--postgres] [--brokers 2 [--pause]] [--seed 1]
[--out FILE]`.
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
from collections.abc import Sequence
from pathlib import Path

import httpx
from sqlalchemy import func, select

from privmarket.broker import _ledger as ledger
from privmarket.broker._bidding import offer_fields
from privmarket.broker._broker import Broker
from privmarket.broker._client import Json
from privmarket.broker._schema import awards, log, rounds
from privmarket.broker._signatures import SigningKey, bid_message, commitment
from privmarket.broker._verify import verify
from privmarket.rounds import Offer
from privmarket_fixtures.broker_process import BrokerProcess, ForkedBroker
from privmarket_fixtures.postgres import postgres
from privmarket_studies.torture.runs import append, broker_code

SELLERS = 8
PAUSE_SECONDS = 13.0  # longer than PostgreSQL lets a transaction stand idle
TERMS: dict[str, object] = {
    "title": "t",
    "budget_micro": 1_000_003,
    "mechanism": "proportional-share",
    "rounds": 100_000,
    "bid_seconds": 3600,
    "delivery_seconds": 3600,
    "buyer_may_close": True,
}
# One task after the other: bids that the broker seals, and bids and updates that travel sealed.
TASKS = (TERMS, {**TERMS, "sealing": "bidder", "reveal_seconds": 5, "delivery": "sealed"})


class Caller:
    """One connection; a request whose answer was lost is sent again under its key until it is answered."""

    def __init__(self, server: BrokerProcess, token: str, failures: list[str]) -> None:
        self.server, self.failures, self.lost, self.answers = server, failures, 0, 0
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(timeout=30)

    def must(self, method: str, path: str, form: object = None) -> Json:
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
            self.answers += 1
            if reply.status_code == 503:  # a database that another broker locks: the same again, as it says
                time.sleep(0.2)
                continue
            if reply.status_code >= 500:
                self.failures.append(f"{method} {path}: {reply.status_code} {reply.text}")
            answer: Json = reply.json()
            return answer
        raise TimeoutError(path)


class HttpSeller:
    """A seller that signs its bids, and seals them where the task asks for that."""

    def __init__(self, caller: Caller, party_id: str, key: SigningKey) -> None:
        self.caller, self.id, self.key = caller, party_id, key
        self.sealed: list[str] = []  # commitments of acknowledged bids
        self.openings: dict[str, Json] = {}
        self.revealed = 0

    def bid(self, round_id: str, bidder_seals: bool, rng: random.Random) -> None:
        """One bid, remembered once it is acknowledged."""
        offer = Offer(rng.random(), rng.choice([0.1, 0.5]))
        fields, nonce = offer_fields(offer), f"{rng.getrandbits(128):032x}"
        committed = commitment(round_id, self.id, fields, nonce)
        form: dict[str, object] = {"signature": self.key.sign(bid_message(round_id, self.id, committed))}
        form |= {"commitment": committed} if bidder_seals else {**fields, "nonce": nonce}
        self.openings[committed] = {**fields, "nonce": nonce}
        if "commitment" in self.caller.must("POST", f"/v1/rounds/{round_id}/bids", form):
            self.sealed.append(committed)

    def reveal(self, round_id: str) -> None:
        """Reveals the sealed bid that this seller has in the round."""
        for bid in self.caller.must("GET", f"/v1/rounds/{round_id}/bids").get("items", []):
            form = self.openings[bid["commitment"]]
            self.revealed += "entry" in self.caller.must("POST", f"/v1/rounds/{round_id}/reveals", form)


class Load:
    """Sellers that bid all at once and a buyer that drives rounds, through every crash."""

    def __init__(self, servers: Sequence[BrokerProcess], seed: int) -> None:
        self.servers, self.rng = servers, random.Random(seed)
        self.stop = threading.Event()
        self.deposited, self.cycles, self.round_id, self.bidder_seals = 0, 0, "", False
        self.disputes, self.pauses = 0, 0
        self.update_keys: dict[tuple[str, str], str] = {}  # acknowledged claims of sealed updates
        self.failures: list[str] = []
        self.operator = self._caller(servers[0].operator_token)
        stranger = self._caller("")
        made = stranger.must("POST", "/v1/register", {"role": "buyer", "name": "lab"})
        self.buyer, self.buyer_id = self._caller(made["token"]), made["id"]
        self.sellers = [self._enter(stranger, i) for i in range(SELLERS)]
        self.deposit(50_000_000)
        assert not self.failures, self.failures
        self.tasks = [self.buyer.must("POST", "/v1/tasks", terms)["id"] for terms in TASKS]

    def _caller(self, token: str, server: int = 0) -> Caller:
        return Caller(self.servers[server], token, self.failures)

    def _enter(self, stranger: Caller, number: int) -> HttpSeller:
        key = SigningKey.generate()
        form = {"role": "seller", "name": f"s{number}", "cap_epsilon": 9_000.0, "delta": 1e-5}
        made = stranger.must("POST", "/v1/register", {**form, "public_key": key.public, "signs": "bids"})
        return HttpSeller(self._caller(made["token"], number % len(self.servers)), made["id"], key)

    def deposit(self, amount: int) -> None:
        """Gives the buyer money and remembers that it was acknowledged."""
        answer = self.operator.must("POST", f"/v1/parties/{self.buyer_id}/deposits", {"amount_micro": amount})
        if "balance_micro" in answer:
            self.deposited += amount
        else:
            self.failures.append(f"a deposit was refused: {answer}")

    def sell(self, seller: HttpSeller) -> None:
        """Lets a seller bid as often as it can, until the load ends."""
        rng = random.Random(seller.id)
        while not self.stop.is_set():
            seller.bid(self.round_id, self.bidder_seals, rng)

    def buy(self) -> None:
        """The buyer drives rounds from opening to settlement; the first seller's updates are always rejected."""
        while not self.stop.is_set():
            self.open()
            time.sleep(0.25)
            path = f"/v1/rounds/{self.round_id}"
            self.buyer.must("POST", f"{path}/close")
            if self.bidder_seals:
                for seller in self.sellers:
                    seller.reveal(self.round_id)
                self.buyer.must("POST", f"{path}/close")
            for number, seller in enumerate(self.sellers):
                self._deliver(path, seller, rejected=number == 0)
            self.buyer.must("POST", f"{path}/settle")
            self.deposit(1_000)
            self.cycles += 1

    def open(self) -> None:
        """Opens the next round, of the tasks in turn."""
        number = self.cycles % len(self.tasks)
        opened = self.buyer.must("POST", f"/v1/tasks/{self.tasks[number]}/rounds")
        if "id" in opened:
            self.bidder_seals, self.round_id = TASKS[number].get("sealing") == "bidder", opened["id"]

    def _deliver(self, path: str, seller: HttpSeller, rejected: bool) -> None:
        claim = {"update_sha256": "ab" * 32}
        if self.bidder_seals:
            claim["key"] = f"{self.rng.getrandbits(256):064x}"
        if "update_sha256" not in seller.caller.must("POST", f"{path}/delivery", claim):
            return  # it sold nothing
        if "key" in claim:
            self.update_keys[self.round_id, seller.id] = claim["key"]
        self.buyer.must("POST", f"{path}/receipts", {"receipts": {seller.id: "too small" if rejected else None}})
        if rejected and "seller_id" in seller.caller.must("POST", f"{path}/disputes", {"reason": "it is not"}):
            form = {"seller_id": seller.id, "pays": self.rng.random() < 0.5, "reason": "looked"}
            self.disputes += "pays" in self.operator.must("POST", f"{path}/rulings", form)

    def run(self, kills: int, pause: bool = False) -> None:
        """Trades while servers are killed and restarted `kills` times, one after the other where there are two.

        With `pause` the second server stands still for a while before each kill. On SQLite it may hold the lock of
        the file then, which nobody can take from it: pause servers on PostgreSQL only.
        """
        threads = [threading.Thread(target=self.buy)]
        threads += [threading.Thread(target=self.sell, args=(seller,)) for seller in self.sellers]
        self.open()
        assert self.round_id, "no round could be opened"
        for thread in threads:
            thread.start()
        try:
            for number in range(kills):
                time.sleep(self.rng.uniform(0.05, 1.5))
                if pause:
                    self._pause(self.servers[1])
                server = self.servers[number % len(self.servers)]
                server.kill()
                server.start()
        finally:
            time.sleep(0.5)
            self.stop.set()
            for thread in threads:
                thread.join()

    def _pause(self, server: BrokerProcess) -> None:
        """One broker stands still for a while; the other must go on taking bids."""
        server.pause()
        time.sleep(PAUSE_SECONDS - 3)  # by now its transaction, if it had one, has been ended
        before = self._taken_elsewhere(server)
        time.sleep(3)
        after = self._taken_elsewhere(server)
        server.resume()
        self.pauses += 1
        if after == before:
            self.failures.append("a paused broker stopped the other one")

    def _taken_elsewhere(self, server: BrokerProcess) -> int:
        return sum(seller.caller.answers for seller in self.sellers if seller.caller.server is not server)


def check(load: Load, database: str) -> dict[str, int]:
    """Checks that nothing acknowledged was lost and nothing was done twice; returns what was counted."""
    assert load.failures == [], load.failures[:3]
    acknowledged = [sealed for seller in load.sellers for sealed in seller.sealed]
    assert len(acknowledged) == len(set(acknowledged)), "two bids were answered as one"
    broker = Broker(database)
    with broker.database.read() as connection:
        placed = connection.execute(select(log.c.details).where(log.c.kind == "bid.placed")).scalars()
        stored = [json.loads(details)["commitment"] for details in placed]
        paid = select(awards.c.round_id, awards.c.seller_id, awards.c.key).where(awards.c.paid_micro > 0)
        keys = {(row[0], row[1]): row[2] for row in connection.execute(paid)}
        totals = ledger.totals(connection)
        ended = connection.execute(select(rounds.c.id).where(rounds.c.state == "settled")).all()
        ends = log.c.kind.in_(["round.settled", "round.aborted"])
        twice = select(log.c.subject).where(ends).group_by(log.c.subject).having(func.count() > 1)
        assert connection.execute(twice).first() is None, "a round was paid out twice"
    assert len(stored) == len(set(stored)), "a bid was taken twice"
    assert set(acknowledged) <= set(stored), "an acknowledged bid is lost"
    opened = [keys[place] == key for place, key in load.update_keys.items() if place in keys]
    assert all(opened), "the key of a paid update is lost"
    assert totals["deposited_micro"] == load.deposited == totals["escrow_micro"] + totals["balances_micro"]
    verdict = verify(broker)
    broker.database.close()
    assert verdict.difference is None, verdict.difference
    return {
        "acknowledged bids": len(acknowledged),
        "settled rounds": len(ended),
        "reveals": sum(seller.revealed for seller in load.sellers),
        "disputes": load.disputes,
        "sealed updates opened": len(opened),
        "pauses": load.pauses,
        "broken or refused connections": load.buyer.lost + sum(seller.caller.lost for seller in load.sellers),
        "log entries": verdict.entries,
    }


def run(
    database: str, folder: Path, kills: int, seed: int, brokers: int = 1, pause: bool = False
) -> dict[str, int]:
    """The whole test on one database, with one broker or two."""
    servers = [ForkedBroker(database, folder / f"server-{number}.log") for number in range(brokers)]
    try:
        for server in servers:
            server.operator_token = servers[0].operator_token
            server.start()
        load = Load(servers, seed)
        load.run(kills, pause)
    finally:
        for server in servers:
            server.kill()
    return check(load, database)


def main() -> None:
    """The long form, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--brokers", type=int, default=1, help="how many serve the database, killed in turn")
    parser.add_argument("--pause", action="store_true", help="pause the second before each kill (PostgreSQL)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        database = stack.enter_context(postgres()) if options.postgres else f"sqlite:///{folder}/market.db"
        figures = run(database, folder, options.kills, options.seed, options.brokers, options.pause)
    kind = "PostgreSQL" if options.postgres else "SQLite"
    print(f"{kind}: {options.kills} kills, seed {options.seed}, {figures}: nothing lost, nothing twice")
    if options.out:
        command = f"python -m privmarket_studies.torture.broker_kill --kills {options.kills} --seed {options.seed}"
        command += " --postgres" if options.postgres else ""
        command += f" --brokers {options.brokers}" if options.brokers > 1 else ""
        command += " --pause" if options.pause else ""
        result = {
            "command": command,
            "code": broker_code(),
            "database": kind,
            "brokers": options.brokers,
            "kills": options.kills,
            "sellers": SELLERS,
            **figures,
        }
        append(options.out, {**result, "verdict": "nothing lost, nothing twice"})


if __name__ == "__main__":
    main()
