"""Training the sellers of a round, in this process or in several, with the same result to the last bit.

Clients are cut into chunks in their fixed order, and a chunk is the unit of work: what it computes depends on
nothing but the chunk, so it does not matter which process takes it. Every process computes in one thread:
two OpenMP threads on shared cores were seen 70 times slower.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

Task = TypeVar("Task")
Worker = Callable[[Any, Task], np.ndarray]

# What a worker process was started with; set once in each process by `_start`.
_STATE: dict[str, Any] = {}


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread inside, as before outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers(AbstractContextManager["Workers"]):
    """Maps chunks of work over processes; one worker means this process.

    Args:
        build: makes what every worker needs (data, model) from `argument`, once per process.
        work: (what `build` made, task) → array.
    """

    def __init__(self, build: Callable[[Any], Any], argument: Any, work: Worker[Any], count: int = 1) -> None:
        self._work = work
        self._built = build(argument) if count == 1 else None
        self._pool = None
        if count > 1:
            # A fresh interpreter each: a fork of a process that runs threads (progress bars) may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(count, context, _start, (build, argument))

    def map(self, tasks: Sequence[Any]) -> list[np.ndarray]:
        """The results in the order of the tasks."""
        if self._pool is None:
            with one_thread():
                return [self._work(self._built, task) for task in tasks]
        return list(self._pool.map(_run, [(self._work, task) for task in tasks]))

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _start(build: Callable[[Any], Any], argument: Any) -> None:
    torch.set_num_threads(1)
    _STATE["built"] = build(argument)


def _run(job: tuple[Worker[Any], Any]) -> np.ndarray:
    work, task = job
    return work(_STATE["built"], task)
