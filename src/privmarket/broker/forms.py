"""What may be sent to the API: strict shapes, unknown fields and NaN refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from privmarket.broker.parties import MONEY_LIMIT_MICRO
from privmarket.plans import EPSILON_MAX, MarketPlan, TrainingPlan

Number = Annotated[float, Field(allow_inf_nan=False)]
PRINTS = r"^[^\x00-\x1f\x7f]*$"
Line = Annotated[str, Field(min_length=1, max_length=80, pattern=PRINTS)]
Sentence = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
Seconds = Annotated[int, Field(ge=0, le=31_622_400)]
Money = Annotated[int, Field(ge=1, le=MONEY_LIMIT_MICRO, strict=True)]
IDENTIFIER = r"^[a-z0-9-]+$"
Identifier = Annotated[str, Field(min_length=1, max_length=40, pattern=IDENTIFIER)]


class Form(BaseModel):
    """Unknown fields are an error, not a surprise."""

    model_config = ConfigDict(extra="forbid")


class Registration(Form):
    """A new party. Sellers bring a lifetime wallet: at most `cap_epsilon` at `delta`, for ever.

    `token_sha256` is the SHA-256 of a token that the caller made itself (32 random bytes, as text): then no secret
    travels and the request can be repeated. `public_key` is an Ed25519 key that a seller signs its bids with.
    """

    role: Literal["buyer", "seller", "operator", "arbiter"]
    name: Line
    token_sha256: Digest | None = None
    public_key: Digest | None = None
    cap_epsilon: Annotated[Number, Field(gt=0, le=1e4)] | None = None
    delta: Annotated[Number, Field(ge=1e-12, le=0.5)] | None = None


class TokenForm(Form):
    """Another token: full or for reading only, for ever or for a time, of the caller's making or the broker's."""

    scope: Literal["full", "read"] = "full"
    lifetime_seconds: Annotated[int, Field(ge=1, le=31_622_400)] | None = None
    token_sha256: Digest | None = None


class KeyForm(Form):
    """The Ed25519 public key that one's bids are signed with from now on."""

    public_key: Digest


class Amount(Form):
    """Money in micro-units: 1,000,000 is one unit."""

    amount_micro: Money


class TaskForm(Form):
    """What a buyer wants: a budget per round, the auction rule, the release that is bought, and deadlines."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"title": "digits", "budget_micro": 1_000_000, "mechanism": "pac"}]},
    )

    title: Annotated[str, Field(min_length=1, max_length=120, pattern=PRINTS)]
    mechanism: Annotated[str, Field(min_length=1, max_length=60)] = MarketPlan.mechanism
    settings: dict[Annotated[str, Field(max_length=40)], bool | int | Number] = Field(
        default_factory=dict, max_length=20
    )
    budget_micro: Money
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 1
    epsilon_max: Annotated[Number, Field(gt=0, le=100)] = EPSILON_MAX
    sampling_rate: Annotated[Number, Field(gt=0, le=1)] = TrainingPlan.sampling_rate
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = TrainingPlan.steps
    delta: Annotated[Number, Field(ge=1e-12, le=0.5)] = MarketPlan.delta
    sealing: Literal["broker", "bidder"] = "broker"
    buyer_may_close: bool = False
    bid_seconds: Annotated[int, Field(ge=1, le=31_622_400)] = 3600
    reveal_seconds: Annotated[int, Field(ge=1, le=31_622_400)] = 600
    delivery_seconds: Annotated[int, Field(ge=1, le=31_622_400)] = 3600
    review_seconds: Seconds = 3600
    dispute_seconds: Seconds = 3600
    ruling_seconds: Seconds = 86_400
    arbiter_id: Identifier | None = None


class BidForm(Form):
    """A sealed bid: money asked per unit of ε, and the most ε on offer in this round.

    Where the task says sealing = bidder, send `commitment` and `signature` only, and the rest later as a
    `RevealForm`. A seller with a registered key sends `nonce` and `signature` with every bid.

    `nonce`: 32 to 64 random hexadecimal digits. `commitment`: SHA-256 of the JSON list [round id, seller id,
    {"accuracy", "data_size", "epsilon", "valuation"}, nonce] with sorted keys and no spaces, numbers written as
    floats (1.0, not 1), absent accuracy as null. `signature`: Ed25519 over the four lines "privmarket bid v1",
    round id, seller id, commitment, each ended by a line feed.
    """

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"valuation": 0.2, "epsilon": 1.0, "data_size": 600.0}]}
    )

    valuation: Number | None = None
    epsilon: Number | None = None
    data_size: Number = 1.0
    accuracy: Number | None = None
    nonce: Nonce | None = None
    commitment: Digest | None = None
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] | None = None


class RevealForm(Form):
    """The bid that a commitment stands for."""

    valuation: Number
    epsilon: Number
    data_size: Number = 1.0
    accuracy: Number | None = None
    nonce: Nonce


class Claim(Form):
    """A seller's delivery, by the digest of its update."""

    update_sha256: Digest


class Receipts(Form):
    """The buyer's word on updates: null for usable, else what was wrong."""

    receipts: dict[Identifier, Sentence | None] = Field(min_length=1, max_length=100_000)


class Reason(Form):
    """Why: a round is aborted, a rejection disputed, a party suspended."""

    reason: Sentence


class Suspension(Form):
    """Why a party may not write; null lets it write again."""

    reason: Sentence | None


class Ruling(Form):
    """An arbiter's decision on a dispute: whether the seller is paid, and why."""

    seller_id: Identifier
    pays: bool
    reason: Sentence


class ErrorShape(BaseModel):
    """Every error, everywhere."""

    code: str
    message: str
    hint: str


class Page(BaseModel):
    """One page of a list; send `next` as `after` for the following one."""

    items: list[dict[str, Any]]
    next: str | None
