"""Checkpoints of a log as signed notes, and the cosignatures of witnesses under them.

A note is a text, an empty line, and lines of signatures: "— NAME BASE64", where the base64 holds four bytes that
name the key, and the signature. The text of a checkpoint is that of `signatures.Head`. A witness signs the same
text after two lines with its own time, and its line holds that time between key and signature.

Implements: [C2SPNote], [C2SPCheckpoint], [C2SPCosignature].
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from privmarket.broker._http_errors import BrokerError
from privmarket.broker._signatures import Head, SigningKey, is_signed

_LOG = b"\x01"  # Ed25519
_WITNESS = b"\x04"  # Ed25519 with a time
_DASH = "\u2014"


class Cosignature(NamedTuple):
    """A witness's word that it saw this head, and that it continues all it saw before.

    Attributes:
        witness: its name, without spaces.
        seconds: when, since 1970, by the witness's clock.
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
