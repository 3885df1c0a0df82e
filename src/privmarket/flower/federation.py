"""A configured federated run on Flower: the same clients, types, records and noise as the plain simulation.

With one seed, `simulation.run(config)` and these apps on any engine clear the same auctions to the micro-unit: who
a client is follows from its partition, never from who answers first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context

from privmarket.errors import ConfigurationError
from privmarket.federated.clients import client_parts, client_types
from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import load_dataset
from privmarket.federated.round import Offer
from privmarket.flower.client import Job, MarketClientApp, client_app, partition_name
from privmarket.flower.journal import WalletFile
from privmarket.flower.server import MarketServerApp, server_app
from privmarket.flower.wire import Arrays, Call
from privmarket.market.scenarios import scenario
from privmarket.mechanisms import mechanism as named_mechanism
from privmarket.mechanisms import takes_setting

if TYPE_CHECKING:
    from privmarket.federated.site import Site

FrozenConfig = str  # a configuration as JSON: equal ones are one key of the caches below
_FLAT = "weights"  # the model as one flat vector, which is what the plain simulation moves


def federation_server(config: FederationConfig, **extra: Any) -> MarketServerApp:
    """The server of a configured run; `extra` goes to `server_app`, e.g. deadlines."""
    if config.mode != "private":
        raise ConfigurationError(
            f"mode {config.mode!r} on Flower", "only 'private' runs there; simulate the others"
        )
    training, law = config.training, scenario(config.scenario)
    public = {"law": law, "scenario": config.scenario, "epsilon_max": law.epsilon_max}
    wanted = {key: value for key, value in public.items() if takes_setting(config.mechanism, key)}
    nominal = max(1, load_dataset(config.dataset).train_labels.size // config.clients)
    settings: dict[str, Any] = {
        "mechanism": named_mechanism(config.mechanism, **{**wanted, **config.mechanism_settings}),
        **{name: getattr(config, name) for name in ("budget", "total_budget", "rounds", "aggregation", "delta")},
        **{name: getattr(config, name) for name in ("kappa", "heterogeneity", "evaluate_every")},
        **{name: getattr(training, name) for name in ("sampling_rate", "steps", "clip_norm", "server_rate")},
        **{name: getattr(training, name) for name in ("final_rate", "momentum", "averaging")},
        "epsilon_max": law.epsilon_max,
        "learning_rate": training.local_rate / training.clip_norm,
        "expected_batch": training.sampling_rate * nominal,
        "min_nodes": config.clients,
    }
    frozen = _frozen(config)
    return server_app(
        initial_weights=lambda: {_FLAT: _site(frozen).initial_weights().numpy()},
        evaluate=lambda weights: _accuracy(frozen, weights),
        **{**settings, **extra},
    )


def federation_client(config: FederationConfig, wallet_folder: Path | str | None = None) -> MarketClientApp:
    """The clients of a configured run; wallets are kept in `wallet_folder`, one file each.

    The noise follows from the run's seed, as in the simulation: for studies, not for real records.
    """
    if config.wallet is not None and wallet_folder is None:
        raise ConfigurationError("clients with wallets and no folder for them", "give wallet_folder")

    def wallet(context: Context) -> WalletFile | None:
        if wallet_folder is None:
            return None
        cap = np.inf if config.wallet is None else config.wallet
        return WalletFile(Path(wallet_folder) / f"client-{partition_name(context)}.jsonl", cap, config.delta)

    frozen = _frozen(config)
    app = client_app(
        lambda weights, job: _train_many(frozen, weights, [job])[0],
        train_many=lambda weights, jobs: _train_many(frozen, weights, jobs),
        offer=lambda call, context: _offer(frozen, call, context),
        wallet=wallet,
        spread=config.wallet_policy == "spread",
        noise_seed=config.seed,
    )
    assert isinstance(app, MarketClientApp)
    return app


def _offer(config: FrozenConfig, call: Call, context: Context) -> Offer | None:
    client = int(partition_name(context))
    types, size = _types(config, call.number), _sizes(config)[client]
    if not size:
        return None
    return Offer(float(types.valuation[client]), min(float(types.epsilon[client]), call.epsilon_max), float(size))


def _train_many(config: FrozenConfig, weights: Arrays, jobs: Sequence[Job]) -> list[Arrays]:
    """What each client releases; the same bits whether clients train alone or together."""
    from privmarket.federated.local import FULL_BATCH_CHUNK, SMALL_BATCH_CHUNK
    from privmarket.federated.site import ChunkTask, train_chunk
    from privmarket.federated.workers import one_thread

    site, updates = _site(config), []
    chunk = FULL_BATCH_CHUNK if site.config.training.steps == 1 else SMALL_BATCH_CHUNK
    with one_thread():
        for at in range(0, len(jobs), chunk):
            some = jobs[at : at + chunk]
            clients, noise = tuple(int(job.client) for job in some), tuple(job.noise_multiplier for job in some)
            updates += list(train_chunk(site, ChunkTask(some[0].sale.number, clients, noise, weights[_FLAT])))
    return [{_FLAT: update} for update in updates]


def _accuracy(config: FrozenConfig, weights: Arrays) -> float:
    import torch

    from privmarket.federated.workers import one_thread

    images, labels = _test_records(config)
    with one_thread():
        return _site(config).model.accuracy(torch.from_numpy(weights[_FLAT]), images, labels)


# A process answers many messages: what follows from the configuration alone is made once.


def _frozen(config: FederationConfig) -> FrozenConfig:
    return json.dumps(config.to_json(), sort_keys=True)


def _thawed(text: FrozenConfig) -> FederationConfig:
    return FederationConfig.from_json(json.loads(text))


@lru_cache(maxsize=4)
def _types(config: FrozenConfig, number: int) -> Any:
    return client_types(_thawed(config), number)


@lru_cache(maxsize=2)
def _sizes(config: FrozenConfig) -> list[int]:
    run = _thawed(config)
    return [part.size for part in client_parts(run, load_dataset(run.dataset).train_labels)]


@lru_cache(maxsize=2)
def _site(config: FrozenConfig) -> Site:
    from privmarket.federated.site import build_site

    return build_site(_thawed(config))


@lru_cache(maxsize=2)
def _test_records(config: FrozenConfig) -> tuple[Any, Any]:
    import torch

    from privmarket.federated.features import with_features

    run = _thawed(config)
    dataset = with_features(load_dataset(run.dataset), run.training.features)
    return torch.from_numpy(dataset.test_images), torch.from_numpy(dataset.test_labels)
