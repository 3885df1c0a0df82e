"""The networks that are trained: a logistic model, the paper's three-layer MLP, a two-block CNN.

A model is its layers; its weights are one flat float32 vector, which is what clients send and servers add.

Implements: the models of Sec. VIII of [Sun2026].
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from privmarket.errors import UnknownNameError
from privmarket.federated.layers import Convolution, Flatten, Kept, Layer, Linear, MaxPool, Part, Relu, Tanh


@dataclass(frozen=True, eq=False)
class Model:
    """A feed-forward network whose weights are one flat vector, (parameters,)."""

    name: str
    layers: tuple[Layer, ...]

    @cached_property
    def parameters(self) -> int:
        """The length of the flat vector of weights."""
        return sum(layer.size for layer in self.layers)

    def parts(self, flat: Tensor) -> list[list[Part]]:
        """(copies, parameters) → for each layer, for each copy, views of its weights as `Part` says."""
        slices = flat.split_with_sizes([layer.size for layer in self.layers], dim=1)
        made: list[list[Part]] = []
        for layer, mine in zip(self.layers, slices, strict=True):
            if not layer.size:
                made.append([()] * len(flat))
                continue
            cuts = mine.split_with_sizes([math.prod(shape) for shape in layer.shapes], dim=1)
            shaped = (cut.view(len(flat), *shape) for cut, shape in zip(cuts, layer.shapes, strict=True))
            made.append(list(zip(*shaped, mine, strict=True)))
        return made

    def initial_weights(self, rng: np.random.Generator) -> Tensor:
        """(parameters,) uniform within ±1/√fan-in, the usual start of such networks."""
        parts = [
            rng.uniform(-1.0, 1.0, layer.size) / math.sqrt(layer.fan_in) for layer in self.layers if layer.size
        ]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32))

    def forward(self, parts: list[list[Part]], images: Tensor, sizes: list[int]) -> tuple[Tensor, list[Kept]]:
        """(rows, channels, h, w) → logits (rows, classes) and what each layer kept.

        Args:
            parts: what `parts` made of the weights, with as many copies as `sizes` has entries.
            sizes: rows per copy of the weights.
        """
        rows, kept = images, list[Kept]()
        for layer, mine in zip(self.layers, parts, strict=True):
            rows, memory = layer.forward(mine, rows, sizes)
            kept.append(memory)
        return rows, kept

    def predict(self, flat: Tensor, images: Tensor, block_rows: int = 1000) -> Tensor:
        """(rows,) most likely class under one set of weights, (parameters,)."""
        parts = self.parts(flat[None])
        blocks = (images[a : a + block_rows] for a in range(0, images.shape[0], block_rows))
        return torch.cat([self.forward(parts, block, [block.shape[0]])[0].argmax(1) for block in blocks])

    def accuracy(self, flat: Tensor, images: Tensor, labels: Tensor) -> float:
        """Share of records whose most likely class is their label."""
        return float((self.predict(flat, images) == labels).double().mean())


def mlp(image_shape: tuple[int, int, int], classes: int, hidden: tuple[int, ...] = (128, 64)) -> Model:
    """A network of three fully connected layers with ReLU between them."""
    widths = (math.prod(image_shape), *hidden)
    layers: list[Layer] = [Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [Linear(inputs, outputs), Relu()]
    return Model("mlp", (*layers, Linear(widths[-1], classes)))


def logistic(image_shape: tuple[int, int, int], classes: int) -> Model:
    """A network of one fully connected layer: multinomial logistic regression."""
    return Model("logistic", (Flatten(), Linear(math.prod(image_shape), classes)))


def cnn(image_shape: tuple[int, int, int], classes: int, channels: tuple[int, int] = (16, 32)) -> Model:
    """Two blocks of convolution, tanh and 2 × 2 maximum, then one fully connected layer."""
    planes, height, width = image_shape
    features = channels[1] * (height // 4) * (width // 4)
    layers = (
        *(Convolution(planes, channels[0]), Tanh(), MaxPool()),
        *(Convolution(channels[0], channels[1]), Tanh(), MaxPool()),
        *(Flatten(), Linear(features, classes)),
    )
    return Model("cnn", layers)


_MODELS = {"mlp": mlp, "logistic": logistic, "cnn": cnn}
MODELS = tuple(_MODELS)


def build_model(name: str, image_shape: tuple[int, int, int], classes: int) -> Model:
    """The model called `name` for images of this shape."""
    if name not in _MODELS:
        raise UnknownNameError(f"unknown model {name!r}", f"choose one of: {', '.join(_MODELS)}")
    return _MODELS[name](image_shape, classes)
