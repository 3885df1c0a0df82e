"""How pieces of work are timed against each other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

_AT_LEAST = 3


def best_in_turn(
    jobs: Sequence[Callable[[], object]], repeats: int, limit_seconds: float = math.inf
) -> list[float]:
    """The best time of each job in seconds, taken alternately, so that a busy machine slows all alike.

    Args:
        repeats: how often each is timed.
        limit_seconds: after so long no further turn begins, once each job has had three.
    """
    best = [math.inf] * len(jobs)
    end = time.perf_counter() + limit_seconds
    for turn in range(repeats):
        if turn >= _AT_LEAST and time.perf_counter() >= end:
            break
        for place, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            best[place] = min(best[place], time.perf_counter() - start)
    return best
