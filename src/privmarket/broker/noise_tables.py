"""Noise tables of release schedules, prepared before anybody needs them.

A schedule that was never used before takes up to minutes: its table is built when a task is published, in a thread
of its own, never inside a write. Bids and auctions then find it ready.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone

from privmarket.broker.http_errors import ConflictError, UnavailableError
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.wallet import Wallets

PATIENCE_SECONDS = 20.0
_WAITING_MOST = 8
_ready: set[ReleaseFamily] = set()
_under_way: dict[ReleaseFamily, Future[None]] = {}
_lock = threading.Lock()
_worker = ThreadPoolExecutor(1, "noise tables")


def is_ready(family: ReleaseFamily) -> bool:
    """Whether everything that an auction needs of this schedule is in memory."""
    return family in _ready


def prepare(family: ReleaseFamily, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Builds what an auction needs of a schedule; raises `UnavailableError` where that takes too long.

    With `patience_seconds` = 0 it only begins.
    """
    with _lock:
        if family in _ready:
            return
        if family not in _under_way:
            if len(_under_way) >= _WAITING_MOST:
                raise ConflictError("too many new release schedules at once", "use a schedule of an earlier task")
            _under_way[family] = _worker.submit(_build, family)
        future = _under_way[family]
    if patience_seconds == 0:
        return
    try:
        future.result(patience_seconds)
    except NotDone:
        error = UnavailableError(
            f"noise for sampling rate {family.sampling_rate} over {family.steps} steps is being computed",
            "this schedule is new here; send the same again in a minute",
        )
        error.code = "preparing"
        raise error from None


def _build(family: ReleaseFamily) -> None:
    try:
        family.menu()
        Wallets([1.0], family.delta).is_empty(family)  # the costs of the menu, which every wallet shares
        _ready.add(family)
    finally:
        with _lock:
            _under_way.pop(family, None)
