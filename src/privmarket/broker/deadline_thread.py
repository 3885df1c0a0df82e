"""A thread that does what deadlines demand."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from privmarket.broker.broker import Broker

_log = logging.getLogger(__name__)


class Scheduler:
    """Calls `broker.tick()` every so often while it is entered. `seconds` = 0 does nothing."""

    def __init__(self, broker: Broker, seconds: float) -> None:
        self._broker, self._seconds = broker, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def __enter__(self) -> Scheduler:
        if self._seconds > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._seconds > 0:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._broker.tick()
            # A database that is away for a moment, or one bad round, must not end the thread: it tries again.
            except Exception as error:
                _log.warning("deadlines: %s", type(error).__name__)
