"""What the broker answers, typed: the same classes inside the program and in the API's description.

Money is micro-units (1,000,000 is one unit), time is milliseconds since 1970 UTC, digests and keys are lower-case
hexadecimal digits. Fields may be added later: readers ignore those that they do not know.
"""

from __future__ import annotations

from typing import Generic, NotRequired, TypeVar

from pydantic import JsonValue
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

Item = TypeVar("Item")
SettingValue = bool | int | float | str | None


class Page(TypedDict, Generic[Item]):
    """One page of a list; send `next` as `after` for the following one."""

    items: list[Item]
    next: str | None


class WalletAnswer(TypedDict):
    """A seller's lifetime wallet: the cap on ε at δ, what the accountant says is spent, the share that is left.

    `measure` is that of the measures which the wallet watches of which the largest share is left.
    """

    cap_epsilon: float
    delta: float
    spent_epsilon: float
    remaining_share: float
    measure: str
    sales: int


class Party(TypedDict):
    """A party. `reliability` counts what the log says about its past."""

    id: str
    role: str
    name: str | None
    created_ms: int
    balance_micro: int
    public_key: str | None
    signs: str
    dataset_sha256: str | None
    suspended: str | None
    reliability: dict[str, int] | None
    wallet: WalletAnswer | None


class Registered(TypedDict):
    """A new party; `token` only where the broker made it, and only this once.

    Here and below, what older versions did not answer may be missing: a repeat gets the first answer.
    """

    id: str
    role: str
    token_id: str
    name: NotRequired[str | None]
    token: NotRequired[str]
    scope: NotRequired[str]
    expires_ms: NotRequired[int | None]
    cap_epsilon: NotRequired[float | None]
    delta: NotRequired[float | None]
    public_key: NotRequired[str | None]
    signs: NotRequired[str]


class TokenAnswer(TypedDict):
    """A new token; its text only where the broker made it, and only this once."""

    id: str
    token_id: str
    scope: str
    token: NotRequired[str]
    expires_ms: NotRequired[int | None]


class KeyAnswer(TypedDict):
    """A party's key, and what must be signed with it."""

    id: str
    public_key: str
    signs: str


class Setting(TypedDict):
    """A setting of a rule."""

    type: str
    default: SettingValue


class RuleAnswer(TypedDict):
    """An auction rule: what it promises, what to beware of, which settings it takes."""

    name: str
    guarantees: list[str]
    warnings: list[str]
    settings: dict[str, Setting]


class TaskAnswer(TypedDict):
    """A published task: the terms of all its rounds."""

    id: str
    buyer_id: str
    title: str
    mechanism: str
    settings: dict[str, JsonValue]
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
    delivery: str
    attested: bool
    trust: str
    honest_share: float
    created_ms: NotRequired[int]


class RoundAnswer(TypedDict):
    """A round: open → closed or revealing → cleared → delivered → settled, or aborted.

    What a role may not see is left out: sellers see no totals, and only operators see the seed.
    """

    id: str
    task_id: str
    number: int
    state: str
    budget_micro: int
    mechanism_version: str
    opened_ms: int
    bid_deadline_ms: int
    closed_ms: NotRequired[int | None]
    reveal_deadline_ms: NotRequired[int | None]
    delivery_deadline_ms: NotRequired[int | None]
    review_deadline_ms: NotRequired[int | None]
    dispute_deadline_ms: NotRequired[int | None]
    ruling_deadline_ms: NotRequired[int | None]
    ended_ms: NotRequired[int | None]
    bids: NotRequired[int]
    revealed: NotRequired[int]
    sellers: NotRequired[int]
    awarded_micro: NotRequired[int]
    paid_micro: NotRequired[int]
    total_epsilon: NotRequired[float]
    top_price: NotRequired[float | None]
    model_accuracy: NotRequired[float | None]
    seed: NotRequired[int | None]
    fault: NotRequired[str | None]


