"""Times one tree's private rounds: a script that runs with any tree of this package first on the path.

Reads the name of a round from each line of its input and answers with processor seconds, so that two trees can take
turns. It uses only names that trees before the release kernel have, too.

python federated_speed_worker.py CLIENTS RECORDS
"""

import sys
import time
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch

from privmarket.privacy._noise import NoiseSource

# Trees before `privmarket.training` have the same names in two modules of another package.
_NEW = find_spec("privmarket.training") is not None
_local = import_module("privmarket.training" if _NEW else "privmarket.simulation.local")
_models = import_module("privmarket.training" if _NEW else "privmarket.simulation.models")

BATCH = 32
# Clients trained at once in the simulation: many where batches are small, few where a step takes all records.
CHUNK = {"one step": 10, "several steps": 25}


def main(clients: int, records: int) -> None:
    """Measures one turn for every line on standard input, until the input ends."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = _models.build_model("mlp", (1, 28, 28), 10)
    weights = model.initial_weights(np.random.default_rng(0))
    images = torch.randn(clients * records, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (clients * records,), generator=generator)
    plans = {
        "one step": _local.LocalPlan(1, 1.0, 1.0, 0.1, float(records)),
        "several steps": _local.LocalPlan(-(-records // BATCH), BATCH / records, 1.0, 0.1, float(BATCH)),
    }

    def seconds(name: str) -> float:
        start = time.process_time()
        for first in range(0, clients, CHUNK[name]):
            count = min(CHUNK[name], clients - first)
            rows = slice(first * records, (first + count) * records)
            chunk = _local.ClientRecords(images[rows], labels[rows], [records] * count)
            sources = [NoiseSource.from_system() for _ in range(count)]
            _local.private_updates(model, weights, chunk, plans[name], [1.0] * count, sources)
        return time.process_time() - start

    seconds("one step")  # tables of the noise are made once per process
    for line in sys.stdin:
        print(seconds(line.strip()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
