"""Local private training: Poisson batches, per-record clipping, exact noise on a grid, a public normaliser.

In a round a client releases its weights after `steps` noisy steps from the public global weights. That is
post-processing of `steps` noisy sums, each released by `privacy._release`. Zeroing out one record moves a sum by at
most `clip_norm`, the sensitivity for which the noise multiplier was calibrated, including finite arithmetic
(docs/theory/finite-arithmetic.md). With `unit="person"` all records of a person are zeroed out at once.

Implements: DP-SGD of [Abadi2016] as the local step of Algorithm 2 of [Sun2026].
Deviation: the noise is on clipped gradient sums; the paper adds it to weights whose sensitivity is unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privmarket._settings import ARITHMETICS
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import (
    CLIP_NORM_RANGE,
    ReleaseGrid,
    covered_records,
    double_sum_inflation,
    sum_inflation,
)
from privmarket.training._clipping import (
    PASS_ROWS,
    ClientRecords,
    Sample,
    add_plain_sums,
    each_clipped_sum,
    gradient_sums,
)
from privmarket.training._gradients import method_for
from privmarket.training._model import PrivateModel

SMALL_BATCH_CHUNK = 25
"""Clients trained at once where batches are small: calls cost more than arithmetic."""
FULL_BATCH_CHUNK = 10
"""Clients trained at once where a step uses all records."""

UNITS = ("record", "person")
"""The unit of privacy: one record, or all records of one person."""


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


def private_updates(
    model: PrivateModel,
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
    # In a single step all clients share the global weights, so a forward pass is one product for all of them.
    single = plan.steps == 1
    weights = global_weights[None] if single else global_weights.repeat(len(noisy), 1)
    updates = torch.empty(len(noisy), model.parameters)
    for _ in range(plan.steps):
        sample, seeds = _chance(model, records, plan, randomness)
        # After several steps the weights are released, so `updates` is free for the sums.
        sums = each_clipped_sum(
            model,
            weights,
            records,
            plan.clip_norm,
            sample=sample,
            mask_seeds=seeds,
            out=None if single else updates,
        )
        with closing(sums):
            for client, total in sums:
                if single:
                    noisy[client].write(updates[client], total, rate, fresh=True)
                else:
                    noisy[client].write(weights[client], total, -rate)
    return updates if single else global_weights - weights


def private_shares(
    model: PrivateModel,
    global_weights: Tensor,
    records: ClientRecords,
    plan: LocalPlan,
    grids: Sequence[ReleaseGrid],
    randomness: Sequence[NoiseSource],
) -> NDArray[np.int64]:
    """What each client adds to a secure sum: its clipped sum on its grid, with its share of the noise.

    Args:
        grids: per client, from `secagg.SharedSum.grid`.

    Returns:
        (clients, parameters); the opened sum is multiplied by `plan.learning_rate / plan.expected_batch`.
    """
    records = by_person(records) if plan.unit == "person" else replace(records, persons=None)
    sample, seeds = _chance(model, records, plan, randomness)
    released = np.empty((records.clients, model.parameters), dtype=np.int64)
    sums = each_clipped_sum(model, global_weights[None], records, plan.clip_norm, sample=sample, mask_seeds=seeds)
    with closing(sums):
        for client, total in sums:
            grids[client].noisy(total.numpy(), randomness[client], released[client])
    return released


def _chance(
    model: PrivateModel, records: ClientRecords, plan: LocalPlan, randomness: Sequence[NoiseSource]
) -> tuple[Sample | None, list[int] | None]:
    """The random choices of one step: each client's Poisson sample, and the seed of its dropout masks."""
    sample = None
    if plan.sampling_rate < 1.0:
        sample = sampled(records, plan.sampling_rate, randomness)
    seeds = None
    if method_for(model, records.inputs, records.labels).random:
        seeds = [int.from_bytes(source.more_bytes(4).tobytes(), "little") for source in randomness]
    return sample, seeds


@dataclass(frozen=True)
class NoisySum:
    """How a client's clipped sums are released: on a grid with exact noise, with float noise, or without."""

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
        covered = covered_records(size)  # a release reveals its grid, which must not reveal the number of records
        inflation = sum_inflation(covered) if plan.unit == "record" else double_sum_inflation(covered)
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
    model: PrivateModel,
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
    for _ in range(epochs):
        orders = [
            rng.permutation(n) + start for rng, n, start in zip(rngs, records.sizes, records.starts, strict=True)
        ]
        for at in range(0, max(records.sizes, default=0), batch):
            rows = [order[at : at + batch] for order in orders]
            chosen = torch.from_numpy(np.concatenate(rows))
            sizes = [one.size for one in rows]
            taken = ClientRecords(records.inputs[chosen], records.labels[chosen], sizes)
            rates = torch.tensor([learning_rate / max(1, size) for size in sizes])
            _descend(model, weights, taken, rates)
    return global_weights - weights


def _descend(model: PrivateModel, weights: Tensor, batch: ClientRecords, rates: Tensor) -> None:
    """weights ← weights − rate·Σ gradients, per client, all gradients taken at the old weights; no privacy."""
    if sum(batch.sizes) <= PASS_ROWS:
        add_plain_sums(model, weights, batch, weights, -rates)
    else:
        sums = gradient_sums(model, weights, batch.inputs, batch.labels, batch.sizes, None)
        weights.sub_(sums * rates[:, None])


def by_person(records: ClientRecords) -> ClientRecords:
    """The same records, each client's sorted by person, with numbers of persons that no two clients share.

    Somebody with records at several clients counts as a separate person at each of them.

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
    whose = persons[order]
    owner = np.repeat(np.arange(records.clients), records.sizes)
    begins = np.ones(whose.size, dtype=np.bool_)
    begins[1:] = (whose[1:] != whose[:-1]) | (owner[1:] != owner[:-1])
    numbers = torch.from_numpy(np.cumsum(begins) - 1)
    return ClientRecords(records.inputs[chosen], records.labels[chosen], records.sizes, numbers)


def sampled(records: ClientRecords, rate: float, randomness: Sequence[NoiseSource]) -> Sample:
    """A Poisson sample of each client's units, drawn from its own randomness."""
    drawn: list[NDArray[np.int64]] = []
    for source, size, start in zip(randomness, records.sizes, records.starts, strict=True):
        mine = None if records.persons is None else records.persons[start : start + size]
        drawn.append(drawn_rows(source, rate, size, mine))
    return Sample(rate, drawn)


def drawn_rows(source: NoiseSource, rate: float, size: int, persons: Tensor | None) -> NDArray[np.int64]:
    """The rows of a Poisson sample of records, or of all records of sampled persons (sorted by person)."""
    if persons is None:
        return np.flatnonzero(source.bernoulli(rate, size))
    _, numbers = np.unique(persons.numpy(), return_inverse=True)
    coins = source.bernoulli(rate, int(numbers.max(initial=-1)) + 1)
    return np.flatnonzero(coins[numbers])
