"""A seeded market under crashes, retries, duplicates, reordering and clock jumps, on the broker's own code.

Run thousands of rounds with
`python -m privmarket_studies.torture.broker_simulation --rounds 2000 --seed 1 [--postgres]`; a failing seed replays
exactly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from sqlalchemy import event, select

from privmarket.broker import _sql as sql
from privmarket.broker._bidding import BidRequest, offer_fields
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._parties import Actor
from privmarket.broker._schema import awards, log
from privmarket.broker._signatures import SigningKey, bid_message, commitment, dataset_message
from privmarket.broker._sql import BEFORE_STATEMENT
from privmarket.broker._verify import verify
from privmarket.errors import PrivmarketError
from privmarket.market._bids import Bids
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms import mechanism
from privmarket.mechanisms._proportional_share import ProportionalShare
from privmarket.rounds import Offer
from privmarket_fixtures.postgres import new_database, postgres
from privmarket_studies.torture.runs import append, broker_code

SELLERS, BUYERS = 6, 2
KEYED = 3  # sellers that sign; only they may bid where bidders seal
ROUNDS_PER_MARKET = 50
# A row means that something is wrong.
FAULTS = {
    "ledger: a transfer does not sum to zero": (
        "SELECT 1 FROM postings GROUP BY seq HAVING sum(amount_micro) <> 0 LIMIT 1"
    ),
    "ledger: an account is overdrawn": (
        "SELECT 1 FROM postings WHERE account <> 'world' GROUP BY account HAVING sum(amount_micro) < 0 LIMIT 1"
    ),
    "escrow is not the budget of the rounds under way": (
        "SELECT 1 WHERE "
        "(SELECT coalesce(sum(amount_micro), 0) FROM postings WHERE substr(account, 1, 7) = 'escrow:') <> "
        "(SELECT coalesce(sum(budget_micro), 0) FROM rounds WHERE state NOT IN ('settled', 'aborted'))"
    ),
    "a round was paid out twice": (
        "SELECT 1 FROM log WHERE kind IN ('round.settled', 'round.aborted') "
        "GROUP BY subject HAVING count(*) > 1 LIMIT 1"
    ),
}
DEPOSITED = "SELECT -coalesce(sum(amount_micro), 0) FROM postings WHERE account = 'world'"


def memory_folder() -> str | None:
    """A folder in memory: a simulated crash ends a process, not the power, so flushing a disk adds nothing."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Crash(BaseException):
    """The process dies here: whatever was not committed is gone, and no answer is sent."""


Answer = Mapping[str, object]  # what a request was told


class InvariantError(AssertionError):
    """A rule that must always hold in the market was broken."""


@dataclass
class SimulatedRequest:
    """A write that a client keeps sending, under one key, until it hears back."""

    key: str
    send: Callable[[Broker, str], Answer]
    note: Callable[[Answer], None] = lambda answer: None
    answer: Answer | None = None


class Underpays(ProportionalShare):
    """Pays whole units only, so that somebody gets less than its cost, and still promises not to."""

    def run(self, bids: Bids, budget: ArrayLike) -> Outcome:
        """What proportional share buys, with payments rounded down too far."""
        outcome = super().run(bids, budget)
        return Outcome(outcome.epsilon.copy(), np.floor(outcome.payment))


def make(name: str, market: MarketFacts | None = None, **settings: object) -> Mechanism:
    """The usual registry, and one rule that breaks the promises it declares."""
    return Underpays() if name == "broken" else mechanism(name, market=market, **settings)


