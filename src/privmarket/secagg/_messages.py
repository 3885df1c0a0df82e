"""The messages between server and sellers of a secure sum: frozen records, and their encoding as bytes.

A seller's number is the place of its key in the list of members. Every message names the sum by the digest of its
terms.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import cast

from privmarket.secagg._codec import decode, encode
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import label
from privmarket.secagg._roster import DealingTerms
from privmarket.secagg._terms import SumTerms


@dataclass(frozen=True)
class Parcel:
    """Bytes for, from or about one seller; the message says which."""

    seller: int
    content: bytes


# ---- dealing, before the sums, if a round has more sellers than one sum allows
# ------------------------------------


@dataclass(frozen=True)
class DealingCall:
    """Server to every awarded seller: asks for a commitment to a secret, from which the cohorts will follow."""

    terms: DealingTerms
    signature: bytes = b""

    @property
    def dealing(self) -> bytes:
        """The digest of the terms."""
        return self.terms.digest


@dataclass(frozen=True)
class Commitment:
    """Seller to server: the hash of its secret (`commitment`), signed by its registered key."""

    dealing: bytes
    sender: int
    commitment: bytes
    signature: bytes

    @property
    def statement(self) -> bytes:
        """What is signed."""
        return label("commitment") + self.dealing + self.sender.to_bytes(8, "little") + self.commitment


@dataclass(frozen=True)
class CommitmentList:
    """Server to every seller that sent a commitment: all commitments, by ascending number."""

    dealing: bytes
    commitments: tuple[Commitment, ...]


@dataclass(frozen=True)
class OpenedSecret:
    """Seller to server: its secret."""

    dealing: bytes
    sender: int
    secret: bytes


def dealt_digest(dealing: bytes, seed: bytes) -> bytes:
    """Names a dealing with its outcome, in the terms of each of its sums."""
    return hashlib.sha256(label("dealt") + dealing + seed).digest()


# ---- round 0, AdvertiseKeys -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invitation:
    """Server to every member: the terms of a sum.

    Attributes:
        signature: of the register under the roster, if there is one.
        secrets: if the sellers were dealt to several sums, the secrets that all of them opened.
    """

    terms: SumTerms
    signature: bytes = b""
    secrets: tuple[Parcel, ...] = ()

    @property
    def sum(self) -> bytes:
        """The digest of the terms."""
        return self.terms.digest


@dataclass(frozen=True)
class AdvertisedKeys:
    """Seller to server: its public keys for this sum.

    Attributes:
        channel_key: X25519, for shares that other sellers send it.
        mask_key: X25519, for pairwise masks.
        seed_commitment: a hash of the seed of its own mask, with which a restored seed is checked.
        signature: over all of this, by its registered key.
    """

    sum: bytes
    sender: int
    channel_key: bytes
    mask_key: bytes
    seed_commitment: bytes
    signature: bytes

    @property
    def statement(self) -> bytes:
        """What is signed."""
        unsigned = self.channel_key + self.mask_key + self.seed_commitment
        return label("keys") + self.sum + self.sender.to_bytes(8, "little") + unsigned


# ---- round 1, ShareKeys -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyList:
    """Server to every seller that advertised keys: the keys of all of them, by ascending number."""

    sum: bytes
    keys: tuple[AdvertisedKeys, ...]

    @property
    def digest(self) -> bytes:
        """Names terms and keys; masks and signatures of later rounds are bound to it."""
        return hashlib.sha256(label("key list") + encode(self)).digest()


@dataclass(frozen=True)
class SealedShares:
    """Seller to server: for each other seller, a share of each of its two secrets, sealed for that seller."""

    sum: bytes
    sender: int
    parcels: tuple[Parcel, ...]


# ---- the check before training, which the paper does not have ----------------------------------------------------


@dataclass(frozen=True)
class DeliveredShares:
    """Server to a seller: what the others sealed for it."""

    sum: bytes
    parcels: tuple[Parcel, ...]


@dataclass(frozen=True)
class CheckedShares:
    """Seller to server: it opened what was delivered, except the parcels of the sellers in `spoilt`."""

    sum: bytes
    sender: int
    spoilt: tuple[int, ...]


# ---- round 2, MaskedInputCollection ------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputRequest:
    """Server to a seller: asks for its vector, masked against these sellers."""

    sum: bytes
    partners: tuple[int, ...]


@dataclass(frozen=True)
class MaskedInput:
    """Seller to server: its masked vector."""

    sum: bytes
    sender: int
    vector: bytes


# ---- round 3, ConsistencyCheck -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurvivorList:
    """Server to every survivor: the sellers whose masked vectors came."""

    sum: bytes
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class Confirmation:
    """Seller to server: its signature over the key list and the survivors."""

    sum: bytes
    sender: int
    signature: bytes


def survivors_statement(key_list: bytes, survivors: tuple[int, ...]) -> bytes:
    """What a survivor signs: the digest of the key list, and who survived."""
    numbers = b"".join(number.to_bytes(8, "little") for number in survivors)
    return label("survivors") + key_list + numbers


# ---- round 4, Unmasking ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confirmations:
    """Server to every survivor: the signatures under the list."""

    sum: bytes
    signatures: tuple[Parcel, ...]


@dataclass(frozen=True)
class OpenedShares:
    """Seller to server: one share per partner: of a survivor's seed, or of a drop-out's mask key, never both."""

    sum: bytes
    sender: int
    shares: tuple[Parcel, ...]


DealerMessage = DealingCall | CommitmentList
"""What the server sends while sellers are dealt into cohorts."""
DealtMessage = Commitment | OpenedSecret
"""What a seller answers while sellers are dealt into cohorts."""
ServerMessage = Invitation | KeyList | DeliveredShares | InputRequest | SurvivorList | Confirmations
"""What the server sends in a sum."""
SellerMessage = AdvertisedKeys | SealedShares | CheckedShares | MaskedInput | Confirmation | OpenedShares
"""What a seller answers in a sum."""
Message = ServerMessage | SellerMessage | DealerMessage | DealtMessage
"""Every message of the protocol."""

_KINDS: tuple[type, ...] = (
    Invitation,
    AdvertisedKeys,
    KeyList,
    SealedShares,
    DeliveredShares,
    CheckedShares,
    InputRequest,
    MaskedInput,
    SurvivorList,
    Confirmation,
    Confirmations,
    OpenedShares,
    DealingCall,
    Commitment,
    CommitmentList,
    OpenedSecret,
)


def to_bytes(message: Message) -> bytes:
    """A message as bytes: a byte for its kind, then its fields."""
    return bytes([_KINDS.index(type(message))]) + encode(message)


def from_bytes(data: bytes) -> Message:
    """The message that `to_bytes` wrote.

    Raises:
        SumRefusal: `message`, if these are not the bytes of one message.
    """
    if not data or data[0] >= len(_KINDS):
        raise SumRefusal("message", "bytes that are no message of a secure sum")
    return cast(Message, decode(_KINDS[data[0]], data[1:]))
