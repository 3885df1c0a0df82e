"""What sellers answer to the steps of a secure sum, read by a server that does not trust them.

Every reader returns what a reply says, or raises `BadReplyError`: a record that is missing, a value of another type
or size, somebody else's name. The server counts such a seller as dropped out; nothing that a seller sends ends the
run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import ConfigRecord, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

from privmarket.flower.cohort import KEY_BYTES, SIGNATURE_BYTES
from privmarket.flower.masks import Integers, unpacked
from privmarket.flower.sum_keys import BadKeyError, check_public_key

SIGNING_KEY, PARTY, PROOF = "signing_key", "party", "proof"
SIGNATURES = "signatures"

Kind = TypeVar("Kind", bytes, float, int, str)


class BadReplyError(ValueError):
    """A reply that does not say what its step asks for."""


@dataclass(frozen=True)
class SellerKeys:
    """A seller's public keys of one sum.

    Attributes:
        masking, messages, signing: for masks, for what neighbours send each other, for the list of survivors; 32
            bytes each.
        party, proof: its registered key and that key's signature under the others; empty where it sent none.
    """

    masking: bytes
    messages: bytes
    signing: bytes
    party: str = ""
    proof: bytes = b""


def configs_of(reply: Message) -> ConfigRecord:
    """The record of a reply that holds the answer to a step."""
    record = reply.content.config_records.get(RECORD_KEY_CONFIGS)
    if record is None:
        raise BadReplyError(f"no record {RECORD_KEY_CONFIGS}")
    return record


def read_keys(configs: ConfigRecord) -> SellerKeys:
    """Reads a seller's answer to the first step: its public keys and, if it has one, its registered signature."""
    masking, messages = (_value(configs, key, bytes) for key in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2))
    for key in (masking, messages):
        try:
            check_public_key(key)
        except BadKeyError as error:
            raise BadReplyError(str(error)) from error
    signing = _value(configs, SIGNING_KEY, bytes)
    if len(signing) != KEY_BYTES or masking == messages:
        raise BadReplyError("keys of another length, or one key twice")
    if PROOF not in configs:
        return SellerKeys(masking, messages, signing)
    return SellerKeys(masking, messages, signing, _value(configs, PARTY, str), _value(configs, PROOF, bytes))


def read_pieces(configs: ConfigRecord, neighbours: Collection[int]) -> dict[int, bytes]:
    """neighbour → encrypted pieces for it; a piece for each neighbour, and for nobody else."""
    return _by_node(configs, Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST, neighbours)


def read_vector(configs: ConfigRecord, shapes: Sequence[tuple[int, ...]], modulus: int) -> list[Integers]:
    """Reads a masked vector, one array of integers for each of `shapes`."""
    parts = _list(configs, Key.MASKED_PARAMETERS, bytes)
    if len(parts) != len(shapes):
        raise BadReplyError(f"{len(parts)} arrays where {len(shapes)} belong")
    try:
        arrays = [unpacked(part, shape, modulus) for part, shape in zip(parts, shapes, strict=True)]
    except ValueError as error:
        raise BadReplyError(str(error)) from error
    if any(array.size and int(array.max()) >= modulus for array in arrays):
        raise BadReplyError(f"numbers of {modulus} and more")
    return arrays


def read_signature(configs: ConfigRecord) -> bytes:
    """Reads a survivor's signature of the list of survivors."""
    signatures = _list(configs, SIGNATURES, bytes)
    if [len(one) for one in signatures] != [SIGNATURE_BYTES]:
        raise BadReplyError(f"{len(signatures)} signatures, or of another length")
    return signatures[0]


def read_opened(configs: ConfigRecord, asked: Collection[int]) -> dict[int, bytes]:
    """seller → a piece of its key; of everybody that was asked for, and of nobody else."""
    return _by_node(configs, Key.NODE_ID_LIST, Key.SHARE_LIST, asked)


def _by_node(configs: ConfigRecord, names: str, values: str, wanted: Collection[int]) -> dict[int, bytes]:
    nodes, texts = _list(configs, names, int), _list(configs, values, bytes)
    if len(nodes) != len(texts) or sorted(nodes) != sorted(wanted):
        raise BadReplyError(f"{names} are not the {len(wanted)} that were asked for")
    return dict(zip(nodes, texts, strict=True))


def text(record: ConfigRecord, key: str) -> bytes:
    """The field `key` of a record, which must hold bytes."""
    return _value(record, key, bytes)


def number(record: ConfigRecord, key: str) -> float:
    """The field `key` of a record, which must hold a float."""
    return _value(record, key, float)


def whole(record: ConfigRecord, key: str) -> int:
    """The field `key` of a record, which must hold a whole number."""
    return _value(record, key, int)


def texts(record: ConfigRecord, key: str) -> list[bytes]:
    """The field `key` of a record, which must hold a list of bytes."""
    return _list(record, key, bytes)


def ints(record: ConfigRecord, key: str) -> list[int]:
    """The field `key` of a record, which must hold a list of whole numbers."""
    return _list(record, key, int)


def _value(configs: ConfigRecord, key: str, kind: type[Kind]) -> Kind:
    value = configs.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadReplyError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    return value


def _list(configs: ConfigRecord, key: str, kind: type[Kind]) -> list[Kind]:
    values = configs.get(key)
    if not isinstance(values, list):
        raise BadReplyError(f"{key} is no list")
    found = [value for value in values if isinstance(value, kind) and not isinstance(value, bool)]
    if len(found) != len(values):
        raise BadReplyError(f"{key} holds other things than {kind.__name__}")
    return found
