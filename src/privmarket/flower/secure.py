"""Secure aggregation: the server learns the weighted sum of the updates and no single one, by Flower's SecAgg+.

SecAgg+ adds up integers, so the weights must be public numbers that every client multiplies its own update with
before it is masked: client i of n sends n·α_i·update_i, everybody counts alike, and the mean is Σ α_i·update_i. The
server still knows every α_i (it bought them), a client only its own. What nobody can do any more is look at one
update: a client is paid for a masked vector, and one that sends garbage spoils the sum for all.

That is local trust under a mask: every update still carries all of its own noise. Under aggregate trust
(`secure_sum`) clients send integers of `federated.shares`, each with a share of a common noise, and the sum is
exact. A client then refuses a server whose threshold is below the honest sellers of the terms, that gives it more
weight in the sum than its ε allows, asks for a second sum for one offer, or wants a survivor's keys both ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid

from privmarket.errors import PrivacyError
from privmarket.federated.shares import honest_sellers, largest_weights
from privmarket.flower import guard, wire
from privmarket.flower.client import MEMORY, MarketClientApp, Seller, event_of
from privmarket.flower.fleet import Delivery, Fleet
from privmarket.flower.masks import SecureWorkflow, secure_mod
from privmarket.flower.wire import Arrays, Sale
from privmarket.privacy import integer_noise
from privmarket.privacy.integer_noise import MAX_LEVELS, MIN_LEVELS
from privmarket.privacy.policy import PolicyRefusal, Reason
from privmarket.privacy.release import Grid as ReleaseGrid

FAILED = "secure aggregation did not reach its threshold"
_ORDER, _NAMES = "fitins.config", "names"
_LARGEST_INTEGER = 2**30  # Flower quantises to 32-bit integers, of twice the size


@dataclass(frozen=True)
class SecureSettings:
    """Parameters of SecAgg+.

    Attributes:
        clipping_range: the largest coordinate that is not cut off.
        quantization_range: coordinates are rounded to 2·clipping_range over this; at most 2³¹.
        modulus_range: masks are drawn below this power of two.
        shares: into how many pieces a client's key is cut, as a share of the sellers.
        threshold: how many of those pieces are enough to go on without a client, or their share.
    """

    clipping_range: float
    quantization_range: int = 2**22
    modulus_range: int = 2**32
    shares: float = 1.0
    threshold: int | float = 0.5


def clipping_range(sales: Iterable[Sale], deviations: float = 8.0) -> float:
    """A public bound on what honest sellers send: clipped means of at most C each, and 8 deviations of noise."""

    def largest(sale: Sale) -> float:
        noise = float(sale.family.noise_multiplier(sale.epsilon)) * np.sqrt(sale.family.steps) / sale.expected_batch
        return sale.share * sale.learning_rate * sale.clip_norm * float(sale.family.steps + deviations * noise)

    return float(max(largest(sale) for sale in sales))


class SecureClientApp(MarketClientApp):
    """A client app whose updates leave masked; an error leaves as one word, which SecAgg+ can do without."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers a message."""
        try:
            # Flower also takes "train.default" for "train", and SecAgg+ lets it pass without a mask.
            if message.metadata.message_type not in (wire.TRAIN, wire.BID, wire.RECEIPT):
                raise PolicyRefusal(Reason.MESSAGE, f"a message of type {message.metadata.message_type}")
            return ClientApp.__call__(self, message, context)
        except Exception as error:
            reason = guard.reason_of(error)
            guard.note_refusal(context, reason, error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason.value), reply_to=message)


def secure_client(seller: Seller) -> SecureClientApp:
    """A client app whose updates leave masked. Without a mask it sends nothing."""
    app = SecureClientApp(mods=[checked_mod])
    app.seller = seller
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order = compat.recorddict_to_fitins(message.content, keep_input=True)
        sale, names = _read_order(order.config)
        weights = dict(zip(names, parameters_to_ndarrays(order.parameters), strict=True))
        if sale.trust == "aggregate":
            sent = _share(seller, sale, weights, context)
        else:
            job = seller.accept(sale, context, weights)
            sent = {name: np.float32(sale.share) * array for name, array in seller.train(weights, job).items()}
        seller.close(sale, sent, context)
        parameters = ndarrays_to_parameters([sent[name] for name in names])
        reply = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={})
        return Message(compat.fitres_to_recorddict(reply, keep_input=False), reply_to=message)

    return app


def checked_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """SecAgg+ on the client, after the server's own steps were held against what the client bid under."""
    public = b""
    if message.metadata.message_type == wire.TRAIN:
        configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
        if configs is None:
            raise PolicyRefusal(Reason.MESSAGE, "an order outside the protocol of the secure sum")
        check_protocol(configs, context)
        if configs.get(Key.STAGE) == Stage.COLLECT_MASKED_VECTORS:
            sale, _ = _read_order(message.content.config_records[_ORDER])
            public = public_numbers(sale, **context.state.config_records[RECORD_KEY_STATE])
    reply: Message = secure_mod(public)(message, context, call_next)
    return reply


