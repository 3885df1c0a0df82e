"""Losses with one value per record, which never raise an error because of a record's values.

With one of these losses a plain stack of layers needs no trial: no record can influence another one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_NO_CLASS = -100

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) ↦ one loss per record."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each record, (records,): the default loss.

    A record whose label is not a class has a loss and a gradient of exactly 0. An error would reveal to the server
    that there is such a record.
    """
    if labels.dtype.is_floating_point or outputs.ndim < 2:
        return F.cross_entropy(outputs, labels, reduction="none")
    # Only labels from 0 to classes − 1 give 0 when divided by the number of classes and rounded down.
    wrong = labels.div(outputs.shape[1], rounding_mode="floor") != 0
    return F.cross_entropy(outputs, labels.masked_fill(wrong, _NO_CLASS), reduction="none", ignore_index=_NO_CLASS)


def cross_entropy_slopes(outputs: Tensor, labels: Tensor) -> Tensor | None:
    """(rows, classes) the derivative of each record's cross-entropy by its outputs; None unless labels are classes.

    Bit for bit what torch's graph computes, without building the graph, which takes as long as the arithmetic for
    small models.
    """
    if labels.dtype != torch.int64 or labels.ndim != 1 or outputs.ndim != 2:
        return None
    wrong = labels.div(outputs.shape[1], rounding_mode="floor") != 0
    logs = torch.log_softmax(outputs, 1)
    by_logs = torch.ops.aten.nll_loss_backward(
        outputs.new_ones(labels.shape),  # by each record's loss
        logs,
        labels.masked_fill(wrong, _NO_CLASS),
        None,
        0,  # losses are not added up
        _NO_CLASS,
        outputs.new_zeros(()),
    )
    slopes: Tensor = torch.ops.aten._log_softmax_backward_data(by_logs, logs, 1, outputs.dtype)
    return slopes


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """−log of the probability that one logit per record, (records,) or (records, 1), gives to its label, 0 or 1."""
    logits = _one_each(outputs)
    return F.binary_cross_entropy_with_logits(logits, _one_each(labels).to(logits.dtype), reduction="none")


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """½ (output − label)² of each record, summed over its numbers."""
    return 0.5 * (outputs.flatten(1) - _like(outputs, labels)).square().sum(1)


def absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """|output − label| of each record, summed over its numbers."""
    return (outputs.flatten(1) - _like(outputs, labels)).abs().sum(1)


def inner_product(outputs: Tensor, labels: Tensor) -> Tensor:
    """Σ output·label of each record. Not a loss: its gradients are sums that one may want to buy."""
    return (outputs.flatten(1) * _like(outputs, labels)).sum(1)


def require_one_each(losses: object, rows: int) -> None:
    """Refuses a loss that does not give one value per record.

    Raises:
        ValueError: it gave something else.
    """
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"the loss gives {shape} for {rows} records, not one value for each")


def _one_each(values: Tensor) -> Tensor:
    """(records,) the values, if there is one number per record."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _like(outputs: Tensor, labels: Tensor) -> Tensor:
    """(records, numbers) the labels in the outputs' shape and type."""
    return labels.to(outputs.dtype).reshape(outputs.shape[0], -1)


LOSSES: tuple[Loss, ...] = (cross_entropy, binary_cross_entropy, squared_error, absolute_error, inner_product)
"""The losses of this package; none of them raises an error on any outputs."""
