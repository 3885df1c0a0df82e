"""Sharing out records that have no clients of their own.

Needs NumPy only, so that a client can bid without loading torch.

Implements: the sample distribution of Sec. VIII of [Sun2026] in two readings. [Hsu2019]: every client holds equally
many records and its mix of labels is a draw from Dir(α). Or each label's records are shared out among the clients
by a draw from Dir(α). Then sizes vary as well, at α = 0.1 by a large factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError, DataError, UnknownNameError

Labels = NDArray[np.int64]
Positions = NDArray[np.int64]


# Names the stream of random numbers that decides who holds which record.
_PARTITION = 1


def drawn_parts(labels: Labels, clients: int, alpha: float, sizes: str, seed: int) -> list[Positions]:
    """Record numbers of each client; they follow from the seed.

    Args:
        sizes: "equal" for as many records each, "dirichlet" for sizes that vary as well.
    """
    kinds = {"equal": dirichlet_partition, "dirichlet": dirichlet_sizes_partition}
    if sizes not in kinds:
        raise UnknownNameError.among("sizes", sizes, tuple(kinds))
    return kinds[sizes](labels, clients, alpha, np.random.default_rng([seed, _PARTITION]))


def iid_partition(labels: Labels, clients: int, rng: np.random.Generator) -> list[Positions]:
    """A random even split: `clients` arrays of record numbers, disjoint, all records used."""
    _check(labels, clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(labels.size), clients)]


def dirichlet_partition(labels: Labels, clients: int, alpha: float, rng: np.random.Generator) -> list[Positions]:
    """Equally many records each, labels in proportions drawn from Dir(α, …, α).

    Args:
        labels: (records,) the label of each record.
        clients: how many clients share the records.
        alpha: concentration; small is skewed, large is even.

    Returns:
        `clients` arrays of record numbers, disjoint; at most `clients` − 1 records are left over.
    """
    _check(labels, clients)
    _check_alpha(alpha)
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.array([pool.size for pool in pools])
    share = labels.size // clients
    parts: list[Positions] = []
    for _ in range(clients):
        mix = rng.dirichlet(np.full(classes, alpha))
        take = np.zeros(classes, dtype=np.int64)
        while (short := share - take.sum()) > 0:
            # Labels without records left drop out of the mix; if all have, the remaining records are the mix.
            open_mix = np.where(left - take > 0, mix, 0.0)
            if open_mix.sum() <= 1e-12:
                open_mix = (left - take).astype(np.float64)
            take = np.minimum(take + rng.multinomial(short, open_mix / open_mix.sum()), left)
        chosen = [pools[c][left[c] - take[c] : left[c]] for c in range(classes)]
        left -= take
        parts.append(np.sort(np.concatenate(chosen)))
    return parts


def dirichlet_sizes_partition(
    labels: Labels, clients: int, alpha: float, rng: np.random.Generator
) -> list[Positions]:
    """Each label's records shared out by Dir(α, …, α) over clients; sizes vary, some clients may hold none.

    Returns:
        `clients` arrays of record numbers, disjoint, all records used.
    """
    _check(labels, clients)
    _check_alpha(alpha)
    held: list[list[Positions]] = [[] for _ in range(clients)]
    for label in range(int(labels.max()) + 1):
        pool = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * pool.size).astype(np.int64)
        for client, part in enumerate(np.split(pool, cuts)):
            held[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in held]


def label_distance(labels: Labels, parts: list[Positions]) -> NDArray[np.float64]:
    """(clients,) total-variation distance between a client's label frequencies and those of all records.

    Implements: Δ of Eq. (valuation-fn) of [Sun2026]. A client without records has distance 0.
    """
    classes = int(labels.max()) + 1
    whole = np.bincount(labels, minlength=classes) / labels.size

    def distance(part: Positions) -> float:
        own = np.bincount(labels[part], minlength=classes) / max(1, part.size)
        return 0.5 * float(np.abs(own - whole).sum()) if part.size else 0.0

    return np.array([distance(part) for part in parts])


def _check_alpha(alpha: float) -> None:
    if not alpha > 0 or not np.isfinite(alpha):
        raise ConfigurationError(
            f"alpha is {alpha}: must be finite and above 0", "give 0.5 for a mild skew, 0.1 for a severe one"
        )


def _check(labels: Labels, clients: int) -> None:
    if clients < 1:
        raise ConfigurationError(f"clients is {clients}: must be at least 1", "give the number of clients")
    if labels.size < clients:
        raise DataError(
            f"{labels.size} records cannot be shared by {clients} clients",
            "use fewer clients or a larger data set",
        )