class BidAnswer(TypedDict):
    """A bid as it was taken; `entry` is its number in the log."""

    round_id: str
    commitment: str
    nonce: NotRequired[str]
    valuation: NotRequired[float]
    epsilon: NotRequired[float]
    data_size: NotRequired[float]
    accuracy: NotRequired[float | None]
    entry: NotRequired[int]
    replaced: NotRequired[bool]


class OutcomeAnswer(TypedDict):
    """What became of a bid: `top_price` is the most that anybody was paid per unit of ε."""

    round_id: str
    state: str
    asked: float | None
    sold_epsilon: float
    top_price: float | None
    why: str


class State(TypedDict):
    """A round and the state that it is in."""

    round_id: str
    state: str


class StepAnswer(State):
    """A round after a step.

    Of an auction: `bids`, and who sells how much for how much; `reveal_deadline_ms` where bids must be revealed
    first; `state` is `closed` while the auction of a very large round is computed. Of receipts: how many are
    `missing`. Of an end: what was paid and refunded, and the `fault` of an abort.
    """

    bids: NotRequired[int]
    reveal_deadline_ms: NotRequired[int | None]
    sellers: NotRequired[int]
    awarded_micro: NotRequired[int]
    total_epsilon: NotRequired[float]
    missing: NotRequired[int]
    paid_micro: NotRequired[int]
    refunded_micro: NotRequired[int]
    fault: NotRequired[str]


class ProgressAnswer(State):
    """A round after the buyer's report on its model."""

    model_accuracy: float


class ClaimAnswer(TypedDict):
    """A delivery as it was claimed; `entry` is its number in the log."""

    round_id: str
    update_sha256: str
    entry: NotRequired[int]
    key_sha256: NotRequired[str]


class UpdateKey(TypedDict):
    """What opens a sealed update that is disputed."""

    round_id: str
    seller_id: str
    update_sha256: str
    key: str


class Dispute(TypedDict):
    """A dispute that waits for its ruling."""

    round_id: str
    seller_id: str
    ruling_deadline_ms: int


class Ruled(State):
    """A dispute that was decided."""

    seller_id: str
    pays: bool


class AwardAnswer(TypedDict):
    """What a seller sold and what became of it. `seq` is the log entry that reserved it, `settled_seq`
    the one that charged or freed it and paid; `key` opens a sealed update once it is paid."""

    round_id: str
    seller_id: str
    seq: int
    epsilon: float
    noise_multiplier: float
    payment_micro: int
    claim_sha256: str | None
    claimed_ms: int | None
    key_sha256: str | None
    key: str | None
    usable: bool | None
    fault: str | None
    dispute: str | None
    ruling: bool | None
    charge: str
    settled_seq: int | None
    paid_micro: int
    decided_ms: NotRequired[int]
    data_size: NotRequired[float | None]


class CohortKey(TypedDict):
    """The key that one seller of a round has registered: whom a secure sum may consist of."""

    seller_id: str
    public_key: str
    seq: int


class StandingBid(TypedDict):
    """A bid as it stands in its round; `seq` is its log entry."""

    round_id: str
    seller_id: str
    seq: int
    commitment: str
    signature: str | None
    nonce: str | None
    valuation: float | None
    epsilon: float | None
    data_size: float | None
    accuracy: float | None
    trimmed_epsilon: float | None
    created_ms: int


class Movement(TypedDict):
    """A line of a statement; `seq` is its log entry.

    `reference`: of a booking, as the bank has it. `title` and `number`: of the task and round that it is about.
    """

    seq: int
    kind: str
    subject: str
    created_ms: int
    amount_micro: int
    reference: str | None
    title: str | None
    number: int | None


class TokenLine(TypedDict):
    """A token, without its text."""

    id: str
    scope: str
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None


class PartyLine(TypedDict):
    """A party in a list."""

    id: str
    role: str
    name: str | None
    created_ms: int
    cap_epsilon: float | None
    delta: float | None
    public_key: str | None
    suspended: str | None


class PayoutAnswer(TypedDict):
    """A request for a payout, and its entry in the log."""

    party_id: str
    entry: int
    amount_micro: int


