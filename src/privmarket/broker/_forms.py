"""The API's forms beside those that `_shapes` declares: keys, bookings, reasons, receipts, rulings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from privmarket.broker._shapes import Digest, Form, Identifier, Money, Number, Sentence, SignatureText, example

NO_REFERENCE = "no reference"


class KeyForm(Form):
    """The Ed25519 public key that one signs with from now on, and what it signs.

    `signature`: by the key that one had, over "privmarket key v1", one's id, the new key and what it signs, each
    with a line feed after it. Without it every check of the log points at the change.
    """

    model_config = example(public_key="1f" * 32)

    public_key: Digest
    signature: SignatureText | None = None
    signs: Literal["bids", "everything"] | None = None


class Booking(Form):
    """Money that came in or went out, in micro-units: 1,000,000 is one unit; `reference`: as the bank has it."""

    model_config = example(amount_micro=2_500_000, reference="transfer 2026-04-17, invoice 31")

    amount_micro: Money
    reference: Sentence = NO_REFERENCE


class WebhookForm(Form):
    """Where one's events are posted: an https:// address in the public internet; null ends it."""

    model_config = example(url="https://clinic.example/privmarket")

    url: Annotated[str, Field(min_length=9, max_length=200, pattern=r"^https://[^\x00-\x20\x7f]+$")] | None


class Attestation(Form):
    """Which data set a seller sells from: a digest of it and of a secret salt, signed, once for all.

    `signature`: Ed25519 over the three lines "privmarket dataset v1", seller id, dataset_sha256, each ended by a
    line feed.
    """

    model_config = example(dataset_sha256="da" * 32, signature="5a" * 64)

    dataset_sha256: Digest
    signature: SignatureText


class Progress(Form):
    """How good the buyer's model is after a round: the share of examples that it gets right."""

    model_config = example(accuracy=0.87)

    accuracy: Annotated[Number, Field(ge=0, le=1)]


class Receipts(Form):
    """The buyer's receipts for updates: null for usable, else what was wrong."""

    model_config = example(receipts={"seller-0123456789abcdef": None, "seller-fedcba9876543210": "wrong shape"})

    receipts: dict[Identifier, Sentence | None] = Field(min_length=1, max_length=100_000)


class ReasonForm(Form):
    """Why: a round is aborted, a rejection disputed, a party suspended."""

    model_config = example(reason="the shape is as the task asks")

    reason: Sentence


class Suspension(Form):
    """Why a party may not write; null lets it write again."""

    model_config = example(reason="asked to")

    reason: Sentence | None


class Ruling(Form):
    """An arbiter's decision on a dispute: whether the seller is paid, and why."""

    model_config = example(seller_id="seller-0123456789abcdef", pays=True, reason="it is as the task asks")

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
