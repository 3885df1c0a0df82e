"""The networks that are built in: a logistic model, the paper's three-layer MLP, a two-block CNN.

Implements: the models of Sec. VIII of [Sun2026].
"""

from __future__ import annotations

import itertools
import math

from torch import nn

from privmarket.errors import UnknownNameError
from privmarket.training._model import PrivateModel


def mlp(record_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (128, 64)) -> nn.Sequential:
    """Three fully connected layers with ReLU between them, for records of any shape."""
    widths = (math.prod(record_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def logistic(record_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One fully connected layer: multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(record_shape), classes))


def cnn(record_shape: tuple[int, ...], classes: int, channels: tuple[int, int] = (16, 32)) -> nn.Sequential:
    """Two blocks of convolution, tanh and 2 × 2 maximum, then one fully connected layer; for images.

    Bounded activations suffer less from clipping [Papernot2021].
    """
    planes, height, width = record_shape
    features = channels[1] * (height // 4) * (width // 4)
    return nn.Sequential(
        nn.Conv2d(planes, channels[0], 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, classes),
    )


_NETWORKS = {"mlp": mlp, "logistic": logistic, "cnn": cnn}
NETWORKS = tuple(_NETWORKS)
"""The names that `build_network` knows."""


def build_network(name: str, record_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The network called `name` for records of this shape."""
    if name not in _NETWORKS:
        raise UnknownNameError(f"unknown model {name!r}", f"choose one of: {', '.join(_NETWORKS)}")
    return _NETWORKS[name](record_shape, classes)


def build_model(name: str, record_shape: tuple[int, ...], classes: int) -> PrivateModel:
    """The network called `name`, as a `PrivateModel` with cross-entropy."""
    return PrivateModel(build_network(name, record_shape, classes), name=name)