class Balance(TypedDict):
    """What a party holds after money came in or went out; `entry` is the booking's number in the log.

    `state`: booked; proposed, where a second operator must approve it first; or declined.
    """

    party_id: str
    balance_micro: int
    entry: int
    state: str


class BookingLine(TypedDict):
    """A booking: `way` is deposit or withdraw; `undoes` and `undone_by` are numbers of other bookings."""

    entry: int
    created_ms: int
    by: str
    by_name: str | None
    way: str
    party_id: str
    party_name: str | None
    amount_micro: int
    reference: str
    undoes: int | None
    undone_by: int | None


class ProposalLine(TypedDict):
    """A booking that waits for a second operator."""

    entry: int
    created_ms: int
    by: str
    by_name: str | None
    way: str
    party_id: str
    party_name: str | None
    amount_micro: int
    reference: str


class PayoutLine(TypedDict):
    """A payout that was asked for and not made yet."""

    entry: int
    created_ms: int
    party_id: str
    party_name: str | None
    amount_micro: int


class Suspended(TypedDict):
    """A party, and why it may not write; None where it may."""

    id: str
    suspended: str | None


class Erased(TypedDict):
    """A party whose name was forgotten."""

    id: str
    name: None


class Revoked(TypedDict):
    """A token that has ended."""

    token_id: str
    revoked: bool


class DatasetAnswer(TypedDict):
    """The data set that a seller attests."""

    id: str
    dataset_sha256: str


class Totals(TypedDict):
    """All the money there is, and where it stands."""

    deposited_micro: int
    escrow_micro: int
    balances_micro: int
    paid_micro: int


class LogLine(TypedDict):
    """An entry of the log; `details` is JSON text, or says that it is sealed."""

    seq: int
    at_ms: int
    actor: str
    kind: str
    subject: str
    details: str
    hash: str


class Event(TypedDict):
    """Something that happened: `kind` as in the log, and what it is about, where it is about one."""

    seq: int
    at_ms: int
    kind: str
    task_id: str | None
    round_id: str | None
    party_id: str | None


class WebhookAnswer(TypedDict):
    """Where a party's events are posted; None where they are not."""

    id: str
    url: str | None


class Events(TypedDict):
    """Events, oldest first. Send `next` as `after` for those that follow; `head` is the log's newest entry."""

    items: list[Event]
    next: int
    head: int


class Status(TypedDict):
    """Whether the broker works."""

    status: str
    version: str


class LogHead(TypedDict):
    """The head of the log: how many entries, the Merkle root over them, when, signed by `public_key`.

    `now_signature` says, signed too, that this was the newest head at `now_ms`; `keys` how the key was handed on.
    """

    log_id: str
    size: int
    root: str
    at_ms: int
    signature: str
    public_key: str
    now_ms: int
    now_signature: str
    keys: list[KeyStep]
    witnesses: list[Witnessed]


class KeyStep(TypedDict):
    """One key that took over the signing of the log from another, which signed for it."""

    old: str
    new: str
    signature: str


class StatementAnswer(TypedDict):
    """A signed statement that was taken, and the answer of the step that it makes."""

    kind: str
    about: str
    answer: dict[str, JsonValue]


class Witnessed(TypedDict):
    """A witness, and the head that it cosigned last: how many entries, and when by its clock."""

    witness: str
    size: int
    seconds: int
    public_key: str


class ProvenEntry(TypedDict):
    """An entry of the log, and the hashes that lead from it to the root."""

    entry: list[int | str | None]
    path: list[str]


class RoundEntries(TypedDict):
    """Entries of a round that has ended, under `head`; `public_keys` are those of its bidders."""

    head: str
    public_keys: dict[str, str | None]
    items: list[ProvenEntry]
    next: str | None


class Consistency(TypedDict):
    """A consistency proof of RFC 6962 between two sizes of the log."""

    old: int
    new: int
    path: list[str]


class Inclusion(TypedDict):
    """An inclusion proof of RFC 6962: `entry` is [seq, at_ms, actor, kind, subject, details, key_hash,
    request_hash, answer], hashed as JSON with sorted keys, without spaces, after a zero byte."""

    entry: list[int | str | None]
    size: int
    path: list[str]
