"""What the buyer had before it bought anything: the best model of its own records, measured like the bought one.

The task's own module is tried, and beside it ridge, kernel ridge and, for classes, logistic regression on the same
inputs; tokens are counted for them. The figure that reports state first is the best of them on the test records: a
buyer might have had that one, and a market that adds less than nothing to it should say so.
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
# More inputs than this a record are left to the task's own module.
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
    inputs = _plain_inputs(task, public.inputs)
    if task.goal not in ("classification", "regression") or inputs is None or public.labels.ndim != 1:
        return []
    try:
        if task.goal == "classification":
            return own_records_alone(inputs, public.labels, goal="classification", seed=seed)
        return own_records_alone(inputs, public.labels, goal="regression", seed=seed)
    except DataError:  # too few records: the task's own module stands alone
        return []


def _plain_inputs(task: Task, inputs: NDArray[np.generic]) -> NDArray[np.generic] | None:
    """(rows, ...) numbers that the plain models take; None where there are none, or too many a record.

    Numbers of tokens become counts of how often each occurs in the record, scaled to length 1. Padding (token 0) is
    not counted.
    """
    if inputs.dtype.kind == "f":
        return inputs if int(np.prod(inputs.shape[1:])) <= _MOST_INPUTS else None
    columns = () if task.pipeline is None else task.pipeline.columns
    buckets = next((one.about.buckets for one in columns if one.about.kind == "tokens"), 0)
    if not 0 < buckets <= _MOST_INPUTS or inputs.ndim != 2:
        return None
    counts = np.zeros((len(inputs), buckets), dtype=np.float32)
    rows = np.repeat(np.arange(len(inputs)), inputs.shape[1])
    np.add.at(counts, (rows, inputs.astype(np.int64).reshape(-1)), 1.0)
    counts[:, 0] = 0.0
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    scaled: NDArray[np.generic] = counts / np.maximum(lengths, 1.0)
    return scaled


def _outputs(task: Task, baseline: FittedBaseline) -> NDArray[np.float64]:
    """The baseline's outputs on the test records, as the task's scores take them."""
    assert task.test is not None
    inputs = _plain_inputs(task, task.test.inputs)
    assert inputs is not None
    found = baseline.outputs(inputs)
    if task.goal == "regression":
        return found[:, 0]
    whole = np.full((len(found), len(task.classes)), _NEVER)
    whole[:, baseline.labels.astype(np.int64)] = found
    return whole
