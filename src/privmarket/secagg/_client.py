"""A seller in a secure sum: which steps of a server it follows, and what it answers.

A seller does not trust the server. Before each step it checks what the server sent, writes the step into its
journal, and only then returns the message. No step is taken twice, even if a message is replayed, a second process
runs, or an older copy of the context is used.

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
from privmarket.secagg._cohorts import commitment, deal_cohorts, dealing_seed
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._journal import DealingState, OpenJournal, Step, SumJournal, SumState
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
    Commitment,
    CommitmentList,
    Confirmation,
    Confirmations,
    DealingCall,
    DeliveredShares,
    InputRequest,
    Invitation,
    KeyList,
    MaskedInput,
    OpenedSecret,
    OpenedShares,
    Parcel,
    SealedShares,
    SurvivorList,
    dealt_digest,
    survivors_statement,
)
from privmarket.secagg._plan import survivors_needed
from privmarket.secagg._roster import DealingTerms, Roster
from privmarket.secagg._shamir import PIECE_BYTES, SECRET_BYTES, piece_number, split
from privmarket.secagg._terms import SumTerms

CHANNEL = "channel"
MASKS = "masks"
OWN_MASK = "own mask"
_CONSENT = Callable[[Roster, bytes], None]


class Client:
    """One seller.

    Steps are methods, in the order in which they are taken. Each returns the message for the server. If it raises
    `SumRefusal`, nothing has left, and the seller counts as dropped out.

    Args:
        identity: the seller's registered signing key.
        journal: its state; the same one for all of its sums, in every process.
        consent: called with the roster of a round and the register's signature before anything else; raises
            `SumRefusal` for a round that this seller does not take part in. `Roster.check_members` and
            `Roster.check_signature` can be used in it. Without `consent` the seller assumes that each member is a
            separate party, and that nobody chose who takes part.
        minimum_cohort: the fewest sellers of a sum that it takes part in.
        random_bytes: the source of secrets; the operating system outside tests.
    """

    def __init__(
        self,
        identity: Signer,
        journal: SumJournal,
        *,
        consent: _CONSENT | None = None,
        minimum_cohort: int = 1,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._consent = consent
        self._minimum_cohort = minimum_cohort
        self._random = random_bytes

    def commit(self, call: DealingCall) -> Commitment:
        """Before the sums of a large round: checks the roster, and answers with the hash of a new secret.

        Raises:
            SumRefusal: `terms` or `members` for a dealing that this seller does not take part in; `repeated` for a
                round in which, or after which, a dealing or a sum has begun.
        """
        terms = call.terms
        terms.check()
        roster = terms.roster
        number = roster.number_of(self._identity.public_key)
        self._check_size(terms.smallest_cohort)
        if self._consent is not None:
            self._consent(roster, call.signature)
        secret = self._random(SECRET_BYTES)
        with self._journal.open() as journal:
            for latest in (journal.latest(roster.task), journal.dealing(roster.task)):
                _check_first(roster.round, latest)
            journal.write_dealing(DealingState(roster.task, roster.round, terms.digest, encode(terms), secret))
        unsigned = Commitment(terms.digest, number, commitment(self._identity.public_key, secret), b"")
        return replace(unsigned, signature=self._identity.sign(unsigned.statement))

    def reveal(self, listed: CommitmentList) -> OpenedSecret:
        """Opens the secret, for one list of commitments only, which fixes the cohorts of the round.

        Raises:
            SumRefusal: `members` for a list that the registered sellers did not sign, that is too short, or that
                lacks this seller's commitment.
        """
        with self._journal.open() as journal:
            state = journal.dealing_named(listed.dealing)
            if state is None:
                raise SumRefusal("message", "a dealing that has not begun here, or that another has followed")
            if state.commitments:
                raise SumRefusal("repeated", "this seller has opened its secret before")
            roster = decode(DealingTerms, state.terms).roster
            number = roster.number_of(self._identity.public_key)
            own = commitment(self._identity.public_key, state.secret)
            _check_commitments(listed, roster, number, own)
            journal.write_dealing(replace(state, commitments=listed.commitments))
        return OpenedSecret(listed.dealing, number, state.secret)

    def advertise(self, invitation: Invitation) -> AdvertisedKeys:
        """Round 0: checks the terms and answers with new public keys, signed by the registered key.

        Raises:
            SumRefusal: `terms` or `members` for a sum that this seller does not take part in; `repeated` for a
                sum of a round in which, or after which, one has begun.
        """
        terms = invitation.terms
        terms.check()
        number = terms.number_of(self._identity.public_key)
        self._check_size(terms.sellers)
        if self._consent is not None and not terms.dealing:
            self._consent(terms.roster, invitation.signature)
        with self._journal.open() as journal:
            _check_first(terms.round, journal.latest(terms.task))
            if terms.dealing:
                # Consent was given to the whole roster, before this seller sent its commitment.
                _check_dealt(invitation, journal.dealing(terms.task))
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
        """Opens the shares that the others sealed, before training, and reports whose parcels are spoilt.

        Raises:
            SumRefusal: `shares`, if fewer than the threshold are good: the sum could never be opened.
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
            SumRefusal: `survivors`, if they are too few, or the shares of one of them never came.
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
            SumRefusal: `input`, for a vector of the wrong length or with larger entries.
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
            # The vector is masked and may leave. From here on it is never sent under other masks.
            journal.write(replace(state, step=Step.MASKED))
        return MaskedInput(terms.digest, number, pack(total, terms.bits))

    def confirm(self, listed: SurvivorList) -> Confirmation:
        """Round 3: signs the one list of survivors that this seller helps to open.

        Raises:
            SumRefusal: `survivors`, if the list is too short, leaves this seller out, or names one that it did not
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
        """Round 4: reveals one share of each partner, if enough survivors signed the same list.

        Raises:
            SumRefusal: `survivors`, if they did not.
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

    def _check_size(self, sellers: int) -> None:
        if sellers < self._minimum_cohort:
            raise SumRefusal(
                "members", f"a secure sum of {sellers} sellers, this one wants at least {self._minimum_cohort}"
            )

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


