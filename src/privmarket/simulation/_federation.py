"""A whole federated run: its rounds, the training that they buy, their money and privacy.

Implements: Algorithm 2 of [Sun2026] over many rounds, with composition (its limitation L1) accounted for.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from privmarket._settings import require_one_step
from privmarket.errors import CheckpointError, ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import AggregationError
from privmarket.mechanisms import resolve
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._release import ReleaseGrid
from privmarket.privacy._wallet import Wallets
from privmarket.privacy._wallet_store import MemoryStore, ReleaseBook
from privmarket.rounds import (
    Award,
    Delivered,
    LocalAuctioneer,
    Offer,
    Pacing,
    Report,
    Round,
    RoundRecord,
    Terms,
    play_round,
)
from privmarket.secagg import DEFAULT_COHORT, MODULUS_BITS, SharedSum, bits_at_most
from privmarket.simulation._bidding import AskedPrices, Strategy, bidding_of, client_types, measured_types
from privmarket.simulation._checkpoint import (
    RunState,
    from_checkpoint,
    load_checkpoint,
    save_checkpoint,
    to_checkpoint,
)
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._moments import Whitening
from privmarket.simulation._own_records import FEWEST_RECORDS, OwnModel, OwnTraining, flat_weights, own_records
from privmarket.simulation._pool import (
    ChunkOrder,
    ClientPool,
    Workers,
    build_pool,
    builtin_task,
    plain_rate,
)
from privmarket.simulation._result import RunResult
from privmarket.simulation._server import PLAIN_AVERAGE, ServerState, aggregate, seller_weights, simulated_sum
from privmarket.training import one_thread

if TYPE_CHECKING:
    from privmarket.tasks import Task

OnRound = Callable[["RoundRecord"], None]

# Names the stream of random numbers that decides who drops out; `_bidding` and `_pool` hold the others.
_DROPOUT = 6


class Federation:
    """One run's fixed parts and its step from round to round.

    Clients are positions in arrays here; `names` are what the market and the records call them.

    Args:
        config: the run.
        task: what is learned from whose records, instead of the built-in data set that the configuration names.
        asked: what each client asks, instead of a draw from the configured distribution.
        own_model: the task's module trained on the public records, if it was trained before.
        mechanism: a ready rule, instead of the configured name.
        workers: processes that train; any number gives the same result.
        strategy: how clients report, instead of the configured strategy, e.g. the bid function of a solved
            mean-field game. Its remaining budget is what is left of a wallet, as a share of the lifetime ε;
            infinite without a wallet.
    """

    def __init__(
        self,
        config: FederationConfig,
        *,
        task: Task | None = None,
        asked: AskedPrices | None = None,
        own_model: OwnModel | None = None,
        mechanism: Mechanism | None = None,
        workers: int = 1,
        strategy: Strategy | None = None,
    ) -> None:
        self.config = config
        self.mode = config.privacy
        training = config.training
        given = task is not None
        self.task = builtin_task(config) if task is None else task
        if len(self.task.clients) != config.clients:
            raise ConfigurationError(
                f"a run of {config.clients} clients on a task with {len(self.task.clients)}",
                f"use clients={len(self.task.clients)}",
            )
        self.pool = ClientPool.of(config, self.task)
        self._own_model = own_model
        self.sizes: Array = self.task.sizes.astype(np.float64)
        # The public size of a client, rounded up if real owners declare it. If persons are protected it is their
        # number, since the number of a person's rows is protected, too.
        self.declared: Array = self.sizes
        if config.task:
            self.declared = self.task.declared_sizes.astype(np.float64)
        self.names = self.task.clients
        self.place = {name: i for i, name in enumerate(self.names)}
        self.asked = None if asked is None else asked.of(self.names)
        self.distribution = scenario(config.scenario if self.asked is None else self.asked.bids)
        if mechanism is None:
            facts = MarketFacts.of(self.distribution)
            mechanism = resolve(config.mechanism, market=facts, **config.mechanism_settings)
        self.mechanism = mechanism
        self.family = ReleaseFamily.of(training, config.delta)
        self.pacing = Pacing(config, self.family, self.distribution.epsilon_max)
        self.auctioneer = LocalAuctioneer(self.mechanism)
        self.objective = AggregationError(config.kappa, config.heterogeneity)
        self.bidding = bidding_of(config, self.names, self.distribution, self.family, strategy)
        if config.statistics != "none":
            _ = self.pool.moments  # refuses impossible settings before anyone bids
        self._persistent = self._types(0) if config.types == "persistent" else None
        # Without the market's own training the server replaces the weights by the sellers' average.
        self.server_plan = training if self.mode.uses_server_plan else PLAIN_AVERAGE
        if config.trust == "aggregate":
            self._require_secure_sum()
        if workers > 1 and not given:
            self._workers = Workers(build_pool, config, ClientPool.train, workers)
        elif workers > 1:
            self._workers = Workers(_own_pool, _pickled(config, self.task), ClientPool.train, workers)
        else:
            self._workers = Workers(lambda pool: pool, self.pool, ClientPool.train)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.__exit__()

    def start(self) -> RunState:
        """The state of the run before its first round."""
        first = self.first_weights()
        whitening = None
        if self.config.statistics == "free":
            whitening = Whitening(self.pool.moments.free)
            first = whitening.unfolded(self.pool.model, first)
        return RunState(0, ServerState.start(first), self.wallets(), self.pacing.total_micro, (), whitening)

    def wallets(self) -> Wallets:
        """The clients' wallets before anyone sold."""
        config = self.config
        caps = np.full(config.clients, np.inf if config.wallet is None else config.wallet)
        if self.asked is not None:
            caps = np.minimum(caps, self.asked.wallet)
        return Wallets(caps, config.delta)

    @cached_property
    def own_model(self) -> OwnModel | None:
        """The task's module trained on the buyer's own records; None where it has none."""
        if self._own_model is not None:
            return self._own_model
        public = self.task.public
        if public is None or len(public) < FEWEST_RECORDS:
            return None
        with one_thread():
            return OwnTraining(self.task, self.config.seed).own_model()

    def first_weights(self) -> torch.Tensor:
        """(parameters,) the initial weights: the buyer's own model, else a public draw.

        A linear model of whitened inputs starts from zeros.
        """
        own = None if self.mode.on_pixels else self.own_model
        if own is None and self.config.statistics != "none":
            return torch.zeros(self.pool.model.parameters)
        if own is None:
            return self.pool.initial_weights()
        return flat_weights(self.pool.model, own.module)

    def types(self, number: int) -> Bids:
        """(clients,) the clients' true valuations and caps in a round."""
        return self._types(number) if self._persistent is None else self._persistent

    def _types(self, number: int) -> Bids:
        if self.asked is not None:
            return self.asked.bids
        if self.config.valuations == "measured":
            return measured_types(self.config, number, self.task)
        return client_types(self.config, number)

    def step(self, state: RunState) -> RunState:
        """One round: auction, training, settlement, and the model moved by what was bought."""
        clients = SimulatedClients(self, state)
        number = state.next_round
        rounds = self.config.rounds
        if self.mode.holds_auctions:
            terms = self.pacing.terms(state.records)
            store = MemoryStore(self.place, state.wallets)
            wallets = store if self.mode.counts_epsilon else ReleaseBook()
            auction, record, delivered = play_round(terms, clients, self.auctioneer, clients, wallets)
            update = delivered.update
            left = state.remaining_micro - record.spent_micro
            state = replace(state, wallets=store.wallets, remaining_micro=left)
        else:
            update = clients.train_all()
            record = RoundRecord(number)
        if self.sells_moments(number):
            state = self._whitened(state, auction, record, update)
        elif update is not None:
            plan = self.server_plan
            if state.whitening is not None:
                plan = state.whitening.training(plan, self.task)
            state = replace(state, server=state.server.moved(update, plan, number / rounds))
        if self.config.measures_after(number):
            record = replace(record, accuracy=self.score(state))
        return replace(state, next_round=number + 1, records=(*state.records, record))

    def sells_moments(self, number: int) -> bool:
        """Whether a round sells moments of the inputs instead of updates: the first one, if the run asks for it."""
        return number == 0 and self.config.statistics == "moments"

    def _whitened(self, state: RunState, auction: Round, record: RoundRecord, total: np.ndarray | None) -> RunState:
        """The state after a round that sold moments: inputs are whitened from now on.

        If the round failed, the moments that are known for free are used.
        """
        sale = self.pool.moments
        moments = sale.free
        if total is not None:
            sellers = list(auction.awards)
            paid = [number for number, client in enumerate(sellers) if client in record.paid_micro]
            shared = self.shared_sum(auction)
            weights = shared.weights[paid] / shared.weights[paid].sum()
            records = float(weights @ self.declared[[self.place[sellers[number]] for number in paid]])
            noise = shared.deviation(paid) if self.mode.is_private else 0.0
            moments = sale.bought(total, records, noise, self.task.unit)
        whitening = Whitening(moments)
        weights_now = whitening.unfolded(self.pool.model, state.server.weights)
        return replace(state, server=ServerState.start(weights_now), whitening=whitening)

    def run_clients(
        self, state: RunState, sales: Mapping[str, Award | None], grids: Sequence[ReleaseGrid] = ()
    ) -> np.ndarray:
        """(sellers, parameters): what each of these clients releases in the next round, see `ClientPool.train`.

        Args:
            sales: client → what it sold; with None it trains for free and adds no noise.
            grids: of each client's share, if a secure sum adds them up; then a row is the sum of some of them.
        """
        weights = state.server.weights.numpy()
        chunk = self.pool.chunk
        sells_moments = self.sells_moments(state.next_round)
        if sells_moments:
            weights = np.zeros(self.pool.moments.parameters, dtype=np.float32)
        clients = [self.place[client] for client in sales]
        awards = list(sales.values())
        orders = []
        for start in range(0, len(clients), chunk):
            some = awards[start : start + chunk]
            orders.append(
                ChunkOrder(
                    state.next_round,
                    tuple(clients[start : start + chunk]),
                    tuple(0.0 if award is None else award.epsilon for award in some),
                    tuple(0.0 if award is None else award.event.noise_multiplier for award in some),
                    weights,
                    tuple(grids[start : start + chunk]),
                    sells_moments,
                    state.whitening,
                )
            )
        done = list(self._workers.map(orders))
        return np.concatenate(done) if done else np.zeros((0, weights.size), dtype=np.float32)

    def _require_secure_sum(self) -> None:
        """Refuses, before anyone bids, a run whose updates cannot be added up by a secure sum."""
        config = self.config
        if not self.mode.uses_server_plan:
            raise ConfigurationError(
                f"trust 'aggregate' with mode {config.mode!r}",
                "the server must not see single updates: use mode 'private' or 'no-noise'",
            )
        require_one_step(config.trust, config.training.steps)
        parameters = self.pool.model.parameters
        if config.statistics == "moments":
            parameters = max(parameters, self.pool.moments.parameters)
        needed = bits_at_most(
            min(config.clients, DEFAULT_COHORT),
            int(self.declared.max()),
            float(self.family.noise_multiplier(self.distribution.epsilon_max)),
            parameters,
            config.honest_share,
        )
        if needed > MODULUS_BITS:
            raise ConfigurationError(
                f"a sum over {config.clients} clients may need {needed} bits, the modulus has {MODULUS_BITS}",
                "use fewer clients a round, or a lower limit on offers",
            )

    def shared_sum(self, auction: Round, whitening: Whitening | None = None) -> SharedSum:
        """The public numbers of a cleared round's secure sums, of inputs that are as they are or whitened."""
        sells_moments = self.sells_moments(auction.terms.number)
        model, plan = self.pool.sale(sells_moments=sells_moments, whitening=whitening)
        return simulated_sum(
            [award.event.noise_multiplier for award in auction.awards.values()],
            self.declared[[self.place[client] for client in auction.awards]],
            clip_norm=plan.clip_norm,
            parameters=model.parameters,
            honest_share=auction.terms.honest_share,
            sellers=len(auction.awards),
            seed=f"{self.config.seed}/{auction.terms.number}",
        )

    def score(self, state: RunState) -> float | None:
        """The headline score of the current model on the test records; None without test records."""
        scores = self.scores(state)
        return None if scores is None else scores[self.task.score.name]

    def scores(self, state: RunState) -> dict[str, float] | None:
        """Every score of the current model on the test records; None without test records."""
        test = self.task.test
        if test is None:
            return None
        with one_thread():
            return self.task.evaluate(self._test_outputs(state), test)

    def _test_outputs(self, state: RunState) -> np.ndarray:
        """(test records, ...) the outputs of the current model."""
        assert self.task.test is not None
        return self.pool.model.outputs(self.model_weights(state), self.task.test.tensors()[0]).numpy()

    def result(self, state: RunState) -> RunResult:
        """The run so far: its records, its model, and the scores of the buyer's own records."""
        own = self.own_model
        with one_thread():
            before = None if own is None else own_records(self.task, own.module, seed=self.config.seed)
            error = None
            if before is not None:
                error = self.task.gain_error(before.outputs, self._test_outputs(state))
        return RunResult(
            self.config,
            state.records,
            self.model_weights(state).numpy(),
            state.wallets,
            self.types(self.config.rounds - 1),
            0.0,
            self.task,
            self.scores(state),
            before,
            state.whitening,
            error,
        )

    def model_weights(self, state: RunState) -> torch.Tensor:
        """(parameters,) the model that is tested and kept, as weights for inputs that are not whitened."""
        tested = state.server.tested(self.server_plan)
        return tested if state.whitening is None else state.whitening.folded(self.pool.model, tested)


