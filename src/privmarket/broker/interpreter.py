"""How one Python process shares itself between an auction and everybody who reads meanwhile.

Threads take turns at Python's global lock. While a round of 100,000 bids cleared, each turn of a reader waited 5 ms
for the auction, at every statement and every row of a page, and now and then 60 ms for the garbage collector.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TURN_SECONDS = 0.0002


def take_short_turns() -> None:
    """Lets threads that wait have the interpreter sooner; for a process that serves."""
    sys.setswitchinterval(TURN_SECONDS)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector out: an auction makes many objects and no cycles, so it would look in vain."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
