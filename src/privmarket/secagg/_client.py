"""A seller in a secure sum: which steps of a server it follows, and what it answers.

A seller does not trust the server. Before each step it checks for itself what the step rests on, writes the step
into its journal, and only then returns the message. A step that it has taken is never taken again, whatever asks
for it: a replayed message, a second process, a copy of an older context.

Implements: the client of [BonawitzEtAl2017], figure 4, with the parts for an active adversary.
Deviation: shares are opened and checked before the seller trains, not when the sum is opened. Keys, masks and
signatures are bound to the terms of the sum and to the list of all keys. A hash commits each seller to its seed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from privmarket.secagg._codec import decode, encode
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._journal import OpenJournal, Step, SumJournal, SumState
from privmarket.secagg._keys import (
    NONCE_BYTES,
    Agreement,
    Signer,
    is_usable,
    label,
    new_secret,
    public_of,
    seal,
    unseal,
    verifies,
)
from privmarket.secagg._masks import Integers, mask, pack, with_count
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
    SurvivorList,
    survivors_statement,
)
from privmarket.secagg._shamir import PIECE_BYTES, SECRET_BYTES, piece_number, split
from privmarket.secagg._terms import SumTerms

CHANNEL = "channel"
MASKS = "masks"
OWN_MASK = "own mask"
_CONSENT = Callable[[SumTerms, bytes], None]


class Client:
    """One seller.

    Steps are methods, in the order in which they are taken. Each returns the message for the server, or raises
    `SumRefusal`: then nothing has left, and the seller counts as dropped out.

    Args:
        identity: the seller's registered signing key.
        journal: its state; the same one for all of its sums, in every process.
        consent: called with the terms and the register's signature before anything else; raises `SumRefusal` for
            a sum that this seller does not take part in. `SumTerms.check_members` and `SumTerms.check_signature`
            are made for it. A seller without one supposes that each member is a party of its own.
        random_bytes: where secrets come from; the operating system outside tests.
    """

    def __init__(
        self,
        identity: Signer,
        journal: SumJournal,
        *,
        consent: _CONSENT | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._consent = consent
        self._random = random_bytes

    def advertise(self, invitation: Invitation) -> AdvertisedKeys:
        """Round 0: checks the terms and answers with new public keys, signed by the registered key.

        Raises:
            SumRefusal: `terms` or `members` for a sum that this seller does not take part in; `repeated` for a
                sum of a round in which, or after which, one has begun.
        """
        terms = invitation.terms
        terms.check()
        number = terms.number_of(self._identity.public_key)
        if self._consent is not None:
            self._consent(terms, invitation.signature)
        with self._journal.open() as journal:
            latest = journal.latest(terms.task)
            if latest is not None and terms.round <= latest.round:
                raise SumRefusal(
                    "repeated", f"a sum of round {terms.round}, and one of round {latest.round} has begun before"
                )
            state = SumState(
                terms.task,
                terms.round,
                terms.digest,
                encode(terms),
                Step.ADVERTISED,
                channel_secret=new_secret(),
                mask_secret=new_secret(),
                seed=self._random(SECRET_BYTES),
            )
            journal.write(state)
        unsigned = AdvertisedKeys(
            terms.digest,
            number,
            public_of(state.channel_secret),
            public_of(state.mask_secret),
            seed_commitment(state.seed, terms.digest, number),
            b"",
        )
        return replace(unsigned, signature=self._identity.sign(unsigned.statement))

    def share(self, listed: KeyList) -> SealedShares:
        """Round 1: checks everybody's keys and seals a share of both secrets for each other seller.

        Raises:
            SumRefusal: `members` or `keys` for a list that the registered sellers did not sign, or that is too
                short.
        """
        with self._journal.open() as journal:
            state, terms = self._at(journal, listed.sum, Step.ADVERTISED)
            number = terms.number_of(self._identity.public_key)
            _check_keys(listed, terms, number, state)
            seeds = split(state.seed, terms.threshold, terms.sellers, self._random)
            secrets = split(state.mask_secret, terms.threshold, terms.sellers, self._random)
            channel = Agreement(state.channel_secret, CHANNEL, listed.digest)
            parcels = []
            for keys in listed.keys:
                other = keys.sender
                if other != number:
                    text = secrets[other] + seeds[other]
                    key = channel.key_with(keys.channel_key)
                    sealed = seal(key, self._random(NONCE_BYTES), text, _direction(number, other))
                    parcels.append(Parcel(other, sealed))
            own = Parcel(number, secrets[number] + seeds[number])
            journal.write(replace(state, step=Step.SHARED, keys=listed.keys, shares=(own,)))
        return SealedShares(terms.digest, number, tuple(parcels))

    def check(self, delivered: DeliveredShares) -> CheckedShares:
        """Opens what the others sealed, before anything is trained; says whose parcels are spoilt.

        Raises:
            SumRefusal: `shares`, where fewer than the threshold are good: the sum could never be opened.
        """
        with self._journal.open() as journal:
            state, terms = self._at(journal, delivered.sum, Step.SHARED)
            number = terms.number_of(self._identity.public_key)
            keys = {one.sender: one for one in state.keys}
            senders = [parcel.seller for parcel in delivered.parcels]
            if len(set(senders)) != len(senders) or not set(senders) <= set(keys) - {number}:
                raise SumRefusal("shares", "shares of sellers that are not in the list of keys, or twice of one")
            channel = Agreement(state.channel_secret, CHANNEL, KeyList(terms.digest, state.keys).digest)
            good = list(state.shares)
            spoilt = []
            for parcel in delivered.parcels:
                key = channel.key_with(keys[parcel.seller].channel_key)
                text = unseal(key, parcel.content, _direction(parcel.seller, number))
                if text is not None and _are_pieces(text, number):
                    good.append(Parcel(parcel.seller, text))
                else:
                    spoilt.append(parcel.seller)
            if len(good) < terms.threshold:
                raise SumRefusal("shares", f"{len(good)} sellers' shares are good, {terms.threshold} are needed")
            journal.write(replace(state, step=Step.CHECKED, shares=tuple(good)))
        return CheckedShares(terms.digest, number, tuple(sorted(spoilt)))

    def accept(self, request: InputRequest) -> SumTerms:
        """Round 2, before training: agrees to mask a vector against these sellers. Returns the sum's terms.

        Raises:
            SumRefusal: `survivors`, where they are too few, or the shares of one of them never came.
        """
        with self._journal.open() as journal:
            state, terms = self._at(journal, request.sum, Step.CHECKED)
            number = terms.number_of(self._identity.public_key)
            _check_list(request.partners, {parcel.seller for parcel in state.shares}, number, terms)
            journal.write(replace(state, step=Step.ACCEPTED, partners=request.partners))
        return terms

    def mask(self, digest: bytes, vector: Integers) -> MaskedInput:
        """Round 2, after training: the vector under its masks.

        Args:
            digest: names the sum.
            vector: (length,) int64, no entry beyond ± the terms' `largest`.

        Raises:
            SumRefusal: `input`, for a vector that the sum cannot carry.
        """
        with self._journal.open() as journal:
            state, terms = self._at(journal, digest, Step.ACCEPTED)
            number = terms.number_of(self._identity.public_key)
            if vector.shape != (terms.length,) or vector.dtype != np.int64:
                raise SumRefusal(
                    "input", f"a vector of {vector.dtype}, {vector.shape}, for {terms.length} integers"
                )
            if int(vector.max()) > terms.largest or int(vector.min()) < -terms.largest:
                raise SumRefusal("input", f"an integer beyond ±{terms.largest}: the sum could wrap")
            listed = KeyList(terms.digest, state.keys).digest
            total = with_count(vector)
            total += mask(state.seed, own_mask(listed, number), total.size, terms.bits)
            agreement = Agreement(state.mask_secret, MASKS, listed)
            for keys in state.keys:
                other = keys.sender
                if other == number or other not in state.partners:
                    continue
                pairwise = mask(agreement.key_with(keys.mask_key), label(MASKS), total.size, terms.bits)
                if number > other:
                    total += pairwise
                else:
                    total -= pairwise
            # The vector is masked and may leave: from here on nobody may get it under other masks.
            journal.write(replace(state, step=Step.MASKED))
        return MaskedInput(terms.digest, number, pack(total, terms.bits))

    def confirm(self, listed: SurvivorList) -> Confirmation:
        """Round 3: signs the one list of survivors that this seller helps to open.

        Raises:
            SumRefusal: `survivors`, where it names too few, leaves this seller out, or names one that it did not
                mask against.
        """
        with self._journal.open() as journal:
            state, terms = self._at(journal, listed.sum, Step.MASKED)
            number = terms.number_of(self._identity.public_key)
            _check_list(listed.survivors, set(state.partners), number, terms)
            journal.write(replace(state, step=Step.CONFIRMED, survivors=listed.survivors))
        statement = survivors_statement(KeyList(terms.digest, state.keys).digest, listed.survivors)
        return Confirmation(terms.digest, number, self._identity.sign(statement))

    def open(self, confirmed: Confirmations) -> OpenedShares:
        """Round 4: gives out one share of each partner, if enough survivors signed the same list.

        Raises:
            SumRefusal: `survivors`, where they did not.
        """
        with self._journal.open() as journal:
            state, terms = self._at(journal, confirmed.sum, Step.CONFIRMED)
            number = terms.number_of(self._identity.public_key)
            signers = [parcel.seller for parcel in confirmed.signatures]
            survivors = set(state.survivors)
            if len(set(signers)) != len(signers) or not set(signers) <= survivors:
                raise SumRefusal("survivors", "signatures of sellers that did not survive, or twice of one")
            if len(signers) < terms.threshold:
                raise SumRefusal("survivors", f"{len(signers)} survivors signed, {terms.threshold} are needed")
            statement = survivors_statement(KeyList(terms.digest, state.keys).digest, state.survivors)
            for parcel in confirmed.signatures:
                if not verifies(terms.members[parcel.seller], parcel.content, statement):
                    raise SumRefusal("survivors", f"seller {parcel.seller} did not sign this list of survivors")
            opened = []
            for parcel in state.shares:
                if parcel.seller in survivors:
                    opened.append(Parcel(parcel.seller, parcel.content[PIECE_BYTES:]))
                elif parcel.seller in state.partners:
                    opened.append(Parcel(parcel.seller, parcel.content[:PIECE_BYTES]))
            journal.write(state.erased())
        return OpenedShares(terms.digest, number, tuple(sorted(opened, key=lambda one: one.seller)))

    def _at(self, journal: OpenJournal, digest: bytes, step: Step) -> tuple[SumState, SumTerms]:
        """The sum of that digest, if its last step is the one before."""
        state = journal.named(digest)
        if state is None:
            raise SumRefusal("message", "a step of a sum that has not begun here, or that another has followed")
        if state.step > step:
            raise SumRefusal("repeated", f"this seller has taken the step after {step.name} before")
        if state.step < step:
            raise SumRefusal("message", f"the sum is at {Step(state.step).name}, not at {step.name}")
        return state, decode(SumTerms, state.terms)


def seed_commitment(seed: bytes, digest: bytes, number: int) -> bytes:
    """A hash of the seed of a seller's own mask. The seed has 256 random bits, so the hash says nothing of it."""
    return hashlib.sha256(label("seed") + digest + number.to_bytes(8, "little") + seed).digest()


