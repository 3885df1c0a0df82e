"""How much memory a run takes, by number of clients: whole rounds of the real simulation, each in a fresh process.

The work: every client has 600 records of 784 numbers, an MLP 784-128-64-10, one full-batch step a round, and a
budget that buys from everybody, so that all updates exist at once. The records themselves, which a deployment would
keep at the clients, are part of the figure.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from privmarket._lazy import late
from privmarket.simulation._config import FederationConfig, Training

if TYPE_CHECKING:
    import torch

    from privmarket import tasks
    from privmarket.simulation import _federation as simulation
else:  # the process that only starts the others needs none of them
    torch = late("torch")
    tasks = late("privmarket.tasks")
    simulation = late("privmarket.simulation._federation")

RECORDS_PER_CLIENT = 600
_ROUNDS = 2


@dataclass(frozen=True)
class MemoryReport:
    """Peak resident memory of two rounds.

    Attributes:
        peak_bytes: clients → bytes of the whole process.
        record_bytes: clients → bytes of all clients' records alone.
    """

    peak_bytes: dict[int, int]
    record_bytes: dict[int, int]

    @property
    def bytes_per_client(self) -> float:
        """Bytes per further client: the slope between the smallest and the largest run."""
        few, many = min(self.peak_bytes), max(self.peak_bytes)
        return (self.peak_bytes[many] - self.peak_bytes[few]) / (many - few)

    def to_dict(self) -> dict[str, object]:
        """The figures as JSON data."""
        return {**asdict(self), "bytes_per_client": self.bytes_per_client}


def measure(clients: tuple[int, ...], progress: Callable[[str], None] = lambda _: None) -> MemoryReport:
    """One process per number of clients: a process never gives back what it once took."""
    peak = {}
    for count in clients:
        progress(f"{count} clients")
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(count)], capture_output=True, text=True, check=True
        )
        peak[count] = int(json.loads(done.stdout)["peak_bytes"])
    return MemoryReport(peak, {count: count * RECORDS_PER_CLIENT * 784 * 4 for count in clients})


def _peak_bytes(clients: int) -> int:
    """Runs two rounds in this process and returns the most memory that it ever held."""
    rng = np.random.default_rng(0)
    records = clients * RECORDS_PER_CLIENT
    images = rng.standard_normal((records, 1, 28, 28), dtype=np.float32)
    labels = rng.integers(0, 10, records)
    data = tasks.Dataset("random", images, labels, images[:1000], labels[:1000])
    parts = [np.arange(i * RECORDS_PER_CLIENT, (i + 1) * RECORDS_PER_CLIENT) for i in range(clients)]
    # At 10 per client and ε ≤ 5, everyone sells all it offers.
    config = FederationConfig(
        clients=clients,
        budget=10.0 * clients,
        rounds=_ROUNDS,
        evaluate_every=_ROUNDS,
        training=Training(model="mlp"),
    )
    with simulation.Federation(config, task=tasks.task_of(data, parts, model="mlp")) as federation:
        state = federation.start()
        for _ in range(_ROUNDS):
            state = federation.step(state)
    if state.records[-1].sellers != clients:
        raise RuntimeError(f"{state.records[-1].sellers} of {clients} clients sold: not the whole work")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"peak_bytes": _peak_bytes(int(sys.argv[1]))}))
