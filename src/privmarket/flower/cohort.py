"""The sellers of one secure sum, and what they agree on: one list of keys, one list of survivors.

A server could show every seller another list of sellers, or other survivors, and have two different sums opened:
with one seller in it and without. So every seller makes a signing key for each sum; all keys stand in one list, the
cohort; before anyone helps to open the sum, survivors sign the cohort and the list of survivors, and a seller helps
only if enough of them signed the very lists that it was shown (`shares.survivors_needed`).

Where sellers are registered somewhere, each also signs its keys of the sum with its registered key, and every
seller checks that the cohort consists of different registered parties. Else a server could fill a round with its
own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from privmarket.flower.neighbours import ring_order

KEY_BYTES, SIGNATURE_BYTES = 32, 64
_NODE = 8
_ENTRY = _NODE + 2 * KEY_BYTES
_NOTHING = bytes(KEY_BYTES)
_SUM, _MEMBER = b"privmarket sum\x00", b"privmarket member\x00"


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
        """Whether it sent keys."""
        return self.signing != _NOTHING

    def statement(self, sale: str) -> bytes:
        """What a registered party signs: these keys are mine, in the round that `sale` names."""
        return _MEMBER + hashlib.sha256(sale.encode()).digest() + self.signing + self.masking


@dataclass(frozen=True, eq=False)
class Cohort:
    """All sellers of a sum, by node number; those that sent no keys count as dropped out."""

    members: tuple[Member, ...]

    @classmethod
    def of(cls, members: Iterable[Member]) -> Cohort:
        """Sorted by node."""
        return cls(tuple(sorted(members, key=lambda member: member.node)))

    @classmethod
    def read(cls, text: bytes) -> Cohort:
        """From `write`.

        Raises:
            CohortError: it is no list of different sellers with different keys.
        """
        if len(text) % _ENTRY:
            raise CohortError(f"a cohort of {len(text)} bytes")
        members = []
        for at in range(0, len(text), _ENTRY):
            node, keys = text[at : at + _NODE], text[at + _NODE : at + _ENTRY]
            members.append(Member(int.from_bytes(node, "little"), keys[:KEY_BYTES], keys[KEY_BYTES:]))
        numbers = [member.node for member in members]
        used = [key for member in members if member.present for key in (member.signing, member.masking)]
        if numbers != sorted(set(numbers)) or len(used) != len(set(used)):
            raise CohortError("a cohort with a seller or a key twice")
        return cls(tuple(members))

    def write(self) -> bytes:
        """72 bytes a seller."""
        return b"".join(m.node.to_bytes(_NODE, "little") + m.signing + m.masking for m in self.members)

    @cached_property
    def digest(self) -> bytes:
        """Names the cohort; the order of the ring follows from it."""
        return hashlib.sha256(_SUM + self.write()).digest()

    @cached_property
    def ring(self) -> list[int]:
        """All nodes in the order in which they stand on the ring."""
        return ring_order(self.digest, [member.node for member in self.members])

    @cached_property
    def by_node(self) -> dict[int, Member]:
        """node → its keys."""
        return {member.node: member for member in self.members}

    def write_survivors(self, nodes: Iterable[int]) -> bytes:
        """One bit a seller."""
        alive, bits = set(nodes), bytearray(-(-len(self.members) // 8))
        for at, member in enumerate(self.members):
            if member.node in alive:
                bits[at // 8] |= 1 << at % 8
        return bytes(bits)

    def read_survivors(self, bits: bytes) -> frozenset[int]:
        """The survivors' nodes.

        Raises:
            CohortError: the list has another length, or names someone who sent no keys.
        """
        if len(bits) != -(-len(self.members) // 8):
            raise CohortError(f"a list of survivors of {len(bits)} bytes for {len(self.members)} sellers")
        alive = [m for at, m in enumerate(self.members) if bits[at // 8] >> at % 8 & 1]
        if not all(member.present for member in alive):
            raise CohortError("a survivor that is not in the cohort")
        return frozenset(member.node for member in alive)

    def statement(self, survivors: bytes) -> bytes:
        """What survivors sign."""
        return _SUM + self.digest + survivors

    def confirmations(self, survivors: bytes, signatures: Mapping[int, bytes]) -> int:
        """How many survivors signed this very cohort with this very list of survivors."""
        alive, statement = self.read_survivors(survivors), self.statement(survivors)
        return sum(
            verifies(self.by_node[node].signing, signature, statement)
            for node, signature in signatures.items()
            if node in alive
        )


def masking_digest(keys: Sequence[bytes]) -> bytes:
    """A hash of a seller's two public keys."""
    return hashlib.sha256(b"\x00".join(len(key).to_bytes(4, "little") + key for key in keys)).digest()


def new_signing_key() -> tuple[bytes, bytes]:
    """A private key, 32 bytes, and its public one."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key of a private one."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, statement: bytes) -> bytes:
    """A signature of 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(statement)


def verifies(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether the signature is the key holder's."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