class Simulation:
    """A simulated market: a broker on a database, its parties, and the record of what must hold."""

    def __init__(self, database: Path | str, seed: int) -> None:
        """`database`: a file for SQLite, or the address of an empty database."""
        self.rng = random.Random(seed)
        self.url = database if isinstance(database, str) else f"sqlite:///{database}"
        self.clock_ms = 1_700_000_000_000
        self.fuse: int | None = None
        self.keys = 0
        self.opened = 0
        self.crashes = 0
        self.deposited = 0
        self.sealed: set[str] = set()
        self.lost: list[SimulatedRequest] = []
        self.heard: list[SimulatedRequest] = []
        self.broker = self._start()
        self._populate()

    def _start(self) -> Broker:
        broker = Broker(
            self.url,
            clock=lambda: self.clock_ms,
            entropy=self.rng.randbytes,
            make_mechanism=make,
            key=SigningKey.from_seed(b"\x07" * 32),
        )
        event.listen(broker.database.engine, "before_cursor_execute", self._burn)
        broker.database.engine.update_execution_options(**{BEFORE_STATEMENT: self._burn})
        return broker

    def _burn(self, *_: object) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Crash

    def _key(self) -> str:
        self.keys += 1
        return f"request-{self.keys:08d}"

    def _populate(self) -> None:
        b = self.broker
        self.operator = b.authenticate(b.first_operator() or "")

        def enter(role: str, **wallet: object) -> Actor:
            return b.authenticate(b.register({"role": role, "name": role, **wallet}, self._key())["token"])

        self.buyers = [enter("buyer") for _ in range(BUYERS)]
        caps = [0.8, 3.0, 3.0, 8.0, 20.0, 50.0]
        self.signing = [SigningKey.from_seed(self.rng.randbytes(32)) for _ in range(KEYED)]
        self.sellers = []
        for i in range(SELLERS):
            key = self.signing[i].public if i < KEYED else None
            wallet = {"cap_epsilon": caps[i % 6], "delta": (1e-5, 1e-6)[i % 2], "public_key": key}
            wallet["signs"] = None if key is None else "bids"
            self.sellers.append(enter("seller", **wallet))
        self.openings: dict[tuple[str, str], tuple[Offer, str]] = {}
        self.tasks = []
        self.update_keys: dict[tuple[str, str], str] = {}  # acknowledged claims of sealed updates
        seller, digest = self.sellers[0].party_id, "da" * 32
        b.attest(self.sellers[0], digest, self.signing[0].sign(dataset_message(seller, digest)), self._key())
        names = ("proportional-share", "pac", "csra", "broken", "proportional-share", "proportional-share")
        for buyer in self.buyers:  # publishing needs the money of each task's first round
            amount = 1_000_003 * len(names)
            b.deposit(self.operator, buyer.party_id, amount, self._key())
            self.deposited += amount
        for i, rule in enumerate(names):
            fields: dict[str, object] = {
                "title": rule,
                "sealing": "bidder" if i == 4 else "broker",
                "delivery": "sealed" if i in (2, 4, 5) else "open",
                "buyer_may_close": i % 2 == 0,
                "mechanism": rule,
                "settings": {},
                "budget_micro": 1_000_003,
                "rounds": 100_000,
            }
            release = {"epsilon_max": 2.0, "sampling_rate": 1.0, "steps": 1, "delta": 1e-5}
            times = {"bid_seconds": 60, "reveal_seconds": 40, "delivery_seconds": 60}
            times |= {"review_seconds": 30, "dispute_seconds": 30, "ruling_seconds": 30}
            buyer = self.buyers[i % BUYERS]
            self.tasks.append((buyer, b.publish_task(buyer, {**fields, **release, **times}, self._key())["id"]))

    # ---- what people do ---------------------------------------------------------------------------------

    def _some(self, column: str, where: str, *values: object) -> str:
        """One of those that there are, by a condition in SQL."""
        table = "rounds" if column == "id" else "awards"
        query = f"SELECT {column} FROM {table} WHERE {where} ORDER BY {column}"
        with self.broker.database.read() as connection:
            found = sql.run(connection, query, *values)
        return str(self.rng.choice(found)[0]) if found else "round-none"

    def request(self) -> SimulatedRequest:
        """The next request of some party; many of them are refused, as with real users."""
        verb = self.rng.choices(
            [
                "deposit",
                "withdraw",
                "open",
                "bid",
                "group",
                "close",
                "reveal",
                "claim",
                "receipt",
                "dispute",
                "rule",
                "settle",
                "abort",
                "show",
                "progress",
            ],
            [4, 1, 8, 26, 4, 8, 12, 12, 16, 5, 3, 8, 1, 2, 1],
        )[0]
        request: SimulatedRequest = getattr(self, f"_{verb}")()
        return request

    def _deposit(self) -> SimulatedRequest:
        buyer, amount = self.rng.choice(self.buyers), self.rng.randrange(1, 20_000_000)

        def note(answer: Answer) -> None:
            self.deposited += amount

        return SimulatedRequest(self._key(), lambda b, k: b.deposit(self.operator, buyer.party_id, amount, k), note)

    def _withdraw(self) -> SimulatedRequest:
        seller, amount = self.rng.choice(self.sellers), self.rng.randrange(1, 900_000)

        def note(answer: Answer) -> None:
            self.deposited -= amount

        return SimulatedRequest(
            self._key(), lambda b, k: b.withdraw(self.operator, seller.party_id, amount, k), note
        )

    def _open(self) -> SimulatedRequest:
        buyer, task = self.rng.choice(self.tasks)

        def note(answer: Answer) -> None:
            self.opened += 1

        return SimulatedRequest(self._key(), lambda b, k: b.open_round(buyer, task, k), note)

    def _bid(self) -> SimulatedRequest:
        part = self._bid_request()

        def note(answer: Answer) -> None:
            self.sealed.add(str(answer["commitment"]))

        def send(broker: Broker, key: str) -> Answer:
            (answer,) = broker.take_bids([part._replace(key=key)])
            if isinstance(answer, PrivmarketError):
                raise answer
            return answer

        return SimulatedRequest(self._key(), send, note)

    def _group(self) -> SimulatedRequest:
        """Several bids in one transaction, some of them bad, some twice; committed and lost together."""
        parts = [self._bid_request() for _ in range(self.rng.randrange(2, 6))]
        parts += [self.rng.choice(parts)] * self.rng.randrange(2)

        def send(broker: Broker, _: str) -> Answer:
            told = zip(parts, broker.take_bids(parts), strict=True)
            return {part.key: result for part, result in told if not isinstance(result, PrivmarketError)}

        def note(answer: Answer) -> None:
            for one in answer.values():
                assert isinstance(one, Mapping)
                self.sealed.add(one["commitment"])

        return SimulatedRequest(self._key(), send, note)

    def _bid_request(self) -> BidRequest:
        round_id = self._some("id", "state = 'open'")
        odd = self.rng.random() < 0.15
        v = self.rng.choice([float("nan"), -1.0, -0.0, 1e300, float("inf")]) if odd else self.rng.random()
        offer = Offer(v, self.rng.choice([0.1, 0.5, 1.0, 1.7]))
        number = self.rng.randrange(SELLERS)
        seller, key, nonce = self.sellers[number], self._key(), self.rng.randbytes(16).hex()
        plain = BidRequest(round_id, offer, key, seller)
        if number >= KEYED or not -1 < v < 1e12:
            return plain
        committed = commitment(round_id, seller.party_id, offer_fields(offer), nonce)
        signature = self.signing[number].sign(bid_message(round_id, seller.party_id, committed))
        if self.rng.random() < 0.05:
            signature = "00" * 64
        if self._of_task(round_id, "sealing") == "bidder":
            self.openings[round_id, committed] = (offer, nonce)
            return plain._replace(offer=None, commitment=committed, signature=signature)
        return plain._replace(nonce=nonce, signature=signature)

    def _of_task(self, round_id: str, column: str) -> str | None:
        query = f"SELECT t.{column} FROM tasks t JOIN rounds r ON r.task_id = t.id WHERE r.id = ?"
        with self.broker.database.read() as connection:
            found = sql.run(connection, query, round_id)
        return str(found[0][0]) if found else None

    def _reveal(self) -> SimulatedRequest:
        round_id = self._some("id", "state = 'revealing'")
        seller = self.sellers[self.rng.randrange(KEYED)]
        with self.broker.database.read() as connection:
            query = "SELECT commitment FROM bids WHERE round_id = ? AND seller_id = ?"
            committed = [str(row[0]) for row in sql.run(connection, query, round_id, seller.party_id)] or [""]
        offer, nonce = self.openings.get((round_id, committed[0]), (Offer(0.5, 0.5), "00" * 16))
        return SimulatedRequest(self._key(), lambda b, k: b.reveal(seller, round_id, offer, nonce, k))

    def _dispute(self) -> SimulatedRequest:
        round_id = self._some("round_id", "usable = FALSE AND dispute IS NULL")
        seller = self.rng.choice(self.sellers)
        return SimulatedRequest(self._key(), lambda b, k: b.dispute(seller, round_id, "it is not", k))

    def _rule(self) -> SimulatedRequest:
        round_id = self._some("round_id", "dispute IS NOT NULL AND ruling IS NULL")
        seller, pays = self.rng.choice(self.sellers).party_id, self.rng.random() < 0.5
        return SimulatedRequest(
            self._key(), lambda b, k: b.rule(self.operator, round_id, seller, pays, "looked", k)
        )

    def _close(self) -> SimulatedRequest:
        buyer, round_id = self.rng.choice(self.buyers), self._some("id", "state = 'open'")
        return SimulatedRequest(self._key(), lambda b, k: b.close_round(buyer, round_id, k))

    def _claim(self) -> SimulatedRequest:
        seller, round_id = self.rng.choice(self.sellers), self._some("id", "state = 'cleared'")
        sealed = (self._of_task(round_id, "delivery") == "sealed") != (self.rng.random() < 0.05)
        opening = self.rng.randbytes(32).hex() if sealed else None

        def note(answer: Answer) -> None:
            if opening is not None:
                self.update_keys[round_id, seller.party_id] = opening

        def send(broker: Broker, key: str) -> Answer:
            return broker.claim_delivery(seller, round_id, "ab" * 32, key, update_key=opening)

        return SimulatedRequest(self._key(), send, note)

    def _show(self) -> SimulatedRequest:
        disputed = "dispute IS NOT NULL AND ruling IS NULL AND key_sha256 IS NOT NULL"
        round_id = self._some("round_id", disputed)
        seller = self._some("seller_id", f"round_id = ? AND {disputed}", round_id)
        return SimulatedRequest(self._key(), lambda b, k: b.show_key(self.operator, round_id, seller, k))

    def _progress(self) -> SimulatedRequest:
        round_id, accuracy = self._some("id", "state = 'settled'"), self.rng.random()
        buyer = self.rng.choice(self.buyers)
        return SimulatedRequest(self._key(), lambda b, k: b.report_progress(buyer, round_id, accuracy, k))

    def _receipt(self) -> SimulatedRequest:
        round_id = self._some("id", "state = 'cleared'")
        seller = self._some("seller_id", "round_id = ? AND usable IS NULL", round_id)
        buyer, fault = self.rng.choice(self.buyers), self.rng.choice([None, None, None, "wrong shape"])
        return SimulatedRequest(self._key(), lambda b, k: b.give_receipts(buyer, round_id, {seller: fault}, k))

    def _settle(self) -> SimulatedRequest:
        round_id = self._some("id", "state IN ('cleared', 'delivered')")
        buyer = self.rng.choice(self.buyers)
        return SimulatedRequest(self._key(), lambda b, k: b.settle_round(buyer, round_id, k))

    def _abort(self) -> SimulatedRequest:
        round_id = self._some("id", "state <> 'settled'")
        return SimulatedRequest(self._key(), lambda b, k: b.abort_round(self.operator, round_id, "halt", k))

    # ---- what happens to it -----------------------------------------------------------------------------

    def step(self) -> None:
        """Sends one request, new or repeated; the process may crash during it, or the clock may jump."""
        self.clock_ms += self.rng.choice([0, 5, 500, 500, 20_000, 70_000 if self.rng.random() < 0.1 else 0])
        if self.rng.random() < 0.02:
            self.clock_ms += self.rng.randrange(-3_600_000, 3_600_000)
        luck = self.rng.random()
        if luck < 0.1 and self.heard:
            self._send(self.rng.choice(self.heard))
        elif luck < 0.25 and self.lost:
            self._send(self.lost.pop(self.rng.randrange(len(self.lost))))
        elif luck < 0.33:
            self._tick()
        else:
            self._send(self.request())
        self.check()

    def _send(self, request: SimulatedRequest) -> None:
        if self.rng.random() < 0.2:
            self.fuse = self.rng.randrange(20)
        deaf = self.rng.random() < 0.05  # committed, but the process dies before the answer leaves
        try:
            answer = request.send(self.broker, request.key)
            if deaf:
                raise Crash
        except Crash:
            if request.answer is None:
                self.lost.append(request)
            self._restart()
            return
        except PrivmarketError:
            return
        finally:
            self.fuse = None
        # What was refused may be taken later; what was answered stays answered.
        if request.answer is not None and any(answer.get(name) != said for name, said in request.answer.items()):
            raise InvariantError(f"{request.key}: a repeat was answered differently")
        if request.answer is None:
            request.answer = answer
            request.note(answer)
            self.heard.append(request)

    def _tick(self) -> None:
        self.fuse = self.rng.randrange(40) if self.rng.random() < 0.2 else None
        try:
            self.broker.tick()
        except Crash:
            self._restart()
        self.fuse = None

    def _restart(self) -> None:
        self.fuse = None
        self.crashes += 1
        self.broker.database.close()
        self.broker = self._start()

    # ---- what must hold ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Cheap invariants, after every step; in plain SQL, so that the broker's own sums are not asked."""
        with self.broker.database.read() as connection:
            for fault, query in FAULTS.items():
                if sql.run(connection, query):
                    raise InvariantError(fault)
            ((kept,),) = sql.run(connection, DEPOSITED)
            if not self.lost and kept != self.deposited:
                raise InvariantError(f"ledger: {kept} µ deposited, {self.deposited} µ acknowledged")

    def check_all(self) -> None:
        """The full replay, and that no acknowledged bid or key is missing."""
        with self.broker.database.read() as connection:
            placed = connection.execute(select(log.c.details).where(log.c.kind == "bid.placed")).scalars()
            stored = {json.loads(details)["commitment"] for details in placed}
            paid = select(awards.c.round_id, awards.c.seller_id, awards.c.key).where(awards.c.paid_micro > 0)
            opened = {(row[0], row[1]): row[2] for row in connection.execute(paid)}
        if self.sealed - stored:
            raise InvariantError("an acknowledged bid is lost")
        if any(opened.get(place, key) != key for place, key in self.update_keys.items()):
            raise InvariantError("the key of a paid update is lost")
        # As `broker verify` opens it: PostgreSQL ends others' transactions that stand idle, as on a busy machine.
        reader = Database(self.url, read_only=True, key=self.broker.database.key)
        verdict = verify(Broker(reader, make_mechanism=make))
        reader.close()
        if verdict.difference:
            raise InvariantError(verdict.difference)

    def run(self, rounds_wanted: int) -> None:
        """Steps until enough rounds were opened; replays everything now and then, and at the end."""
        steps = 0
        while self.opened < rounds_wanted:
            self.step()
            steps += 1
            if steps % 500 == 0:
                self.check_all()
        for request in self.lost[:]:
            self.lost.remove(request)
            self._send(request)
        self.check_all()


def main() -> None:
    """Runs one seed from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kind = "PostgreSQL" if options.postgres else "SQLite"
    module = "privmarket_studies.torture.broker_simulation"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(postgres(durable=False)) if options.postgres else None
        # Several markets, each with a seed of its own: a check of everything costs as much as all that happened.
        for part in range(-(-options.rounds // ROUNDS_PER_MARKET)):
            seed, wanted = options.seed + part, min(ROUNDS_PER_MARKET, options.rounds - part * ROUNDS_PER_MARKET)
            with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
                simulation = Simulation(new_database(server) if server else Path(folder) / "market.db", seed)
                simulation.run(wanted)
                simulation.broker.database.close()
            figures = {"rounds": wanted, "requests": simulation.keys, "crashes": simulation.crashes}
            print(f"{kind}, seed {seed}: {figures}: all invariants held", flush=True)
            if options.out:  # at once: a long run may be interrupted and gone on with
                command = f"python -m {module} --rounds {wanted} --seed {seed}"
                command += " --postgres" if options.postgres else ""
                where = {"command": command, "code": broker_code(), "database": kind}
                append(options.out, {**where, **figures, "verdict": "all invariants held"})


if __name__ == "__main__":
    main()
