"""The broker's data, each kind declared once: accounts, tokens, tasks, rounds, bids, awards, payouts.

A *form* is what a caller sends: strict, with limits, and unknown fields are refused. A *row* is what is stored: the
form's fields and those that the broker adds. The tables (`_schema`) and the answers of the API (`_answers`) are
made from the rows; the fields of a task or a bid are not declared anywhere else.

Defaults are those of `privmarket._settings`, with the exceptions that are named here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from privmarket._settings import EPSILON_MAX, MarketPlan, TrainingPlan, Trust, require_one_step
from privmarket.broker._errors import BrokerError
from privmarket.errors import PrivmarketError
from privmarket.rounds import Offer


@dataclass(frozen=True)
class Width:
    """The most characters of a text's column; without it, a text may be of any length."""

    characters: int


@dataclass(frozen=True)
class Small:
    """A whole number for which 32 bits are enough."""


MONEY_LIMIT_MICRO = 10**15  # the largest amount that is accepted
YEAR_SECONDS = 366 * 24 * 3600  # the longest duration that is accepted
TITLE_LENGTH = 120
SAMPLING_RATE_LEAST = 1e-6  # one record in a million; below, float64 loses the digits of the noise
# Narrower than the limits of a plan's δ, since strangers choose it here: a larger δ promises nothing, and the noise
# for a smaller one may take hours to compute.
_DELTA_LEAST, _DELTA_MOST = 1e-12, 0.5
IDENTIFIER = r"^[a-z0-9-]+$"
PRINTS = r"^[^\x00-\x1f\x7f]*$"

Number = Annotated[float, Field(allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=_DELTA_LEAST, le=_DELTA_MOST, allow_inf_nan=False)]
Money = Annotated[int, Field(ge=1, le=MONEY_LIMIT_MICRO, strict=True)]
Seconds = Annotated[int, Field(ge=1, le=YEAR_SECONDS), Small()]
Pause = Annotated[int, Field(ge=0, le=YEAR_SECONDS), Small()]
Count = Annotated[int, Small()]
Line = Annotated[str, Field(min_length=1, max_length=80, pattern=PRINTS)]
Sentence = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), Width(64)]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$"), Width(64)]
SignatureText = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$"), Width(128)]
Identifier = Annotated[str, Field(min_length=1, max_length=40, pattern=IDENTIFIER), Width(40)]
Word = Annotated[str, Width(10)]
Role = Annotated[Literal["buyer", "seller", "operator", "arbiter", "auditor"], Width(10)]
Scope = Annotated[Literal["full", "read"], Width(10)]
Sealing = Annotated[Literal["broker", "bidder"], Width(10)]
Delivery = Annotated[Literal["open", "sealed"], Width(10)]


class Form(BaseModel):
    """Base class of what a caller may send. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Row(BaseModel):
    """Base class of what is stored, with a column for each field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the columns, in the order of `of`."""
        return tuple(cls.model_fields)

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        """A row from the values that a database returned. They are not validated; `broker verify` does that."""
        fields = dict(zip(cls.model_fields, values, strict=True))
        for name in _truths(cls):  # SQLite has no Booleans of its own
            fields[name] = None if fields[name] is None else bool(fields[name])
        return cls.model_construct(**fields)


@cache
def _truths(row: type[Row]) -> tuple[str, ...]:
    hints = get_type_hints(row)
    return tuple(name for name in row.model_fields if hints[name] in (bool, bool | None))


def example(**fields: Any) -> ConfigDict:
    """The pydantic configuration of a form, with an example that the API's description shows."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


Shape = TypeVar("Shape", bound=Form)


