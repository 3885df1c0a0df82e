"""Taking sealed bids, many in one transaction: each is checked on its own, all are durable together.

Bids that arrive together share one flush of the disk and one look at everything that decides about them, so this
takes a list; a list of one is the plain case. Callers may come by token: it is looked up in this same transaction,
so a revocation that was acknowledged before, by whichever broker on this database, holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from privmarket.broker import chain, idempotency, people, sql, wallets
from privmarket.broker.database import Transaction
from privmarket.broker.entropy import Entropy
from privmarket.broker.errors import BrokerError, ConflictError, NotFoundError
from privmarket.broker.people import Actor
from privmarket.broker.rounds import require_state
from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer, Round, Terms
from privmarket.privacy.calibration import ReleaseFamily

Answer = dict[str, Any]
VALUATION_LIMIT = 1e9  # all the money that the ledger takes, per unit of ε
EPSILON_LEAST = 1e-4
# One row per bid, in their order: who asks, whether it sold before, what its key was answered, the bid that it
# replaces, the round.
_FACTS = (
    "SELECT p.id, p.role, k.scope, "
    "EXISTS (SELECT 1 FROM awards a WHERE a.seller_id = p.id AND a.charge <> 'void'), "
    "i.request_hash, i.response, b.id, "
    "r.id, r.number, r.state, r.bid_deadline_ms, r.budget_micro, t.epsilon_max, t.sampling_rate, t.steps, t.delta "
    "FROM asked q "
    "LEFT JOIN tokens k ON k.token_hash = q.token_hash AND k.revoked_ms IS NULL "
    "LEFT JOIN parties p ON p.id = COALESCE(k.party_id, q.party_id) "
    "LEFT JOIN rounds r ON r.id = q.round_id LEFT JOIN tasks t ON t.id = r.task_id "
    "LEFT JOIN idempotency i ON i.key_hash = q.key_hash AND i.actor = p.id "
    "LEFT JOIN bids b ON b.round_id = r.id AND b.current = TRUE AND b.seller_id = p.id "
    "ORDER BY q.place"
)
_COUNT = "UPDATE rounds SET bids = bids + ? WHERE id = ?"
_REPLACE = "UPDATE bids SET current = FALSE WHERE id IN (?*)"
_COLUMNS = (
    "round_id", "seller_id", "valuation", "epsilon", "data_size", "accuracy", "nonce", "commitment", "current",
    "created_ms",
)  # fmt: skip
_INSERT = f"INSERT INTO bids ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


@dataclass(frozen=True)
class BidRequest:
    """Somebody's bid. The caller is known already, or comes by the hash of its token."""

    round_id: str
    offer: Offer
    key: str
    actor: Actor | None = None
    token_hash: str = ""


class _OpenRound(NamedTuple):
    """A round and what its task says about offers."""

    id: str
    number: int
    state: str
    bid_deadline_ms: int
    budget_micro: int
    epsilon_max: float
    sampling_rate: float
    steps: int
    delta: float


class _Facts(NamedTuple):
    """What the database says about one bid."""

    actor: Actor | None
    has_sold: bool
    answered: tuple[str, str] | None
    standing: int | None
    round: _OpenRound | None


@dataclass
class _Book:
    """What one transaction knows, learns from bid to bid, and will write."""

    exhausted: set[tuple[str, str]]
    answered: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    latest: dict[tuple[str, str], int] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)
    added: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)
    answers: list[tuple[idempotency.Entry, str]] = field(default_factory=list)


def take_bids(tx: Transaction, requests: Sequence[BidRequest], entropy: Entropy) -> list[Answer | PrivmarketError]:
    """One answer or refusal per request, in their order; what is refused changes nothing."""
    asked = list(zip(requests, _look_up(tx, requests), strict=True))
    book = _Book(_exhausted(tx, asked))
    results: list[Answer | PrivmarketError] = []
    for request, facts in asked:
        try:
            results.append(_take(tx, book, request, facts, entropy))
        except PrivmarketError as refusal:
            results.append(refusal)
    _write(tx, book)
    return results


def _look_up(tx: Transaction, requests: Sequence[BidRequest]) -> list[_Facts]:
    asked: list[str] = []
    for one in requests:
        known = one.actor.party_id if one.actor else ""
        asked += (one.token_hash, known, one.round_id, people.hash_token(one.key))
    rows = sql.run(tx.connection, _facts_of(len(requests)), *asked)
    return [_facts(request, row) for request, row in zip(requests, rows, strict=True)]


@lru_cache(maxsize=1024)
def _facts_of(requests: int) -> str:
    places = ", ".join(f"({place}, ?, ?, ?, ?)" for place in range(requests))
    return f"WITH asked (place, token_hash, party_id, round_id, key_hash) AS (VALUES {places}) {_FACTS}"


def _facts(request: BidRequest, row: tuple[Any, ...]) -> _Facts:
    party_id, role, scope, has_sold, request_hash, response, standing, *round_ = row
    actor = request.actor or (None if party_id is None else Actor(party_id, role, scope))
    answered = None if response is None else (request_hash, response)
    return _Facts(actor, bool(has_sold), answered, standing, None if round_[0] is None else _OpenRound(*round_))