def own_mask(key_list: bytes, number: int) -> bytes:
    """What the mask is bound to that a seller draws from its own seed."""
    return label(OWN_MASK) + key_list + number.to_bytes(8, "little")


def keys_fault(keys: AdvertisedKeys, terms: SumTerms) -> str | None:
    """What is wrong with the keys that a seller advertised; None where nothing is."""
    if keys.sum != terms.digest or keys.sender >= terms.sellers:
        return "keys for another sum"
    if not (is_usable(keys.channel_key) and is_usable(keys.mask_key)):
        return "a key with which everybody agrees on the same secret, or none"
    if keys.channel_key == keys.mask_key:
        return "one key for two purposes"
    if len(keys.seed_commitment) != hashlib.sha256().digest_size:
        return "no commitment to a seed"
    if not verifies(terms.members[keys.sender], keys.signature, keys.statement):
        return "keys that its registered key did not sign for this sum"
    return None


def _check_keys(listed: KeyList, terms: SumTerms, number: int, state: SumState) -> None:
    """Refuses a list of keys that is too short, not signed, or not with this seller's own."""
    senders = [keys.sender for keys in listed.keys]
    if senders != sorted(set(senders)):
        raise SumRefusal("members", "a list of keys with a seller twice, or out of order")
    if len(senders) < terms.threshold:
        raise SumRefusal("members", f"keys of {len(senders)} sellers, {terms.threshold} are needed")
    for keys in listed.keys:
        fault = keys_fault(keys, terms)
        if fault is not None:
            raise SumRefusal("keys", f"seller {keys.sender}: {fault}")
    used = [key for keys in listed.keys for key in (keys.channel_key, keys.mask_key)]
    if len(used) != len(set(used)):
        raise SumRefusal("keys", "a list with one key twice")
    mine = {keys.sender: keys for keys in listed.keys}.get(number)
    own = (
        public_of(state.channel_secret),
        public_of(state.mask_secret),
        seed_commitment(state.seed, terms.digest, number),
    )
    if mine is None or (mine.channel_key, mine.mask_key, mine.seed_commitment) != own:
        raise SumRefusal("keys", "a list without this seller's own keys")


