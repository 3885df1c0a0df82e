"""Sealed deliveries: an update travels encrypted, and the buyer gets its key when it pays.

The seller draws a key, encrypts its update, sends the ciphertext to the buyer and leaves the key with the broker
when it claims its delivery. The log holds the digests of the ciphertext and of the key. Settling the round puts the
key of every paid update in the log, where its buyer reads it, and destroys the others. In a dispute the arbiter may
have the key, and the log shows that it had.

The cipher is ChaCha20-Poly1305 under a key that is used once. `key_vault` keeps keys until their round is settled.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from privmarket.broker._http_errors import BrokerError

_NONCE = bytes(12)  # every key encrypts one message


class SealedUpdate(NamedTuple):
    """An encrypted update and its key (64 hexadecimal digits); `update_sha256` is the ciphertext's digest."""

    ciphertext: bytes
    key: str
    update_sha256: str


def seal(update: bytes) -> SealedUpdate:
    """Encrypts an update under a fresh key."""
    key = secrets.token_bytes(32)
    ciphertext = ChaCha20Poly1305(key).encrypt(_NONCE, update, None)
    return SealedUpdate(ciphertext, key.hex(), hashlib.sha256(ciphertext).hexdigest())


def unseal(ciphertext: bytes, key: str) -> bytes:
    """The update; refuses a ciphertext that this key did not make."""
    try:
        return ChaCha20Poly1305(bytes.fromhex(key)).decrypt(_NONCE, ciphertext, None)
    except (InvalidTag, ValueError):
        raise BrokerError(
            "this key does not open this update", "compare its SHA-256 with the claim, and tell the arbiter"
        ) from None


def key_digest(key: str) -> str:
    """What the claim says of a key: the SHA-256 of its 32 bytes."""
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()
