"""Numbers with their nouns, as a sentence needs them."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`number` and the noun in the form that goes with it.

    >>> counted(1, "auction"), counted(2, "auction"), counted(0, "entry", "entries")
    ('1 auction', '2 auctions', '0 entries')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
