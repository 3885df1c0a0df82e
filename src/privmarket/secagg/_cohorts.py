"""Several sums for many sellers: each seller's cohort is drawn at random, and nobody controls the draw alone.

A server that could choose the cohorts could put one seller among its own. So the cohorts follow from a seed that is
fixed after everybody's keys. First every seller sends a commitment, the hash of a secret, under its registered key.
Then the list of commitments is published. Then the secrets are opened, and the seed is a hash of the list and of
all secrets. If one seller is honest the seed is uniform, and nobody knows it before the list is fixed. If a secret
of the list is not opened there is no seed and no sum: otherwise whoever opens last could choose between two seeds.
A seller opens its secret for one list per round (`Client.reveal`), so a round cannot be dealt twice.

The commitment and the order of the cohorts use SHA-256.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import label
from privmarket.secagg._plan import colluders_allowed, honest_sellers
from privmarket.secagg._shamir import SECRET_BYTES

DEFAULT_COHORT = 400
"""The most sellers of one sum, unless agreed otherwise; measured, see docs/theory/secure-sums.md."""


def commitment(key: bytes, secret: bytes) -> bytes:
    """What a seller publishes with its registered key before anything is dealt.

    Args:
        secret: 32 random bytes of its own.
    """
    return hashlib.sha256(label("dealing") + key + secret).digest()


def dealing_seed(commitments: Mapping[bytes, bytes], secrets: Mapping[bytes, bytes]) -> bytes:
    """The seed of a dealing, from the published commitments and the secrets that were opened afterwards.

    Args:
        commitments: registered key → commitment, of the sellers that sent one.
        secrets: registered key → secret.

    Raises:
        SumRefusal: `members`, if a secret is missing or does not match its commitment.
    """
    for key, committed in commitments.items():
        secret = secrets.get(key, b"")
        if len(secret) != SECRET_BYTES or commitment(key, secret) != committed:
            raise SumRefusal(
                "members",
                f"the seller with key {key.hex()[:16]}… has not opened its commitment",
                "hold the next round without it; this one cannot be dealt",
            )
    total = hashlib.sha256(label("dealing seed"))
    for key in sorted(commitments):
        total.update(key + commitments[key] + secrets[key])
    return total.digest()


def deal_cohorts(
    members: Sequence[bytes], seed: bytes, largest: int = DEFAULT_COHORT
) -> tuple[tuple[bytes, ...], ...]:
    """The cohorts of a round: as few as possible with at most `largest` sellers each, of nearly equal sizes.

    Args:
        members: the registered keys of all awarded sellers, in any order.
        seed: from `dealing_seed`, or a broker's log head that followed the awards.
        largest: the most sellers of one sum.

    Returns:
        Each cohort's keys, ascending, as in `SumTerms.members`.
    """
    keys = sorted(set(members))
    if len(keys) != len(members):
        raise SumRefusal("members", "one seller twice in a dealing")
    places = deal_places(len(keys), seed, largest)
    cohorts = int(places.max()) + 1
    return tuple(tuple(key for key, at in zip(keys, places, strict=True) if at == one) for one in range(cohorts))


def deal_places(sellers: int, seed: bytes, largest: int = DEFAULT_COHORT) -> NDArray[np.int64]:
    """(sellers,) the number of each seller's cohort. Over the seed, every assignment is equally likely."""
    if sellers < 1 or largest < 1:
        raise SumRefusal("terms", f"cohorts of at most {largest} of {sellers} sellers")
    hashes = [
        hashlib.sha256(label("cohort") + seed + place.to_bytes(8, "little")).digest() for place in range(sellers)
    ]
    order = sorted(range(sellers), key=lambda place: hashes[place])
    cohorts = cohorts_of(sellers, largest)
    places = np.empty(sellers, dtype=np.int64)
    for at, place in enumerate(order):
        places[place] = at % cohorts
    return places


def cohort_sizes(sellers: int, largest: int = DEFAULT_COHORT) -> list[int]:
    """How many sellers each cohort of a round has, largest first: as few cohorts as possible, nearly equal."""
    cohorts = cohorts_of(sellers, largest)
    smaller, larger = divmod(sellers, cohorts)
    return [smaller + 1] * larger + [smaller] * (cohorts - larger)


def cohorts_of(sellers: int, largest: int = DEFAULT_COHORT) -> int:
    """How many secure sums a round of `sellers` sellers has; the noise grows with the square root of it."""
    return max(1, -(-sellers // largest))


def honest_per_cohort(sellers: int, honest_share: float, largest: int = DEFAULT_COHORT) -> int:
    """h of the largest cohort of a round, where each seller's part of the noise is least; 0 without sellers."""
    if sellers == 0:
        return 0
    return honest_sellers(max(cohort_sizes(sellers, largest)), honest_share)


def crowded_cohort_probability(
    sellers: int, colluders: int, honest_share: float, largest: int = DEFAULT_COHORT
) -> float:
    """A bound on the probability that some cohort has more colluders than its sum tolerates.

    Each cohort is a sample without replacement, so its number of colluders is hypergeometric. The bound is the sum
    over cohorts.

    Args:
        colluders: their number among all sellers of the round.
    """
    total = 0.0
    for size, cohorts in Counter(cohort_sizes(sellers, largest)).items():
        total += cohorts * _more_than(colluders_allowed(size, honest_share), size, colluders, sellers)
    return min(1.0, total)


def _more_than(allowed: int, drawn: int, colluders: int, sellers: int) -> float:
    """The probability that more than `allowed` of `drawn` sellers collude: a hypergeometric tail."""
    found = np.arange(max(allowed + 1, drawn - (sellers - colluders)), min(drawn, colluders) + 1)
    chosen = _log_binomial(colluders, found) + _log_binomial(sellers - colluders, drawn - found)
    return float(np.exp(chosen - _log_binomial(sellers, np.array(drawn))).sum())


def _log_binomial(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """The logarithm of the binomial coefficient n over k, same shape as k."""
    found: NDArray[np.float64] = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return found
