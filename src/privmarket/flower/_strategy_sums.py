"""Aggregate trust around a Flower strategy: the sum is bought first, and the strategy sees one reply, the average.

A strategy averages the models that clients send back. Under aggregate trust nobody sees one of them; what the
secure sum opens is their noisy average, and that is all that the strategy gets. So every strategy works that uses
the replies only through their average: FedAvg, and those with an optimiser on the server (FedAvgM, FedAdagrad,
FedAdam, FedYogi). One that compares replies, such as Krum or a median, has nothing to compare.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Strategy,
)

from privmarket.errors import ConfigurationError
from privmarket.flower import _wire as wire
from privmarket.flower._bought_sum import buy_sum
from privmarket.flower._fleet import Delivery
from privmarket.flower._grid_market import GridMarket
from privmarket.flower._secure import SignRoster
from privmarket.rounds import Round

_BY_AVERAGE = (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)


def require_average(inner: Strategy) -> None:
    """Refuses a strategy that compares replies: under aggregate trust there is one.

    A strategy of one's own says that it uses only the average by `uses_only_average = True`.

    Raises:
        ConfigurationError: it does, or nothing is known about it.
    """
    if type(inner) not in _BY_AVERAGE and not getattr(inner, "uses_only_average", False):
        names = ", ".join(one.__name__ for one in _BY_AVERAGE)
        raise ConfigurationError(
            f"trust 'aggregate' around {type(inner).__name__}, which may compare single updates; nobody sees them",
            f"use one of {names}, or set uses_only_average = True on a strategy of your own",
        )


def bought(
    run: GridMarket, market: Round, arrays: ArrayRecord, weighted_by_key: str | None, register: SignRoster | None
) -> tuple[Mapping[str, Delivery], Message | None]:
    """Plays a round's secure sums.

    Returns:
        What each seller delivered, and the one reply that the strategy averages: the model moved by the noisy
        average of what was bought. None where no sum was opened.
    """
    weights = {name: array.numpy() for name, array in arrays.items()}
    deliveries, step = buy_sum(run, market, weights, register)
    if step is None:
        return deliveries, None
    cuts = np.cumsum([array.size for array in weights.values()])[:-1]
    moved = {
        name: Array(np.asarray(array - part.reshape(array.shape), dtype=array.dtype))
        for part, (name, array) in zip(np.split(step, cuts), weights.items(), strict=True)
    }
    metrics = MetricRecord({weighted_by_key or "num-examples": 1.0})
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
    return deliveries, Message(content, 0, wire.TRAIN)
