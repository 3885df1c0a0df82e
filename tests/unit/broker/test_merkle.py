"""The tree against a plain recursive definition, every proof of small trees, and every single change of one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from privmarket.broker import _merkle as merkle
from privmarket.broker._merkle import TILE_HEIGHT, Frontier, consistency_proof, extends, includes, inclusion_proof

LEAVES = [merkle.leaf_hash(bytes([i])) for i in range(20)]


def plain(leaves: list[bytes]) -> bytes:
    """The definition in section 2.1 of RFC 6962, word for word."""
    n = len(leaves)
    if n == 0:
        return hashlib.sha256().digest()
    if n == 1:
        return leaves[0]
    k = max(2**i for i in range(20) if 2**i < n)
    return hashlib.sha256(b"\x01" + plain(leaves[:k]) + plain(leaves[k:])).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root of a whole list of leaf hashes, as the log grows it."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier.root()


class InMemory:
    """Hashes of a tree that is held in a list."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._leaves = leaves

    def leaves(self, start: int, end: int) -> list[bytes]:
        return list(self._leaves[start:end])

    def tiles(self, level: int, start: int, end: int) -> list[bytes]:
        unit = 2 ** (TILE_HEIGHT * level)
        return [root_of(self._leaves[i * unit : (i + 1) * unit]) for i in range(start, end)]


def test_known_answers() -> None:
    # The tree of no leaves, and of one empty leaf, as in the test vectors of certificate transparency.
    assert root_of([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    empty = merkle.leaf_hash(b"")
    assert empty.hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    two = root_of([empty, merkle.leaf_hash(b"\x00")])
    assert two.hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"


@pytest.mark.parametrize("n", range(20))
def test_the_frontier_gives_the_defined_root(n: int) -> None:
    assert root_of(LEAVES[:n]) == plain(LEAVES[:n])
    frontier = Frontier()
    for leaf in LEAVES[:n]:
        frontier.append(leaf)
    assert Frontier.load(n, frontier.dump()).root() == plain(LEAVES[:n])


def test_every_inclusion_proof_holds_and_no_changed_one_does() -> None:
    for n in range(1, 20):
        root, hashes = plain(LEAVES[:n]), InMemory(LEAVES[:n])
        for i in range(n):
            proof = inclusion_proof(hashes, i, n)
            assert includes(root, n, i, LEAVES[i], proof)
            assert not includes(root, n, i, LEAVES[(i + 1) % 20], proof)
            assert not includes(root, n, (i + 1) % n, LEAVES[i], proof) or n == 1
            assert not includes(root, n, i, LEAVES[i], [*proof, LEAVES[0]])
            assert not includes(root, n, i, LEAVES[i], proof[:-1]) or not proof
            for at in range(len(proof)):
                changed = [*proof[:at], bytes(32), *proof[at + 1 :]]
                assert not includes(root, n, i, LEAVES[i], changed)


def test_every_consistency_proof_holds_and_no_changed_one_does() -> None:
    for new in range(1, 20):
        hashes = InMemory(LEAVES[:new])
        for old in range(1, new + 1):
            proof = consistency_proof(hashes, old, new)
            roots = plain(LEAVES[:old]), plain(LEAVES[:new])
            assert extends(old, roots[0], new, roots[1], proof)
            assert not extends(old, bytes(32), new, roots[1], proof)
            assert not extends(old, roots[0], new, bytes(32), proof)
            for at in range(len(proof)):
                changed = [*proof[:at], bytes(32), *proof[at + 1 :]]
                assert not extends(old, roots[0], new, roots[1], changed)


def test_tiles_are_the_subtrees_that_proofs_read() -> None:
    leaves = [merkle.leaf_hash(i.to_bytes(4, "big")) for i in range(70_000)]
    frontier, tiles = Frontier(), {}
    for leaf in leaves:
        tiles |= {(level, place): node for level, place, node in frontier.append(leaf)}
    assert len(tiles) == 70_000 // 256 + 1
    asked = []

    class Tiled(InMemory):
        def tiles(self, level: int, start: int, end: int) -> list[bytes]:
            asked.append(end - start)
            return [tiles[level, i] for i in range(start, end)]

        def leaves(self, start: int, end: int) -> list[bytes]:
            asked.append(end - start)
            return super().leaves(start, end)

    for index in (0, 65_535, 65_536, 69_999):
        proof = inclusion_proof(Tiled(leaves), index, len(leaves))
        assert includes(frontier.root(), len(leaves), index, leaves[index], proof)
    old = root_of(leaves[:66_000])
    assert extends(66_000, old, 70_000, frontier.root(), consistency_proof(Tiled(leaves), 66_000, 70_000))
    assert max(asked) <= 256
