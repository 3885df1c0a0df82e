"""Training settings that were found to work under valid record-level DP, per data set.

They are public choices, made on validation records that no client holds, by the search in
`privmarket.experiments.federated_selection`. One full-batch step per round: with ε of a few per round, sampling
buys less privacy than it loses signal.
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


def recommended_training(dataset: str) -> Training:
    """The settings for a data set."""
    if dataset not in _RECOMMENDED:
        raise UnknownNameError(f"unknown data set {dataset!r}", f"choose one of: {', '.join(_RECOMMENDED)}")
    return _RECOMMENDED[dataset]
