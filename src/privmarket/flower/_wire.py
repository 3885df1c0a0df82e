"""The messages between server and clients, as Flower records: terms, offer, order, update, receipt.

A message to a client holds public data (the terms of a round, the global weights) and that client's own (the ε it
sold, its money), never anything of another client. Numbers are sent as 64-bit floats, so an auction on another
machine gives the same micro-units.

Terms, offers, orders, refusals and receipts are frozen records whose fields travel under their own names: `put`
writes one into a message, `take` reads it, checks the type of every field and refuses fields that it does not know.

Terms, and the answers to them, also carry the version of the package. The other side refuses one
that may speak otherwise: while the major version is 0, a minor version may change the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from privmarket import __version__
from privmarket._settings import HONEST_SHARE, Trust
from privmarket.errors import PrivmarketError
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Terms
from privmarket.secagg import Message as SumMessage, SumRefusal, from_bytes, to_bytes

BID, TRAIN, RECEIPT = "query.bid", "train", "query.receipt"

# Names of the records in a message.
OURS = "privmarket-"  # how they all begin
WEIGHTS, UPDATE = "privmarket-weights", "privmarket-update"
SUM = "privmarket-sum"  # a message of a secure sum, as bytes
JOB = "privmarket-job"  # in which an app behind `WalletMod` finds its noise multiplier, clipping, rate, steps, unit

Arrays = dict[str, np.ndarray]


class WireError(PrivmarketError):
    """A message with missing, unknown or wrong fields."""

    code = "bad-message"


@dataclass(frozen=True)
class Sale:
    """One client's own order: what it sold, for how much, and how to train for it.

    Attributes:
        epsilon: what it sold, at `family.delta`; the client computes its noise from it.
        payment_micro: due on delivery.
        clip_norm, learning_rate, expected_batch: the public training plan, see `training.LocalPlan`.
        share: factor by which the client multiplies its update before secure aggregation; 1 otherwise.
        trust, honest_share: as in the terms.
        sellers, levels, weight: of this client's secure sum under aggregate trust: how many sell in it, digits of
            every seller's noise, steps of the sum's grid per unit of this client's clipped sum; 0 otherwise.
        cohorts: how many such sums the round has; the noise on the average grows with its square root.
        reach: under local trust with masks, where a coordinate is cut off before it is rounded; 0 otherwise.
    """

    run: str
    number: int
    epsilon: float
    payment_micro: int
    family: ReleaseFamily
    clip_norm: float
    learning_rate: float
    expected_batch: float
    share: float = 1.0
    broker_round: str = ""
    trust: Trust = "local"
    honest_share: float = HONEST_SHARE
    sellers: int = 0
    levels: int = 0
    weight: float = 0.0
    reach: float = 0.0
    cohorts: int = 1


@dataclass(frozen=True)
class Receipt:
    """The receipt of one client's delivery: the payment, or why there was none, and the trust model of the sale.

    Attributes:
        cohorts: under aggregate trust, the number of secure sums of the round.
        stopped: whether the round was stopped before it was settled. Then only an update that has left is paid for,
            and the client answers with `Noted`.
    """

    run: str
    number: int
    paid_micro: int
    fault: str = ""
    trust: Trust = "local"
    cohorts: int = 1
    stopped: bool = False


@dataclass(frozen=True)
class Noted:
    """What a client's wallet says about a sale of a round that was stopped.

    Attributes:
        charged: whether the wallet holds the sale.
        released: whether its update has left, so that it is paid for.
    """

    run: str
    number: int
    charged: bool
    released: bool


@dataclass(frozen=True)
class Answer:
    """A client's answer to a call for bids.

    Attributes:
        bids: whether it offers something in this round; then price, ε and records are there.
        reason: if it offers nothing, a word of `privacy._policy.Reason`, or none.
        accuracy: of its own model, if it declares one.
        sum_key: the public key, in hexadecimal, with which it signs in secure sums; none if it takes no part.
    """

    client: str
    bids: bool
    reason: str | None = None
    valuation: float | None = None
    epsilon: float | None = None
    data_size: float | None = None
    accuracy: float | None = None
    sum_key: str | None = None


@dataclass(frozen=True)
class Refusal:
    """A client's refusal of an order, as one word of `privacy._policy.Reason`."""

    reason: str


@dataclass(frozen=True)
class Offered:
    """A node's offer, kept in the node's state until the sale and never sent.

    It is stored because messages of one run may be handled by different processes. If ε is 0 nothing was offered.
    """

    run: str
    number: int
    broker_round: str
    epsilon: float
    family: ReleaseFamily
    trust: Trust
    honest_share: float


AnyRecord = Terms | Answer | Sale | Refusal | Receipt | Noted | Offered
Record = TypeVar("Record", Terms, Answer, Sale, Refusal, Receipt, Noted, Offered)
SALE = "privmarket-sale"
NAMES: dict[type, str] = {
    Terms: "privmarket-call",
    Answer: "privmarket-offer",
    Sale: SALE,
    Refusal: "privmarket-no",
    Receipt: "privmarket-receipt",
    Noted: "privmarket-noted",
    Offered: "privmarket-offer",
}
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "Trust": str}
_FAMILY = {"sampling_rate": "float", "steps": "int", "delta": "float"}


