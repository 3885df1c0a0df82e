"""The rule about who is paid and its conditions in SQL say the same of every award that there can be."""

import sqlite3

import pytest
from sqlalchemy import update

from privmarket.broker import _views as views
from privmarket.broker._deliveries import AWAITED, WAS_FAULTY, Deadlines, Standing, decided_at, standing
from privmarket.broker._schema import awards
from privmarket.broker._shapes import AwardRow
from privmarket_fixtures.market import Market

UNTIL = Deadlines(10, 20, 30, 40)
CASES = [  # claim, usable, dispute, ruling: each word follows those before it
    (None, None, None, None),
    ("c", None, None, None),
    ("c", True, None, None),
    ("c", False, None, None),
    ("c", False, "d", None),
    ("c", False, "d", True),
    ("c", False, "d", False),
]


def row(claim, usable, dispute, ruling):
    words = {"claim_sha256": claim, "usable": usable, "dispute": dispute, "ruling": ruling}
    return AwardRow.model_construct(**{**dict.fromkeys(AwardRow.columns()), **words})


def holds(condition, case):
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE awards (claim_sha256 TEXT, usable BOOLEAN, dispute TEXT, ruling BOOLEAN)")
    table.execute("INSERT INTO awards VALUES (?, ?, ?, ?)", case)
    return table.execute(f"SELECT COUNT(*) FROM awards WHERE {condition}").fetchone()[0] == 1


@pytest.mark.parametrize("case", CASES)
def test_sql_and_the_rule_agree(case):
    award, columns = row(*case), UNTIL.columns()
    awaited = [word for word, (condition, _) in AWAITED.items() if holds(condition, case)]
    for now_ms in range(0, 50, 5):
        waits = [word for word in awaited if columns[AWAITED[word][1]] > now_ms]
        assert (standing(award, UNTIL, now_ms) is Standing.WAITING) == bool(waits)
    assert len(awaited) <= 1
    if awaited:
        claim, usable, dispute, _ = case
        due = decided_at(claim is not None, usable is not None, dispute is not None, UNTIL)
        assert due == columns[AWAITED[awaited[0]][1]]
    assert (standing(award, UNTIL, 50) is Standing.FAULTY) == holds(WAS_FAULTY, case)


def test_the_seller_of_a_paid_award_was_not_rejected(market: Market) -> None:
    """Neither where the arbiter ruled for it, nor where nobody ruled on its dispute."""
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    seller = market.winners(round_id)[0]
    for case in CASES[1:]:
        claim, usable, dispute, ruling = case
        with market.broker.database.engine.begin() as connection:
            said = {"claim_sha256": claim, "usable": usable, "dispute": dispute, "ruling": ruling}
            connection.execute(update(awards).where(awards.c.seller_id == seller).values(said))
        with market.broker.database.read() as connection:
            rejected = views.reliability(connection, seller, "seller")["rejected"]
        assert rejected == (standing(row(*case), UNTIL, 50) is Standing.FAULTY)
