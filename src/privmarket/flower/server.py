"""The server's side: call for bids, clear, send every winner its own order, aggregate, pay on delivery."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privmarket.broker.client import BrokerClient
from privmarket.errors import ConfigurationError
from privmarket.federated.aggregation import aggregate, seller_weights
from privmarket.federated.round import Offer, Round
from privmarket.flower import wire
from privmarket.flower.books import Books, delivered
from privmarket.flower.fleet import Delivery, Fleet
from privmarket.flower.house import AuctionHouse, BrokerHouse, LocalHouse
from privmarket.flower.settings import MarketSettings
from privmarket.flower.wire import Arrays, Call

if TYPE_CHECKING:
    from privmarket.federated.state import RoundRecord
    from privmarket.flower.result import MarketResult

TOKEN_VARIABLE = "PRIVMARKET_BROKER_TOKEN"
RESULT_KEY, BROKER_KEY = "result-file", "broker-url"
_RECEIPT_SECONDS = 60.0

InitialWeights = Callable[[], Mapping[str, np.ndarray]]
Evaluate = Callable[[Any], float]
"""The model, with the weights that are tested ↦ a figure of merit. Arrays by name where no module is given."""


class MarketServerApp(ServerApp):
    """A Flower `ServerApp` that runs a market; `result` holds what the last run came to."""

    result: MarketResult | None = None


def server_app(
    *,
    model: Callable[[], Any] | None = None,
    initial_weights: InitialWeights | None = None,
    evaluate: Evaluate | None = None,
    broker: str | BrokerClient | None = None,
    token: str | None = None,
    result_file: Path | str | None = None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
    **settings: Any,
) -> MarketServerApp:
    """A Flower `ServerApp` that buys ε in every round and trains with what it bought.

    Args:
        model: makes the `torch.nn.Module` that is trained; its trainable parameters are what clients get.
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
    measure = evaluate if model is None or evaluate is None else _module_evaluation(model, evaluate)
    app = MarketServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        here = chosen.overridden(config)
        house = auction_house(here, str(config.get(BROKER_KEY) or "") or broker, token)
        market = MarketRun(grid, here, house, start(), measure, on_round)
        app.result = market.run()
        place = config.get(RESULT_KEY, result_file)
        if place:
            app.result.save(Path(str(place)))

    return app


def auction_house(
    settings: MarketSettings, broker: str | BrokerClient | None = None, token: str | None = None
) -> AuctionHouse:
    """The auction in this process, or at a broker."""
    if not broker:
        return LocalHouse(settings.rule())
    if isinstance(broker, BrokerClient):
        return BrokerHouse(broker, settings)
    token = token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ConfigurationError(f"no token for the broker at {broker}", f"set {TOKEN_VARIABLE}")
    return BrokerHouse(BrokerClient(broker, token), settings)


def _module_start(model: Callable[[], Any] | None) -> InitialWeights:
    def start() -> Arrays:
        from privmarket.flower.training import trainable_arrays

        assert model is not None
        return trainable_arrays(model())

    return start


def _module_evaluation(model: Callable[[], Any], evaluate: Evaluate) -> Evaluate:
    def measure(weights: Arrays) -> float:
        from privmarket.flower.training import load_arrays

        module = model()
        load_arrays(module, weights)
        module.eval()
        return evaluate(module)

    return measure


