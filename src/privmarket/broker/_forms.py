"""What may be sent to the API: strict shapes, unknown fields and NaN refused."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from privmarket._settings import Trust
from privmarket.broker._task_plan import (
    MONEY_LIMIT_MICRO,
    TITLE_LENGTH,
    YEAR_SECONDS,
    Delivery,
    Sealing,
    TaskPlan,
    WalletPlan,
)
from privmarket.rounds import Offer


def limits(name: str, record: type[TaskPlan | WalletPlan] = TaskPlan) -> object:
    """The limits of a setting, as its record declares them."""
    (of,) = (one.metadata for one in fields(record) if one.name == name)
    return Field(gt=of["above"], ge=of["at_least"], lt=of["below"], le=of["at_most"])


Number = Annotated[float, Field(allow_inf_nan=False)]
PRINTS = r"^[^\x00-\x1f\x7f]*$"
Line = Annotated[str, Field(min_length=1, max_length=80, pattern=PRINTS)]
Sentence = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTS)]
NO_REFERENCE = "no reference"
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
    travels and the request can be repeated. `public_key` is an Ed25519 key; with it one signs everything that one
    states (POST /v1/statements), or with `signs` = bids only bids. Without a key one signs nothing.
    """

    model_config = _example(role="seller", name="North clinic", cap_epsilon=8.0, delta=1e-5)

    role: Literal["buyer", "seller", "operator", "arbiter", "auditor"]
    name: Line
    token_sha256: Digest | None = None
    public_key: Digest | None = None
    signs: Literal["bids", "everything"] | None = None
    cap_epsilon: Annotated[Number, limits("cap_epsilon", WalletPlan)] | None = None
    delta: Annotated[Number, limits("delta", WalletPlan)] | None = None


class TokenForm(Form):
    """Another token: full or for reading only, for ever or for a time, of the caller's making or the broker's."""

    model_config = _example(scope="read", lifetime_seconds=86_400)

    scope: Literal["full", "read"] = "full"
    lifetime_seconds: Annotated[int, Field(ge=1, le=YEAR_SECONDS)] | None = None
    token_sha256: Digest | None = None


class KeyForm(Form):
    """The Ed25519 public key that one signs with from now on, and what it signs.

    `signature`: by the key that one had, over "privmarket key v1", one's id, the new key and what it signs, each
    with a line feed after it. Without it every check of the log points at the change.
    """

    model_config = _example(public_key="1f" * 32)

    public_key: Digest
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] | None = None
    signs: Literal["bids", "everything"] | None = None


class Booking(Form):
    """Money that came in or went out, in micro-units: 1,000,000 is one unit; `reference`: as the bank has it."""

    model_config = _example(amount_micro=2_500_000, reference="transfer 2026-04-17, invoice 31")

    amount_micro: Money
    reference: Sentence = NO_REFERENCE


class WebhookForm(Form):
    """Where one's events are posted: an https:// address in the public internet; null ends it."""

    model_config = _example(url="https://clinic.example/privmarket")

    url: Annotated[str, Field(min_length=9, max_length=200, pattern=r"^https://[^\x00-\x20\x7f]+$")] | None


class PayoutForm(Form):
    """Money of one's account that one wants paid out, in micro-units."""

    model_config = _example(amount_micro=2_500_000)

    amount_micro: Money


# Fields whose type a dataclass does not say closely enough for strangers' JSON.
_CLOSER: dict[str, Any] = {
    "title": Annotated[str, Field(min_length=1, max_length=TITLE_LENGTH, pattern=PRINTS)],
    "mechanism": Annotated[str, Field(min_length=1, max_length=60)],
    "settings": Annotated[
        dict[Annotated[str, Field(max_length=40)], bool | int | Number], Field(default_factory=dict, max_length=20)
    ],
    "budget_micro": Money,
    "sealing": Sealing,
    "arbiter_id": Identifier | None,
    "delivery": Delivery,
    "trust": Trust,
}


def _fields_of(record: type[TaskPlan]) -> dict[str, Any]:
    """The fields of a form, from the record that declares them: type, limits, help and default."""
    hints = get_type_hints(record)
    made: dict[str, Any] = {}
    for one in fields(record):
        kind = _CLOSER.get(one.name)
        if kind is None:
            kind = Number if hints[one.name] is float else hints[one.name]
            if hints[one.name] in (int, float):
                kind = Annotated[kind, limits(one.name, record)]
        told = one.metadata.get("help")
        if one.default is not MISSING:
            made[one.name] = (kind, Field(default=one.default, description=told))
        elif one.default_factory is not MISSING:
            made[one.name] = (kind, Field(default_factory=one.default_factory, description=told))
        else:
            made[one.name] = (kind, Field(description=told))
    return made


if TYPE_CHECKING:
    _TaskFields = Form
else:
    _TaskFields = create_model("_TaskFields", __base__=Form, **_fields_of(TaskPlan))


class TaskForm(_TaskFields):
    """What a buyer wants: a budget per round, the auction rule, the release that is bought, and deadlines.

    `delivery` = sealed: updates travel encrypted, and the buyer gets the key when the round is settled and paid.
    `attested`: only sellers that attest their data set may bid, so that one data set has one lifetime wallet.
    `trust` = aggregate: the buyer sees only a secure sum of the updates, and only sellers with a registered key may
    bid. The noise of the share `honest_share` of a round's sellers protects each of them; of the others half may
    collude with the buyer and half may drop out.
    """

    model_config = _example(title="digits", budget_micro=1_000_000, mechanism="pac")


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
    """Every error, everywhere.

    `field` names the part of the request that was wrong, such as `body.budget_micro`, where one was; tell the
    operator `request_id` if you ask about it.
    """

    code: str
    message: str
    hint: str
    field: str | None = None
    request_id: str = ""
