"""Keys of a secure sum: two sellers agree on a key by X25519, and what one sends the other is sealed under it.

Flower's SecAgg+ uses P-384 with keys written as PEM, seven times as slow and as long, and Fernet. A key that two
sellers agree on is a hash of the shared secret *and* of both public keys as they stand in the list of all sellers.
So somebody else's key written in another way and handed in as one's own (X25519 takes several writings for one
point) agrees on other keys than the original.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PROTOCOL = 3
"""Version of the protocol; a seller refuses another."""
PUBLIC_KEY_BYTES = 32
_AGREED = b"privmarket sum 2 agreed key\x00"
_NONCE = 12
# The points of X25519's curve and its twist whose order divides 8, by their coordinate: any secret key with one of
# them gives 0. The top bit of a written key is not looked at.
_FIELD, _UNSIGNED = 2**255 - 19, 2**255 - 1
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)


class BadKeyError(ValueError):
    """A public key with which nobody can agree on a secret, or a sealed text that was not sealed under this key."""


@dataclass(frozen=True)
class KeyPair:
    """A private key, ready for use, and its public key as bytes."""

    private: X25519PrivateKey
    public: bytes

    @classmethod
    def new(cls) -> KeyPair:
        """Generates a pair from the operating system's random numbers."""
        return cls._of(X25519PrivateKey.generate())

    @classmethod
    def read(cls, secret: bytes) -> KeyPair:
        """Restores the pair whose `secret` was stored.

        Raises:
            ValueError: the secret does not have 32 bytes.
        """
        return cls._of(X25519PrivateKey.from_private_bytes(secret))

    @classmethod
    def _of(cls, private: X25519PrivateKey) -> KeyPair:
        return cls(private, private.public_key().public_bytes_raw())

    @property
    def secret(self) -> bytes:
        """The private key as 32 bytes, for storing."""
        return self.private.private_bytes_raw()

    def agreed(self, other: bytes) -> bytes:
        """The key of 32 bytes that this pair and the owner of another public key have in common.

        Raises:
            BadKeyError: the other key is no key, or one of the few points with which every secret comes out as 0.
        """
        try:
            shared = self.private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise BadKeyError("a public key that gives every seller the same secret, or is none") from error
        if not any(shared):  # the library refuses that already; the promise does not rest on it
            raise BadKeyError("a public key that gives every seller the same secret")
        first, second = sorted((self.public, other))
        return hashlib.sha256(_AGREED + first + second + shared).digest()


def check_public_key(key: bytes) -> None:
    """Refuses bytes that are no public key.

    Raises:
        BadKeyError: another length, or a point of small order.
    """
    if len(key) != PUBLIC_KEY_BYTES:
        raise BadKeyError(f"a public key of {len(key)} bytes: another version of the secure sum?")
    if (int.from_bytes(key, "little") & _UNSIGNED) % _FIELD in _SMALL_ORDER:
        raise BadKeyError("a public key that gives every seller the same secret")


def seal(key: bytes, text: bytes) -> bytes:
    """The text encrypted and authenticated under an agreed key: AES-256 in Galois counter mode, a random nonce."""
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """From `seal`.

    Raises:
        BadKeyError: it was sealed under another key, or changed on the way.
    """
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
    except (InvalidTag, ValueError) as error:
        raise BadKeyError("pieces of a key that were not sealed for this seller") from error
