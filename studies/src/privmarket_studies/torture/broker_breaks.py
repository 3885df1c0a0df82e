"""The breaks that were reported of the broker of commit e7818cb, as attacks over HTTP, SQL and the command line.

An attack knows nothing of the code that it attacks: it starts `privmarket serve` of a tree in a process of its own,
and says whether it succeeded and what it saw. So the same attack runs on the tree of then and on today's:

    python -m privmarket_studies.torture.broker_breaks --before CHECKOUT --out docs/results/broker/breaks.json

The numbers are those of the report: 1 writes that wait while noise is calibrated, 2 ε burnt for nothing, 3 a blind
`verify`, 4 accounts taken over, 5 no review, no dispute, 6 bids that the holder of the database reads, 7 edges.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx

from privmarket._files import write_atomically
from privmarket.broker._client import BrokerClient, Json
from privmarket.broker._signatures import SigningKey
from privmarket_fixtures.broker_process import BrokerProcess
from privmarket_studies.torture.runs import broker_code

_HERE = os.pathsep.join(sys.path)
_REQUEST_SECONDS = 1.0  # what today's broker is told to wait for slow callers; the one of then waits for ever
_TERMS: dict[str, object] = {
    "title": "digits",
    "budget_micro": 1_000_000,
    "mechanism": "proportional-share",
    "rounds": 10,
    "bid_seconds": 600,
    "delivery_seconds": 600,
}
_SCHEDULE = {"sampling_rate": 0.0137, "steps": 137, "delta": 3e-6}  # in no table that comes with either tree
_LONG_SECONDS = 10.0  # no bid waits so long for another's auction, however busy the machine


class Seen(NamedTuple):
    """Whether an attack succeeded, and what was seen."""

    succeeded: bool
    what: str


class BrokerAttack(NamedTuple):
    """One attack: the number of its break, a name, what today's tests of the same thing are called, what to do."""

    number: int
    name: str
    test: str
    run: Callable[[ServedMarket], Seen]
    rate: float = 1000.0


@dataclass
class ServedMarket:
    """A server of some tree, with an operator, a buyer with money and sellers."""

    server: BrokerProcess
    source: str  # the PYTHONPATH of the tree
    folder: Path
    operator: str
    buyer: str = ""
    sellers: tuple[str, ...] = ()

    def ask(
        self, method: str, path: str, token: str, form: object = None, key: str = "", patience: float = 300.0
    ) -> httpx.Response:
        """Sends one request and returns the reply."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers["Idempotency-Key"] = key or str(uuid.uuid4())
        return httpx.request(method, f"{self.server.url}{path}", json=form, headers=headers, timeout=patience)

    def must(self, method: str, path: str, token: str, form: object = None) -> Json:
        """The answer to a request that has to be taken."""
        reply = self.ask(method, path, token, form)
        if not reply.is_success:
            raise RuntimeError(f"{method} {path} answered {reply.status_code}: {reply.text}")
        found: Json = reply.json()
        return found

    def enter(self, role: str, **wallet: float) -> str:
        """Registers a new party with this role; returns its token."""
        return str(self.must("POST", "/v1/register", "", {"role": role, "name": role, **wallet})["token"])

    def open(self, **terms: object) -> str:
        """A round of a new task; what the tree's tasks do not know is left out."""
        form = {**_TERMS, **terms}
        reply = self.ask("POST", "/v1/tasks", self.buyer, form)
        if reply.status_code == 422:
            form = {name: value for name, value in form.items() if name in {**_TERMS, **_SCHEDULE}}
            reply = self.ask("POST", "/v1/tasks", self.buyer, form)
        while reply.status_code == 503:  # a new schedule is being prepared
            time.sleep(1.0)
            reply = self.ask("POST", "/v1/tasks", self.buyer, form)
        return str(self.must("POST", f"/v1/tasks/{reply.json()['id']}/rounds", self.buyer)["id"])

    def bid(self, seller: str, round_id: str, valuation: float = 0.2) -> httpx.Response:
        """Sends a bid for one unit of ε."""
        return self.ask("POST", f"/v1/rounds/{round_id}/bids", seller, {"valuation": valuation, "epsilon": 1.0})

    def party(self, token: str) -> Json:
        """The account of the party with this token, as it sees it."""
        return self.must("GET", "/v1/me", token)

    def sold(self, **terms: object) -> str:
        """Plays a round until the first seller has sold; returns its id."""
        round_id = self.open(buyer_may_close=True, **terms)
        self.bid(self.sellers[0], round_id).raise_for_status()
        self.bid(self.sellers[1], round_id, 0.9).raise_for_status()
        self.must("POST", f"/v1/rounds/{round_id}/close", self.buyer)
        return round_id

    def reject(self, round_id: str) -> httpx.Response:
        """The buyer rejects the first seller's update."""
        form = {"receipts": {self.party(self.sellers[0])["id"]: "no good"}}
        return self.ask("POST", f"/v1/rounds/{round_id}/receipts", self.buyer, form)

    def command(self, *words: str) -> int:
        """The exit code of a command of this tree."""
        code = "from privmarket.cli import main; main()"
        environment = {**os.environ, "PYTHONPATH": self.source}
        done = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True)
        return done.returncode

    def edited(self, statement: str) -> str:
        """The address of a copy of the database in which somebody ran a statement."""
        copy = self.folder / f"{uuid.uuid4().hex}.db"
        with sqlite3.connect(self.folder / "m.db") as stored, sqlite3.connect(copy) as other:
            stored.backup(other)
            other.execute(statement)
        return f"sqlite:///{copy}"


