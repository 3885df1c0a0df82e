"""A round with very many bids: how long clearing and settling take, what readers notice, how fast every page is.

Bids are placed by the broker's own code, or, beyond a few hundred thousand on PostgreSQL, copied into its tables
(`broker_large_fill`). The round is closed, delivered and settled over HTTP on a real server while others keep
reading from it and bidding in another round.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import select

from privmarket.broker import _parties as parties
from privmarket.broker._bidding import BidRequest
from privmarket.broker._broker import Broker
from privmarket.broker._client import Json
from privmarket.broker._parties import SYSTEM, Actor
from privmarket.broker._schema import awards, rounds
from privmarket.broker._signatures import SigningKey
from privmarket.rounds import Offer
from privmarket_fixtures import processes
from privmarket_fixtures.processes import LoadError, free_port
from privmarket_studies import broker_large_fill, broker_speed
from privmarket_studies.broker_load import call, server
from privmarket_studies.broker_speed import key, open_market, serve_arguments

# A learned or mean-field rule would do as well; this one pays out most of the budget.
_MECHANISM = "proportional-share"
_CAPS = (5.0, 10.0, 20.0, 50.0)
_PAST_ROUNDS = 2
_GROUP = 1000
_COPIED = 200_000
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Latency:
    """How many calls there were; their median, 99th percentile and largest time in milliseconds."""

    reads: int
    median_ms: float
    p99_ms: float
    largest_ms: float


@dataclass
class LargeRound:
    """What was measured. Times are seconds of one HTTP call each unless they say otherwise."""

    database: str
    bids: int
    different_caps: int = 0
    past_sales: int = 0
    sellers: int = 0
    close_seconds: float = 0.0  # until closing was answered
    clear_seconds: float = 0.0  # until the round was cleared, from the same moment
    deliver_seconds: float = 0.0
    settle_seconds: float = 0.0
    copied: bool = False
    server_memory_mb: float = 0.0
    auction_memory_mb: float = 0.0
    auction_cpu_seconds: float = 0.0  # of the auction's process alone: what a busy machine changes least
    readers_before: dict[str, Latency] = field(default_factory=dict)
    readers_during_clear: dict[str, Latency] = field(default_factory=dict)
    pages_ms: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """The figures as JSON data."""
        return asdict(self)


def measure(
    bids: int = 100_000,
    *,
    budget_micro: int = 100_000_000,
    database: str | None = None,
    varied: bool = False,
    real_time: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> LargeRound:
    """The whole life of one large round, on a fresh SQLite file or on the database named.

    Sellers have one of four caps and sold nothing before; `varied` ones each have their own and a past. `real_time`
    gives server and callers priority while it is noted how long calls take.
    """
    with tempfile.TemporaryDirectory(prefix="privmarket-bench-") as name:
        place = Path(name)
        address = database or f"sqlite:///{place}/market.db"
        progress("placing bids")
        own_key = place / "key"
        SigningKey.generate().write(own_key)
        broker = Broker(address, key=SigningKey.read(own_key))
        operator = broker.first_operator() or broker.new_operator_token()
        opened = open_market(broker, 1, budget_micro=budget_micro, mechanism=_MECHANISM)
        buyer, round_id, (first,), (seller,) = opened
        caps = np.random.default_rng(seed).uniform(5.0, 50.0, bids - 1) if varied else np.resize(_CAPS, bids - 1)
        found = LargeRound(address.partition(":")[0], bids, different_caps=np.unique(caps).size)
        other = str(broker.open_round(*_another_task(broker, buyer), key())["id"])
        found.copied = not address.startswith("sqlite") and bids > _COPIED
        if found.copied:
            progress("copying")
            found.past_sales = broker_large_fill.copy_market(address, round_id, caps, first.party_id, seed)
        else:
            sellers = [first, *_enter_many(broker, caps.tolist())]
            if varied:
                progress("trading before")
                found.past_sales = _trade_before(broker, sellers, budget_micro * 500, seed)
            progress("placing bids")
            _fill(broker, round_id, sellers, seed)
        broker.database.close()
        port = free_port()
        with server(serve_arguments(address, port, own_key), port, place / "log"), _Use(port, found):
            tokens = {"operator": operator, "buyer": buyer, "seller": seller}
            with processes.first_in_line([os.getpid(), processes.serving(port)], real_time):
                _live(found, port, (round_id, other), tokens, progress)
            progress("settling")
            _deliver_and_settle(found, Broker(address, key=SigningKey.read(own_key)), port, round_id, buyer)
            _time_pages(found, port, round_id, tokens, "settled")
        return found


def _another_task(broker: Broker, token: str) -> tuple[Actor, str]:
    """The buyer, and a small task of its own for those who bid meanwhile."""
    buyer = broker.authenticate(token)
    terms = {**broker_speed.TERMS, "budget_micro": 1_000_000, "mechanism": _MECHANISM}
    return buyer, str(broker.publish_task(buyer, terms, key())["id"])


def _trade_before(broker: Broker, sellers: Sequence[Actor], budget_micro: int, seed: int) -> int:
    """Rounds in which most sellers sold something; how many sales there were."""
    token, round_id, _, _ = open_market(broker, 0, budget_micro=budget_micro, mechanism=_MECHANISM)
    buyer, sales = broker.authenticate(token), 0
    for number in range(1, _PAST_ROUNDS + 1):
        _fill(broker, round_id, sellers, seed + number)
        closed = broker.close_round(buyer, round_id, key())
        if closed["state"] == "closed":  # very many bids: the second call runs the auction
            closed = broker.close_round(buyer, round_id, key())
        sales += closed["sellers"]
        with broker.database.read() as connection:
            winners = connection.execute(select(awards.c.seller_id).where(awards.c.round_id == round_id)).scalars()
            receipts = dict.fromkeys(str(name) for name in winners)
            task_id = connection.execute(select(rounds.c.task_id).where(rounds.c.id == round_id)).scalar_one()
        _claim(broker, round_id, list(receipts))
        broker.give_receipts(buyer, round_id, receipts, key())
        broker.settle_round(buyer, round_id, key())
        if number < _PAST_ROUNDS:
            round_id = str(broker.open_round(buyer, task_id, key())["id"])
    return sales


def _claim(broker: Broker, round_id: str, sellers: Sequence[str]) -> None:
    """Everybody claims its delivery, logged as by the API, in one transaction."""
    with broker.database.write(SYSTEM.party_id) as tx:
        for seller in sellers:
            tx.log_as(seller, "delivery.claimed", round_id, {"update_sha256": "ab" * 32})


def _enter_many(broker: Broker, caps: Sequence[float]) -> list[Actor]:
    """Registered and logged as by the API, but in one transaction."""
    with broker.database.write(SYSTEM.party_id) as tx:
        forms = (
            {"role": "seller", "name": f"seller {i}", "cap_epsilon": c, "delta": 1e-5} for i, c in enumerate(caps)
        )
        return [Actor(str(parties.register(tx, broker.entropy, form)["id"]), "seller") for form in forms]


def _fill(broker: Broker, round_id: str, sellers: Sequence[Actor], seed: int) -> None:
    rng = np.random.default_rng(seed)
    valuation, epsilon = rng.random(len(sellers)), rng.uniform(0.1, 2.0, len(sellers))
    for start in range(0, len(sellers), _GROUP):
        group = [
            BidRequest(round_id, Offer(float(valuation[i]), float(epsilon[i]), 600.0), key(), sellers[i])
            for i in range(start, min(start + _GROUP, len(sellers)))
        ]
        refused = [answer for answer in broker.take_bids(group) if isinstance(answer, Exception)]
        if refused:
            raise LoadError(f"a bid was refused: {refused[0]}", "the market of the measurement is broken")


def _live(
    found: LargeRound,
    port: int,
    round_ids: tuple[str, str],
    tokens: dict[str, str],
    progress: Callable[[str], None],
) -> None:
    """Pages and callers before the round closes, while it is cleared, and after."""
    round_id = round_ids[0]
    progress("pages, before")
    _time_pages(found, port, round_id, tokens, "open")
    with _Callers(port, round_ids, tokens) as quiet:
        time.sleep(2.0)
    found.readers_before = quiet.latencies()
    progress("clearing")
    with _Callers(port, round_ids, tokens) as busy:
        begun, path = time.perf_counter(), f"/v1/rounds/{round_id}"
        _ask(port, "POST", f"{path}/close", tokens["buyer"])
        found.close_seconds = time.perf_counter() - begun
        while _ask(port, "GET", path, tokens["buyer"])["state"] != "cleared":
            time.sleep(0.1)
        found.clear_seconds = time.perf_counter() - begun
    found.readers_during_clear = busy.latencies()
    found.sellers = _ask(port, "GET", f"/v1/rounds/{round_id}", tokens["buyer"])["sellers"]
    _time_pages(found, port, round_id, tokens, "cleared")


def _deliver_and_settle(found: LargeRound, broker: Broker, port: int, round_id: str, buyer: str) -> None:
    path, winners, after = f"/v1/rounds/{round_id}", [], ""
    while True:
        page = _ask(port, "GET", f"{path}/awards?limit=200{after}", buyer)
        winners += [award["seller_id"] for award in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    _claim(broker, round_id, winners)
    broker.database.close()
    begun = time.perf_counter()
    for start in range(0, len(winners), 10_000):  # a request may hold a megabyte
        receipts = dict.fromkeys(winners[start : start + 10_000])
        _ask(port, "POST", f"{path}/receipts", buyer, {"receipts": receipts})
    found.deliver_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    _ask(port, "POST", f"{path}/settle", buyer)
    found.settle_seconds = time.perf_counter() - begun


def _ask(port: int, method: str, path: str, token: str, form: object = None) -> Json:
    status, body = call(port, method, path, token, form)
    if status >= 400:
        raise LoadError(f"{method} {path} answered {status}", body[:300].decode(errors="replace"))
    answer: Json = json.loads(body)
    return answer


def _time_pages(found: LargeRound, port: int, round_id: str, tokens: dict[str, str], state: str) -> None:
    """Measures every page as every kind of user sees it: the median of five loads, in milliseconds."""
    task_id = _ask(port, "GET", f"/v1/rounds/{round_id}", tokens["buyer"])["task_id"]
    pages = ["/", f"/tasks/{task_id}", f"/rounds/{round_id}", "/money", "/privacy"]
    for role, token in tokens.items():
        for page in [*pages, "/people", "/audit"] if role == "operator" else pages:
            name = page.replace(task_id, "…").replace(round_id, "…")
            took = [_one_read(port, page, token) for _ in range(5)]
            found.pages_ms[f"{state}, {role}, {name}"] = statistics.median(took)


def _one_read(port: int, path: str, token: str) -> float:
    begun = time.perf_counter()
    status, body = call(port, "GET", path, token)
    if status != 200:
        raise LoadError(f"{path} answered {status}", body[:300].decode(errors="replace"))
    return 1e3 * (time.perf_counter() - begun)


class _Use:
    """Notes the memory of the server and of the process that it starts for the auction, and what that computes."""

    def __init__(self, port: int, found: LargeRound) -> None:
        self._port, self._found, self._stop = port, found, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        ours = processes.serving(self._port)
        while not self._stop.wait(0.2):
            self._found.server_memory_mb = max(self._found.server_memory_mb, processes.resident_mb(ours))
            for child in processes.children(ours):
                self._found.auction_memory_mb = max(self._found.auction_memory_mb, processes.resident_mb(child))
                self._found.auction_cpu_seconds = max(self._found.auction_cpu_seconds, processes.cpu_seconds(child))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class _Callers:
    """One reader of the round over the API, one of its page, one seller that looks at itself, one that bids."""

    def __init__(self, port: int, round_ids: tuple[str, str], tokens: dict[str, str]) -> None:
        self._stop = threading.Event()
        self._took: dict[str, list[float]] = {"round": [], "page": [], "me": [], "bid": []}
        paths = {
            "round": (f"/v1/rounds/{round_ids[0]}", tokens["buyer"]),
            "page": (f"/rounds/{round_ids[0]}", tokens["buyer"]),
            "me": ("/v1/me", tokens["seller"]),
        }
        self._threads = [
            threading.Thread(target=self._read, args=(port, name, path, token), daemon=True)
            for name, (path, token) in paths.items()
        ]
        bids = (port, f"/v1/rounds/{round_ids[1]}/bids", tokens["seller"])
        self._threads.append(threading.Thread(target=self._bid, args=bids, daemon=True))

    def _read(self, port: int, name: str, path: str, token: str) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            self._took[name].append(_one_read(port, path, token))

    def _bid(self, port: int, path: str, token: str) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            begun = time.perf_counter()
            _ask(port, "POST", path, token, {"valuation": 0.5, "epsilon": 0.5})
            self._took["bid"].append(1e3 * (time.perf_counter() - begun))

    def __enter__(self) -> _Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def latencies(self) -> dict[str, Latency]:
        """What each kind of caller saw, and all of them together."""
        kinds = {**self._took, "all": [one for took in self._took.values() for one in took]}
        return {
            name: Latency(len(took), statistics.median(took), float(np.quantile(took, 0.99)), max(took))
            for name, took in kinds.items()
            if took
        }
