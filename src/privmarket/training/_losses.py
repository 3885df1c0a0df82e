"""Losses with one value per record, which never raise an error on account of a record's numbers.

With one of these a plain stack of layers needs no trial: whatever a record holds, it cannot reach the others.
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
    """The cross-entropy of each record, (records,): the loss where no other is given.

    A record whose label names no class has a loss and a gradient of exactly 0. An error would tell whoever asked
    for the training that there is such a record.
    """
    if labels.dtype.is_floating_point or outputs.ndim < 2:
        return F.cross_entropy(outputs, labels, reduction="none")
    # Labels from 0 to classes − 1, and no others, are 0 when divided and rounded down.
    wrong = labels.div(outputs.shape[1], rounding_mode="floor") != 0
    return F.cross_entropy(outputs, labels.masked_fill(wrong, _NO_CLASS), reduction="none", ignore_index=_NO_CLASS)


def cross_entropy_slopes(outputs: Tensor, labels: Tensor) -> Tensor | None:
    """(rows, classes) the derivative of each record's cross-entropy by its outputs; None unless labels are classes.

    The two steps that torch's graph would take, bit for bit, without making a graph: for small models that takes
    as long as the arithmetic.
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
    """Σ output·label of each record: no loss, but a form whose gradients are sums that one may want to buy."""
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
    """(records,) where there is one number per record."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _like(outputs: Tensor, labels: Tensor) -> Tensor:
    """(records, numbers) the labels in the outputs' shape and type."""
    return labels.to(outputs.dtype).reshape(outputs.shape[0], -1)


LOSSES: tuple[Loss, ...] = (cross_entropy, binary_cross_entropy, squared_error, absolute_error, inner_product)