@dataclass(frozen=True, eq=False)
class SimulatedClients:
    """The clients of a simulation in its next round; implements `Bidders` and `Trainers` of `rounds._driver`."""

    federation: Federation
    state: RunState

    def offers(self, terms: Terms) -> dict[str, Offer]:
        """Offers of the clients that have records and something left in their wallets."""
        federation = self.federation
        state = self.state
        config = federation.config
        types = federation.types(terms.number)
        epsilon = np.minimum(types.epsilon, terms.epsilon_max)
        valuation = types.valuation
        if federation.mode.counts_epsilon:
            rounds_left = terms.rounds - terms.number if config.wallet_policy == "spread" else 1
            epsilon = state.wallets.affordable(terms.family, epsilon, rounds_left)
        if federation.bidding is not None:
            left = state.wallets.remaining_share * state.wallets.cap_epsilon
            valuation = np.maximum(federation.bidding.reports(valuation, left, terms.number, state.records), 0.0)
        return {
            federation.names[i]: Offer(float(valuation[i]), float(epsilon[i]), float(federation.declared[i]))
            for i in np.flatnonzero((federation.sizes > 0) & (epsilon > 0))
        }

    def train(self, auction: Round) -> Delivered:
        """What the sellers release, added up over those whose update is usable.

        Under local trust the server sees every update and weighs it; under aggregate trust only their sum.
        """
        federation = self.federation
        config = federation.config
        gone = self._dropped(auction) if config.dropout else set()
        sales = {client: award for client, award in auction.awards.items() if client not in gone}
        if auction.terms.trust == "aggregate" and federation.mode.is_private:
            return self._secure_sum(auction, sales)
        updates = federation.run_clients(self.state, sales)
        finite = np.isfinite(updates).all(axis=1)
        usable = {client for client, ok in zip(sales, finite, strict=True) if ok}
        total = None
        if usable:
            # Without noise a run under aggregate trust keeps the weights of its secure sum.
            shared = "inverse-noise" if auction.terms.trust == "aggregate" else None
            scheme = federation.mode.aggregation or shared or config.aggregation
            total = aggregate(seller_weights(auction, usable, scheme, federation.objective), updates[finite])
        reports = {client: Report(None if client in usable else "update is not finite") for client in sales}
        return Delivered(reports, total)

    def _secure_sum(self, auction: Round, sales: Mapping[str, Award]) -> Delivered:
        """Aggregate trust: the server sees the sum of the shares that arrive, if there are enough of them.

        In a round of several cohorts this holds for each; the sum of a cohort that lost too many sellers is not
        opened.
        """
        federation = self.federation
        sellers = list(auction.awards)
        shared = federation.shared_sum(auction, self.state.whitening)
        arrived = [number for number, client in enumerate(sellers) if client in sales]
        counted = shared.counted(arrived)
        # Shares of a sum that is not opened stay masked: they are not seen and not paid, and their ε stays spent.
        fault = f"only {len(arrived)} of {len(sellers)} sellers came through, {shared.needed} are needed"
        if shared.cohorts > 1:
            fault = f"too few sellers of this cohort came through, {shared.needed} are needed"
        opened = {sellers[number] for number in counted}
        reports = {client: Report(None if client in opened else fault) for client in sales}
        paid = {client: sales[client] for client in sales if client in opened}
        shares = federation.run_clients(self.state, paid, [shared.grid(number) for number in counted])
        total = shared.opened(shares, counted)
        if total is None:
            return Delivered(reports)
        _, local = federation.pool.sale(
            sells_moments=federation.sells_moments(auction.terms.number), whitening=self.state.whitening
        )
        rate = local.learning_rate / local.expected_batch
        return Delivered(reports, (rate * total).astype(np.float32))

    def _dropped(self, auction: Round) -> set[str]:
        """The sellers that vanish after the auction, drawn with the configured probability."""
        federation = self.federation
        config = federation.config
        rng = np.random.default_rng([config.seed, _DROPOUT, auction.terms.number])
        gone = rng.random(config.clients) < config.dropout
        return {client for client in auction.awards if gone[federation.place[client]]}

    def train_all(self) -> np.ndarray:
        """(parameters,) the average over all clients with records, weighted by records, for free: FedAvg."""
        federation = self.federation
        everyone = np.flatnonzero(federation.sizes)
        updates = federation.run_clients(self.state, dict.fromkeys(federation.names[i] for i in everyone))
        sizes = federation.sizes[everyone]
        total = aggregate(sizes / sizes.sum(), updates)
        if not np.isfinite(total).all():
            model = federation.config.training.model
            features = federation.config.training.features
            step = f"PIXEL_RATES[{model!r}]" if features == "none" else "PLAIN_RATE"
            raise ConfigurationError(
                f"training without privacy diverged in round {self.state.next_round + 1}",
                f"halve its step: privmarket.simulation._pool.{step} = {plain_rate(model, features) / 2:g}",
            )
        return total