@dataclass(eq=False)
class MarketRun:
    """One run: its fixed parts, its books, and the model as it stands."""

    grid: Grid
    settings: MarketSettings
    house: AuctionHouse
    start_weights: Mapping[str, np.ndarray]
    evaluate: Evaluate | None
    on_round: Callable[[RoundRecord], None]
    bid_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        # torch is the server's optimiser; importing it here keeps modules that only name an app quick to load.
        import torch

        from privmarket.federated.server import ServerPlan, ServerState

        settings = self.settings
        self.fleet = Fleet(self.grid)
        self.books = Books(settings, str(self.grid.run.run_id))
        self.shapes = {name: array.shape for name, array in self.start_weights.items()}
        self.plan = ServerPlan(settings.server_rate, settings.final_rate, settings.momentum, settings.averaging)
        self.state = ServerState.start(torch.from_numpy(flatten(self.start_weights)))

    def run(self) -> MarketResult:
        """All rounds."""
        from privmarket.flower.result import MarketResult

        started = time.perf_counter()
        there = self.fleet.wait(self.settings.min_nodes, self.settings.join_seconds)
        if there < self.settings.min_nodes:
            raise ConfigurationError(
                f"{there} of {self.settings.min_nodes} nodes came in {self.settings.join_seconds:g} s",
                "start more, or lower min-nodes",
            )
        for number in range(self.settings.rounds):
            self.step(number)
        books = self.books
        if self.settings.receipts and books.receipts:
            self.fleet.send_receipts(books.call(books.terms(0)), books.receipts, _RECEIPT_SECONDS)
        releases = {client: tuple(events) for client, events in books.releases.items()}
        seconds, calls = time.perf_counter() - started, tuple(self.bid_seconds)
        return MarketResult(self.settings, tuple(books.records), self.model_weights(), releases, calls, seconds)

    def step(self, number: int) -> None:
        """One round: publish, bid, clear, train, settle, aggregate."""
        terms = self.books.terms(number)
        call = self.books.call(terms, self.house.open(terms))
        market = self.house.clear(terms, self._offers(call))
        order = self._secure_order if self.settings.secure_aggregation else self._order
        deliveries, update = order(market, call) if market.awards else ({}, None)
        market, settlement = self.house.settle(delivered(market, deliveries))
        if update is not None:
            self._move(update, number)
        measured = number + 1 == self.settings.rounds or (number + 1) % self.settings.evaluate_every == 0
        accuracy = float(self.evaluate(self.model_weights())) if self.evaluate and measured else None
        self.on_round(self.books.close(market, settlement, deliveries, accuracy))

    def model_weights(self) -> Arrays:
        """The model that is tested and kept: averaged over rounds where the plan says so."""
        chosen = self.state.averaged if self.plan.averaging > 0 else self.state.weights
        return self._arrays(chosen.numpy())

    def _offers(self, call: Call) -> dict[str, Offer | None]:
        started = time.perf_counter()
        offers = self.fleet.call_for_bids(call, self.books.receipts, self.settings.bid_seconds)
        self.bid_seconds.append(time.perf_counter() - started)
        return offers

    def _order(self, market: Round, call: Call) -> tuple[dict[str, Delivery], np.ndarray | None]:
        """Every seller's delivery, and Σ α·update over those that can be used."""
        sales = self.books.sales(market, call, self.fleet)
        weights = wire.write_arrays(self._arrays(self.state.weights.numpy()))
        deliveries = self.fleet.order(sales, weights, self.shapes, self.settings.deadline_seconds)
        usable = {client: d.update for client, d in deliveries.items() if d.update is not None}
        if not usable:
            return deliveries, None
        alpha = seller_weights(market, usable, self.settings.aggregation, self.settings.objective)
        updates = np.stack([flatten(usable[c], self.shapes) for c in market.offers if c in usable])
        return deliveries, aggregate(alpha, updates)

    def _secure_order(self, market: Round, call: Call) -> tuple[dict[str, Delivery], np.ndarray | None]:
        """The same without seeing a single update: clients multiply by n·α, the server divides what came by Σ α."""
        from privmarket.flower.secure import secure_order

        sellers = [client for client in market.offers if client in market.awards]
        found = seller_weights(market, sellers, self.settings.aggregation, self.settings.objective)
        alpha = {client: float(one) for client, one in zip(sellers, found, strict=True)}
        shares = {client: len(sellers) * one for client, one in alpha.items()}
        sales = self.books.sales(market, call, self.fleet, shares)
        weights, patience = self._arrays(self.state.weights.numpy()), self.settings.deadline_seconds
        deliveries, mean = secure_order(self.grid, self.fleet, sales, weights, patience)
        if mean is None:
            return deliveries, None
        came = [client for client, delivery in deliveries.items() if delivery.fault is None]
        scale = len(came) / len(sellers) / sum(alpha[client] for client in came)
        return deliveries, flatten(mean, self.shapes) * np.float32(scale)

    def _move(self, update: np.ndarray, number: int) -> None:
        import torch

        from privmarket.federated.server import server_step

        self.state = server_step(self.state, torch.from_numpy(update), self.plan, number / self.settings.rounds)

    def _arrays(self, flat: np.ndarray) -> Arrays:
        """The flat vector as named arrays."""
        cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        parts = np.split(flat, cuts)
        return {name: part.reshape(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}


def flatten(arrays: Mapping[str, np.ndarray], order: Mapping[str, Any] | None = None) -> np.ndarray:
    """(parameters,) float32, the arrays one after the other, in the order of `order`."""
    names = arrays if order is None else order
    return np.concatenate([np.asarray(arrays[name], dtype=np.float32).ravel() for name in names])
