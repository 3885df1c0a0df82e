"""Ed25519 keys: parties sign their bids and statements, the broker signs the heads of its log.

A private key is a PEM file (PKCS 8, not encrypted) that only its owner may read. A public key is 64 hexadecimal
digits, a signature 128.

The head of the log is signed as a checkpoint, and witnesses put their cosignatures under it. A note is a text, an
empty line, and lines of signatures: "— NAME BASE64", where the base64 holds four bytes that name the key, and the
signature. The text of a checkpoint is that of `Head`. A witness signs the same text after two lines with its own
time, and its line holds that time between key and signature.

Implements: [RFC8032], by the `cryptography` package; [C2SPNote], [C2SPCheckpoint], [C2SPCosignature].
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from privmarket._files import in_words, write_new
from privmarket.broker._errors import BrokerError

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(data: object) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return _ENCODER.encode(data)


def digest(data: object) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


class SigningKey:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.public = raw.hex()

    @classmethod
    def generate(cls) -> SigningKey:
        """A new random key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """The key of 32 secret bytes; for simulations, which must repeat."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def read(cls, path: str | Path) -> SigningKey:
        """Reads a key from a file that `write` made."""
        try:
            key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            why = in_words(error) if isinstance(error, OSError) else "not a PEM file"
            raise BrokerError(
                f"cannot read a key from {path}: {why}",
                "check the path; privmarket seller init makes a new key",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BrokerError(f"{path} holds another kind of key", "give an Ed25519 key as a PEM file")
        return cls(key)

    def write(self, path: str | Path) -> None:
        """Writes the key to a new file that only its owner may read; an existing file is never overwritten."""
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            write_new(path, pem)
        except FileExistsError:
            raise BrokerError(f"{path} exists", "a key is never overwritten: give another file") from None

    def sign(self, message: bytes) -> str:
        """The signature as hexadecimal digits."""
        return self._key.sign(message).hex()

    def secret(self, purpose: str) -> bytes:
        """32 secret bytes derived from this key, different for each purpose."""
        raw = self._key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        return hashlib.sha256(b"privmarket secret\x00" + purpose.encode() + b"\x00" + raw).digest()


_FIELD = 2**255 - 19
# The y coordinates of the points of order 1, 2, 4 and 8: for these public keys anybody can make signatures.
_SMALL_ORDER = (
    0,
    1,
    _FIELD - 1,
    int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
)


def is_public_key(text: str) -> bool:
    """Whether these are the hexadecimal digits of a public key that only its holder can sign for."""
    try:
        raw = bytes.fromhex(text)
        Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        return False
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    return text == text.lower() and y < _FIELD and y not in _SMALL_ORDER


def is_signed(public: str, message: bytes, signature: str) -> bool:
    """Whether the holder of the public key signed the message."""
    try:
        _public_key(public).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=10_000)
def _public_key(text: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))


# ---- bids -----------------------------------------------------------------------------------------------------


def commitment(round_id: str, seller_id: str, fields: dict[str, float | None], nonce: str) -> str:
    """A hiding and binding commitment to a bid. `fields`: valuation, epsilon, data_size, accuracy."""
    return digest([round_id, seller_id, fields, nonce])


def bid_message(round_id: str, seller_id: str, committed: str) -> bytes:
    """What a seller signs to place a bid."""
    return f"privmarket bid v1\n{round_id}\n{seller_id}\n{committed}\n".encode()


def key_message(party_id: str, public_key: str, signs: str) -> bytes:
    """What a party signs with its present key to replace that key, and to state what the new key will sign."""
    return f"privmarket key v1\n{party_id}\n{public_key}\n{signs}\n".encode()


def dataset_message(seller_id: str, dataset_sha256: str) -> bytes:
    """What a seller signs to attest which data set it sells from."""
    return f"privmarket dataset v1\n{seller_id}\n{dataset_sha256}\n".encode()


def statement_message(kind: str, party_id: str, about: str, said: Mapping[str, object]) -> bytes:
    """What a party signs to make a statement: publish a task, claim a delivery, give a receipt, rule.

    Args:
        kind: the kind of log entry that the statement becomes, such as "delivery.claimed".
        about: the round, task or party that the statement is about; "new" for a task.
        said: what is stated, by name. It is hashed as JSON text, in which 1.0 and 1 differ.
    """
    return f"privmarket statement v1\n{kind}\n{party_id}\n{about}\n{digest(said)}\n".encode()


def log_key_message(log_id: str, old: str, new: str) -> bytes:
    """What the old and the new key both sign when the new one takes over the signing of a log."""
    return f"privmarket log key v1\n{log_id}\n{old}\n{new}\n".encode()


# ---- heads of the log -----------------------------------------------------------------------------------------


class Head(NamedTuple):
    """The state of a log at one moment: how many entries, the Merkle root over them, and when.

    Attributes:
        log_id: which log, 32 hexadecimal digits drawn at its beginning.
        root: 64 hexadecimal digits.
        at_ms: the time of the last entry.
        signature: by the broker's key; empty where a broker runs without one.
    """

    log_id: str
    size: int
    root: str
    at_ms: int
    signature: str = ""

    @property
    def origin(self) -> str:
        """The name of the log in checkpoints."""
        return f"privmarket/{self.log_id}"

    def text(self) -> str:
        """The checkpoint: origin, size, root in base64, and the time of the last entry as an extension line."""
        root = base64.b64encode(bytes.fromhex(self.root)).decode()
        return f"{self.origin}\n{self.size}\n{root}\nat_ms {self.at_ms}\n"

    def message(self) -> bytes:
        """The bytes that are signed: the checkpoint's text."""
        return self.text().encode()

    def shown_message(self, now_ms: int) -> bytes:
        """What a broker signs when it shows this head as its newest."""
        return f"privmarket newest v1\n{self.log_id}\n{self.size}\n{self.root}\n{now_ms}\n".encode()

    def signed(self, key: SigningKey | None) -> Head:
        """The same head with a signature by the key; unchanged where there is no key."""
        return self if key is None else self._replace(signature=key.sign(self.message()))

    def is_signed_by(self, public: str) -> bool:
        """Whether the signature is this key's."""
        return is_signed(public, self.message(), self.signature)

    def header(self) -> str:
        """The head as one line, for an HTTP header."""
        return f"{self.log_id} {self.size} {self.root} {self.at_ms} {self.signature}"

    @classmethod
    def parse(cls, line: str) -> Head:
        """Reads the line that `header` makes; raises `BrokerError` if it is not one."""
        parts = line.split(" ")
        if len(parts) != 5 or not (parts[1].isdigit() and parts[3].isdigit()):
            raise BrokerError("that is not the head of a log", "a head is: log size root milliseconds signature")
        return cls(parts[0], int(parts[1]), parts[2], int(parts[3]), parts[4])


