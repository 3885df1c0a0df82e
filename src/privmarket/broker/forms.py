"""What may be sent to the API: strict shapes, unknown fields and NaN refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from privmarket.broker.task_plan import (
    MONEY_LIMIT_MICRO,
    TITLE_LENGTH,
    YEAR_SECONDS,
    Delivery,
    Sealing,
    TaskPlan,
    WalletPlan,
)
from privmarket.plans import Trust


def limits(name: str, record: type[TaskPlan | WalletPlan] = TaskPlan) -> object:
    """The limits of a setting, as its record declares them."""
    (of,) = (one.metadata for one in fields(record) if one.name == name)
    return Field(gt=of["above"], ge=of["at_least"], lt=of["below"], le=of["at_most"])


Number = Annotated[float, Field(allow_inf_nan=False)]
PRINTS = r"^[^\x00-\x1f\x7f]*$"
Line = Annotated[str, Field(min_length=1, max_length=80, pattern=PRINTS)]
Sentence = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
Money = Annotated[int, Field(ge=1, le=MONEY_LIMIT_MICRO, strict=True)]
IDENTIFIER = r"^[a-z0-9-]+$"
Identifier = Annotated[str, Field(min_length=1, max_length=40, pattern=IDENTIFIER)]


class Form(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


class Registration(Form):
    """A new party. Sellers bring a lifetime wallet: at most `cap_epsilon` at `delta`, for ever.

    `token_sha256` is the SHA-256 of a token that the caller made itself (32 random bytes, as text): then no secret
    travels and the request can be repeated. `public_key` is an Ed25519 key that a seller signs its bids with.
    """

    model_config = _example(role="seller", name="North clinic", cap_epsilon=8.0, delta=1e-5)

    role: Literal["buyer", "seller", "operator", "arbiter"]
    name: Line
    token_sha256: Digest | None = None
    public_key: Digest | None = None
    cap_epsilon: Annotated[Number, limits("cap_epsilon", WalletPlan)] | None = None
    delta: Annotated[Number, limits("delta", WalletPlan)] | None = None


class TokenForm(Form):
    """Another token: full or for reading only, for ever or for a time, of the caller's making or the broker's."""

    model_config = _example(scope="read", lifetime_seconds=86_400)

    scope: Literal["full", "read"] = "full"
    lifetime_seconds: Annotated[int, Field(ge=1, le=YEAR_SECONDS)] | None = None
    token_sha256: Digest | None = None


class KeyForm(Form):
    """The Ed25519 public key that one's bids are signed with from now on.

    `signature`: by the key that one had, over "privmarket key v1", one's id and the new key, each with a line feed
    after it. Without it every check of the log points at the change.
    """

    model_config = _example(public_key="1f" * 32)

    public_key: Digest
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] | None = None


class Amount(Form):
    """Money in micro-units: 1,000,000 is one unit."""

    model_config = _example(amount_micro=2_500_000)

    amount_micro: Money


class TaskForm(Form):
    """What a buyer wants: a budget per round, the auction rule, the release that is bought, and deadlines.

    `delivery` = sealed: updates travel encrypted, and the buyer gets the key when the round is settled and paid.
    `attested`: only sellers that attest their data set may bid, so that one data set has one lifetime wallet.
    `trust` = aggregate: the buyer sees only a secure sum of the updates, and only sellers with a registered key may
    bid. The noise of the share `honest_share` of a round's sellers protects each of them; of the others half may
    collude with the buyer and half may drop out.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"title": "digits", "budget_micro": 1_000_000, "mechanism": "pac"}]},
    )

    title: Annotated[str, Field(min_length=1, max_length=TITLE_LENGTH, pattern=PRINTS)]
    mechanism: Annotated[str, Field(min_length=1, max_length=60)] = TaskPlan.mechanism
    settings: dict[Annotated[str, Field(max_length=40)], bool | int | Number] = Field(
        default_factory=dict, max_length=20
    )
    budget_micro: Money
    rounds: Annotated[int, limits("rounds")] = TaskPlan.rounds
    epsilon_max: Annotated[Number, limits("epsilon_max")] = TaskPlan.epsilon_max
    sampling_rate: Annotated[Number, limits("sampling_rate")] = TaskPlan.sampling_rate
    steps: Annotated[int, limits("steps")] = TaskPlan.steps
    delta: Annotated[Number, limits("delta")] = TaskPlan.delta
    sealing: Sealing = cast(Sealing, TaskPlan.sealing)
    buyer_may_close: bool = TaskPlan.buyer_may_close
    bid_seconds: Annotated[int, limits("bid_seconds")] = TaskPlan.bid_seconds
    reveal_seconds: Annotated[int, limits("reveal_seconds")] = TaskPlan.reveal_seconds
    delivery_seconds: Annotated[int, limits("delivery_seconds")] = TaskPlan.delivery_seconds
    review_seconds: Annotated[int, limits("review_seconds")] = TaskPlan.review_seconds
    dispute_seconds: Annotated[int, limits("dispute_seconds")] = TaskPlan.dispute_seconds
    ruling_seconds: Annotated[int, limits("ruling_seconds")] = TaskPlan.ruling_seconds
    arbiter_id: Identifier | None = TaskPlan.arbiter_id
    delivery: Delivery = cast(Delivery, TaskPlan.delivery)
    attested: bool = TaskPlan.attested
    trust: Trust = cast(Trust, TaskPlan.trust)
    honest_share: Annotated[Number, limits("honest_share")] = TaskPlan.honest_share


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

    model_config = _example(valuation=0.2, epsilon=1.0, data_size=600.0, nonce="0f" * 16)

    valuation: Number
    epsilon: Number
    data_size: Number = 1.0
    accuracy: Number | None = None
    nonce: Nonce


