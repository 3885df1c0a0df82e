"""The sellers of one secure sum, and what they agree on: one list of keys, one list of survivors.

A server could show every seller another list of sellers, or other survivors, and have two different sums opened:
with one seller in it and without. So every seller makes a signing key for each sum; all keys stand in one list, the
cohort; before anyone helps to open the sum, survivors sign the cohort and the list of survivors, and a seller helps
only if enough of them signed the very lists that it was shown (`shares.survivors_needed`).

In a large sum a seller is shown only its neighbours, with a proof of where they stand in the list (`hash_tree`),
and the signatures of some survivors that are picked at random (`neighbours.Neighbourhood.sample`).

Where sellers are registered somewhere, each also signs its keys of the sum with its registered key, and every
seller checks that the cohort consists of different registered parties. Else a server could fill a round with its
own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from privmarket.flower.hash_tree import HashTree, root_of
from privmarket.flower.neighbours import ring_order

KEY_BYTES, SIGNATURE_BYTES = 32, 64
_LAYOUT = struct.Struct(f"<Q{KEY_BYTES}s{KEY_BYTES}s")
_ENTRY = _LAYOUT.size
_NOTHING = bytes(KEY_BYTES)
_SUM, _MEMBER, _SAMPLE = b"privmarket sum\x00", b"privmarket member\x00", b"privmarket sample\x00"


class CohortError(ValueError):
    """A cohort or a list of survivors that a seller does not agree to."""


@dataclass(frozen=True)
class Member:
    """One seller's keys in a sum.

    Attributes:
        node: its node.
        signing: its public signing key of this sum; zeros if it sent none.
        masking: a hash of its two public keys for masks and messages; zeros if it sent none.
    """

    node: int
    signing: bytes = _NOTHING
    masking: bytes = _NOTHING

    @property
    def present(self) -> bool:
        """Whether this seller sent its keys; one that did not has dropped out."""
        return self.signing != _NOTHING

    def write(self) -> bytes:
        """The member as 72 bytes: its node, its signing key and the hash of its masking keys."""
        return _LAYOUT.pack(self.node, self.signing, self.masking)

    def statement(self, sale: str) -> bytes:
        """What a registered party signs: these keys are mine, in the round that `sale` names."""
        return _MEMBER + hashlib.sha256(sale.encode()).digest() + self.signing + self.masking


@dataclass(frozen=True, eq=False)
class Cohort:
    """All sellers of a sum, or those of them that one seller was shown.

    Attributes:
        size: how many sellers there are.
        shown: place in the list of all sellers → the seller that stands there. Those without keys have dropped out.
        root: names the whole list, see `hash_tree`.
    """

    size: int
    shown: Mapping[int, Member]
    root: bytes

    @classmethod
    def of(cls, members: Iterable[Member]) -> Cohort:
        """The cohort of these sellers, sorted by their nodes."""
        return cls.listed(sorted(members, key=lambda member: member.node))

    @classmethod
    def listed(cls, members: Sequence[Member]) -> Cohort:
        """The cohort of these sellers, in the order given."""
        return cls(len(members), dict(enumerate(members)), HashTree([member.write() for member in members]).root)

    @classmethod
    def read(cls, text: bytes) -> Cohort:
        """All sellers, from `write`.

        Raises:
            CohortError: it is no list of different sellers with different keys.
        """
        members = _read_members(text)
        numbers = [member.node for member in members]
        if not members or numbers != sorted(set(numbers)):
            raise CohortError("a cohort with a seller twice, or with none")
        return cls.listed(members)

    @classmethod
    def read_part(cls, size: int, places: Sequence[int], text: bytes, proof: bytes) -> Cohort:
        """Some of the sellers, from `write` and `prove`; whether `root` is the right one is for the reader to say.

        Raises:
            CohortError: it is no list of different sellers with different keys, or the proof does not fit.
        """
        members = _read_members(text)
        if len(members) != len(places) or len({member.node for member in members}) != len(set(places)):
            raise CohortError(f"{len(members)} sellers for {len(places)} places, or one twice")
        shown = dict(zip(places, members, strict=True))
        try:
            return cls(size, shown, root_of(size, {at: one.write() for at, one in shown.items()}, proof))
        except ValueError as error:
            raise CohortError(str(error)) from error

    @classmethod
    def remembered(cls, size: int, places: Sequence[int], text: bytes, root: bytes) -> Cohort:
        """Some of the sellers, from `write`, of a cohort whose root was checked before."""
        return cls(size, dict(zip(places, _entries(text), strict=True)), root)

    def write(self, places: Iterable[int] | None = None) -> bytes:
        """72 bytes a seller: of all that are shown, or of those at some places."""
        return b"".join(self.shown[at].write() for at in (self.shown if places is None else places))

    @cached_property
    def tree(self) -> HashTree:
        """The hash tree over the list of all sellers."""
        return HashTree([member.write() for member in self.members])

    @property
    def members(self) -> tuple[Member, ...]:
        """The sellers that are shown, sorted by place."""
        return tuple(self.shown.values())

    @cached_property
    def digest(self) -> bytes:
        """Names the cohort; the order of the ring follows from it."""
        return hashlib.sha256(_SUM + self.root).digest()

    @cached_property
    def place_of(self) -> dict[int, int]:
        """Maps each node that is shown to its place in the list of all sellers."""
        return {member.node: place for place, member in self.shown.items()}

    @cached_property
    def by_node(self) -> dict[int, Member]:
        """Maps each node that is shown to its member entry."""
        return {member.node: member for member in self.shown.values()}

    @cached_property
    def ring(self) -> NDArray[np.int64]:
        """(size,) all places in the order in which they stand on the ring."""
        return ring_order(self.digest, self.size)

    def write_survivors(self, nodes: Iterable[int]) -> bytes:
        """The survivors as a bit field: one bit for each place in the list of all sellers."""
        alive = np.zeros(self.size, dtype=bool)
        alive[[self.place_of[node] for node in nodes]] = True
        return np.packbits(alive, bitorder="little").tobytes()

    def read_survivors(self, bits: bytes) -> NDArray[np.bool_]:
        """(size,) who survived, by place.

        Raises:
            CohortError: the list has another length, or names someone who sent no keys.
        """
        if len(bits) != -(-self.size // 8):
            raise CohortError(f"a list of survivors of {len(bits)} bytes for {self.size} sellers")
        unpacked = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
        alive: NDArray[np.bool_] = unpacked[: self.size].astype(bool)
        if unpacked[self.size :].any() or not all(self.shown[at].present for at in self.shown if alive[at]):
            raise CohortError("a survivor that is not in the cohort")
        return alive

    def statement(self, survivors: bytes) -> bytes:
        """The bytes that a survivor signs: the cohort's digest and the list of survivors."""
        return _SUM + self.digest + survivors

    def confirmations(self, survivors: bytes, signatures: Mapping[int, bytes], enough: int | None = None) -> int:
        """How many survivors signed this very cohort with this very list of survivors.

        Args:
            signatures: place → what its seller signed.
            enough: look no further when there are so many.
        """
        alive, statement = self.read_survivors(survivors), self.statement(survivors)
        good = (
            place
            for place, signature in signatures.items()
            if place in self.shown and alive[place] and verifies(self.shown[place].signing, signature, statement)
        )
        return sum(1 for _ in islice(good, enough))


