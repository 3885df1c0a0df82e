"""The usual losses, one value per record."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.training import binary_cross_entropy, cross_entropy, squared_error


def usual_loss(goal: str, *, one_output: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a goal unless told otherwise.

    Args:
        one_output: the model gives one number per record, which for a classification is the logit of the
        second class.
    """
    if goal == "own":
        raise ConfigurationError("a task with a goal of its own has no usual loss", "give loss=…")
    if goal == "regression":
        return squared_error
    return binary_cross_entropy if one_output else cross_entropy
