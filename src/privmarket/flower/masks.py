"""Flower's SecAgg+ with masks from AES instead of its own generator, and integers that stay integers.

Flower draws every mask from a generator with a seed of 32 bits, which it folds out of the parties' 256-bit keys:
whoever sees a masked vector can try all seeds. Here the same protocol runs with masks from AES-128 in counter mode
under a hash of the whole key, on both sides. Moduli above 2³² become possible, too. Where a step of the quantiser
is one, it only moves integers above zero: they are not rounded by chance, nor limited to 32 bits.

Keys are cut and restored by `key_pieces`, a hundred times faster than by Flower's own scheme.

The hash also takes in the public numbers of the sum. Two sellers that were told different ones (fewer digits of
noise for some, say) draw different masks for each other, and the sum cannot be opened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.server.workflow import SecAggPlusWorkflow

from privmarket.errors import PrivacyError
from privmarket.flower import key_pieces

_AES_KEY_BYTES = 16
# Flower takes the mean of a sum in 64-bit floats; up to here it can be multiplied back to the exact integer.
SUM_BITS = 50


def strong_masks(
    seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]], *, public: bytes = b""
) -> list[np.ndarray]:
    """Arrays of integers, uniform in [0, num_range), that follow from the seed.

    Args:
        seed: a secret key of any length.
        num_range: a power of two, at most 2⁶².
        dimensions_list: the shapes.
        public: what all who draw these masks must agree on.
    """
    if num_range & (num_range - 1) or not 1 < num_range <= 2**62:
        raise PrivacyError(f"masks in a range of {num_range}", "give a power of two, at most 2⁶²")
    bound = b"privmarket masks" + hashlib.sha256(public).digest()
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


def _with_globals(function: Any, **replaced: Any) -> Any:
    """The same function, seeing other values under some of its module's names; the module stays as it is."""
    return FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


_client = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")


def secure_mod(public: bytes) -> Callable[..., Any]:
    """Flower's client mod for SecAgg+, with masks bound to the public numbers of the sum."""
    # Flower reads the client's one private key again for each neighbour; the cache ends with this message.
    read_key = lru_cache(maxsize=1)(_client.bytes_to_private_key)
    share = _with_globals(_client._share_keys, create_shares=key_pieces.cut, bytes_to_private_key=read_key)
    collect = _with_globals(
        _client._collect_masked_vectors,
        pseudo_rand_gen=partial(strong_masks, public=public),
        quantize=quantize,
        bytes_to_private_key=read_key,
    )
    mod: Callable[..., Any] = _with_globals(
        _client.secaggplus_mod, _share_keys=share, _collect_masked_vectors=collect
    )
    return mod


class SecureWorkflow(SecAggPlusWorkflow):  # type: ignore[misc,unused-ignore]
    """Flower's workflow for SecAgg+ on the server."""

    def public_numbers(self, state: Any) -> bytes:
        """What the clients bind their masks to."""
        return b""

    def unmask_stage(self, grid: Any, context: Any, state: Any) -> bool:
        """Takes the masks off the sum."""
        masks = partial(strong_masks, public=self.public_numbers(state))
        restore = partial(key_pieces.restore, threshold=state.threshold)
        stage = _with_globals(SecAggPlusWorkflow.unmask_stage, pseudo_rand_gen=masks, combine_shares=restore)
        return bool(stage(self, grid, context, state))
