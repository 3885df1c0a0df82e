"""Where random names and secrets come from: the operating system, or a seed in a simulation."""

from __future__ import annotations

from collections.abc import Callable

Entropy = Callable[[int], bytes]


def identifier(entropy: Entropy, kind: str) -> str:
    """A name that cannot be guessed and says what it names."""
    return f"{kind}-{entropy(8).hex()}"
