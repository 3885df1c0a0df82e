"""What a secure sum costs: processor seconds and bytes of a client and of the server, measured.

`python -m privmarket_studies.secagg_cost docs` writes the page `results/secure-sums/README.md` again
from `costs.json` beside it; `--measure sums simulation fuzz`, or some of these, measures that anew and keeps
the rest. All sellers and the server run in one process, one after the other; journals are files, as for a real
seller.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import tempfile
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

import jinja2
import numpy as np

from privmarket._files import write_atomically
from privmarket.secagg import (
    DEFAULT_COHORT,
    Client,
    FileJournal,
    InputRequest,
    Message,
    SellerMessage,
    Server,
    SigningIdentity,
    SumTerms,
    answer,
    crowded_cohort_probability,
    exact_bits,
    from_bytes,
    to_bytes,
)
from privmarket.simulation._config import FederationConfig, Training
from privmarket_studies.flower_speed import simulation_seconds
from privmarket_studies.secagg_fuzz import play_sums

COSTS = Path("results") / "secure-sums" / "costs.json"
PAGE = COSTS.with_name("README.md")
SELLERS = (50, 100, 200, 400)
WEIGHTS = 100_000
LARGEST = 2**24  # about what 600 clipped records and two digits of noise come to
HONEST_SHARE = FederationConfig.honest_share
FUZZ_ROUNDS = 10_000
FUZZ_SEED = 50_000
ASKED_RATIO = 1.3  # of a simulated round under aggregate trust over one under local trust
STEPS = ("KEYS", "SHARES", "CHECKS", "INPUTS", "CONFIRMATIONS", "OPENINGS")


class SumCost(TypedDict):
    """One measured sum.

    Attributes:
        dropped: how many sellers vanished when they were asked for their vectors.
        client_seconds: step → processor seconds of a client, the mean over clients.
        server_seconds: step → processor seconds of the server.
        bytes_up, bytes_down: what one client sends and gets, the mean; the model's weights are not counted.
        plain_server_seconds: to add up as many plain vectors of 32-bit floats.
        load_average: of the machine when the sum had ended.
    """

    sellers: int
    weights: int
    dropped: int
    threshold: int
    bits: int
    client_seconds: dict[str, float]
    server_seconds: dict[str, float]
    bytes_up: int
    bytes_down: int
    plain_server_seconds: float
    load_average: float


def measured_sum(sellers: int, weights: int = WEIGHTS, *, dropping: bool = False) -> SumCost:
    """Plays one sum, and checks that it is exact.

    Args:
        dropping: whether as many sellers as may vanish when they are asked for their vectors, where it costs most.
    """
    identities = sorted((SigningIdentity.generate() for _ in range(sellers)), key=lambda one: one.public_key)
    terms = SumTerms(
        task="cost",
        round=0,
        members=tuple(one.public_key for one in identities),
        honest_share=HONEST_SHARE,
        length=weights,
        bits=exact_bits(LARGEST, sellers),
        largest=LARGEST,
        binding=bytes(32),
    )
    dropped = sellers - terms.threshold if dropping else 0
    client_seconds = dict.fromkeys(STEPS, 0.0)
    server_seconds = dict.fromkeys(STEPS, 0.0)
    up = 0
    down = 0
    expected = np.zeros(weights, dtype=np.int64)
    rng = np.random.default_rng(sellers)
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        clients = [Client(one, FileJournal(Path(folder) / str(at))) for at, one in enumerate(identities)]
        server = Server(terms)
        messages: dict[int, Message] = dict(server.start())
        while messages:
            step = server.phase.name
            for number, message in messages.items():
                if isinstance(message, InputRequest) and number < dropped:
                    continue
                vector = rng.integers(-LARGEST, LARGEST + 1, weights) if isinstance(message, InputRequest) else None
                data = to_bytes(message)
                down += len(data)
                begun = time.process_time()
                reply = to_bytes(answer(clients[number], from_bytes(data), vector))
                client_seconds[step] += time.process_time() - begun
                up += len(reply)
                if vector is not None:
                    expected += vector
                begun = time.process_time()
                received = from_bytes(reply)
                assert isinstance(received, SellerMessage)
                assert server.receive(received)
                server_seconds[step] += time.process_time() - begun
            begun = time.process_time()
            messages = dict(server.advance())
            server_seconds[step] += time.process_time() - begun
    assert server.result is not None
    assert np.array_equal(server.result.total, expected)
    return {
        "sellers": sellers,
        "weights": weights,
        "dropped": dropped,
        "threshold": terms.threshold,
        "bits": terms.bits,
        "client_seconds": {step: seconds / sellers for step, seconds in client_seconds.items()},
        "server_seconds": server_seconds,
        "bytes_up": round(up / sellers),
        "bytes_down": round(down / sellers),
        "plain_server_seconds": _plain_seconds(sellers, weights),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _plain_seconds(sellers: int, weights: int) -> float:
    """Processor seconds to read and add up so many vectors of 32-bit floats."""
    data = np.ones(weights, dtype=np.float32).tobytes()
    total = np.zeros(weights, dtype=np.float32)
    begun = time.process_time()
    for _ in range(sellers):
        total += np.frombuffer(data, dtype=np.float32)
    return time.process_time() - begun


def measured_simulation(turns: int = 6) -> dict[str, object]:
    """Processor seconds of a simulated round under both trusts: 100 clients of MNIST, one full-batch step.

    The trusts take turns and every turn is kept, but for the first, which loads records.
    """
    base = FederationConfig(dataset="mnist", clients=100, budget=50.0, rounds=3, evaluate_every=1000)
    configs = {trust: base.replace(training=Training(model="mlp"), trust=trust) for trust in ("local", "aggregate")}
    taken = [{trust: simulation_seconds(config) for trust, config in configs.items()} for _ in range(turns)][1:]
    return {"dataset": "mnist", "clients": 100, "turns": taken, "load_average": round(os.getloadavg()[0], 1)}


def render(costs: dict[str, object]) -> str:
    """The page, from what was measured."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["time"] = _time
    environment.filters["size"] = _size
    text = files("privmarket_studies").joinpath("templates/secure_sums.md").read_text(encoding="utf-8")
    several = [
        {
            "sellers": sellers,
            "cohorts": -(-sellers // DEFAULT_COHORT),
            "noise": (-(-sellers // DEFAULT_COHORT)) ** 0.5,
            "crowded": crowded_cohort_probability(sellers, sellers // 10, HONEST_SHARE),
        }
        for sellers in (400, 800, 1_600, 4_000, 10_000)
    ]
    return environment.from_string(text).render(**costs, several=several, cohort=DEFAULT_COHORT, asked=ASKED_RATIO)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _size(count: float) -> str:
    return f"{count / 1000:.0f} kB"


def main() -> None:
    """Measures what the command line names, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("docs", type=Path)
    parser.add_argument("--measure", nargs="*", default=[], choices=["sums", "simulation", "fuzz"])
    chosen = parser.parse_args()
    path = chosen.docs / COSTS
    costs: dict[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if "sums" in chosen.measure:
        costs["sums"] = [measured_sum(n, dropping=dropping) for n in SELLERS for dropping in (False, True)]
        costs["machine"] = f"Python {platform.python_version()}, cryptography {version('cryptography')}"
        costs["cores"] = os.cpu_count()
    if "simulation" in chosen.measure:
        costs["simulation"] = measured_simulation()
    if "fuzz" in chosen.measure:
        costs["fuzz"] = play_sums(FUZZ_ROUNDS, FUZZ_SEED)
    write_atomically(path, json.dumps(costs, indent=1, sort_keys=True) + "\n")
    write_atomically(chosen.docs / PAGE, render(costs))


if __name__ == "__main__":
    main()
