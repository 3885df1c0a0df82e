"""The grid: cells of valuation, nodes of remaining budget, steps of time.

Valuations live in cells, because a reflecting wall is then just a missing neighbour and the mass in a cell is
what a histogram counts. Remaining budgets live on nodes, because 0 must be a state of its own: nothing left.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array


@dataclass(frozen=True)
class Grid:
    """How finely the state space and the horizon are cut.

    Attributes:
        valuation_cells: number of cells in valuation.
        budget_nodes: number of nodes in remaining budget, the first at 0, the last at the largest budget.
        time_steps: number of steps over the horizon.
    """

    valuation_cells: int = 64
    budget_nodes: int = 64
    time_steps: int = 50

    def __post_init__(self) -> None:
        smallest = {"valuation_cells": 4, "budget_nodes": 4, "time_steps": 1}
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"grid: {name} is {getattr(self, name)}, at least {least} needed",
                    f"raise {name} to {least} or more; 64x64x50 is the default",
                )

    @classmethod
    def parse(cls, text: str) -> Grid:
        """A grid from "64x64x50": valuation cells, budget nodes, time steps."""
        try:
            cells, nodes, steps = (int(part) for part in text.lower().split("x"))
        except ValueError as error:
            raise ConfigurationError(
                f"grid {text!r} is not of the form 64x64x50", "give cells x nodes x steps"
            ) from error
        return cls(cells, nodes, steps)

    def __str__(self) -> str:
        return f"{self.valuation_cells}x{self.budget_nodes}x{self.time_steps}"


@dataclass(frozen=True)
class Mesh:
    """A grid laid over a problem's extent.

    Attributes:
        grid: the numbers of cells, nodes and steps.
        valuation_limit: valuations live on [0, valuation_limit].
        budget_limit: remaining budgets live on [0, budget_limit].
        horizon: length of the game in rounds.
    """

    grid: Grid
    valuation_limit: float
    budget_limit: float
    horizon: float

    @cached_property
    def valuation(self) -> Array:
        """(valuations,) the centre of each valuation cell."""
        return np.asarray((np.arange(self.grid.valuation_cells) + 0.5) * self.valuation_width, dtype=np.float64)

    @cached_property
    def budget(self) -> Array:
        """(budgets,) the budget nodes, from 0 to the limit."""
        return np.linspace(0.0, self.budget_limit, self.grid.budget_nodes)

    @cached_property
    def time(self) -> Array:
        """(steps + 1,) in rounds; prices hold on [time[n], time[n+1])."""
        return np.linspace(0.0, self.horizon, self.grid.time_steps + 1)

    @property
    def valuation_width(self) -> float:
        """The width of one valuation cell."""
        return self.valuation_limit / self.grid.valuation_cells

    @property
    def budget_width(self) -> float:
        """The distance between two budget nodes."""
        return self.budget_limit / (self.grid.budget_nodes - 1)

    @property
    def step(self) -> float:
        """The length of a time step, in rounds."""
        return self.horizon / self.grid.time_steps
