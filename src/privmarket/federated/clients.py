"""Who the clients of a run are: the records they hold, and what their privacy is worth to them.

Needs NumPy only, so that a client can bid without loading torch.

Implements: the sample distribution of Sec. VIII of [Sun2026] in the reading of [Hsu2019]: every client holds
equally many records and its mix of labels is a draw from Dir(α).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError, DataError
from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import Labels
from privmarket.market.bids import Bids
from privmarket.market.scenarios import scenario

Records = NDArray[np.int64]
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


def iid_partition(labels: Labels, clients: int, rng: np.random.Generator) -> list[Records]:
    """A random even split: `clients` arrays of record numbers, disjoint, all records used."""
    _check(labels, clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(labels.size), clients)]


def dirichlet_partition(labels: Labels, clients: int, alpha: float, rng: np.random.Generator) -> list[Records]:
    """Equally many records each, labels in proportions drawn from Dir(α, …, α).

    Args:
        labels: (records,) the label of each record.
        clients: how many clients share the records.
        alpha: concentration; small is skewed, large is even.

    Returns:
        `clients` arrays of record numbers, disjoint; at most `clients` − 1 records are left over.
    """
    _check(labels, clients)
    if not alpha > 0 or not np.isfinite(alpha):
        raise ConfigurationError(f"alpha is {alpha}: must be finite and above 0", "0.5 is mild, 0.1 is severe")
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.array([pool.size for pool in pools])
    share = labels.size // clients
    parts: list[Records] = []
    for _ in range(clients):
        mix = rng.dirichlet(np.full(classes, alpha))
        take = np.zeros(classes, dtype=np.int64)
        while (short := share - take.sum()) > 0:
            # Labels that ran out drop from the mix; a mix that died out altogether becomes what is left.
            open_mix = np.where(left - take > 0, mix, 0.0)
            if open_mix.sum() <= 1e-12:
                open_mix = (left - take).astype(np.float64)
            take = np.minimum(take + rng.multinomial(short, open_mix / open_mix.sum()), left)
        chosen = [pools[c][left[c] - take[c] : left[c]] for c in range(classes)]
        left -= take
        parts.append(np.sort(np.concatenate(chosen)))
    return parts


def _check(labels: Labels, clients: int) -> None:
    if clients < 1:
        raise ConfigurationError(f"clients is {clients}: must be at least 1", "give the number of clients")
    if labels.size < clients:
        raise DataError(
            f"{labels.size} records cannot be shared by {clients} clients",
            "use fewer clients or a larger data set",
        )
