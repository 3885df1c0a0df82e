"""What server and clients say to each other, as Flower records: terms, offer, order, update, receipt.

A message to a client holds what everybody may know (the terms of a round, the global weights) and what is that
client's own (the ε it sold, its money), never anything of another client. Numbers travel as 64-bit floats, so an
auction on the other side of a wire gives the same micro-units.

Terms, orders and receipts are frozen records whose fields travel under their own names: `put` writes one into a
message, `take` reads it, checks the type of every field and refuses fields that it does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from privmarket.errors import PrivmarketError
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.words import Trust
from privmarket.rounds import Offer, Terms

BID, TRAIN, RECEIPT = "query.bid", "train", "query.receipt"

# Names of the records in a message.
WEIGHTS, UPDATE = "privmarket-weights", "privmarket-update"
JOB = "privmarket-job"  # in which an app behind `WalletMod` finds its noise multiplier, clipping, rate, steps, unit
_OFFER, _REFUSAL = "privmarket-offer", "privmarket-no"

Arrays = dict[str, np.ndarray]
Scalar = bool | bytes | float | int | str


class WireError(PrivmarketError):
    """A message that does not say what it should."""

    code = "bad-message"


@dataclass(frozen=True)
class Sale:
    """One client's own order: what it sold, for how much, and how to train for it.

    Attributes:
        epsilon: what it sold, at `family.delta`; the client turns it into noise itself.
        payment_micro: due on delivery.
        clip_norm, learning_rate, expected_batch: the public training plan, see `federated.local.LocalPlan`.
        share: factor by which the client multiplies its update before secure aggregation; 1 otherwise.
        trust, honest_share: as in the terms.
        sellers, levels, weight: of the round's secure sum under aggregate trust: how many sell in it, digits of
            every seller's noise, steps of the sum's grid per unit of this client's clipped sum; 0 otherwise.
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
    honest_share: float = 2 / 3
    sellers: int = 0
    levels: int = 0
    weight: float = 0.0

    @property
    def name(self) -> str:
        """Names the sale in a wallet; the same as `Terms.sale`."""
        return f"{self.run}/{self.number}"


@dataclass(frozen=True)
class Receipt:
    """What became of one client's delivery: money, or why there was none, and whom the sale protected against."""

    run: str
    number: int
    paid_micro: int
    fault: str = ""
    trust: Trust = "local"


Record = TypeVar("Record", Terms, Sale, Receipt)
SALE = "privmarket-sale"
_NAMES: dict[type, str] = {Terms: "privmarket-call", Sale: SALE, Receipt: "privmarket-receipt"}
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "Trust": str}
_FAMILY: dict[str, type] = {"sampling_rate": float, "steps": int, "delta": float}


def put(content: RecordDict, record: Terms | Sale | Receipt) -> RecordDict:
    """Writes a record into a message's content, which is returned."""
    content[_NAMES[type(record)]] = ConfigRecord({**fields_of(record)})
    return content


def has(content: RecordDict, kind: type[Terms] | type[Sale] | type[Receipt]) -> bool:
    """Whether a message carries a record of that kind."""
    return _NAMES[kind] in content


def take(content: RecordDict, kind: type[Record]) -> Record:
    """The record of that kind in a message.

    Raises:
        WireError: there is none, a field is missing, of another type or out of its range, or there are fields that
            we do not know.
    """
    name = _NAMES[kind]
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise WireError(f"a message without {name}", "run a privmarket app on both sides")
    known = dict(kind.__annotations__)
    if with_family := "family" in known:
        del known["family"]
    wanted = {field: _TYPES[text] for field, text in known.items()} | (_FAMILY if with_family else {})
    unknown = {key.replace("-", "_") for key in record} - set(wanted)
    if unknown:
        raise WireError(f"{name} has unknown fields {sorted(unknown)}", "use the same version on both sides")
    fields: dict[str, Any] = {
        field: _value(record, field.replace("_", "-"), type_) for field, type_ in wanted.items()
    }
    try:
        if with_family:
            fields["family"] = ReleaseFamily(*(fields.pop(key) for key in _FAMILY))
        return kind(**fields)
    except PrivmarketError as error:
        raise WireError(f"{name}: {error.message}", error.hint) from error


def fields_of(record: Terms | Sale | Receipt) -> dict[str, Scalar]:
    """A record as numbers and text by name; a release family as its three numbers."""
    fields = dict(vars(record))
    if (family := fields.pop("family", None)) is not None:
        fields |= {name: getattr(family, name) for name in _FAMILY}
    return {
        key.replace("_", "-"): float(value) if isinstance(value, np.floating) else value
        for key, value in fields.items()
    }


def write_offer(client: str, offer: Offer | None, reason: str = "") -> RecordDict:
    """A client's answer; `None` offers nothing in this round, with one word for why where there is a reason."""
    record = ConfigRecord({"client": client, "bids": offer is not None})
    if reason:
        record["reason"] = str(reason)
    if offer is not None:
        record["valuation"], record["epsilon"] = float(offer.valuation), float(offer.epsilon)
        record["data-size"] = float(offer.data_size)
        if offer.accuracy is not None:
            record["accuracy"] = float(offer.accuracy)
    return RecordDict({_OFFER: record})


def read_offer(content: RecordDict) -> tuple[str, Offer | None, str | None]:
    """A client's name, its offer, and why it makes none, a word of `privacy.policy.Reason` where it gave one."""
    record = content.get(_OFFER)
    if not isinstance(record, ConfigRecord):
        raise WireError(f"a message without {_OFFER}", "run a privmarket app on both sides")
    client, reason = _value(record, "client", str), record.get("reason")
    word = reason if isinstance(reason, str) else None
    if not record.get("bids"):
        return client, None, word
    valuation, epsilon, size = (_value(record, key, float) for key in ("valuation", "epsilon", "data-size"))
    accuracy = _value(record, "accuracy", float) if "accuracy" in record else None
    return client, Offer(valuation, epsilon, size, accuracy), word


def write_refusal(reason: str) -> RecordDict:
    """A client's refusal, as one word of `privacy.policy.Reason`."""
    return RecordDict({_REFUSAL: ConfigRecord({"reason": str(reason)})})


def read_refusal(content: RecordDict) -> str | None:
    """Why the client refused; None if it did not."""
    record = content.get(_REFUSAL)
    return _value(record, "reason", str) if isinstance(record, ConfigRecord) else None


def write_arrays(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named arrays as a record."""
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
    """SHA-256 of named arrays, of all values or of the first few of each: names an update.

    Noise makes the first values of two releases differ, so few are enough to notice that one is sent again.
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(array.reshape(-1)[:values].data)
    return total.hexdigest()


Value = TypeVar("Value", int, float, str)


def _value(record: ConfigRecord, key: str, kind: type[Value]) -> Value:
    value = record.get(key)
    if type(value) is not kind:
        raise WireError(f"{key} is {value!r}: not a {kind.__name__}", "use the same version on both sides")
    return value
