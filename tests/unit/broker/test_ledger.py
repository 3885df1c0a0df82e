"""Totals of the ledger, which the operator's page and the metrics show."""

from __future__ import annotations

from pathlib import Path

from privmarket.broker import _ledger as ledger
from privmarket.broker._broker import Broker
from privmarket_studies.torture.market import TASK, Market, key


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
