"""Processor time and bytes of the parts that a secure sum is made of, measured one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TypedDict

import numpy as np
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes

from privmarket.flower import key_pieces
from privmarket.flower.cohort import Cohort, Member, new_signing_key, sign, verifies
from privmarket.flower.hash_tree import HASH_BYTES, HashTree, root_of
from privmarket.flower.masks import packed, quantize, strong_masks, unpacked
from privmarket.flower.neighbours import ring_order
from privmarket.flower.sum_keys import KeyPair, seal, unseal
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import ReleaseGrid

FLOWER_WINDOW = (58, 69)  # threshold and pieces at which Flower's own scheme is timed


def _best(action: Callable[[], object], times: int, runs: int = 7) -> float:
    """Processor seconds of one call, in the fastest of some runs of so many."""

    def once() -> float:
        started = time.process_time()
        for _ in range(times):
            action()
        return (time.process_time() - started) / times

    return min(once() for _ in range(runs))


class Parts(TypedDict):
    """What a round is made of: processor seconds by part, of pieces by "threshold of pieces", and bytes."""

    seconds: dict[str, float]
    pieces: dict[str, dict[str, float]]
    flower: dict[str, float]
    bytes: dict[str, int]


def measure_parts(
    weights: int, windows: Iterable[tuple[int, int]], *, flower: bool = True
) -> Parts:
    """Processor seconds of what a round is made of, and bytes of what is sent.

    Args:
        windows: (threshold, pieces) for which keys are cut and restored.
        flower: time Flower's own scheme for pieces, too.
    """
    secret = os.urandom(32)
    return {
        "seconds": {**_key_parts(), **_vector_parts(weights)},
        "pieces": {
            f"{threshold} of {pieces}": _piece_parts(secret, threshold, pieces) for threshold, pieces in windows
        },
        "flower": _flower_parts(private_key_to_bytes(generate_key_pairs()[0])) if flower else {},
        "bytes": _bytes(secret),
    }


def _key_parts() -> dict[str, float]:
    own, other = KeyPair.new(), KeyPair.new()
    plaintext, shared = bytes(20 + 2 * key_pieces.PIECE_BYTES), own.agreed(other.public)
    sealed = seal(shared, plaintext)
    signing, verifying = new_signing_key()
    signature = sign(signing, b"x")
    listed = Cohort.of(Member(i, os.urandom(32), os.urandom(32)) for i in range(1000)).write()
    return {
        "key_pair": _best(KeyPair.new, 50),
        "read_private_key": _best(lambda: KeyPair.read(own.secret), 50),
        "agreement": _best(lambda: own.agreed(other.public), 100),
        "encrypt": _best(lambda: seal(shared, plaintext), 100),
        "decrypt": _best(lambda: unseal(shared, sealed), 100),
        "verify": _best(lambda: verifies(verifying, signature, b"x"), 100),
        "list_entry": _best(lambda: Cohort.read(listed).ring, 3) / 1000,
        **_tree_parts(),
    }


def _tree_parts(size: int = 10_000, places: int = 300) -> dict[str, float]:
    """Seconds of a place on the ring, of a leaf of the tree over all sellers, and of a hash in a proof."""
    items = [number.to_bytes(72, "little") for number in range(size)]
    tree, some = HashTree(items), sorted(ring_order(b"", size)[:places].tolist())
    proof, shown = tree.prove(some), {place: items[place] for place in some}
    hashes = len(proof) // HASH_BYTES
    return {
        "ring_place": _best(lambda: ring_order(b"", 100 * size), 1, runs=3) / (100 * size),
        "tree_leaf": _best(lambda: HashTree(items), 1, runs=3) / size,
        "prove_hash": _best(lambda: tree.prove(some), 5) / hashes,
        "check_hash": _best(lambda: root_of(size, shown, proof), 5) / hashes,
    }


def _vector_parts(weights: int) -> dict[str, float]:
    """Seconds per weight of masking, sending and adding a vector of this length."""
    rng, modulus = np.random.default_rng(0), 2**44
    integers = [rng.integers(0, 2**40, weights)]
    floats, reach = [integers[0].astype(np.float64)], 2.0**41
    written, shape = packed(integers[0], modulus=modulus), (weights,)
    sums, source = np.zeros(weights, dtype=np.float32), NoiseSource.from_seed(0)
    plain = ndarray_to_bytes(sums)
    work: dict[str, Callable[[], object]] = {
        "mask": lambda: parameters_addition(integers, strong_masks(bytes(32), modulus, [(weights,)])),
        "send": lambda: packed(
            parameters_mod(quantize(floats, reach, int(2 * reach)), modulus)[0], modulus=modulus
        ),
        "add": lambda: parameters_addition(integers, [unpacked(written, shape, modulus)]),
        "noise": lambda: ReleaseGrid(1.0, 2).noisy_integers(sums, source),
        "send_plain": lambda: ndarray_to_bytes(sums),
        "add_plain": lambda: sums + np.float32(0.5) * bytes_to_ndarray(plain),
    }
    return {f"{name}_per_weight": _best(action, 5) / weights for name, action in work.items()}


def _piece_parts(secret: bytes, threshold: int, pieces: int) -> dict[str, float]:
    """Restoring is that of a neighbourhood like no other: its factors are not there from another one."""
    made = key_pieces.cut(secret, threshold, pieces)

    def restore() -> None:
        key_pieces._factors_at_zero.cache_clear()
        key_pieces.restore(made, threshold)

    return {"cut": _best(lambda: key_pieces.cut(secret, threshold, pieces), 3), "restore": _best(restore, 3)}


def _flower_parts(key: bytes) -> dict[str, float]:
    """Seconds that Flower's own scheme takes to cut and restore a key, for the smallest ring."""
    pieces = create_shares(key, *FLOWER_WINDOW)
    return {
        "cut_key": _best(lambda: create_shares(key, *FLOWER_WINDOW), 1, runs=2),
        "restore_key": _best(lambda: combine_shares(pieces[: FLOWER_WINDOW[0]]), 1, runs=2),
    }


def _bytes(secret: bytes) -> dict[str, int]:
    piece = key_pieces.cut(secret, 2, 3)[0]
    return {
        "public_key": len(KeyPair.new().public),
        "encrypted_pieces": len(seal(secret, share_keys_plaintext_concat(1, 2, piece, piece))),
        "piece": len(piece),
        "list_entry": len(Cohort.of([Member(1)]).write()),
        "signature": len(sign(new_signing_key()[0], b"x")),
        "weight_plain": np.dtype(np.float32).itemsize,
        "number": 8,
    }
