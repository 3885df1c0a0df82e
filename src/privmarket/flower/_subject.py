"""What a run trains and measures: first weights, a score, the module or the task behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privmarket.flower._wire import Arrays

if TYPE_CHECKING:
    from torch import nn

    from privmarket.simulation._own_records import OwnRecords
    from privmarket.tasks import Task

InitialWeights = Callable[[], Mapping[str, np.ndarray]]
Evaluate = Callable[[Arrays], float]
"""The weights that are tested, array by array ↦ a figure of merit."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What a run trains and measures.

    Attributes:
        start: the first weights, array by array.
        measure: the weights ↦ a score; None where nothing is measured.
        build: makes the module, where there is one.
        task: what is learned, where the app said so.
        own_records: what the buyer's own records give for nothing.
    """

    start: InitialWeights
    measure: Evaluate | None
    build: Callable[[], nn.Module] | None = None
    task: Task | None = None
    own_records: OwnRecords | None = None
