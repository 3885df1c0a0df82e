"""The server of a secure sum: it carries messages from seller to seller, and takes the masks off the total.

Sellers do not trust the server: they check everything that they rely on (`Client`). The checks here protect the
sum. No message of a seller can spoil it for the others as long as enough are left, and a total is returned only if
it is the exact sum over the list that the survivors signed.

Implements: the server of [BonawitzEtAl2017], figure 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from privmarket.secagg._client import (
    MASKS,
    keys_fault,
    own_mask,
    seed_commitment,
    shares_by_owner,
)
from privmarket.secagg._errors import SumClosed
from privmarket.secagg._keys import (
    NONCE_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    Agreement,
    label,
    public_of,
    verifies,
)
from privmarket.secagg._masks import Integers, mask, unpack, without_count
from privmarket.secagg._messages import (
    AdvertisedKeys,
    CheckedShares,
    Confirmation,
    Confirmations,
    DeliveredShares,
    InputRequest,
    Invitation,
    KeyList,
    MaskedInput,
    OpenedShares,
    Parcel,
    SealedShares,
    SellerMessage,
    ServerMessage,
    SurvivorList,
    survivors_statement,
)
from privmarket.secagg._shamir import PIECE_BYTES, piece_number, restore
from privmarket.secagg._terms import SumTerms

_SEALED_BYTES = NONCE_BYTES + 2 * PIECE_BYTES + TAG_BYTES
# How many random sets of pieces are tried if a restored secret does not match its commitment.
_TRIES = 64


class Phase(IntEnum):
    """The messages that the server waits for."""

    KEYS = 0
    SHARES = 1
    CHECKS = 2
    INPUTS = 3
    CONFIRMATIONS = 4
    OPENINGS = 5
    DONE = 6


_EXPECTED: dict[Phase, type] = {
    Phase.KEYS: AdvertisedKeys,
    Phase.SHARES: SealedShares,
    Phase.CHECKS: CheckedShares,
    Phase.INPUTS: MaskedInput,
    Phase.CONFIRMATIONS: Confirmation,
    Phase.OPENINGS: OpenedShares,
}


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """The result of a sum.

    Attributes:
        total: (length,) int64, the sum of the survivors' vectors.
        survivors: their numbers, ascending.
    """

    total: Integers
    survivors: tuple[int, ...]


class Server:
    """One secure sum.

    Usage: send what `start` returns, and pass every answer to `receive`. When all expected answers are there, or a
    deadline has passed, send what `advance` returns. Repeat until `result` is there. Messages that come late, twice
    or out of turn are ignored.

    Args:
        terms: the public numbers.
        signature: of the register under the roster, if there is one.
        secrets: of the dealing, if the sellers were dealt to several sums, see `Dealer`.

    Attributes:
        phase: what the server waits for.
        result: the opened sum, at the end.
        left_out: seller → why its message did not count, for the server's log.
    """

    def __init__(self, terms: SumTerms, signature: bytes = b"", secrets: tuple[Parcel, ...] = ()) -> None:
        terms.check()
        self.terms = terms
        self.phase = Phase.KEYS
        self.result: OpenedSum | None = None
        self.left_out: dict[int, str] = {}
        self._invitation = Invitation(terms, signature, secrets)
        self._expected: frozenset[int] = frozenset(range(terms.sellers))
        self._key_list = KeyList(terms.digest, ())
        self._keys: dict[int, AdvertisedKeys] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._spoilt: dict[int, tuple[int, ...]] = {}
        self._partners: tuple[int, ...] = ()
        self._came: set[int] = set()
        self._total = np.zeros(terms.length + 1, dtype=np.uint64)
        self._survivors: tuple[int, ...] = ()
        self._signed: dict[int, bytes] = {}
        self._opened: dict[int, OpenedShares] = {}

    @property
    def waiting_for(self) -> frozenset[int]:
        """The sellers that have been asked and have not answered yet."""
        return self._expected - self._answered()

    @property
    def survivors(self) -> tuple[int, ...]:
        """The sellers whose masked vectors came; empty before that step has ended."""
        return self._survivors

    def start(self) -> dict[int, ServerMessage]:
        """seller → the first message to it."""
        return dict.fromkeys(range(self.terms.sellers), self._invitation)

    def receive(self, message: SellerMessage) -> bool:
        """Takes a seller's answer to the current step. Returns whether it counts."""
        if self.phase is Phase.DONE or type(message) is not _EXPECTED[self.phase]:
            return False
        sender = message.sender
        if message.sum != self.terms.digest or sender not in self.waiting_for:
            return False
        fault = self._take(message)
        if fault is not None:
            self.left_out[sender] = fault
            self._expected -= {sender}
        return fault is None

    def advance(self) -> dict[int, ServerMessage]:
        """Ends the current step. Returns the next message to each seller, or none at the end.

        Raises:
            SumClosed: too few sellers are left, or the total is not the sum of what they sent.
        """
        steps: dict[Phase, Callable[[], dict[int, ServerMessage]]] = {
            Phase.KEYS: self._list_keys,
            Phase.SHARES: self._deliver,
            Phase.CHECKS: self._ask_for_inputs,
            Phase.INPUTS: self._list_survivors,
            Phase.CONFIRMATIONS: self._pass_on_confirmations,
            Phase.OPENINGS: self._unmask,
        }
        if self.phase is Phase.DONE:
            raise SumClosed("this sum has ended")
        here = self.phase
        self.phase = Phase.DONE  # a sum that cannot go on has ended
        messages = steps[here]()
        if messages:
            self.phase = Phase(here + 1)
            self._expected = frozenset(messages)
        return messages

    # ---- what comes in -----------------------------------------------------------------------------------------

    def _answered(self) -> frozenset[int]:
        answered: dict[Phase, Iterable[int]] = {
            Phase.KEYS: self._keys,
            Phase.SHARES: self._sealed,
            Phase.CHECKS: self._spoilt,
            Phase.INPUTS: self._came,
            Phase.CONFIRMATIONS: self._signed,
            Phase.OPENINGS: self._opened,
            Phase.DONE: self._expected,
        }
        return frozenset(answered[self.phase])

    def _take(self, message: SellerMessage) -> str | None:
        """Stores a message's content, or returns the reason why it does not count."""
        terms = self.terms
        sender = message.sender
        if isinstance(message, AdvertisedKeys):
            used = {key for one in self._keys.values() for key in (one.channel_key, one.mask_key)}
            if message.channel_key in used or message.mask_key in used:
                return "a key of another seller"
            fault = keys_fault(message, terms)
            if fault is not None:
                return fault
            self._keys[sender] = message
        elif isinstance(message, SealedShares):
            receivers = [parcel.seller for parcel in message.parcels]
            if sorted(receivers) != sorted(self._keys.keys() - {sender}):
                return "shares for other sellers than those that advertised keys"
            if any(len(parcel.content) != _SEALED_BYTES for parcel in message.parcels):
                return "shares of another length"
            self._sealed[sender] = {parcel.seller: parcel.content for parcel in message.parcels}
        elif isinstance(message, CheckedShares):
            if not set(message.spoilt) <= self._expected - {sender}:
                return "a complaint about a seller that it got nothing from"
            self._spoilt[sender] = tuple(sorted(set(message.spoilt)))
        elif isinstance(message, MaskedInput):
            words = unpack(message.vector, terms.length + 1, terms.bits)
            if words is None:
                return f"not {terms.length} integers of {terms.bits} bits"
            self._total += words
            self._came.add(sender)
        elif isinstance(message, Confirmation):
            statement = survivors_statement(self._key_list.digest, self._survivors)
            right_size = len(message.signature) == SIGNATURE_BYTES
            if not right_size or not verifies(terms.members[sender], message.signature, statement):
                return "no signature under the list of survivors"
            self._signed[sender] = message.signature
        else:
            owners = [parcel.seller for parcel in message.shares]
            if owners != list(self._partners):
                return "shares of other sellers than it was asked for"
            if any(piece_number(parcel.content) != sender + 1 for parcel in message.shares):
                return "shares that are not its own"
            self._opened[sender] = message
        return None

    # ---- what goes out -----------------------------------------------------------------------------------------

    def _enough(self, sellers: Iterable[int], what: str) -> tuple[int, ...]:
        found = tuple(sorted(sellers))
        if len(found) < self.terms.threshold:
            raise SumClosed(
                f"{len(found)} of {self.terms.sellers} sellers {what}, {self.terms.threshold} are needed"
            )
        return found

    def _list_keys(self) -> dict[int, ServerMessage]:
        listed = self._enough(self._keys, "sent keys")
        self._key_list = KeyList(self.terms.digest, tuple(self._keys[seller] for seller in listed))
        return dict.fromkeys(listed, self._key_list)

    def _deliver(self) -> dict[int, ServerMessage]:
        there = self._enough(self._sealed, "sent shares")
        return {
            seller: DeliveredShares(
                self.terms.digest,
                tuple(Parcel(other, self._sealed[other][seller]) for other in there if other != seller),
            )
            for seller in there
        }

    def _ask_for_inputs(self) -> dict[int, ServerMessage]:
        self._partners = self._enough(without_complaints(self._spoilt), "hold each other's shares")
        self._sealed = {}
        return dict.fromkeys(self._partners, InputRequest(self.terms.digest, self._partners))

    def _list_survivors(self) -> dict[int, ServerMessage]:
        self._survivors = self._enough(self._came, "came through")
        return dict.fromkeys(self._survivors, SurvivorList(self.terms.digest, self._survivors))

    def _pass_on_confirmations(self) -> dict[int, ServerMessage]:
        signed = self._enough(self._signed, "confirmed the list of survivors")
        signatures = tuple(Parcel(seller, self._signed[seller]) for seller in signed)
        # Also to sellers whose signature did not arrive: they may have signed, and then they can help.
        return dict.fromkeys(self._survivors, Confirmations(self.terms.digest, signatures))

    def _unmask(self) -> dict[int, ServerMessage]:
        terms = self.terms
        openers = self._enough(self._opened, "opened their shares")
        pieces = shares_by_owner({seller: self._opened[seller] for seller in openers})
        key_list = self._key_list.digest
        total = self._total
        order = list(openers)
        for owner in self._partners:
            if owner in self._survivors:
                seed, order = self._restored(owner, pieces[owner], order, self._is_seed(owner))
                total -= mask(seed, own_mask(key_list, owner), total.size, terms.bits)
                continue
            secret, order = self._restored(owner, pieces[owner], order, self._is_mask_secret(owner))
            agreement = Agreement(secret, MASKS, key_list)
            for survivor in self._survivors:
                pairwise = mask(
                    agreement.key_with(self._keys[survivor].mask_key), label(MASKS), total.size, terms.bits
                )
                # What the survivor added against this drop-out, with the opposite sign.
                if survivor > owner:
                    total -= pairwise
                else:
                    total += pairwise
        opened = without_count(total, terms.bits, len(self._survivors))
        if opened is None:
            raise SumClosed("the survivors' masks do not cancel: one of them sent no masked vector")
        self.result = OpenedSum(opened, self._survivors)
        return {}

    def _is_seed(self, owner: int) -> Callable[[bytes], bool]:
        committed = self._keys[owner].seed_commitment
        return lambda seed: seed_commitment(seed, self.terms.digest, owner) == committed

    def _is_mask_secret(self, owner: int) -> Callable[[bytes], bool]:
        public = self._keys[owner].mask_key
        return lambda secret: public_of(secret) == public

    def _restored(
        self, owner: int, pieces: Mapping[int, bytes], order: list[int], is_right: Callable[[bytes], bool]
    ) -> tuple[bytes, list[int]]:
        """A seller's secret from the first pieces in `order` that give it, and the order to use for the next
        secret.

        Some sellers may send wrong pieces. Those in a set that gave the right secret are tried first for the next
        one, so a few wrong senders cost a few tries in all.
        """
        threshold = self.terms.threshold
        rng = np.random.default_rng(owner)
        # Each of them is left out once; after that, sets are drawn at random.
        rotations = [order[at:] + order[:at] for at in range(len(order))] if len(order) > threshold else [order]
        for tried in range(len(rotations) + _TRIES):
            if tried < len(rotations):
                order = rotations[tried]
            elif len(order) > threshold:
                order = [order[at] for at in rng.permutation(len(order))]
            secret = restore([pieces[opener] for opener in order[:threshold]])
            if secret is not None and is_right(secret):
                return secret, order
        raise SumClosed(f"the secret of seller {owner} cannot be restored: wrong shares were dealt or opened")


def without_complaints(spoilt: Mapping[int, tuple[int, ...]]) -> set[int]:
    """A set of sellers in which nobody complains about another's shares.

    Sellers are removed one by one: the one involved in most complaints, made or received, and among equals the one
    that more complain about. So a seller that spoils many shares, or complains about many, is removed itself, and a
    wrong complaint removes at most one honest seller.

    Args:
        spoilt: seller → the sellers whose shares it could not open. Those that did not answer are not in it.
    """
    left = set(spoilt)
    while True:
        received = dict.fromkeys(left, 0)
        made = dict.fromkeys(left, 0)
        for seller in left:
            for accused in spoilt[seller]:
                if accused in left:
                    received[accused] += 1
                    made[seller] += 1
        if not any(made.values()):
            return left
        left.remove(max(left, key=lambda one: (received[one] + made[one], received[one], one)))
