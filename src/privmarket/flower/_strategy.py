"""An auction around any Flower strategy: the clients that the strategy picks bid, and only winners train.

The strategy keeps its sampling, its aggregation and its optimiser. Added are a call for bids before training, an
order for each winner in its own message, payment for usable updates, and weights by what was sold.

Under aggregate trust the secure sum is bought first, and the strategy gets one reply, the noisy average. So every
strategy works that uses only the average of the replies: FedAvg, and those with an optimiser on the server
(FedAvgM, FedAdagrad, FedAdam, FedYogi). Strategies that compare replies, such as Krum or a median, are refused.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Result,
    Strategy,
)

from privmarket._counted import counted
from privmarket._lazy import late
from privmarket.broker._client import BrokerClient
from privmarket.errors import ConfigurationError, PrivmarketError, UnknownNameError
from privmarket.flower import _checkpoint as checkpoint, _refusals as refusals, _wire as wire
from privmarket.flower._checkpoint import StopAskedError, partial_path
from privmarket.flower._defaults import steps_for, strategy_gain
from privmarket.flower._fleet import RECEIPT_SECONDS, Delivery, Fleet
from privmarket.flower._grid_market import BrokerAuctioneer, GridMarket, auctioneer_for, buy_sum
from privmarket.flower._result import MarketResult, log_summary, result_places, save_result
from privmarket.flower._settings import checked_evaluation, own_arguments, require_maker, settings_from
from privmarket.flower._sum_server import SignRoster
from privmarket.flower._wire import Arrays, Sale
from privmarket.rounds import Delivered, LocalAuctioneer, Round, RoundRecord, hold_auction, settle_round
from privmarket.simulation._server import seller_weights

if TYPE_CHECKING:
    from torch import nn

    from privmarket import training as engine
else:
    engine = late("privmarket.training")


_log = logging.getLogger("privmarket.flower")
_ACCURACY = "accuracy"
NOISE_ON = ("records", "update")


class AllFailedError(PrivmarketError):
    """Everybody failed for the same reason, so no further round is played. Settled rounds stay settled."""

    code = "all-failed"


def arrays_of(record: ArrayRecord) -> Arrays:
    """The arrays of a record by name."""
    return {name: array.numpy() for name, array in record.items()}


class AuctionStrategy(Strategy):
    """A strategy that buys ε for another one.

    `start` plays the rounds, logs what everybody sold and was paid, and leaves it in `result`.

    Args:
        inner: the strategy that trains.
        weighted_by_key: the metric by which `inner` weighs updates; overwritten by what the auction bought.
            With None, clients' values are kept.
        broker, token: the broker that holds the auctions; by default they are held in this process.
        model: makes the `torch.nn.Module` that clients train; one that mixes records is refused before any bid.
        register: under aggregate trust, signs the roster of each round, see `server_app`.
        noise: what clients clip and noise, as their `WalletMod` says: "records", or "update".
        result_file: where the result is written as JSON. Settled rounds are kept beside it until then: a stopped
            run goes on when it is started again.
        settings: see `MarketSettings`; the server's optimiser there is not used, `inner` has its own. `rounds` is
            the number that `start` is given. `steps`, `learning_rate` and `expected_batch` are chosen from public
            numbers where they are left out. With `trust="aggregate"` the inner strategy gets one reply, the opened
            average: see `require_average`.
    """

    def __init__(
        self,
        inner: Strategy,
        *,
        weighted_by_key: str | None = "num-examples",
        broker: str | BrokerClient | None = None,
        token: str | None = None,
        model: Callable[[], nn.Module] | None = None,
        register: SignRoster | None = None,
        noise: str = "records",
        result_file: Path | str | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(inner, Strategy):
            said = f"{inner.__name__}" if isinstance(inner, type) else repr(inner)
            name = inner if isinstance(inner, str) else getattr(inner, "__name__", "FedAvg")
            raise ConfigurationError(
                f"AuctionStrategy around {said}, which is no strategy",
                f"did you mean AuctionStrategy({name}(), …)?",
            )
        if noise not in NOISE_ON:
            raise UnknownNameError.among("noise", noise, NOISE_ON)
        require_maker("AuctionStrategy", "model", model)
        taken = own_arguments(AuctionStrategy.__init__)
        chosen = settings_from("AuctionStrategy", settings, [name for name in taken if name != "self"])
        if "steps" not in settings:
            chosen = replace(chosen, steps=steps_for(chosen.trust, noise))
        if model is not None:
            engine.require_supported(model())
        if chosen.trust == "aggregate":
            require_average(inner)
        self.register = register
        self.inner = inner
        self.weighted_by_key = weighted_by_key
        self.settings = chosen
        self.noise = noise
        self.result: MarketResult | None = None
        self.auctioneer = auctioneer_for(chosen, broker, token)
        self._model = model
        self._result_file = result_file
        self._rounds_given = "rounds" in settings
        self._started = time.perf_counter()
        self._before = 0
        self._partial: Path | None = None
        self._arrays = ArrayRecord({})
        self._refused_evaluation: set[str] = set()
        self._market: GridMarket | None = None
        self._open: tuple[Round, dict[str, Sale], ArrayRecord] | None = None
        self._sum: tuple[Mapping[str, Delivery], Message | None] | None = None

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        """The records of the rounds played so far."""
        return () if self._market is None else tuple(self._market.records)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's `start`, with an auction in every round; the arguments are Flower's.

        If `evaluate_fn` fails before the first round, the run does not start; later, only its figure is missing. An
        interrupted run leaves a result of the settled rounds.
        """
        checkpoint.note_running()
        self._prepare(grid, initial_arrays, num_rounds)
        left = checkpoint.found(self._partial, self.settings, arrays_of(initial_arrays))
        first = initial_arrays
        if left is not None:
            self._begun.restore(left)
        self._begun.find_open()
        if left is not None:
            self._before = len(left.records)
            first = ArrayRecord({name: Array(left.arrays[name]) for name in initial_arrays})
        self._arrays = first
        measure = None if evaluate_fn is None else self._evaluation(checked_evaluation(evaluate_fn))
        try:
            result = super().start(
                grid,
                first,
                num_rounds - self._before,
                timeout,
                train_config,
                evaluate_config,
                measure,
            )
        except AllFailedError:
            result = Result()
        except (KeyboardInterrupt, StopAskedError):
            self._send_receipts()
            self._begun.fleet.receipts = {}
            self._keep(self._arrays)
            self.result = self._made(None, self._begun.stopped_note(self._partial))
            log_summary(self.result)
            raise
        if not len(result.arrays):
            result.arrays = self._arrays  # nothing was bought; an app that saves the model saves the initial one
        self._send_receipts()
        self.result = self._made(result)
        log_summary(self.result)
        save_result(None, self.result, self._result_file)
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)
        self._begun.end()
        return result

    def _prepare(self, grid: Grid, arrays: ArrayRecord, rounds: int) -> None:
        """Checks the arguments of `start`, before the first message.

        Raises:
            ConfigurationError: they are of another kind, or disagree with the settings.
        """
        if not isinstance(arrays, ArrayRecord):
            raise ConfigurationError(
                f"initial_arrays is a {type(arrays).__name__}", "give ArrayRecord(model.state_dict())"
            )
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ConfigurationError(f"num_rounds is {rounds!r}", "give a whole number, at least 1")
        if self._rounds_given and rounds != self.settings.rounds:
            raise ConfigurationError(
                f"start plays {rounds} rounds, the auction was told rounds={self.settings.rounds}",
                "leave rounds= out: sellers spread their ε over the rounds of start",
            )
        self.settings = replace(self.settings, rounds=rounds)
        if isinstance(self.auctioneer, BrokerAuctioneer):
            self.auctioneer.settings = self.settings
        places = result_places(None, self._result_file)
        self._partial = partial_path(places[0]) if places else None
        self._market = self._new_market(grid, arrays)
        self._market.open_file = None if self._partial is None else checkpoint.open_path(self._partial)

    def _new_market(self, grid: Grid, arrays: ArrayRecord) -> GridMarket:
        fleet = Fleet(grid, self.settings.bid_seconds)
        fleet.needs_keys = self.settings.trust == "aggregate" and isinstance(self.auctioneer, LocalAuctioneer)
        made = GridMarket(self.settings, self.auctioneer, fleet, str(grid.run.run_id))
        made.parameters = self._parameters(arrays)
        made.server_gain = strategy_gain(self.inner, self.settings.rounds)
        made.noise = self.noise
        return made

    def _parameters(self, arrays: ArrayRecord) -> int:
        """How many weights are trained: those of the model that require gradients; without a model, all floats."""
        if self._model is not None:
            return sum(p.numel() for p in self._model().parameters() if p.requires_grad)
        return sum(math.prod(a.shape) for a in arrays.values() if a.dtype.startswith("float")) or 1

    def _evaluation(
        self, measure: Callable[[int, ArrayRecord], MetricRecord | None]
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """An `evaluate_fn` that counts rounds over the whole run and stores the accuracy in the round's record."""

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = measure(number + self._before if number else 0, arrays)
            if number and found is not None and _ACCURACY in found:
                records = self._begun.records
                records[-1] = replace(records[-1], accuracy=float(str(found[_ACCURACY])))
                self._keep(arrays)
            return found

        return evaluate

    @property
    def _begun(self) -> GridMarket:
        assert self._market is not None
        return self._market

    def _keep(self, arrays: ArrayRecord) -> None:
        """Writes the settled rounds beside the result. The momentum of `inner` is not kept."""
        if self._partial is not None and self._begun.records:
            self._begun.settled(arrays_of(arrays)).write(self._partial)

    def _send_receipts(self) -> None:
        market = self._begun
        if market.fleet.receipts and market.records:
            market.fleet.send_receipts(market.pacing.terms(market.records[:-1]), RECEIPT_SECONDS)

    def _made(self, result: Result | None, *notes: str) -> MarketResult:
        market = self._begun
        measured = {} if result is None else result.evaluate_metrics_serverapp
        records = tuple(
            replace(r, accuracy=float(str(measured[at][_ACCURACY])))
            if _ACCURACY in measured.get(at := r.number + 1 - self._before, {}) and at > 0
            else r
            for r in market.records
        )
        final = self._arrays if result is None else result.arrays
        refused = [
            f"evaluation was refused by {counted(len(self._refused_evaluation), 'client')}: numbers that nobody "
            'accounts for; measure on the server (evaluate_fn=), or write allow=("evaluate",) in WalletMod'
        ]
        return MarketResult(
            self.settings,
            records,
            arrays_of(final),
            market.releases(),
            tuple(market.fleet.waited_seconds),
            time.perf_counter() - self._started,
            market.declined,
            cohorts=market.cohorts_of,
            lost=tuple(market.fleet.open_orders),
            build=self._model,
            notes=(*market.notes(), *(refused if self._refused_evaluation else ()), *notes),
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, to winners only, each with its own order."""
        if self._market is None:  # a loop of the app's own in place of `start`
            self._market = self._new_market(grid, arrays)
        market = self._market
        number = server_round + self._before
        picked = {m.metadata.dst_node_id: m for m in self.inner.configure_train(number, arrays, config, grid)}
        market.fleet.chosen = picked.keys()
        auction = hold_auction(market.pacing.terms(market.records), market.fleet, self.auctioneer, market.wallets)
        market.note_orders(auction)
        if self.settings.trust == "aggregate":
            # The protocol sends its own messages; the strategy sends none.
            self._open = auction, {}, arrays
            self._sum = bought_average(market, auction, arrays, self.weighted_by_key, self.register)
            return []
        sales = market.sales(auction)
        self._open = auction, sales, arrays
        return [self._with_order(picked[market.fleet.node_of[client]], sale) for client, sale in sales.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pays for usable updates and passes only these to the inner strategy."""
        assert self._open is not None
        assert self._market is not None
        auction, sales, arrays = self._open
        market = self._market
        received = list(replies)
        average: Message | None = None
        if self._sum is not None:
            deliveries, average = self._sum
        else:
            shapes = {name: tuple(array.shape) for name, array in arrays.items()}
            counters = {name for name, array in arrays.items() if not array.dtype.startswith("float")}
            deliveries = market.fleet.take(sales, received, None, shapes, counters)
        settled = settle_round(auction, Delivered(deliveries), self.auctioneer, market.wallets)
        assert settled.record is not None
        market.close(auction, settled.record)
        if self._sum is None:
            merged = self._merged(server_round, auction, deliveries, received)
        elif average is None:
            merged = None, None
        else:
            merged = self.inner.aggregate_train(server_round + self._before, [average])
        self._arrays = merged[0] if merged[0] is not None else arrays
        self._keep(self._arrays)
        if market.ended:
            raise AllFailedError(market.ended)
        if checkpoint.stop_asked() and len(market.records) < self.settings.rounds:
            raise StopAskedError("stopped, as asked", "the same command goes on")
        return merged

    def _merged(
        self, server_round: int, auction: Round, deliveries: Mapping[str, Delivery], received: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The inner strategy's aggregate of the usable updates."""
        market = self._begun
        usable = [client for client in auction.offers if (d := deliveries.get(client)) and d.update is not None]
        if not usable:  # nobody offered, sold or delivered
            return None, None
        first = {m.metadata.src_node_id: m for m in reversed(received)}  # the first reply of each node
        good = [first[market.fleet.node_of[client]] for client in usable]
        weights = seller_weights(auction, usable, self.settings.aggregation, market.objective)
        for message, weight in zip(good, weights, strict=True):
            self._weigh(message.content, float(weight))
        return self.inner.aggregate_train(server_round + self._before, good)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages. Clients with a wallet refuse them, since no accountant counts metrics."""
        return self.inner.configure_evaluate(server_round + self._before, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's result on the replies without refusals, which the run's summary counts."""
        answered = []
        for message in replies:
            if message.has_error() and (message.error.reason or "").startswith(refusals.REFUSED):
                self._refused_evaluation.add(str(message.metadata.src_node_id))
            else:
                answered.append(message)
        return self.inner.aggregate_evaluate(server_round + self._before, answered) if answered else None

    def report(self, context: Context, result: Result | None = None) -> MarketResult:
        """The result of the market; also written to the run config's `result-file`, and kept in the server's state.

        Args:
            context: of the server app.
            result: what `start` returned; for apps with a loop of their own.
        """
        if self._market is None:
            raise ConfigurationError("a report of a market that has not run", "call start first")
        if self.result is None:
            self._arrays = ArrayRecord({}) if result is None else result.arrays
            self._send_receipts()
            self.result = self._made(result)
            log_summary(self.result)
        save_result(context, self.result, self._result_file)
        return self.result

    def summary(self) -> None:
        """Logs the auction's settings and then the summary of the inner strategy."""
        _log.info("auction: %s", self.settings.to_json())
        self.inner.summary()

    @staticmethod
    def _with_order(message: Message, sale: Sale) -> Message:
        """A copy of the message with an order: strategies share a record among clients, and an order is private."""
        content = RecordDict(dict(message.content))
        wire.put(content, sale)
        meta = message.metadata
        return Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)

    def _weigh(self, content: RecordDict, weight: float) -> None:
        if self.weighted_by_key is None:
            return
        for record in content.metric_records.values():
            record[self.weighted_by_key] = weight


_BY_AVERAGE = (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)


def require_average(inner: Strategy) -> None:
    """Refuses a strategy that compares replies: under aggregate trust there is only one reply.

    Your own strategy declares that it uses only the average by `uses_only_average = True`.

    Raises:
        ConfigurationError: it compares replies, or nothing is known about it.
    """
    if type(inner) not in _BY_AVERAGE and not getattr(inner, "uses_only_average", False):
        names = ", ".join(one.__name__ for one in _BY_AVERAGE)
        raise ConfigurationError(
            f"trust 'aggregate' around {type(inner).__name__}, which may compare single updates; nobody sees them",
            f"use one of {names}, or set uses_only_average = True on a strategy of your own",
        )


def bought_average(
    market: GridMarket,
    auction: Round,
    arrays: ArrayRecord,
    weighted_by_key: str | None,
    register: SignRoster | None,
) -> tuple[Mapping[str, Delivery], Message | None]:
    """Plays a round's secure sums.

    Returns:
        What each seller delivered, and the one reply that the strategy averages: the model moved by the noisy
        average of what was bought. None where no sum was opened.
    """
    weights = {name: array.numpy() for name, array in arrays.items()}
    deliveries, step = buy_sum(market, auction, weights, register)
    if step is None:
        return deliveries, None
    cuts = np.cumsum([array.size for array in weights.values()])[:-1]
    moved = {
        name: Array(np.asarray(array - part.reshape(array.shape), dtype=array.dtype))
        for part, (name, array) in zip(np.split(step, cuts), weights.items(), strict=True)
    }
    metrics = MetricRecord({weighted_by_key or "num-examples": 1.0})
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
    return deliveries, Message(content, 0, wire.TRAIN)
