"""The server's side: call for bids, clear, send every winner its own order, aggregate, pay on delivery."""

from __future__ import annotations

import logging
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
from privmarket.federated.round import Round, Settlement, Terms
from privmarket.flower import wire
from privmarket.flower.fleet import Delivery, Fleet
from privmarket.flower.house import AuctionHouse, BrokerHouse, LocalHouse
from privmarket.flower.settings import MarketSettings
from privmarket.flower.wire import Arrays, Call, Receipt, Sale
from privmarket.privacy.events import PrivacyEvent, release

if TYPE_CHECKING:
    from privmarket.federated.state import RoundRecord
    from privmarket.flower.result import MarketResult

_log = logging.getLogger("privmarket.flower")

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
    broker: str | None = None,
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
        broker: URL of the broker that holds the auctions; in this process unless given.
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
        house = auction_house(here, str(config.get(BROKER_KEY, broker or "")), token)
        market = MarketRun(grid, here, house, start(), measure, on_round)
        app.result = market.run()
        place = config.get(RESULT_KEY, result_file)
        if place:
            app.result.save(Path(str(place)))

    return app


def auction_house(settings: MarketSettings, broker_url: str = "", token: str | None = None) -> AuctionHouse:
    """The auction in this process, or at the broker with this URL."""
    if not broker_url:
        return LocalHouse(settings.rule())
    token = token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ConfigurationError(f"no token for the broker at {broker_url}", f"set {TOKEN_VARIABLE}")
    return BrokerHouse(BrokerClient(broker_url, token), settings)


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
    """One run: its fixed parts, and what it carries from round to round."""

    grid: Grid
    settings: MarketSettings
    house: AuctionHouse
    start_weights: Mapping[str, np.ndarray]
    evaluate: Evaluate | None
    on_round: Callable[[RoundRecord], None]
    records: list[RoundRecord] = field(default_factory=list)
    releases: dict[str, list[PrivacyEvent]] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    bid_seconds: list[float] = field(default_factory=list)
    spent_micro: int = 0

    def __post_init__(self) -> None:
        # torch is the server's optimiser; importing it here keeps modules that only name an app quick to load.
        import torch

        from privmarket.federated.server import ServerPlan, ServerState

        settings = self.settings
        self.fleet = Fleet(self.grid)
        self.run_name = str(self.grid.run.run_id)
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
        if self.settings.receipts and self.receipts:
            self.fleet.send_receipts(self._call(self._terms(0), ""), self.receipts, _RECEIPT_SECONDS)
        releases = {client: tuple(events) for client, events in self.releases.items()}
        seconds = time.perf_counter() - started
        return MarketResult(
            *(self.settings, tuple(self.records), self.model_weights()),
            releases,
            tuple(self.bid_seconds),
            seconds,
        )

    def step(self, number: int) -> None:
        """One round."""
        terms = self._terms(number)
        call = self._call(terms, self.house.open(terms))
        market = self.house.clear(terms, self._offers(call))
        sales = self.sales(market, call)
        weights = wire.write_arrays(self._arrays(self.state.weights.numpy()))
        deliveries = self.fleet.order(sales, weights, self.shapes, self.settings.deadline_seconds) if sales else {}
        market = market.deliver({c: d.fault for c, d in deliveries.items() if d.released})
        market, settlement = self.house.settle(market)
        self._account(market, settlement)
        self._aggregate(market, deliveries, number)
        self._record(market, settlement, deliveries)

    def sales(self, market: Round, call: Call) -> dict[str, Sale]:
        """client → its own order, for those that sold something and are here."""
        settings = self.settings
        return {
            client: Sale(
                *(call.run, call.number, award.epsilon, award.payment_micro, call.family),
                *(settings.clip_norm, settings.learning_rate, settings.expected_batch),
                broker_round=call.broker_round,
            )
            for client, award in market.awards.items()
            if client in self.fleet.node_of
        }

    def model_weights(self) -> Arrays:
        """The model that is tested and kept: averaged over rounds where the plan says so."""
        chosen = self.state.averaged if self.plan.averaging > 0 else self.state.weights
        return self._arrays(chosen.numpy())

    def _terms(self, number: int) -> Terms:
        budget = self.settings.budget_micro(number, self.spent_micro)
        return Terms(number, budget, self.settings.family, self.settings.epsilon_max)

    def _call(self, terms: Terms, broker_round: str) -> Call:
        return Call(
            *(self.run_name, terms.number, self.settings.rounds, terms.budget_micro, terms.family),
            *(terms.epsilon_max, broker_round),
        )

    def _offers(self, call: Call) -> dict[str, Any]:
        started = time.perf_counter()
        offers = self.fleet.call_for_bids(call, self.receipts, self.settings.bid_seconds)
        self.bid_seconds.append(time.perf_counter() - started)
        return offers

    def _account(self, market: Round, settlement: Settlement) -> None:
        family = self.settings.family
        for client, award in settlement.sold.items():
            event = release(award.noise_multiplier, family.sampling_rate, family.steps)
            self.releases.setdefault(client, []).append(event)
        self.spent_micro += settlement.spent_micro
        self.receipts = {
            client: Receipt(
                *(self.run_name, settlement.number),
                settlement.paid_micro.get(client, 0),
                settlement.dropped.get(client, ""),
            )
            for client in market.awards
            if client in self.fleet.node_of
        }

    def _aggregate(self, market: Round, deliveries: Mapping[str, Delivery], number: int) -> None:
        import torch

        from privmarket.federated.server import server_step

        usable = {client: d.update for client, d in deliveries.items() if d.update is not None}
        if not usable:
            return
        weights = seller_weights(market, usable, self.settings.aggregation, self.settings.objective)
        updates = np.stack([flatten(usable[c], self.shapes) for c in market.offers if c in usable])
        update = torch.from_numpy(aggregate(weights, updates))
        self.state = server_step(self.state, update, self.plan, number / self.settings.rounds)

    def _record(self, market: Round, settlement: Settlement, deliveries: Mapping[str, Delivery]) -> None:
        from privmarket.federated.state import RoundRecord

        number, settings = settlement.number, self.settings
        measured = number + 1 == settings.rounds or (number + 1) % settings.evaluate_every == 0
        accuracy = float(self.evaluate(self.model_weights())) if self.evaluate and measured else None
        faults = {client: d.fault for client, d in deliveries.items() if d.fault is not None}
        record = RoundRecord(
            number=number,
            bidders=len(market.offers),
            sellers=len(settlement.paid_micro),
            total_epsilon=settlement.total_epsilon,
            spent_micro=settlement.spent_micro,
            refunded_micro=settlement.refunded_micro,
            sold_epsilon={client: award.epsilon for client, award in settlement.sold.items()},
            paid_micro=settlement.paid_micro,
            dropped={client: faults.get(client, reason) for client, reason in settlement.dropped.items()},
            accuracy=accuracy,
        )
        self.records.append(record)
        _log.info("round %s: %s sold, %s dropped, accuracy %s", number, record.sellers, record.dropped, accuracy)
        self.on_round(record)

    def _arrays(self, flat: np.ndarray) -> Arrays:
        """The flat vector as named arrays."""
        cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        parts = np.split(flat, cuts)
        return {name: part.reshape(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}


def flatten(arrays: Mapping[str, np.ndarray], order: Mapping[str, Any] | None = None) -> np.ndarray:
    """(parameters,) float32, the arrays one after the other, in the order of `order`."""
    names = arrays if order is None else order
    return np.concatenate([np.asarray(arrays[name], dtype=np.float32).ravel() for name in names])
