"""What the API answers, typed, so that a stranger can write a client from its description alone.

Money is micro-units (1,000,000 is one unit), time is milliseconds since 1970 UTC, digests and keys are lower-case
hexadecimal digits. Fields may be added later: readers ignore those that they do not know.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Unknown fields pass: a newer broker may say more."""

    model_config = ConfigDict(extra="allow")


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
