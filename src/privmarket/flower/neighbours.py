"""Who shares masks with whom in a secure sum: everybody with everybody, or a ring of neighbours of order log n.

Sellers stand on a ring in an order that follows from a hash of all their keys, so nobody chooses his neighbours or
another's. Each shares masks and pieces of its keys with the `window` sellers nearest to it, itself included. A
sixth of every neighbourhood may drop out; where more do, the sum is not opened.

What could go wrong is that colluding sellers happen to stand together: (window − 1)/2 sellers in a row that collude
or dropped out cut the ring, and a sum over one arc could be read; a neighbourhood with `threshold` colluders gives
away its centre's keys. The window is the smallest for which that has probability below 2⁻⁴⁰ when all n − h sellers
that need not be honest collude, or drop out where it hurts most. Whatever the masks do, each seller's own share of
the noise stays on its vector.

Notation: n sellers, h of them honest and present, m = (window − 1)/2.
Implements: the neighbour graph of [BellEtAl2020], as a ring, with exact hypergeometric tails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy.stats import hypergeom

from privmarket.federated.shares import honest_sellers, survivors_needed

FAILURE = 2.0**-40
_MAY_DROP = 6  # one in so many of a neighbourhood
# Below this many sellers the ring saves little, and everybody with everybody survives more drop-outs.
_RING_FROM = 100


@dataclass(frozen=True)
class Neighbourhood:
    """How keys and masks are shared among the n sellers of one sum.

    Attributes:
        sellers: n.
        window: into how many pieces each key is cut: the seller's own and one for each neighbour; n, or odd.
        threshold: how many pieces restore a key.
        needed: how many sellers must come through, see `shares.survivors_needed`.
    """

    sellers: int
    window: int
    threshold: int
    needed: int

    @property
    def everybody(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return self.window >= self.sellers

    def windows(self, ring: Sequence[int]) -> dict[int, frozenset[int]]:
        """node → its neighbours and itself, for sellers in the order of `ring`."""
        if self.everybody:
            return dict.fromkeys(ring, frozenset(ring))
        reach = self.window // 2
        places = range(-reach, reach + 1)
        return {
            node: frozenset(ring[(at + place) % self.sellers] for place in places) for at, node in enumerate(ring)
        }

    def window_of(self, node: int, ring: Sequence[int]) -> frozenset[int]:
        """The neighbours of one node and itself."""
        if self.everybody:
            return frozenset(ring)
        at, reach = ring.index(node), self.window // 2
        return frozenset(ring[(at + place) % self.sellers] for place in range(-reach, reach + 1))


@lru_cache(maxsize=256)
def neighbourhood(sellers: int, honest_share: float) -> Neighbourhood:
    """The neighbourhood that a sum of so many sellers needs; server and sellers compute the same."""
    needed = survivors_needed(sellers, honest_share)
    if sellers >= _RING_FROM:
        most_colluders = sellers - honest_sellers(sellers, honest_share)
        window = smallest_window(sellers, most_colluders)
        if window < sellers:
            return Neighbourhood(sellers, window, window - window // _MAY_DROP, needed)
    return Neighbourhood(sellers, sellers, needed, needed)


def smallest_window(sellers: int, colluders: int) -> int:
    """The smallest odd window whose failure has a probability of at most 2⁻⁴⁰; n where there is none.

    Smallest up to rounding: what may drop out of a neighbourhood jumps by one every few windows.
    """
    most = (sellers - 1) // 2
    high = min(8, most)
    while high < most and failure_probability(sellers, colluders, 2 * high + 1) > FAILURE:
        high = min(2 * high, most)
    if failure_probability(sellers, colluders, 2 * high + 1) > FAILURE:
        return sellers
    low = 1
    while low < high:
        middle = (low + high) // 2
        if failure_probability(sellers, colluders, 2 * middle + 1) > FAILURE:
            low = middle + 1
        else:
            high = middle
    return 2 * low + 1


def failure_probability(sellers: int, colluders: int, window: int) -> float:
    """A bound on the probability that a ring in random order gives more away than one sum.

    Args:
        colluders: how many sellers collude or drop out, in all; those that drop out are the worst possible ones.
    """
    reach, may_drop = window // 2, window // _MAY_DROP
    # Somewhere `reach` sellers in a row of whom x dropped out and all others collude: the ring may be cut there.
    cut = max(
        float(hypergeom.sf(reach - dropped - 1, sellers, colluders - dropped, reach))
        for dropped in range(min(may_drop, colluders) + 1)
    )
    # Some neighbourhood holds enough colluders to restore its centre's keys.
    betrayed = float(hypergeom.sf(window - may_drop - 1, sellers, colluders, window))
    return sellers * (cut + betrayed)


def ring_order(seed: bytes, nodes: Sequence[int]) -> list[int]:
    """The nodes in an order that follows from the seed and looks random to whoever did not choose it."""
    return sorted(nodes, key=lambda node: hashlib.sha256(seed + node.to_bytes(8, "little")).digest())
