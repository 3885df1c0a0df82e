"""A trained model as a file: its weights in safetensors, and a JSON card beside them that says what they are.

The card holds what is needed to use the model (how rows of a table become inputs, the classes, how the network is
built) and to judge it (scores before and after, settings, money, and the privacy that it cost).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from privmarket import __version__
from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError, DataError
from privmarket.tasks import Pipeline, TargetScale, builder_from_json, builder_to_json

if TYPE_CHECKING:
    from torch import nn

    from privmarket.tasks import Task


FORMAT = "privmarket-model-1"
_BLOCK_ROWS = 2000


def card_path(path: Path) -> Path:
    """Where the card of a model file lies: the same name, ending in .json."""
    return path.with_suffix(".json")


def write_model(module: nn.Module, card: Mapping[str, object], path: str | Path) -> Path:
    """Writes a module's weights to `path` and its card beside it, with their hash; returns the path."""
    place = checked_path(path)
    state = {name: value.contiguous() for name, value in module.state_dict().items()}
    content = save(state, metadata={"format": FORMAT})
    whole = {**card, "weights_sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(place, content)
    write_atomically(card_path(place), json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return place


def task_card(task: Task) -> dict[str, object]:
    """The part of a card that describes a task's model, as JSON data."""
    inputs = task.private.inputs
    return {
        "format": FORMAT,
        "privmarket": __version__,
        "task": task.name,
        "goal": task.goal,
        "classes": list(task.classes),
        "inputs": {"shape": list(inputs.shape[1:]), "type": str(inputs.dtype)},
        "target": _target_card(task.target),
        "pipeline": None if task.pipeline is None else task.pipeline.to_json(),
        "model": builder_to_json(task.model),
    }


def module_card(build: Callable[[], nn.Module], name: str) -> dict[str, object]:
    """The same for a module of an app without a task; the app knows its records and outputs."""
    return {
        "format": FORMAT,
        "privmarket": __version__,
        "task": name,
        "goal": "own",
        "classes": [],
        "inputs": {"shape": [], "type": "float32"},
        "target": _target_card(TargetScale()),
        "pipeline": None,
        "model": builder_to_json(build),
    }


def _target_card(target: TargetScale) -> dict[str, float | None]:
    """How outputs become numbers; infinite values are null."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(target).items()}


def checked_path(path: str | Path) -> Path:
    """The path, if it is one of a model file.

    Raises:
        ConfigurationError: its name does not end in .safetensors.
    """
    place = Path(path)
    if place.suffix != ".safetensors":
        raise ConfigurationError(f"a model file called {place.name!r}", "let its name end in .safetensors")
    return place


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model read from its file.

    Attributes:
        module: ready to use, in evaluation mode.
        card: what `save_model` wrote beside it.
    """

    module: nn.Module
    card: Mapping[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for a regression."""
        return tuple(self.card["classes"])

    def outputs(self, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        """(rows, ...) what the module gives for these inputs."""
        with torch.no_grad():
            blocks = [
                self.module(torch.from_numpy(np.ascontiguousarray(inputs[a : a + _BLOCK_ROWS]))).numpy()
                for a in range(0, len(inputs), _BLOCK_ROWS)
            ]
        return np.concatenate(blocks)

    def predict(self, inputs: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.float64] | None]:
        """(rows,) predictions in the unit of the data or names of classes; and (rows, classes) probabilities."""
        outputs = self.outputs(inputs)
        if not self.classes:
            scale = {name: math.inf if value is None else value for name, value in self.card["target"].items()}
            return TargetScale(**scale).restored(outputs.reshape(len(outputs))), None
        logits = outputs.astype(np.float64)
        if logits.size == len(logits):
            second = logits.reshape(len(logits))
            logits = np.stack([np.zeros_like(second), second], axis=1)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = odds / odds.sum(axis=1, keepdims=True)
        return np.array(self.classes)[shares.argmax(axis=1)], shares

    def predict_file(self, path: str | Path) -> tuple[NDArray[np.generic], NDArray[np.float64] | None]:
        """The same for the rows of a table with the columns that the model was trained on.

        Raises:
            DataError: the model was not trained on a table, or columns are missing.
        """
        if self.card["pipeline"] is None:
            raise DataError(
                f"the model of {self.card['task']!r} was trained on arrays, not on a table",
                "use SavedModel.predict with an array of its inputs",
            )
        return self.predict(Pipeline.from_json(self.card["pipeline"]).encode_file(path))


def load_model(path: str | Path, model: Callable[[], nn.Module] | str | None = None) -> SavedModel:
    """Reads a model and its card.

    Args:
        model: builds the network if the card cannot say how: a function, or `file.py:build`.

    Raises:
        DataError: a file is missing, altered, or does not fit the card.
    """
    place = checked_path(path)
    card_at = card_path(place)
    try:
        card = json.loads(card_at.read_text(encoding="utf-8"))
        content = place.read_bytes()
    except OSError as error:
        what = f"{error.filename}: {error.strerror}"
        raise DataError(what, "a model is two files: NAME.safetensors, NAME.json") from error
    except ValueError as error:
        raise DataError(f"{card_at}: not a model card: {error}", "save the model again") from error
    if card.get("format") != FORMAT:
        raise DataError(
            f"{card_at}: format {card.get('format')!r}, not {FORMAT}", "save the model with this version"
        )
    if hashlib.sha256(content).hexdigest() != card["weights_sha256"]:
        raise DataError(f"{place}: not the weights that {card_at.name} describes", "keep the two files together")
    build = builder_from_json(card["model"], model, tuple(card["inputs"]["shape"]), max(1, len(card["classes"])))
    module = build()
    try:
        module.load_state_dict(load_file(place))
    except RuntimeError as error:
        what = f"{place}: does not fit the model: {str(error).splitlines()[0]}"
        raise DataError(what, "give --model file.py:build") from error
    module.eval()
    return SavedModel(module, card)


def export_onnx(module: nn.Module, example: torch.Tensor, path: str | Path) -> Path:
    """Writes a module as ONNX, if torch can and the package `onnxscript` is there; returns the path.

    Args:
        example: (rows, ...) inputs of the right shape and type; any number of rows can be given to the result.

    Raises:
        ConfigurationError: the module cannot be exported.
    """
    place = Path(path)
    try:
        torch.onnx.export(
            module,
            (example,),
            str(place),
            input_names=["inputs"],
            output_names=["outputs"],
            dynamo=False,
            dynamic_axes={"inputs": {0: "rows"}, "outputs": {0: "rows"}},
        )
    except Exception as error:  # torch raises many kinds here
        raise ConfigurationError(
            f"the model cannot be exported: {str(error).splitlines()[0]}",
            "install onnx, or use the .safetensors file",
        ) from error
    return place