def run(
    config: FederationConfig,
    *,
    task: Task | None = None,
    asked: AskedPrices | None = None,
    own_model: OwnModel | None = None,
    workers: int = 1,
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    on_round: OnRound | None = None,
    on_resume: Callable[[int], None] | None = None,
    strategy: Strategy | None = None,
    mechanism: Mechanism | None = None,
) -> RunResult:
    """Runs all rounds, resuming from `checkpoint` if it holds this very configuration.

    Args:
        task, asked, own_model: as for `Federation`.
        workers: processes that train.
        checkpoint: the file to save to and resume from.
        checkpoint_every: rounds between two saves.
        on_round: called with each round's record, also with those that a resumed run already had.
        on_resume: called first with the number of rounds that a resumed run already had.
        strategy: how clients report; not part of the checkpoint, so resume with the same.
        mechanism: a ready rule, instead of the configured one; resume with the same.

    Raises:
        KeyboardInterrupt: it was stopped; the message says where it goes on, and the rounds so far are saved.
    """
    if task is not None:
        task.require_private_records("a simulated run")
    started = time.perf_counter()
    with Federation(
        config,
        task=task,
        asked=asked,
        own_model=own_model,
        mechanism=mechanism,
        workers=workers,
        strategy=strategy,
    ) as federation:
        state = _resume(federation, checkpoint)
        if on_resume is not None and state.next_round:
            on_resume(state.next_round)
        if on_round is not None:
            for record in state.records:
                on_round(record)
        try:
            while state.next_round < config.rounds:
                state = federation.step(state)
                if on_round is not None:
                    on_round(state.records[-1])
                if checkpoint is not None and (
                    state.next_round % checkpoint_every == 0 or state.next_round == config.rounds
                ):
                    save_checkpoint(checkpoint, to_checkpoint(config, state))
        except KeyboardInterrupt:
            if checkpoint is None:
                raise
            save_checkpoint(checkpoint, to_checkpoint(config, state))
            raise KeyboardInterrupt(f"the same command goes on from round {state.next_round + 1}") from None
        result = federation.result(state)
    return replace(result, seconds=time.perf_counter() - started)


def _resume(federation: Federation, path: Path | None) -> RunState:
    saved = None if path is None else load_checkpoint(path)
    if saved is None:
        return federation.start()
    if not federation.config.is_same_run(saved.data["config"]):
        differ = federation.config.differences(saved.data["config"])
        raise CheckpointError(
            f"{path} belongs to another run: {'; '.join(differ)}", "give another file, or delete this one"
        )
    return from_checkpoint(saved)


def _pickled(config: FederationConfig, task: Task) -> bytes:
    """A run on a user's task, pickled for another process.

    Raises:
        ConfigurationError: the task holds something that cannot be sent, such as a lambda.
    """
    try:
        return pickle.dumps((config, task))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the task {task.name!r} cannot be sent to other processes: {error}",
            "use workers=1, or define model, loss and scores as functions of a module",
        ) from error


def _own_pool(sent: bytes) -> ClientPool:
    config, task = pickle.loads(sent)
    return ClientPool.of(config, task)
