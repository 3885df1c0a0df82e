"""Money for people: micro-units as units with decimals."""

from __future__ import annotations


def rounded(micro: int) -> str:
    """Money with two decimals, never more than there is."""
    cents = abs(micro) // 10_000
    return f"{'−' if micro < 0 else ''}{cents // 100:,}.{cents % 100:02d}"


def exact(micro: int) -> str:
    """Money to the last micro-unit, with at least two decimals."""
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'−' if micro < 0 else ''}{whole:,}.{decimals}"