def public_numbers(
    sale: Sale, *, threshold: Any, clipping_range: Any, target_range: Any, mod_range: Any, **_: Any
) -> bytes:
    """What all sellers of a sum must have been told alike: the noise of each is what the others count on."""
    of_sum = (sale.run, sale.number, sale.trust, sale.honest_share, sale.sellers, sale.levels)
    return repr((*of_sum, threshold, clipping_range, target_range, mod_range)).encode()


def _read_order(fields: Mapping[str, Any]) -> tuple[Sale, list[str]]:
    """The sale, and the names of the weights that come with it."""
    config = dict(fields)
    names = str(config.pop(_NAMES)).split("\n")
    content = RecordDict({wire.SALE: ConfigRecord(config)})
    return guard.readable(lambda: wire.take(content, Sale)), names


def check_protocol(configs: ConfigRecord, context: Context) -> None:
    """Refuses a step of the protocol that would show more than the sum over enough sellers.

    Raises:
        PolicyRefusal: `unsold` for a sum that the client made no offer for, or has sold into already;
            `honest-share` for a threshold below the honest sellers of the terms, or sums over part of the sellers;
            `noise` for settings under which a seller's noise would be scaled, cut off or lost in the sum;
            `message` for lists of sellers that would uncover a single vector.
    """
    stage = configs.get(Key.STAGE)
    if stage == Stage.SETUP:
        memory = context.state.get(MEMORY)
        if not isinstance(memory, ConfigRecord) or not float(memory["epsilon"]) > 0:  # type: ignore[arg-type]
            raise PolicyRefusal(Reason.UNSOLD, "a secure sum without an offer, or a second one for the same offer")
        if memory["trust"] == "aggregate":
            sellers, pieces, threshold = (
                configs.get(key) for key in (Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD)
            )
            share = float(memory["honest-share"])  # type: ignore[arg-type]
            if not isinstance(sellers, int) or not isinstance(threshold, int) or pieces != sellers or sellers < 1:
                raise PolicyRefusal(Reason.HONEST_SHARE, f"keys in {pieces!r} pieces for {sellers!r} sellers")
            if threshold < honest_sellers(sellers, share):
                raise PolicyRefusal(Reason.HONEST_SHARE, f"a threshold of {threshold} for {sellers} sellers")
            _check_integers(configs, sellers)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        _check_sources(configs.get(Key.SOURCE_LIST), context.state.config_records.get(RECORD_KEY_STATE, {}))
    if stage == Stage.UNMASK:
        lists = [configs.get(key) for key in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST)]
        named = [node for one in lists if isinstance(one, list) for node in one]
        # Both secrets of one client would take the mask off its own vector.
        if len(named) != len(set(named)):
            raise PolicyRefusal(Reason.MESSAGE, "a seller is among survivors and drop-outs, or twice")


def _check_sources(sources: Any, state: Mapping[str, Any]) -> None:
    """Refuses to mask a vector against too few others: the same one named twice is one, and may know the mask."""
    known, threshold = state.get("ss2_dict:K"), state.get("threshold")
    if not isinstance(sources, list) or not isinstance(known, list) or not isinstance(threshold, int):
        raise PolicyRefusal(Reason.MESSAGE, "no list of sellers to mask against")
    if len(sources) != len(set(sources)) or not set(sources) <= set(known) or len(sources) + 1 < threshold:
        raise PolicyRefusal(Reason.MESSAGE, f"masks against {sources!r}, where {threshold} must take part")


def _check_integers(configs: ConfigRecord, sellers: int) -> None:
    """Refuses settings of SecAgg+ under which integers would not be added up as they are.

    Flower scales, clips and quantises each vector before it is masked. A server that told all but one seller to
    scale by nothing, or to clip at nothing, would be left with that one's share and its small part of the noise.
    """
    keys = (Key.MAX_WEIGHT, Key.CLIPPING_RANGE, Key.TARGET_RANGE, Key.MOD_RANGE)
    weight, reach, target, modulus = (configs.get(key) for key in keys)
    if not isinstance(reach, float) or not isinstance(target, int) or not isinstance(modulus, int):
        raise PolicyRefusal(Reason.NOISE, f"integers up to {reach!r} of {target!r} steps modulo {modulus!r}")
    if weight != 1.0 or not 1.0 <= reach <= _LARGEST_INTEGER or target != 2 * reach or modulus < sellers * target:
        why = f"weight {weight!r}, integers up to {reach:g} of {target} steps modulo {modulus}"
        raise PolicyRefusal(Reason.NOISE, f"{why}: not every sum of {sellers} sellers' integers")


def _largest_share(weight: float, clip_norm: float, records: float, levels: int) -> int:
    """No integer of a share is larger: the clipped sum of so many records on its grid, and the noise."""
    return math.ceil(1.02 * weight * clip_norm * records) + 2 + integer_noise.largest(levels)


