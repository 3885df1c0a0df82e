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
from privmarket.federated.gradients import BLOCK_ROWS, add_gradient_sums, gradient_sums
from privmarket.federated.layers import Part
from privmarket.federated.models import Model
from privmarket.privacy.noise import NoiseSource

# Clients trained at once: many where batches are small and calls cost more than arithmetic, few where a step takes
# all records.
SMALL_BATCH_CHUNK, FULL_BATCH_CHUNK = 25, 10


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
        sizes: rows per client; may hold zeros.
    """

    images: Tensor
    labels: Tensor
    sizes: list[int]

    @property
    def clients(self) -> int:
        """How many clients."""
        return len(self.sizes)

    @property
    def starts(self) -> list[int]:
        """The first row of each client."""
        return [0, *np.cumsum(self.sizes[:-1]).tolist()]


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
        noise_multiplier: per client, standard deviation of the noise over `clip_norm`; 0 adds none.
        randomness: per client.

    Returns:
        (clients, parameters) float32; for one step learning_rate·(clipped sum + noise)/expected_batch.
    """
    rate = plan.learning_rate / plan.expected_batch
    if plan.steps == 1:
        return _one_step(model, global_weights, records, plan, noise_multiplier, randomness)
    weights = global_weights.repeat(records.clients, 1)
    parts = model.parts(weights)
    rates = [rate] * records.clients
    for _ in range(plan.steps):
        images, labels, sizes = _poisson_batches(records, plan.sampling_rate, randomness)
        _descend(model, weights, parts, images, labels, sizes, plan.clip_norm, rates)
        for row, sigma, source in zip(weights, noise_multiplier, randomness, strict=True):
            if sigma:
                source.add(row, rate * sigma * plan.clip_norm)
    return global_weights - weights


def _one_step(
    model: Model,
    global_weights: Tensor,
    records: ClientRecords,
    plan: LocalPlan,
    noise_multiplier: Sequence[float],
    randomness: Sequence[NoiseSource],
) -> Tensor:
    """(clients, parameters) rate·(Σ clipped gradients + noise), all clients still sharing the global weights."""
    # noise deviation · (standard normal + clipped sum / noise deviation): the normals are never scaled on their
    # own. Without noise the deviation is replaced by 1 and the normals by zeros.
    deviation = torch.tensor([sigma * plan.clip_norm or 1.0 for sigma in noise_multiplier], dtype=torch.float64)
    sums = torch.empty(records.clients, model.parameters)
    images, labels, sizes = _poisson_batches(records, plan.sampling_rate, randomness)
    for row, sigma, source in zip(sums, noise_multiplier, randomness, strict=True):
        source.fill(row) if sigma else row.zero_()
    shared, targets = model.parts(global_weights[None]), model.parts(sums)
    add_gradient_sums(model, shared, images, labels, sizes, plan.clip_norm, targets, (1.0 / deviation).float())
    return sums.mul_((plan.learning_rate / plan.expected_batch * deviation).float()[:, None])


def _descend(
    model: Model,
    weights: Tensor,
    parts: list[list[Part]],
    images: Tensor,
    labels: Tensor,
    sizes: list[int],
    clip_norm: float | None,
    rates: list[float],
) -> None:
    """weights ← weights − rate·Σ gradients, per client, all gradients taken at the old weights.

    `parts` are the views of `weights`, (clients, parameters).
    """
    if sum(sizes) <= BLOCK_ROWS:
        # One block: all slopes are known before the first sum is added, so the sums go straight onto the weights.
        step = torch.tensor([-rate for rate in rates])
        add_gradient_sums(model, parts, images, labels, sizes, clip_norm, parts, step)
    else:
        sums = gradient_sums(model, weights, images, labels, sizes, clip_norm)
        weights.sub_(sums * torch.tensor(rates)[:, None])


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
    parts = model.parts(weights)
    for _ in range(epochs):
        orders = [
            rng.permutation(n) + start for rng, n, start in zip(rngs, records.sizes, records.starts, strict=True)
        ]
        for at in range(0, max(records.sizes, default=0), batch):
            rows = [order[at : at + batch] for order in orders]
            images, labels, sizes = _gather(records, rows)
            rates = [learning_rate / max(1, n) for n in sizes]
            _descend(model, weights, parts, images, labels, sizes, None, rates)
    return global_weights - weights


def _poisson_batches(
    records: ClientRecords, rate: float, randomness: Sequence[NoiseSource]
) -> tuple[Tensor, Tensor, list[int]]:
    """This step's images, labels and rows per client."""
    if rate == 1.0:
        return records.images, records.labels, records.sizes
    drawn = [
        np.flatnonzero(source.bernoulli(rate, n)) + start
        for source, n, start in zip(randomness, records.sizes, records.starts, strict=True)
    ]
    return _gather(records, drawn)


def _gather(records: ClientRecords, rows: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor, list[int]]:
    chosen = torch.from_numpy(np.concatenate(rows))
    return records.images[chosen], records.labels[chosen], [r.size for r in rows]
