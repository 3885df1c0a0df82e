"""The attacks of the reported breaks, on today's broker: none succeeds.

docs/results/broker/breaks.json holds what the same attacks saw on the broker of then, where each succeeded. That of
break 1 takes a minute: here a test with a slowed calibration stands for it, in tests/unit/broker/test_breaks.py.
Made-up tokens need a broker of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from privmarket_studies.torture.broker_breaks import ATTACKS, BrokerAttack, ServedMarket, market_of

KEPT = Path(__file__).parents[3] / "docs/results/broker/breaks.json"
TOGETHER = [one for one in ATTACKS if one.rate > 100 and one.number > 1]


@pytest.fixture(scope="module")
def attacked() -> Iterator[ServedMarket]:
    with market_of() as market:
        yield market


@pytest.mark.parametrize("attack", TOGETHER, ids=lambda one: one.name)
def test_the_attack_fails(attacked: ServedMarket, attack: BrokerAttack) -> None:
    seen = attack.run(attacked)
    assert not seen.succeeded, seen.what


def test_each_attack_succeeded_on_the_broker_of_then() -> None:
    rows = {row["name"]: row for row in json.loads(KEPT.read_text())["attacks"]}
    assert set(rows) == {one.name for one in ATTACKS}
    assert {row["break"] for row in rows.values()} == set(range(1, 8))
    assert all(row["before"]["succeeded"] and not row["now"]["succeeded"] for row in rows.values())
