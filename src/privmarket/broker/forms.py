"""What may be sent to the API: strict shapes, unknown fields and NaN refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from privmarket.broker.people import MONEY_LIMIT_MICRO

Number = Annotated[float, Field(allow_inf_nan=False)]
Line = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")]
Money = Annotated[int, Field(ge=1, le=MONEY_LIMIT_MICRO, strict=True)]
IDENTIFIER = r"^[a-z0-9-]+$"
Identifier = Annotated[str, Field(min_length=1, max_length=40, pattern=IDENTIFIER)]


class Form(BaseModel):
    """Unknown fields are an error, not a surprise."""

    model_config = ConfigDict(extra="forbid")


class Registration(Form):
    """A new party. Sellers bring a lifetime wallet: at most `cap_epsilon` at `delta`, for ever."""

    role: Literal["buyer", "seller", "operator"]
    name: Line
    cap_epsilon: Annotated[Number, Field(gt=0, le=1e4)] | None = None
    delta: Annotated[Number, Field(ge=1e-12, le=0.5)] | None = None


class TokenForm(Form):
    """Another token for oneself."""

    scope: Literal["full", "read"] = "full"


class Amount(Form):
    """Money in micro-units: 1,000,000 is one unit."""

    amount_micro: Money


class TaskForm(Form):
    """What a buyer wants: a budget per round, the auction rule, the release that is bought, and deadlines."""

    title: Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]*$")]
    mechanism: Annotated[str, Field(min_length=1, max_length=60)] = "proportional-share"
    settings: dict[Annotated[str, Field(max_length=40)], bool | int | Number | str] = Field(
        default_factory=dict, max_length=20
    )
    budget_micro: Money
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 1
    epsilon_max: Annotated[Number, Field(gt=0, le=100)] = 5.0
    sampling_rate: Annotated[Number, Field(gt=0, le=1)] = 1.0
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    delta: Annotated[Number, Field(ge=1e-12, le=0.5)] = 1e-5
    bid_seconds: Annotated[int, Field(ge=1, le=31_622_400)] = 3600
    delivery_seconds: Annotated[int, Field(ge=1, le=31_622_400)] = 3600


class BidForm(Form):
    """A sealed bid: money asked per unit of ε, and the most ε on offer in this round."""

    valuation: Number
    epsilon: Number
    data_size: Number = 1.0
    accuracy: Number | None = None


class Claim(Form):
    """A seller's delivery, by the digest of its update."""

    update_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Receipts(Form):
    """The buyer's word on updates: null for usable, else what was wrong."""

    receipts: dict[Identifier, Annotated[str, Field(min_length=1, max_length=200)] | None] = Field(
        min_length=1, max_length=100_000
    )


class Reason(Form):
    """Why a round is aborted."""

    reason: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ErrorShape(BaseModel):
    """Every error, everywhere."""

    code: str
    message: str
    hint: str


class Page(BaseModel):
    """One page of a list; send `next` as `after` for the following one."""

    items: list[dict[str, Any]]
    next: str | None
