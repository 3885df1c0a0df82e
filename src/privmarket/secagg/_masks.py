"""Masks: integers modulo 2^bits from AES-128 in counter mode, and vectors as bytes.

A masked vector has one integer more than the seller's own: a 1, so that the sum of k sellers ends in k. A total
without k at its end is discarded.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privmarket.secagg._keys import derived

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

MASK_KEY_BYTES = 16
_NARROW_BITS = 32


def mask(secret: bytes, bound_to: bytes, length: int, bits: int) -> NDArray[np.uint32] | Words:
    """(length,) integers whose lowest `bits` bits are uniform; those above may be anything.

    Args:
        secret: an agreed key, or a seed, from which the mask is computed.
        bound_to: names its use; other bytes give an unrelated mask.
    """
    stream = Cipher(algorithms.AES(derived(secret, bound_to, MASK_KEY_BYTES)), modes.CTR(bytes(16))).encryptor()
    if bits <= _NARROW_BITS:
        return np.frombuffer(stream.update(bytes(4 * length)), dtype="<u4")
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8")


def with_count(vector: Integers) -> Words:
    """(length + 1,) the vector modulo 2^64, and a 1 at its end."""
    out = np.ones(vector.size + 1, dtype=np.uint64)
    out[:-1] = vector.view(np.uint64)
    return out


def without_count(total: Words, bits: int, sellers: int) -> Integers | None:
    """(length,) a total modulo 2^bits, with its sign; None if it is not the sum of `sellers` vectors."""
    lowest = np.uint64((1 << bits) - 1)
    if int(total[-1] & lowest) != sellers % (1 << bits):
        return None
    unused = np.uint64(64 - bits)
    # Shifting up drops what lies beyond the modulus; the arithmetic shift down restores the sign.
    signed: Integers = (total[:-1] << unused).view(np.int64) >> unused.astype(np.int64)
    return signed


def pack(words: Words, bits: int) -> bytes:
    """Integers modulo 2^bits as bytes, each in the fewest whole bytes that can hold it."""
    width = word_bytes(bits)
    kept = np.ascontiguousarray(words & np.uint64((1 << bits) - 1), dtype="<u8")
    return kept.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def unpack(data: bytes, length: int, bits: int) -> Words | None:
    """The integers that `pack` wrote; None if these are not `length` integers below 2^bits."""
    width = word_bytes(bits)
    if len(data) != length * width:
        return None
    wide = np.zeros((length, 8), dtype=np.uint8)
    wide[:, :width] = np.frombuffer(data, dtype=np.uint8).reshape(length, width)
    words: Words = wide.view("<u8").reshape(length)
    if int(words.max()) >> bits:
        return None
    return words


def word_bytes(bits: int) -> int:
    """How many whole bytes an integer of `bits` bits takes."""
    return -(-bits // 8)
