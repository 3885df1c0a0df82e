"""Plain local SGD of many clients, quickly: E epochs of shuffled batches, as [Sun2026]'s Algorithm 2 trains.

`training.plain_updates` does the same for any module. Here are two models written out by hand, the three-layer MLP
and the CNN of two blocks, because 200 rounds of five epochs by 100 clients are 1.9 million steps. What makes it
quick and changes nothing but the order in which numbers are added:

- one client after the other, so that its weights stay in the processor's cache; gradient and step are one product;
- pixels that are the same in all records of a client (the background) are turned into one input: the rotation that
  puts a constant vector on one axis is orthogonal, and steps of gradient descent turn with it;
- records whose softmax is exactly their label have slopes that are exactly 0, and take no part in a backward pass.
  An epoch in which no record has a slope changes nothing, so the epochs after it would change nothing either;
- a unit of the first layer that no record of the client switches on has a slope of exactly 0 in every step, so that
  it stays off and is left out; where no unit of the second layer is on, only the last bias can move;
- training stops at the first value that is not a number: nothing that follows can be one.

Implements: the local training of Algorithm 2 of [Sun2026], with Table III's E, batch and rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Weights = list[Tensor]
"""A model's parameters in the module's order and shapes."""


def mlp(inputs: int = 784, classes: int = 10, hidden: tuple[int, int] = (128, 64)) -> nn.Sequential:
    """The three-layer MLP with ReLU."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], classes),
    )


