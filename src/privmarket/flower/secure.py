"""Secure aggregation: the server learns the weighted sum of the updates and no single one, by Flower's SecAgg+.

SecAgg+ adds up integers, so the weights must be public numbers that every client multiplies its own update with
before it is masked: client i of n sends n·α_i·update_i, everybody counts alike, and the mean is Σ α_i·update_i. The
server still knows every α_i (it bought them), a client only its own. What nobody can do any more is look at one
update: a client is paid for a masked vector, and one that sends garbage spoils the sum for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from privmarket.flower import wire
from privmarket.flower.client import Seller
from privmarket.flower.fleet import Delivery, Fleet
from privmarket.flower.wire import Arrays, Sale

FAILED = "secure aggregation did not reach its threshold"
_NAMES = "names"


@dataclass(frozen=True)
class SecureSettings:
    """Parameters of SecAgg+.

    Attributes:
        shares: into how many pieces a client's key is cut, as a share of the sellers.
        threshold: the share of those pieces that is enough to go on without a client.
        clipping_range: the largest coordinate of n·α·update that is not cut off; coordinates are rounded to
            2·clipping_range/2²².
    """

    clipping_range: float
    shares: float = 1.0
    threshold: float = 0.5


def clipping_range(sales: Iterable[Sale], deviations: float = 8.0) -> float:
    """A public bound on what honest sellers send: clipped means of at most C each, and 8 deviations of noise."""

    def largest(sale: Sale) -> float:
        noise = float(sale.family.noise_multiplier(sale.epsilon)) * np.sqrt(sale.family.steps) / sale.expected_batch
        return sale.share * sale.learning_rate * sale.clip_norm * float(sale.family.steps + deviations * noise)

    return float(max(largest(sale) for sale in sales))


def secure_client(seller: Seller) -> ClientApp:
    """A client app whose updates leave masked. Without a mask it sends nothing."""
    app = ClientApp(mods=[secaggplus_mod])
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order = compat.recorddict_to_fitins(message.content, keep_input=True)
        names = str(order.config.pop(_NAMES)).split("\n")
        content = RecordDict({wire.SALE: ConfigRecord(dict(order.config))})
        sale = wire.read_sale(content)
        job = seller.accept(sale, context)  # what is refused becomes an error reply, which SecAgg+ can do without
        weights = dict(zip(names, parameters_to_ndarrays(order.parameters), strict=True))
        update = {name: np.float32(sale.share) * array for name, array in seller.train(weights, job).items()}
        seller.close(sale, update, context)
        parameters = ndarrays_to_parameters([update[name] for name in names])
        reply = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={})
        return Message(compat.fitres_to_recorddict(reply, keep_input=False), reply_to=message)

    return app


def secure_order(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    timeout_seconds: float,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Sends every seller its order and adds up what comes back, masked.

    Returns:
        What each client delivered (without its update), and the mean over those that did of share·update.
    """
    settings = SecureSettings(clipping_range(sales.values()))
    winners = _Winners({fleet.node_of[client]: sale for client, sale in sales.items()}, weights)
    workflow = SecAggPlusWorkflow(
        num_shares=settings.shares,
        reconstruction_threshold=settings.threshold,
        max_weight=1.0,
        clipping_range=settings.clipping_range,
        timeout=timeout_seconds,
    )
    number = next(iter(sales.values())).number
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: number + 1}),
            MAIN_PARAMS_RECORD: ArrayRecord(list(weights.values())),
        }
    )
    context = Context(run_id=grid.run.run_id, node_id=0, node_config={}, state=state, run_config={})
    workflow(grid, LegacyContext(context, strategy=winners))
    if winners.mean is None:
        return {client: Delivery(fault=FAILED) for client in sales}, None
    silent = Delivery(fault="no masked update before the deadline", released=False)
    came = {c: Delivery() if fleet.node_of[c] in winners.delivered else silent for c in sales}
    return came, dict(zip(weights, winners.mean, strict=True))


@dataclass(eq=False)
class _Winners(FedAvg):  # type: ignore[misc,unused-ignore]
    """The strategy that SecAgg+ asks: whom to send what, and where the sum goes."""

    sales: Mapping[int, Sale]
    weights: Arrays
    delivered: set[int] = field(default_factory=set)
    mean: list[np.ndarray] | None = None

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, Any]]:
        """Every winner's own order."""
        arrays, names = ndarrays_to_parameters(list(self.weights.values())), "\n".join(self.weights)
        return [
            (_Proxy(node), FitIns(arrays, {**wire.sale_fields(sale), _NAMES: names}))
            for node, sale in self.sales.items()
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Any, dict[str, Any]]:
        """Takes the mean; each result carries the same one."""
        self.delivered = {proxy.node_id for proxy, _ in results}
        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        return results[0][1].parameters, {}


@dataclass(frozen=True)
class _Proxy:
    """A node's number, which is all that SecAgg+ wants of a client."""

    node_id: int
