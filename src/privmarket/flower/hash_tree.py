"""One hash for a list, and short proofs that some of its items stand at some places.

A binary tree of SHA-256: leaves are hashed with the prefix 0x00, pairs with 0x01, and a node without a right
neighbour goes up as it is. The root names the number of items, too. A proof for several places holds each hash that
is needed only once: about k·log₂(n/k) hashes for k of n places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

HASH_BYTES = 32


class HashTree:
    """The tree over a list.

    Args:
        items: the list, at least one item.
    """

    def __init__(self, items: Sequence[bytes]) -> None:
        self.levels = [[_leaf(item) for item in items]]
        while len(below := self.levels[-1]) > 1:
            pairs = [_node(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)]
            self.levels.append(pairs + below[len(pairs) * 2 :])

    @property
    def root(self) -> bytes:
        """The hash that identifies the list: its items, their order and their number."""
        return _root(len(self.levels[0]), self.levels[-1][0])

    def prove(self, places: Iterable[int]) -> bytes:
        """The hashes that lead from the items at these places to the root."""
        known, proof = sorted(set(places)), b""
        for level in self.levels[:-1]:
            there = set(known)
            proof += b"".join(level[at ^ 1] for at in known if at ^ 1 not in there and at ^ 1 < len(level))
            known = sorted({at // 2 for at in known})
        return proof


def root_of(size: int, items: Mapping[int, bytes], proof: bytes) -> bytes:
    """The root of the list of so many items that has these at these places.

    Raises:
        ValueError: the proof is too short or too long, or a place is not in the list.
    """
    if not items or not 0 <= min(items) <= max(items) < size or len(proof) % HASH_BYTES:
        raise ValueError(f"{len(items)} items of a list of {size}, with a proof of {len(proof)} bytes")
    known = {at: _leaf(items[at]) for at in sorted(items)}
    width, used = size, 0
    while width > 1:
        above: dict[int, bytes] = {}
        for at, value in known.items():
            if at // 2 in above:
                continue
            other = at ^ 1
            if other >= width:
                above[at // 2] = value
                continue
            if other not in known:
                sibling, used = proof[used : used + HASH_BYTES], used + HASH_BYTES
            else:
                sibling = known[other]
            above[at // 2] = _node(sibling, value) if at & 1 else _node(value, sibling)
        known, width = above, (width + 1) // 2
    if used != len(proof):
        raise ValueError(f"a proof of {len(proof)} bytes where {used} are needed")
    return _root(size, known[0])


def _leaf(item: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + item).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _root(size: int, top: bytes) -> bytes:
    return hashlib.sha256(b"\x02" + size.to_bytes(8, "little") + top).digest()
