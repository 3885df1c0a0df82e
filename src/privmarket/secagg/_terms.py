"""The public numbers of one secure sum. Every seller checks them; every key and signature is bound to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from privmarket.secagg._codec import encode
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import label
from privmarket.secagg._plan import colluders_allowed, honest_sellers, survivors_needed
from privmarket.secagg._roster import Roster

MOST_BITS = 62
"""Integers are added modulo 2^62 at most, so that NumPy's 64-bit integers hold them with their sign."""
DIGEST_BYTES = 32


@dataclass(frozen=True)
class SumTerms:
    """The numbers that must be the same for all sellers of a sum.

    Attributes:
        task: names the run or task; a seller takes part in one sum per task and round.
        round: its number, which grows from sum to sum of a task.
        members: the registered Ed25519 keys of all awarded sellers, or of one cohort of them; 32 bytes each,
            ascending. A seller's number in the sum is its key's place in this list.
        honest_share: h/n. The noise of h honest sellers is in every opened sum; the threshold follows from it.
        length: how many integers each seller adds.
        bits: sums are taken modulo 2^bits.
        largest: no seller adds an integer above this or below minus this; n times it must fit into `bits` bits.
        binding: a hash of everything else that all sellers must agree on (awards, digits of noise, names of
            arrays).
        dealing: names the dealing that gave this cohort (`dealt_digest`); empty if all awarded sellers are in one
            sum.
    """

    task: str
    round: int
    members: tuple[bytes, ...]
    honest_share: float
    length: int
    bits: int
    largest: int
    binding: bytes
    dealing: bytes = b""

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
        """T: the fewest survivors that can open the sum, and the fewest shares that restore a secret."""
        return survivors_needed(self.sellers, self.honest_share)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of these numbers; it names the sum in every message."""
        return hashlib.sha256(label("terms") + encode(self)).digest()

    @property
    def roster(self) -> Roster:
        """The members as a roster: all awarded sellers, unless they were dealt to several sums."""
        return Roster(self.task, self.round, self.members, self.honest_share)

    def number_of(self, key: bytes) -> int:
        """A seller's number in the sum.

        Raises:
            SumRefusal: `members`, if it is not in the sum.
        """
        return self.roster.number_of(key)

    def check(self) -> None:
        """Refuses numbers under which no sum can be right and private.

        Raises:
            SumRefusal: `terms` or `members`.
        """
        self.roster.check()
        if not 1 <= self.bits <= MOST_BITS or self.length < 1 or self.largest < 1:
            raise SumRefusal("terms", f"{self.length} integers up to {self.largest} modulo 2^{self.bits}")
        if self.sellers * self.largest >= 1 << (self.bits - 1):
            raise SumRefusal(
                "terms", f"{self.sellers} integers up to {self.largest} do not fit into {self.bits} bits"
            )
        if len(self.binding) != DIGEST_BYTES or len(self.dealing) not in (0, DIGEST_BYTES):
            raise SumRefusal("terms", "a sum without a hash of its awards, or of the dealing")


def exact_bits(largest: int, sellers: int) -> int:
    """The fewest bits in which the sum of `sellers` integers of at most `largest` cannot wrap."""
    return (sellers * largest).bit_length() + 1
