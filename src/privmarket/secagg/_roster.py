"""Who takes part in a round's secure sums, and how they are dealt to several sums if they are too many for one.

A seller must not rely on the server alone for the list of awarded sellers: the server could put one seller among
its own. So the roster of a round is checked against a broker's or register's list, or carries a register's
signature.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from privmarket.secagg._codec import encode
from privmarket.secagg._cohorts import cohort_sizes, crowded_cohort_probability
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import KEY_BYTES, Signer, label, verifies
from privmarket.secagg._plan import colluders_allowed
from privmarket.secagg._shamir import MOST_PIECES

_LONGEST_TASK = 512
# With cohorts, this share of the colluders that one sum of all sellers tolerates is assumed: cohorts vary by
# chance.
_SUPPOSED_COLLUDERS = 0.6
MOST_CROWDED = 1e-3
"""Sellers are not dealt to cohorts so small that some cohort has too many colluders with more than this
probability, if the round has six tenths of those that one sum of all would bear: a tenth of all sellers, at an
honest share of two thirds."""


@dataclass(frozen=True)
class Roster:
    """All awarded sellers of a round.

    Attributes:
        task, round: name the round.
        members: the sellers' registered Ed25519 keys, 32 bytes each, ascending.
        honest_share: h/n in every sum of the round.
    """

    task: str
    round: int
    members: tuple[bytes, ...]
    honest_share: float

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of this."""
        return hashlib.sha256(label("roster") + encode(self)).digest()

    def number_of(self, key: bytes) -> int:
        """A seller's number: the place of its key.

        Raises:
            SumRefusal: `members`, if it is not one of them.
        """
        if key not in self.members:
            raise SumRefusal("members", "a sum of which this seller is no member")
        return self.members.index(key)

    def check(self) -> None:
        """Refuses a roster that no round can have.

        Raises:
            SumRefusal: `terms` or `members`.
        """
        if not 1 <= len(self.members) <= MOST_PIECES:
            raise SumRefusal("members", f"a sum of {len(self.members)} sellers")
        if any(len(key) != KEY_BYTES for key in self.members) or list(self.members) != sorted(set(self.members)):
            raise SumRefusal("members", "members that are not different keys in ascending order")
        if not (math.isfinite(self.honest_share) and 0.0 < self.honest_share <= 1.0):
            raise SumRefusal("terms", f"an honest share of {self.honest_share}")
        if not 0 < len(self.task) <= _LONGEST_TASK:
            raise SumRefusal("terms", "a sum of a task without a name")

    def check_members(self, awarded: Collection[bytes]) -> None:
        """Refuses a roster whose members are not exactly the awarded sellers.

        If a part sufficed, the server could choose who is in the sum: of 18 out of 99 sellers, 17 could be its own.

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

    def to_json(self) -> str:
        """The roster as text, to be sent to a register."""
        keys = [key.hex() for key in self.members]
        return json.dumps(
            {"task": self.task, "round": self.round, "members": keys, "honest_share": self.honest_share}
        )

    @classmethod
    def from_json(cls, text: str) -> Roster:
        """The roster that `to_json` wrote.

        Raises:
            SumRefusal: `message`, if the text is not a roster.
        """
        try:
            fields = json.loads(text)
            members = tuple(bytes.fromhex(key) for key in fields["members"])
            made = cls(str(fields["task"]), int(fields["round"]), members, float(fields["honest_share"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SumRefusal("message", f"no roster: {error}", "give what Roster.to_json wrote") from error
        made.check()
        return made

    def signed_by(self, register: Signer) -> bytes:
        """The register's signature under exactly this roster."""
        return register.sign(label("signed roster") + self.digest)

    def check_signature(self, register: bytes, signature: bytes) -> None:
        """Refuses a roster that the register did not sign.

        Args:
            register: the public key of the register that the seller's policy names.

        Raises:
            SumRefusal: `members`.
        """
        if not verifies(register, signature, label("signed roster") + self.digest):
            raise SumRefusal(
                "members",
                f"the register {register.hex()[:16]}… has not signed these {len(self.members)} sellers for round "
                f"{self.round} of task {self.task!r}",
                "let the server ask that register, or name another one in the policy",
            )


@dataclass(frozen=True)
class DealingTerms:
    """The terms of a round with more sellers than one sum allows.

    Attributes:
        roster: all awarded sellers.
        largest_cohort: the most sellers of one of its sums.
    """

    roster: Roster
    largest_cohort: int

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of this; it names the dealing in every message."""
        return hashlib.sha256(label("dealing terms") + encode(self)).digest()

    @property
    def smallest_cohort(self) -> int:
        """How many sellers the smallest sum has."""
        return min(cohort_sizes(len(self.roster.members), self.largest_cohort))

    def check(self) -> None:
        """Refuses cohorts so small that one of them would get too many colluders by chance.

        Raises:
            SumRefusal: `terms` or `members`.
        """
        self.roster.check()
        sellers = len(self.roster.members)
        if self.largest_cohort < 1:
            raise SumRefusal("terms", f"cohorts of at most {self.largest_cohort} sellers")
        share = self.roster.honest_share
        colluders = math.floor(_SUPPOSED_COLLUDERS * colluders_allowed(sellers, share))
        crowded = crowded_cohort_probability(sellers, colluders, share, self.largest_cohort)
        if crowded > MOST_CROWDED:
            raise SumRefusal(
                "terms",
                f"{sellers} sellers in cohorts of at most {self.largest_cohort}: of {colluders} colluders too many "
                f"meet in one cohort with probability {crowded:.1g}",
                "deal larger cohorts",
            )
