"""The server's side: call for bids, clear, send every winner its own order, aggregate, pay on delivery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from privmarket._lazy import late
from privmarket.broker._client import BrokerClient
from privmarket.errors import ConfigurationError
from privmarket.flower import _checkpoint as checkpoint, _wire as wire
from privmarket.flower._checkpoint import StopAskedError, partial_path
from privmarket.flower._defaults import optimiser_gain, steps_for
from privmarket.flower._fleet import RECEIPT_SECONDS, Fleet
from privmarket.flower._grid_market import TOKEN_VARIABLE, GridMarket, auctioneer_for, buy_sum
from privmarket.flower._result import MarketResult, log_summary, result_places, save_result
from privmarket.flower._settings import (
    Evaluate,
    InitialWeights,
    MarketSettings,
    Subject,
    later_score,
    own_arguments,
    require_maker,
    settings_from,
    tried_score,
)
from privmarket.flower._wire import Arrays
from privmarket.rounds import Auctioneer, Delivered, LocalAuctioneer, Round, RoundRecord, play_round
from privmarket.secagg import SellerRegister
from privmarket.simulation._server import aggregate, seller_weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privmarket import training as engine
    from privmarket.flower import _model as models, _sum_server as sums, _training as training
    from privmarket.flower._sum_server import SignRoster
    from privmarket.simulation import _server as global_model
    from privmarket.tasks import Task
else:
    models = late("privmarket.flower._model")
    global_model = late("privmarket.simulation._server")
    sums = late("privmarket.flower._sum_server")
    training = late("privmarket.flower._training")
    engine = late("privmarket.training")
    torch = late("torch")

__all__ = ["TOKEN_VARIABLE", "MarketRun", "MarketServerApp", "server_app"]

BROKER_KEY = "broker-url"


class MarketServerApp(ServerApp):
    """A Flower `ServerApp` that runs a market; `result` is the result of the last run."""

    result: MarketResult | None = None


def server_app(
    *,
    model: Callable[[], nn.Module] | None = None,
    initial_weights: InitialWeights | None = None,
    evaluate: Evaluate | Callable[[nn.Module], float] | None = None,
    task: Task | Callable[[], Task] | None = None,
    broker: str | BrokerClient | None = None,
    token: str | None = None,
    register: SignRoster | Path | str | None = None,
    result_file: Path | str | None = None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
    **settings: Any,
) -> MarketServerApp:
    """A Flower `ServerApp` that buys ε in every round and trains with what it bought.

    Args:
        model: makes the `torch.nn.Module` that is trained; clients get its trainable parameters. A model that mixes
            records is refused before the first round, see `training.require_supported`.
        initial_weights: instead of a model, arrays by name.
        evaluate: measures the model (the module, or the arrays by name) after a round: one number. It is tried
            before the first round; if it fails later, the run goes on without it.
        task: instead of `model` and `evaluate`, a task or a function that makes one. Its public records train the
            first model and give `score_before`; models are measured on its test records.
        broker: URL of the broker that holds the auctions, or a connection to it; in this process unless given.
        token: the buyer's token there; the environment's PRIVMARKET_BROKER_TOKEN unless given.
        register: signs the roster of each round's secure sum, for sellers whose policy names the register: a
            function from a `secagg.Roster` to the register's signature, or the folder of a `secagg.SellerRegister`
            on this machine.
        result_file: where the result is written as JSON. Settled rounds are kept beside it until then: a stopped
            run goes on when it is started again.
        on_round: called with every round's record.
        settings: see `MarketSettings`. Flower's run configuration (`flwr run --run-config "budget=5.0"`) overrides
            them by name, and `result-file` and `broker-url` likewise. `steps`, `learning_rate` and
            `expected_batch` are chosen from public numbers where they are left out.
    """
    chosen = settings_from("server_app", settings, own_arguments(server_app))
    require_maker("server_app", "model", model)
    require_maker("server_app", "initial_weights", initial_weights)
    if sum(one is not None for one in (model, initial_weights, task)) != 1:
        raise ConfigurationError("server_app wants a model, initial weights, or a task", "give exactly one of them")
    if task is not None and evaluate is not None:
        raise ConfigurationError("evaluate beside a task", "leave it out: the task's test records measure")
    app = MarketServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        checkpoint.note_running()
        config = context.run_config
        here = chosen.overridden(config)
        if "steps" not in settings and "steps" not in config and initial_weights is None:
            here = replace(here, steps=steps_for(here.trust))
        subject = _subject(model, initial_weights, evaluate, task)
        auctioneer = auctioneer_for(here, str(config.get(BROKER_KEY) or "") or broker, token)
        signs = SellerRegister(register).sign if isinstance(register, str | Path) else register
        places = result_places(context, result_file)
        kept = partial_path(places[0]) if places else None
        run = MarketRun(grid, here, auctioneer, subject.start(), subject.measure, on_round, kept, subject, signs)
        try:
            app.result = run.run()
        except (KeyboardInterrupt, StopAskedError):
            app.result = run.stopped()
            log_summary(app.result)
            raise
        log_summary(app.result)
        save_result(context, app.result, result_file)
        if kept is not None:
            kept.unlink(missing_ok=True)
        run.market.end()

    return app


def _subject(
    model: Callable[[], nn.Module] | None,
    initial_weights: InitialWeights | None,
    evaluate: Evaluate | Callable[[nn.Module], float] | None,
    task: Task | Callable[[], Task] | None,
) -> Subject:
    if initial_weights is not None:
        return Subject(initial_weights, cast("Evaluate | None", evaluate))
    if model is not None:
        measure = None
        if evaluate is not None:
            measure = _module_evaluation(model, cast("Callable[[nn.Module], float]", evaluate))
        return Subject(_module_start(model), measure, model)
    assert task is not None
    return models.subject(task() if callable(task) else task)


def _module_start(model: Callable[[], nn.Module] | None) -> InitialWeights:
    def start() -> Arrays:
        assert model is not None
        module = model()
        # Before any bid: every client would refuse such a model.
        engine.require_supported(module)
        return training.trainable_arrays(module)

    return start


def _named(function: Callable[..., object], like: Callable[..., object]) -> None:
    """Messages about `function` name the file and line of the user's own `like`."""
    function.__wrapped__ = like  # type: ignore[attr-defined]