def checked(form: type[Shape], given: Mapping[str, object]) -> Shape:
    """A form from fields by name. Each value must have exactly its field's type; for a float, an integer will do.

    Raises:
        BrokerError: a field is unknown, missing, or beyond its limits.
    """
    try:
        return form.model_validate(dict(given), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or form.__name__
        if first["type"] == "extra_forbidden":
            known = ", ".join(form.model_fields)
            raise BrokerError(f"there is no field {name!r}", f"give some of: {known}") from None
        if first["type"] == "missing":
            raise BrokerError(f"{name} is missing", f"give {name}") from None
        remedy = _remedy(first["msg"], first.get("ctx", {}))
        # A value nested inside a field is not shown: it may be a path, or a page of text.
        shown = _short(first["input"]) if len(first["loc"]) == 1 else "of another kind"
        raise BrokerError(f"{name} is {shown}", remedy) from None


_LIMITS = {"ge": "at least", "le": "at most", "gt": "more than", "lt": "less than"}


def _remedy(message: str, limits: Mapping[str, object]) -> str:
    """What to give instead of a value that was refused."""
    for name, words in _LIMITS.items():
        if name in limits:
            return f"give {words} {limits[name]}"
    return f"{message[:1].lower()}{message[1:]}"


def _short(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}…"


# ---- accounts -------------------------------------------------------------------------------------------------


class WalletForm(Form):
    """A seller's lifetime wallet: at most ε at δ, for ever."""

    cap_epsilon: Annotated[float, Field(gt=0, le=1e4, allow_inf_nan=False)]
    delta: Delta


class _Account(BaseModel):
    """What a party gives when it registers. Sellers give a wallet; a party that wants to sign gives a key."""

    role: Role
    public_key: Digest | None = None
    cap_epsilon: Annotated[float, Field(gt=0, le=1e4, allow_inf_nan=False)] | None = None
    delta: Delta | None = None


class Registration(_Account, Form):
    """A new party. Sellers bring a lifetime wallet: at most `cap_epsilon` at `delta`, for ever.

    `token_sha256` is the SHA-256 of a token that the caller made itself (32 random bytes, as text): then no secret
    travels and the request can be repeated. `public_key` is an Ed25519 key; with it one signs everything that one
    states (POST /v1/statements), or with `signs` = bids only bids. Without a key one signs nothing.

    Operators, arbiters and auditors are made by operators. An auditor's token reads every task, round and winner,
    the registered keys of every round's sellers, and the whole log, with all bids of auctions that are over.
    """

    model_config = example(role="seller", name="North clinic", cap_epsilon=8.0, delta=1e-5)

    name: Line
    token_sha256: Digest | None = None
    signs: Literal["bids", "everything"] | None = None


class _PartyId(Row):
    id: Identifier


class PartyRow(_Account, _PartyId):
    """A party. `signs` is "nothing" (it has no key), "bids", or "everything" that it states."""

    name_hash: Annotated[str, Width(64)]
    created_ms: int
    signs: Word
    # The digest of the data set that a seller attests to sell from: one wallet per data set.
    dataset_sha256: Digest | None
    suspended: str | None
    erased_ms: int | None


class TokenForm(Form):
    """Another token: full or for reading only, for ever or for a time, of the caller's making or the broker's."""

    model_config = example(scope="read", lifetime_seconds=86_400)

    scope: Scope = "full"
    lifetime_seconds: Annotated[int, Field(ge=1, le=YEAR_SECONDS)] | None = None
    token_sha256: Digest | None = None


class TokenRow(Row):
    """A token, by its hash."""

    id: Identifier
    party_id: Identifier
    token_hash: Annotated[str, Width(64)]
    scope: Scope
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None


class PayoutForm(Form):
    """Money of one's account that one wants paid out, in micro-units."""

    model_config = example(amount_micro=2_500_000)

    amount_micro: Money


class _PayoutPlace(Row):
    seq: int
    party_id: Identifier


class PayoutRow(PayoutForm, _PayoutPlace):
    """What a party asked to be paid out; `seq` is the entry that asked, `paid_seq` the one that paid it."""

    # Chosen by the party if it signs, so that one signed request gives one payout only.
    nonce: Nonce | None
    paid_seq: int | None


# ---- tasks and rounds -----------------------------------------------------------------------------------------


class TaskForm(Form):
    """What a buyer wants: a budget per round, the auction rule, the release that is bought, and deadlines.

    `delivery` = sealed: updates travel encrypted, and the buyer gets the key when the round is settled and paid.
    `attested`: only sellers that attest their data set may bid, so that one data set has one lifetime wallet.
    `trust` = aggregate: the buyer sees only a secure sum of the updates, and only sellers with a registered key may
    bid. The noise of the share `honest_share` of a round's sellers protects each of them; of the others half may
    collude with the buyer and half may drop out.
    """

    model_config = example(title="digits", budget_micro=1_000_000, mechanism="pac")

    title: Annotated[
        str,
        Field(min_length=1, max_length=TITLE_LENGTH, pattern=PRINTS, description="What the buyer calls it."),
        Width(TITLE_LENGTH),
    ]
    mechanism: Annotated[str, Field(min_length=1, max_length=60), Width(60)] = Field(
        MarketPlan.mechanism, description="Which auction rule."
    )
    settings: Annotated[
        Mapping[Annotated[str, Field(max_length=40)], bool | int | Number],
        Field(default_factory=dict, max_length=20),
    ]
    budget_micro: Money = Field(description="Money per round.")
    # A plan has 200 rounds, a whole training; a task has one round unless its buyer asks for more.
    rounds: Annotated[int, Field(ge=1, le=100_000), Small()] = Field(
        1, description="How many rounds may be opened."
    )
    epsilon_max: Annotated[Number, Field(gt=0, le=100)] = Field(
        EPSILON_MAX, description="The public limit on offers."
    )
    sampling_rate: Annotated[Number, Field(ge=SAMPLING_RATE_LEAST, le=1)] = Field(
        TrainingPlan.sampling_rate, description="Probability with which a record enters a step."
    )
    # A plan has no upper limit; here strangers choose it, and the broker computes the noise table.
    steps: Annotated[int, Field(ge=1, le=1_000_000), Small()] = Field(
        TrainingPlan.steps, description="Noisy local steps per round."
    )
    delta: Delta = Field(MarketPlan.delta, description="The δ of every sale.")
    sealing: Sealing = Field("broker", description="Who keeps bids sealed until bidding ends.")
    buyer_may_close: bool = Field(False, description="Whether the buyer may end bidding before its deadline.")
    bid_seconds: Seconds = Field(3600, description="Time for bids.")
    reveal_seconds: Seconds = Field(600, description="Time to reveal bids that bidders sealed.")
    delivery_seconds: Seconds = Field(3600, description="Time to claim a delivery.")
    review_seconds: Pause = Field(3600, description="Time for the buyer's receipts.")
    dispute_seconds: Pause = Field(3600, description="Time to dispute a rejection.")
    ruling_seconds: Pause = Field(86_400, description="Time for the arbiter's ruling.")
    arbiter_id: Identifier | None = Field(
        None, description="Who rules on disputes; an operator where nobody is named."
    )
    delivery: Delivery = Field("open", description="How updates travel.")
    attested: bool = Field(False, description="Whether only sellers that attest their data set may bid.")
    trust: Annotated[Trust, Width(10)] = Field(
        cast(Trust, MarketPlan.trust), description="Against whom sales protect."
    )
    honest_share: Annotated[Number, Field(gt=0, le=1)] = Field(
        MarketPlan.honest_share, description="The share of sellers whose noise protects each of them."
    )

    @classmethod
    def checked(cls, given: Mapping[str, object]) -> TaskForm:
        """A task's terms from fields by name, with the checks that concern several fields at once.

        Raises:
            BrokerError: a field is unknown, missing, beyond its limits, or does not go with another.
        """
        terms = checked(cls, given)
        if not terms.title.strip() or not terms.title.isprintable():
            raise BrokerError(
                "a title that does not print, or is empty", f"give 1 to {TITLE_LENGTH} characters that print"
            )
        try:
            require_one_step(terms.trust, terms.steps)
        except PrivmarketError as error:
            raise BrokerError(error.message, error.hint) from error
        return terms


class _TaskOwner(Row):
    id: Identifier
    buyer_id: Identifier


class TaskRow(TaskForm, _TaskOwner):
    """A published task; `settings` is JSON text."""

    settings: str  # type: ignore[assignment]
    # Chosen by the buyer if it signs, so that a signed task is published once only.
    nonce: Nonce | None
    created_ms: int

    def answer(self) -> dict[str, Any]:
        """The task as the API shows it: without the nonce, and with `settings` parsed."""
        return {**self.model_dump(exclude={"nonce"}), "settings": json.loads(self.settings)}


class RoundRow(Row):
    """A round; deadlines are None until its state sets them."""

    id: Identifier
    task_id: Identifier
    number: Count
    state: Word
    budget_micro: int
    mechanism_version: Annotated[str, Width(80)]
    opened_ms: int
    bid_deadline_ms: int
    closed_ms: int | None
    reveal_deadline_ms: int | None
    delivery_deadline_ms: int | None
    review_deadline_ms: int | None
    dispute_deadline_ms: int | None
    ruling_deadline_ms: int | None
    ended_ms: int | None
    # How many sellers bid, updated with each bid, so that a page need not count the bids each time.
    bids: Count = 0
    revealed: Count = 0
    sellers: Count = 0
    awarded_micro: int = 0
    paid_micro: int = 0
    total_epsilon: float = 0.0
    # The highest payment per unit of ε; a losing seller can compare its price with it.
    top_price: float | None
    # What the buyer reports of its model after the round.
    model_accuracy: float | None
    # Decides the order of equal bids; derived from the nonces of all bids when the auction is held.
    seed: int | None
    fault: str | None


# ---- bids and awards ------------------------------------------------------------------------------------------


class _Offered(BaseModel):
    """What a bid says: its numbers, unknown to the broker while its bidder keeps them sealed."""

    valuation: Number | None = None
    epsilon: Number | None = None
    data_size: Number | None = None
    accuracy: Number | None = None
    nonce: Nonce | None = None
    signature: SignatureText | None = None


class BidForm(_Offered, Form):
    """A sealed bid: money asked per unit of ε, and the most ε on offer in this round.

    Where the task says sealing = bidder, send `commitment` and `signature` only, and the rest later as a
    `RevealForm`. A seller with a registered key sends `nonce` and `signature` with every bid.

    `nonce`: 32 to 64 random hexadecimal digits. `commitment`: SHA-256 of the JSON list [round id, seller id,
    {"accuracy", "data_size", "epsilon", "valuation"}, nonce] with sorted keys and no spaces, numbers written as
    floats (1.0, not 1), absent accuracy as null. `signature`: Ed25519 over the four lines "privmarket bid v1",
    round id, seller id, commitment, each ended by a line feed.
    """

    model_config = example(valuation=0.2, epsilon=1.0, data_size=600.0)

    data_size: Number = 1.0
    commitment: Digest | None = None

    @model_validator(mode="after")
    def _numbers_or_commitment(self) -> Self:
        if self.commitment is None and (self.valuation is None or self.epsilon is None):
            raise ValueError("a bid has valuation and epsilon, or a commitment")
        if self.commitment is not None and (self.valuation is not None or self.epsilon is not None):
            raise ValueError("a commitment stands for the bid: send no numbers with it")
        return self

    def offer(self) -> Offer | None:
        """The bid's numbers; None where a commitment stands for them."""
        if self.valuation is None or self.epsilon is None:
            return None
        return Offer(self.valuation, self.epsilon, self.data_size, self.accuracy)


class RevealForm(Form):
    """The bid that a commitment stands for."""

    model_config = example(valuation=0.2, epsilon=1.0, data_size=600.0, nonce="0f" * 16)

    valuation: Number
    epsilon: Number
    data_size: Number = 1.0
    accuracy: Number | None = None
    nonce: Nonce

    def offer(self) -> Offer:
        """The bid's numbers."""
        return Offer(self.valuation, self.epsilon, self.data_size, self.accuracy)


class _BidPlace(Row):
    round_id: Identifier
    seller_id: Identifier
    seq: int
    commitment: Digest


class BidRow(_Offered, _BidPlace):
    """A bid; its numbers and nonce are None until it is revealed where the bidder seals."""

    # The offer as the auction trimmed it to the seller's wallet; None where the whole offer fitted.
    trimmed_epsilon: float | None
    created_ms: int


class Claim(Form):
    """A seller's delivery, by the digest of its update.

    Where the task says delivery = sealed: `update_sha256` is of the ciphertext (ChaCha20-Poly1305, a nonce of
    twelve zero bytes, no associated data), and `key` the 32 bytes that open it, as hexadecimal digits, used once.
    """

    model_config = example(update_sha256="ab" * 32)

    update_sha256: Digest
    key: Digest | None = None


class AwardRow(Row):
    """What a seller sold, and what became of it."""

    round_id: Identifier
    seller_id: Identifier
    seq: int
    epsilon: float
    noise_multiplier: float
    payment_micro: int
    claim_sha256: Digest | None
    claimed_ms: int | None
    # Of a sealed update: the digest of its key from the claim on, the key itself once it is paid.
    key_sha256: Digest | None
    key: Digest | None
    usable: bool | None
    fault: str | None
    dispute: str | None
    ruling: bool | None
    # How the sale counts in the wallet: reserved by the auction, then charged (a delivery was claimed) or void.
    charge: Word
    # The log entry that charged the wallet, or freed it.
    settled_seq: int | None
    paid_micro: int = 0
