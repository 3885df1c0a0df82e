"""Sealed bids per second, against a bare FastAPI + SQLite insert of one row in the same run.

Both are real servers in processes of their own on loopback, under the same uvicorn settings, with the same client,
the same number of callers and the same durability: every answer is sent after its commit was flushed to the disk.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from privmarket.broker import _parties as parties
from privmarket.broker._bidding import offer_fields
from privmarket.broker._broker import Broker
from privmarket.broker._parties import SYSTEM, Actor
from privmarket.broker._signatures import SigningKey, bid_message, commitment
from privmarket.rounds import Offer
from privmarket_fixtures import processes
from privmarket_fixtures.processes import free_port
from privmarket_studies.broker_load import Rate, load, request_bytes, server

CALLERS = (1, 4, 16, 64)
_SELLERS = 500
_BUDGET_MICRO, _MECHANISM = 10_000_000, "mean-field-menu"
TERMS: dict[str, object] = {
    "title": "speed",
    "mechanism": _MECHANISM,
    "settings": {},
    "budget_micro": _BUDGET_MICRO,
    "rounds": 100,
    "epsilon_max": 5.0,
    "sampling_rate": 1.0,
    "steps": 1,
    "delta": 1e-5,
    "buyer_may_close": True,
    "bid_seconds": 86_400,
    "delivery_seconds": 86_400,
}


@dataclass(frozen=True)
class BidSpeed:
    """One number of callers: the broker with signed and with unsigned bids, and two forms of the bare insert."""

    storage: str
    callers: int
    signed: Rate
    broker: Rate
    bare: dict[str, Rate]
    cpu_ms: dict[str, float]  # of the server's process per answer, over all turns: a busy machine changes it little

    def _over_bare(self, rate: Rate) -> float:
        return rate.per_second / max(one.per_second for one in self.bare.values())

    @property
    def signed_ratio(self) -> float:
        """The rate of signed bids over the faster bare insert's."""
        return self._over_bare(self.signed)

    @property
    def ratio(self) -> float:
        """The rate of unsigned bids over the faster bare insert's."""
        return self._over_bare(self.broker)

    def to_dict(self) -> dict[str, object]:
        """The figures and their ratios as JSON data."""
        return {**asdict(self), "ratio": self.ratio, "signed_ratio": self.signed_ratio}


def key() -> str:
    """A new idempotency key."""
    return str(uuid.uuid4())


def open_market(
    broker: Broker, sellers: int, *, budget_micro: int = _BUDGET_MICRO, mechanism: str = _MECHANISM
) -> tuple[str, str, list[Actor], list[str]]:
    """A buyer's token, an open round, sellers, and their tokens, made by the broker's own code."""
    made = broker.register({"role": "buyer", "name": "buyer"}, key())
    buyer = broker.authenticate(made["token"])
    terms = {**TERMS, "budget_micro": budget_micro, "mechanism": mechanism}
    broker.deposit(SYSTEM, buyer.party_id, 10 * budget_micro, key())
    task = broker.publish_task(buyer, terms, key())
    round_id = str(broker.open_round(buyer, task["id"], key())["id"])
    actors, tokens = _enter(broker, sellers)
    return str(made["token"]), round_id, actors, tokens


def _enter(broker: Broker, sellers: int, keys: list[str] | None = None) -> tuple[list[Actor], list[str]]:
    """Many sellers in one transaction, perhaps with keys of their own: what is measured comes later."""
    actors, tokens = [], []
    with broker.database.write(SYSTEM.party_id) as tx:
        for i in range(sellers):
            form: dict[str, object] = {"role": "seller", "name": f"seller {i}", "cap_epsilon": 50.0, "delta": 1e-5}
            form["public_key"] = keys[i] if keys else None
            form["signs"] = "bids" if keys else None
            made = parties.register(tx, broker.entropy, form)
            tokens.append(made["token"])
            actors.append(Actor(made["id"], "seller"))
    return actors, tokens


def serve_arguments(database: str, port: int, key: Path) -> list[str]:
    """The broker's process, with a rate limit that a single caller does not reach; `key`: the file of its key."""
    code = "from privmarket.cli import main; main()"
    where = ["--database", database, "--port", str(port), "--key", str(key)]
    return ["-c", code, "serve", *where, "--rate", "1000000"]


