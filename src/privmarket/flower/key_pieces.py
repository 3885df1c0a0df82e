"""A secret of 32 bytes cut into pieces of which so many restore it and fewer say nothing: Shamir's scheme.

The secret is read as 18 numbers of 15 bits, each the constant term of a random polynomial over the field of
65,521 elements; piece number x holds the polynomials' values at x. Values of all polynomials at all numbers are one
product of two matrices of numbers below 2¹⁶, whose sums stay below 2⁵³ and are exact in floating point. So cutting
a key into a hundred pieces takes less than a millisecond; Flower's own scheme takes half a second.

A piece: its number in 2 bytes, then 2 bytes per polynomial. Nobody but its maker and the server that restores the
key looks into it, and both run this module; for the rest of SecAgg+ pieces are bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SECRET_BYTES = 32
_PRIME = 65_521  # the largest below 2¹⁶
_BASE = 17
_LIMB_BITS = 15
_LIMBS = -(-8 * SECRET_BYTES // _LIMB_BITS)
_NUMBER = 2  # bytes, of a piece's number and of each value
PIECE_BYTES = _NUMBER * (1 + _LIMBS)
_LIMB_WEIGHTS = 1 << np.arange(_LIMB_BITS)

Whole = NDArray[np.int64]


def cut(secret: bytes, threshold: int, pieces: int) -> list[bytes]:
    """So many pieces of the secret, any `threshold` of which restore it.

    Raises:
        ValueError: unless 1 ≤ threshold ≤ pieces < 65,521 and the secret has 32 bytes.
    """
    if not 1 <= threshold <= pieces < _PRIME:
        raise ValueError(f"{threshold} of {pieces} pieces cannot restore a key")
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, where {SECRET_BYTES} are cut")
    coefficients = np.vstack([_limbs(secret), _uniform(threshold - 1)])
    values = (_powers(pieces, threshold) @ coefficients).astype(np.int64) % _PRIME
    table = np.column_stack([np.arange(1, pieces + 1), values]).astype("<u2")
    return [row.tobytes() for row in table]


def restore(pieces: Sequence[bytes], threshold: int | None = None) -> bytes:
    """The secret, from at least as many different pieces as its threshold.

    Args:
        threshold: look at no more pieces than that; all that are given unless it is said.

    Raises:
        ValueError: the pieces are too few, damaged, or not of one secret; found out in all but one of 2³² cases.
    """
    if {len(piece) for piece in pieces} != {PIECE_BYTES}:
        raise ValueError("no pieces, pieces of different keys, or cut short")
    table = np.frombuffer(b"".join(pieces), dtype="<u2").reshape(len(pieces), -1).astype(np.int64)
    numbers, first = np.unique(table[:, 0], return_index=True)
    if threshold is not None and numbers.size < threshold:
        raise ValueError(f"{numbers.size} pieces of a key that needs {threshold}")
    if numbers[0] == 0:
        raise ValueError("a piece of number 0, which would be the key itself")
    chosen = table[first[:threshold]]
    if chosen.max() >= _PRIME:
        raise ValueError("pieces that do not restore a key: numbers outside the field")
    factors = _factors_at_zero(tuple(chosen[:, 0].tolist()))
    return _secret((factors @ chosen[:, 1:].astype(np.float64)).astype(np.int64) % _PRIME)


def _limbs(secret: bytes) -> Whole:
    """(limbs,) the secret as numbers of 15 bits."""
    bits = np.zeros(_LIMBS * _LIMB_BITS, dtype=np.int64)
    bits[: 8 * SECRET_BYTES] = np.unpackbits(np.frombuffer(secret, dtype=np.uint8), bitorder="little")
    limbs: Whole = bits.reshape(_LIMBS, _LIMB_BITS) @ _LIMB_WEIGHTS
    return limbs


def _secret(limbs: Whole) -> bytes:
    bits = ((limbs[:, None] >> np.arange(_LIMB_BITS)) & 1).astype(np.uint8).reshape(-1)
    if (limbs >> _LIMB_BITS).any() or bits[8 * SECRET_BYTES :].any():
        raise ValueError("pieces that do not restore a key")
    return np.packbits(bits[: 8 * SECRET_BYTES], bitorder="little").tobytes()


def _uniform(rows: int) -> NDArray[np.float64]:
    """(rows, limbs) elements of the field, each as likely, from the operating system."""
    wanted, drawn = rows * _LIMBS, np.empty(0, dtype=np.uint16)
    while drawn.size < wanted:
        words = np.frombuffer(os.urandom(2 * (wanted - drawn.size) + 16), dtype=np.uint16)
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
    logarithms, powers = _logarithms()
    places = np.array(numbers, dtype=np.int64)
    apart = (places[None, :] - places[:, None]) % _PRIME
    np.fill_diagonal(apart, 1)
    above = logarithms[places].sum() - logarithms[places]
    exponents = (above - logarithms[apart].sum(axis=1)) % (_PRIME - 1)
    factors: NDArray[np.float64] = powers[exponents].astype(np.float64)
    return factors


@lru_cache(maxsize=1)
def _logarithms() -> tuple[Whole, Whole]:
    """The field's logarithms to the base 17, which has every number but 0 as a power, and these powers."""
    powers = np.ones(_PRIME - 1, dtype=np.int64)
    for exponent in range(1, _PRIME - 1):
        powers[exponent] = powers[exponent - 1] * _BASE % _PRIME
    logarithms = np.zeros(_PRIME, dtype=np.int64)
    logarithms[powers] = np.arange(_PRIME - 1)
    return logarithms, powers
