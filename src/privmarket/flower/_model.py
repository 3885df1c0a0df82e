"""The module of a Flower run: the initial model and the trained one.

`subject` makes the initial model from a task's public records, with their score; `loaded` gives it the final
weights of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from privmarket.errors import ConfigurationError
from privmarket.flower._settings import Subject
from privmarket.flower._training import load_arrays, trainable_arrays
from privmarket.flower._wire import Arrays
from privmarket.simulation._own_records import FEWEST_RECORDS, OwnTraining, own_records
from privmarket.tasks import Task
from privmarket.training import one_thread


def loaded(build: Callable[[], nn.Module], weights: Mapping[str, np.ndarray]) -> nn.Module:
    """A module with these weights, in evaluation mode.

    Args:
        build: makes the module.
        weights: all arrays of its state, as a strategy keeps them, or its trainable parameters.

    Raises:
        ConfigurationError: the arrays belong to another module.
    """
    module = build()
    if not weights:
        return module.eval()
    if set(weights) == set(module.state_dict()):
        state = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            what = str(error).splitlines()[-1].strip()
            raise ConfigurationError(f"the weights do not fit the model: {what}", "build the same model") from error
    else:
        load_arrays(module, dict(weights))
    return module.eval()


def subject(task: Task, seed: int = 0) -> Subject:
    """What a run trains and measures for a task.

    Public records train the first model, as in the simulation, and are the baseline that the result states first.
    The task's headline score is measured on its test records.

    Raises:
        ConfigurationError: it is no task.
    """
    if not isinstance(task, Task):
        raise ConfigurationError(
            f"task is {type(task).__name__}, not a Task", "give pm.Task.from_csv(…), or pm.task(…)"
        )

    def build() -> nn.Module:
        return task.build_model(seed)

    first = build()
    public = task.public
    if public is not None and len(public) >= FEWEST_RECORDS:
        with one_thread():
            first = OwnTraining(task, seed).own_model().module
    before = own_records(task, first, seed=seed) if public is not None and len(public) >= FEWEST_RECORDS else None
    start = trainable_arrays(first)

    def measure(weights: Arrays) -> float:
        module = build()
        load_arrays(module, weights)
        with torch.no_grad(), one_thread():
            return float(task.evaluate_model(module.eval())[task.score.name])

    return Subject(lambda: start, measure if task.test is not None else None, build, task, before)
