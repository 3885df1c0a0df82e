"""Keys of a secure sum: agreement by X25519, sealing by AES-256-GCM, signatures by Ed25519.

The key that two sellers agree on is HKDF-SHA256 of their X25519 secret, bound to its purpose, to the sum, and to
both public keys as they were sent. X25519 accepts several encodings of one point, so a colluder could send another
seller's key with the top bit changed. Since the public keys go into the hash, it would agree on other keys than the
original.

Implements: [RFC7748], [RFC5869], [RFC8032] by the `cryptography` library.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privmarket.secagg._errors import SumRefusal

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
TAG_BYTES = 16

# The points of X25519's curve and its twist whose order divides 8, by their coordinate: with any of them every
# secret key agrees on 0. The top bit of an encoded key is ignored.
_FIELD = 2**255 - 19
_WITHOUT_TOP_BIT = 2**255 - 1
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)


def label(purpose: str) -> bytes:
    """The prefix of everything that is hashed or signed for one purpose; no other purpose has the same prefix."""
    return b"privmarket secure sum: " + purpose.encode() + b"\x00"


class Signer(Protocol):
    """A seller's registered identity: its public key, and signatures under it."""

    @property
    def public_key(self) -> bytes:
        """The Ed25519 key that is registered, 32 bytes."""

    def sign(self, statement: bytes) -> bytes:
        """The 64 bytes of a signature."""


class SigningIdentity:
    """An Ed25519 key in memory.

    Args:
        secret: the 32 bytes of the private key.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)

    @classmethod
    def generate(cls) -> SigningIdentity:
        """A new key from the operating system's random numbers."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @property
    def secret(self) -> bytes:
        """The private key, 32 bytes, for storing."""
        return self._key.private_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """The 64 bytes of a signature."""
        return self._key.sign(statement)


def verifies(public_key: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether the owner of a public key signed this statement."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_of(secret: bytes) -> bytes:
    """The X25519 public key of a secret key; both have 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def new_secret() -> bytes:
    """A new X25519 secret key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def is_usable(public_key: bytes) -> bool:
    """Whether two sellers can agree on a secret with this key: 32 bytes that are not a point of small order."""
    if len(public_key) != KEY_BYTES:
        return False
    coordinate = (int.from_bytes(public_key, "little") & _WITHOUT_TOP_BIT) % _FIELD
    return coordinate not in _SMALL_ORDER


class Agreement:
    """One side of key agreement: a secret key, and the keys that follow from it and others' public keys.

    Args:
        secret: this side's X25519 key.
        purpose: the use of the keys; for other purposes the same secret gives unrelated keys.
        bound_to: the digest of the sum.
    """

    def __init__(self, secret: bytes, purpose: str, bound_to: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self._own = self._private.public_key().public_bytes_raw()
        self._info = label(purpose) + bound_to

    def key_with(self, other: bytes) -> bytes:
        """The 32 bytes that this side shares with the owner of another public key.

        Raises:
            SumRefusal: `keys`, if the other is not a key, or is of small order.
        """
        if not is_usable(other):
            raise SumRefusal("keys", "a public key with which everybody agrees on the same secret, or none")
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        first = min(self._own, other)
        second = max(self._own, other)
        return derived(shared, self._info + first + second)


def derived(secret: bytes, info: bytes, size: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 of a secret for one purpose."""
    return HKDF(SHA256(), size, salt=None, info=info).derive(secret)


def seal(key: bytes, nonce: bytes, text: bytes, associated: bytes) -> bytes:
    """The text encrypted and authenticated, with the nonce before it; `associated` is authenticated, too."""
    return nonce + AESGCM(key).encrypt(nonce, text, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """The text that `seal` sealed; None if the key or the associated bytes are others, or bytes were changed."""
    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        return None
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
    except InvalidTag:
        return None