def _check_first(round_: int, latest: SumState | DealingState | None) -> None:
    """Refuses a round if a sum or a dealing of this or a later round has begun."""
    if latest is not None and round_ <= latest.round:
        raise SumRefusal("repeated", f"round {round_}, and round {latest.round} has begun before")


def _check_commitments(listed: CommitmentList, roster: Roster, number: int, own: bytes) -> None:
    """Refuses a list of commitments that is too short, not signed, or lacks this seller's own."""
    senders = [one.sender for one in listed.commitments]
    sellers = len(roster.members)
    needed = survivors_needed(sellers, roster.honest_share)
    if senders != sorted(set(senders)) or any(sender >= sellers for sender in senders):
        raise SumRefusal("members", "a list of commitments with a seller twice, out of order, or not awarded")
    if len(senders) < needed:
        raise SumRefusal("members", f"commitments of {len(senders)} of {sellers} sellers, {needed} are needed")
    for one in listed.commitments:
        if one.dealing != listed.dealing or not verifies(roster.members[one.sender], one.signature, one.statement):
            raise SumRefusal("members", f"seller {one.sender} did not sign this commitment for this dealing")
    if {one.sender: one.commitment for one in listed.commitments}.get(number) != own:
        raise SumRefusal("members", "a list without this seller's own commitment")


def _check_dealt(invitation: Invitation, state: DealingState | None) -> None:
    """Refuses a sum whose members are not the cohort that follows from this round's dealing."""
    terms = invitation.terms
    if state is None or state.round != terms.round or not state.commitments:
        raise SumRefusal("members", "a cohort of a round in which this seller was not dealt")
    dealing = decode(DealingTerms, state.terms)
    roster = dealing.roster
    opened = {one.seller: one.content for one in invitation.secrets}
    commitments = {roster.members[one.sender]: one.commitment for one in state.commitments}
    secrets = {roster.members[one.sender]: opened.get(one.sender, b"") for one in state.commitments}
    seed = dealing_seed(commitments, secrets)
    if terms.dealing != dealt_digest(dealing.digest, seed) or terms.honest_share != roster.honest_share:
        raise SumRefusal("members", "a sum of another dealing than the one that this seller took part in")
    if terms.members not in deal_cohorts(roster.members, seed, dealing.largest_cohort):
        raise SumRefusal("members", "a sum of other sellers than those that were dealt together")


def seed_commitment(seed: bytes, digest: bytes, number: int) -> bytes:
    """A hash of the seed of a seller's own mask. The seed has 256 random bits, so the hash does not reveal it."""
    return hashlib.sha256(label("seed") + digest + number.to_bytes(8, "little") + seed).digest()


def own_mask(key_list: bytes, number: int) -> bytes:
    """The bytes that bind a seller's own mask, drawn from its seed, to the sum and to its number."""
    return label(OWN_MASK) + key_list + number.to_bytes(8, "little")


def keys_fault(keys: AdvertisedKeys, terms: SumTerms) -> str | None:
    """What is wrong with the keys that a seller advertised; None if they are right."""
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
    """Refuses a list of keys that is too short, not signed, or lacks this seller's own."""
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
    """Sender and receiver as bytes, authenticated with the text so that parcels cannot be swapped."""
    return sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")


def _are_pieces(text: bytes, number: int) -> bool:
    """Whether a parcel holds the two pieces that belong to this seller."""
    first = text[:PIECE_BYTES]
    second = text[PIECE_BYTES:]
    return piece_number(first) == number + 1 and piece_number(second) == number + 1


def shares_by_owner(opened: Mapping[int, OpenedShares]) -> dict[int, dict[int, bytes]]:
    """Owner of a secret → seller that opened a piece of it → the piece."""
    found: dict[int, dict[int, bytes]] = {}
    for opener, message in opened.items():
        for parcel in message.shares:
            found.setdefault(parcel.seller, {})[opener] = parcel.content
    return found
