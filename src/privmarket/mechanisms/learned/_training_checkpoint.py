"""Saves the whole state of a training run, so that a stopped run continues as if it had not stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

from privmarket.mechanisms.learned._misreports import Misreports
from privmarket.mechanisms.learned._trainer import Trainer
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, save

SUFFIX = "#checkpoint"


class SoFar(TypedDict):
    """What a session knows of itself: seconds it took, and rows of its curve."""

    seconds: float
    curve: list[list[float]]


def save_checkpoint(path: str | Path, trainer: Trainer, facts: SoFar) -> None:
    """Everything the next step depends on, in one file, atomically. `facts` is kept for the caller."""
    arrays = {f"network/{name}": t.detach().numpy() for name, t in trainer.network.state_dict().items()}
    if trainer.critic is not None:
        arrays |= {f"critic/{name}": t.detach().numpy() for name, t in trainer.critic.state_dict().items()}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        arrays |= {f"adam/{index}/{name}": np.asarray(value) for name, value in state.items()}
    for visit, found in trainer.misreports.items():
        arrays[f"misreports/{visit}/valuation"] = found.valuation.numpy()
        arrays[f"misreports/{visit}/epsilon"] = found.epsilon.numpy()
    arrays["multipliers/value"] = trainer.multipliers.value.numpy()
    arrays["multipliers/seen"] = trainer.multipliers.seen.numpy()
    arrays["chance/torch"] = trainer.generator.get_state().numpy()
    kept = {
        "recipe": trainer.recipe.to_json(),
        "step": trainer.step,
        "chance": trainer.rng.bit_generator.state,
        "facts": facts,
    }
    save(path, Weights(trainer.recipe.mechanism + SUFFIX, arrays, kept))


def load_checkpoint(path: str | Path, trainer: Trainer) -> SoFar:
    """Puts a trainer where the checkpoint left; returns the caller's facts.

    Raises:
        WeightsError: when the checkpoint was written by a run with another recipe.
    """
    stored = load(path, trainer.recipe.mechanism + SUFFIX)
    if json.loads(stored.facts["recipe"]) != json.loads(trainer.recipe.to_json()):
        raise WeightsError(
            f"{path} belongs to a run with other settings", "repeat those settings, or choose another --out"
        )
    group = _Groups({name: torch.from_numpy(np.array(array)) for name, array in stored.arrays.items()})
    trainer.network.load_state_dict(group.below("network"))
    if trainer.critic is not None:
        trainer.critic.load_state_dict(group.below("critic"))
    state = trainer.optimizer.state_dict()
    state["state"] = {int(index): values for index, values in group.nested("adam").items()}
    trainer.optimizer.load_state_dict(state)
    trainer.misreports = {
        int(visit): Misreports(found["valuation"], found["epsilon"])
        for visit, found in group.nested("misreports").items()
    }
    trainer.multipliers.value = group.tensors["multipliers/value"]
    trainer.multipliers.seen = group.tensors["multipliers/seen"]
    trainer.generator.set_state(group.tensors["chance/torch"])
    trainer.rng.bit_generator.state = stored.facts["chance"]
    trainer.step = int(stored.facts["step"])
    facts: SoFar = stored.facts["facts"]
    return facts


class _Groups:
    """Tensors whose names have parts separated by slashes, looked up by their first parts."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def below(self, prefix: str) -> dict[str, torch.Tensor]:
        start = prefix + "/"
        return {name[len(start) :]: t for name, t in self.tensors.items() if name.startswith(start)}

    def nested(self, prefix: str) -> dict[str, dict[str, torch.Tensor]]:
        result: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in self.below(prefix).items():
            outer, inner = name.split("/", 1)
            result.setdefault(outer, {})[inner] = tensor
        return result
