"""What server and clients say to each other, as Flower records: call for bids, offer, sale, update, receipt.

A message to a client holds what everybody may know (the terms of a round, the global weights) and what is that
client's own (the ε it sold, its money), never anything of another client. Numbers travel as 64-bit floats, so an
auction on the other side of a wire gives the same micro-units.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer
from privmarket.privacy.calibration import ReleaseFamily

BID, TRAIN, RECEIPT = "query.bid", "train", "query.receipt"

# Names of the records in a message.
_CALL, _OFFER, SALE, _RECEIPT, _REFUSAL = (
    f"privmarket-{part}" for part in ("call", "offer", "sale", "receipt", "no")
)
WEIGHTS, UPDATE = "privmarket-weights", "privmarket-update"

Arrays = dict[str, np.ndarray]
Value = TypeVar("Value", int, float, str)


class WireError(PrivmarketError):
    """A message that does not say what it should."""

    code = "bad-message"


class Refusal(PrivmarketError):
    """A client's no: what was asked goes beyond its offer or its wallet. Nothing was released."""

    code = "refused"


@dataclass(frozen=True)
class Call:
    """A call for bids, the same for everybody.

    Attributes:
        run: names the run; a wallet counts sales by run and round.
        number: the round, from 0, of `rounds`.
        budget_micro: the round's money, micro-units.
        family: what sellers will release, up to its noise.
        epsilon_max: the public limit on offers.
        broker_round: the round's name at a broker, where one holds the auction.
    """

    run: str
    number: int
    rounds: int
    budget_micro: int
    family: ReleaseFamily
    epsilon_max: float
    broker_round: str = ""


@dataclass(frozen=True)
class Sale:
    """One client's own order: what it sold, for how much, and how to train for it.

    Attributes:
        epsilon: what it sold, at `family.delta`; the client turns it into noise itself.
        payment_micro: due on delivery.
        clip_norm, learning_rate, expected_batch: the public training plan, see `federated.local.LocalPlan`.
        share: factor by which the client multiplies its update before secure aggregation; 1 otherwise.
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

    @property
    def name(self) -> str:
        """Names the sale in a wallet."""
        return f"{self.run}/{self.number}"


@dataclass(frozen=True)
class Receipt:
    """What became of one client's delivery: money, or why there was none."""

    run: str
    number: int
    paid_micro: int
    fault: str = ""


def write_call(call: Call) -> RecordDict:
    """A call for bids as a message's content."""
    return RecordDict({_CALL: ConfigRecord(_flat(call))})


def read_call(content: RecordDict) -> Call:
    """The call for bids in a message."""
    return Call(**_fields(content, _CALL, Call))


def write_offer(client: str, offer: Offer | None) -> RecordDict:
    """A client's answer; `None` offers nothing in this round."""
    record = ConfigRecord({"client": client, "bids": offer is not None})
    if offer is not None:
        record["valuation"], record["epsilon"] = float(offer.valuation), float(offer.epsilon)
        record["data-size"] = float(offer.data_size)
        if offer.accuracy is not None:
            record["accuracy"] = float(offer.accuracy)
    return RecordDict({_OFFER: record})


def read_offer(content: RecordDict) -> tuple[str, Offer | None]:
    """A client's name and its offer."""
    record = _record(content, _OFFER)
    client = _value(record, "client", str)
    if not record.get("bids"):
        return client, None
    valuation, epsilon, size = (_value(record, key, float) for key in ("valuation", "epsilon", "data-size"))
    accuracy = _value(record, "accuracy", float) if "accuracy" in record else None
    return client, Offer(valuation, epsilon, size, accuracy)


def add_sale(content: RecordDict, sale: Sale) -> None:
    """Puts a client's own order into the message that goes to that client alone."""
    content[SALE] = ConfigRecord(_flat(sale))


def sale_fields(sale: Sale) -> dict[str, Any]:
    """An order as plain numbers and text by name."""
    return _flat(sale)


def has_sale(content: RecordDict) -> bool:
    """Whether a message carries an order."""
    return SALE in content


def read_sale(content: RecordDict) -> Sale:
    """The order in a message."""
    return Sale(**_fields(content, SALE, Sale))


def add_receipt(content: RecordDict, receipt: Receipt) -> None:
    """Puts a client's own receipt into a message to it."""
    content[_RECEIPT] = ConfigRecord(_flat(receipt))


def read_receipt(content: RecordDict) -> Receipt | None:
    """The receipt in a message, if there is one."""
    return Receipt(**_fields(content, _RECEIPT, Receipt)) if _RECEIPT in content else None


def write_refusal(reason: str) -> RecordDict:
    """A client's no."""
    return RecordDict({_REFUSAL: ConfigRecord({"reason": reason})})


def read_refusal(content: RecordDict) -> str | None:
    """Why the client refused; None if it did not."""
    return _value(_record(content, _REFUSAL), "reason", str) if _REFUSAL in content else None


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
        raise WireError(f"no arrays called {name}, or more than one record", "is the other side a privmarket app?")
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


def _flat(value: Call | Sale | Receipt) -> dict[str, Any]:
    """Fields by name, a release family as its three numbers."""
    fields = dict(vars(value))
    if (family := fields.pop("family", None)) is not None:
        fields |= {"sampling_rate": family.sampling_rate, "steps": family.steps, "delta": family.delta}
    return {key.replace("_", "-"): _plain(field) for key, field in fields.items()}


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, np.floating) else value


def _fields(content: RecordDict, name: str, kind: type[Any]) -> dict[str, Any]:
    """The arguments of a dataclass from its record; types are checked, fields that we do not know are refused."""
    record = _record(content, name)
    kinds: dict[str, type[Any]] = {}
    for field, text in kind.__annotations__.items():
        if field == "family":
            kinds |= {"sampling_rate": float, "steps": int, "delta": float}
        else:
            kinds[field] = {"str": str, "int": int, "float": float}[text]
    unknown = {key.replace("-", "_") for key in record} - set(kinds)
    if unknown:
        raise WireError(f"{name} has unknown fields {sorted(unknown)}", "use the same version on both sides")
    fields = {field: _value(record, field.replace("_", "-"), want) for field, want in kinds.items()}
    if "family" in kind.__annotations__:
        fields["family"] = ReleaseFamily(*(fields.pop(key) for key in ("sampling_rate", "steps", "delta")))
    return fields


def _record(content: RecordDict, name: str) -> ConfigRecord:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise WireError(f"a message without {name}", "is the other side a privmarket app?")
    return record


def _value(record: ConfigRecord, key: str, kind: type[Value]) -> Value:
    value = record.get(key)
    if type(value) is not kind:
        raise WireError(f"{key} is {value!r}: not a {kind.__name__}", "use the same version on both sides")
    return value
