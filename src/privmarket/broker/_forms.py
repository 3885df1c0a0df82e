"""The API's forms beside those that `_shapes` declares: keys, bookings, reasons, receipts, rulings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from privmarket.broker._shapes import Digest, Form, Identifier, Money, Number, Sentence, SignatureText, example

NO_REFERENCE = "no reference"


class KeyForm(Form):
    """A new Ed25519 public key of the caller, and what the caller signs with it.

    `signature` is made with the caller's present key, over four lines, each ended by a line feed: "privmarket key
    v1", the caller's id, the new key, and what it signs. A change without it is accepted, but every later check of
    the log reports it.
    """

    model_config = example(public_key="1f" * 32)

    public_key: Digest
    signature: SignatureText | None = None
    signs: Literal["bids", "everything"] | None = None


class Booking(Form):
    """Money that came in or went out, in micro-units (1,000,000 is one unit), with the bank's reference."""

    model_config = example(amount_micro=2_500_000, reference="transfer 2026-04-17, invoice 31")

    amount_micro: Money
    reference: Sentence = NO_REFERENCE


class WebhookForm(Form):
    """The https:// address, in the public internet, to which the caller's events are posted; null stops that."""

    model_config = example(url="https://clinic.example/privmarket")

    url: Annotated[str, Field(min_length=9, max_length=200, pattern=r"^https://[^\x00-\x20\x7f]+$")] | None


class Attestation(Form):
    """The one data set that a seller sells from: a signed digest of its file and a secret salt, given once.

    `signature` is Ed25519 over three lines, each ended by a line feed: "privmarket dataset v1", the seller's id and
    `dataset_sha256`.
    """

    model_config = example(dataset_sha256="da" * 32, signature="5a" * 64)

    dataset_sha256: Digest
    signature: SignatureText


class Progress(Form):
    """How good the buyer's model is after a round: the share of examples that it gets right, 0 to 1."""

    model_config = example(accuracy=0.87)

    accuracy: Annotated[Number, Field(ge=0, le=1)]


class Receipts(Form):
    """The buyer's receipts: for each seller's update null if it was usable, else what was wrong with it."""

    model_config = example(receipts={"seller-0123456789abcdef": None, "seller-fedcba9876543210": "wrong shape"})

    receipts: dict[Identifier, Sentence | None] = Field(min_length=1, max_length=100_000)


class ReasonForm(Form):
    """A reason: why a round is aborted, a rejection disputed, or a booking undone or declined."""

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
    """The shape of every error.

    `field` names the wrong part of the request, such as `body.budget_micro`, if there is one. Give the operator
    `request_id` if you ask about an error.
    """

    code: str
    message: str
    hint: str
    field: str | None = None
    request_id: str = ""
