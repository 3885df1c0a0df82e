"""The server's side: call for bids, clear, send every winner its own order, aggregate, pay on delivery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from privmarket.broker.http_client import BrokerClient
from privmarket.errors import ConfigurationError, PrivacyError
from privmarket.federated.aggregation import aggregate, seller_weights
from privmarket.flower import wire
from privmarket.flower.fleet import RECEIPT_SECONDS, Fleet
from privmarket.flower.grid_market import TOKEN_VARIABLE, GridMarket, auctioneer_for
from privmarket.flower.result import MarketResult, save_result
from privmarket.flower.settings import MarketSettings
from privmarket.flower.wire import Arrays
from privmarket.lazy import late
from privmarket.rounds import Auctioneer, Delivered, LocalAuctioneer, Report, Round, RoundRecord, play_round

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privmarket import training as engine
    from privmarket.federated import global_model
    from privmarket.flower import secure, training
else:
    global_model = late("privmarket.federated.global_model")
    secure = late("privmarket.flower.secure")
    training = late("privmarket.flower.training")
    engine = late("privmarket.training")
    torch = late("torch")

__all__ = ["TOKEN_VARIABLE", "MarketRun", "MarketServerApp", "server_app"]

BROKER_KEY = "broker-url"

InitialWeights = Callable[[], Mapping[str, np.ndarray]]
Evaluate = Callable[[Arrays], float]
"""The weights that are tested, array by array ↦ a figure of merit."""


class MarketServerApp(ServerApp):
    """A Flower `ServerApp` that runs a market; `result` holds what the last run came to."""

    result: MarketResult | None = None


def server_app(
    *,
    model: Callable[[], nn.Module] | None = None,
    initial_weights: InitialWeights | None = None,
    evaluate: Evaluate | Callable[[nn.Module], float] | None = None,
    broker: str | BrokerClient | None = None,
    token: str | None = None,
    result_file: Path | str | None = None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
    **settings: Any,
) -> MarketServerApp:
    """A Flower `ServerApp` that buys ε in every round and trains with what it bought.

    Args:
        model: makes the `torch.nn.Module` that is trained; its trainable parameters are what clients get. A model
            that mixes records is refused before the first round, see `training.require_supported`.
        initial_weights: instead, arrays by name.
        evaluate: measures the model (the module, or the arrays by name) after a round.
        broker: URL of the broker that holds the auctions, or a connection to it; in this process unless given.
        token: the buyer's token there; the environment's PRIVMARKET_BROKER_TOKEN unless given.
        result_file: where the result is written as JSON.
        on_round: told every round's record.
        settings: see `MarketSettings`. Flower's run configuration (`flwr run --run-config "budget=5.0"`) overrides
            them by name, and `result-file` and `broker-url` likewise.
    """
    chosen = MarketSettings(**settings)
    if (model is None) == (initial_weights is None):
        raise ConfigurationError("server_app wants a model, or initial weights", "give exactly one of them")
    start: InitialWeights = initial_weights if initial_weights is not None else _module_start(model)
    measure = cast("Evaluate | None", evaluate)
    if model is not None and evaluate is not None:
        measure = _module_evaluation(model, cast("Callable[[nn.Module], float]", evaluate))
    app = MarketServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        here = chosen.overridden(config)
        auctioneer = auctioneer_for(here, str(config.get(BROKER_KEY) or "") or broker, token)
        market = MarketRun(grid, here, auctioneer, start(), measure, on_round)
        app.result = market.run()
        save_result(context, app.result, result_file)

    return app


def _module_start(model: Callable[[], nn.Module] | None) -> InitialWeights:
    def start() -> Arrays:
        assert model is not None
        module = model()
        # Before any bid: every client would refuse such a model, one by one.
        engine.require_supported(module)
        return training.trainable_arrays(module)

    return start


def _module_evaluation(model: Callable[[], nn.Module], evaluate: Callable[[nn.Module], float]) -> Evaluate:
    def measure(weights: Arrays) -> float:
        module = model()
        training.load_arrays(module, weights)
        module.eval()
        return evaluate(module)

    return measure


@dataclass(eq=False)
class MarketRun:
    """One run: its market, and the model as it stands. It has the winners train, as `rounds.driver` asks."""

    grid: Grid
    settings: MarketSettings
    auctioneer: Auctioneer
    start_weights: Mapping[str, np.ndarray]
    evaluate: Evaluate | None
    on_round: Callable[[RoundRecord], None]
    round_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.fleet = Fleet(self.grid, settings.bid_seconds)
        # At a broker bids are sealed, and sellers have registered keys.
        self.fleet.needs_keys = settings.trust == "aggregate" and isinstance(self.auctioneer, LocalAuctioneer)
        self.market = GridMarket(settings, self.auctioneer, self.fleet, str(self.grid.run.run_id))
        self.shapes = {name: array.shape for name, array in self.start_weights.items()}
        self.state = global_model.ServerState.start(torch.from_numpy(flatten(self.start_weights)))

    def run(self) -> MarketResult:
        """Waits for enough nodes, plays all rounds, and returns the result."""
        started = time.perf_counter()
        there = self.fleet.wait(self.settings.min_nodes, self.settings.join_seconds)
        if there < self.settings.min_nodes:
            raise ConfigurationError(
                f"{there} of {self.settings.min_nodes} nodes came in {self.settings.join_seconds:g} s",
                "start more, or lower min-nodes",
            )
        if self.settings.trust == "aggregate":
            self.market.require_sum(there, sum(array.size for array in self.start_weights.values()))
        for number in range(self.settings.rounds):
            self.step(number)
        if self.settings.receipts and self.fleet.receipts:
            self.fleet.send_receipts(self.market.pacing.terms(self.market.records[:-1]), RECEIPT_SECONDS)
        releases, records = self.market.purses.releases(), tuple(self.market.records)
        seconds, calls = time.perf_counter() - started, tuple(self.fleet.waited_seconds)
        weights, declined = self.model_weights(), self.market.declined
        return MarketResult(
            self.settings, records, weights, releases, calls, seconds, declined, tuple(self.round_seconds)
        )

    def step(self, number: int) -> None:
        """One round: auction, training, settlement, and the model moved by what was bought."""
        market, settings, started = self.market, self.settings, time.perf_counter()
        terms = market.pacing.terms(market.records)
        played, record, delivered = play_round(terms, self.fleet, self.auctioneer, self, market.purses)
        if delivered.update is not None:
            self.state = self.state.moved(delivered.update, settings, number / settings.rounds)
        measure = self.evaluate if settings.measures_after(number) else None
        accuracy = None if measure is None else float(measure(self.model_weights()))
        self.on_round(market.close(played, record, accuracy))
        self.round_seconds.append(time.perf_counter() - started)

    def model_weights(self) -> Arrays:
        """The model that is tested and kept."""
        return self._arrays(self.state.tested(self.settings).numpy())

    def train(self, market: Round) -> Delivered:
        """Sends every seller its own order; what comes back in time, and Σ α·update over what can be used of it."""
        if market.terms.trust == "aggregate":
            return self._train_sum(market)
        if self.settings.secure_aggregation:
            return self._train_secure(market)
        sales, weights = self.market.sales(market), self._arrays(self.state.weights.numpy())
        shared, patience, messages = wire.write_arrays(weights), self.settings.deadline_seconds, []
        for client, sale in sales.items():
            content = wire.put(RecordDict({wire.WEIGHTS: shared}), sale)
            node, group = self.fleet.node_of[client], str(sale.number)
            messages.append(Message(content, node, wire.TRAIN, ttl=patience, group_id=group))
        replies = self.grid.send_and_receive(messages, timeout=patience)
        deliveries = self.fleet.take(sales, replies, wire.UPDATE, self.shapes)
        usable = [c for c in market.offers if (d := deliveries.get(c)) and d.update is not None]
        total = None
        if usable:
            updates = np.stack([flatten(deliveries[c].update or {}, self.shapes) for c in usable])
            shares = seller_weights(market, usable, self.settings.aggregation, self.market.objective)
            total = aggregate(shares, updates)
        return Delivered(deliveries, total)

    def _train_sum(self, market: Round) -> Delivered:
        """Aggregate trust: the exact sum of the sellers' integers, of which each carries a share of the noise."""
        weights, settings = self._arrays(self.state.weights.numpy()), self.settings
        try:
            plan = self.market.shared_sum(market, sum(array.size for array in weights.values()))
        except PrivacyError as error:  # no order has gone out: nobody released anything
            return Delivered(dict.fromkeys(self.market.sellers(market), Report(str(error), refused=True)))
        sales = self.market.sales(market, total=plan)
        sizes = {client: market.offers[client].data_size for client in sales}
        deliveries, total = secure.secure_sum(
            *(self.grid, self.fleet, sales, weights, sizes, settings.deadline_seconds),
            self.market.registered_keys(market),
        )
        update = None
        if total is not None:
            place = {client: at for at, client in enumerate(market.awards)}
            came = [place[client] for client in sales if deliveries[client].fault is None]
            flat = np.concatenate([total[name].ravel() for name in self.shapes])
            rate = settings.learning_rate / settings.expected_batch
            update = (rate * (flat / float(plan.weights[came].sum()))).astype(np.float32)
        return Delivered(deliveries, update)

    def _train_secure(self, market: Round) -> Delivered:
        """The same without seeing a single update: clients multiply by n·α, the server divides what came by Σ α."""
        sellers = [client for client in market.offers if client in market.awards]
        shares = seller_weights(market, sellers, self.settings.aggregation, self.market.objective)
        alpha = dict(zip(sellers, shares.tolist(), strict=True))
        sales = self.market.sales(market, {client: len(sellers) * one for client, one in alpha.items()})
        weights, patience = self._arrays(self.state.weights.numpy()), self.settings.deadline_seconds
        deliveries, mean = secure.secure_order(self.grid, self.fleet, sales, weights, patience)
        total = None
        if mean is not None:
            came = [client for client, delivery in deliveries.items() if delivery.fault is None]
            scale = len(came) / len(sellers) / sum(alpha[client] for client in came)
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
