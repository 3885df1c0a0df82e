"""Training the sellers of a round, in this process or in several, with the same result to the last bit.

Clients are cut into chunks in their fixed order, and a chunk is the unit of work: what it computes depends on
nothing but the chunk, so it does not matter which process takes it. Clients train in one thread (`one_thread`):
more OpenMP threads than free cores slow training down many times.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import BaseContext
from typing import Generic, Self, TypeVar

import numpy as np
import torch

Argument = TypeVar("Argument")
Built = TypeVar("Built")
Task = TypeVar("Task")

# What a worker process does with a task; set once in each process by `_start`.
_WORK: list[Callable[..., np.ndarray]] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread inside, as before outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def process_context() -> BaseContext:
    """How worker processes are started: not by a fork of this one, which may run threads (a progress bar) and hang.

    On Linux they are forked from a helper that has imported torch and runs no threads: the first worker takes as
    long as a fresh interpreter, every further one hundredths of a second. Elsewhere each is a fresh interpreter.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["privmarket.simulation._federation"])
    return context


class Workers(Generic[Task]):
    """Maps chunks of work over processes; one worker means this process.

    Args:
        build: makes what every worker needs (data, model) from `argument`, once per process.
        work: (what `build` made, task) → array.

    Attributes:
        map: tasks → their results, in the order of the tasks.
    """

    map: Callable[[Sequence[Task]], Iterable[np.ndarray]]

    def __init__(
        self,
        build: Callable[[Argument], Built],
        argument: Argument,
        work: Callable[[Built, Task], np.ndarray],
        count: int = 1,
    ) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if count == 1:
            self.map = partial(map, partial(work, build(argument)))
        else:
            self._pool = ProcessPoolExecutor(count, process_context(), _start, (build, argument, work))
            self.map = partial(self._pool.map, _run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _start(
    build: Callable[[Argument], Built], argument: Argument, work: Callable[[Built, Task], np.ndarray]
) -> None:
    torch.set_num_threads(1)
    _WORK[:] = [partial(work, build(argument))]


def _run(task: object) -> np.ndarray:
    return _WORK[0](task)
