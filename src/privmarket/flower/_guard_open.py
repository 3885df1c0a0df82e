"""The guarded reply that is being made in this thread: how `train_privately` finds it in an app's handler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn

    from privmarket.training import Column, Loss


class OpenReply(Protocol):
    """What `train_privately` needs of a guarded reply."""

    def train(
        self, module: nn.Module, inputs: Column, labels: Column, loss: Loss | None, persons: Column | None
    ) -> None:
        """Trains for the reply; see `GuardedReply.train`."""


_OPEN: ContextVar[OpenReply | None] = ContextVar("privmarket-guarded-reply", default=None)


def open_reply() -> OpenReply | None:
    """The guarded reply that this thread's app is called for; None without a guard."""
    return _OPEN.get()


@contextmanager
def opened(reply: OpenReply) -> Iterator[None]:
    """Inside the block `open_reply` finds this reply, in this thread."""
    token = _OPEN.set(reply)
    try:
        yield
    finally:
        _OPEN.reset(token)
