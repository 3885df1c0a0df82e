"""Who the clients of a run are: the records they hold and what their privacy is worth to them.

Needs NumPy only, so that a client can bid without loading torch.
"""

from __future__ import annotations

import numpy as np

from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import Labels
from privmarket.federated.partition import Records, dirichlet_partition
from privmarket.market.bids import Bids
from privmarket.market.scenarios import scenario

# Streams of random numbers; `pool` holds the others.
_PARTITION, _TYPES = 1, 5


def client_parts(config: FederationConfig, labels: Labels) -> list[Records]:
    """Record numbers of each client, given the labels of all records, (records,)."""
    rng = np.random.default_rng([config.seed, _PARTITION])
    return dirichlet_partition(labels, config.clients, config.alpha, rng)


def client_types(config: FederationConfig, number: int) -> Bids:
    """(clients,) the clients' true valuations and caps in round `number`."""
    key = [config.seed, _TYPES] + ([number] if config.types == "redrawn" else [])
    return scenario(config.scenario).sample(np.random.default_rng(key), config.clients)