def _module_evaluation(model: Callable[[], nn.Module], evaluate: Callable[[nn.Module], float]) -> Evaluate:
    def measure(weights: Arrays) -> float:
        module = model()
        training.load_arrays(module, weights)
        module.eval()
        return evaluate(module)

    _named(measure, evaluate)
    return measure


@dataclass(eq=False)
class MarketRun:
    """One run: its market and its current model. It implements `Trainers` of `rounds._driver`."""

    grid: Grid
    settings: MarketSettings
    auctioneer: Auctioneer
    start_weights: Mapping[str, np.ndarray]
    evaluate: Evaluate | None
    on_round: Callable[[RoundRecord], None]
    partial: Path | None = None
    subject: Subject | None = None
    register: SignRoster | None = None
    round_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self._began = time.perf_counter()
        self.fleet = Fleet(self.grid, settings.bid_seconds)
        # At a broker bids are sealed, and sellers have registered keys.
        self.fleet.needs_keys = settings.trust == "aggregate" and isinstance(self.auctioneer, LocalAuctioneer)
        self.market = GridMarket(settings, self.auctioneer, self.fleet, str(self.grid.run.run_id))
        self.market.open_file = None if self.partial is None else checkpoint.open_path(self.partial)
        self.market.parameters = sum(array.size for array in self.start_weights.values())
        self.market.server_gain = optimiser_gain(
            settings.server_rate, settings.momentum, settings.rounds, settings.final_rate
        )
        self.shapes = {name: array.shape for name, array in self.start_weights.items()}
        self.state = global_model.ServerState.start(torch.from_numpy(flatten(self.start_weights)))

    def run(self) -> MarketResult:
        """Waits for enough nodes, plays all rounds that are left, and returns the result."""
        self._go_on()
        if self.evaluate is not None:
            tried_score(self.evaluate, self.model_weights())
        there = self.fleet.wait(self.settings.min_nodes, self.settings.join_seconds)
        if there < self.settings.min_nodes:
            raise ConfigurationError(
                f"{there} of {self.settings.min_nodes} nodes came in {self.settings.join_seconds:g} s",
                "start more, or lower min-nodes",
            )
        if self.settings.trust == "aggregate":
            self.market.require_sum(there, self.market.parameters)
        for number in range(len(self.market.records), self.settings.rounds):
            self.step(number)
            if self.market.ended:
                break
            if checkpoint.stop_asked() and number + 1 < self.settings.rounds:
                raise StopAskedError("stopped, as asked", "the same command goes on")
        if self.settings.receipts and self.fleet.receipts:
            self.fleet.send_receipts(self.market.pacing.terms(self.market.records[:-1]), RECEIPT_SECONDS)
        return self.result()

    def result(self, *notes: str) -> MarketResult:
        """The result of the rounds so far."""
        market = self.market
        subject = self.subject or Subject(lambda: self.start_weights, self.evaluate)
        return MarketResult(
            self.settings,
            tuple(market.records),
            self.model_weights(),
            market.releases(),
            tuple(self.fleet.waited_seconds),
            time.perf_counter() - self._began,
            market.declined,
            tuple(self.round_seconds),
            cohorts=market.cohorts_of,
            lost=tuple(self.fleet.open_orders),
            build=subject.build,
            task=subject.task,
            own_records=subject.own_records,
            notes=(*market.notes(), *notes),
        )

    def stopped(self) -> MarketResult:
        """The result of an interrupted run. Clients of settled rounds get their receipts."""
        if self.settings.receipts and self.fleet.receipts:
            self.fleet.send_receipts(self.market.pacing.terms(self.market.records[:-1]), RECEIPT_SECONDS)
            self.fleet.receipts = {}
            self._keep()
        return self.result(self.market.stopped_note(self.partial))

    def _go_on(self) -> None:
        """Continues from the settled rounds of a stopped run with the same settings."""
        left = checkpoint.found(self.partial, self.settings, self.start_weights)
        if left is not None:
            self.market.restore(left)
        self.market.find_open()
        if left is None:
            return
        whole = {name: left.arrays[name] for name in self.shapes}
        parts = [torch.from_numpy(flatten(whole))]
        for name in ("direction", "averaged"):
            parts.append(torch.from_numpy(left.arrays[f"server-{name}"]))
        self.state = global_model.ServerState(*parts)

    def _keep(self) -> None:
        """Writes the settled rounds beside the result."""
        if self.partial is not None and self.market.records:
            arrays = self._arrays(self.state.weights.numpy())
            arrays |= {
                "server-direction": self.state.direction.numpy(),
                "server-averaged": self.state.averaged.numpy(),
            }
            self.market.settled(arrays).write(self.partial)

    def step(self, number: int) -> None:
        """One round: auction, training, settlement, and the model moved by what was bought."""
        started = time.perf_counter()
        market = self.market
        settings = self.settings
        terms = market.pacing.terms(market.records)
        played, record, delivered = play_round(terms, self.fleet, self.auctioneer, self, market.wallets)
        if delivered.update is not None:
            self.state = self.state.moved(delivered.update, settings, number / settings.rounds)
        closed = market.close(played, record)
        self._keep()  # if the run is stopped from here on, this round is settled
        if self.evaluate is not None and settings.measures_after(number):
            closed = replace(closed, accuracy=later_score(self.evaluate, self.model_weights()))
            market.records[-1] = closed
            self._keep()
        self.on_round(closed)
        self.round_seconds.append(time.perf_counter() - started)

    def model_weights(self) -> Arrays:
        """The model that is tested and kept."""
        return self._arrays(self.state.tested(self.settings).numpy())

    def train(self, auction: Round) -> Delivered:
        """Sends every seller its order. Returns what arrives in time, and Σ α·update over the usable updates."""
        self.market.note_orders(auction)
        if auction.terms.trust == "aggregate":
            return self._train_sum(auction)
        if self.settings.secure_aggregation:
            return self._train_secure(auction)
        sales = self.market.sales(auction)
        weights = self._arrays(self.state.weights.numpy())
        shared = wire.write_arrays(weights)
        patience = self.settings.deadline_seconds
        messages = []
        for client, sale in sales.items():
            content = wire.put(RecordDict({wire.WEIGHTS: shared}), sale)
            node = self.fleet.node_of[client]
            group = str(sale.number)
            messages.append(Message(content, node, wire.TRAIN, ttl=patience, group_id=group))
        replies = self.grid.send_and_receive(messages, timeout=patience)
        deliveries = self.fleet.take(sales, replies, wire.UPDATE, self.shapes)
        usable = [c for c in auction.offers if (d := deliveries.get(c)) and d.update is not None]
        total = None
        if usable:
            updates = np.stack([flatten(deliveries[c].update or {}, self.shapes) for c in usable])
            shares = seller_weights(auction, usable, self.settings.aggregation, self.market.objective)
            total = aggregate(shares, updates)
        return Delivered(deliveries, total)

    def _train_sum(self, auction: Round) -> Delivered:
        """Aggregate trust: the exact sum of the sellers' integers, each with a share of the noise."""
        weights = self._arrays(self.state.weights.numpy())
        return Delivered(*buy_sum(self.market, auction, weights, self.register))

    def _train_secure(self, auction: Round) -> Delivered:
        """Local trust with masks: clients multiply by n·α, the server scales to the weights of those in the sum."""

        def weights_of(clients: list[str]) -> np.ndarray:
            return seller_weights(auction, clients, self.settings.aggregation, self.market.objective)

        sellers = [client for client in auction.offers if client in auction.awards]
        shares = weights_of(sellers)
        alpha = dict(zip(sellers, shares.tolist(), strict=True))
        sales = self.market.sales(auction, {client: len(sellers) * one for client, one in alpha.items()})
        weights = self._arrays(self.state.weights.numpy())
        patience = self.settings.deadline_seconds
        deliveries, mean = sums.secure_order(self.grid, self.fleet, sales, weights, patience)
        total = None
        if mean is not None:
            came = [client for client, delivery in deliveries.items() if delivery.fault is None]
            scale = len(came) / len(sellers) * weights_of(came).sum() / sum(alpha[client] for client in came)
            total = flatten(mean, self.shapes) * np.float32(scale)
        return Delivered(deliveries, total)

    def _arrays(self, flat: np.ndarray) -> Arrays:
        """Splits a flat vector, (parameters,), into the model's named arrays."""
        cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        parts = np.split(flat, cuts)
        return {name: part.reshape(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}


def flatten(arrays: Mapping[str, np.ndarray], order: Iterable[str] | None = None) -> np.ndarray:
    """(parameters,) float32, the arrays one after the other, in the order of `order`."""
    names = arrays if order is None else order
    return np.concatenate([np.asarray(arrays[name], dtype=np.float32).ravel() for name in names])
