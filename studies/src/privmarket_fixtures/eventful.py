"""A market in which everything has happened once: what a check of the whole database must be tried on."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from privmarket.broker._bidding import offer_fields
from privmarket.broker._parties import Actor
from privmarket.broker._signatures import SigningKey, bid_message, commitment, dataset_message
from privmarket.rounds import Offer
from privmarket_fixtures import market as markets
from privmarket_fixtures.market import Market, make_market

NONCE = "0f" * 16


def key() -> str:
    """A new idempotency key, the same in every run."""
    return markets.key()


def sealed_bid(market: Market, seller: int, signing: SigningKey, round_id: str, offer: Offer) -> None:
    """A commitment, signed."""
    who = market.sellers[seller]
    committed = commitment(round_id, who.party_id, offer_fields(offer), NONCE)
    signature = signing.sign(bid_message(round_id, who.party_id, committed))
    market.broker.commit_bid(who, round_id, committed, signature, key())


def _sealed_updates(market: Market) -> None:
    """Two rounds whose updates travel sealed; the first is settled."""
    for done in (True, False):
        round_id = market.open(delivery="sealed", budget_micro=2_000_000)
        for i, seller in enumerate(market.sellers):
            market.bid(seller, round_id, Offer(0.2 + 0.1 * i, 0.5))
        market.close(round_id)
        for winner in market.winners(round_id):
            market.claim(market.seller(winner), round_id, "cd" * 32, "5e" * 32)
        if done:
            market.judge(round_id, dict.fromkeys(market.winners(round_id)))
            market.broker.settle_round(market.buyer, round_id, key())


@contextmanager
def _without_chance() -> Iterator[random.Random]:
    """Names, nonces and keys are the same in every run, and so is every byte of the file."""
    numbers, chance = itertools.count(), random.Random(0)
    with (
        patch.object(markets, "key", lambda: f"eventful-{next(numbers):06d}"),
        patch.object(secrets, "token_bytes", chance.randbytes),
        patch.object(secrets, "token_hex", lambda size: chance.randbytes(size).hex()),
    ):
        yield chance


def eventful_market(url: str, signing: SigningKey | None = None, *, everybody: bool = False) -> Market:
    """A market in which everything has happened once, and the same in every run.

    Args:
        signing: the broker's key.
        everybody: whether all parties sign everything from the beginning, or only some and later.
    """
    with _without_chance() as chance:
        return _eventful_market(url, signing or SigningKey.from_seed(b"\x07" * 32), chance, everybody)


def _eventful_market(url: str, signing: SigningKey, chance: random.Random, everybody: bool) -> Market:
    """Bids replaced, rejected, disputed, ruled on; bids sealed by bidders, one of them never revealed; an abort;
    updates that travel sealed, one round of them settled and one not; payouts; two disputes that wait."""
    settings = {"key": signing, "entropy": chance.randbytes}
    market = make_market(url, sellers=4, caps=(10.0, 6.0), signing=everybody, **settings)
    broker, buyer, sellers = market.broker, market.buyer, market.sellers
    court = SigningKey.from_seed(b"\x0c" * 32)
    fields = {"role": "arbiter", "name": "court", "public_key": court.public}
    arbiter = broker.authenticate(broker.register(fields, key(), market.operator)["token"])
    market.keys[arbiter.party_id] = court
    # A round with a rejection, a dispute and a ruling; one winner never delivers.
    round_id = market.open(arbiter_id=arbiter.party_id, budget_micro=3_000_000)
    for seller, valuation in zip(sellers, (0.2, 0.3, 0.4, 0.5), strict=True):
        market.bid(seller, round_id, Offer(valuation, 1.0, 200.0, 0.8))
    market.bid(sellers[0], round_id, Offer(0.25, 1.0, 200.0, 0.8))
    market.close(round_id)
    winners = market.winners(round_id)
    for winner in winners[:-1]:
        market.claim(market.seller(winner), round_id, "ab" * 32)
    market.judge(round_id, {winners[0]: "wrong shape", winners[1]: None})
    market.dispute(market.seller(winners[0]), round_id, "the shape is as asked")
    market.rule(arbiter, round_id, winners[0], True, "it is")
    market.clock.now_ms += 130_000
    broker.tick()
    market.request_payout(market.seller(winners[0]), 10)
    broker.withdraw(market.operator, winners[0], 10, key())
    if not everybody:
        _begin_to_sign(market)
    reported = market.sign(buyer, "round.progress", round_id, accuracy=0.75)
    broker.report_progress(buyer, round_id, 0.75, key(), signature=reported)
    attested = "da" * 32
    signature = market.keys[sellers[0].party_id].sign(dataset_message(sellers[0].party_id, attested))
    broker.attest(sellers[0], attested, signature, key())
    # A round whose bidders seal.
    round_id = market.open(sealing="bidder", arbiter_id=arbiter.party_id)
    for i, seller in enumerate(sellers[:3]):
        sealed_bid(market, i, market.keys[seller.party_id], round_id, Offer(0.2 + 0.1 * i, 1.0))
    market.close(round_id)
    for i in range(2):
        broker.reveal(sellers[i], round_id, Offer(0.2 + 0.1 * i, 1.0), NONCE, key())
    market.clock.now_ms += 601_000
    broker.tick()
    market.deliver(round_id)
    _sealed_updates(market)
    _waiting_dispute(market, arbiter)
    aborted = market.open()
    changed = market.sign(buyer, "round.aborted", aborted, reason="changed my mind")
    broker.abort_round(buyer, aborted, "changed my mind", key(), signature=changed)
    open_round = market.open(bid_seconds=3600)
    market.bid(sellers[3], open_round, Offer(0.7, 1.0))
    other = broker.mint_token(buyer, "read", key(), lifetime_seconds=60)
    broker.revoke_token(buyer, other["token_id"], key())
    broker.suspend(market.operator, sellers[3].party_id, "asked to", key())
    broker.erase_name(market.operator, sellers[2].party_id, key())
    market.request_payout(sellers[0], 1000)
    return market


def _begin_to_sign(market: Market) -> None:
    """The buyer and two sellers sign everything from here on, one seller its bids, one seller nothing."""
    everything = [market.buyer, *market.sellers[:2]]
    for number, who in enumerate([*everything, market.sellers[2]]):
        own = SigningKey.from_seed(bytes([number]) * 32)
        signs = "everything" if who in everything else "bids"
        market.broker.change_key(who, own.public, key(), signs=signs)
        market.keys[who.party_id] = own


def _waiting_dispute(market: Market, arbiter: Actor) -> None:
    """A round in which one seller claimed, one was rejected, and one disputes its rejection."""
    slow = {f"{step}_seconds": 3600 for step in ("delivery", "review", "dispute", "ruling")}
    round_id = market.open(arbiter_id=arbiter.party_id, budget_micro=3_000_000, **slow)
    for seller, valuation in zip(market.sellers, (0.2, 0.3, 0.4, 0.5), strict=True):
        market.bid(seller, round_id, Offer(valuation, 0.3))
    market.close(round_id)
    winners = market.winners(round_id)
    for winner in winners[:3]:
        market.claim(market.seller(winner), round_id, "ef" * 32)
    market.judge(round_id, {winners[0]: "no good", winners[1]: "late"})
    market.dispute(market.seller(winners[0]), round_id, "it is good")
