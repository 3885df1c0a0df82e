"""What the buyer had before it bought anything: the best model of its own records, measured like the bought one.

The task's own module is tried, and beside it ridge, kernel ridge and, for classes, logistic regression on the same
inputs. The figure that reports state first is the best of them on the test records: a buyer might have had
that one, and a market that adds less than nothing to it should say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import DataError
from privmarket.tasks import own_records_alone

if TYPE_CHECKING:
    from torch import nn

    from privmarket.tasks import FittedBaseline, Task

# Models that give no probabilities have no log-loss.
_NEEDS_PROBABILITIES = ("log-loss",)
# What an output is set to whose class none of the buyer's records has.
_NEVER = -1e3
# More inputs than this a record, or inputs that are tokens, are left to the task's own module.
_MOST_INPUTS = 20_000


@dataclass(frozen=True)
class OwnRecords:
    """The free baseline of a task.

    Attributes:
        records: how many records the buyer holds.
        best: name of the model with the best headline score.
        scores: of that model on the test records, by name of the score.
        tried: headline score of every model that was tried, by name of the model.
    """

    records: int
    best: str
    scores: dict[str, float]
    tried: dict[str, float]


def own_records(task: Task, module: nn.Module, *, seed: int = 0) -> OwnRecords | None:
    """What the buyer's own records give; None without public or without test records.

    Args:
        module: the task's module, trained on the public records.
    """
    if task.public is None or task.test is None:
        return None
    found = {"the task's own model": task.evaluate_model(module)}
    for baseline in _plain_models(task, seed):
        outputs = _outputs(task, baseline)
        scores = task.evaluate(outputs, task.test)
        if baseline.name != "logistic regression":
            scores = {name: value for name, value in scores.items() if name not in _NEEDS_PROBABILITIES}
        found[baseline.name] = scores
    headline = task.score.name
    tried = {name: scores[headline] for name, scores in found.items() if headline in scores}
    sign = 1.0 if task.score.higher_is_better else -1.0
    best = max(tried, key=lambda name: sign * tried[name] if np.isfinite(tried[name]) else -np.inf)
    return OwnRecords(len(task.public), best, found[best], tried)


def _plain_models(task: Task, seed: int) -> list[FittedBaseline]:
    """Ridge, kernel ridge and logistic regression on the public records, where they can be fitted."""
    public = task.public
    assert public is not None
    if task.goal not in ("classification", "regression") or public.inputs.dtype.kind != "f":
        return []
    if int(np.prod(public.inputs.shape[1:])) > _MOST_INPUTS or public.labels.ndim != 1:
        return []
    try:
        if task.goal == "classification":
            return own_records_alone(public.inputs, public.labels, goal="classification", seed=seed)
        return own_records_alone(public.inputs, public.labels, goal="regression", seed=seed)
    except DataError:  # too few records: the task's own module stands alone
        return []


def _outputs(task: Task, baseline: FittedBaseline) -> NDArray[np.float64]:
    """The baseline's outputs on the test records, as the task's scores take them."""
    assert task.test is not None
    found = baseline.outputs(task.test.inputs)
    if task.goal == "regression":
        return found[:, 0]
    whole = np.full((len(found), len(task.classes)), _NEVER)
    whole[:, baseline.labels.astype(np.int64)] = found
    return whole
