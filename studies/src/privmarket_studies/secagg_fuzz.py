"""Secure sums over a network that loses, delays, doubles and reorders messages, with sellers that restart.

`python -m privmarket_studies.secagg_fuzz --rounds 10000` plays that many sums and says what came out; the tests
play 200. In each the number of sellers, the honest share, the modulus and the network are drawn anew. Two things
are checked: the total is the exact sum over one list of at least T survivors, or there is none; and whatever a
seller was sent, in whatever order and however often, it answered each step at most once.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from privmarket.secagg import (
    Client,
    InputRequest,
    MemoryJournal,
    Message,
    SellerMessage,
    Server,
    SigningIdentity,
    SumClosed,
    SumJournal,
    SumRefusal,
    SumTerms,
    answer,
    exact_bits,
    from_bytes,
    to_bytes,
)

_SHARES = (0.3, 0.5, 2 / 3, 0.8)
_LENGTH = 3
_PATIENCE = 9.0  # how long the server waits for a step; a delivery takes 1 on average


@dataclass(frozen=True)
class Network:
    """What happens to a message on its way.

    Attributes:
        loss: probability that it is lost.
        doubling: probability that it comes twice.
        replay: probability that an old message of the server is sent again with it.
        restart: probability that a seller restarts before it answers.
    """

    loss: float
    doubling: float
    replay: float
    restart: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Network:
        """A network of its own for each sum: some are quiet, some lose a tenth of everything."""
        return cls(rng.choice([0.0, 0.01, 0.03, 0.1]), rng.random() * 0.5, rng.random() * 0.3, rng.random() * 0.3)


@dataclass
class FuzzedSum:
    """One sum over one network.

    Attributes:
        opened: whether there is a total.
        faults: what must not have happened.
        answers: how many answers each seller gave to each kind of message.
    """

    opened: bool = False
    faults: list[str] = field(default_factory=list)
    answers: Counter[tuple[int, str]] = field(default_factory=Counter)


MakeClient = Callable[[SigningIdentity, SumJournal], Client]
MakeServer = Callable[[SumTerms], Server]


def play_sum(seed: int, *, make_client: MakeClient = Client, make_server: MakeServer = Server) -> FuzzedSum:
    """Plays one sum; everything but the keys follows from the seed.

    Args:
        make_client, make_server: the product's, unless a test wants one that is broken on purpose.
    """
    rng = random.Random(seed)
    sellers = rng.randint(2, 8)
    identities = sorted(
        (SigningIdentity(rng.randbytes(32)) for _ in range(sellers)), key=lambda one: one.public_key
    )
    largest = 2 ** rng.randint(1, 40)
    terms = SumTerms(
        task=f"fuzz {seed}",
        round=rng.randrange(100),
        members=tuple(one.public_key for one in identities),
        honest_share=rng.choice(_SHARES),
        length=_LENGTH,
        bits=exact_bits(largest, sellers) + rng.randint(0, 3),
        largest=largest,
        binding=hashlib.sha256(b"awards").digest(),
    )
    vectors = [
        np.array([rng.randint(-largest, largest) for _ in range(_LENGTH)], dtype=np.int64) for _ in range(sellers)
    ]
    journals = [MemoryJournal() for _ in range(sellers)]
    clients = [make_client(identities[number], journals[number]) for number in range(sellers)]
    network = Network.drawn(rng)
    played = FuzzedSum()
    server = make_server(terms)

    # (time, order of sending, receiver or −1 for the server, message); −2 is the server's clock.
    queue: list[tuple[float, int, int, bytes]] = []
    counter = 0
    sent: list[tuple[int, bytes]] = []

    def send(now: float, receiver: int, data: bytes) -> None:
        nonlocal counter
        copies = 0 if rng.random() < network.loss else 1 + (rng.random() < network.doubling)
        for _ in range(copies):
            counter += 1
            heapq.heappush(queue, (now + rng.expovariate(1.0), counter, receiver, data))

    def broadcast(now: float, messages: dict[int, Message]) -> None:
        nonlocal counter
        for receiver, message in messages.items():
            data = to_bytes(message)
            sent.append((receiver, data))
            send(now, receiver, data)
            if rng.random() < network.replay:
                send(now, *rng.choice(sent))
        counter += 1
        heapq.heappush(queue, (now + _PATIENCE, counter, -2, bytes([server.phase])))

    def step(now: float) -> None:
        try:
            messages = server.advance()
        except SumClosed:
            return
        if messages:
            broadcast(now, dict(messages))

    broadcast(0.0, dict(server.start()))
    while queue:
        now, _, receiver, data = heapq.heappop(queue)
        if receiver == -2:
            if bytes([server.phase]) == data:
                step(now)
            continue
        message = from_bytes(data)
        if receiver == -1:
            assert isinstance(message, SellerMessage)
            phase = server.phase
            if server.receive(message) and not server.waiting_for and server.phase is phase:
                step(now)
            continue
        if rng.random() < network.restart:
            clients[receiver] = make_client(identities[receiver], journals[receiver])
        try:
            vector = vectors[receiver] if isinstance(message, InputRequest) else None
            reply = answer(clients[receiver], message, vector)
        except SumRefusal:
            continue
        kind = type(message).__name__
        played.answers[receiver, kind] += 1
        if played.answers[receiver, kind] > 1:
            played.faults.append(f"seller {receiver} answered {kind} twice")
        send(now, -1, to_bytes(reply))

    result = server.result
    if result is not None:
        played.opened = True
        expected = sum((vectors[number] for number in result.survivors), np.zeros(_LENGTH, dtype=np.int64))
        if len(result.survivors) < terms.threshold:
            played.faults.append(f"{len(result.survivors)} survivors, {terms.threshold} are needed")
        if not np.array_equal(result.total, expected):
            played.faults.append("the total is not the survivors' sum")
    return played


def play_sums(rounds: int, seed: int = 0) -> dict[str, object]:
    """Plays many sums: how many were opened, and every fault."""
    started = time.perf_counter()
    opened = 0
    faults: list[str] = []
    for number in range(rounds):
        played = play_sum(seed + number)
        opened += played.opened
        faults += [f"sum {seed + number}: {fault}" for fault in played.faults]
    seconds = round(time.perf_counter() - started, 1)
    return {"rounds": rounds, "opened": opened, "closed": rounds - opened, "faults": faults, "seconds": seconds}


def main() -> None:
    """Plays as many sums as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    found = play_sums(chosen.rounds, chosen.seed)
    print(json.dumps(found, indent=1))
    raise SystemExit(bool(found["faults"]))


if __name__ == "__main__":
    main()
