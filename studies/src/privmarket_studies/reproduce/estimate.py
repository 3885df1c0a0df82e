"""Estimates how long a reproduction still takes, from the times of finished cells of the same kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from privmarket_studies.reproduce.cells import Cell


@dataclass(frozen=True)
class Remaining:
    """The work that is left, and how long it will take where that is known.

    Attributes:
        seconds: for the cells whose kind has been timed.
        untimed: cells of kinds that have not.
    """

    seconds: float
    untimed: int

    def __str__(self) -> str:
        if self.untimed and not self.seconds:
            return "time unknown"
        minutes = self.seconds / 60
        text = f"about {minutes:.0f} min left" if minutes >= 1.5 else f"about {max(self.seconds, 1):.0f} s left"
        return text + (f" + {self.untimed} cells not yet timed" if self.untimed else "")


class CellTimer:
    """Estimates how long the remaining cells will take, from those that have finished."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._cost: dict[str, float] = defaultdict(float)

    def add(self, cell: Cell, seconds: float) -> None:
        """Takes in that a cell took so many seconds."""
        self._seconds[_group(cell)] += seconds
        self._cost[_group(cell)] += cell.cost

    def remaining(self, cells: Iterable[Cell], jobs: int) -> Remaining:
        """For cells that are still to be computed by `jobs` processes."""
        seconds, untimed = 0.0, 0
        for cell in cells:
            group = _group(cell)
            if self._cost[group] > 0:
                seconds += self._seconds[group] / self._cost[group] * cell.cost
            else:
                untimed += 1
        return Remaining(seconds / jobs, untimed)


def _group(cell: Cell) -> str:
    """Cells that take alike long per unit of cost: a kind, and within it a mechanism."""
    return f"{cell.kind}/{cell.config.get('mechanism', '')}"
