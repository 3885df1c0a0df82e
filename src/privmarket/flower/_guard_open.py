"""The guarded reply of this thread, which `train_privately` looks up when an app's handler calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn

    from privmarket.training import Column, Loss


class OpenReply(Protocol):
    """The part of a guarded reply that `train_privately` uses."""

    def train(
        self, module: nn.Module, inputs: Column, labels: Column, loss: Loss | None, persons: Column | None
    ) -> None:
        """Trains for the reply; see `GuardedReply.train`."""


_OPEN: ContextVar[OpenReply | None] = ContextVar("privmarket-guarded-reply", default=None)


def open_reply() -> OpenReply | None:
    """The guarded reply for which this thread's app was called; None without a guard."""
    return _OPEN.get()


@contextmanager
def opened(reply: OpenReply) -> Iterator[None]:
    """A context in which `open_reply` returns this reply, in this thread."""
    token = _OPEN.set(reply)
    try:
        yield
    finally:
        _OPEN.reset(token)
