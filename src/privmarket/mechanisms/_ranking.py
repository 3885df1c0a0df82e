"""Sorted views of bids, shared by the rules that buy from a prefix of a ranking.

Ties are broken by the client's position, on every machine alike, so that an auction can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privmarket.market._bids import Array

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Clients in ascending order of a key.

    Attributes:
        order: (..., clients) indices.
        key: (..., clients) the key in that order.
    """

    order: NDArray[np.intp]
    key: Array

    @classmethod
    def by(cls, key: Array) -> Ranking:
        """Ascending order of `key`, (..., clients); equal keys keep their positions.

        NumPy's default sort is several times faster than its stable one, so only the ties are put in order.
        """
        order = np.argsort(key, axis=-1)
        ranked = np.take_along_axis(key, order, axis=-1)
        same = ranked[..., 1:] == ranked[..., :-1]
        if same.any():
            edge = np.zeros((*same.shape[:-1], 1), dtype=np.bool_)
            after = np.concatenate([edge, same], axis=-1)
            before = np.concatenate([same, edge], axis=-1)
            tied = np.flatnonzero(after | before)
            run = np.cumsum(~after.ravel()[tied])
            flat = order.reshape(-1)
            n = order.shape[-1]
            # Runs follow each other, so sorting (run, index) as one integer keeps every index in its own run.
            flat[tied] = np.sort(run * n + flat[tied]) % n
        return cls(order, ranked)

    def sort(self, values: Array) -> Array:
        """(..., clients) values in rank order."""
        return np.take_along_axis(values, self.order, axis=-1)

    def first(self, count: NDArray[np.intp]) -> Mask:
        """(..., clients) true for the `count` lowest ranks; count: (..., 1)."""
        if self.order.ndim == 1:
            mask = np.zeros(self.order.shape, dtype=np.bool_)
            mask[self.order[: int(count[0])]] = True
            return mask
        inside = np.arange(self.order.shape[-1]) < count
        mask = np.empty(self.order.shape, dtype=np.bool_)
        np.put_along_axis(mask, self.order, inside, axis=-1)
        return mask


def count_prefix(holds: Mask) -> NDArray[np.intp]:
    """(..., 1) the largest k such that `holds[k − 1]`, 0 if none; `holds` (..., k) falls from true to false."""
    return np.count_nonzero(holds, axis=-1, keepdims=True)


def entry(ranked: Array, rank: NDArray[np.intp], beyond: float) -> Array:
    """(..., 1) `ranked[rank]`, or `beyond` where the rank does not exist. rank: (..., 1)."""
    n = ranked.shape[-1]
    found = np.take_along_axis(ranked, np.clip(rank, 0, n - 1), axis=-1)
    return np.where((rank >= 0) & (rank < n), found, beyond)
