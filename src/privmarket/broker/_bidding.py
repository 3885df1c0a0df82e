"""Taking sealed bids, many in one transaction: each is checked on its own, all are durable together.

Functions here take a list of bids, because bids that arrive together share one flush of the disk and one set of
database queries. A single bid is a list of one.

A bid is sealed by the broker, which sees it, or by its bidder, who sends a commitment and reveals the bid after
bidding has ended. A seller that registered a key signs its bids in both cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from privmarket.broker import (
    _clearing as clearing,
    _idempotency as idempotency,
    _noise_tables as noise_tables,
    _parties as parties,
    _signatures as signatures,
    _sql as sql,
    _wallets as wallets,
)
from privmarket.broker._answers import BidAnswer
from privmarket.broker._database import ARRIVAL_LIMIT_MS, Transaction
from privmarket.broker._errors import BrokerError, ConflictError, ForbiddenError, NotFoundError
from privmarket.broker._parties import Actor, Entropy
from privmarket.broker._schema import require_state
from privmarket.broker._shapes import RoundRow, TaskRow
from privmarket.errors import PrivmarketError
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Offer, Terms

VALUATION_LIMIT = 1e9  # the most money that the ledger can hold, per unit of ε
EPSILON_LEAST = 1e-4
# One row per bid, in the bids' order: the seller's key and data set, whether it sold before, the answer to its
# idempotency key if there was one, whether it has a bid, the round.
_FACTS = (
    "SELECT p.public_key, p.dataset_sha256 IS NOT NULL, "
    f"EXISTS (SELECT 1 FROM awards a WHERE a.seller_id = p.id AND {wallets.COUNTS_AS_SPENT}), "
    "i.request_hash, i.seq, i.subject, i.details, i.answer, b.seq, "
    "r.id, r.state, r.bid_deadline_ms, t.sealing, t.attested, "
    "r.number, r.budget_micro, t.epsilon_max, t.sampling_rate, t.steps, t.delta, t.trust, t.honest_share "
    "FROM asked q "
    "LEFT JOIN parties p ON p.id = q.party_id "
    "LEFT JOIN rounds r ON r.id = q.round_id LEFT JOIN tasks t ON t.id = r.task_id "
    "LEFT JOIN log i ON i.key_hash = q.key_hash AND i.actor = p.id "
    "LEFT JOIN bids b ON b.round_id = r.id AND b.seller_id = p.id "
    "ORDER BY q.place"
)


class BidRequest(NamedTuple):
    """Somebody's bid.

    Attributes:
        offer: the bid itself; None if the bidder seals it and sends a `commitment` instead.
        nonce: makes the commitment hiding; chosen by the bidder if it signs, else by the broker.
        signature: by the key that the seller registered, over the commitment.
        arrived_ms: when the request arrived; a bid is not late because it waited for other writes.
    """

    round_id: str
    offer: Offer | None
    key: str
    actor: Actor
    nonce: str | None = None
    commitment: str | None = None
    signature: str | None = None
    arrived_ms: int | None = None


class _OpenRound(NamedTuple):
    """A round and what its task says about offers."""

    id: str
    state: str
    bid_deadline_ms: int
    sealing: str
    attested: bool
    terms: Terms


class _Facts(NamedTuple):
    """The facts about one bid in the database."""

    public_key: str | None
    attests: bool
    has_sold: bool
    answered: tuple[str, idempotency.Answer] | None
    has_bid: bool
    round: _OpenRound | None


@dataclass
class _Learned:
    """What a transaction knows beside each bid's facts: empty wallets, and its own earlier answers and bids."""

    exhausted: set[tuple[str, str]]
    answered: dict[idempotency.Place, tuple[str, idempotency.Answer]] = field(default_factory=dict)
    has_bid: set[tuple[str, str]] = field(default_factory=set)


def take_bids(
    tx: Transaction, requests: Sequence[BidRequest], entropy: Entropy
) -> list[BidAnswer | PrivmarketError]:
    """One answer or refusal per request, in their order; a refused bid changes nothing."""
    asked = list(zip(requests, _look_up(tx, requests), strict=True))
    learned = _Learned(_exhausted(tx, asked))
    results: list[BidAnswer | PrivmarketError] = []
    for request, facts in asked:
        try:
            results.append(_take(tx, learned, request, facts, entropy))
        except PrivmarketError as refusal:
            results.append(refusal)
    return results


def _look_up(tx: Transaction, requests: Sequence[BidRequest]) -> list[_Facts]:
    asked: list[str] = []
    for one in requests:
        asked += (one.actor.party_id, one.round_id, parties.hash_token(one.key))
    return [_facts(row) for row in sql.run(tx.connection, _facts_of(len(requests)), *asked)]


