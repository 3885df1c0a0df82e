"""A configured federated run on Flower: the same clients, types, records and noise as the plain simulation.

With one seed, `simulation.run(config)` and these apps on any engine clear the same auctions to the micro-unit: a
client is identified by its partition, not by the order of answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context

from privmarket import tasks
from privmarket._lazy import late
from privmarket._settings import TRUSTS, MarketPlan, TrainingPlan
from privmarket.errors import ConfigurationError
from privmarket.flower._client import client_app
from privmarket.flower._seller import Job, MarketClientApp, WalletOfClient, partition_name
from privmarket.flower._server import MarketServerApp, server_app
from privmarket.flower._wire import Arrays
from privmarket.market._bids import Bids
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.mechanisms import resolve
from privmarket.privacy._policy import UNLIMITED, SellerPolicy
from privmarket.privacy._release import ReleaseGrid
from privmarket.privacy._wallet_store import WalletFile
from privmarket.rounds import Offer, Terms
from privmarket.simulation._bidding import client_types
from privmarket.simulation._config import FederationConfig

if TYPE_CHECKING:
    import torch

    from privmarket import training as engine
    from privmarket.simulation import _pool as pool
    from privmarket.simulation._pool import ClientPool
else:
    engine = late("privmarket.training")
    pool = late("privmarket.simulation._pool")
    torch = late("torch")

FrozenConfig = str  # a configuration as JSON: equal ones are one key of the caches below
_FLAT = "weights"  # the model as one flat vector, which is what the plain simulation moves


def federation_server(config: FederationConfig, **extra: Any) -> MarketServerApp:
    """The server of a configured run; `extra` goes to `server_app`, e.g. deadlines."""
    if not config.privacy.is_private:
        raise ConfigurationError(
            f"mode {config.mode!r} on Flower", "only 'private' runs there; simulate the others"
        )
    training = config.training
    distribution = scenario(config.scenario)
    nominal = max(1, tasks.load_dataset(config.dataset).train_labels.size // config.clients)
    settings: dict[str, Any] = {
        **{one.name: getattr(config, one.name) for one in fields(MarketPlan)},
        **{one.name: getattr(training, one.name) for one in fields(TrainingPlan)},
        "mechanism": resolve(config.mechanism, market=MarketFacts.of(distribution), **config.mechanism_settings),
        "mechanism_settings": {},
        "epsilon_max": distribution.epsilon_max,
        "learning_rate": training.local_rate / training.clip_norm,
        "expected_batch": training.sampling_rate * nominal,
        "min_nodes": config.clients,
    }
    frozen = _frozen(config)
    return server_app(
        initial_weights=lambda: {_FLAT: _pool(frozen).initial_weights().numpy()},
        evaluate=lambda weights: _accuracy(frozen, weights),
        **{**settings, **extra},
    )


def federation_client(config: FederationConfig, wallet_folder: Path | str | None = None) -> MarketClientApp:
    """The clients of a configured run; wallets are kept in `wallet_folder`, one file each.

    The noise follows from the run's seed, as in the simulation: for studies, not for real records.
    """
    if config.wallet is not None and wallet_folder is None:
        raise ConfigurationError("clients with wallets and no folder for them", "give wallet_folder")

    def wallet(context: Context) -> WalletOfClient:
        if wallet_folder is None:
            return UNLIMITED
        return _wallet_file(frozen, wallet_folder, partition_name(context))

    frozen = _frozen(config)
    app = client_app(
        lambda weights, job: _train_many(frozen, weights, [job])[0],
        train_many=lambda weights, jobs: _train_many(frozen, weights, jobs),
        offer=lambda terms, context: _offer(frozen, terms, context),
        policy=SellerPolicy(
            epsilon_per_sale=math.inf,
            epsilon_lifetime=math.inf,
            delta=config.delta,
            trust=TRUSTS,
            # A simulated client accepts the run's own configuration, and builds a noise table if it needs one.
            schedules=((config.training.sampling_rate, config.training.steps),),
            steps=config.training.steps,
            unpaid_epsilon=math.inf,
            minimum_cohort=1,
            declared_records="exact",
        ),
        wallet=wallet,
        spread=config.wallet_policy == "spread",
        noise_seed=config.seed,
        secure_aggregation=config.trust == "aggregate",
        share=_PoolShares(frozen),
    )
    assert isinstance(app, MarketClientApp)
    app.seller.is_simulated = True
    return app


def _offer(config: FrozenConfig, terms: Terms, context: Context) -> Offer | None:
    client = int(partition_name(context))
    # Persistent types are those of the first round in every round.
    persistent = _thawed(config).types == "persistent"
    types = _types(config, 0 if persistent else terms.number)
    size = _sizes(config)[client]
    if not size:
        return None
    return Offer(float(types.valuation[client]), min(float(types.epsilon[client]), terms.epsilon_max), float(size))


@dataclass(frozen=True)
class _PoolShares:
    """A simulated client's integers for a secure sum, as in the simulation."""

    config: FrozenConfig

    def records(self, context: Context) -> int:
        """How many records the client holds."""
        return _sizes(self.config)[int(partition_name(context))]

    def share(self, weights: Arrays, job: Job, grid: ReleaseGrid) -> Arrays:
        """The client's clipped sum with its share of the noise, as integers by name."""
        clients = _pool(self.config)
        order = clients.Order(
            job.sale.number,
            (int(job.client),),
            (job.sale.epsilon,),
            (job.noise_multiplier,),
            weights[_FLAT],
            (grid,),
        )
        return {_FLAT: clients.train(order)[0]}


