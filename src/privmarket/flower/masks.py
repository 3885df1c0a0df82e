"""Masks of a secure sum, and Flower's SecAgg+ on the client with these masks and with integers that stay integers.

Flower draws every mask from a generator with a seed of 32 bits, which it folds out of the parties' 256-bit keys:
whoever sees a masked vector can try all seeds. Here the same protocol runs with masks from AES-128 in counter mode
under a hash of the whole key, on both sides. Moduli above 2³² become possible, too. Where a step of the quantiser
is one, it only moves integers above zero: they are not rounded by chance, nor limited to 32 bits.

Keys are agreed on by X25519 and pieces sealed by `sum_keys`; they are cut and restored by `key_pieces`, hundreds
of times faster than by Flower's own scheme. A masked weight takes as many bytes as the modulus needs, where Flower
sends eight.

The hash also takes in the public numbers of the sum. Two sellers that were told different ones (fewer digits of
noise for some, say) draw different masks for each other, and the sum cannot be opened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from types import FunctionType

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from privmarket.errors import PrivacyError
from privmarket.flower import key_pieces
from privmarket.flower.sum_keys import PROTOCOL, KeyPair, seal, unseal

Integers = NDArray[np.int64]

_AES_KEY_BYTES = 16
# A seller's integers reach Flower's quantiser as 64-bit floats, which hold them exactly up to 2⁵³.
SUM_BITS = 50


@dataclass(frozen=True)
class Masking:
    """How numbers become integers below a modulus, the same for every seller of a sum.

    Attributes:
        reach: the largest coordinate that is not cut off.
        steps: a coordinate is rounded to 2·reach/steps; where that is 1, integers go into the sum as they are.
        modulus: masks are drawn below this power of two.
    """

    reach: float
    steps: int = 2**22
    modulus: int = 2**32


def masked_width(largest: int, sellers: int) -> int:
    """Bytes of a masked weight in an exact sum of so many sellers whose integers are at most `largest`."""
    return _width(exact_masking(largest, sellers).modulus)


def exact_masking(largest: int, sellers: int) -> Masking:
    """Settings under which integers of at most `largest` go into a sum of so many sellers as they are."""
    reach = 1 << largest.bit_length()
    # One step per integer: the quantiser changes nothing.
    return Masking(float(reach), 2 * reach, 1 << (2 * reach * sellers).bit_length())


def packed(array: Integers, *, modulus: int) -> bytes:
    """Integers from 0 to modulus − 1, in as few whole bytes each as hold them."""
    return np.ascontiguousarray(array, dtype="<i8").view(np.uint8).reshape(-1, 8)[:, : _width(modulus)].tobytes()


def unpacked(text: bytes, shape: Sequence[int], modulus: int) -> Integers:
    """From `packed`.

    Raises:
        ValueError: the text is not as long as so many integers.
    """
    size, width = math.prod(shape), _width(modulus)
    if len(text) != size * width:
        raise ValueError(f"{len(text)} bytes for {size} integers of {width}")
    wide = np.zeros((size, 8), dtype=np.uint8)
    wide[:, :width] = np.frombuffer(text, dtype=np.uint8).reshape(size, width)
    return wide.view("<i8").reshape(shape)


def _width(modulus: int) -> int:
    """The number of whole bytes that hold any integer below the modulus."""
    return -(-(modulus - 1).bit_length() // 8)


def strong_masks(
    seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]], *, public: bytes = b""
) -> list[Integers]:
    """Arrays of integers, uniform in [0, num_range), that follow from the seed.

    Args:
        seed: a secret key of any length.
        num_range: a power of two, at most 2⁶².
        dimensions_list: the shapes.
        public: what all who draw these masks must agree on.
    """
    if num_range & (num_range - 1) or not 1 < num_range <= 2**62:
        raise PrivacyError(f"masks in a range of {num_range}", "give a power of two, at most 2⁶²")
    bound = b"privmarket masks %d\x00" % PROTOCOL + hashlib.sha256(public).digest()
    key = hashlib.sha256(bound + seed).digest()[:_AES_KEY_BYTES]
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    drawn = []
    for shape in dimensions_list:
        words = np.frombuffer(stream.update(bytes(8 * math.prod(shape))), dtype="<u8")
        drawn.append((words & np.uint64(num_range - 1)).view(np.int64).reshape(shape))
    return drawn


def quantize(parameters: list[np.ndarray], clipping_range: float, target_range: int) -> list[np.ndarray]:
    """Flower's quantiser, which is the identity plus `clipping_range` where its steps are integers."""
    if target_range != 2 * clipping_range:
        rounded: list[np.ndarray] = _client.quantize(parameters, clipping_range, target_range)
        return rounded
    return [
        np.rint(np.clip(array, -clipping_range, clipping_range)).astype(np.int64) + int(clipping_range)
        for array in parameters
    ]


_client = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")


def _with_globals(function: FunctionType, **replaced: object) -> FunctionType:
    """The same function, seeing other values under some of its module's names; the module stays as it is."""
    return FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def secure_mod(public: bytes, modulus: int) -> Mod:
    """Flower's client mod for SecAgg+, with keys of `sum_keys` and masks bound to the public numbers of the sum."""
    # Flower reads the client's one private key again for each neighbour; the cache ends with this message.
    keys: dict[str, object] = {
        "generate_key_pairs": _new_pair,
        "private_key_to_bytes": _as_it_is,
        "public_key_to_bytes": _as_it_is,
        "bytes_to_private_key": lru_cache(maxsize=1)(KeyPair.read),
        "bytes_to_public_key": _as_it_is,
        "generate_shared_key": KeyPair.agreed,
        "create_shares": key_pieces.cut,
        "encrypt": seal,
        "decrypt": unseal,
    }
    masks = {
        "pseudo_rand_gen": partial(strong_masks, public=public),
        "quantize": quantize,
        "ndarray_to_bytes": partial(packed, modulus=modulus),
    }
    return _with_globals(
        _client.secaggplus_mod,
        _setup=_with_globals(_client._setup, **keys),
        _share_keys=_with_globals(_client._share_keys, **keys),
        _collect_masked_vectors=_with_globals(_client._collect_masked_vectors, **keys, **masks),
    )


def _new_pair() -> tuple[bytes, bytes]:
    pair = KeyPair.new()
    return pair.secret, pair.public


def _as_it_is(key: bytes) -> bytes:
    return key
