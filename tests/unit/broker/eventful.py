"""A market in which everything has happened once: what a check of the whole database must be tried on."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from privmarket.broker.bidding import offer_fields
from privmarket.broker.signatures import SigningKey, bid_message, commitment, dataset_message
from privmarket.rounds import Offer
from privmarket_studies.torture import market as markets
from privmarket_studies.torture.market import TASK, Market, make_market

NONCE = "0f" * 16


def key() -> str:
    return markets.key()


def sealed_bid(market: Market, seller: int, signing: SigningKey, round_id: str, offer: Offer) -> None:
    """A commitment, signed."""
    who = market.sellers[seller]
    committed = commitment(round_id, who.party_id, offer_fields(offer), NONCE)
    signature = signing.sign(bid_message(round_id, who.party_id, committed))
    market.broker.commit_bid(who, round_id, committed, signature, key())


def _sealed_updates(market: Market, keys: list[SigningKey]) -> None:
    """Two rounds whose updates travel sealed; the first is settled."""
    for done in (True, False):
        round_id = market.open(delivery="sealed", budget_micro=2_000_000)
        for i, seller in enumerate(market.sellers):
            offer = Offer(0.2 + 0.1 * i, 0.5)
            committed = commitment(round_id, seller.party_id, offer_fields(offer), NONCE)
            signature = keys[i].sign(bid_message(round_id, seller.party_id, committed)) if i < len(keys) else None
            market.broker.bid(seller, round_id, offer, key(), nonce=NONCE, signature=signature)
        market.broker.close_round(market.buyer, round_id, key())
        for winner in market.winners(round_id):
            market.broker.claim_delivery(market.seller(winner), round_id, "cd" * 32, key(), update_key="5e" * 32)
        if done:
            market.broker.give_receipts(market.buyer, round_id, dict.fromkeys(market.winners(round_id)), key())
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


def eventful_market(url: str, signing: SigningKey | None = None) -> Market:
    """A market in which everything has happened once, and the same in every run."""
    with _without_chance() as chance:
        return _eventful_market(url, signing or SigningKey.from_seed(b"\x07" * 32), chance)


def _eventful_market(url: str, signing: SigningKey, chance: random.Random) -> Market:
    """Bids replaced, rejected, disputed, ruled on; bids sealed by bidders, one of them never revealed; an abort;
    updates that travel sealed, one round of them settled and one not."""
    market = make_market(url, sellers=4, caps=(10.0, 6.0), key=signing, entropy=chance.randbytes)
    broker, buyer, sellers = market.broker, market.buyer, market.sellers
    made = broker.register({"role": "arbiter", "name": "court"}, key(), market.operator)
    arbiter = broker.authenticate(made["token"])
    # A round with a rejection, a dispute and a ruling; one winner never delivers.
    round_id = market.open(arbiter_id=arbiter.party_id, budget_micro=3_000_000)
    for seller, valuation in zip(sellers, (0.2, 0.3, 0.4, 0.5), strict=True):
        broker.bid(seller, round_id, Offer(valuation, 1.0, 200.0, 0.8), key())
    broker.bid(sellers[0], round_id, Offer(0.25, 1.0, 200.0, 0.8), key())
    broker.close_round(buyer, round_id, key())
    winners = market.winners(round_id)
    assert len(winners) >= 3
    for winner in winners[:-1]:
        broker.claim_delivery(market.seller(winner), round_id, "ab" * 32, key())
    broker.give_receipts(buyer, round_id, {winners[0]: "wrong shape", winners[1]: None}, key())
    broker.dispute(market.seller(winners[0]), round_id, "the shape is as asked", key())
    broker.rule(arbiter, round_id, winners[0], True, "it is", key())
    market.clock.now_ms += 130_000
    broker.tick()
    assert broker.round_state(round_id) == "settled"
    broker.withdraw(market.operator, winners[0], 10, key())
    broker.report_progress(buyer, round_id, 0.75, key())
    # A round whose bidders seal.
    keys = [SigningKey.from_seed(bytes([number]) * 32) for number in range(3)]
    for seller, signing in zip(sellers, keys, strict=False):
        broker.change_key(seller, signing.public, key())
    attested = "da" * 32
    signature = keys[0].sign(dataset_message(sellers[0].party_id, attested))
    broker.attest(sellers[0], attested, signature, key())
    task = broker.publish_task(buyer, {**TASK, "sealing": "bidder"}, key())
    round_id = str(broker.open_round(buyer, task["id"], key())["id"])
    for i, signing in enumerate(keys):
        sealed_bid(market, i, signing, round_id, Offer(0.2 + 0.1 * i, 1.0))
    broker.close_round(buyer, round_id, key())
    for i in range(2):
        broker.reveal(sellers[i], round_id, Offer(0.2 + 0.1 * i, 1.0), NONCE, key())
    market.clock.now_ms += 601_000
    broker.tick()
    assert broker.round_state(round_id) == "cleared"
    market.deliver(round_id)
    _sealed_updates(market, keys)
    aborted = market.open()
    broker.abort_round(buyer, aborted, "changed my mind", key())
    open_round = market.open(bid_seconds=3600)
    broker.bid(sellers[3], open_round, Offer(0.7, 1.0), key())
    other = broker.mint_token(buyer, "read", key(), lifetime_seconds=60)
    broker.revoke_token(buyer, other["token_id"], key())
    broker.suspend(market.operator, sellers[3].party_id, "asked to", key())
    broker.erase_name(market.operator, sellers[2].party_id, key())
    return market
