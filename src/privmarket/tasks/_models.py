"""The models that a task can be given by name, as ordinary `nn.Sequential`; any other module works too.

None of them mixes records: there is no batch normalisation, and a layer normalisation works on one record.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privmarket import training
from privmarket._named import names_code, object_named
from privmarket.errors import ConfigurationError, DataError, UnknownNameError

Shape = tuple[int, ...]
Builder = Callable[[], nn.Module]


def cnn(inputs: Shape, outputs: int) -> nn.Module:
    """Two blocks of convolution, tanh and 2 × 2 maximum, then one fully connected layer; for images."""
    if len(inputs) != 3 or min(inputs[1:]) < 4:
        raise DataError(
            f"a CNN takes images of (channels, height, width), not inputs of shape {inputs}", "use linear or mlp"
        )
    return training.cnn((inputs[0], inputs[1], inputs[2]), outputs)


class Tokens(nn.Module):
    """(rows, length) token numbers → (rows, length, width) vectors of words, plus those of places if asked for."""

    def __init__(self, buckets: int, width: int, length: int = 0) -> None:
        super().__init__()
        self.words = nn.Embedding(buckets, width, padding_idx=0)
        self.places = nn.Embedding(length, width) if length else None

    def forward(self, tokens: Tensor) -> Tensor:
        """The vectors of the tokens."""
        vectors: Tensor = self.words(tokens)
        if self.places is None:
            return vectors
        at = torch.arange(tokens.shape[1]).expand(tokens.shape)
        placed: Tensor = vectors + self.places(at)
        return placed


class MeanOverTokens(nn.Module):
    """(rows, length, width) → (rows, width)."""

    def forward(self, vectors: Tensor) -> Tensor:
        """The mean over all places."""
        return vectors.mean(dim=1)


class SelfAttention(nn.Module):
    """A residual block of self-attention with several heads, normalised first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """(rows, length, width) → the same shape; attention is between the places of one record."""
        rows, length, width = vectors.shape
        parts = self.mixed(self.norm(vectors)).view(rows, length, 3, self.heads, width // self.heads)
        query = parts[:, :, 0].transpose(1, 2)
        key = parts[:, :, 1].transpose(1, 2)
        value = parts[:, :, 2].transpose(1, 2)
        weights = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(width // self.heads), dim=3)
        seen = (weights @ value).transpose(1, 2).reshape(rows, length, width)
        changed: Tensor = vectors + self.out(seen)
        return changed


class FeedForward(nn.Module):
    """A residual block of two fully connected layers, normalised first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """(rows, length, width) → the same shape."""
        changed: Tensor = vectors + self.layers(vectors)
        return changed


def embedding(inputs: Shape, outputs: int, buckets: int = 4096, width: int = 16) -> nn.Module:
    """The mean of the words' vectors, then one fully connected layer; for tokens."""
    _require_tokens(inputs)
    return nn.Sequential(Tokens(buckets, width), MeanOverTokens(), nn.Linear(width, outputs))


def transformer(
    inputs: Shape, outputs: int, buckets: int = 4096, width: int = 32, heads: int = 4, blocks: int = 1
) -> nn.Module:
    """A small transformer for tokens: words and places, attention, the mean, one fully connected layer."""
    _require_tokens(inputs)
    layers: list[nn.Module] = [Tokens(buckets, width, length=inputs[0])]
    for _ in range(blocks):
        layers += [SelfAttention(width, heads), FeedForward(width)]
    return nn.Sequential(*layers, nn.LayerNorm(width), MeanOverTokens(), nn.Linear(width, outputs))


def _require_tokens(inputs: Shape) -> None:
    if len(inputs) != 1:
        raise DataError(f"tokens have one axis, not the shape {inputs}", "use linear or mlp")


_MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": training.logistic,
    "mlp": training.mlp,
    "cnn": cnn,
    "embedding": embedding,
    "transformer": transformer,
}
_OF_TOKENS = ("embedding", "transformer")


def model_names() -> tuple[str, ...]:
    """The models that can be given by name."""
    return tuple(_MODELS)


def model_builder(
    model: str | Callable[..., nn.Module], inputs: Shape, outputs: int, *, buckets: int | None = None
) -> Builder:
    """A function without arguments that makes the model.

    Args:
        model: one of `model_names()`; `file.py:build`; or a function. A function may take `inputs`, the shape of a
            record's inputs, and `outputs`, how many numbers it should give, by name.
        inputs: shape of a record's inputs.
        outputs: how many numbers the model gives for a record.
        buckets: how many different tokens there are, if the inputs are tokens.
    """
    if isinstance(model, str) and names_code(model):
        found = object_named("build", model)
        if not callable(found):
            raise ConfigurationError(f"{model} is no function", "name a function that returns a torch.nn.Module")
        model = found
    if not isinstance(model, str):
        if isinstance(model, nn.Module):
            raise ConfigurationError(
                "model is a module", "give a function that makes a fresh one, such as lambda: Net()"
            )
        if not callable(model):
            raise ConfigurationError(f"model is {model!r}", "give a function that returns a torch.nn.Module")
        return partial(model, **_asked_for(model, inputs, outputs))
    if model not in _MODELS:
        raise UnknownNameError.among("model", model, _MODELS)
    if (buckets is not None) != (model in _OF_TOKENS):
        has = "tokens" if buckets is not None else "no tokens"
        fitting = _OF_TOKENS if buckets is not None else ("linear", "mlp")
        raise ConfigurationError(f"model {model!r} for inputs that are {has}", f"use {' or '.join(fitting)}")
    sizes = {} if buckets is None else {"buckets": buckets}
    return partial(_MODELS[model], inputs, outputs, **sizes)


def builder_to_json(build: Callable[..., nn.Module]) -> dict[str, object]:
    """How a model is built, as JSON data: its name and sizes, or the place of its function."""
    given = build if isinstance(build, partial) else partial(build)
    for name, known in _MODELS.items():
        if given.func is known:
            inputs, outputs = given.args
            return {"name": name, "inputs": list(inputs), "outputs": outputs, **given.keywords}
    module = getattr(given.func, "__module__", "")
    name = getattr(given.func, "__qualname__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    importable = bool(name) and "<" not in name and "." not in name
    return {
        "function": name if importable else None,
        "module": module,
        "file": None if file is None else Path(file).name,
    }


def builder_from_json(
    said: Mapping[str, Any], model: str | Callable[..., nn.Module] | None, inputs: Shape, outputs: int
) -> Builder:
    """The function that builds the model which `builder_to_json` described.

    Args:
        model: if given, used instead.

    Raises:
        ConfigurationError: the model is not one of this package's, and no function was given.
    """
    if model is not None:
        return model_builder(model, inputs, outputs)
    if "name" not in said:
        where = (
            f"{said.get('file')}:{said.get('function')}" if said.get("function") else "a function without a name"
        )
        raise ConfigurationError(
            f"the network was built by {where}, which this file does not hold", "give --model file.py:build"
        )
    sizes = {key: value for key, value in said.items() if key not in ("name", "inputs", "outputs")}
    return partial(_MODELS[said["name"]], tuple(said["inputs"]), int(said["outputs"]), **sizes)


def gives_one_output(build: Builder, inputs: NDArray[np.generic]) -> bool:
    """Whether the model gives a single number per record, tried on zeros; False for one that cannot be run."""
    rows = torch.from_numpy(np.zeros((2, *inputs.shape[1:]), dtype=inputs.dtype))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = build().eval()(rows)
    except Exception:  # the model is the user's code; the task refuses it with a better message
        return False
    return isinstance(outputs, Tensor) and outputs.numel() == 2


def usual_loss(goal: str, *, one_output: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """The default loss of a goal.

    Args:
        one_output: the model gives one number per record, which for a classification is the logit of the
            second class.
    """
    if goal == "own":
        raise ConfigurationError("a task with a goal of its own has no usual loss", "give loss=…")
    if goal == "regression":
        return training.squared_error
    return training.binary_cross_entropy if one_output else training.cross_entropy


def _asked_for(build: Callable[..., nn.Module], inputs: Shape, outputs: int) -> dict[str, object]:
    """Those of `inputs` and `outputs` that are arguments of the function; refuses others without a default."""
    known: dict[str, object] = {"inputs": inputs, "outputs": outputs}
    try:
        parameters = signature(build).parameters.values()
    except (TypeError, ValueError):  # of a class written in C
        return {}
    for one in parameters:
        if one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) or one.name in known:
            continue
        if one.default is Parameter.empty:
            raise ConfigurationError(
                f"the model's function takes {one.name!r}, which nobody gives it",
                "let it take nothing, or inputs (the shape of a record) and outputs (how many numbers)",
            )
    return {one.name: known[one.name] for one in parameters if one.name in known and one.default is Parameter.empty}
