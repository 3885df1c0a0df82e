"""An orderly stop: the first Ctrl-C lets the round in progress be settled and paid, the second ends at once.

A round that is cut off in the middle leaves sellers that have spent ε and were not paid, and who then refuse
this buyer. So `privmarket flower run` leaves a file when it is asked to stop, and the server looks for it after
each round.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

STOP_VARIABLE = "PRIVMARKET_STOP"  # in a server's environment: the file that asks it to stop


def is_asked() -> bool:
    """Whether the run is to stop after the round that was just settled."""
    place = os.environ.get(STOP_VARIABLE)
    return bool(place) and Path(str(place)).exists()


@contextmanager
def orderly(place: Path) -> Iterator[None]:
    """Inside the block the first Ctrl-C leaves the file `place`, and the second is an ordinary one."""
    place.unlink(missing_ok=True)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave_file(_: int, frame: FrameType | None) -> None:
        place.touch()
        signal.signal(signal.SIGINT, before)
        print("finishing the round in progress; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, leave_file)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        place.unlink(missing_ok=True)