def _train_many(config: FrozenConfig, weights: Arrays, jobs: Sequence[Job]) -> list[Arrays]:
    """The release of each client; the same bits if clients train alone or together."""
    clients = _pool(config)
    updates = []
    for at in range(0, len(jobs), clients.chunk):
        some = jobs[at : at + clients.chunk]
        order = clients.Order(
            some[0].sale.number,
            tuple(int(job.client) for job in some),
            tuple(job.sale.epsilon for job in some),
            tuple(job.noise_multiplier for job in some),
            weights[_FLAT],
        )
        updates += list(clients.train(order))
    return [{_FLAT: update} for update in updates]


def _accuracy(config: FrozenConfig, weights: Arrays) -> float:
    clients = _pool(config)
    assert clients.task.test is not None
    with engine.one_thread():
        return clients.model.accuracy(torch.from_numpy(weights[_FLAT]), *clients.task.test.tensors())


# A process answers many messages: what follows from the configuration alone is made once.


def _frozen(config: FederationConfig) -> FrozenConfig:
    return json.dumps(config.to_json(), sort_keys=True)


@lru_cache(maxsize=4)
def _thawed(text: FrozenConfig) -> FederationConfig:
    return FederationConfig.from_json(json.loads(text))


@lru_cache(maxsize=4)
def _types(config: FrozenConfig, number: int) -> Bids:
    return client_types(_thawed(config), number)


@lru_cache(maxsize=4096)
def _wallet_file(config: FrozenConfig, folder: Path | str, client: str) -> WalletFile:
    run = _thawed(config)
    return WalletFile(
        Path(folder) / f"client-{client}.jsonl", np.inf if run.wallet is None else run.wallet, run.delta
    )


@lru_cache(maxsize=2)
def _sizes(config: FrozenConfig) -> list[int]:
    run = _thawed(config)
    labels = tasks.load_dataset(run.dataset).train_labels
    return [part.size for part in tasks.drawn_parts(labels, run.clients, run.alpha, run.sizes, run.seed)]


@lru_cache(maxsize=2)
def _pool(config: FrozenConfig) -> ClientPool:
    return pool.build_pool(_thawed(config))