# ---- checkpoints and cosignatures -----------------------------------------------------------------------------


_LOG = b"\x01"  # Ed25519
_WITNESS = b"\x04"  # Ed25519 with a time
_DASH = "\u2014"


class Cosignature(NamedTuple):
    """A witness's signature under a head that it saw, and that continues all heads that it saw before.

    Attributes:
        witness: its name, without spaces.
        seconds: when it signed, since 1970, by the witness's clock.
    """

    witness: str
    public_key: str
    head: Head
    seconds: int
    signature: str

    def is_valid(self) -> bool:
        """Whether the witness's key signed this head and time."""
        return is_signed(self.public_key, _cosigned(self.head, self.seconds), self.signature)


def _cosigned(head: Head, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{head.text()}".encode()


def cosign(head: Head, witness: str, key: SigningKey, seconds: int) -> Cosignature:
    """Signs a head as a witness."""
    if not witness or any(one.isspace() or one == "+" for one in witness):
        raise BrokerError(f"a witness called {witness!r}", "give a name without spaces or +, such as a host name")
    return Cosignature(witness, key.public, head, seconds, key.sign(_cosigned(head, seconds)))


def key_id(name: str, algorithm: bytes, public_key: str) -> bytes:
    """The four bytes that say in a signature line which key signed."""
    return hashlib.sha256(name.encode() + b"\n" + algorithm + bytes.fromhex(public_key)).digest()[:4]


def verifier_key(name: str, public_key: str) -> str:
    """A log's key as programs of C2SP take it: NAME+ID+BASE64."""
    raw = base64.b64encode(_LOG + bytes.fromhex(public_key)).decode()
    return f"{name}+{key_id(name, _LOG, public_key).hex()}+{raw}"


def checkpoint(head: Head, public_key: str, cosignatures: Iterable[Cosignature] = ()) -> str:
    """A signed head as a note, with the cosignatures of witnesses."""
    lines = [_line(head.origin, key_id(head.origin, _LOG, public_key), bytes.fromhex(head.signature))]
    for one in cosignatures:
        stamped = struct.pack(">Q", one.seconds) + bytes.fromhex(one.signature)
        lines.append(_line(one.witness, key_id(one.witness, _WITNESS, one.public_key), stamped))
    return f"{head.text()}\n{''.join(lines)}"


def _line(name: str, who: bytes, signature: bytes) -> str:
    return f"{_DASH} {name} {base64.b64encode(who + signature).decode()}\n"


def read_checkpoint(note: str) -> tuple[Head, list[tuple[str, bytes]]]:
    """The head in a note, with the log's signature, and all signature lines as (name, bytes).

    Raises:
        BrokerError: it is not a checkpoint of a privmarket log.
    """
    text, _, below = note.partition("\n\n")
    lines = text.split("\n")
    try:
        origin, size, root, at_ms = lines
        signatures = []
        for line in below.splitlines():
            dash, name, encoded = line.split(" ")
            if dash != _DASH:
                raise ValueError(line)
            signatures.append((name, base64.b64decode(encoded, validate=True)))
        own = next(raw for name, raw in signatures if name == origin)
        head = Head(
            origin.removeprefix("privmarket/"),
            int(size),
            base64.b64decode(root, validate=True).hex(),
            int(at_ms.removeprefix("at_ms ")),
            own[4:].hex(),
        )
    except (ValueError, StopIteration):
        raise BrokerError(
            "that is not a checkpoint of a privmarket log", "GET /v1/log/checkpoint gives one"
        ) from None
    if head.text() != text + "\n":
        raise BrokerError("the checkpoint is written in another way than logs write it", "ask for it again")
    return head, signatures
