"""A trained model as a file: its weights in safetensors, and a JSON card beside them that says what they are.

The card holds what a stranger needs to use the model (how rows of a table become inputs, the classes, how the
network is built) and to judge it (scores before and after, settings, money, and the privacy that its making cost).
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
from privmarket.privacy._accountant import certify
from privmarket.simulation._config import statistics_words
from privmarket.tasks import Pipeline, TargetScale, builder_from_json, builder_to_json

if TYPE_CHECKING:
    from torch import nn

    from privmarket.simulation._state import RunResult

FORMAT = "privmarket-model-1"
_BLOCK_ROWS = 2000


def card_path(path: Path) -> Path:
    """Where the card of a model file lies: the same name, ending in .json."""
    return path.with_suffix(".json")


def save_model(result: RunResult, path: str | Path) -> Path:
    """Writes the final model of a run to `path`, and its card beside it; returns the path."""
    place = checked_path(path)
    state = {name: value.contiguous() for name, value in result.model.state_dict().items()}
    content = save(state, metadata={"format": FORMAT})
    card = model_card(result) | {"weights_sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(place, content)
    write_atomically(card_path(place), json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return place


def checked_path(path: str | Path) -> Path:
    """The path, if it is one of a model file.

    Raises:
        ConfigurationError: its name does not end in .safetensors.
    """
    place = Path(path)
    if place.suffix != ".safetensors":
        raise ConfigurationError(f"a model file called {place.name!r}", "let its name end in .safetensors")
    return place


def model_card(result: RunResult) -> dict[str, object]:
    """What the card of a run's model says, as JSON data."""
    task = result.task
    config = result.config
    return {
        "format": FORMAT,
        "privmarket": __version__,
        "task": task.name,
        "goal": task.goal,
        "classes": list(task.classes),
        "inputs": {"shape": list(task.private.inputs.shape[1:]), "type": str(task.private.inputs.dtype)},
        "target": {name: value if math.isfinite(value) else None for name, value in asdict(task.target).items()},
        "pipeline": None if task.pipeline is None else task.pipeline.to_json(),
        "model": builder_to_json(task.model),
        "score": {
            "name": task.score.name,
            "better": task.score.direction,
            "before": result.score_before,
            "after": None if result.scores is None else result.score,
            "all": result.scores,
        },
        "own_records": None if result.own_records is None else asdict(result.own_records),
        "money": result.spent,
        "rounds": len(result.records),
        "privacy": privacy_of(result),
        "settings": config.to_json(),
    }


def privacy_of(result: RunResult) -> dict[str, object]:
    """What the run cost its clients: the worst client's certificate, and what it rests on."""
    config = result.config
    said: dict[str, object] = {
        "unit": result.task.unit,
        "delta": config.delta,
        "trust": config.trust,
        "honest_share": config.honest_share if config.trust == "aggregate" else None,
        "mode": config.mode,
        "largest_epsilon": None,
    }
    if config.statistics != "none":
        said["statistics"] = statistics_words(config)
    if not config.privacy.is_private:
        return said | {"note": "no noise was added: there is no privacy to state"}
    sold = np.flatnonzero(result.sold_epsilon.any(axis=0)).tolist()
    histories = [[entry[i] for entry in result.wallets.history if entry[i] is not None] for i in sold]
    if not histories:
        return said | {"largest_epsilon": 0.0}
    certificates = [certify(events, config.delta, unit=result.task.unit) for events in histories]
    worst = max(certificates, key=lambda one: one.epsilon)
    return said | {"largest_epsilon": worst.epsilon, "certificate": asdict(worst)}


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
        model: builds the network, where the card cannot say how: a function, or `file.py:build`.

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


def export_onnx(result: RunResult, path: str | Path) -> Path:
    """Writes the final model as ONNX, if torch can and the package `onnxscript` is there; returns the path.

    Raises:
        ConfigurationError: the module cannot be exported.
    """
    place = Path(path)
    inputs = result.task.private.inputs
    example = torch.from_numpy(np.zeros((2, *inputs.shape[1:]), dtype=inputs.dtype))
    try:
        torch.onnx.export(
            result.model,
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