def _check_list(listed: tuple[int, ...], known: set[int], number: int, terms: SumTerms) -> None:
    """Refuses a list of sellers that is too short, lacks this seller, or names one that it cannot answer for."""
    if list(listed) != sorted(set(listed)) or not set(listed) <= known:
        raise SumRefusal("survivors", "a list that names a seller twice, or one whose shares never came")
    if number not in listed:
        raise SumRefusal("survivors", "a list without this seller")
    if len(listed) < terms.threshold:
        raise SumRefusal("survivors", f"{len(listed)} of {terms.sellers} sellers, {terms.threshold} are needed")


def _direction(sender: int, receiver: int) -> bytes:
    """Who sealed for whom: authenticated with the text, so that parcels cannot be exchanged."""
    return sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")


def _are_pieces(text: bytes, number: int) -> bool:
    """Whether a parcel holds the two pieces that belong to this seller."""
    first = text[:PIECE_BYTES]
    second = text[PIECE_BYTES:]
    return piece_number(first) == number + 1 and piece_number(second) == number + 1


def shares_by_owner(opened: Mapping[int, OpenedShares]) -> dict[int, dict[int, bytes]]:
    """owner → who opened → its piece."""
    found: dict[int, dict[int, bytes]] = {}
    for opener, message in opened.items():
        for parcel in message.shares:
            found.setdefault(parcel.seller, {})[opener] = parcel.content
    return found
