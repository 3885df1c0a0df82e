"""The broker's rules: known payments, refusals, deadlines, wallets, the guard."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sqlalchemy import func, select

from privmarket.broker import (
    _bidding as bidding,
    _clearing as clearing,
    _ledger as ledger,
    _log_views as log_views,
    _wallets as wallets,
)
from privmarket.broker._bidding import BidRequest
from privmarket.broker._broker import Broker
from privmarket.broker._errors import (
    BrokerError,
    ConflictError,
    ForbiddenError,
    IdempotencyError,
    InsufficientFundsError,
    NotFoundError,
    UnauthenticatedError,
)
from privmarket.broker._parties import hash_token
from privmarket.broker._schema import awards, bids, log, metadata, parties, round_and_task
from privmarket.broker._verify import verify
from privmarket.errors import PrivmarketError
from privmarket.market._outcome import Outcome
from privmarket.privacy._accountant import composed_epsilon
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Offer, Terms
from privmarket_fixtures.market import BROKER_KEY, TASK, Market, key, make_market
from tests.laws.broken import RoundsDownTooMuch, RoundsUp, TakesMoreThanOffered


def balance(market: Market, party_id: str) -> int:
    with market.broker.database.read() as connection:
        return ledger.balance(connection, ledger.party(party_id))


def test_a_round_pays_what_the_closed_form_says(market: Market) -> None:
    # Proportional share on v = (.2, .9, .4), ε = (1, 2, .5), B = 1: two sell 1.5 in all at 1/1.5 a unit.
    round_id = market.open()
    market.bid_all(round_id)
    assert market.finish(round_id) == {
        "round_id": round_id,
        "state": "settled",
        "paid_micro": 666_666 + 333_333,
        "refunded_micro": 1,
    }
    assert [balance(market, s.party_id) for s in market.sellers] == [666_666, 0, 333_333]
    assert balance(market, market.buyer.party_id) == 50_000_000 - 999_999
    assert market.broker.settle_round(market.buyer, round_id, key())["paid_micro"] == 999_999  # as it was settled
    assert balance(market, market.buyer.party_id) == 50_000_000 - 999_999
    assert verify(market.broker).difference is None


def test_escrow_comes_first(market: Market) -> None:
    with pytest.raises(InsufficientFundsError):
        market.open(budget_micro=50_000_001)
    round_id = market.open(budget_micro=50_000_000)
    assert balance(market, market.buyer.party_id) == 0
    with market.broker.database.read() as connection:
        assert ledger.balance(connection, ledger.escrow(round_id)) == 50_000_000
    market.broker.abort_round(market.buyer, round_id, "changed my mind", key())
    assert balance(market, market.buyer.party_id) == 50_000_000


def test_bids_in_one_transaction_are_as_one_after_the_other(market: Market) -> None:
    round_id, same = market.open(), key()
    first, second = market.sellers[:2]
    reader = market.broker.authenticate(market.broker.mint_token(first, "read", key())["token"])
    results = market.broker.take_bids(
        [
            BidRequest(round_id, Offer(0.2, 1.0), same, first),
            BidRequest(round_id, Offer(0.2, 1.0), same, first),  # a repeat
            BidRequest(round_id, Offer(0.3, 1.0), same, first),  # the key again, for something else
            BidRequest(round_id, Offer(float("nan"), 1.0), key(), second),
            BidRequest(round_id, Offer(0.5, 1.0), key(), second),
            BidRequest(round_id, Offer(0.4, 1.0), key(), first),  # replaces the first within the transaction
            BidRequest("round-none", Offer(0.4, 1.0), key(), first),
            BidRequest(round_id, Offer(0.4, 1.0), key(), market.buyer),
            BidRequest(round_id, Offer(0.4, 1.0), key(), reader),
        ]
    )
    told = [r.code if isinstance(r, PrivmarketError) else (r["valuation"], r["replaced"]) for r in results]
    expected = [(0.2, False), (0.2, False), "idempotency-conflict", "bad-request", (0.5, False), (0.4, True)]
    assert told == [*expected, "not-found", "forbidden", "forbidden"]
    assert results[0] == results[1]
    with market.broker.database.read() as connection:
        stored = connection.execute(select(bids.c.seller_id, bids.c.valuation).order_by(bids.c.seq)).all()
        placed = connection.execute(select(log.c.actor).where(log.c.kind == "bid.placed")).scalars().all()
    assert [tuple(row) for row in stored] == [(second.party_id, 0.5), (first.party_id, 0.4)]
    assert len(placed) == 3  # what was replaced stays in the log
    assert verify(market.broker).difference is None


def test_a_revoked_token_cannot_bid_at_another_broker(market: Market, database: str) -> None:
    other, round_id = Broker(database, clock=market.clock, key=BROKER_KEY), market.open()
    made = market.broker.mint_token(market.sellers[0], "full", key())
    assert other.bid(other.authenticate(made["token"]), round_id, Offer(0.2, 1.0), key())["valuation"] == 0.2
    market.broker.revoke_token(market.sellers[0], made["token_id"], key())
    with pytest.raises(UnauthenticatedError):
        other.authenticate(made["token"])
    other.database.close()


@pytest.mark.parametrize("caps", [(0.3, 1.0, 4.0), tuple(np.linspace(0.3, 9.0, 150).tolist())])
def test_fresh_wallets_are_trimmed_as_if_each_were_looked_at(caps: tuple[float, ...]) -> None:
    rng = np.random.default_rng(3)
    for delta in (1e-5, 1e-7, 1e-3):
        family = ReleaseFamily(1.0, 1, 1e-5)
        records = {f"s{i}": wallets.WalletRecord(float(rng.choice(caps)), delta) for i in range(150)}
        offered = {name: float(rng.choice([0.1, 0.3, 1.0, rng.uniform(0.05, 5.0)])) for name in records}
        plain = wallets.restore(list(records.values())).trim(family, np.array(list(offered.values())))
        assert wallets.trim(records, family, offered) == dict(zip(records, plain.tolist(), strict=True))


def test_a_key_acts_once(market: Market) -> None:
    round_id, same = market.open(), key()
    first = market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), same)
    assert market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), same) == first
    with pytest.raises(IdempotencyError):
        market.broker.bid(market.sellers[0], round_id, Offer(0.3, 1.0), same)
    # Another seller's identical key is another key.
    market.broker.bid(market.sellers[1], round_id, Offer(0.2, 1.0), same)
    with market.broker.database.read() as connection:
        assert connection.execute(select(func.count()).select_from(bids)).scalar_one() == 2
    with pytest.raises(BrokerError):
        market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), "short")


def test_a_registration_can_be_repeated_by_whoever_made_the_token(market: Market) -> None:
    fields = {"role": "seller", "name": "x", "cap_epsilon": 3.0, "delta": 1e-5, "token_sha256": hash_token("mine")}
    same = key()
    made = [market.broker.register(fields, same) for _ in range(2)]
    assert made[0]["id"] == made[1]["id"] == market.broker.authenticate("mine").party_id
    assert "token" not in made[0]


def test_a_registration_key_takes_no_account_over(market: Market) -> None:
    fields, same = {"role": "buyer", "name": "x"}, key()
    first = market.broker.register(fields, same)
    with pytest.raises(ConflictError) as refused:  # whoever learns or guesses the key gets no token
        market.broker.register(fields, same)
    assert refused.value.code == "token-shown-once"
    other = market.broker.register({**fields, "token_sha256": hash_token("other")}, same)  # a key of its own
    assert other["id"] != first["id"]
    minted = key()
    market.broker.mint_token(market.buyer, "full", minted)
    with pytest.raises(ConflictError):
        market.broker.mint_token(market.buyer, "full", minted)


@pytest.mark.parametrize(
    "offer",
    [
        Offer(float("nan"), 1.0),
        Offer(-1.0, 1.0),
        Offer(float("inf"), 1.0),
        Offer(1e300, 1.0),
        Offer(0.1, 1e-300),
        Offer(0.1, 1.0, data_size=1e300),
        Offer(0.1, 0.0),
        Offer(0.1, float("nan")),
        Offer(0.1, 5.1),
        Offer(0.1, 1.0, data_size=0.0),
        Offer(0.1, 1.0, accuracy=1.5),
    ],
)
def test_bad_bids_are_refused(market: Market, offer: Offer) -> None:
    round_id = market.open()
    with pytest.raises(PrivmarketError):
        market.broker.bid(market.sellers[0], round_id, offer, key())


def test_huge_bids_do_no_harm(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id, (1e9, 1e9, 0.4))
    market.finish(round_id)
    assert verify(market.broker).difference is None


def test_late_bids_and_deadlines_across_a_restart(database: str) -> None:
    market = make_market(database)
    round_id = market.open()
    market.bid_all(round_id)
    market.clock.now_ms += 60_000
    with pytest.raises(ConflictError):
        market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), key())
    market.broker.database.close()
    assert [done["state"] for done in market.broker.tick()] == ["cleared"]
    winners = market.winners(round_id)
    market.broker.claim_delivery(_actor(market, winners[0]), round_id, "ab" * 32, key())
    assert market.broker.tick() == []
    market.clock.now_ms += 60_000
    assert market.broker.tick() == []  # the buyer may still look at it
    market.clock.now_ms += 60_000
    (settled,) = market.broker.tick()
    # A claim that the buyer left unanswered is paid; silence from the other seller is not.
    assert settled["state"] == "settled"
    assert settled["paid_micro"] == balance(market, winners[0]) > 0
    assert balance(market, winners[1]) == 0
    with market.broker.database.read() as connection:
        rows = connection.execute(select(awards.c.seller_id, awards.c.charge)).all()
    assert dict(tuple(row) for row in rows) == {winners[0]: "charged", winners[1]: "void"}
    assert verify(market.broker).difference is None


def _actor(market: Market, party_id: str):
    return next(s for s in market.sellers if s.party_id == party_id)


def test_a_clock_that_jumps_back_reopens_nothing(market: Market) -> None:
    round_id = market.open()
    market.clock.now_ms += 61_000
    market.broker.deposit(market.operator, market.buyer.party_id, 1, key())  # the log has seen the later time
    market.clock.now_ms -= 3_600_000
    with pytest.raises(ConflictError):
        market.broker.bid(market.sellers[0], round_id, Offer(0.2, 1.0), key())


def test_settlement_waits_for_receipts_or_the_deadline(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.broker.close_round(market.buyer, round_id, key())
    with pytest.raises(ConflictError):
        market.broker.settle_round(market.buyer, round_id, key())
    with pytest.raises(ConflictError):  # sellers have a claim now
        market.broker.abort_round(market.buyer, round_id, "too dear", key())


def test_a_rejected_update_is_charged_but_not_paid(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.broker.close_round(market.buyer, round_id, key())
    first, second = market.winners(round_id)
    market.deliver(round_id)
    market.broker.give_receipts(market.buyer, round_id, {first: "wrong shape", second: None}, key())
    with pytest.raises(ConflictError):  # the seller may dispute it
        market.broker.settle_round(market.buyer, round_id, key())
    market.clock.now_ms += 180_000
    (settled,) = market.broker.tick()
    assert settled["state"] == "settled"
    assert balance(market, first) == 0
    assert balance(market, second) > 0
    with market.broker.database.read() as connection:
        assert set(connection.execute(select(awards.c.charge)).scalars()) == {"charged"}


def test_a_buyer_cannot_burn_wallets_by_rejecting_what_was_never_sent(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.broker.close_round(market.buyer, round_id, key())
    first, second = market.winners(round_id)
    with pytest.raises(ConflictError, match="has not claimed"):
        market.broker.give_receipts(market.buyer, round_id, {first: "bad"}, key())
    market.clock.now_ms += 60_000
    (settled,) = market.broker.tick()
    assert settled["paid_micro"] == 0
    with market.broker.database.read() as connection:
        assert set(connection.execute(select(awards.c.charge)).scalars()) == {"void"}
        assert wallets.of_sellers(connection, [first, second])[first].events == ()


def test_words_after_their_deadlines_do_not_count(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.broker.close_round(market.buyer, round_id, key())
    first, second = market.winners(round_id)
    market.deliver(round_id)
    market.broker.give_receipts(market.buyer, round_id, {first: "bad"}, key())
    market.clock.now_ms += 120_000  # the review is over
    with pytest.raises(ConflictError, match="reviews is over"):
        market.broker.give_receipts(market.buyer, round_id, {second: "bad"}, key())
    market.broker.dispute(market.seller(first), round_id, "it is not", key())
    market.clock.now_ms += 60_000  # so is the time for disputes
    assert market.broker.tick() == []
    with pytest.raises(ForbiddenError):
        market.broker.rule(market.buyer, round_id, first, False, "mine", key())
    market.clock.now_ms += 60_000  # nobody ruled: silence pays
    with pytest.raises(ConflictError, match="rulings is over"):
        market.broker.rule(market.operator, round_id, first, False, "late", key())
    (settled,) = market.broker.tick()
    assert settled["paid_micro"] == balance(market, first) + balance(market, second) == 999_999
    assert verify(market.broker).differences == ()


@pytest.mark.parametrize("pays", [True, False])
def test_an_arbiter_decides_a_dispute(market: Market, pays: bool) -> None:
    made = market.broker.register({"role": "arbiter", "name": "court"}, key(), market.operator)
    court = market.broker.authenticate(made["token"])
    round_id = market.open(arbiter_id=court.party_id)
    market.bid_all(round_id)
    market.broker.close_round(market.buyer, round_id, key())
    first, second = market.winners(round_id)
    market.deliver(round_id)
    with pytest.raises(ConflictError, match="not rejected"):
        market.broker.dispute(market.seller(first), round_id, "too early", key())
    market.broker.give_receipts(market.buyer, round_id, {first: "bad", second: None}, key())
    market.broker.dispute(market.seller(first), round_id, "it is not", key())
    with pytest.raises(ForbiddenError):  # the task names its arbiter
        market.broker.rule(market.operator, round_id, first, pays, "x", key())
    answer = market.broker.rule(court, round_id, first, pays, "looked at it", key())
    assert answer["state"] == "delivered"
    market.broker.settle_round(market.buyer, round_id, key())
    assert (balance(market, first) > 0) == pays
    assert verify(market.broker).differences == ()


def test_closing_times_hold(market: Market) -> None:
    round_id = market.open(buyer_may_close=False)
    market.bid_all(round_id)
    for actor in (market.buyer, market.operator):
        with pytest.raises(ConflictError, match="until its deadline"):
            market.broker.close_round(actor, round_id, key())
    market.clock.now_ms += 60_000
    assert market.broker.close_round(market.buyer, round_id, key())["state"] == "cleared"


def test_a_bid_that_arrived_in_time_counts_though_others_were_written_first(market: Market) -> None:
    round_id = market.open()
    arrived = market.clock.now_ms + 59_999
    market.clock.now_ms += 61_000
    request = BidRequest(round_id, Offer(0.2, 1.0), key(), market.sellers[0], arrived_ms=arrived)
    (taken,) = market.broker.take_bids([request])
    assert isinstance(taken, dict)
    (late,) = market.broker.take_bids([request._replace(key=key(), arrived_ms=arrived + 1)])
    assert isinstance(late, ConflictError)
    assert market.broker.tick()[0]["state"] == "cleared"
    (closed,) = market.broker.take_bids([request._replace(key=key())])
    assert isinstance(closed, ConflictError)  # the auction is over: when it arrived no longer matters
    assert verify(market.broker).differences == ()


def test_the_next_round_opens_while_the_last_is_delivered(market: Market) -> None:
    task = market.broker.publish_task(market.buyer, TASK, key())
    round_id = str(market.broker.open_round(market.buyer, task["id"], key())["id"])
    market.bid_all(round_id)
    with pytest.raises(ConflictError):
        market.broker.open_round(market.buyer, task["id"], key())
    market.broker.close_round(market.buyer, round_id, key())
    assert market.broker.open_round(market.buyer, task["id"], key())["number"] == 1


def test_wallets_trim_offers_and_then_refuse(database: str) -> None:
    market = make_market(database, sellers=2, caps=(1.2, 10.0))
    sold = []
    for _ in range(2):
        round_id = market.open()
        market.bid_all(round_id, (0.2, 0.4))
        market.finish(round_id)
        with market.broker.database.read() as connection:
            mine = (awards.c.round_id == round_id) & (awards.c.seller_id == market.sellers[0].party_id)
            sold.append(connection.execute(select(awards.c.epsilon).where(mine)).scalar_one())
    assert sold[0] == 1.0
    assert 0 < sold[1] < 1.0  # what was left of 1.2 in the wallet's measure, not 0.2
    assert verify(market.broker).difference is None


def test_an_exhausted_wallet_cannot_bid(database: str) -> None:
    market = make_market(database, sellers=2, caps=(1.0, 10.0))
    for _ in range(12):  # each takes what the wallet has left, to the next step of the menu
        round_id = market.open()
        try:
            market.bid_all(round_id, (0.2, 0.4))
        except ConflictError as refused:
            assert refused.code == "wallet-exhausted"  # noqa: PT017
            break
        market.finish(round_id)
    else:
        raise AssertionError("a wallet of ε = 1 sold twelve times")
    with market.broker.database.read() as connection:
        record = wallets.of_sellers(connection, [market.sellers[0].party_id])[market.sellers[0].party_id]
    assert composed_epsilon(record.events, record.delta) <= 1.0


def test_two_rounds_cannot_sell_the_same_epsilon(database: str) -> None:
    market = make_market(database, sellers=2, caps=(1.0,))
    first, second = market.open(), market.open()
    for round_id in (first, second):
        market.bid_all(round_id, (0.2, 0.3))
    market.broker.close_round(market.buyer, first, key())
    market.broker.close_round(market.buyer, second, key())
    with market.broker.database.read() as connection:
        record = wallets.of_sellers(connection, [market.sellers[0].party_id])[market.sellers[0].party_id]
    assert composed_epsilon(record.events, record.delta) <= 1.0
    assert verify(market.broker).difference is None


class NotANumber(RoundsUp):
    """Sells half a unit to everybody; nobody knows for how much."""

    def clear(self, bids, budget):
        return Outcome(np.full(bids.shape, 0.5), np.full(bids.shape, np.nan))


@pytest.mark.parametrize("rule", [RoundsDownTooMuch, RoundsUp, TakesMoreThanOffered, NotANumber])
def test_a_broken_promise_aborts_refunds_and_alerts(database: str, rule: type) -> None:
    market = make_market(database, make_mechanism=lambda name, **_: rule())
    round_id = market.open()
    market.bid_all(round_id)
    answer = market.broker.close_round(market.buyer, round_id, key())
    assert answer["state"] == "aborted"
    assert balance(market, market.buyer.party_id) == 50_000_000
    with market.broker.database.read() as connection:
        alerts = connection.execute(select(log.c.subject).where(log.c.kind == "alert")).scalars().all()
        assert connection.execute(select(func.count()).select_from(awards)).scalar_one() == 0
    assert alerts == [round_id]
    assert verify(market.broker).difference is None


def test_a_mechanism_that_raises_cannot_lock_money(database: str) -> None:
    class Raises(RoundsUp):
        def clear(self, bids, budget):
            raise ZeroDivisionError

    market = make_market(database, make_mechanism=lambda name, **_: Raises())
    round_id = market.open()
    market.bid_all(round_id)
    assert market.broker.close_round(market.buyer, round_id, key())["fault"].endswith("ZeroDivisionError")
    assert balance(market, market.buyer.party_id) == 50_000_000


def test_an_empty_round_settles_at_once(market: Market) -> None:
    round_id = market.open()
    answer = market.broker.close_round(market.buyer, round_id, key())
    assert (answer["state"], answer["refunded_micro"]) == ("settled", 1_000_000)


def test_roles_and_scopes(market: Market) -> None:
    round_id = market.open()
    with pytest.raises(ForbiddenError):
        market.broker.bid(market.buyer, round_id, Offer(0.2, 1.0), key())
    with pytest.raises(ForbiddenError):
        market.broker.deposit(market.buyer, market.buyer.party_id, 1, key())
    stranger = market.broker.authenticate(market.broker.register({"role": "buyer", "name": "b"}, key())["token"])
    with pytest.raises(NotFoundError):
        market.broker.close_round(stranger, round_id, key())
    reader = market.broker.authenticate(market.broker.mint_token(market.sellers[0], "read", key())["token"])
    with pytest.raises(ForbiddenError):
        market.broker.bid(reader, round_id, Offer(0.2, 1.0), key())
    with pytest.raises(ForbiddenError):
        market.broker.register({"role": "operator", "name": "me"}, key())


def test_tokens_are_hashed_at_rest_and_end_when_revoked(market: Market) -> None:
    made = market.broker.mint_token(market.buyer, "full", key())
    with market.broker.database.read() as connection:
        stored = [str(row) for table in metadata.sorted_tables for row in connection.execute(select(table))]
    assert len(stored) > 10
    assert not [row for row in stored if made["token"] in row]
    assert [row for row in stored if made["token_id"] in row]
    market.broker.revoke_token(market.buyer, made["token_id"], key())
    with pytest.raises(UnauthenticatedError):
        market.broker.authenticate(made["token"])


def test_the_log_does_not_show_sealed_bids(market: Market) -> None:
    round_id = market.open()
    market.broker.bid(market.sellers[0], round_id, Offer(0.123456789, 1.0), key())
    with market.broker.database.read() as connection:
        shown = log_views.log_list(connection, market.operator, None, None, None, 50)["items"]
        assert [one["details"] for one in shown if one["kind"] == "bid.placed"] == ["sealed until the auction"]
        assert not [one for one in shown if "0.1234" in one["details"]]
        entry = next(one["seq"] for one in shown if one["kind"] == "bid.placed")
        with pytest.raises(NotFoundError):
            log_views.proof(connection, market.operator, entry, None)


def test_task_fields_are_checked(market: Market) -> None:
    for change in ({"budget_micro": 0}, {"rounds": 0}, {"mechanism": "no-such"}, {"delta": 2.0}, {"title": " "}):
        with pytest.raises(PrivmarketError):
            market.broker.publish_task(market.buyer, {**TASK, **change}, key())


def test_terms_carry_what_the_task_says_about_trust(market: Market) -> None:
    round_id = market.open(trust="aggregate", honest_share=0.5, epsilon_max=3.0)
    with market.broker.database.write("system") as tx:
        terms = clearing.terms_of(*round_and_task(tx.connection, round_id))
        asked = BidRequest(round_id, Offer(0.2, 1.0), key(), market.sellers[0])
        (facts,) = bidding._look_up(tx, [asked])
    assert terms == Terms(0, 1_000_000, ReleaseFamily(), 3.0, trust="aggregate", honest_share=0.5)
    assert facts.round is not None
    assert facts.round.terms == terms


def test_no_torch_in_the_broker() -> None:
    code = "import sys, privmarket.broker._broker, privmarket.broker._verify; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sellers_bring_a_wallet(market: Market) -> None:
    for wallet in ({}, {"cap_epsilon": -1.0, "delta": 1e-5}, {"cap_epsilon": float("inf"), "delta": 1e-5}):
        with pytest.raises(PrivmarketError):
            market.broker.register({"role": "seller", "name": "x", **wallet}, key())
    with market.broker.database.read() as connection:
        assert connection.execute(select(func.count()).select_from(parties)).scalar_one() == 5