def measure(
    folder: Path | None = None,
    *,
    callers: tuple[int, ...] = CALLERS,
    seconds: float = 2.0,
    turns: int = 3,
    progress: Callable[[str], None] = lambda text: None,
) -> list[BidSpeed]:
    """Every number of callers on one storage; the fastest of `turns`, taken in turn, counts."""
    with tempfile.TemporaryDirectory(prefix="privmarket-bench-", dir=folder) as name:
        place = Path(name)
        ports = {"broker": free_port(), "loop": free_port(), "threads": free_port()}
        database = f"sqlite:///{place}/market.db"
        own = SigningKey.generate()
        own.write(place / "key")
        broker = Broker(database, key=own)
        broker.first_operator()
        _, round_id, _, tokens = open_market(broker, _SELLERS)
        signing = [SigningKey.generate() for _ in range(_SELLERS)]
        actors, own_tokens = _enter(broker, _SELLERS, [one.public for one in signing])
        forms = [_signed_form(round_id, who, one) for who, one in zip(actors, signing, strict=True)]
        broker.database.close()
        log = place / "log"
        bare = {
            style: ["-m", "privmarket_studies.broker_reference", str(place / f"{style}.db"), str(port), style]
            for style, port in ports.items()
            if style != "broker"
        }
        with (
            server(serve_arguments(database, ports["broker"], place / "key"), ports["broker"], log),
            server(bare["loop"], ports["loop"], log),
            server(bare["threads"], ports["threads"], log),
        ):
            sending = {"broker": _bids(round_id, tokens), "loop": _rows(), "threads": _rows()}
            sending["signed"], ports["signed"] = _signed_bids(round_id, own_tokens, forms), ports["broker"]
            storage = "memory" if folder is not None else "disk"
            rows = []
            for count in callers:
                progress(f"{storage}, {count} callers")
                rows.append(_turns(storage, count, ports, sending, seconds, turns))
            return rows


def _turns(
    storage: str,
    callers: int,
    ports: dict[str, int],
    sending: dict[str, Iterator[bytes]],
    seconds: float,
    turns: int,
) -> BidSpeed:
    seen: dict[str, list[Rate]] = {name: [] for name in ports}
    spent = dict.fromkeys(ports, 0.0)
    for _ in range(turns):
        for name, port in ports.items():
            pid = processes.serving(port)
            before = processes.cpu_seconds(pid)
            seen[name].append(load(port, sending[name], callers, seconds))
            spent[name] += processes.cpu_seconds(pid) - before
    cpu_ms = {name: 1e3 * spent[name] / sum(rate.answers for rate in rates) for name, rates in seen.items()}
    best = {name: max(rates, key=lambda rate: rate.per_second) for name, rates in seen.items()}
    return BidSpeed(storage, callers, best.pop("signed"), best.pop("broker"), best, cpu_ms)


def _signed_form(round_id: str, seller: Actor, signing: SigningKey) -> dict[str, object]:
    """A bid signed beforehand: what is measured is the broker's check, not the bidder's work."""
    fields = offer_fields(Offer(0.3, 0.8, 600.0))
    committed = commitment(round_id, seller.party_id, fields, "0f" * 16)
    signature = signing.sign(bid_message(round_id, seller.party_id, committed))
    return {**fields, "nonce": "0f" * 16, "signature": signature}


def _signed_bids(round_id: str, tokens: list[str], forms: list[dict[str, object]]) -> Iterator[bytes]:
    """The same bid of each seller again and again, each time under a fresh key."""
    for token, form in itertools.cycle(zip(tokens, forms, strict=True)):
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key()}
        yield request_bytes(f"/v1/rounds/{round_id}/bids", form, headers)


def _bids(round_id: str, tokens: list[str]) -> Iterator[bytes]:
    """One seller after the other, each under a fresh key; the second time round a bid replaces the first."""
    for number, token in enumerate(itertools.cycle(tokens)):
        form = {"valuation": (number % 97) / 97, "epsilon": 0.5 + (number % 7) / 7, "data_size": 600.0}
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key()}
        yield request_bytes(f"/v1/rounds/{round_id}/bids", form, headers)


def _rows() -> Iterator[bytes]:
    for number in itertools.count():
        form = {"valuation": (number % 97) / 97, "epsilon": 0.5 + (number % 7) / 7, "data_size": 600.0}
        yield request_bytes("/rows", form, {})
