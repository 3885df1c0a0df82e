"""Who shares masks with whom in a secure sum: everybody with everybody, or a ring of neighbours of order log n.

Sellers stand on a ring in an order that follows from a hash of all their keys, so nobody chooses his neighbours or
another's; who has the root of the list of all sellers can work out at which places of it his neighbours stand. Each
shares masks and pieces of its keys with the `window` sellers nearest to it, itself included. A quarter of every
neighbourhood may drop out; where more do, the sum is not opened.

What could go wrong is that colluding sellers happen to stand together: a sum of some sellers could be read if at
two places (window − 1)/2 sellers in a row collude, but for a quarter of a window, or if in one window all do but
two quarters of it. The window is so large that this has probability below 2⁻⁴⁰ when as many sellers collude as may
(`shares.colluders_allowed`), whoever else drops out or is said to, and whatever a server hides from whom; proof:
docs/theory/secure-sums.md. It is also so large that sellers who vanish by chance, one in ten, seldom thin a
neighbourhood too much. Whatever the masks do, each seller's own share of the noise stays on its vector.

Notation: n sellers, c of them colluding, m = (window − 1)/2.
Implements: the neighbour graph of [BellEtAl2020], as a ring, with exact hypergeometric tails.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaln

from privmarket.federated.shares import colluders_allowed, survivors_needed

FAILURE = 2.0**-40
_MAY_DROP = 4  # one in so many of a neighbourhood
# Of sellers who vanish by chance, so many, a round is lost for a thin neighbourhood with at most this probability.
_VANISH, _LOST = 0.1, 0.01
# Below this many sellers the ring saves little, and everybody with everybody survives more drop-outs.
_RING_FROM = 100
# In a large sum nobody reads the list of all or looks at every signature, but at a sample of them, of which one in
# so many may miss. A list that too few signed passes with probability 2⁻⁸¹; of 2⁴⁰ such lists, 2⁻⁴¹.
MAY_MISS, FOOLED = 20, 2.0**-81
_LARGEST_SAMPLE = 4096


@dataclass(frozen=True)
class Neighbourhood:
    """How keys and masks are shared among the n sellers of one sum.

    Attributes:
        sellers: n.
        window: into how many pieces each key is cut: the seller's own and one for each neighbour; n, or odd.
        threshold: how many pieces restore a key.
        needed: how many sellers must come through, see `shares.survivors_needed`.
        signed: how many survivors must have signed the list of survivors: more than (n + c)/2, so that no two lists
            can have so many, if every honest seller signs one and every colluder both.
        sample: how many signatures are looked at, at random, of which all but one in `MAY_MISS` must be good; 0 for
            as many as must have signed.
    """

    sellers: int
    window: int
    threshold: int
    needed: int
    signed: int
    sample: int = 0

    @property
    def everybody(self) -> bool:
        """Whether each seller shares masks with all others, instead of with neighbours on a ring."""
        return self.window >= self.sellers

    def windows(self, ring: NDArray[np.int64]) -> dict[int, frozenset[int]]:
        """place → the places of its neighbours and its own, for sellers in the order of `ring`."""
        if self.everybody:
            return dict.fromkeys(range(self.sellers), frozenset(range(self.sellers)))
        reach = self.window // 2
        around = np.concatenate([ring[self.sellers - reach :], ring, ring[:reach]])
        return {int(place): frozenset(around[at : at + self.window].tolist()) for at, place in enumerate(ring)}

    def window_of(self, place: int, ring: NDArray[np.int64]) -> frozenset[int]:
        """The places of one seller's neighbours and its own."""
        if self.everybody:
            return frozenset(range(self.sellers))
        at, reach = int(np.flatnonzero(ring == place)[0]), self.window // 2
        return frozenset(ring[np.arange(at - reach, at + reach + 1) % self.sellers].tolist())


