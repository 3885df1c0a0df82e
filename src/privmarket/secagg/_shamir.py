"""Shamir's scheme: a secret of 32 bytes in pieces. Any T of them restore it, and fewer reveal nothing.

The secret is read as 18 numbers of 15 bits, each the constant term of a random polynomial of degree T − 1 over the
field of 65,521 elements; piece number x holds the polynomials' values at x. The values of all polynomials at all
numbers are one product of two matrices of numbers below 2^16, whose sums stay below 2^53 and are exact in floating
point. So a secret is cut into a hundred pieces in less than a millisecond.

Fewer than T pieces are independent of the secret in every field with more elements than pieces, however small,
since every value of the secret is consistent with them.

A piece: its number in 2 bytes, then 2 bytes per polynomial.
Implements: [Shamir1979].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SECRET_BYTES = 32
_PRIME = 65_521  # the largest below 2^16
_GENERATOR = 17  # every element but 0 is a power of it
_LIMB_BITS = 15
_LIMBS = -(-8 * SECRET_BYTES // _LIMB_BITS)
_ELEMENT_BYTES = 2
PIECE_BYTES = _ELEMENT_BYTES * (1 + _LIMBS)
MOST_PIECES = _PRIME - 1
_LIMB_WEIGHTS = 1 << np.arange(_LIMB_BITS)

Whole = NDArray[np.int64]


def split(
    secret: bytes, threshold: int, pieces: int, random_bytes: Callable[[int], bytes] = os.urandom
) -> list[bytes]:
    """`pieces` pieces of the secret, numbered from 1, any `threshold` of which restore it.

    Raises:
        ValueError: unless 1 ≤ threshold ≤ pieces < 65,521 and the secret has 32 bytes.
    """
    if not 1 <= threshold <= pieces <= MOST_PIECES:
        raise ValueError(f"{threshold} of {pieces} pieces cannot restore a secret")
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, where {SECRET_BYTES} are cut")
    coefficients = np.vstack([_limbs(secret), _uniform(threshold - 1, random_bytes)])
    values = (_powers(pieces, threshold) @ coefficients).astype(np.int64) % _PRIME
    table = np.column_stack([np.arange(1, pieces + 1), values]).astype("<u2")
    return [row.tobytes() for row in table]


def piece_number(piece: bytes) -> int:
    """The number of a piece, from 1 on; 0 if these bytes are not a piece."""
    return int.from_bytes(piece[:_ELEMENT_BYTES], "little") if len(piece) == PIECE_BYTES else 0


def restore(pieces: Sequence[bytes]) -> bytes | None:
    """The secret, from exactly as many pieces as its threshold.

    Returns:
        None if the pieces are damaged or certainly not of one secret. Wrong pieces may still give a wrong secret
        (one time in 2^32), so compare the result with a commitment.
    """
    if {len(piece) for piece in pieces} != {PIECE_BYTES}:
        return None
    table = np.frombuffer(b"".join(pieces), dtype="<u2").reshape(len(pieces), -1).astype(np.int64)
    numbers = table[:, 0]
    if np.unique(numbers).size != numbers.size or not numbers.all() or table.max() >= _PRIME:
        return None
    factors = _factors_at_zero(tuple(numbers.tolist()))
    return _secret((factors @ table[:, 1:].astype(np.float64)).astype(np.int64) % _PRIME)


def _limbs(secret: bytes) -> Whole:
    """(limbs,) the secret as numbers of 15 bits."""
    bits = np.zeros(_LIMBS * _LIMB_BITS, dtype=np.int64)
    bits[: 8 * SECRET_BYTES] = np.unpackbits(np.frombuffer(secret, dtype=np.uint8), bitorder="little")
    limbs: Whole = bits.reshape(_LIMBS, _LIMB_BITS) @ _LIMB_WEIGHTS
    return limbs


def _secret(limbs: Whole) -> bytes | None:
    bits = ((limbs[:, None] >> np.arange(_LIMB_BITS)) & 1).astype(np.uint8).reshape(-1)
    if (limbs >> _LIMB_BITS).any() or bits[8 * SECRET_BYTES :].any():
        return None
    return np.packbits(bits[: 8 * SECRET_BYTES], bitorder="little").tobytes()


def _uniform(rows: int, random_bytes: Callable[[int], bytes]) -> NDArray[np.float64]:
    """(rows, limbs) uniform elements of the field: words of 16 bits, without those beyond the field."""
    wanted = rows * _LIMBS
    drawn = np.empty(0, dtype="<u2")
    while drawn.size < wanted:
        words = np.frombuffer(random_bytes(_ELEMENT_BYTES * (wanted - drawn.size) + 16), dtype="<u2")
        drawn = np.concatenate([drawn, words[words < _PRIME]])
    return drawn[:wanted].astype(np.float64).reshape(rows, _LIMBS)


@lru_cache(maxsize=8)
def _powers(pieces: int, threshold: int) -> NDArray[np.float64]:
    """(pieces, threshold) powers of 1, 2, …, modulo the prime, from the 0th on."""
    numbers = np.arange(1, pieces + 1, dtype=np.int64)
    found = np.ones((pieces, threshold))
    power = np.ones(pieces, dtype=np.int64)
    for degree in range(1, threshold):
        power = power * numbers % _PRIME
        found[:, degree] = power
    return found


@lru_cache(maxsize=256)
def _factors_at_zero(numbers: tuple[int, ...]) -> NDArray[np.float64]:
    """Lagrange's factors: a polynomial's value at 0 is the sum of these times its values at `numbers`."""
    logarithms = _logarithms()
    places = np.array(numbers, dtype=np.int64)
    apart = (places[None, :] - places[:, None]) % _PRIME
    np.fill_diagonal(apart, 1)
    above = logarithms[places].sum() - logarithms[places]
    exponents = (above - logarithms[apart].sum(axis=1)) % (_PRIME - 1)
    factors: NDArray[np.float64] = _generator_powers()[exponents].astype(np.float64)
    return factors


@lru_cache(maxsize=1)
def _generator_powers() -> Whole:
    """(65520,) the generator's powers from the 0th on: every element but 0."""
    powers = np.ones(_PRIME - 1, dtype=np.int64)
    for exponent in range(1, _PRIME - 1):
        powers[exponent] = powers[exponent - 1] * _GENERATOR % _PRIME
    return powers


@lru_cache(maxsize=1)
def _logarithms() -> Whole:
    """(65521,) the logarithm of each element to the generator; that of 0 is unused."""
    logarithms = np.zeros(_PRIME, dtype=np.int64)
    logarithms[_generator_powers()] = np.arange(_PRIME - 1)
    return logarithms