_VERSION = "version"
VERSION_HINT = "server and clients need the same major and minor version"
_VERSIONED = (Terms, Answer, Refusal)
_LONGEST_VERSION = 30


def other_version(content: RecordDict, kind: type) -> str:
    """The version of a sender with which this package may not speak; empty if it may."""
    record = content.get(NAMES[kind])
    said = record.get(_VERSION) if isinstance(record, ConfigRecord) else None
    plain = isinstance(said, str) and said and said.isascii() and said.isprintable()
    version = str(said) if plain else "of an unknown version"
    return "" if _series(version) == _series(__version__) else version[:_LONGEST_VERSION]


def _series(version: str) -> list[str]:
    """Major and minor version; within them messages do not change."""
    return version.split(".")[:2]


def put(content: RecordDict, record: AnyRecord) -> RecordDict:
    """Writes a record into a message's content, which is returned; fields that are None are left out."""
    fields = dict(vars(record))
    if (family := fields.pop("family", None)) is not None:
        fields |= {name: getattr(family, name) for name in _FAMILY}
    version = {_VERSION: __version__} if isinstance(record, _VERSIONED) else {}
    content[NAMES[type(record)]] = ConfigRecord(
        version
        | {
            key.replace("_", "-"): float(value) if isinstance(value, np.floating) else value
            for key, value in fields.items()
            if value is not None
        }
    )
    return content


@overload
def take(content: RecordDict, kind: type[Record]) -> Record: ...
@overload
def take(content: RecordDict, kind: type[Record], default: None) -> Record | None: ...
def take(content: RecordDict, kind: type[Record], default: object = WireError) -> Record | None:
    """The record of this kind in a message, or `default` if that is None and the message has none.

    Raises:
        WireError: there is none, a field is missing, of another type or out of its range, or there are unknown
            fields.
    """
    name = NAMES[kind]
    hint = "use the same version on both sides"
    record = content.get(name)
    if record is None and default is None:
        return None
    if not isinstance(record, ConfigRecord):
        raise WireError(f"a message without {name}", "run a privmarket app on both sides")
    if kind in _VERSIONED and (other := other_version(content, kind)):
        raise WireError(f"the other side runs privmarket {other}, this one {__version__}", VERSION_HINT)
    wanted: dict[str, str] = dict(kind.__annotations__)
    if with_family := "family" in wanted:
        del wanted["family"]
        wanted |= _FAMILY
    unknown = {key.replace("-", "_") for key in record} - set(wanted)
    if kind in _VERSIONED:
        unknown.discard(_VERSION)
    if unknown:
        raise WireError(f"{name} has unknown fields {sorted(unknown)}", hint)
    fields: dict[str, Any] = {}
    for field, text in wanted.items():
        key = field.replace("_", "-")
        type_ = _TYPES[text.removesuffix(" | None")]
        value = record.get(key)
        if type(value) is not type_ and not (value is None and text.endswith(" | None")):
            raise WireError(f"{key} is {value!r}: not a {type_.__name__}", hint)
        fields[field] = value
    try:
        if with_family:
            fields["family"] = ReleaseFamily(*(fields.pop(key) for key in _FAMILY))
        return kind(**fields)
    except PrivmarketError as error:
        raise WireError(f"{name}: {error.message}", error.hint) from error


def put_sum(content: RecordDict, message: SumMessage) -> RecordDict:
    """Writes a message of a secure sum into a message's content, which is returned."""
    content[SUM] = ConfigRecord({"message": to_bytes(message)})
    return content


def take_sum(content: RecordDict) -> SumMessage:
    """The message of a secure sum.

    Raises:
        WireError: there is none, or it cannot be read.
    """
    record = content.config_records.get(SUM)
    data = None if record is None else record.get("message")
    if not isinstance(data, bytes):
        raise WireError("a message outside the protocol of the secure sum", "run a privmarket app on both sides")
    try:
        return from_bytes(data)
    except SumRefusal as error:
        raise WireError(error.message, "use the same version on both sides") from error


def write_arrays(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Puts named arrays into a Flower record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def read_arrays(content: RecordDict, name: str | None) -> Arrays:
    """The arrays in a message: the record called `name`, or the only one there is.

    Raises:
        WireError: there are none, or they cannot be read.
    """
    only = list(content.array_records.values())
    record = content.get(name) if name is not None else (only[0] if len(only) == 1 else None)
    if not isinstance(record, ArrayRecord):
        raise WireError(f"no arrays called {name}, or more than one record", "run a privmarket app on both sides")
    try:
        return {key: array.numpy() for key, array in record.items()}
    except (ValueError, EOFError, OSError) as error:
        raise WireError(f"arrays cannot be read: {error}", "send NumPy arrays") from error


def digest(arrays: Mapping[str, np.ndarray], values: int | None = None) -> str:
    """SHA-256 of named arrays, of all values or of the first few of each, which identifies an update.

    Noise makes the first values of two releases differ, so few suffice to detect a repeated update.
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(array.reshape(-1)[:values].data)
    return total.hexdigest()
