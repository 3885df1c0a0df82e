"""A secret key cut into pieces of which so many restore it and fewer say nothing: Shamir's scheme.

The secret is read as numbers below 2⁵¹², each the constant term of a random polynomial over the field of 2⁵²¹ − 1
elements; piece number x holds the polynomials' values at x. Flower's own scheme works in a field of 2¹²⁸ elements
bit by bit in Python and takes seconds where a key has hundreds of pieces; this one takes hundredths of a second.

A piece: its number in 4 bytes, then 66 bytes per polynomial. Nobody but its maker and the server that restores the
key looks into it, and both run this module; for the rest of SecAgg+ pieces are bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

_BITS = 521
_PRIME = (1 << _BITS) - 1
_BLOCK, _VALUE, _NUMBER, _LENGTH = 64, 66, 4, 4  # bytes
_MOST_SPREAD = 4  # numbers of honest pieces go no further than this times how many restore a key


def cut(secret: bytes, threshold: int, pieces: int) -> list[bytes]:
    """So many pieces of the secret, any `threshold` of which restore it.

    Raises:
        ValueError: unless 1 ≤ threshold ≤ pieces.
    """
    if not 1 <= threshold <= pieces:
        raise ValueError(f"{threshold} of {pieces} pieces cannot restore a key")
    written = len(secret).to_bytes(_LENGTH, "little") + secret
    constants = [int.from_bytes(written[at : at + _BLOCK], "little") for at in range(0, len(written), _BLOCK)]
    polynomials = [[*(secrets.randbelow(_PRIME) for _ in range(threshold - 1)), first] for first in constants]
    return [
        x.to_bytes(_NUMBER, "little") + b"".join(_value(p, x).to_bytes(_VALUE, "little") for p in polynomials)
        for x in range(1, pieces + 1)
    ]


def _value(polynomial: Sequence[int], x: int) -> int:
    """A polynomial at x, its constant term last."""
    value = 0
    for coefficient in polynomial:
        value = value * x + coefficient
        value = (value & _PRIME) + (value >> _BITS)  # the same number modulo 2⁵²¹ − 1, and short
    return value % _PRIME


def restore(pieces: Sequence[bytes], threshold: int | None = None) -> bytes:
    """The secret, from at least as many different pieces as its threshold.

    Args:
        threshold: look at no more pieces than that; all that are given unless it is said.

    Raises:
        ValueError: the pieces are too few, damaged, or not of one secret; found out by chance in all but one of
            about 2⁹ cases for each block of 64 bytes, and 2²³ more for the length.
    """
    used = {piece[:_NUMBER]: piece for piece in pieces}
    if threshold is not None and len(used) < threshold:
        raise ValueError(f"{len(used)} pieces of a key that needs {threshold}")
    chosen = [used[name] for name in sorted(used, key=lambda name: int.from_bytes(name, "little"))[:threshold]]
    sizes = {len(piece) for piece in chosen}
    if len(sizes) != 1 or (size := sizes.pop()) <= _NUMBER or (size - _NUMBER) % _VALUE:
        raise ValueError("pieces of different keys, or cut short")
    if bytes(_NUMBER) in used:
        raise ValueError("a piece of number 0, which would be the key itself")
    factors = _factors_at_zero([int.from_bytes(piece[:_NUMBER], "little") for piece in chosen])
    written = b""
    for at in range(_NUMBER, size, _VALUE):
        values = [int.from_bytes(piece[at : at + _VALUE], "little") for piece in chosen]
        constant = sum(f * v for f, v in zip(factors, values, strict=True)) % _PRIME
        if constant >> (8 * _BLOCK):
            raise ValueError("pieces that do not restore a key")
        written += constant.to_bytes(_BLOCK, "little")
    length = int.from_bytes(written[:_LENGTH], "little")
    if not len(written) - _BLOCK < _LENGTH + length <= len(written) or any(written[_LENGTH + length :]):
        raise ValueError("pieces that do not restore a key")
    return written[_LENGTH : _LENGTH + length]


def _factors_at_zero(numbers: Sequence[int]) -> list[int]:
    """Lagrange's factors: a polynomial's value at 0 is the sum of these times its values at `numbers`.

    For pieces 1 to k the products of differences are products of factorials; those of the few that are missing are
    divided out. So the work grows with the number of pieces times that of the missing ones, not with its square.
    """
    last, chosen = max(numbers), set(numbers)
    if last > _MOST_SPREAD * len(numbers):
        return _factors_one_by_one(numbers)
    missing = [number for number in range(1, last + 1) if number not in chosen]
    product = 1
    for number in numbers:
        product = product * number % _PRIME
    factors = []
    for own in numbers:
        value = product * _inverse_factorials(last)[own] * _factorials(last)[own - 1] % _PRIME
        value = value * _inverse_factorials(last)[own - 1] * _inverse_factorials(last)[last - own] % _PRIME
        for number in missing:
            value = value * (number - own) % _PRIME
        factors.append(value if own % 2 else -value % _PRIME)
    return factors


def _factors_one_by_one(numbers: Sequence[int]) -> list[int]:
    """The same for numbers that are far apart, as only a seller that lies about its piece would give."""
    factors = []
    for own in numbers:
        above = below = 1
        for other in numbers:
            if other != own:
                above, below = above * other % _PRIME, below * (other - own) % _PRIME
        factors.append(above * pow(below, -1, _PRIME) % _PRIME)
    return factors


@lru_cache(maxsize=512)
def _factorials(last: int) -> list[int]:
    """0! to last!, modulo the prime."""
    found = [1]
    for number in range(1, last + 1):
        found.append(found[-1] * number % _PRIME)
    return found


@lru_cache(maxsize=512)
def _inverse_factorials(last: int) -> list[int]:
    """1/0! to 1/last!, modulo the prime."""
    found = [pow(_factorials(last)[-1], -1, _PRIME)]
    for number in range(last, 0, -1):
        found.append(found[-1] * number % _PRIME)
    return found[::-1]
