"""The fuzz of the API's description in its short form, and a service that it must catch."""

from __future__ import annotations

from pathlib import Path

import pytest
from schemathesis import GenerationMode

from privmarket.broker import bidding
from tests.integration.broker_fuzz import ROLES, Fuzz


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Fuzz:
    return Fuzz(f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/market.db")


@pytest.mark.parametrize("role", ROLES)
def test_no_failure_and_one_error_shape(fuzz: Fuzz, role: str) -> None:
    for operation in fuzz.operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            fuzz.try_operation(operation, role, 2, mode)
    assert fuzz.seen.total() > 100


def test_it_catches_a_service_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = Fuzz(f"sqlite:///{tmp_path}/market.db")
    monkeypatch.setattr(bidding, "_checked_round", lambda *_: 1 // 0)
    (bids,) = [o for o in fuzz.operations() if o.path.endswith("/bids") and o.method.upper() == "POST"]
    with pytest.raises(AssertionError, match="500"):
        fuzz.try_operation(bids, "seller", 60, GenerationMode.POSITIVE)