class Claim(Form):
    """A seller's delivery, by the digest of its update.

    Where the task says delivery = sealed: `update_sha256` is of the ciphertext (ChaCha20-Poly1305, a nonce of
    twelve zero bytes, no associated data), and `key` the 32 bytes that open it, as hexadecimal digits, used once.
    """

    model_config = _example(update_sha256="ab" * 32)

    update_sha256: Digest
    key: Digest | None = None


class Attestation(Form):
    """Which data set a seller sells from: a digest of it and of a secret salt, signed, once for all.

    `signature`: Ed25519 over the three lines "privmarket dataset v1", seller id, dataset_sha256, each ended by a
    line feed.
    """

    model_config = _example(dataset_sha256="da" * 32, signature="5a" * 64)

    dataset_sha256: Digest
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Progress(Form):
    """How good the buyer's model is after a round: the share of examples that it gets right."""

    model_config = _example(accuracy=0.87)

    accuracy: Annotated[Number, Field(ge=0, le=1)]


class Receipts(Form):
    """The buyer's receipts for updates: null for usable, else what was wrong."""

    model_config = _example(receipts={"seller-0123456789abcdef": None, "seller-fedcba9876543210": "wrong shape"})

    receipts: dict[Identifier, Sentence | None] = Field(min_length=1, max_length=100_000)


class ReasonForm(Form):
    """Why: a round is aborted, a rejection disputed, a party suspended."""

    model_config = _example(reason="the shape is as the task asks")

    reason: Sentence


class Suspension(Form):
    """Why a party may not write; null lets it write again."""

    model_config = _example(reason="asked to")

    reason: Sentence | None


class Ruling(Form):
    """An arbiter's decision on a dispute: whether the seller is paid, and why."""

    model_config = _example(seller_id="seller-0123456789abcdef", pays=True, reason="it is as the task asks")

    seller_id: Identifier
    pays: bool
    reason: Sentence


class ErrorShape(BaseModel):
    """Every error, everywhere."""

    code: str
    message: str
    hint: str
