"""All clients of a simulation in one place, and the processes that train them.

A pool holds the clients' records, the model and the plan, and computes the updates of sellers. All randomness is
keyed by (seed, round, client), so a pool can be rebuilt in any process and gives the same update for a client in
any order. Sellers are cut into chunks in a fixed order, and a chunk is the unit of work. Its result depends only on
the chunk, so it is the same to the last bit for any number of processes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from privmarket.privacy._gaussian import literal_noise_multiplier
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid
from privmarket.simulation._config import FederationConfig, Mode
from privmarket.simulation._moments import MomentsSale, Whitening
from privmarket.tasks import task as builtin
from privmarket.training import (
    FULL_BATCH_CHUNK,
    SMALL_BATCH_CHUNK,
    ClientRecords,
    LocalPlan,
    PrivateModel,
    one_thread,
    plain_updates,
    private_shares,
    private_updates,
)

if TYPE_CHECKING:
    from privmarket.tasks import Task


# Names of independent streams of random numbers; `tasks` and `_bidding` hold the others.
_WEIGHTS = 2
_SHUFFLE = 3
_LITERAL_NOISE = 4

# The paper's local training, Table III of [Sun2026]: used by `no-dp` (one epoch) and `literal`.
# Each step size is the best of several on validation records.
PLAIN_RATE = 0.5
# Pixels share a background, and their squared length is about their number. With the step above, units of a hidden
# layer on pixels die or its weights diverge.
PIXEL_RATES = {"mlp": 0.2, "cnn": 0.1}
_PLAIN_BATCH = 32
_LITERAL_EPOCHS = 5
_LITERAL_RATE = 0.01
_LITERAL_EPSILON_MIN = 0.1


@dataclass(frozen=True, eq=False)
class ChunkOrder:
    """Some sellers of one round that train together.

    Attributes:
        round_number: from 0.
        clients: positions of the clients.
        epsilon: what each of them sold.
        noise_multiplier: of that ε.
        weights: (parameters,) global weights.
        grids: of each client's share of a secure sum; empty where updates are released one by one.
        sells_moments: they release moments of their inputs, and no update.
        whitening: the public map that clients apply to their inputs; None before one is known.
    """

    round_number: int
    clients: tuple[int, ...]
    epsilon: tuple[float, ...]
    noise_multiplier: tuple[float, ...]
    weights: np.ndarray
    grids: tuple[ReleaseGrid, ...] = ()
    sells_moments: bool = False
    whitening: Whitening | None = None


@dataclass(frozen=True, eq=False)
class ClientPool:
    """All clients of a run.

    Attributes:
        task: whose private records they hold, one client's after the other.
        model: the task's module.
        nominal_records: public number of units (records or persons) per client; sums are divided by its expected
            batch.
        Order: the argument type of `train`.
    """

    Order: ClassVar[type[ChunkOrder]] = ChunkOrder
    config: FederationConfig
    task: Task
    model: PrivateModel
    nominal_records: int

    @classmethod
    def of(cls, config: FederationConfig, task: Task) -> ClientPool:
        """The clients of a task, as they train in this run."""
        # A built-in data set is shared out by a public draw; of a table only the declared sizes are public.
        units = task.declared_sizes if config.task else task.units
        nominal = max(1, int(units.sum()) // len(task.clients))
        return cls(config, task, PrivateModel(task.build_model(config.seed), task.loss, name=task.name), nominal)

    @cached_property
    def inputs(self) -> Tensor:
        """(records, ...) of all clients."""
        return self.task.private.tensors()[0]

    @cached_property
    def labels(self) -> Tensor:
        """(records, ...) of all clients."""
        return self.task.private.tensors()[1]

    @cached_property
    def parts(self) -> list[slice]:
        """The rows of each client."""
        return self.task.slices()

    @cached_property
    def plan(self) -> LocalPlan:
        """The public plan by which every client trains."""
        training = self.config.training
        return LocalPlan(
            steps=training.steps,
            sampling_rate=training.sampling_rate,
            clip_norm=training.clip_norm,
            # Relative to C, so that halving C alone changes the bias of clipping but not the size of a step.
            learning_rate=training.local_rate / training.clip_norm,
            expected_batch=training.sampling_rate * self.nominal_records,
            unit=self.task.unit,
            arithmetic=training.arithmetic,
        )

    @cached_property
    def mode(self) -> Mode:
        """The `Mode` of the run: what it does with privacy."""
        return self.config.privacy

    @cached_property
    def chunk(self) -> int:
        """How many clients train together; measured, so that they fit the processor's caches."""
        one_step = self.config.training.steps == 1 and self.mode.counts_epsilon
        return FULL_BATCH_CHUNK if one_step else SMALL_BATCH_CHUNK

    @cached_property
    def moments(self) -> MomentsSale:
        """What a round that sells moments of the inputs releases."""
        return MomentsSale.of(self.config, self.task)

    @cached_property
    def _whitened(self) -> dict[tuple[str, int], Tensor]:
        """(key of a map, client) → the client's whitened inputs; a cache for one map at a time."""
        return {}

    def sale(self, *, sells_moments: bool, whitening: Whitening | None) -> tuple[PrivateModel, LocalPlan]:
        """The model whose gradients clients release in a round, and their public plan."""
        if sells_moments:
            return self.moments.model, self.moments.plan(self.task.unit)
        if whitening is None:
            return self.model, self.plan
        clip_norm = whitening.training(self.config.training, self.task).clip_norm
        rate = self.config.training.local_rate / clip_norm
        return self.model, replace(self.plan, clip_norm=clip_norm, learning_rate=rate)

    def initial_weights(self) -> Tensor:
        """(parameters,) the public weights that training starts from."""
        return self.model.initial_weights(np.random.default_rng([self.config.seed, _WEIGHTS]))

    def train(self, order: ChunkOrder) -> np.ndarray:
        """(clients, parameters): what each client of the chunk releases, in the run's mode; computed in one thread.

        float32; where the order names the grids of a secure sum, one row of int64, the chunk's part of the sum.
        """
        with one_thread():
            if self.mode.reference is not None:
                return _REFERENCES[self.mode.reference](self, order)
            if order.grids:
                return self.shares(order)
            # For simulations only: whoever knows the seed knows the noise. A real client uses the operating
            # system's key.
            key = self.config.seed, "update", order.round_number
            sources = [NoiseSource.from_seed(*key, client) for client in order.clients]
            sigma = order.noise_multiplier if self.mode.is_private else (0.0,) * len(order.clients)
            weights = torch.from_numpy(order.weights)
            records = self._ordered(order, order.clients)
            model, plan = self.sale(sells_moments=order.sells_moments, whitening=order.whitening)
            return private_updates(model, weights, records, plan, sigma, sources).numpy()

    def shares(self, order: ChunkOrder) -> np.ndarray:
        """(1, parameters) int64: what the clients add to a secure sum, modulo 2⁶⁴; see `secagg.SharedSum`.

        Clients are computed one after the other: matrix products round differently when clients are stacked, and a
        sum must be the same to the last bit if its sellers are on machines of their own.
        """
        weights = torch.from_numpy(order.weights)
        total = np.zeros((1, order.weights.size), dtype=np.int64)
        model, plan = self.sale(sells_moments=order.sells_moments, whitening=order.whitening)
        for client, grid in zip(order.clients, order.grids, strict=True):
            source = NoiseSource.from_seed(self.config.seed, "update", order.round_number, client)
            records = self._ordered(order, (client,))
            total += private_shares(model, weights, records, plan, [grid], [source])
        return total

    def plain_updates(
        self, order: ChunkOrder, *, epochs: int = 1, learning_rate: float | None = None
    ) -> np.ndarray:
        """Ordinary local training, see `local.plain_updates`; without a rate, the model's own."""
        key = [self.config.seed, _SHUFFLE, order.round_number]
        return plain_updates(
            self.model,
            torch.from_numpy(order.weights),
            self._records(order.clients),
            batch=_PLAIN_BATCH,
            epochs=epochs,
            learning_rate=learning_rate or plain_rate(self.config.training.model, self.config.training.features),
            rngs=[np.random.default_rng([*key, client]) for client in order.clients],
        ).numpy()

    def literal_updates(self, order: ChunkOrder) -> np.ndarray:
        """Algorithm 2 of [Sun2026], paper-literal: noise on trained weights, δ = 1/N, sensitivity taken as 1."""
        updates = self.plain_updates(order, epochs=_LITERAL_EPOCHS, learning_rate=_LITERAL_RATE)
        delta = 1.0 / max(2, self.config.clients)
        for row, (client, epsilon) in enumerate(zip(order.clients, order.epsilon, strict=True)):
            sigma = float(literal_noise_multiplier(max(epsilon, _LITERAL_EPSILON_MIN), delta))
            rng = np.random.default_rng([self.config.seed, _LITERAL_NOISE, order.round_number, client])
            updates[row] += sigma * rng.standard_normal(updates.shape[1], dtype=np.float32)
        return updates

    def _ordered(self, order: ChunkOrder, clients: tuple[int, ...]) -> ClientRecords:
        """The records of some clients, with inputs as they are used in this round."""
        records = self._records(clients)
        if order.sells_moments:
            rows = self.moments.rows(records.inputs)
            return replace(records, inputs=rows, labels=rows)
        if order.whitening is None:
            return records
        key = order.whitening.key
        if any(known != key for known, _ in self._whitened):
            self._whitened.clear()
        for client in clients:
            # One client after the other, as each would do it on a machine of its own.
            if (key, client) not in self._whitened:
                self._whitened[key, client] = order.whitening.of(self.inputs[self.parts[client]])
        return replace(records, inputs=torch.cat([self._whitened[key, client] for client in clients]))

    def _records(self, clients: tuple[int, ...]) -> ClientRecords:
        """The records of some clients, one after the other."""
        chosen = [self.parts[i] for i in clients]
        sizes = [part.stop - part.start for part in chosen]
        # The records of neighbouring clients are adjacent, so a slice of them is not copied.
        side_by_side = all(one.stop == other.start for one, other in itertools.pairwise(chosen))
        persons = self.task.private.persons
        if side_by_side:
            rows = slice(chosen[0].start, chosen[-1].stop)
            whose = None if persons is None else torch.from_numpy(persons[rows])
            return ClientRecords(self.inputs[rows], self.labels[rows], sizes, whose)
        places = np.concatenate([np.arange(part.start, part.stop) for part in chosen])
        taken = torch.from_numpy(places)
        whose = None if persons is None else torch.from_numpy(persons[places])
        return ClientRecords(self.inputs[taken], self.labels[taken], sizes, whose)


