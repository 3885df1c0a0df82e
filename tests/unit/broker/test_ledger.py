"""Totals of the ledger; bookings with references, undone, approved by a second operator; payouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privmarket.broker import _ledger as ledger, _views as views
from privmarket.broker._broker import Broker
from privmarket.broker._errors import (
    BrokerError,
    ConflictError,
    ForbiddenError,
    InsufficientFundsError,
    NotFoundError,
)
from privmarket.broker._parties import Actor
from privmarket.broker._verify import verify
from privmarket_fixtures.market import TASK, Market, key


def test_an_empty_ledger_holds_nothing(tmp_path: Path) -> None:
    broker = Broker(f"sqlite:///{tmp_path / 'empty.db'}")
    with broker.database.read() as connection:
        assert ledger.totals(connection) == {"deposited_micro": 0, "escrow_micro": 0, "balances_micro": 0}
    broker.database.close()


def test_money_moves_between_the_totals_and_none_is_made(market: Market) -> None:
    def totals() -> tuple[int, int, int]:
        with market.broker.database.read() as connection:
            found = ledger.totals(connection)
        assert found["deposited_micro"] == found["escrow_micro"] + found["balances_micro"]
        return found["deposited_micro"], found["escrow_micro"], found["balances_micro"]

    deposited, escrow, balances = totals()
    assert deposited > 0
    assert escrow == 0
    task = market.broker.publish_task(market.buyer, TASK, key())
    market.broker.open_round(market.buyer, task["id"], key())
    after = totals()
    assert after[0] == deposited
    assert after[1] > 0
    assert after[2] == balances - after[1]


def balance(market: Market, party_id: str) -> int:
    with market.broker.database.read() as connection:
        return ledger.balance(connection, ledger.party(party_id))


def lines(market: Market) -> list[Any]:
    with market.broker.database.read() as connection:
        return list(views.booking_list(connection, market.operator, None, 50)["items"])


def second_operator(market: Market) -> Actor:
    made = market.broker.register({"role": "operator", "name": "second"}, key(), market.operator)
    return market.broker.authenticate(made["token"])


def test_every_booking_has_a_reference(market: Market) -> None:
    seller = market.sellers[0].party_id
    made = market.broker.deposit(market.operator, seller, 70, key(), " transfer 17 ")
    assert (made["balance_micro"], made["state"]) == (70, "booked")
    market.broker.deposit(market.operator, seller, 5, key())
    newest, before = lines(market)[:2]
    assert (before["entry"], before["reference"], before["party_name"]) == (
        made["entry"],
        "transfer 17",
        "clinic 0",
    )
    assert newest["reference"] == "no reference"
    for text in ("", "  ", "two\nlines", "x" * 201):
        with pytest.raises(BrokerError):
            market.broker.deposit(market.operator, seller, 5, key(), text)
    assert verify(market.broker).difference is None


def test_a_booking_is_undone_once_by_an_entry_of_its_own(market: Market) -> None:
    seller = market.sellers[0].party_id
    wrong = market.broker.deposit(market.operator, seller, 70, key(), "meant for another")["entry"]
    same = key()
    undone = market.broker.undo_booking(market.operator, wrong, "wrong party", same)
    assert undone["balance_micro"] == 0
    assert market.broker.undo_booking(market.operator, wrong, "wrong party", same) == undone  # the form sent twice
    with pytest.raises(ConflictError, match="undone already"):
        market.broker.undo_booking(market.operator, wrong, "again", key())
    with pytest.raises(ConflictError, match="undoes another"):
        market.broker.undo_booking(market.operator, undone["entry"], "back", key())
    newest, before = lines(market)[:2]
    assert (newest["undoes"], before["undone_by"]) == (wrong, undone["entry"])
    out = market.broker.withdraw(market.operator, market.buyer.party_id, 30, key(), "payout 3")["entry"]
    market.broker.undo_booking(market.operator, out, "the bank sent it back", key())
    assert balance(market, market.buyer.party_id) == 50_000_000
    assert verify(market.broker).difference is None


def test_money_that_was_spent_cannot_be_taken_back(market: Market) -> None:
    (first,) = lines(market)
    market.open(budget_micro=50_000_000)
    with pytest.raises(InsufficientFundsError):
        market.broker.undo_booking(market.operator, first["entry"], "too late", key())
    with pytest.raises(NotFoundError):
        market.broker.undo_booking(market.operator, 1, "no booking", key())
    with pytest.raises(ForbiddenError):
        market.broker.undo_booking(market.buyer, first["entry"], "no operator", key())


def test_a_large_booking_needs_a_second_operator(market: Market) -> None:
    market.broker.second_approver_above_micro = 100
    seller, second = market.sellers[0].party_id, second_operator(market)
    assert market.broker.deposit(market.operator, seller, 100, key())["state"] == "booked"
    proposed = market.broker.deposit(market.operator, seller, 101, key(), "large")
    assert (proposed["state"], proposed["balance_micro"]) == ("proposed", 100)
    with pytest.raises(ForbiddenError, match="somebody else"):
        market.broker.approve_booking(market.operator, proposed["entry"], key())
    with market.broker.database.read() as connection:
        (waiting,) = views.open_proposals(connection, second)
    assert (waiting["amount_micro"], waiting["reference"], waiting["way"]) == (101, "large", "deposit")
    done = market.broker.approve_booking(second, proposed["entry"], key())
    assert (done["state"], done["balance_micro"]) == ("booked", 201)
    for again in (market.broker.approve_booking, lambda *a: market.broker.decline_booking(*a[:2], "no", a[2])):
        with pytest.raises(ConflictError, match="already"):
            again(second, proposed["entry"], key())
    other = market.broker.withdraw(market.operator, seller, 150, key(), "large, out")["entry"]
    market.broker.decline_booking(market.operator, other, "a mistake", key())  # also who proposed it
    with market.broker.database.read() as connection:
        assert views.open_proposals(connection, second) == []
    assert balance(market, seller) == 201
    undo = market.broker.undo_booking(market.operator, done["entry"], "wrong", key())
    assert undo["state"] == "proposed"  # what is large to book is large to undo
    assert market.broker.approve_booking(second, undo["entry"], key())["balance_micro"] == 100
    with pytest.raises(InsufficientFundsError):
        market.broker.withdraw(market.operator, seller, 5000, key())
    assert verify(market.broker).difference is None


def test_a_seller_asks_for_its_money_and_gets_it_once(market: Market) -> None:
    seller = market.sellers[0]
    market.broker.deposit(market.operator, seller.party_id, 70, key(), "sales elsewhere")
    asked = market.broker.request_payout(seller, 50, key())
    with pytest.raises(InsufficientFundsError):
        market.broker.request_payout(seller, 21, key())  # beside what it has asked for already
    with market.broker.database.read() as connection:
        (waiting,) = views.open_payouts(connection)
        assert views.open_payouts(connection, market.sellers[1].party_id) == []
    assert (waiting["entry"], waiting["amount_micro"], waiting["party_name"]) == (asked["entry"], 50, "clinic 0")
    market.broker.withdraw(market.operator, seller.party_id, 50, key(), "payout")
    with market.broker.database.read() as connection:
        assert views.open_payouts(connection) == []
        last = connection.exec_driver_sql("SELECT details FROM log ORDER BY seq DESC LIMIT 1").scalar_one()
    assert json.loads(last)["request"] == asked["entry"]
    assert verify(market.broker).difference is None
