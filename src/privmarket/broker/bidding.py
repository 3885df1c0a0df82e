"""Taking sealed bids, many in one transaction: each is checked on its own, all are durable together.

A bid alone costs about ten statements and one flush of the disk. Bids that arrive together share both, so this
takes a list; a list of one is the plain case. Callers may come by token: it is looked up in this same transaction,
so a revocation that was acknowledged before, by whichever broker on this database, holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from privmarket.broker import chain, idempotency, people, sql, wallets
from privmarket.broker.database import Transaction
from privmarket.broker.entropy import Entropy
from privmarket.broker.errors import BrokerError, ConflictError, NotFoundError
from privmarket.broker.people import Actor
from privmarket.broker.rounds import require_state, terms_of
from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer, Round
from privmarket.privacy.calibration import ReleaseFamily

Answer = dict[str, Any]
VALUATION_LIMIT = 1e9  # all the money that the ledger takes, per unit of ε
EPSILON_LEAST = 1e-4
_ROUNDS = (
    "SELECT r.id, r.number, r.state, r.bid_deadline_ms, r.budget_micro, t.epsilon_max, t.sampling_rate, t.steps, "
    "t.delta FROM rounds r JOIN tasks t ON t.id = r.task_id WHERE r.id IN (?*)"
)
_STANDING = "SELECT round_id, seller_id FROM bids WHERE round_id IN (?*) AND current = TRUE AND seller_id IN (?*)"
_REPLACE = "UPDATE bids SET current = FALSE WHERE round_id = ? AND current = TRUE AND seller_id IN (?*)"
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


@dataclass(frozen=True)
class _Admitted:
    """A request whose caller may bid, with its place among the answers."""

    request: BidRequest
    seller: str
    entry: idempotency.Entry


@dataclass
class _Book:
    """What one transaction needs to know, read once for all its bids, and what it will write."""

    rounds: Mapping[str, _OpenRound]
    machines: Mapping[str, Round]
    wallets: Mapping[str, wallets.WalletRecord]
    answered: dict[tuple[str, str], tuple[str, str]]
    standing: set[tuple[str, str]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    latest: dict[tuple[str, str], int] = field(default_factory=dict)
    answers: list[tuple[idempotency.Entry, str]] = field(default_factory=list)


def take_bids(tx: Transaction, requests: Sequence[BidRequest], entropy: Entropy) -> list[Answer | PrivmarketError]:
    """One answer or refusal per request, in their order; what is refused changes nothing."""
    hashes = list(dict.fromkeys(request.token_hash for request in requests if request.actor is None))
    actors = people.actors_of(tx.connection, hashes) if hashes else {}
    admitted = [_admit(request, request.actor or actors.get(request.token_hash)) for request in requests]
    book = _open_book(tx, [one for one in admitted if isinstance(one, _Admitted)])
    results = [_answer(tx, book, one, entropy) if isinstance(one, _Admitted) else one for one in admitted]
    _write(tx, book)
    return results


def _admit(request: BidRequest, actor: Actor | None) -> _Admitted | PrivmarketError:
    offer = request.offer
    asked = ("bid", request.round_id, offer.valuation, offer.epsilon, offer.data_size, offer.accuracy)
    try:
        if actor is None:
            raise people.unknown_token()
        people.require(actor, "seller")
        people.require_full_scope(actor)
        return _Admitted(request, actor.party_id, idempotency.entry(actor.party_id, request.key, asked))
    except PrivmarketError as refusal:
        return refusal


def _open_book(tx: Transaction, admitted: Sequence[_Admitted]) -> _Book:
    if not admitted:
        return _Book({}, {}, {}, {}, set())
    answered = idempotency.find(tx, [one.entry for one in admitted])
    found = _rounds(tx, {one.request.round_id for one in admitted})
    machines = {name: Round.publish(terms_of(row, row.number, row.budget_micro)) for name, row in found.items()}
    sellers = sorted({one.seller for one in admitted})
    records = wallets.of_sellers(tx.connection, sellers)
    return _Book(found, machines, records, answered, _standing(tx, sorted(found), sellers))


def _rounds(tx: Transaction, round_ids: set[str]) -> dict[str, _OpenRound]:
    """Each round beside the terms of its task."""
    rows = sql.run(tx.connection, _ROUNDS, sorted(round_ids))
    return {row[0]: _OpenRound(*row) for row in rows}


def _standing(tx: Transaction, round_ids: list[str], sellers: list[str]) -> set[tuple[str, str]]:
    """(round, seller) of the bids that a new one would replace."""
    if not round_ids:
        return set()
    return {(row[0], row[1]) for row in sql.run(tx.connection, _STANDING, round_ids, sellers)}


def _answer(tx: Transaction, book: _Book, one: _Admitted, entropy: Entropy) -> Answer | PrivmarketError:
    try:
        first = idempotency.first_answer(one.entry, book.answered)
        if first is not None:
            return first
        round_id = _checked_round(tx, book, one)
    except PrivmarketError as refusal:
        return refusal
    answer = _seal(tx, book, round_id, one.seller, one.request.offer, entropy(16).hex())
    kept = chain.canonical(answer)
    book.answers.append((one.entry, kept))
    book.answered[one.entry.place] = one.entry.request_hash, kept
    return answer


def _checked_round(tx: Transaction, book: _Book, one: _Admitted) -> str:
    """The round that takes this bid; every reason to refuse it is here."""
    round_, offer = book.rounds.get(one.request.round_id), one.request.offer
    if round_ is None:
        raise NotFoundError(f"no round {one.request.round_id}", "GET /v1/tasks lists what is offered")
    require_state(round_, "open")
    if tx.now_ms >= round_.bid_deadline_ms:
        raise ConflictError(f"round {round_.id} stopped taking bids", "wait for the next round")
    book.machines[round_.id].bid({one.seller: offer})
    _refuse_extremes(offer)
    _refuse_empty_wallet(book.wallets[one.seller], round_, offer.epsilon)
    return str(round_.id)


def _seal(tx: Transaction, book: _Book, round_id: str, seller: str, offer: Offer, nonce: str) -> Answer:
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
    book.latest[place] = len(book.rows)
    row = {"round_id": round_id, "seller_id": seller, "nonce": nonce, "commitment": sealed, "current": True}
    book.rows.append({**row, **fields, "created_ms": tx.now_ms})
    tx.log_as(seller, "bid.placed", round_id, seller=seller, commitment=sealed)
    replaced = before is not None or place in book.standing
    return {"round_id": round_id, "commitment": sealed, "nonce": nonce, "replaced": replaced, **fields}


def _write(tx: Transaction, book: _Book) -> None:
    replaced: dict[str, list[str]] = {}
    for round_id, seller in book.latest:
        if (round_id, seller) in book.standing:
            replaced.setdefault(round_id, []).append(seller)
    for round_id, sellers in replaced.items():
        sql.run(tx.connection, _REPLACE, round_id, sellers)
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


def _refuse_empty_wallet(record: wallets.WalletRecord, terms: _OpenRound, epsilon: float) -> None:
    """A courtesy: the binding check is at clearing, where the offer is trimmed to what still fits."""
    if not record.events and epsilon <= record.cap_epsilon:
        return
    family = ReleaseFamily(terms.sampling_rate, terms.steps, terms.delta)
    if wallets.restore([record]).trim(family, epsilon)[0] == 0:
        error = ConflictError("the wallet has nothing left to sell", "GET /v1/me shows what remains")
        error.code = "wallet-exhausted"
        raise error