# ---- the attacks ----------------------------------------------------------------------------------------------


def frozen(market: ServedMarket) -> Seen:
    """A round with a schedule that nobody used before closes; meanwhile somebody bids in another round."""
    round_id, other = market.open(buyer_may_close=True, **_SCHEDULE), market.open()
    market.bid(market.sellers[0], round_id).raise_for_status()
    market.bid(market.sellers[1], round_id, 0.9).raise_for_status()
    closing = threading.Thread(target=market.ask, args=("POST", f"/v1/rounds/{round_id}/close", market.buyer))
    closing.start()
    waits, refused = [], set()
    while closing.is_alive():
        begun = time.monotonic()
        reply = market.bid(market.sellers[0], other)
        waits.append(time.monotonic() - begun)
        refused |= set() if reply.is_success else {reply.status_code}
    closing.join()
    longest = max(waits, default=0.0)
    said = f"; bids answered {', '.join(map(str, sorted(refused)))}" if refused else ""
    waited = f"{longest:.0f} s" if longest >= _LONG_SECONDS else f"less than {_LONG_SECONDS:g} s"
    return Seen(longest >= _LONG_SECONDS or bool(refused), f"bids waited {waited}{said}")


def burnt(market: ServedMarket) -> Seen:
    """A buyer rejects an update that was never claimed, and the seller's wallet is charged."""
    before = market.party(market.sellers[0])["wallet"]["spent_epsilon"]
    round_id = market.sold()
    refused = market.reject(round_id)
    if not refused.is_success:
        return Seen(False, f"the rejection answered {refused.status_code}")
    market.ask("POST", f"/v1/rounds/{round_id}/settle", market.buyer)
    after = market.party(market.sellers[0])
    burnt = after["wallet"]["spent_epsilon"] - before
    return Seen(burnt > 0, f"ε spent {burnt:.2f}, paid {after['balance_micro']} µ")


def _unseen(statement: str) -> Callable[[ServedMarket], Seen]:
    """An edit of the database that `verify` does not find."""

    def run(market: ServedMarket) -> Seen:
        market.sold()
        code = market.command("broker", "verify", "--database", market.edited(statement))
        return Seen(code == 0, f"verify ended with exit code {code}")

    return run


def no_database(market: ServedMarket) -> Seen:
    """`verify` of a database that does not exist."""
    missing = market.folder / "missing.db"
    code = market.command("broker", "verify", "--database", f"sqlite:///{missing}")
    made = "made it" if missing.exists() else "did not make it"
    return Seen(code == 0, f"verify ended with exit code {code} and {made}")


def taken_over(market: ServedMarket) -> Seen:
    """A stranger repeats somebody's registration under the same key."""
    key, form = str(uuid.uuid4()), {"role": "buyer", "name": "victim"}
    victim = market.ask("POST", "/v1/register", "", form, key).json()
    again = market.ask("POST", "/v1/register", "", form, key)
    same = again.is_success and market.party(again.json()["token"])["id"] == victim["id"]
    return Seen(same, f"answered {again.status_code}" + ("; the token opens the victim's account" if same else ""))


def no_dispute(market: ServedMarket) -> Seen:
    """A seller delivers and is rejected: has it any way to object?"""
    round_id = market.sold()
    seller, path = market.sellers[0], f"/v1/rounds/{round_id}"
    market.must("POST", f"{path}/delivery", seller, {"update_sha256": "ab" * 32})
    market.reject(round_id).raise_for_status()
    reply = market.ask("POST", f"{path}/disputes", seller, {"reason": "it was fine"})
    return Seen(not reply.is_success, f"the dispute answered {reply.status_code}")


