"""What the API answers, typed, so that a stranger can write a client from its description alone.

Money is micro-units (1,000,000 is one unit), time is milliseconds since 1970 UTC, digests and keys are lower-case
hexadecimal digits. Fields may be added later: readers ignore those that they do not know.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class Answer(BaseModel):
    """Unknown fields pass: a newer broker may say more."""

    model_config = ConfigDict(extra="allow")


class Page(BaseModel, Generic[Item]):
    """One page of a list; send `next` as `after` for the following one."""

    items: list[Item]
    next: str | None


class Wallet(Answer):
    """A seller's lifetime wallet: the cap on ε at δ, what the accountant says is spent, the share that is left."""

    cap_epsilon: float
    delta: float
    spent_epsilon: float
    remaining_share: float
    measure: str
    sales: int


class Party(Answer):
    """A party. `reliability` counts what the log says about its past."""

    id: str
    role: str
    name: str | None
    created_ms: int
    balance_micro: int
    public_key: str | None = None
    dataset_sha256: str | None = None
    suspended: str | None = None
    reliability: dict[str, int] | None = None
    wallet: Wallet | None = None


class Registered(Answer):
    """A new party; `token` only where the broker made it, and only this once."""

    id: str
    role: str
    token_id: str
    name: str | None = None
    token: str | None = None
    scope: str = "full"
    cap_epsilon: float | None = None
    delta: float | None = None
    public_key: str | None = None


class Token(Answer):
    """A new token; its text only where the broker made it, and only this once."""

    id: str
    token_id: str
    scope: str
    token: str | None = None
    expires_ms: int | None = None


class Key(Answer):
    """The key that a seller's bids must be signed with."""

    id: str
    public_key: str


class Setting(Answer):
    """A setting of a rule."""

    type: str
    default: Any = None


class Rule(Answer):
    """An auction rule: what it promises, what to beware of, which settings it takes."""

    name: str
    guarantees: list[str]
    warnings: list[str]
    settings: dict[str, Setting]


class Task(Answer):
    """A published task: the terms of all its rounds."""

    id: str
    buyer_id: str
    title: str
    mechanism: str
    settings: dict[str, Any]
    budget_micro: int
    rounds: int
    epsilon_max: float
    sampling_rate: float
    steps: int
    delta: float
    sealing: str
    buyer_may_close: bool
    bid_seconds: int
    reveal_seconds: int
    delivery_seconds: int
    review_seconds: int
    dispute_seconds: int
    ruling_seconds: int
    arbiter_id: str | None
    delivery: str = "open"
    attested: bool = False
    trust: str = "local"
    honest_share: float = 2 / 3


class Round(Answer):
    """A round: open → closed or revealing → cleared → delivered → settled, or aborted."""

    id: str
    task_id: str
    number: int
    state: str
    budget_micro: int
    mechanism_version: str
    opened_ms: int
    bid_deadline_ms: int
    reveal_deadline_ms: int | None = None
    delivery_deadline_ms: int | None = None
    review_deadline_ms: int | None = None
    dispute_deadline_ms: int | None = None
    ruling_deadline_ms: int | None = None
    top_price: float | None = None
    model_accuracy: float | None = None


class Bid(Answer):
    """A bid as it was taken; `entry` is its number in the log."""

    round_id: str
    commitment: str
    nonce: str | None = None
    valuation: float | None = None
    epsilon: float | None = None
    data_size: float | None = None
    accuracy: float | None = None
    entry: int | None = None
    replaced: bool | None = None


class Outcome(Answer):
    """What became of a bid: `top_price` is the most that anybody was paid per unit of ε."""

    round_id: str
    state: str
    asked: float | None
    sold_epsilon: float
    top_price: float | None
    why: str


class Step(Answer):
    """A round after a step."""

    round_id: str
    state: str


class Progress(Step):
    """A round after the buyer's report on its model."""

    model_accuracy: float


class Claim(Answer):
    """A delivery as it was claimed; `entry` is its number in the log."""

    round_id: str
    update_sha256: str
    entry: int | None = None
    key_sha256: str | None = None


class UpdateKey(Answer):
    """What opens a sealed update that is disputed."""

    round_id: str
    seller_id: str
    update_sha256: str
    key: str


class Dispute(Answer):
    """A dispute that waits for its ruling."""

    round_id: str
    seller_id: str
    ruling_deadline_ms: int


class Ruled(Step):
    """A dispute that was decided."""

    seller_id: str
    pays: bool


class Award(Answer):
    """What a seller sold and what became of it. `seq` is the log entry that reserved it, `settled_seq`
    the one that charged or freed it and paid; `key` opens a sealed update once it is paid."""

    round_id: str
    seller_id: str
    seq: int
    epsilon: float
    noise_multiplier: float
    payment_micro: int
    charge: str
    paid_micro: int
    claim_sha256: str | None = None
    claimed_ms: int | None = None
    key_sha256: str | None = None
    key: str | None = None
    usable: bool | None = None
    fault: str | None = None
    dispute: str | None = None
    ruling: bool | None = None
    settled_seq: int | None = None
    decided_ms: int | None = None
    data_size: float | None = None


class CohortKey(Answer):
    """The key that one seller of a round had registered when it bid: whom a secure sum may consist of."""

    seller_id: str
    public_key: str


class StandingBid(Answer):
    """A bid as it stands in its round; `seq` is its log entry."""

    round_id: str
    seller_id: str
    seq: int
    commitment: str
    created_ms: int
    valuation: float | None = None
    epsilon: float | None = None
    data_size: float | None = None
    accuracy: float | None = None
    trimmed_epsilon: float | None = None


class Movement(Answer):
    """A line of a statement; `seq` is its log entry."""

    seq: int
    kind: str
    subject: str
    created_ms: int
    amount_micro: int


class TokenLine(Answer):
    """A token, without its text."""

    id: str
    scope: str
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None


class PartyLine(Answer):
    """A party in a list."""

    id: str
    role: str
    name: str | None
    created_ms: int


class Balance(Answer):
    """What a party holds after money came in or went out."""

    party_id: str
    balance_micro: int


class Named(Answer):
    """A party after an operator's step."""

    id: str


class Revoked(Answer):
    """A token that has ended."""

    token_id: str
    revoked: bool


class Dataset(Answer):
    """The data set that a seller attests."""

    id: str
    dataset_sha256: str


class Totals(Answer):
    """All the money there is, and where it stands."""

    deposited_micro: int
    escrow_micro: int
    balances_micro: int
    paid_micro: int


class LogLine(Answer):
    """An entry of the log; `details` is JSON text, or says that it is sealed."""

    seq: int
    at_ms: int
    actor: str
    kind: str
    subject: str
    details: str
    hash: str


class Status(Answer):
    """Whether the broker works."""

    status: str
    version: str


class LogHead(Answer):
    """The head of the log: how many entries, the Merkle root over them, when, signed by `public_key`."""

    log_id: str
    size: int
    root: str
    at_ms: int
    signature: str
    public_key: str


class Consistency(Answer):
    """A consistency proof of RFC 6962 between two sizes of the log."""

    old: int
    new: int
    path: list[str]


class Inclusion(Answer):
    """An inclusion proof of RFC 6962: `entry` is [seq, at_ms, actor, kind, subject, details, key_hash,
    request_hash, answer], hashed as JSON with sorted keys, without spaces, after a zero byte."""

    entry: list[int | str | None]
    size: int
    path: list[str]