def cnn(
    classes: int = 10, channels: tuple[int, int] = (16, 32), shape: tuple[int, int, int] = (3, 32, 32)
) -> nn.Sequential:
    """Two blocks of convolution, ReLU and 2 × 2 maximum, then one fully connected layer."""
    planes, height, width = shape
    return nn.Sequential(
        nn.Conv2d(planes, channels[0], 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels[1] * (height // 4) * (width // 4), classes),
    )


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains.

    Attributes:
        epochs, batch, rate: E = 5, 32 and 0.01 of Table III.
        clip_norm: the largest norm of a batch's mean gradient; None as in Algorithm 2, which clips nothing.
    """

    epochs: int = 5
    batch: int = 32
    rate: float = 0.01
    clip_norm: float | None = None


def slopes_by_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, classes) softmax − label, and (rows,) which of these rows are not exactly 0."""
    slopes = torch.softmax(logits, 1)
    slopes[torch.arange(len(labels)), labels] -= 1.0
    return slopes, slopes.any(1)


@dataclass(frozen=True)
class Background:
    """The inputs that are the same in all records of a client, as one input.

    With constant inputs c (m of them) and a matrix W, c·W = |c|·(W·c/|c|): one input |c| with the weight W·c/|c|. A
    step moves the weights of constant inputs along c alone, so that what the one weight moved is given back along
    c/|c|.

    Attributes:
        varying: which inputs differ between records.
        direction: (inputs,) c/|c|, 0 where inputs vary; length: |c|.
    """

    varying: Tensor
    direction: Tensor
    length: float

    @classmethod
    def of(cls, inputs: Tensor) -> Background:
        """The background of these records."""
        varying = (inputs != inputs[:1]).any(0)
        constant = torch.where(varying, 0.0, inputs[0])
        length = float(constant.double().norm())
        return cls(torch.nonzero(varying).squeeze(1), constant / max(length, 1e-30), length)

    def of_records(self, inputs: Tensor) -> Tensor:
        """(records, varying + 1)."""
        return torch.cat((inputs[:, self.varying], torch.full((len(inputs), 1), self.length)), dim=1)

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """(outputs, varying + 1)."""
        return torch.cat((matrix[:, self.varying], (matrix @ self.direction)[:, None]), dim=1)

    def back(self, turned: Tensor, before: Tensor) -> Tensor:
        """(outputs, inputs): the trained matrix, from what it was before and its turned form."""
        moved = turned[:, -1] - before @ self.direction
        matrix = before + moved[:, None] * self.direction
        matrix[:, self.varying] = turned[:, :-1]
        return matrix


def prepare(inputs: Tensor) -> tuple[Background, Tensor]:
    """A client's background, and its records with the background turned into one input."""
    turned = Background.of(inputs)
    return turned, turned.of_records(inputs)


def train_mlp(
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    plan: LocalTraining,
    rng: np.random.Generator,
    prepared: tuple[Background, Tensor] | None = None,
) -> Weights | None:
    """The weights of `mlp` after a client's local training; None where they stopped being finite.

    Args:
        weights: matrices as (outputs, inputs) and biases, in turn.
        inputs: (records, inputs); labels: (records,).
        prepared: what `prepare` makes of the inputs, for clients that train in many rounds.
    """
    if not _finite(weights):
        return None
    turned, rows = prepare(inputs) if prepared is None else prepared
    w1, b1, w2, b2, w3, b3 = [turned.of_matrix(weights[0]), *[one.clone() for one in weights[1:]]]
    first = torch.addmm(b1, rows, w1.T).relu_()
    on = torch.nonzero(first.any(0)).squeeze(1)
    if not torch.addmm(b2, first, w2.T).relu_().any():
        last = train_last_bias(b3, labels, plan, rng)
        return [*weights[:5], last]
    all_w1, all_b1, all_w2 = w1, b1, w2
    w1, b1, w2 = w1[on], b1[on], w2[:, on]
    for _ in range(plan.epochs):
        order = torch.from_numpy(rng.permutation(len(labels)))
        shuffled, marks = rows[order], labels[order]
        moved = False
        for at in range(0, len(marks), plan.batch):
            x, y = shuffled[at : at + plan.batch], marks[at : at + plan.batch]
            step = -plan.rate / len(y)
            first = torch.addmm(b1, x, w1.T).relu_()
            second = torch.addmm(b2, first, w2.T).relu_()
            slopes, live = slopes_by_logits(torch.addmm(b3, second, w3.T), y)
            count = int(live.sum())
            if count == 0:
                continue
            moved = True
            if count < 0.75 * len(y):
                x, first, second, slopes = x[live], first[live], second[live], slopes[live]
            back2 = (slopes @ w3).mul_(second > 0)
            back1 = (back2 @ w2).mul_(first > 0)
            if plan.clip_norm is not None:
                # |Σ_r a_r b_rᵀ|² = Σ_rs (a_r·a_s)(b_r·b_s), with a 1 appended to b for the bias.
                square = sum(
                    float(((back @ back.T) * (rows_in @ rows_in.T + 1.0)).sum(dtype=torch.float64))
                    for back, rows_in in ((slopes, second), (back2, first), (back1, x))
                )
                step *= min(1.0, plan.clip_norm * len(y) / max(square, 1e-60) ** 0.5)
            w3.addmm_(slopes.T, second, alpha=step)
            b3.add_(slopes.sum(0), alpha=step)
            w2.addmm_(back2.T, first, alpha=step)
            b2.add_(back2.sum(0), alpha=step)
            w1.addmm_(back1.T, x, alpha=step)
            b1.add_(back1.sum(0), alpha=step)
            if count == len(y) and not bool(torch.isfinite(b1).all()):
                return None
        if not moved:
            break
    all_w1[on], all_b1[on], all_w2[:, on] = w1, b1, w2
    trained = [turned.back(all_w1, weights[0]), all_b1, all_w2, b2, w3, b3]
    return trained if _finite(trained) else None


def train_last_bias(bias: Tensor, labels: Tensor, plan: LocalTraining, rng: np.random.Generator) -> Tensor:
    """(classes,) the last bias after local training of a network whose other outputs are all 0 and stay so."""
    own = bias.numpy().copy()
    marks = np.eye(len(own), dtype=own.dtype)[labels.numpy()]
    for _ in range(plan.epochs):
        shuffled = marks[rng.permutation(len(marks))]
        for at in range(0, len(marks), plan.batch):
            raised = np.exp(own - own.max())
            slope = raised / raised.sum() - shuffled[at : at + plan.batch].mean(0)
            step = plan.rate
            if plan.clip_norm is not None:
                step *= min(1.0, plan.clip_norm / max(float(np.sqrt(slope @ slope)), 1e-30))
            own -= own.dtype.type(step) * slope
    return torch.from_numpy(own)


def _finite(weights: Weights) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in weights)


def train_cnn(
    weights: Weights, inputs: Tensor, labels: Tensor, plan: LocalTraining, rng: np.random.Generator
) -> Weights | None:
    """The weights of `cnn` after a client's local training; None where they stopped being finite.

    Args:
        weights: in the order of the module's parameters.
        inputs: (records, planes, height, width); labels: (records,).
    """
    if not _finite(weights):
        return None
    last = torch.channels_last
    with torch.no_grad():
        features = [
            _cnn_features(weights, some) for some in torch.split(inputs.contiguous(memory_format=last), 128)
        ]
        if not any(bool(one.any()) for one in features):
            return [*weights[:5], train_last_bias(weights[5], labels, plan, rng)]
    own = [(one.contiguous(memory_format=last) if one.ndim == 4 else one).clone() for one in weights]
    for one in own:
        one.requires_grad_()
    for _ in range(plan.epochs):
        order = torch.from_numpy(rng.permutation(len(labels)))
        shuffled, marks = inputs[order].contiguous(memory_format=last), labels[order]
        moved = False
        for at in range(0, len(marks), plan.batch):
            x, y = shuffled[at : at + plan.batch], marks[at : at + plan.batch]
            step = plan.rate / len(y)
            logits = _cnn_logits(own, x)
            slopes, live = slopes_by_logits(logits.detach(), y)
            count = int(live.sum())
            if count == 0:
                continue
            moved = True
            if count < 0.5 * len(y):
                logits, slopes = _cnn_logits(own, x[live]), slopes[live]
            gradient = torch.autograd.grad(logits, own, slopes)
            if plan.clip_norm is not None:
                square = sum(float(one.double().square().sum()) for one in gradient)
                step *= min(1.0, plan.clip_norm * len(y) / max(square, 1e-60) ** 0.5)
            with torch.no_grad():
                for one, slope in zip(own, gradient, strict=True):
                    one.sub_(slope, alpha=step)
            if not bool(torch.isfinite(own[1]).all()):
                return None
        if not moved:
            break
    trained = [one.detach().contiguous() for one in own]
    return trained if _finite(trained) else None


def _cnn_features(weights: Weights, x: Tensor) -> Tensor:
    """(rows, features) after both blocks of `cnn`; ReLU after the maximum is the same and a quarter of the work."""
    first = functional.max_pool2d(functional.conv2d(x, weights[0], weights[1], padding=1), 2).relu()
    second = functional.max_pool2d(functional.conv2d(first, weights[2], weights[3], padding=1), 2).relu()
    return second.flatten(1)


def _cnn_logits(weights: Weights, x: Tensor) -> Tensor:
    return functional.linear(_cnn_features(weights, x), weights[4], weights[5])
