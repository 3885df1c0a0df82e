"""Local private training: Poisson batches, per-record clipping, Gaussian noise, a public normaliser.

What a client releases in a round is its weights after `steps` noisy steps from the public global weights.
That is post-processing of `steps` noisy sums, each of sensitivity `clip_norm` under adding or removing one
record, which is exactly the event that the noise multiplier was calibrated for.

Implements: DP-SGD of [Abadi2016] as the local step of Algorithm 2 of [Sun2026].
Deviation: the noise is on clipped gradient sums; the paper adds it to weights whose sensitivity is unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.federated.gradients import gradient_sums
from privmarket.federated.models import Model
from privmarket.privacy.noise import NoiseSource

CHUNK_CLIENTS = 10


@dataclass(frozen=True)
class LocalPlan:
    """How clients train in a round; all of it public.

    Attributes:
        steps: noisy steps per round.
        sampling_rate: probability with which a record enters a step; 1 is the full batch.
        clip_norm: C, the largest norm with which one record's gradient counts.
        learning_rate: local step size; with one step it only scales the update.
        expected_batch: the public number that gradient sums are divided by, never the private batch size.
    """

    steps: int = 1
    sampling_rate: float = 1.0
    clip_norm: float = 1.0
    learning_rate: float = 1.0
    expected_batch: float = 1.0

    def __post_init__(self) -> None:
        for name in ("clip_norm", "learning_rate", "expected_batch"):
            value = getattr(self, name)
            if not (value > 0 and np.isfinite(value)):
                raise ConfigurationError(f"{name} is {value}: must be finite and above 0", "see the defaults")


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """The records of some clients, one after the other.

    Attributes:
        images: (rows, channels, h, w) float32.
        labels: (rows,) int64.
        offsets: clients + 1 row numbers; client i owns rows offsets[i]..offsets[i+1].
    """

    images: Tensor
    labels: Tensor
    offsets: list[int]

    @property
    def clients(self) -> int:
        """How many clients."""
        return len(self.offsets) - 1

    def size(self, client: int) -> int:
        """How many records a client has."""
        return self.offsets[client + 1] - self.offsets[client]


def private_updates(
    model: Model,
    global_weights: Tensor,
    records: ClientRecords,
    plan: LocalPlan,
    noise_multiplier: Sequence[float],
    randomness: Sequence[NoiseSource],
) -> Tensor:
    """What each client releases: global weights minus its weights after `plan.steps` noisy steps.

    Args:
        global_weights: (parameters,).
        records: the clients that sell in this chunk.
        noise_multiplier: per client, standard deviation of the noise over `clip_norm`.
        randomness: per client.

    Returns:
        (clients, parameters) float32; for one step learning_rate·(clipped sum + noise)/expected_batch.
    """
    scale = plan.learning_rate / plan.expected_batch
    sums = torch.empty(records.clients, model.parameters)
    weights = global_weights[None]
    for step in range(plan.steps):
        rows, offsets = _poisson_batches(records, plan.sampling_rate, randomness)
        for client, (sigma, source) in enumerate(zip(noise_multiplier, randomness, strict=True)):
            _fill_noise(sums[client], sigma * plan.clip_norm, source)
        images, labels = (
            (records.images, records.labels) if rows is None else (records.images[rows], records.labels[rows])
        )
        gradient_sums(model, weights, images, labels, offsets, plan.clip_norm, out=sums)
        if plan.steps == 1:
            return sums.mul_(scale)
        weights = torch.add(weights, sums, alpha=-scale) if step == 0 else weights.sub_(sums, alpha=scale)
    return global_weights - weights


def plain_updates(
    model: Model,
    global_weights: Tensor,
    records: ClientRecords,
    *,
    batch: int,
    epochs: int,
    learning_rate: float,
    rngs: Sequence[np.random.Generator],
) -> Tensor:
    """Ordinary local SGD without clipping or noise: the No-DP reference and Algorithm 2 to the letter.

    Every client goes over its records `epochs` times in shuffled batches of `batch`.

    Returns:
        (clients, parameters) global weights minus local weights.
    """
    weights = global_weights.repeat(records.clients, 1)
    for _ in range(epochs):
        orders = [rng.permutation(records.size(i)) + records.offsets[i] for i, rng in enumerate(rngs)]
        longest = max((order.size for order in orders), default=0)
        for start in range(0, longest, batch):
            parts = [order[start : start + batch] for order in orders]
            offsets = _offsets(parts)
            rows = torch.from_numpy(np.concatenate(parts))
            sums = gradient_sums(model, weights, records.images[rows], records.labels[rows], offsets, None)
            sizes = torch.tensor([max(1, part.size) for part in parts], dtype=torch.float32)
            weights.sub_(sums * (learning_rate / sizes)[:, None])
    return global_weights - weights


def mean_gradients(
    model: Model, global_weights: Tensor, records: ClientRecords, expected_batch: float
) -> Tensor:
    """(clients, parameters) Σ of plain gradients over each client's records / expected_batch."""
    sums = gradient_sums(model, global_weights[None], records.images, records.labels, records.offsets, None)
    return sums.div_(expected_batch)


def _fill_noise(out: Tensor, deviation: float, source: NoiseSource) -> None:
    """Overwrites `out` with N(0, deviation²); zeros, without drawing, where there is no noise."""
    if deviation == 0:
        out.zero_()
    else:
        source.fill(out)
        out.mul_(deviation)


def _poisson_batches(
    records: ClientRecords, rate: float, randomness: Sequence[NoiseSource]
) -> tuple[Tensor | None, list[int]]:
    """Row numbers of this step's batches and their offsets; None stands for all rows."""
    if rate == 1.0:
        return None, records.offsets
    parts = [
        np.flatnonzero(source.bernoulli(rate, records.size(i))) + records.offsets[i]
        for i, source in enumerate(randomness)
    ]
    return torch.from_numpy(np.concatenate(parts)), _offsets(parts)


def _offsets(parts: Sequence[NDArray[np.int64]]) -> list[int]:
    return [0, *np.cumsum([part.size for part in parts]).tolist()]
