"""What a seller refuses in a secure sum, and why a sum is not opened."""

from __future__ import annotations

from typing import Literal

from privmarket.errors import PrivmarketError

Cause = Literal["message", "terms", "members", "keys", "shares", "survivors", "input", "repeated", "disk"]
"""What a refusal is about, in this order: a message that cannot be read or comes at the wrong time; the public
numbers of the sum; its members; keys and signatures; sealed shares; the list of survivors; the seller's own vector;
a step that was taken before; the file in which the seller keeps its state."""


class SumRefusal(PrivmarketError):
    """A seller refuses a step of a secure sum. No message for this step left its machine.

    Attributes:
        cause: what the refusal is about.
    """

    code = "sum-refused"

    def __init__(self, cause: Cause, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.cause: Cause = cause


class SumClosed(PrivmarketError):
    """A sum cannot be opened any more: too few sellers are left, or secrets could not be restored."""

    code = "sum-closed"
