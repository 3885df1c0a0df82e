"""The server's part of a dealing: it collects commitments and secrets, from which the cohorts follow.

A seller that sends no commitment stays on the roster and is dealt like all others; it counts as dropped out of its
cohort's sum. A seller that sent one and does not open it stops the dealing: see `_cohorts`. A list needs as many
commitments as one sum of all sellers would need survivors. Each honest seller opens its secret for one list only,
so two lists of one round cannot both be opened.
"""

from __future__ import annotations

from privmarket.secagg._cohorts import commitment, deal_cohorts, dealing_seed
from privmarket.secagg._errors import SumClosed
from privmarket.secagg._keys import verifies
from privmarket.secagg._messages import (
    Commitment,
    CommitmentList,
    DealerMessage,
    DealingCall,
    DealtMessage,
    Parcel,
    dealt_digest,
)
from privmarket.secagg._plan import survivors_needed
from privmarket.secagg._roster import DealingTerms


class Dealer:
    """One dealing, used like `Server`: call `start`, then `receive` and `advance` until there is nothing to send.

    Args:
        terms: who is dealt, and the largest size of a cohort.
        signature: of the register under the roster, if there is one.

    Attributes:
        cohorts: each cohort's keys, once the sellers are dealt.
        digest: what the terms of each sum name as `dealing`.
        secrets: the opened secrets, which each sum's invitation contains.
        left_out: seller → why its message did not count.
    """

    def __init__(self, terms: DealingTerms, signature: bytes = b"") -> None:
        terms.check()
        self.terms = terms
        self.cohorts: tuple[tuple[bytes, ...], ...] = ()
        self.digest = b""
        self.secrets: tuple[Parcel, ...] = ()
        self.left_out: dict[int, str] = {}
        self._call = DealingCall(terms, signature)
        self._commitments: dict[int, Commitment] = {}
        self._secrets: dict[int, bytes] = {}
        self._listed = False

    @property
    def needed(self) -> int:
        """How many commitments a list must have."""
        return survivors_needed(len(self.terms.roster.members), self.terms.roster.honest_share)

    def start(self) -> dict[int, DealerMessage]:
        """seller → the first message to it."""
        return dict.fromkeys(range(len(self.terms.roster.members)), self._call)

    def receive(self, message: DealtMessage) -> bool:
        """Takes a seller's answer to the current step. Returns whether it counts."""
        members = self.terms.roster.members
        sender = message.sender
        if message.dealing != self.terms.digest or sender >= len(members):
            return False
        if isinstance(message, Commitment):
            if self._listed or sender in self._commitments:
                return False
            if not verifies(members[sender], message.signature, message.statement):
                self.left_out[sender] = "a commitment that its registered key did not sign for this dealing"
                return False
            self._commitments[sender] = message
            return True
        if not self._listed or sender not in self._commitments or sender in self._secrets:
            return False
        if commitment(members[sender], message.secret) != self._commitments[sender].commitment:
            self.left_out[sender] = "another secret than it committed itself to"
            return False
        self._secrets[sender] = message.secret
        return True

    def advance(self) -> dict[int, DealerMessage]:
        """Ends the current step. Returns the next message to each seller, or none when the sellers are dealt.

        Raises:
            SumClosed: too few sellers sent commitments, or one of them did not open its secret.
        """
        members = self.terms.roster.members
        committed = sorted(self._commitments)
        if not self._listed:
            self._listed = True
            if len(committed) < self.needed:
                raise SumClosed(
                    f"{len(committed)} of {len(members)} sellers committed themselves, {self.needed} are needed"
                )
            listed = tuple(self._commitments[sender] for sender in committed)
            return dict.fromkeys(committed, CommitmentList(self.terms.digest, listed))
        closed = [sender for sender in committed if sender not in self._secrets]
        if closed:
            raise SumClosed(f"seller {closed[0]} has not opened the secret that it committed itself to")
        seed = dealing_seed(
            {members[sender]: self._commitments[sender].commitment for sender in committed},
            {members[sender]: self._secrets[sender] for sender in committed},
        )
        self.cohorts = deal_cohorts(members, seed, self.terms.largest_cohort)
        self.digest = dealt_digest(self.terms.digest, seed)
        self.secrets = tuple(Parcel(sender, self._secrets[sender]) for sender in committed)
        return {}

    @property
    def waiting_for(self) -> frozenset[int]:
        """The sellers that have been asked and have not answered yet."""
        if self._listed:
            return frozenset(self._commitments) - frozenset(self._secrets)
        return frozenset(range(len(self.terms.roster.members))) - frozenset(self._commitments)
