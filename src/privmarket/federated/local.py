"""Local private training: Poisson batches, per-record clipping, exact noise on a grid, a public normaliser.

What a client releases in a round is its weights after `steps` noisy steps from the public global weights. That
is post-processing of `steps` noisy sums, each released by `privacy.release`. Blanking one record moves a sum by at
most `clip_norm`, which is exactly the event that the noise multiplier was calibrated for, in the arithmetic that
runs (docs/theory/finite-arithmetic.md). With `unit="person"` all records of a person are blanked at once.

Implements: DP-SGD of [Abadi2016] as the local step of Algorithm 2 of [Sun2026].
Deviation: the noise is on clipped gradient sums; the paper adds it to weights whose sensitivity is unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.federated.gradients import (
    BLOCK_ROWS,
    Batch,
    add_plain_sums,
    clipped_sums,
    gradient_sums,
    summations,
    tiled,
)
from privmarket.federated.layers import Part, Summation
from privmarket.federated.models import Model
from privmarket.plans import ARITHMETICS
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import (
    CLIP_NORM_RANGE,
    ReleaseGrid,
    double_sum_inflation,
    sum_inflation,
)

# Clients trained at once: many where batches are small and calls cost more than arithmetic, few where a step takes
# all records.
SMALL_BATCH_CHUNK, FULL_BATCH_CHUNK = 25, 10

# Whose presence is protected: one record, or all records of one person.
UNITS = ("record", "person")


@dataclass(frozen=True)
class LocalPlan:
    """How clients train in a round; all of it public.

    Attributes:
        steps: noisy steps per round.
        sampling_rate: probability with which a record enters a step; 1 is the full batch.
        clip_norm: C, the largest norm with which the gradient of one unit counts.
        learning_rate: local step size; with one step it only scales the update.
        expected_batch: the public number that gradient sums are divided by, never the private batch size.
        unit: `record`, or `person`: what is clipped is the sum over all records of a person.
        arithmetic: `exact`, or `float` for experiments: not private in floating point.
    """

    steps: int = 1
    sampling_rate: float = 1.0
    clip_norm: float = 1.0
    learning_rate: float = 1.0
    expected_batch: float = 1.0
    unit: str = "record"
    arithmetic: str = "exact"

    def __post_init__(self) -> None:
        for name, value, known in (("unit", self.unit, UNITS), ("arithmetic", self.arithmetic, ARITHMETICS)):
            if value not in known:
                raise UnknownNameError(f"unknown {name} {value!r}", f"choose one of: {', '.join(known)}")
        for name in ("clip_norm", "learning_rate", "expected_batch"):
            value = getattr(self, name)
            if not (value > 0 and np.isfinite(value)):
                raise ConfigurationError(
                    f"{name} is {value}: must be finite and above 0",
                    f"give a number such as {getattr(type(self), name, 1.0)}",
                )
        smallest, largest = CLIP_NORM_RANGE
        if not smallest <= self.clip_norm <= largest:
            raise ConfigurationError(
                f"clip_norm is {self.clip_norm}: must lie between {smallest:.2g} and {largest:.2g}",
                "scale the loss, so that gradients stay within float32",
            )


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """The records of some clients, one after the other.

    Attributes:
        images: (rows, channels, h, w) float32.
        labels: (rows,) int64.
        sizes: rows per client; may hold zeros.
        persons: (rows,) whole numbers ≥ 0 in any order, whose record each row is; needed for `unit="person"`.
    """

    images: Tensor
    labels: Tensor
    sizes: list[int]
    persons: Tensor | None = None

    @property
    def clients(self) -> int:
        """The number of clients whose records these are."""
        return len(self.sizes)

    @property
    def starts(self) -> list[int]:
        """For each client, the number of its first row."""
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
    records = by_person(records) if plan.unit == "person" else replace(records, persons=None)
    noisy = [
        NoisySum.of(sigma, source, plan, size, model.parameters)
        for sigma, source, size in zip(noise_multiplier, randomness, records.sizes, strict=True)
    ]
    # In a single step all clients share the global weights, so that a forward pass is one product for all of them.
    single = plan.steps == 1
    weights = global_weights[None] if single else global_weights.repeat(len(noisy), 1)
    parts, updates = model.parts(weights), torch.empty(len(noisy), model.parameters)
    everybody = Batch(records.images, records.labels, records.sizes, persons=records.persons)
    for _ in range(plan.steps):
        batch = everybody if plan.sampling_rate == 1.0 else sampled(records, plan, randomness)
        # After several steps the weights are what is released, so that `updates` is free for the sums.
        sums = clipped_sums(model, parts, batch, plan.clip_norm, out=None if single else updates)
        for client, how in enumerate(summations(batch)):
            # In the precision in which it was added up, so that each client releases what it would alone.
            total = sums[client].float() if how is Summation.FEW else sums[client]
            if single:
                noisy[client].write(updates[client], total, rate, fresh=True)
            else:
                noisy[client].write(weights[client], total, -rate)
    return updates if single else global_weights - weights


def private_shares(
    model: Model,
    global_weights: Tensor,
    records: ClientRecords,
    plan: LocalPlan,
    grids: Sequence[ReleaseGrid],
    randomness: Sequence[NoiseSource],
    *,
    parts: list[list[Part]] | None = None,
) -> NDArray[np.int64]:
    """What each client adds to a secure sum: its clipped sum on its grid, with its share of the noise.

    Args:
        grids: per client, from `shares.SharedSum.grid`.
        parts: `model.parts(global_weights[None])`, if they are there already.

    Returns:
        (clients, parameters); the opened sum is multiplied by `plan.learning_rate / plan.expected_batch`.
    """
    records = by_person(records) if plan.unit == "person" else replace(records, persons=None)
    batch = Batch(records.images, records.labels, records.sizes, persons=records.persons)
    if plan.sampling_rate < 1.0:
        batch = sampled(records, plan, randomness)
    sums = clipped_sums(model, parts or model.parts(global_weights[None]), batch, plan.clip_norm)
    released = np.empty(tuple(sums.shape), dtype=np.int64)
    for row, total, grid, source in zip(released, sums.numpy(), grids, randomness, strict=True):
        grid.noisy(total, source, row)
    return released


@dataclass(frozen=True)
class NoisySum:
    """How one client's clipped sums leave: on a grid with exact noise, with float noise, or without any."""

    source: NoiseSource
    grid: ReleaseGrid | None = None
    float_deviation: float = 0.0

    @classmethod
    def of(cls, sigma: float, source: NoiseSource, plan: LocalPlan, size: int, parameters: int) -> NoisySum:
        """The releases of a client with `size` records; σ = 0 adds no noise, for comparisons."""
        if not sigma:
            return cls(source)
        if plan.arithmetic == "float":
            return cls(source, float_deviation=sigma * plan.clip_norm)
        inflation = sum_inflation(size) if plan.unit == "record" else double_sum_inflation(size)
        return cls(source, ReleaseGrid.for_release(sigma, plan.clip_norm, parameters, inflation))

    def write(self, target: Tensor, total: Tensor, scale: float, *, fresh: bool = False) -> None:
        """Adds scale·(total + noise) to `target`, (parameters,) float32 and public, or overwrites it if `fresh`."""
        if self.grid is not None:
            self.grid.noisy(total.numpy(), self.source, target.numpy(), scale, add=not fresh)
            return
        noisy = total.float().contiguous()
        if self.float_deviation:
            self.source.add(noisy, self.float_deviation)
        torch.mul(noisy, scale, out=target) if fresh else target.add_(noisy, alpha=scale)


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
    """Ordinary local SGD without clipping or noise: the No-DP reference and paper-literal Algorithm 2.

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
            rates = torch.tensor([learning_rate / max(1, n) for n in sizes])
            _descend(model, weights, parts, Batch(images, labels, sizes), rates)
    return global_weights - weights


def _descend(model: Model, weights: Tensor, parts: list[list[Part]], batch: Batch, rates: Tensor) -> None:
    """weights ← weights − rate·Σ gradients, per client, all gradients taken at the old weights; no privacy."""
    if sum(batch.sizes) <= BLOCK_ROWS:
        add_plain_sums(model, parts, batch, parts, -rates)
    else:
        sums = gradient_sums(model, weights, batch.images, batch.labels, batch.sizes, None)
        weights.sub_(sums * rates[:, None])


def by_person(records: ClientRecords) -> ClientRecords:
    """The same records, each client's sorted by person; no two clients share a person's number any more.

    Somebody whose records several clients hold is one person for each of them, clipped by each on its own.

    Raises:
        ConfigurationError: there are no person numbers, or they are not one whole number ≥ 0 per record.
    """
    if records.persons is None:
        raise ConfigurationError('unit="person" without person numbers', "give ClientRecords(persons=…)")
    ids = torch.as_tensor(records.persons)
    if ids.dtype.is_floating_point or ids.shape != (records.labels.shape[0],) or bool((ids < 0).any()):
        raise ConfigurationError(
            f"person numbers of shape {tuple(ids.shape)}, {ids.dtype}, for {records.labels.shape[0]} records",
            "give one whole number ≥ 0 per record",
        )
    persons = ids.numpy()
    order = np.concatenate(
        [
            start + np.argsort(persons[start : start + size], kind="stable")
            for start, size in zip(records.starts, records.sizes, strict=True)
        ]
        or [np.zeros(0, dtype=np.int64)]
    )
    chosen = torch.from_numpy(order)
    whose, owner = persons[order], np.repeat(np.arange(records.clients), records.sizes)
    begins = np.ones(whose.size, dtype=np.bool_)
    begins[1:] = (whose[1:] != whose[:-1]) | (owner[1:] != owner[:-1])
    numbers = torch.from_numpy(np.cumsum(begins) - 1)
    return ClientRecords(records.images[chosen], records.labels[chosen], records.sizes, numbers)


def sampled(records: ClientRecords, plan: LocalPlan, randomness: Sequence[NoiseSource]) -> Batch:
    """The rows of one step: a Poisson sample of the units, in whole tiles of rows."""
    persons = records.persons
    rows, places, drawn, whose = [], [], list[int](), []
    at = 0  # rows of tiles so far
    for source, size, start in zip(randomness, records.sizes, records.starts, strict=True):
        mine = None if persons is None else persons[start : start + size]
        taken = drawn_rows(source, plan.sampling_rate, size, mine)
        layout, place = tiled(taken)
        rows.append(layout + start)
        places.append(place + at)
        drawn.append(taken.size)
        whose.append(taken + start)
        at += layout.size
    images, labels, sizes = _gather(records, rows)
    drawn_persons = None if persons is None else persons[torch.from_numpy(np.concatenate(whose))]
    stand = torch.from_numpy(np.concatenate(places))
    return Batch(images, labels, sizes, persons=drawn_persons, places=stand, drawn=drawn)


def drawn_rows(source: NoiseSource, rate: float, size: int, persons: Tensor | None) -> NDArray[np.int64]:
    """The rows of a Poisson sample of records, or of all records of sampled persons (sorted by person)."""
    if persons is None:
        return np.flatnonzero(source.bernoulli(rate, size))
    _, numbers = np.unique(persons.numpy(), return_inverse=True)
    coins = source.bernoulli(rate, int(numbers.max(initial=-1)) + 1)
    return np.flatnonzero(coins[numbers])


def _gather(records: ClientRecords, rows: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor, list[int]]:
    chosen = torch.from_numpy(np.concatenate(rows))
    return records.images[chosen], records.labels[chosen], [r.size for r in rows]
