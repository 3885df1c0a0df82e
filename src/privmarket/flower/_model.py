"""The module of a Flower run: what the market starts from, and what is written when it ends.

`subject` says what a task's public records give for nothing and makes the model that the market starts from;
`save_model` writes the trained one to a file that `privmarket predict` reads.
"""


from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from privmarket import __version__
from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError
from privmarket.flower._settings import Subject
from privmarket.flower._training import load_arrays, trainable_arrays
from privmarket.flower._wire import Arrays
from privmarket.simulation._model_file import FORMAT, card_path, checked_path
from privmarket.simulation._own_records import FEWEST_RECORDS, OwnTraining, own_records
from privmarket.tasks import TargetScale, Task, builder_to_json
from privmarket.training import one_thread

if TYPE_CHECKING:
    from privmarket.flower._result import MarketResult


def loaded(build: Callable[[], nn.Module], weights: Mapping[str, np.ndarray]) -> nn.Module:
    """A module with these weights, in evaluation mode.

    Args:
        build: makes the module.
        weights: all arrays of its state, as a strategy keeps them, or its trainable parameters.

    Raises:
        ConfigurationError: they are arrays of another module.
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


def save_model(result: MarketResult, path: str | Path) -> Path:
    """Writes the final model of a run to `path`, and its card beside it; returns the path."""
    place = checked_path(path)
    state = {name: value.contiguous() for name, value in result.model.state_dict().items()}
    content = save(state, metadata={"format": FORMAT})
    card = model_card(result) | {"weights_sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(place, content)
    write_atomically(card_path(place), json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return place


def model_card(result: MarketResult) -> dict[str, object]:
    """What the card of a run's model says, as JSON data: what it is, what it cost, what its making released."""
    task = result.task
    assert result.build is not None
    target = TargetScale() if task is None else task.target
    settings = result.settings
    worst = max(result.epsilon_spent.values(), default=0.0)
    score = {"name": "accuracy", "better": "higher"}
    if task is not None:
        score = {"name": task.score.name, "better": task.score.direction}
    return {
        "format": FORMAT,
        "privmarket": __version__,
        "task": "a Flower run" if task is None else task.name,
        "goal": "own" if task is None else task.goal,
        "classes": [] if task is None else list(task.classes),
        "inputs": _inputs(result),
        "target": {name: value if math.isfinite(value) else None for name, value in asdict(target).items()},
        "pipeline": None if task is None or task.pipeline is None else task.pipeline.to_json(),
        "model": builder_to_json(result.build if task is None else task.model),
        "score": score | {"before": result.score_before, "after": result.score},
        "money": sum(result.paid_micro.values()) / 1_000_000,
        "rounds": len(result.records),
        "privacy": {
            "unit": "record" if task is None else task.unit,
            "delta": settings.delta,
            "trust": settings.trust,
            "honest_share": settings.honest_share if settings.trust == "aggregate" else None,
            "largest_epsilon": worst if math.isfinite(worst) else None,
        },
        "settings": settings.to_json(),
    }


def _inputs(result: MarketResult) -> dict[str, object]:
    if result.task is None:
        return {"shape": [], "type": "float32"}
    inputs = result.task.private.inputs
    return {"shape": list(inputs.shape[1:]), "type": str(inputs.dtype)}


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
