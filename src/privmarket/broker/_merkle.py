"""A Merkle tree over the entries of a log: one hash for all of them, and short proofs about it.

A leaf is hashed with the prefix 0x00, an inner node with 0x01, and a tree of n leaves is split at the largest power
of two below n. A *frontier* holds the hashes of the complete subtrees, largest first, so that appending costs O(1)
hashes on average and the root O(log n).

Implements: the tree, inclusion and consistency proofs of [RFC6962]; their verification as in [RFC9162].
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

EMPTY_ROOT = hashlib.sha256(b"").digest()
TILE_HEIGHT = 8  # hashes of complete subtrees of 256, 65,536, … leaves are stored; proofs need no more than these
_TILE = 1 << TILE_HEIGHT


def leaf_hash(data: bytes) -> bytes:
    """The hash of one entry."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees side by side."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a growing tree.

    Attributes:
        size: leaves so far.
        hashes: of the complete subtrees, largest first; as many as `size` has ones in binary.
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        self.size, self.hashes = size, list(hashes)
        if len(self.hashes) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} subtrees, not {len(self.hashes)}")

    def append(self, leaf: bytes) -> list[tuple[int, int, bytes]]:
        """Adds one leaf hash; returns the tiles that this completed as (level, index, hash)."""
        node, height, rest, tiles = leaf, 0, self.size, []
        while rest & 1:
            node, rest, height = node_hash(self.hashes.pop(), node), rest >> 1, height + 1
            if height % TILE_HEIGHT == 0:
                tiles.append((height // TILE_HEIGHT, self.size >> height, node))
        self.hashes.append(node)
        self.size += 1
        return tiles

    def root(self) -> bytes:
        """The hash of the whole tree."""
        if not self.hashes:
            return EMPTY_ROOT
        root = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            root = node_hash(left, root)
        return root

    def dump(self) -> str:
        """The frontier as text, for storing."""
        return b"".join(self.hashes).hex()

    @classmethod
    def load(cls, size: int, text: str) -> Frontier:
        """Reads what `dump` wrote."""
        raw = bytes.fromhex(text)
        return cls(size, [raw[at : at + 32] for at in range(0, len(raw), 32)])


class Hashes(Protocol):
    """The stored hashes from which a proof is made."""

    def leaves(self, start: int, end: int) -> list[bytes]:
        """Hashes of the leaves start ≤ i < end, counted from 0."""

    def tiles(self, level: int, start: int, end: int) -> list[bytes]:
        """Hashes of complete subtrees of 256**level leaves, start ≤ i < end."""


def subtree(hashes: Hashes, start: int, end: int) -> bytes:
    """The hash of the leaves start ≤ i < end, which must be one of the ranges into which the tree is split."""
    width = end - start
    if width == 0:
        return EMPTY_ROOT
    if width & (width - 1) == 0:
        level = (width.bit_length() - 1) // TILE_HEIGHT
        unit = _TILE**level
        row = hashes.tiles(level, start // unit, end // unit) if level else hashes.leaves(start, end)
        while len(row) > 1:
            row = [node_hash(row[i], row[i + 1]) for i in range(0, len(row), 2)]
        return row[0]
    split = 1 << ((width - 1).bit_length() - 1)
    return node_hash(subtree(hashes, start, start + split), subtree(hashes, start + split, end))


def inclusion_proof(hashes: Hashes, index: int, size: int) -> list[bytes]:
    """The hashes that lead from leaf `index` (from 0) to the root of the first `size` leaves."""

    def path(start: int, end: int) -> list[bytes]:
        width = end - start
        if width == 1:
            return []
        split = start + (1 << ((width - 1).bit_length() - 1))
        if index < split:
            return [*path(start, split), subtree(hashes, split, end)]
        return [*path(split, end), subtree(hashes, start, split)]

    return path(0, size)


def consistency_proof(hashes: Hashes, old: int, new: int) -> list[bytes]:
    """The hashes that show that the first `old` leaves are still the first `old` of `new`; 0 < old ≤ new."""

    def proof(first: int, start: int, end: int, whole: bool) -> list[bytes]:
        width = end - start
        if first == width:
            return [] if whole else [subtree(hashes, start, end)]
        split = 1 << ((width - 1).bit_length() - 1)
        if first <= split:
            return [*proof(first, start, start + split, whole), subtree(hashes, start + split, end)]
        return [*proof(first - split, start + split, end, False), subtree(hashes, start, start + split)]

    return proof(old, 0, new, True)


def includes(root: bytes, size: int, index: int, leaf: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` leads from the leaf hash at `index` to `root`."""
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf
    for other in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(other, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, other)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def extends(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that the tree of `new` leaves begins with the tree of `old` leaves."""
    if old == new:
        return not proof and old_root == new_root
    if old == 0:
        return not proof
    if old > new or not proof:
        return False
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = path[0]
    for other in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = node_hash(other, first), node_hash(other, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = node_hash(second, other)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root
