"""Sealed deliveries: an update is sent encrypted, and the buyer gets its key when it pays.

The seller draws a key, encrypts its update, sends the ciphertext to the buyer and deposits the key with the broker
when it claims its delivery. The log has the digests of the ciphertext and of the key. When the round is settled,
the key of every paid update is written into the log, where its buyer reads it, and the others are destroyed. In a
dispute the arbiter may ask for the key, and the log shows that it did.

The cipher is ChaCha20-Poly1305 under a key that is used once. Until its round is settled, a key is kept outside the
log, encrypted with a secret derived from the broker's signing key (`Vault`), so that nobody can read it with the
database alone.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from privmarket.broker import _sql as sql
from privmarket.broker._errors import BrokerError
from privmarket.broker._signatures import SigningKey

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
    """Decrypts an update; raises `BrokerError` if the ciphertext was not made with this key."""
    try:
        return ChaCha20Poly1305(bytes.fromhex(key)).decrypt(_NONCE, ciphertext, None)
    except (InvalidTag, ValueError):
        raise BrokerError(
            "this key does not open this update", "compare its SHA-256 with the claim, and tell the arbiter"
        ) from None


def key_digest(key: str) -> str:
    """The digest of a key that a claim states: the SHA-256 of its 32 bytes."""
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()


# ---- keys that wait for their round's settlement --------------------------------------------------------------


class Vault:
    """The keys that sellers deposited with the broker, in the table `sealed_keys`."""

    def __init__(self, connection: Connection, key: SigningKey | None) -> None:
        """`key`: the broker's signing key; without one, the sellers' keys are stored unencrypted."""
        self._connection, self._key = connection, key

    @cached_property
    def _wrapping(self) -> ChaCha20Poly1305 | None:
        """The cipher for stored keys. Made on first use: few writes need it, and it costs as much as a query."""
        return None if self._key is None else ChaCha20Poly1305(self._key.secret("deliveries"))

    def put(self, round_id: str, seller_id: str, key: str) -> None:
        """Stores a seller's key, encrypted if the broker has a signing key."""
        if self._wrapping is not None:
            nonce = secrets.token_bytes(12)
            key = (nonce + self._wrapping.encrypt(nonce, bytes.fromhex(key), _place(round_id, seller_id))).hex()
        insert = "INSERT INTO sealed_keys (round_id, seller_id, wrapped) VALUES (?, ?, ?)"
        sql.run(self._connection, insert, round_id, seller_id, key)

    def of_round(self, round_id: str) -> dict[str, str]:
        """Seller → its key; keys that cannot be decrypted with this broker's key are missing."""
        query = "SELECT seller_id, wrapped FROM sealed_keys WHERE round_id = ?"
        found = {}
        for seller_id, wrapped in sql.run(self._connection, query, round_id):
            try:
                raw = bytes.fromhex(wrapped)
                if self._wrapping is not None:
                    raw = self._wrapping.decrypt(raw[:12], raw[12:], _place(round_id, seller_id))
                found[str(seller_id)] = raw.hex()
            except (InvalidTag, ValueError):  # the broker's key was replaced meanwhile, or somebody edited the row
                continue
        return found

    def rewrap(self, new: SigningKey) -> None:
        """Encrypts all stored keys again, for a new signing key of the broker that replaces the present one.

        Raises:
            BrokerError: one of them cannot be unwrapped with the present key.
        """
        other = Vault(self._connection, new)
        query = "SELECT DISTINCT round_id FROM sealed_keys ORDER BY round_id"
        for (round_id,) in sql.run(self._connection, query):
            held = sql.run(self._connection, "SELECT seller_id FROM sealed_keys WHERE round_id = ?", round_id)
            opened = self.of_round(round_id)
            lost = [str(seller) for (seller,) in held if seller not in opened]
            if lost:
                raise BrokerError(
                    f"the key of the update of {lost[0]} in {round_id} cannot be unwrapped",
                    "ask that seller to claim its delivery again with the same key, then rotate",
                )
            self.destroy(round_id)
            for seller, key in opened.items():
                other.put(round_id, seller, key)

    def replace(self, round_id: str, seller_id: str, key: str) -> None:
        """Stores a seller's key in place of one that cannot be decrypted any more."""
        sql.run(
            self._connection, "DELETE FROM sealed_keys WHERE round_id = ? AND seller_id = ?", round_id, seller_id
        )
        self.put(round_id, seller_id, key)

    def destroy(self, round_id: str) -> None:
        """Deletes the keys of a round that is settled."""
        sql.run(self._connection, "DELETE FROM sealed_keys WHERE round_id = ?", round_id)


def _place(round_id: str, seller_id: str) -> bytes:
    return f"{round_id} {seller_id}".encode()