@lru_cache(maxsize=256)
def neighbourhood(sellers: int, honest_share: float) -> Neighbourhood:
    """The neighbourhood that a sum of so many sellers needs; server and sellers compute the same."""
    needed, colluders = survivors_needed(sellers, honest_share), colluders_allowed(sellers, honest_share)
    window = smallest_window(sellers, colluders) if sellers >= _RING_FROM else sellers
    signed = (sellers + colluders) // 2 + 1
    if window == sellers:
        return Neighbourhood(sellers, sellers, needed, needed, signed)
    return Neighbourhood(
        sellers, window, window - window // _MAY_DROP, needed, signed, smallest_sample(needed, signed)
    )


def smallest_sample(survivors: int, signed: int) -> int:
    """How many signatures to look at, instead of as many as must have signed; 0 where that saves none.

    A list that too few of at least so many survivors signed must pass with a probability of at most 2⁻⁸¹.
    """
    too_few = (signed - 1) / survivors
    sizes = np.arange(MAY_MISS, min(signed, _LARGEST_SAMPLE))
    missing = sizes // MAY_MISS
    enough = sizes[bdtrc(sizes - missing - 1, sizes, too_few) <= FOOLED]
    return int(enough[0]) if enough.size else 0


def smallest_window(sellers: int, colluders: int) -> int:
    """The smallest window that is safe and seldom too thin; n where there is none.

    Of the numbers 3, 7, 11, … only, for which of a run of m sellers more than half must collude.
    """
    low, high, most = 0, 1, (sellers - 3) // 4
    while high < most and not _suffices(sellers, colluders, 4 * high + 3):
        low, high = high, min(2 * high, most)
    if most < 1 or not _suffices(sellers, colluders, 4 * high + 3):
        return sellers
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _suffices(sellers, colluders, 4 * middle + 3) else (middle, high)
    return 4 * high + 3


def _suffices(sellers: int, colluders: int, window: int) -> bool:
    """Whether colluders see more than the sum with probability at most 2⁻⁴⁰, and few rounds are lost by chance."""
    lost = sellers * float(bdtrc(window // _MAY_DROP, window - 1, _VANISH))
    return lost <= _LOST and failure_probability(sellers, colluders, window) <= FAILURE


def failure_probability(sellers: int, colluders: int, window: int) -> float:
    """A bound on the probability that a ring in random order gives more away than one sum.

    Args:
        colluders: c. Others drop out where it hurts most: which ones a server can say when it knows the order.
    """
    reach, may_drop = window // 2, window // _MAY_DROP
    # `reach` sellers in a row who all collude but for `may_drop`. To cut the ring in two takes two such runs;
    # places of colluders are negatively associated, so both have at most the product's probability.
    run = _chance_of(reach - may_drop, reach, colluders, sellers)
    # Or a neighbourhood in which all collude but for `may_drop` who do not answer and `may_drop` whom some of the
    # others do not mask against. One with enough colluders to restore its centre's keys is such a neighbourhood.
    crowded = _chance_of(window - 2 * may_drop, window, colluders, sellers)
    return sellers * (sellers - 1) / 2.0 * run**2 + sellers * crowded


def _chance_of(least: int, drawn: int, colluders: int, sellers: int) -> float:
    """The probability that at least so many of some sellers, drawn at random, collude: a hypergeometric tail."""
    found = np.arange(max(0, least, drawn - (sellers - colluders)), min(drawn, colluders) + 1)
    others = sellers - colluders
    logs = _log_binomial(colluders, found) + _log_binomial(others, drawn - found) - _log_binomial(sellers, drawn)
    return float(np.exp(logs).sum())


def _log_binomial(n: int, k: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """The logarithm of the binomial coefficient n over k, same shape as k."""
    found: NDArray[np.float64] = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return found


def ring_order(seed: bytes, size: int) -> NDArray[np.int64]:
    """(size,) the numbers from 0 in an order that follows from the seed: every order has the same probability.

    The smaller of two 64-bit numbers from AES goes first; equal ones, of which there are none below a million
    sellers but for a chance of 2⁻²⁵, go in their own order.
    """
    stream = Cipher(algorithms.AES(hashlib.sha256(seed).digest()[:16]), modes.CTR(bytes(16))).encryptor()
    keys = np.frombuffer(stream.update(bytes(8 * size)), dtype="<u8")
    return np.argsort(keys, kind="stable").astype(np.int64)