def _read_members(text: bytes) -> list[Member]:
    if len(text) % _ENTRY:
        raise CohortError(f"a cohort of {len(text)} bytes")
    members = _entries(text)
    used = [key for member in members if member.present for key in (member.signing, member.masking)]
    if len(used) != len(set(used)):
        raise CohortError("a cohort with a key twice")
    return members


def _entries(text: bytes) -> list[Member]:
    return [Member(node, signing, masking) for node, signing, masking in _LAYOUT.iter_unpack(text)]


def sampled_places(root: bytes, alive: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """(count,) the places of survivors whose signatures sellers look at, ascending; all where there are no more.

    Args:
        root: names the list of all signatures: whoever made it could not know which of them would be looked at.
    """
    there = np.flatnonzero(alive)
    order = ring_order(hashlib.sha256(_SAMPLE + root).digest(), there.size)
    return np.sort(there[order[:count]])


def masking_digest(keys: Sequence[bytes]) -> bytes:
    """SHA-256 of a seller's two public keys for masks and messages."""
    return hashlib.sha256(b"\x00".join(len(key).to_bytes(4, "little") + key for key in keys)).digest()


def new_signing_key() -> tuple[bytes, bytes]:
    """A private key, 32 bytes, and its public one."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public signing key that belongs to a private one."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, statement: bytes) -> bytes:
    """Signs a statement with a private key; returns the 64 bytes of the signature."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(statement)


def verifies(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether `signature` was made for `statement` with the private key that belongs to `public`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
