"""How large a reproduction is: the full matrix, or every table and figure in small."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes that the questions choose their cells by.

    Attributes:
        quick: everything in small: fewer markets, seeds, rounds and sizes.
        seeds: seeds per setting, instead of each question's own number.
    """

    quick: bool = False
    seeds: int | None = None

    def pick(self, full: int, quick: int) -> int:
        """`quick` in the quick form, else `full`."""
        return quick if self.quick else full

    def seeds_or(self, full: int, quick: int) -> range:
        """The seeds: as asked for, or the question's own number."""
        return range(self.seeds if self.seeds is not None else self.pick(full, quick))
