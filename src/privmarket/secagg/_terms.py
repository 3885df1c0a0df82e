"""The public numbers of one secure sum, which every seller checks and every key and signature is bound to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from privmarket.secagg._codec import encode
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import KEY_BYTES, Signer, label, verifies
from privmarket.secagg._plan import colluders_allowed, honest_sellers, survivors_needed
from privmarket.secagg._shamir import MOST_PIECES

MOST_BITS = 62
"""Integers are added modulo 2^62 at most, so that NumPy's 64-bit integers hold them with their sign."""
DIGEST_BYTES = 32
_LONGEST_TASK = 512


@dataclass(frozen=True)
class SumTerms:
    """What all sellers of a sum must have been told alike.

    Attributes:
        task: names the run or task; a seller takes part in one sum per task and round.
        round: its number, which grows from sum to sum of a task.
        members: the registered Ed25519 keys of all awarded sellers, 32 bytes each, ascending. A seller's number in
            the sum is its key's place in this list.
        honest_share: h/n; so many honest sellers' noise is in every opened sum. The threshold follows from it.
        length: how many integers each seller adds.
        bits: sums are taken modulo 2^bits.
        largest: no seller adds an integer above this or below minus this; n times it must fit into `bits` bits.
        binding: a hash of whatever else all sellers must agree on (awards, digits of noise, names of arrays).
    """

    task: str
    round: int
    members: tuple[bytes, ...]
    honest_share: float
    length: int
    bits: int
    largest: int
    binding: bytes

    @property
    def sellers(self) -> int:
        """n."""
        return len(self.members)

    @property
    def honest(self) -> int:
        """h."""
        return honest_sellers(self.sellers, self.honest_share)

    @property
    def colluders(self) -> int:
        """c."""
        return colluders_allowed(self.sellers, self.honest_share)

    @property
    def threshold(self) -> int:
        """T: fewer survivors than that open nothing, and fewer shares than that restore nothing."""
        return survivors_needed(self.sellers, self.honest_share)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of these numbers; it names the sum in every message."""
        return hashlib.sha256(label("terms") + encode(self)).digest()

    def number_of(self, key: bytes) -> int:
        """A seller's number in the sum.

        Raises:
            SumRefusal: `members`, where it is not in the sum.
        """
        if key not in self.members:
            raise SumRefusal("members", "a sum of which this seller is no member")
        return self.members.index(key)

    def check(self) -> None:
        """Refuses numbers under which no sum can be right and private.

        Raises:
            SumRefusal: `terms` or `members`.
        """
        if not 1 <= len(self.members) <= MOST_PIECES:
            raise SumRefusal("members", f"a sum of {len(self.members)} sellers")
        if any(len(key) != KEY_BYTES for key in self.members) or list(self.members) != sorted(set(self.members)):
            raise SumRefusal("members", "members that are not different keys in ascending order")
        if not (math.isfinite(self.honest_share) and 0.0 < self.honest_share <= 1.0):
            raise SumRefusal("terms", f"an honest share of {self.honest_share}")
        if not 1 <= self.bits <= MOST_BITS or self.length < 1 or self.largest < 1:
            raise SumRefusal("terms", f"{self.length} integers up to {self.largest} modulo 2^{self.bits}")
        if self.sellers * self.largest >= 1 << (self.bits - 1):
            raise SumRefusal(
                "terms", f"{self.sellers} integers up to {self.largest} do not fit into {self.bits} bits"
            )
        if len(self.binding) != DIGEST_BYTES or not 0 < len(self.task) <= _LONGEST_TASK:
            raise SumRefusal("terms", "a sum without a name, or without a hash of its awards")

    def check_members(self, awarded: Collection[bytes]) -> None:
        """Refuses a sum whose members are not exactly the awarded sellers.

        With a part of them a server would choose who is in the sum: 18 of 99 with its own 17 leave a seller almost
        alone.

        Args:
            awarded: the registered keys of the sellers to whom this round was awarded, from a broker or register.

        Raises:
            SumRefusal: `members`.
        """
        missing = set(awarded) - set(self.members)
        strangers = set(self.members) - set(awarded)
        if missing or strangers or len(awarded) != len(self.members):
            raise SumRefusal(
                "members",
                f"a sum without {len(missing)} of {len(awarded)} awarded sellers, and with {len(strangers)} others",
            )

    def signed_by(self, authority: Signer) -> bytes:
        """The authority's signature under exactly this sum: task, round, members and all other numbers."""
        return authority.sign(_order(self))

    def check_signature(self, authority: bytes, signature: bytes) -> None:
        """Refuses a sum that the broker or register did not sign.

        Args:
            authority: the public key of the broker or register that the seller's policy names.

        Raises:
            SumRefusal: `members`.
        """
        if not verifies(authority, signature, _order(self)):
            raise SumRefusal("members", "an order that the register has not signed")


def _order(terms: SumTerms) -> bytes:
    return label("order") + terms.digest


def exact_bits(largest: int, sellers: int) -> int:
    """The fewest bits in which the sum of so many integers of at most `largest` cannot wrap."""
    return (sellers * largest).bit_length() + 1