def _share(seller: Seller, sale: Sale, weights: Arrays, context: Context) -> Arrays:
    """This client's part of a secure sum, integers as float64; checked before anything is reserved."""
    if seller.share is None:
        raise PolicyRefusal(Reason.TRUST, "this client cannot train for a secure sum")
    state = context.state.config_records[RECORD_KEY_STATE]
    if state.get("sample_num") != sale.sellers:
        raise PolicyRefusal(Reason.HONEST_SHARE, f"{sale.sellers} sellers, and another number in the protocol")
    sigma, records = event_of(sale.family, sale.epsilon).noise_multiplier, seller.share.records(context)
    if sale.family.steps != 1 or not MIN_LEVELS <= sale.levels <= MAX_LEVELS:
        raise PolicyRefusal(Reason.SCHEDULE, f"{sale.family.steps} steps, {sale.levels} digits of noise")
    (most,) = largest_weights(
        [sigma],
        [records],
        honest=honest_sellers(sale.sellers, sale.honest_share),
        levels=sale.levels,
        clip_norm=sale.clip_norm,
        parameters=sum(array.size for array in weights.values()),
    )
    if not 0 < sale.weight <= most:
        raise PolicyRefusal(Reason.NOISE, f"a weight of {sale.weight} in the sum, where {most} is the most")
    reach = float(state["clipping_range"])  # type: ignore[arg-type]
    if _largest_share(sale.weight, sale.clip_norm, records, sale.levels) > reach:
        raise PolicyRefusal(Reason.NOISE, f"integers are cut off at {reach:g}, and with them some of the noise")
    job = seller.accept(sale, context, weights)
    integers = seller.share.share(weights, job, ReleaseGrid(1.0 / sale.weight, sale.levels))
    return {name: np.asarray(array, dtype=np.float64) for name, array in integers.items()}


def secure_sum(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    records: Mapping[str, float],
    timeout_seconds: float,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Aggregate trust: sends every seller its order and adds up their integers, exactly.

    Args:
        records: client → how many records it declared.

    Returns:
        What each client delivered (without its share), and the sum over those that did, int64 by name; None where
        fewer than the honest sellers came through: then nothing is uncovered.

    Raises:
        PrivacyError: the integers of this round are too large for Flower's quantiser.
    """
    one = next(iter(sales.values()))
    largest = max(_largest_share(s.weight, s.clip_norm, records[c], s.levels) for c, s in sales.items())
    reach = 1 << largest.bit_length()
    if reach > _LARGEST_INTEGER:
        raise PrivacyError(
            f"shares of up to {largest} in a secure sum, Flower's quantiser takes {_LARGEST_INTEGER}",
            "sell less ε a round, or use fewer records a client",
        )
    settings = SecureSettings(
        clipping_range=float(reach),
        quantization_range=2 * reach,  # one step per integer: the quantiser changes nothing
        modulus_range=1 << (2 * reach * len(sales)).bit_length(),
        threshold=max(2, honest_sellers(len(sales), one.honest_share)),
    )
    deliveries, mean = secure_order(grid, fleet, sales, weights, timeout_seconds, settings)
    if mean is None:
        return deliveries, None
    came = sum(delivery.fault is None for delivery in deliveries.values())
    return deliveries, {name: np.rint(array * came).astype(np.int64) for name, array in mean.items()}


def secure_order(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    timeout_seconds: float,
    settings: SecureSettings | None = None,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Sends every seller its order and adds up what comes back, masked.

    Returns:
        What each client delivered (without its update), and the mean over those that did of what they sent.
    """
    settings = settings or SecureSettings(clipping_range(sales.values()))
    winners = _Winners({fleet.node_of[client]: sale for client, sale in sales.items()}, weights)
    workflow = _Workflow(
        num_shares=settings.shares,
        reconstruction_threshold=settings.threshold,
        max_weight=1.0,
        clipping_range=settings.clipping_range,
        quantization_range=settings.quantization_range,
        modulus_range=settings.modulus_range,
        timeout=timeout_seconds,
    )
    workflow.sale = next(iter(sales.values()))
    number = workflow.sale.number
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: number + 1}),
            MAIN_PARAMS_RECORD: ArrayRecord(list(weights.values())),
        }
    )
    context = Context(run_id=grid.run.run_id, node_id=0, node_config={}, state=state, run_config={})
    workflow(grid, LegacyContext(context, strategy=winners))
    if winners.mean is None:
        # Before the orders went out it is certain that nobody released anything.
        return {client: Delivery(fault=FAILED, refused=not workflow.ordered) for client in sales}, None
    silent = Delivery(fault="no masked update before the deadline")
    came = {c: Delivery() if fleet.node_of[c] in winners.delivered else silent for c in sales}
    return came, dict(zip(weights, winners.mean, strict=True))


class _Workflow(SecureWorkflow):
    """Remembers whether sellers were sent their orders, and one of them: what masks are bound to is in all."""

    ordered = False
    sale: Sale

    def public_numbers(self, state: Any) -> bytes:
        """See `public_numbers`."""
        return public_numbers(
            self.sale,
            threshold=state.threshold,
            clipping_range=state.clipping_range,
            target_range=state.quantization_range,
            mod_range=state.mod_range,
        )

    def collect_masked_vectors_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        """Sends the orders."""
        self.ordered = True
        return bool(super().collect_masked_vectors_stage(grid, context, state))


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
            (_Proxy(node), FitIns(arrays, {**wire.fields_of(sale), _NAMES: names}))
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