_REFERENCES = {"plain": ClientPool.plain_updates, "literal": ClientPool.literal_updates}


def plain_rate(model: str, features: str) -> float:
    """The step size of training without privacy, for this model on these features."""
    return PIXEL_RATES.get(model, PLAIN_RATE) if features == "none" else PLAIN_RATE


def builtin_task(config: FederationConfig) -> Task:
    """The task that a configuration names: a built-in data set with its features, model and split."""
    model = {"logistic": "linear"}.get(config.training.model, config.training.model)
    return builtin(
        config.dataset,
        clients=config.clients,
        alpha=config.alpha,
        sizes=config.sizes,
        public=config.public,
        features=config.training.features,
        model=model,
        measured_on=config.measured_on,
        seed=config.seed,
    )


def build_pool(config: FederationConfig) -> ClientPool:
    """The pool of a built-in data set, for a process of its own."""
    return ClientPool.of(config, builtin_task(config))


# --- processes -------------------------------------------------------------------------------------------


Argument = TypeVar("Argument")
Built = TypeVar("Built")
Work = TypeVar("Work")

# The function that a worker process applies to each piece of work; set once in each process by `_start`.
_WORK: list[Callable[..., np.ndarray]] = []


def process_context() -> BaseContext:
    """How worker processes are started: not by a fork of this one, which may run threads (a progress bar) and hang.

    On Linux they are forked from a helper process that has imported torch and runs no threads. The first worker
    takes as long as a fresh interpreter, every further one some hundredths of a second. Elsewhere each is a fresh
    interpreter.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["privmarket.simulation._federation"])
    return context


class Workers(Generic[Work]):
    """Maps chunks of work over processes; one worker means this process.

    Args:
        build: makes what every worker needs (data, model) from `argument`, once per process.
        work: (what `build` made, a piece of work) → array.

    Attributes:
        map: pieces of work → their results, in the same order.
    """

    map: Callable[[Sequence[Work]], Iterable[np.ndarray]]

    def __init__(
        self,
        build: Callable[[Argument], Built],
        argument: Argument,
        work: Callable[[Built, Work], np.ndarray],
        count: int = 1,
    ) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if count == 1:
            self.map = partial(map, partial(work, build(argument)))
        else:
            self._pool = ProcessPoolExecutor(count, process_context(), _start, (build, argument, work))
            self.map = partial(self._pool.map, _run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _start(
    build: Callable[[Argument], Built], argument: Argument, work: Callable[[Built, Work], np.ndarray]
) -> None:
    torch.set_num_threads(1)
    _WORK[:] = [partial(work, build(argument))]


def _run(work: object) -> np.ndarray:
    return _WORK[0](work)
