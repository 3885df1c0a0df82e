"""An auction around any Flower strategy: whom the strategy picks must bid, and only winners train.

The strategy keeps its sampling, its aggregation and its optimiser. What is added: a call for bids before training,
each winner's own order in its own message, payment for updates that can be used, and weights by what was sold.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from privmarket.broker.http_client import BrokerClient
from privmarket.errors import ConfigurationError
from privmarket.federated.aggregation import seller_weights
from privmarket.flower import wire
from privmarket.flower.fleet import RECEIPT_SECONDS, Fleet
from privmarket.flower.grid_market import GridMarket, auctioneer_for
from privmarket.flower.result import MarketResult, save_result
from privmarket.flower.settings import MarketSettings
from privmarket.flower.wire import Refusal, Sale
from privmarket.lazy import late
from privmarket.rounds import Delivered, Round, RoundRecord, hold_auction, settle_round

if TYPE_CHECKING:
    from torch import nn

    from privmarket import training as engine
else:
    engine = late("privmarket.training")

_log = logging.getLogger("privmarket.flower")
_ACCURACY = "accuracy"


class AuctionStrategy(Strategy):
    """A strategy that buys ε for another one.

    Args:
        inner: the strategy that trains.
        weighted_by_key: the metric by which `inner` weighs updates; overwritten by what the auction bought.
            None leaves what clients send.
        broker, token: the broker that holds the auctions; in this process unless given.
        model: makes the `torch.nn.Module` that clients train; one in which records mix is refused before any bid.
        settings: see `MarketSettings`; the server's optimiser there is not used, `inner` has its own.
    """

    def __init__(
        self,
        inner: Strategy,
        *,
        weighted_by_key: str | None = "num-examples",
        broker: str | BrokerClient | None = None,
        token: str | None = None,
        model: Callable[[], nn.Module] | None = None,
        **settings: Any,
    ) -> None:
        if model is not None:
            engine.require_supported(model())
        self.inner, self.weighted_by_key = inner, weighted_by_key
        self.settings = MarketSettings(**settings)
        if self.settings.trust != "local":
            raise ConfigurationError(
                f"trust {self.settings.trust!r} around a strategy that sees every update",
                "use pm.flower.server_app",
            )
        self.auctioneer = auctioneer_for(self.settings, broker, token)
        self._started = time.perf_counter()
        self._market: GridMarket | None = None
        self._open: tuple[Round, dict[str, Sale], ArrayRecord] | None = None

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        """The records of the rounds played so far."""
        return () if self._market is None else tuple(self._market.records)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, to winners only, each with its own order."""
        if self._market is None:
            fleet = Fleet(grid, self.settings.bid_seconds)
            self._market = GridMarket(self.settings, self.auctioneer, fleet, str(grid.run.run_id))
        run = self._market
        picked = {m.metadata.dst_node_id: m for m in self.inner.configure_train(server_round, arrays, config, grid)}
        run.fleet.chosen = picked.keys()
        market = hold_auction(run.pacing.terms(run.records), run.fleet, self.auctioneer, run.purses)
        sales = run.sales(market)
        self._open = market, sales, arrays
        return [self._with_order(picked[run.fleet.node_of[client]], sale) for client, sale in sales.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pays for usable updates and hands them, and only them, to the inner strategy."""
        assert self._open is not None
        assert self._market is not None
        market, sales, arrays = self._open
        run, received = self._market, list(replies)
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        counters = {name for name, array in arrays.items() if not array.dtype.startswith("float")}
        deliveries = run.fleet.take(sales, received, None, shapes, counters)
        settled = settle_round(market, Delivered(deliveries), self.auctioneer, run.purses)
        assert settled.record is not None
        run.close(market, settled.record)
        usable = [client for client in market.offers if (d := deliveries.get(client)) and d.update is not None]
        if not usable:  # nobody offered, sold or delivered
            return None, None
        first = {m.metadata.src_node_id: m for m in reversed(received)}  # the first reply of each node
        good = [first[run.fleet.node_of[client]] for client in usable]
        weights = seller_weights(market, usable, self.settings.aggregation, run.objective)
        for message, weight in zip(good, weights, strict=True):
            self._weigh(message.content, float(weight))
        return self.inner.aggregate_train(server_round, good)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's. Clients that enforce a wallet refuse: unaccounted metrics are a release."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's, on the replies that are no refusals."""
        answered = [m for m in replies if m.has_error() or wire.take(m.content, Refusal, None) is None]
        return self.inner.aggregate_evaluate(server_round, answered) if answered else None

    def report(self, context: Context, result: Result | None = None) -> MarketResult:
        """What the market came to, at the end of a run: logged, and written to the run config's `result-file`.

        Args:
            context: the server app's.
            result: what `start` returned; its final arrays and the server's own `accuracy` go into the report.
        """
        run = self._market
        if run is None:
            raise ConfigurationError("a report of a market that has not run", "call start first")
        if run.fleet.receipts:
            run.fleet.send_receipts(run.pacing.terms(run.records[:-1]), RECEIPT_SECONDS)
        measured = {} if result is None else result.evaluate_metrics_serverapp
        records = tuple(
            replace(r, accuracy=float(str(measured[r.number + 1][_ACCURACY])))
            if _ACCURACY in measured.get(r.number + 1, {})
            else r
            for r in run.records
        )
        arrays = {} if result is None else {name: array.numpy() for name, array in result.arrays.items()}
        seconds = time.perf_counter() - self._started
        made = MarketResult(self.settings, records, arrays, run.purses.releases(), (), seconds, run.declined)
        save_result(context, made)
        return made

    def summary(self) -> None:
        """Logs the auction's settings and then the summary of the inner strategy."""
        _log.info("auction: %s", self.settings.to_json())
        self.inner.summary()

    @staticmethod
    def _with_order(message: Message, sale: Sale) -> Message:
        """A message of its own: strategies send one shared record to everybody, and an order is private."""
        content = RecordDict(dict(message.content))
        wire.put(content, sale)
        meta = message.metadata
        return Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)

    def _weigh(self, content: RecordDict, weight: float) -> None:
        if self.weighted_by_key is None:
            return
        for record in content.metric_records.values():
            record[self.weighted_by_key] = weight