def late_claim(market: ServedMarket) -> Seen:
    """A seller claims a worthless update just before its deadline: can the buyer still reject it?"""
    before = market.party(market.sellers[0])["balance_micro"]
    for _ in range(5):  # again where the machine stood still until the deadline
        round_id = market.sold(delivery_seconds=2, review_seconds=600)
        path = f"/v1/rounds/{round_id}"
        claimed = market.ask("POST", f"{path}/delivery", market.sellers[0], {"update_sha256": "ab" * 32})
        if claimed.is_success:
            break
    claimed.raise_for_status()
    until = market.must("GET", path, market.buyer)["delivery_deadline_ms"] + 4000
    while time.time() * 1000 < until:
        time.sleep(0.05)
    reply = market.reject(round_id)
    paid = market.party(market.sellers[0])["balance_micro"] - before
    return Seen(not reply.is_success, f"the rejection answered {reply.status_code}; paid {paid} µ")


def read_bids(market: ServedMarket) -> Seen:
    """Whoever holds the database reads a bid of an open round."""
    round_id = market.open(sealing="bidder")
    task = market.must("GET", f"/v1/rounds/{round_id}", market.buyer)["task_id"]
    if market.must("GET", f"/v1/tasks/{task}", market.buyer).get("sealing") == "bidder":
        client = BrokerClient(market.server.url).register(
            "seller", "s", cap_epsilon=9.0, delta=1e-5, key=SigningKey.generate()
        )
        client.bid(round_id, valuation=0.123, epsilon=1.0)
    else:
        market.bid(market.sellers[0], round_id, 0.123).raise_for_status()
    with sqlite3.connect(market.folder / "m.db") as stored:
        query = "SELECT valuation FROM bids WHERE round_id = ?"
        found = [valuation for (valuation,) in stored.execute(query, (round_id,))]
    return Seen(0.123 in found, f"the table of bids shows {found[0]}")


def early_close(market: ServedMarket) -> Seen:
    """A buyer ends bidding right after a friend's bid, long before the deadline that it published."""
    round_id = market.open()
    market.bid(market.sellers[0], round_id).raise_for_status()
    reply = market.ask("POST", f"/v1/rounds/{round_id}/close", market.buyer)
    return Seen(reply.is_success, f"closing answered {reply.status_code}")


def made_up_tokens(market: ServedMarket) -> Seen:
    """One address sends many requests, each with another token of its own making."""
    with httpx.Client(base_url=market.server.url, timeout=60) as http:
        answers = {http.get("/v1/me", headers={"Authorization": f"Bearer pm_{i}"}).status_code for i in range(600)}
    return Seen(429 not in answers, f"600 requests were answered {', '.join(map(str, sorted(answers)))}")


def slow_body(market: ServedMarket) -> Seen:
    """A body that never comes keeps its connection."""
    head = b"POST /v1/register HTTP/1.1\r\nHost: x\r\nIdempotency-Key: 12345678\r\nContent-Length: 1000\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", market.server.port), timeout=4 * _REQUEST_SECONDS) as slow:
        slow.sendall(head)
        try:
            return Seen(False, f"answered {slow.recv(100).split(b' ')[1].decode()}")
        except TimeoutError:
            return Seen(True, f"still open after {4 * _REQUEST_SECONDS:g} s")


def readable_file(market: ServedMarket) -> Seen:
    """Other users of the machine read the database."""
    mode = stat.S_IMODE((market.folder / "m.db").stat().st_mode)
    return Seen(bool(mode & 0o077), f"the file's mode is {mode:o}")


def file_oracle(market: ServedMarket) -> Seen:
    """A buyer learns from a rule's settings whether a file exists on the server."""
    rule = {**_TERMS, "mechanism": "mfg-menunet"}
    files = ("/etc/passwd", "/no/such/file")
    said = [market.ask("POST", "/v1/tasks", market.buyer, {**rule, "settings": {"weights": one}}) for one in files]
    there, gone = (
        {name: str(value).replace(file, "F") for name, value in one.json().items() if name != "request_id"}
        for one, file in zip(said, files, strict=True)
    )
    return Seen(
        there != gone, "different answers" if there != gone else f"answered {said[0].status_code} both times"
    )


def unwarned(market: ServedMarket) -> Seen:
    """A rule that may exceed its budget is offered without a warning."""
    reply = market.ask("GET", "/v1/mechanisms/vcg", market.buyer)
    warned = reply.is_success and bool(reply.json().get("warnings"))
    return Seen(not warned, f"answered {reply.status_code}" + (", with a warning" if warned else ""))


