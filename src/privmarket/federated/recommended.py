"""Training settings that were found to work under valid record-level DP, per data set.

They are public choices, made by a search on validation records that no client holds. One full-batch step per
round: with ε of a few per round, sampling buys less privacy than it loses signal.
"""

from __future__ import annotations

from dataclasses import replace

from privmarket.errors import UnknownNameError
from privmarket.federated.config import Training

_GRADIENTS = Training(
    features="centred-gradients",
    clip_norm=4.0,
    server_rate=4.0,
    final_rate=0.1,
    momentum=0.9,
    averaging=0.9,
)
_RECOMMENDED = {
    "digits": Training(model="logistic", final_rate=0.1, averaging=0.8),
    "mnist": _GRADIENTS,
    "fashion-mnist": _GRADIENTS,
    "cifar10": replace(_GRADIENTS, server_rate=2.0),
}


# Under aggregate trust noise is small and how much a round learns decides: a linear model on whitened features.
_WHITENED = Training(
    model="logistic",
    features="whitened-scattering",
    clip_norm=4.0,
    server_rate=16.0,
    final_rate=0.1,
    momentum=0.9,
    averaging=0.9,
)
_UNDER_AGGREGATE_TRUST = {"mnist": _WHITENED, "fashion-mnist": _WHITENED, "cifar10": _WHITENED}


def recommended_training(dataset: str, trust: str = "local") -> Training:
    """The settings for a data set, under local or aggregate trust."""
    if dataset not in _RECOMMENDED:
        raise UnknownNameError(f"unknown data set {dataset!r}", f"choose one of: {', '.join(_RECOMMENDED)}")
    if trust == "aggregate" and dataset in _UNDER_AGGREGATE_TRUST:
        return _UNDER_AGGREGATE_TRUST[dataset]
    return _RECOMMENDED[dataset]
