"""The fuzz of the API's description in its short form, and a service that it must catch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from privmarket.broker import _bidding as bidding
from tests.postgres import new_database

if TYPE_CHECKING:
    from privmarket_studies.torture.broker_fuzz import Fuzz

# Schemathesis takes two seconds to load, and every worker loads every test file: it is imported by the tests.
# It is schemathesis that hands cookies to each request, a thousand times.
pytestmark = pytest.mark.filterwarnings("ignore:Setting per-request cookies:DeprecationWarning")


@pytest.fixture(params=["sqlite", "postgresql"])
def fuzz(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fuzz]:
    from privmarket_studies.torture.broker_fuzz import Fuzz

    if request.param == "sqlite":
        made = Fuzz(f"sqlite:///{tmp_path}/market.db")
    else:
        made = Fuzz(new_database(request.getfixturevalue("postgres_server")))
    yield made
    made.market.broker.database.close()


def test_no_failure_and_one_error_shape(fuzz: Fuzz) -> None:
    from schemathesis import GenerationMode

    from privmarket_studies.torture.broker_fuzz import ROLES

    modes = [GenerationMode.POSITIVE]
    if fuzz.market.broker.database.is_embedded:  # malformed ones end before the database; the long form tries them
        modes.append(GenerationMode.NEGATIVE)
    for operation in fuzz.operations():
        for mode in modes:
            fuzz.try_operation(operation, ROLES, 2, mode)
    assert fuzz.seen.total() >= 50 * len(ROLES)


def test_it_catches_a_service_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from schemathesis import GenerationMode

    from privmarket_studies.torture.broker_fuzz import Fuzz

    fuzz = Fuzz(f"sqlite:///{tmp_path}/market.db")
    monkeypatch.setattr(bidding, "_check", lambda *_: 1 // 0)
    (bids,) = [o for o in fuzz.operations() if o.path.endswith("/bids") and o.method.upper() == "POST"]
    with pytest.raises(AssertionError, match="500"):
        fuzz.try_operation(bids, ["seller"], 60, GenerationMode.POSITIVE)
