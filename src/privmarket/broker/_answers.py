"""The broker's answers as types: the same classes are used in the program and in the API's description.

Money is micro-units (1,000,000 is one unit), time is milliseconds since 1970 UTC, digests and keys are lower-case
hexadecimal digits. Fields may be added later: readers ignore those that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NotRequired, TypeAlias, TypeVar, get_type_hints

from pydantic import JsonValue
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from privmarket.broker._shapes import AwardRow, BidRow, PartyRow, RoundRow, Row, TaskRow, TokenRow

Item = TypeVar("Item")
SettingValue = bool | int | float | str | None


class Page(TypedDict, Generic[Item]):
    """One page of a list; send `next` as `after` for the following one."""

    items: list[Item]
    next: str | None


class WalletAnswer(TypedDict):
    """A seller's lifetime wallet: its cap on ε at δ, the ε that its sales have spent so far, and the share left.

    The wallet accounts for its sales in several ways, each of which is valid. `measure` names the one that leaves
    most; `remaining_share` is what it leaves.
    """

    cap_epsilon: float
    delta: float
    spent_epsilon: float
    remaining_share: float
    measure: str
    sales: int


# ---- answers about stored things: see `_shapes` ---------------------------------------------------------------

if TYPE_CHECKING:  # the types of answers that are made below, for type checkers
    Party: TypeAlias = dict[str, Any]
    PartyLine: TypeAlias = dict[str, Any]
    Registered: TypeAlias = dict[str, Any]
    TokenLine: TypeAlias = dict[str, Any]
    TaskAnswer: TypeAlias = dict[str, Any]
    RoundAnswer: TypeAlias = dict[str, Any]
    BidAnswer: TypeAlias = dict[str, Any]
    StandingBid: TypeAlias = dict[str, Any]
    AwardAnswer: TypeAlias = Any  # also a `BookedDelivery` of `privacy`
else:

    def _answer(
        called: str,
        of: type[Row],
        about: str,
        *,
        without: Iterable[str] = (),
        perhaps: Iterable[str] = (),
        **more: Any,
    ) -> type:
        """An answer with the fields of a row.

        Args:
            about: its description in the API's documentation.
            without: fields that are not shown.
            perhaps: fields that are left out if the caller may not see them, or if an older answer had none.
            more: fields beside those of the row, with their types.
        """
        kept = {one: kind for one, kind in get_type_hints(of).items() if one in of.columns() and one not in without}
        fields = {**kept, **more}
        for one in perhaps:
            fields[one] = NotRequired[fields[one]]
        made = TypedDict(called, fields)
        made.__doc__ = about
        made.__module__ = __name__
        return made

    Party = _answer(
        "Party",
        PartyRow,
        "A party. `reliability` counts what the log says about its past.",
        without=("name_hash", "cap_epsilon", "delta", "erased_ms"),
        name=str | None,
        balance_micro=int,
        reliability=dict[str, int] | None,
        wallet=WalletAnswer | None,
    )
    PartyLine = _answer(
        "PartyLine",
        PartyRow,
        "A party in a list.",
        without=("name_hash", "signs", "dataset_sha256", "erased_ms"),
        name=str | None,
    )
    Registered = _answer(
        "Registered",
        PartyRow,
        "A new party; `token` only where the broker made it, and only this once.",
        without=("name_hash", "created_ms", "dataset_sha256", "suspended", "erased_ms"),
        perhaps=("cap_epsilon", "delta", "public_key", "signs", "name", "token", "scope", "expires_ms"),
        token_id=str,
        name=str | None,
        token=str,
        scope=str,
        expires_ms=int | None,
    )
    TokenLine = _answer("TokenLine", TokenRow, "A token, without its text.", without=("party_id", "token_hash"))
    TaskAnswer = _answer(
        "TaskAnswer",
        TaskRow,
        "A published task: the terms of all its rounds.",
        without=("nonce",),
        perhaps=("created_ms",),
        settings=dict[str, JsonValue],
    )
    RoundAnswer = _answer(
        "RoundAnswer",
        RoundRow,
        """A round: open → closed or revealing → cleared → delivered → settled, or aborted.

        What a role may not see is left out: sellers see no totals, and only operators see the seed.
        """,
        perhaps=RoundRow.columns()[8:],  # what follows the deadline for bids
    )
    BidAnswer = _answer(
        "BidAnswer",
        BidRow,
        "A bid as it was taken; `entry` is its number in the log.",
        without=("seller_id", "seq", "signature", "trimmed_epsilon", "created_ms"),
        perhaps=("nonce", "valuation", "epsilon", "data_size", "accuracy", "entry", "replaced"),
        nonce=str,
        valuation=float,
        epsilon=float,
        data_size=float,
        entry=int,
        replaced=bool,
    )
    StandingBid = _answer("StandingBid", BidRow, "A bid as it stands in its round; `seq` is its log entry.")
    AwardAnswer = _answer(
        "AwardAnswer",
        AwardRow,
        """What a seller sold and what became of it. `seq` is the log entry that reserved it, `settled_seq`
        the one that charged or freed it and paid; `key` opens a sealed update once it is paid.""",
        perhaps=("decided_ms", "data_size"),
        decided_ms=int,
        data_size=float | None,
    )


# ---- other answers --------------------------------------------------------------------------------------------


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
    """A round after a step. Which fields there are depends on the step.

    After closing: the number of bids and sellers, the ε and the money awarded; or `reveal_deadline_ms`, where bids
    must be revealed first. `state` is `closed` while the auction of a very large round is computed. After receipts:
    how many are `missing`. After the end: what was paid and refunded, and `fault`, why a round was aborted.
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
    """The key that opens a sealed update that is disputed."""

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


class CohortKey(TypedDict):
    """The registered key of a seller of a round. Only sellers of the round may take part in its secure sum."""

    seller_id: str
    public_key: str
    seq: int


class Movement(TypedDict):
    """One line of an account's statement: money that came in or went out; `seq` is its log entry.

    A booking has the bank's `reference`. A line about a round has the `title` of its task and its `number`.
    """

    seq: int
    kind: str
    subject: str
    created_ms: int
    amount_micro: int
    reference: str | None
    title: str | None
    number: int | None


class PayoutAnswer(TypedDict):
    """A request for a payout, and its entry in the log."""

    party_id: str
    entry: int
    amount_micro: int


class Balance(TypedDict):
    """A party's balance after a booking; `entry` is the booking's number in the log.

    `state` is `booked`, `proposed` (a second operator must approve it first) or `declined`.
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
    """All money at the broker: paid in, held in escrow for open rounds, on accounts, and paid to sellers so far."""

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
    """Something that happened, with the kind of its log entry and the task, round or party that it is about."""

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
    """The head of the log: the number of its entries, the Merkle root over them and their last time, signed.

    `signature` is by `public_key`. `now_signature` is by the same key and says that this was the newest head at
    `now_ms`. `keys` lists the keys that signed before, each with its signature for the next.
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
