"""A whole federated run: the market's rounds, the training they buy, the money and the privacy they cost.

Implements: Algorithm 2 of [Sun2026] over many rounds, with composition (its limitation L1) accounted for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from privmarket.federated.aggregation import aggregate, seller_weights
from privmarket.federated.checkpoint import load_checkpoint, save_checkpoint
from privmarket.federated.clients import client_types
from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import Dataset, load_dataset
from privmarket.federated.errors import CheckpointError, DataError
from privmarket.federated.features import with_features
from privmarket.federated.local import FULL_BATCH_CHUNK, SMALL_BATCH_CHUNK
from privmarket.federated.partition import Records
from privmarket.federated.round import MICRO, Offer, Round, Settlement, Terms
from privmarket.federated.server import ServerPlan, ServerState, server_step
from privmarket.federated.site import ChunkTask, Site, build_site, site_from, train_chunk
from privmarket.federated.state import RoundRecord, RunResult, RunState, from_checkpoint, to_checkpoint
from privmarket.federated.workers import Workers, one_thread
from privmarket.market.bids import Array, Bids
from privmarket.market.mechanism import Mechanism
from privmarket.market.objectives import AggregationError
from privmarket.market.scenarios import Law, scenario
from privmarket.mechanisms import mechanism as named_mechanism
from privmarket.mechanisms import takes_setting
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent, release
from privmarket.privacy.wallet import Wallets

OnRound = Callable[["RoundRecord"], None]
Strategy = Callable[[Array, Array, float], Array]
"""(valuation, remaining budget, round) ↦ reported valuation, arrays (clients,); a solved game gives one."""


class Federation:
    """One run's fixed parts and its step from round to round.

    Args:
        config: the run.
        dataset: instead of the configured one.
        parts: record numbers per client, instead of the configured split.
        mechanism: a ready rule, instead of the configured name.
        workers: processes that train; any number gives the same result.
        strategy: how clients report, e.g. the bid function of a solved mean-field game; None is truthful. What is
            left of a wallet, as its share of the lifetime ε, is the remaining budget; without a wallet, infinity.
    """

    def __init__(
        self,
        config: FederationConfig,
        *,
        dataset: Dataset | None = None,
        parts: list[Records] | None = None,
        mechanism: Mechanism | None = None,
        workers: int = 1,
        strategy: Strategy | None = None,
    ) -> None:
        self.config = config
        self.strategy = strategy
        training = config.training
        own = dataset is not None or parts is not None
        if own and workers > 1:
            raise DataError("several workers need a data set that each can load by name", "use workers=1")
        raw = dataset if dataset is not None else load_dataset(config.dataset, measured_on=config.measured_on)
        featured = with_features(raw, training.features)
        self.site: Site = site_from(config, featured, parts)
        if not any(part.size for part in self.site.parts):
            raise DataError("no client has any records", "use fewer clients or a larger data set")
        self._test_images = torch.from_numpy(featured.test_images)
        self._test_labels = torch.from_numpy(featured.test_labels)
        self.law = scenario(config.scenario)
        self.mechanism = mechanism if mechanism is not None else _market_rule(config, self.law)
        self.family = ReleaseFamily(training.sampling_rate, training.steps, config.delta)
        self.server_plan = ServerPlan(
            training.server_rate, training.final_rate, training.momentum, training.averaging
        )
        self._workers = (
            Workers(build_site, config, train_chunk, workers)
            if workers > 1
            else Workers(lambda site: site, self.site, train_chunk)
        )

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.__exit__()

    def start(self) -> RunState:
        """Before the first round."""
        config = self.config
        cap = np.inf if config.wallet is None else config.wallet
        total = config.budget * config.rounds if config.total_budget is None else config.total_budget
        # What is expected is public, so every wallet can fix its measure before anyone sold.
        typical = [self.family.event(self.law.epsilon_max)]
        wallets = Wallets(np.full(config.clients, cap), config.delta, expected=typical)
        return RunState(0, ServerState.start(self.site.initial_weights()), wallets, int(total * MICRO), ())

    def types(self, number: int) -> Bids:
        """(clients,) the clients' true valuations and caps in a round."""
        return client_types(self.config, number)

    def step(self, state: RunState) -> RunState:
        """One round: publish, bid, clear, train, settle, aggregate."""
        if self.config.mode == "no-dp":
            return self._plain_step(state)
        number = state.next_round
        market = Round.publish(Terms(number, self._budget(state), self.family, self.law.epsilon_max))
        market = market.bid(self._offers(state)).clear(self.mechanism)
        sellers = tuple(market.awards)
        updates = self._train(state, tuple(int(c) for c in sellers), market)
        faults = _faults(sellers, updates)
        market, settlement = market.deliver(faults).settle()
        state = self._charge(state, settlement)
        good = np.array([faults[c] is None for c in sellers], dtype=bool)
        if good.any():
            weights = self._weights(market, sellers, good)
            state = self._move(state, aggregate(weights, updates[good]))
        return self._record(state, settlement, bidders=len(market.offers))

    def _budget(self, state: RunState) -> int:
        """This round's escrow, micro-units: the budget per round, or an even share of what is left."""
        if self.config.total_budget is None:
            return int(self.config.budget * MICRO)
        return max(1, state.remaining_micro // (self.config.rounds - state.next_round))

    def _offers(self, state: RunState) -> dict[str, Offer]:
        """Offers of the clients that have records and something left in their wallets."""
        types = self.types(state.next_round)
        valuation = self._reported(state, types)
        epsilon = self._affordable(state, np.minimum(types.epsilon, self.law.epsilon_max))
        return {
            str(i): Offer(float(valuation[i]), float(epsilon[i]), float(self.site.parts[i].size))
            for i in range(self.config.clients)
            if self.site.parts[i].size and epsilon[i] > 0
        }

    def _reported(self, state: RunState, types: Bids) -> Array:
        """(clients,) the valuations that clients report: the true ones, unless they follow a strategy."""
        if self.strategy is None:
            return types.valuation
        wallet = np.inf if self.config.wallet is None else self.config.wallet
        remaining = state.wallets.remaining_share * wallet
        return np.maximum(self.strategy(types.valuation, remaining, float(state.next_round)), 0.0)

    def _affordable(self, state: RunState, wanted: Array) -> Array:
        """(clients,) what each client offers of `wanted`, given what its wallet has left."""
        if self.config.wallet is None or self.config.mode == "literal":
            return wanted
        spread = self.config.wallet_policy == "spread"
        purse = state.wallets.share(self.config.rounds - state.next_round) if spread else state.wallets
        return purse.trim(self.family, wanted)

    def _train(self, state: RunState, sellers: tuple[int, ...], market: Round) -> np.ndarray:
        """(sellers, parameters)."""
        literal = self.config.mode == "literal"
        awards = market.awards
        noise = [awards[str(i)].epsilon if literal else awards[str(i)].noise_multiplier for i in sellers]
        return self._run_chunks(state, sellers, tuple(noise))

    def _run_chunks(self, state: RunState, clients: tuple[int, ...], noise: tuple[float, ...]) -> np.ndarray:
        weights = state.server.weights.numpy()
        one_step = self.config.training.steps == 1 and self.config.mode in ("private", "no-noise")
        chunk = FULL_BATCH_CHUNK if one_step else SMALL_BATCH_CHUNK
        tasks = [
            ChunkTask(state.next_round, clients[a : a + chunk], noise[a : a + chunk], weights)
            for a in range(0, len(clients), chunk)
        ]
        done = self._workers.map(tasks)
        return np.concatenate(done) if done else np.zeros((0, weights.size), dtype=np.float32)

    def _weights(self, market: Round, sellers: tuple[str, ...], good: np.ndarray) -> Array:
        """(good sellers,) aggregation weights."""
        usable = {c for c, ok in zip(sellers, good, strict=True) if ok}
        scheme = "epsilon" if self.config.mode == "literal" else self.config.aggregation
        objective = AggregationError(self.config.kappa, self.config.heterogeneity)
        return seller_weights(market, usable, scheme, objective)

    def _charge(self, state: RunState, settlement: Settlement) -> RunState:
        """Wallets pay with what was released, the buyer with money, in one new state."""
        wallets = state.wallets.copy()
        # Without noise the wallets are charged as if there were some, so that the same clients sell.
        if self.config.mode in ("private", "no-noise"):
            events: list[PrivacyEvent | None] = [None] * self.config.clients
            for client, award in settlement.sold.items():
                events[int(client)] = release(award.noise_multiplier, self.family.sampling_rate, self.family.steps)
            wallets.spend(events)
        left = state.remaining_micro - settlement.spent_micro
        return replace(state, wallets=wallets, remaining_micro=left)

    def _move(self, state: RunState, update: np.ndarray) -> RunState:
        """Literal runs replace the weights by the sellers' average, without a server optimiser."""
        plan = ServerPlan() if self.config.mode in ("literal", "no-dp") else self.server_plan
        progress = state.next_round / self.config.rounds
        return replace(state, server=server_step(state.server, torch.from_numpy(update), plan, progress))

    def _plain_step(self, state: RunState) -> RunState:
        """FedAvg: everyone with records takes part, weighted by records, for free."""
        clients = tuple(i for i, part in enumerate(self.site.parts) if part.size)
        updates = self._run_chunks(state, clients, (0.0,) * len(clients))
        sizes = np.array([self.site.parts[i].size for i in clients], dtype=np.float64)
        state = self._move(state, aggregate(sizes / sizes.sum(), updates))
        nothing = Settlement(state.next_round, 0, {}, {}, {})
        return self._record(state, nothing, bidders=0)

    def _record(self, state: RunState, settlement: Settlement, bidders: int) -> RunState:
        number = state.next_round
        last = number + 1 == self.config.rounds
        measured = last or (number + 1) % self.config.evaluate_every == 0
        record = RoundRecord(
            number=number,
            bidders=bidders,
            sellers=len(settlement.paid_micro),
            total_epsilon=settlement.total_epsilon,
            spent_micro=settlement.spent_micro,
            refunded_micro=settlement.refunded_micro,
            sold_epsilon={client: award.epsilon for client, award in settlement.sold.items()},
            paid_micro=settlement.paid_micro,
            dropped=settlement.dropped,
            accuracy=self.accuracy(state) if measured else None,
        )
        return replace(state, next_round=number + 1, records=(*state.records, record))

    def accuracy(self, state: RunState) -> float:
        """Accuracy of the model as it stands, on the records that the run is measured on."""
        with one_thread():
            return self.site.model.accuracy(self.model_weights(state), self._test_images, self._test_labels)

    def model_weights(self, state: RunState) -> torch.Tensor:
        """(parameters,) the model that is tested and kept: averaged over rounds where the plan says so."""
        averaged = self.server_plan.averaging > 0 and self.config.mode in ("private", "no-noise")
        return state.server.averaged if averaged else state.server.weights


def _market_rule(config: FederationConfig, law: Law) -> Mechanism:
    """The configured rule, told this market's public law and limit where it wants to know them."""
    public = {"law": law, "scenario": config.scenario, "epsilon_max": law.epsilon_max}
    wanted = {key: value for key, value in public.items() if takes_setting(config.mechanism, key)}
    return named_mechanism(config.mechanism, **{**wanted, **config.mechanism_settings})


def _faults(sellers: tuple[str, ...], updates: np.ndarray) -> dict[str, str | None]:
    """client → None, or what is wrong with its update."""
    finite = np.isfinite(updates).all(axis=1)
    return {c: None if ok else "update is not finite" for c, ok in zip(sellers, finite, strict=True)}


def run(
    config: FederationConfig,
    *,
    workers: int = 1,
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    on_round: OnRound = lambda _: None,
    strategy: Strategy | None = None,
) -> RunResult:
    """Runs all rounds, resuming from `checkpoint` if it holds this very configuration.

    Args:
        workers: processes that train.
        checkpoint: the file to save to and resume from.
        checkpoint_every: rounds between two saves.
        on_round: told each round's record, also those that a resumed run already had.
        strategy: how clients report; not part of the checkpoint, so resume with the same.
    """
    started = time.perf_counter()
    with Federation(config, workers=workers, strategy=strategy) as federation:
        state = _resume(federation, checkpoint)
        for record in state.records:
            on_round(record)
        while state.next_round < config.rounds:
            state = federation.step(state)
            on_round(state.records[-1])
            if checkpoint is not None and (
                state.next_round % checkpoint_every == 0 or state.next_round == config.rounds
            ):
                save_checkpoint(checkpoint, to_checkpoint(config, state))
        types = federation.types(config.rounds - 1)
        weights = federation.model_weights(state).numpy()
    seconds = time.perf_counter() - started
    return RunResult(config, state.records, weights, state.wallets, types, seconds)


def _resume(federation: Federation, path: Path | None) -> RunState:
    saved = None if path is None else load_checkpoint(path)
    if saved is None:
        return federation.start()
    if saved.data["config"] != federation.config.to_json():
        raise CheckpointError(
            f"{path} belongs to another run (its settings differ)", "give another file, or delete this one"
        )
    return from_checkpoint(saved)
