"""Where clients train: their records, the model and the plan; one chunk of sellers in, their updates out.

Everything random is keyed by (seed, round, client), so a site can be rebuilt in any process and computes the
same update for a client whoever asks and in whatever order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket.federated.clients import client_parts
from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import Dataset, load_dataset
from privmarket.federated.features import with_features
from privmarket.federated.local import ClientRecords, LocalPlan, plain_updates, private_updates
from privmarket.federated.models import Model, build_model
from privmarket.federated.partition import Records
from privmarket.privacy.gaussian import literal_noise_multiplier
from privmarket.privacy.noise import NoiseSource

# What each stream of random numbers is for; keeps them independent. `clients` holds 1 and 5.
_WEIGHTS, _SHUFFLE, _LITERAL_NOISE = 2, 3, 4

# The paper's local training, Table III of [Sun2026]: used by `no-dp` (one epoch) and `literal`.
_PLAIN_BATCH = 32
_PLAIN_RATE = 0.5  # of 0.05, 0.5 and 2 on validation records: an undertrained reference would flatter the market
_LITERAL_EPOCHS = 5
_LITERAL_RATE = 0.01
_LITERAL_EPSILON_MIN = 0.1


@dataclass(frozen=True, eq=False)
class Site:
    """All clients of a run.

    Attributes:
        images: (records, channels, h, w) of all clients, features already computed.
        parts: record numbers of each client; may be empty.
        nominal_records: public number of records per client; sums are divided by its expected batch.
    """

    config: FederationConfig
    model: Model
    images: Tensor
    labels: Tensor
    parts: list[Records]
    nominal_records: int

    @property
    def plan(self) -> LocalPlan:
        """The public training plan."""
        training = self.config.training
        return LocalPlan(
            steps=training.steps,
            sampling_rate=training.sampling_rate,
            clip_norm=training.clip_norm,
            # Relative to C: halving C alone then changes the bias of clipping, not the size of a step.
            learning_rate=training.local_rate / training.clip_norm,
            expected_batch=training.sampling_rate * self.nominal_records,
        )

    def records(self, clients: tuple[int, ...]) -> ClientRecords:
        """The records of some clients, one after the other."""
        chosen = [self.parts[i] for i in clients]
        rows = torch.from_numpy(np.concatenate(chosen))
        return ClientRecords(self.images[rows], self.labels[rows], [part.size for part in chosen])

    def initial_weights(self) -> Tensor:
        """(parameters,) where training starts: public."""
        return self.model.initial_weights(np.random.default_rng([self.config.seed, _WEIGHTS]))


@dataclass(frozen=True, eq=False)
class ChunkTask:
    """Some sellers of one round.

    Attributes:
        clients: their numbers.
        noise_multiplier: of each; for `literal`, the ε of each instead.
        weights: (parameters,) global weights.
    """

    round_number: int
    clients: tuple[int, ...]
    noise_multiplier: tuple[float, ...]
    weights: np.ndarray


def build_site(config: FederationConfig) -> Site:
    """Loads the data set, computes features and splits the records."""
    return site_from(config, with_features(load_dataset(config.dataset), config.training.features))


def site_from(config: FederationConfig, dataset: Dataset, parts: list[Records] | None = None) -> Site:
    """A site on a data set whose features are computed; `parts` instead of a Dirichlet split if given."""
    if parts is None:
        parts = client_parts(config, dataset.train_labels)
    model = build_model(config.training.model, dataset.image_shape, dataset.classes)
    return Site(
        config,
        model,
        torch.from_numpy(dataset.train_images),
        torch.from_numpy(dataset.train_labels),
        parts,
        max(1, dataset.train_labels.size // config.clients),
    )


def train_chunk(site: Site, task: ChunkTask) -> np.ndarray:
    """(clients, parameters) float32: what each client of the chunk releases."""
    weights = torch.from_numpy(task.weights)
    records = site.records(task.clients)
    mode = site.config.mode
    if mode in ("private", "no-noise"):
        sources = [client_source(site.config.seed, task.round_number, i) for i in task.clients]
        noise = task.noise_multiplier if mode == "private" else [0.0] * len(task.clients)
        return private_updates(site.model, weights, records, site.plan, noise, sources).numpy()
    key = [site.config.seed, _SHUFFLE, task.round_number]
    rngs = [np.random.default_rng([*key, i]) for i in task.clients]
    if mode == "no-dp":
        return plain_updates(
            site.model, weights, records, batch=_PLAIN_BATCH, epochs=1, learning_rate=_PLAIN_RATE, rngs=rngs
        ).numpy()
    return _literal_updates(site, task, weights, records, rngs)


def client_source(seed: int, round_number: int, client: int) -> NoiseSource:
    """One client's batches and noise in one round of a simulation. A real client uses the system's key."""
    return NoiseSource.from_seed(seed, "update", round_number, client)


def _literal_updates(
    site: Site,
    task: ChunkTask,
    weights: Tensor,
    records: ClientRecords,
    rngs: list[np.random.Generator],
) -> np.ndarray:
    """Algorithm 2 of [Sun2026] to the letter: noise on trained weights, δ = 1/N, sensitivity taken as 1."""
    updates = plain_updates(
        site.model,
        weights,
        records,
        batch=_PLAIN_BATCH,
        epochs=_LITERAL_EPOCHS,
        learning_rate=_LITERAL_RATE,
        rngs=rngs,
    ).numpy()
    delta = 1.0 / max(2, site.config.clients)
    for row, (client, epsilon) in enumerate(zip(task.clients, task.noise_multiplier, strict=True)):
        sigma = float(literal_noise_multiplier(max(epsilon, _LITERAL_EPSILON_MIN), delta))
        rng = np.random.default_rng([site.config.seed, _LITERAL_NOISE, task.round_number, client])
        updates[row] += sigma * rng.standard_normal(updates.shape[1], dtype=np.float32)
    return updates
