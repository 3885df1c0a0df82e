"""Records as arrays: inputs, labels, and the persons that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import DataError
from privmarket.tasks._pipeline import Pipeline, TargetScale

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

Inputs = NDArray[np.generic]
Labels = NDArray[np.generic]
Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Some records, one per row.

    Attributes:
        inputs: (rows, ...) inputs of the model; float32, or int64 for numbers of tokens.
        labels: (rows, ...) labels for the loss; int64 class numbers, or float32 targets.
        persons: (rows,) int64, the person of each row; a number belongs to one person at one client. None if every
            row is protected separately.
        are_here: False if only their number, shapes and types are known, see `declared`.
    """

    inputs: Inputs
    labels: Labels
    persons: Positions | None = None
    are_here: bool = True

    def __post_init__(self) -> None:
        rows = len(self.inputs)
        if len(self.labels) != rows:
            raise DataError(f"{rows} inputs and {len(self.labels)} labels", "give one label per record")
        if self.persons is not None and self.persons.shape != (rows,):
            raise DataError(f"{rows} records and {len(self.persons)} persons", "name one person per record")

    @classmethod
    def declared(cls, count: int, like: Records) -> Records:
        """So many records that somebody else holds, of the shapes and types of other ones.

        Their values are zeros that take no memory, and nothing trains on them: `tensors` is refused.
        """
        inputs = np.broadcast_to(np.zeros((), like.inputs.dtype), (count, *like.inputs.shape[1:]))
        labels = np.broadcast_to(np.zeros((), like.labels.dtype), (count, *like.labels.shape[1:]))
        return cls(inputs, labels, are_here=False)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"Records({len(self):,} × {self.inputs.shape[1:]})"

    def __getitem__(self, rows: slice | NDArray[np.generic]) -> Records:
        persons = None if self.persons is None else self.persons[rows]
        return Records(self.inputs[rows], self.labels[rows], persons, self.are_here)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels as torch tensors that share the arrays' memory.

        Raises:
            DataError: only their number is known.
        """
        if not self.are_here:
            raise DataError(
                f"{len(self):,} records are declared, and none of them is here", "train on other records"
            )
        return torch.from_numpy(self.inputs), torch.from_numpy(self.labels)


@dataclass(frozen=True, eq=False)
class TaskRecords:
    """The records of a task; `Task` describes each attribute."""

    clients: tuple[str, ...]
    sizes: Positions
    private: Records
    public: Records | None
    test: Records | None
    goal: str
    classes: tuple[str, ...]
    target: TargetScale
    unit: str
    pipeline: Pipeline | None = None
    warnings: tuple[str, ...] = ()


def declared_size(units: int) -> int:
    """The number of records (or persons) that a client declares: rounded up to two significant digits.

    The number is public, so it need not be exact: 147 is declared as 150 and 1,203 as 1,300.
    """
    if units < 100:
        return units
    step: int = 10 ** (len(str(units)) - 2)
    return -(-units // step) * step
