"""A fresh market per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.market import Market, make_market


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return make_market(f"sqlite:///{tmp_path}/market.db")
