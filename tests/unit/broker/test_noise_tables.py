"""Noise tables in a process of their own: limits on memory and time, quotas, and an end on demand."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from privmarket.broker import _noise_tables as noise_tables
from privmarket.broker._api import create_app
from privmarket.broker._errors import ConflictError, TooManyRequestsError, UnavailableError
from privmarket.broker._noise_tables import TableBuilder
from privmarket.privacy import _calibration as tables
from privmarket.privacy._calibration import ReleaseFamily
from privmarket_fixtures.market import TASK, Market, key
from tests.unit.broker.test_api import SETTINGS

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
FAILS = [sys.executable, "-c", "raise SystemExit(1)"]
# Writes a table of two points, as a build of some seconds would.
QUICK = [
    sys.executable,
    "-c",
    "import sys; import numpy as np; from privmarket.privacy import _calibration as t; "
    "rate, steps, delta = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]); "
    "table = t.NoiseTable(np.array([1.0, 64.0]), np.array([5.0, 0.05])); "
    "t._write(table, t.cache_folder() / t._file_name(delta, rate, steps), delta, rate, steps)",
]
ONE, TWO, THREE = (ReleaseFamily(0.5, 2, delta) for delta in (1.1e-5, 1.2e-5, 1.3e-5))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVMARKET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def sleeping() -> Iterator[TableBuilder]:
    builder = TableBuilder(SLEEPS)
    yield builder
    builder.stop()


def test_one_account_has_one_table_under_way(sleeping: TableBuilder) -> None:
    sleeping.prepare(ONE, "buyer-a", patience_seconds=0)
    sleeping.prepare(ONE, "buyer-a", patience_seconds=0)  # the same one again is no second one
    with pytest.raises(TooManyRequestsError):
        sleeping.prepare(TWO, "buyer-a", patience_seconds=0)
    sleeping.prepare(TWO, "buyer-b", patience_seconds=0)  # which keeps nobody else from theirs
    with pytest.raises(UnavailableError) as waits:
        sleeping.prepare(ONE, "buyer-c", patience_seconds=0.01)
    assert waits.value.code == "preparing"


def test_a_table_is_there_once_its_process_has_ended() -> None:
    builder = TableBuilder(QUICK)
    builder.prepare(ONE, "buyer-a", patience_seconds=250)
    assert builder.is_ready(ONE)
    assert ONE.menu()[1].tolist() == [5.0, 0.05]
    builder.prepare(TWO, "buyer-a", patience_seconds=250)  # the one before is done
    tables.noise_table.cache_clear()  # these two are not real


def test_closed_forms_need_no_queue(sleeping: TableBuilder) -> None:
    sleeping.prepare(ONE, "buyer-a", patience_seconds=0)
    for family in (ReleaseFamily(1.0, 1000, 1e-5), ReleaseFamily(0.01, 1, 1e-5)):
        sleeping.prepare(family, "buyer-a")
        assert sleeping.is_ready(family)
    assert not sleeping.is_ready(ONE)


def test_tables_and_closed_forms_have_a_number_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_tables, "TABLES_A_DAY", 2)
    monkeypatch.setattr(noise_tables, "CLOSED_FORMS_A_DAY", 3)
    builder = TableBuilder(FAILS)
    for family in (ONE, TWO):
        with pytest.raises(ConflictError):
            builder.prepare(family, "buyer-a", patience_seconds=60)
    with pytest.raises(TooManyRequestsError):
        builder.prepare(THREE, "buyer-a")
    for steps in (2, 3, 4):
        builder.prepare(ReleaseFamily(1.0, steps, 1e-5), "buyer-a")
    with pytest.raises(TooManyRequestsError):
        builder.prepare(ReleaseFamily(1.0, 5, 1e-5), "buyer-a")
    builder.prepare(ReleaseFamily(1.0, 5, 1e-5), "buyer-b")


def test_the_queue_and_those_who_wait_are_limited(sleeping: TableBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """`full queue`: it answers at once, and the broker's own schedules still find a place."""
    monkeypatch.setattr(noise_tables, "_QUEUE_MOST", 1)
    sleeping.prepare(ONE, "buyer-a", patience_seconds=0)
    while sleeping._queue:  # until the first is under way
        time.sleep(0.005)
    sleeping.prepare(TWO, "buyer-b", patience_seconds=0)
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match="too many new release schedules"):
        sleeping.prepare(THREE, "buyer-c", patience_seconds=30)
    monkeypatch.setattr(noise_tables, "_WAITERS_MOST", 0)
    with pytest.raises(UnavailableError):
        sleeping.prepare(TWO, "buyer-b", patience_seconds=30)
    assert time.monotonic() - begun < 30
    sleeping.prepare(THREE, patience_seconds=0)


def test_too_much_memory_or_time_is_a_refusal_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    little = (
        "import sys; from privmarket.broker import _noise_tables as noise_tables; "
        "noise_tables.MEMORY_BYTES = 1 << 20; noise_tables.main(sys.argv[1:])"
    )
    builder = TableBuilder([sys.executable, "-c", little])
    for _ in range(2):
        with pytest.raises(ConflictError, match="memory") as refused:
            builder.prepare(ONE, "buyer-a", patience_seconds=200)
    assert refused.value.code == "schedule-too-costly"
    monkeypatch.setattr(noise_tables, "BUILD_SECONDS", 0.05)
    with pytest.raises(ConflictError, match=r"more than 0\.05 s"):
        TableBuilder(SLEEPS).prepare(ONE, "buyer-a", patience_seconds=200)


def test_stopping_ends_the_process_and_wakes_who_waits() -> None:
    builder = TableBuilder(SLEEPS)
    told: list[Exception] = []

    def wait() -> None:
        try:
            builder.prepare(ONE, "buyer-a", patience_seconds=600)
        except UnavailableError as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not (builder._jobs and builder._jobs[ONE].process):
        time.sleep(0.005)
    process = builder._jobs[ONE].process
    assert process is not None
    builder.stop()
    thread.join(60)
    assert len(told) == 1
    assert "stopping" in str(told[0])
    assert process.wait(60) != 0
    with pytest.raises(UnavailableError):
        builder.prepare(TWO, "buyer-a")


def test_a_folder_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PRIVMARKET_CACHE", str(tmp_path / "file" / "below"))
    noise_tables._require_cache()
    assert Path(tables.cache_folder()).is_dir()


def test_a_schedule_beyond_float64_is_refused(market: Market) -> None:
    http = TestClient(create_app(market.broker, SETTINGS))
    token = market.broker.mint_token(market.buyer, "full", key())["token"]
    headers = {"Authorization": f"Bearer {token}"}
    for rate in (1e-300, 1e-7, 0.0, -1.0, 1.5):
        form = {**TASK, "sampling_rate": rate, "steps": 5}
        refused = http.post("/v1/tasks", json=form, headers={**headers, "Idempotency-Key": key()})
        assert (refused.status_code, refused.json()["field"]) == (422, "body.sampling_rate")
