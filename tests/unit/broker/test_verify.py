"""`broker verify` catches every edit we could think of; each case is a broken subject."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from privmarket.broker import ledger
from privmarket.broker.verify import verify
from tests.unit.broker.market import Market, key

EDITS = {
    "a log entry rewritten": "UPDATE audit SET details = replace(details, '50000000', '50000001')",
    "a log entry removed": "DELETE FROM audit WHERE seq = 3",
    "the last log entry removed": "DELETE FROM audit WHERE seq = (SELECT max(seq) FROM audit)",
    "a posting a micro-unit short": "UPDATE postings SET amount_micro = amount_micro - 1 WHERE id = 2",
    "money moved between sellers": "UPDATE postings SET account = (SELECT account FROM postings WHERE account LIKE "
    "'party:seller%' ORDER BY id LIMIT 1) WHERE account LIKE 'party:seller%'",
    "a bid changed after sealing": "UPDATE bids SET valuation = valuation / 2 WHERE id = 1",
    "a bid removed": "DELETE FROM bids WHERE id = 2",
    "an award changed": "UPDATE awards SET epsilon = epsilon / 2 WHERE id = 1",
    "a wallet released": "UPDATE awards SET charge = 'void' WHERE id = 1",
    "a wallet's cap raised": "UPDATE parties SET cap_epsilon = 99 WHERE role = 'seller'",
    "a wallet's measure swapped": "UPDATE parties SET measure = 'renyi 2' WHERE role = 'seller'",
    "bids miscounted": "UPDATE rounds SET bids = bids + 1",
    "a round reopened": "UPDATE rounds SET state = 'open'",
    "a task's budget changed": "UPDATE tasks SET budget_micro = 7",
    "another seed": "UPDATE rounds SET seed = 7",
    "another mechanism version": "UPDATE rounds SET mechanism_version = '0.0.9+000000000000'",
}


@pytest.fixture
def finished(market: Market) -> Market:
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    assert verify(market.broker).difference is None
    return market


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_found(finished: Market, edit: str) -> None:
    with finished.broker.database.engine.connect() as connection:
        on_sqlite = connection.dialect.name == "sqlite"
        connection.execute(
            text("PRAGMA foreign_keys=OFF" if on_sqlite else "SET session_replication_role = replica")
        )
        assert connection.execute(text(EDITS[edit])).rowcount > 0
        connection.commit()
    assert verify(finished.broker).difference is not None


def test_a_rewritten_log_is_found_by_an_older_head(finished: Market) -> None:
    noted = verify(finished.broker).head
    finished.broker.deposit(finished.operator, finished.buyer.party_id, 5, key())
    assert verify(finished.broker, noted).difference is None
    assert "noted earlier" in (verify(finished.broker, "f" * 64).difference or "")


def test_a_ledger_that_loses_a_micro_unit_is_caught(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ledger.transfer

    def leaky(tx, kind, subject, source, amounts):
        short = {a: m - 1 if kind == "settlement" and m > 10 else m for a, m in amounts.items()}
        honest(tx, kind, subject, source, short)

    monkeypatch.setattr(ledger, "transfer", leaky)
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    assert "ledger" in (verify(market.broker).difference or "")