def _take(tx: Transaction, book: _Book, request: BidRequest, facts: _Facts, entropy: Entropy) -> Answer:
    """The answer to one bid; every reason to refuse it is here or below."""
    offer, actor = request.offer, facts.actor
    if actor is None:
        raise people.unknown_token()
    people.require(actor, "seller")
    people.require_full_scope(actor)
    asked = ("bid", request.round_id, offer.valuation, offer.epsilon, offer.data_size, offer.accuracy)
    entry = idempotency.entry(actor.party_id, request.key, asked)
    if facts.answered is not None:
        book.answered.setdefault(entry.place, facts.answered)
    first = idempotency.first_answer(entry, book.answered)
    if first is not None:
        return first
    _check(tx, book, request, actor.party_id, facts)
    answer = _seal(tx, book, actor.party_id, request, facts.standing, entropy(16).hex())
    kept = chain.canonical(answer)
    book.answers.append((entry, kept))
    book.answered[entry.place] = entry.request_hash, kept
    return answer


def _check(tx: Transaction, book: _Book, request: BidRequest, seller: str, facts: _Facts) -> None:
    round_, offer = facts.round, request.offer
    if round_ is None:
        raise NotFoundError(f"no round {request.round_id}", "GET /v1/tasks lists what is offered")
    require_state(round_, "open")
    if tx.now_ms >= round_.bid_deadline_ms:
        raise ConflictError(f"round {round_.id} stopped taking bids", "wait for the next round")
    _machine(*round_[4:], number=round_.number).bid({seller: offer})
    _refuse_extremes(offer)
    if (seller, round_.id) in book.exhausted:
        error = ConflictError("the wallet has nothing left to sell", "GET /v1/me shows what remains")
        error.code = "wallet-exhausted"
        raise error


@lru_cache(maxsize=256)
def _machine(
    budget_micro: int, epsilon_max: float, sampling_rate: float, steps: int, delta: float, *, number: int
) -> Round:
    """The pure machine of an open round; rounds do not change, so neither does it."""
    return Round.publish(Terms(number, budget_micro, ReleaseFamily(sampling_rate, steps, delta), epsilon_max))


def _seal(
    tx: Transaction, book: _Book, seller: str, request: BidRequest, standing: int | None, nonce: str
) -> Answer:
    round_id, offer = request.round_id, request.offer
    # As floats, which is how they are stored: the commitment must open to the same digits.
    fields = {
        "valuation": float(offer.valuation),
        "epsilon": float(offer.epsilon),
        "data_size": float(offer.data_size),
        "accuracy": None if offer.accuracy is None else float(offer.accuracy),
    }
    sealed = commitment(round_id, seller, fields, nonce)
    place = (round_id, seller)
    before = book.latest.get(place)
    if before is not None:  # the same seller twice in one transaction
        book.rows[before]["current"] = False
    elif standing is not None:
        book.replaced.append(standing)
    else:
        book.added[round_id] += 1
    book.latest[place] = len(book.rows)
    row = {"round_id": round_id, "seller_id": seller, "nonce": nonce, "commitment": sealed, "current": True}
    book.rows.append({**row, **fields, "created_ms": tx.now_ms})
    tx.log_as(seller, "bid.placed", round_id, seller=seller, commitment=sealed)
    replaced = before is not None or standing is not None
    return {"round_id": round_id, "commitment": sealed, "nonce": nonce, "replaced": replaced, **fields}


def _write(tx: Transaction, book: _Book) -> None:
    if book.replaced:
        sql.run(tx.connection, _REPLACE, book.replaced)
    for round_id, count in book.added.items():
        sql.run(tx.connection, _COUNT, count, round_id)
    sql.run_many(tx.connection, _INSERT, [tuple(row[name] for name in _COLUMNS) for row in book.rows])
    idempotency.remember(tx, book.answers)


def commitment(round_id: str, seller_id: str, offer: Mapping[str, Any], nonce: str) -> str:
    """What the log holds of a sealed bid: it fixes the bid and says nothing about it."""
    return chain.digest([round_id, seller_id, offer, nonce])


def _refuse_extremes(offer: Offer) -> None:
    """Numbers that no market needs and that could overflow a rule: one bid must not abort a round for all."""
    if offer.valuation > VALUATION_LIMIT:
        raise BrokerError(f"valuation is {offer.valuation}", f"ask at most {VALUATION_LIMIT:g} per unit of ε")
    if offer.epsilon < EPSILON_LEAST:
        raise BrokerError(f"epsilon is {offer.epsilon}", f"offer at least {EPSILON_LEAST:g}")
    if not 1e-6 <= offer.data_size <= 1e12:
        raise BrokerError(f"data_size is {offer.data_size}", "give the number of records, at most 1e12")
    if offer.accuracy is not None and not 0 <= offer.accuracy <= 1:
        raise BrokerError(f"accuracy is {offer.accuracy}", "give a share between 0 and 1")


def _exhausted(tx: Transaction, asked: Sequence[tuple[BidRequest, _Facts]]) -> set[tuple[str, str]]:
    """(seller, round) where the wallet can sell nothing any more; all of a transaction's in one look.

    A courtesy: the binding check is at clearing, where the offer is trimmed to what still fits.
    """
    doubtful: dict[ReleaseFamily, set[tuple[str, str]]] = defaultdict(set)
    for _, (actor, has_sold, _, _, round_) in asked:
        if actor and actor.role == "seller" and round_ and has_sold:
            family = ReleaseFamily(round_.sampling_rate, round_.steps, round_.delta)
            doubtful[family].add((actor.party_id, round_.id))
    records = wallets.of_sellers(tx.connection, list({who for pairs in doubtful.values() for who, _ in pairs}))
    found: set[tuple[str, str]] = set()
    for family, pairs in doubtful.items():
        empty = wallets.empty({who: records[who] for who, _ in pairs}, family)
        found.update(pair for pair in pairs if pair[0] in empty)
    return found