_UNIT = "tests/unit/broker"
_SERVICE = "tests/integration/test_broker_service.py"
ATTACKS = (
    BrokerAttack(1, "bids wait for another round's noise", f"{_UNIT}/test_breaks.py", frozen),
    BrokerAttack(2, "ε burnt by a rejection without a claim", f"{_UNIT}/test_broker.py", burnt),
    BrokerAttack(3, "verify: a back-door operator", f"{_UNIT}/test_verify.py",
                 _unseen("UPDATE tokens SET party_id = (SELECT id FROM parties WHERE role = 'operator')")),
    BrokerAttack(3, "verify: a claim erased", f"{_UNIT}/test_verify.py",
                 _unseen("UPDATE awards SET claim_sha256 = 'x'")),
    BrokerAttack(3, "verify: a deadline extended", f"{_UNIT}/test_verify.py",
                 _unseen("UPDATE rounds SET bid_deadline_ms = bid_deadline_ms + 1")),
    BrokerAttack(3, "verify: a token's scope raised", f"{_UNIT}/test_verify.py",
                 _unseen("UPDATE tokens SET scope = 'everything'")),
    BrokerAttack(3, "verify of a missing database", f"{_UNIT}/test_verify.py", no_database),
    BrokerAttack(4, "a registration key takes an account over", f"{_UNIT}/test_broker.py", taken_over),
    BrokerAttack(5, "rejected, with no way to object", f"{_UNIT}/test_broker.py", no_dispute),
    BrokerAttack(5, "paid for nothing: no time to review", f"{_UNIT}/test_broker.py", late_claim),
    BrokerAttack(6, "open bids in the database", f"{_UNIT}/test_trust.py", read_bids),
    BrokerAttack(7, "bidding closed right after a friend's bid", f"{_UNIT}/test_broker.py", early_close),
    BrokerAttack(7, "rate limit evaded by made-up tokens", f"{_UNIT}/test_api.py", made_up_tokens, 1.0),
    BrokerAttack(7, "a body that never comes holds its connection", _SERVICE, slow_body),
    BrokerAttack(7, "the database file readable for others", f"{_UNIT}/test_breaks.py", readable_file),
    BrokerAttack(7, "settings.weights tells which files exist", f"{_UNIT}/test_breaks.py", file_oracle),
    BrokerAttack(7, "no warning of a rule that may exceed its budget", f"{_UNIT}/test_breaks.py", unwarned),
)  # fmt: skip


# ---- running them ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def market_of(source: str = _HERE, rate: float = 1000.0) -> Iterator[ServedMarket]:
    """A market at a server of the tree whose PYTHONPATH is `source`; `rate` requests a second for each account."""
    with tempfile.TemporaryDirectory(prefix="privmarket-breaks-") as name:
        folder = Path(name)
        settings = {"PYTHONPATH": source, "PRIVMARKET_REQUEST_SECONDS": str(_REQUEST_SECONDS)}
        settings["PRIVMARKET_CACHE"] = str(folder)  # no noise table from an earlier run
        server = BrokerProcess(f"sqlite:///{folder}/m.db", folder / "log", **settings)
        server.rate = rate
        server.start()
        try:
            market = ServedMarket(server, source, folder, server.operator_token)
            market.buyer = market.enter("buyer")
            market.sellers = tuple(market.enter("seller", cap_epsilon=50.0, delta=1e-5) for _ in range(2))
            path = f"/v1/parties/{market.party(market.buyer)['id']}/deposits"
            market.must("POST", path, market.operator, {"amount_micro": 100_000_000})
            yield market
        finally:
            server.kill()


def _tree(source: str) -> str:
    """Sixteen hexadecimal digits that identify the broker's files of a tree."""
    seen = hashlib.sha256()
    for file in sorted((Path(source) / "privmarket" / "broker").glob("*.py")):
        seen.update(file.read_bytes())
    return seen.hexdigest()[:16]


def main() -> None:
    """Runs the attacks on both trees and writes what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, required=True, help="a checkout of commit e7818cb")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    old = str(arguments.before / "src")
    codes = {"code": broker_code(), "before": _tree(old)}
    seen = {"before": run(old), "now": run(_HERE)}
    rows = [
        {"break": one.number, "name": one.name, "test": one.test}
        | {when: found[one.name]._asdict() for when, found in seen.items()}
        for one in ATTACKS
    ]
    write_atomically(arguments.out, json.dumps({**codes, "attacks": rows}, indent=1, ensure_ascii=False) + "\n")


def run(source: str) -> dict[str, Seen]:
    """Every attack on one tree: on one market, but for those that need a broker with another rate."""
    found = {}
    for rate in sorted({attack.rate for attack in ATTACKS}):
        with market_of(source, rate) as market:
            for attack in (one for one in ATTACKS if one.rate == rate):
                found[attack.name] = attack.run(market)
                print(f"{attack.name}: {found[attack.name].what}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