@lru_cache(maxsize=1024)
def _facts_of(requests: int) -> str:
    places = ", ".join(f"({place}, ?, ?, ?)" for place in range(requests))
    return f"WITH asked (place, party_id, round_id, key_hash) AS (VALUES {places}) {_FACTS}"


def _facts(row: tuple[Any, ...]) -> _Facts:
    public_key, attests, has_sold, request_hash, seq, subject, details, answer, standing, *rest = row
    round_id, state, deadline, sealing, attested, *columns = rest
    answered = None if seq is None else (request_hash, idempotency.answer_of(seq, subject, details, answer))
    found = None
    if round_id is not None:
        found = _OpenRound(round_id, state, deadline, sealing, bool(attested), clearing.terms(*columns))
    return _Facts(public_key, bool(attests), bool(has_sold), answered, standing is not None, found)


def _take(tx: Transaction, learned: _Learned, request: BidRequest, facts: _Facts, entropy: Entropy) -> BidAnswer:
    """Checks one bid, logs it and returns the answer; raises the reason if the bid is refused."""
    actor = request.actor
    parties.require(actor, "seller")
    parties.require_full_scope(actor)
    offer = None if request.offer is None else offer_fields(request.offer)
    asked = ("bid", request.round_id, offer, request.commitment)
    keyed = idempotency.request(actor.party_id, request.key, asked)
    if facts.answered is not None:
        learned.answered.setdefault(keyed.place, facts.answered)
    first = idempotency.first_answer(keyed, learned.answered)
    if first is not None:
        return cast(BidAnswer, first)
    round_ = _check(tx, learned, request, actor.party_id, facts)
    fields = _sealed(round_, actor.party_id, request, offer, facts.public_key, entropy)
    place = (round_.id, actor.party_id)
    fields["replaces"] = facts.has_bid or place in learned.has_bid
    learned.has_bid.add(place)
    if _arrived(tx, request) < tx.now_ms:
        fields["arrived_ms"] = _arrived(tx, request)
    seq = tx.log_as(actor.party_id, "bid.placed", round_.id, fields, (keyed.key_hash, keyed.request_hash))
    answer = idempotency.bid_answer(seq, round_.id, fields)
    learned.answered[keyed.place] = keyed.request_hash, answer
    return answer


def _check(tx: Transaction, learned: _Learned, request: BidRequest, seller: str, facts: _Facts) -> _OpenRound:
    round_ = facts.round
    if round_ is None:
        raise NotFoundError(f"no round {request.round_id}", "GET /v1/tasks lists what is offered")
    require_state(round_, "open")
    if _arrived(tx, request) >= round_.bid_deadline_ms:
        raise ConflictError(f"round {round_.id} stopped taking bids", "wait for the next round")
    if round_.attested and not facts.attests:
        raise ForbiddenError(
            "this task takes bids of sellers that attest their data set", "privmarket seller attest, then bid"
        )
    if round_.terms.trust == "aggregate" and facts.public_key is None:
        raise ForbiddenError(
            "this task's updates go into a secure sum of sellers with registered keys",
            "register a key: privmarket seller init",
        )
    if request.offer is not None:
        check_offer(request.offer, seller, round_.terms)
    if (seller, round_.id) in learned.exhausted:
        error = ConflictError("the wallet has nothing left to sell", "GET /v1/me shows what remains")
        error.code = "wallet-exhausted"
        raise error
    return round_


def _arrived(tx: Transaction, request: BidRequest) -> int:
    """When a bid arrived: the time in its request, but at most `ARRIVAL_LIMIT_MS` ago."""
    if request.arrived_ms is None:
        return tx.now_ms
    return min(max(request.arrived_ms, tx.now_ms - ARRIVAL_LIMIT_MS), tx.now_ms)


def _sealed(
    round_: _OpenRound,
    seller: str,
    request: BidRequest,
    offer: dict[str, float | None] | None,
    public_key: str | None,
    entropy: Entropy,
) -> dict[str, object]:
    """The fields of a bid's log entry: its commitment, and the bid itself where the broker seals it.

    Raises an error if the bid has another form than the task takes, or lacks a valid signature.
    """
    if round_.sealing == "bidder":
        if offer is not None or request.commitment is None:
            raise BrokerError(
                "this task takes bids that their bidder seals",
                "send a commitment and a signature; BrokerClient does",
            )
        if public_key is None:
            raise ForbiddenError("this task takes signed bids only", "register a key: privmarket seller init")
        committed = request.commitment
        fields: dict[str, object] = {"commitment": committed}
    else:
        if offer is None:
            raise BrokerError("this task takes open bids", "send valuation and epsilon")
        if public_key is not None and request.nonce is None:
            raise BrokerError("a signed bid needs its bidder's nonce", "send nonce, 32 hexadecimal digits or more")
        nonce = request.nonce or entropy(16).hex()
        committed = signatures.commitment(round_.id, seller, offer, nonce)
        fields = {**offer, "nonce": nonce, "commitment": committed}
    if public_key is not None:
        message = signatures.bid_message(round_.id, seller, committed)
        if request.signature is None or not signatures.is_signed(public_key, message, request.signature):
            error = ForbiddenError("the bid is not signed by the seller's key", "sign it; BrokerClient(key=…) does")
            error.code = "bad-signature"
            raise error
        fields["signature"] = request.signature
    return fields


def reveal(tx: Transaction, seller: str, round_: RoundRow, task: TaskRow, offer: Offer, nonce: str) -> BidAnswer:
    """Opens a commitment after bidding has ended. A bid that nobody reveals in time does not count."""
    require_state(round_, "revealing")
    came = tx.in_time(round_.reveal_deadline_ms or 0)
    if came is None:
        raise ConflictError(
            f"round {round_.id}: the time to reveal is over",
            "reveal before reveal_deadline_ms in the next round; this bid does not count",
        )
    query = "SELECT commitment, valuation FROM bids WHERE round_id = ? AND seller_id = ?"
    rows = sql.run(tx.connection, query, round_.id, seller)
    if not rows:
        raise NotFoundError(f"{seller} placed no bid in round {round_.id}", "place a bid before the round closes")
    if rows[0][1] is not None:
        raise ConflictError(f"{seller} has revealed its bid already", "nothing more to do")
    fields = offer_fields(offer)
    if signatures.commitment(round_.id, seller, fields, nonce) != rows[0][0]:
        raise BrokerError("this is not the bid that was committed to", "send the same numbers and nonce")
    check_offer(offer, seller, clearing.terms_of(round_, task))
    seq = tx.log("bid.revealed", round_.id, **fields, nonce=nonce, **came)
    told = {"round_id": round_.id, "entry": seq, "commitment": rows[0][0], **fields, "nonce": nonce}
    return told


def offer_fields(offer: Offer) -> dict[str, float | None]:
    """A bid's numbers as they are stored and committed to: floats, and no negative zero."""
    return {
        "valuation": float(offer.valuation) + 0.0,
        "epsilon": float(offer.epsilon) + 0.0,
        "data_size": float(offer.data_size) + 0.0,
        "accuracy": None if offer.accuracy is None else float(offer.accuracy) + 0.0,
    }


def check_offer(offer: Offer, seller: str, terms: Terms) -> None:
    """Refuses a bid that breaks the terms, or numbers that no market needs and that could overflow a rule."""
    offer.check(seller, terms)
    if offer.valuation > VALUATION_LIMIT:
        raise BrokerError(f"valuation is {offer.valuation}", f"ask at most {VALUATION_LIMIT:g} per unit of ε")
    if offer.epsilon < EPSILON_LEAST:
        raise BrokerError(f"epsilon is {offer.epsilon}", f"offer at least {EPSILON_LEAST:g}")
    if not 1e-6 <= offer.data_size <= 1e12:
        raise BrokerError(f"data_size is {offer.data_size}", "give the number of records, at most 1e12")
    if offer.accuracy is not None and not 0 <= offer.accuracy <= 1:
        raise BrokerError(f"accuracy is {offer.accuracy}", "give a share between 0 and 1")


def _exhausted(tx: Transaction, asked: Sequence[tuple[BidRequest, _Facts]]) -> set[tuple[str, str]]:
    """The pairs (seller, round) in which the seller's wallet has nothing left to sell, for all bids together.

    This check is not needed for safety: at clearing the offer is trimmed to what still fits. It is skipped if the
    schedule's noise table is not in memory, since nothing long is computed while others wait to write.
    """
    doubtful: dict[ReleaseFamily, set[tuple[str, str]]] = defaultdict(set)
    for request, facts in asked:
        if request.actor.role != "seller" or facts.round is None or not facts.has_sold:
            continue
        family = facts.round.terms.family
        if noise_tables.is_ready(family):
            doubtful[family].add((request.actor.party_id, facts.round.id))
    records = wallets.of_sellers(tx.connection, list({who for pairs in doubtful.values() for who, _ in pairs}))
    found: set[tuple[str, str]] = set()
    for family, pairs in doubtful.items():
        empty = wallets.empty({who: records[who] for who, _ in pairs}, family)
        found.update(pair for pair in pairs if pair[0] in empty)
    return found
